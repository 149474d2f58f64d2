"""Explains what is wrong with a single JSON record that a whole-batch parser has already rejected.

`explain` names only faults that the parsers certainly reject. It leaves to them what it cannot judge.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import pyarrow as pa

from joinery_runtime.formats.convert import fault
from joinery_runtime.formats.records import looks_like

_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_BLANK = " \t\r\n"
_LINE_OF_MORE = "it may be a line of an array or of an object on several lines; each line of a file is one object"
_KINDS = {bool: "a boolean", int: "a number", Decimal: "a number", str: "text", list: "an array", type(None): "null"}


class Explainer:
    """Explains records that were meant to be rows of `schema`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._checks = [(field, check) for field in schema if (check := _check_for(field.type)) is not None]

    def explain(self, record: bytes) -> str | None:
        """Return why the record is bad, or None if only the parsers can say."""
        looks = looks_like(record)
        if looks is not None:
            return f"not JSON: it looks like {looks}"
        if record.startswith(codecs.BOM_UTF8):
            return "not JSON: it begins with a byte order mark; let the producer leave it out"
        try:
            text = record.decode("utf-8")
        except UnicodeDecodeError as error:
            return f"not UTF-8: byte 0x{record[error.start]:02x} at position {error.start}"
        if not text.strip(_BLANK):
            return "empty record"
        try:
            row = _DECODER.decode(text)
            if not isinstance(row, dict):
                return f"not a JSON object but {_KINDS[type(row)]}"
            for field, may_fit in self._checks:
                value = row.get(field.name)
                if value is not None and not may_fit(value):
                    return fault(field.name, str(value) if isinstance(value, Decimal) else value, field.type)
            return None
        except json.JSONDecodeError as error:
            # One message of Python is "Unterminated string starting at".
            cut = f"; {_LINE_OF_MORE}" if text.strip(_BLANK)[:1] == "[" or text.strip(_BLANK) == "{" else ""
            return f"not JSON: {error.msg.removesuffix(' at')} at character {error.pos}{cut}"
        except _ConstantError as error:
            return f"not JSON: {error}"
        except (RecursionError, ValueError, InvalidOperation):
            # Limits of Python: deep nesting, an integer of thousands of digits, or an exponent of twenty digits.
            return None


class _ConstantError(Exception):
    pass


def _reject_constant(name: str) -> NoReturn:
    raise _ConstantError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_reject_constant)


def _check_for(target: pa.DataType) -> Callable[[Any], bool] | None:
    if pa.types.is_boolean(target):
        return lambda value: type(value) is bool
    if pa.types.is_floating(target):
        return lambda value: type(value) in (Decimal, int) and -_TOO_LARGE < value < _TOO_LARGE
    if pa.types.is_decimal(target):
        return lambda value: _may_be_decimal(target, value)
    return _INTEGERS.get(target)


_TOO_LARGE = 2**1024 - 2**970  # from here on, a number is rounded to infinity
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
    integer_digits = len(significant.lstrip("0")) - scale
    return not significant or (scale <= target.scale and integer_digits <= target.precision - target.scale)
