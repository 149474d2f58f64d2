"""Says what is wrong with one JSON record: for records that a whole-batch parser has already refused.

`explain` only names faults that the parsers refuse for certain; what it cannot judge it leaves to them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import pyarrow as pa

from joinery_runtime.sources.convert import fault
from joinery_runtime.sources.records import varint

_OTHERS = {
    b"\x1f\x8b": "gzip inside of the value; let the producer use compression.type instead",
    b"\x78\x9c": "zlib inside of the value; let the producer use compression.type instead",
    b"\x28\xb5\x2f\xfd": "zstd inside of the value; let the producer use compression.type instead",
    b"Obj\x01": "an Avro container, which topics do not have; write records one by one",
    b"PAR1": "Parquet",
}
FRAME = 5  # bytes of Confluent's framing: zero, and the number of the schema
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_KINDS = {bool: "a boolean", int: "a number", Decimal: "a number", str: "text", list: "an array", type(None): "null"}


class Explainer:
    """Explains records that were meant to be rows of `schema`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._checks = [(field, check) for field in schema if (check := _check(field.type)) is not None]

    def explain(self, record: bytes) -> str | None:
        """Why the record is bad, or None if that is for the parsers to say."""
        looks = _looks_like(record)
        if looks is not None:
            return f"not JSON: it looks like {looks}"
        try:
            text = record.decode("utf-8")
        except UnicodeDecodeError as error:
            return f"not UTF-8: byte 0x{record[error.start]:02x} at position {error.start}"
        if not text.strip(" \t\r\n"):
            return "empty record"
        try:
            reason = self._judge(_DECODER.decode(text))
            # Of two equal names the usual decoder takes the last, the parsers the first: be certain before blaming.
            return reason and self._judge(_FIRST_NAME_DECODER.decode(text))
        except json.JSONDecodeError as error:
            # One message of Python is "Unterminated string starting at".
            return f"not JSON: {error.msg.removesuffix(' at')} at character {error.pos}"
        except _ConstantError as error:
            return f"not JSON: {error}"
        except (RecursionError, ValueError, InvalidOperation):
            # Too deep, an integer of thousands of digits, or an exponent of twenty: limits of Python's.
            return None

    def _judge(self, row: Any) -> str | None:
        if not isinstance(row, dict):
            return f"not a JSON object but {_KINDS[type(row)]}"
        for field, may_fit in self._checks:
            value = row.get(field.name)
            if value is not None and not may_fit(value):
                return fault(field.name, str(value) if isinstance(value, Decimal) else value, field.type)
        return None


def _looks_like(record: bytes) -> str | None:
    """What a record that begins in this way is instead."""
    for begins, what in _OTHERS.items():
        if record.startswith(begins):
            return what
    if record[:1] == b"\0" and len(record) > FRAME:
        number = int.from_bytes(record[1:FRAME])
        if record[FRAME : FRAME + 1] in (b"{", b"["):
            return f"Confluent JSON of schema {number}; name its schemaRegistry"
        kind = "Protobuf" if _may_be_protobuf(record[FRAME:]) else "Avro"
        return f"Confluent {kind} of schema {number}; write format: {kind.lower()} and its schemaRegistry"
    return None


def _may_be_protobuf(framed: bytes) -> bool:
    """Whether the first message's mark (a zero) is followed by fields of Protobuf to the end. Avro that begins with a
    zero seldom is."""
    at, size = 1, len(framed)
    try:
        while at < size:
            tag, at = varint(framed, at)
            match tag & 7:
                case 0:
                    _, at = varint(framed, at)
                case 1:
                    at += 8
                case 2:
                    length, at = varint(framed, at)
                    at += length
                case 5:
                    at += 4
                case _:
                    return False
            if tag < 8:  # field 0
                return False
    except ValueError:
        return False
    return framed[0] == 0 and at == size and size > 1


class _ConstantError(Exception):
    pass


def _refuse_constant(name: str) -> NoReturn:
    raise _ConstantError(f"{name} is not a JSON number")


def _first_counts(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs))


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant)
_FIRST_NAME_DECODER = json.JSONDecoder(
    parse_float=Decimal, parse_constant=_refuse_constant, object_pairs_hook=_first_counts
)


def _check(target: pa.DataType) -> Callable[[Any], bool] | None:
    if pa.types.is_boolean(target):
        return lambda value: type(value) is bool
    if pa.types.is_floating(target):
        return lambda value: type(value) is Decimal or type(value) is int
    if pa.types.is_decimal(target):
        return lambda value: _may_be_decimal(target, value)
    return _INTEGERS.get(target)


_INTEGERS: dict[pa.DataType, Callable[[Any], bool]] = {
    pa.int32(): lambda value: type(value) is int and -(2**31) <= value < 2**31,
    pa.int64(): lambda value: type(value) is int and -(2**63) <= value < 2**63,
}


def _may_be_decimal(target: pa.Decimal128Type, value: Any) -> bool:
    if type(value) not in (int, Decimal, str) or (isinstance(value, str) and not _DECIMAL.fullmatch(value)):
        return False
    _, digits, exponent = Decimal(value).as_tuple()
    written = "".join(map(str, digits))
    significant = written.rstrip("0")
    scale = -(int(exponent) + len(written) - len(significant))
    whole = len(significant.lstrip("0")) - scale
    return not significant or (scale <= target.scale and whole <= target.precision - target.scale)
