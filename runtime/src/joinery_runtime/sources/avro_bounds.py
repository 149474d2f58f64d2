"""Checks a record of Avro against limits before the library reads it.

The library reads by recursion in C, which ends the process if a record is nested too deep, and it makes a value for
each item of an array of nulls, of which a record of ten bytes may have a billion. Most schemas allow neither, which is
known from the schema alone: their records are not looked at.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from fastavro.read import LOGICAL_READERS

from joinery_runtime.sources.avro_times import with_own_times
from joinery_runtime.sources.connect_types import decimal_of
from joinery_runtime.sources.records import varint

DEEPEST = 100
"""How deep records, arrays and maps may be nested."""
_DEEPEST_TEXT = 500  # objects and arrays in a schema's text
_VALUES = 10_000  # that any record may have
_VALUES_PER_BYTE = 16  # that a longer record may have; a union and its null are two values of one byte
_MOST_SCHEMAS = 1_000  # that are remembered
_WIDTHS = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1, "enum": 1}

_judged: dict[int, tuple[Any, bool]] = {}  # by the id() of schemas, which this keeps alive


def schema_document(text: str) -> Any:
    """A schema's text as JSON, for the library to parse. Raises ValueError if it is nested too deep for the library,
    which would end the process."""
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {_DEEPEST_TEXT}") from error
    level, depth = [document], 0
    while level:
        if depth > _DEEPEST_TEXT:
            raise ValueError(f"it is nested deeper than {_DEEPEST_TEXT}")
        nested = [value for value in level if isinstance(value, dict | list)]
        level = [inner for value in nested for inner in (value.values() if isinstance(value, dict) else value)]
        depth += 1
    return with_own_times(document)


class OutOfBounds(Exception):
    """A record is over a limit, or no record of its schema. The text says why."""


def check(record: bytes, start: int, schema: Any) -> None:
    """Raises OutOfBounds if reading the record by this schema, as fastavro has parsed it, would be over a limit."""
    if id(schema) not in _judged:
        if len(_judged) >= _MOST_SCHEMAS:
            _judged.clear()
        _judged[id(schema)] = schema, _is_risky(schema)
    if _judged[id(schema)][1]:
        _Walk(record, start, _named(schema)).value(schema, 0)


def _named(schema: Any) -> Mapping[str, Any]:
    named: Mapping[str, Any] = schema.get("__named_schemas", {}) if isinstance(schema, dict) else {}
    return named


def _is_risky(schema: Any) -> bool:
    """Whether a record of this schema may be nested without end, or have many more values than bytes."""
    named, sizes = _named(schema), dict[str, tuple[int, float]]()
    risky = False

    def size(node: Any, inside: tuple[str, ...]) -> tuple[int, float]:
        """The fewest bytes that a value has, and how many values it may be made of, an array of one item."""
        nonlocal risky
        if isinstance(node, list):
            parts = [size(each, inside) for each in node]
            return 1, 1 + max((values for _, values in parts), default=0)
        kind = node["type"] if isinstance(node, dict) else node
        if isinstance(kind, dict | list):
            return size(kind, inside)
        if kind in _WIDTHS:
            return _WIDTHS[kind], 1
        if kind == "fixed":
            return int(node["size"]), 1
        if kind in ("array", "map"):
            width, values = size(node["items" if kind == "array" else "values"], inside)
            risky |= values > _VALUES_PER_BYTE * (width + (kind == "map"))
            return 1, 1 + values
        if kind in ("record", "error"):
            name = node.get("name", "")
            if name in inside:
                risky = True
                return 1, math.inf
            fields = [size(field["type"], (*inside, name)) for field in node["fields"]]
            sizes[name] = sum(width for width, _ in fields), 1 + sum(values for _, values in fields)
            return sizes[name]
        if kind in sizes:
            return sizes[kind]
        if kind in inside or len(inside) > DEEPEST:
            risky = True
            return 1, math.inf
        return size(named[kind], inside)

    _, values = size(schema, ())
    return risky or values > _VALUES


class _Walk:
    """Goes through a record without making anything of it."""

    def __init__(self, record: bytes, start: int, named: Mapping[str, Any]) -> None:
        self._record, self._at, self._named = record, start, named
        self._left = _VALUES + _VALUES_PER_BYTE * len(record)

    def value(self, schema: Any, depth: int) -> None:
        self._count(1)
        if depth > DEEPEST:
            raise OutOfBounds(f"it is nested deeper than {DEEPEST}")
        if isinstance(schema, list):
            branch = self._number()
            if not 0 <= branch < len(schema):
                raise OutOfBounds(f"a union has no branch {branch}")
            self.value(schema[branch], depth)
            return
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, dict | list):
            self.value(kind, depth)
        elif kind in ("array", "map"):
            self._items(schema, kind, depth)
        elif kind in ("record", "error"):
            for field in schema["fields"]:
                self.value(field["type"], depth + 1)
        elif kind == "fixed" or kind in _WIDTHS:
            self._plain(kind, schema)
        else:
            self.value(self._named[kind], depth)

    def _plain(self, kind: str, schema: Any) -> None:
        if kind in ("int", "long", "enum"):
            self._number()
        elif kind in ("bytes", "string"):
            self._skip(self._number())
        else:
            self._skip(int(schema["size"]) if kind == "fixed" else _WIDTHS[kind])

    def _items(self, schema: Mapping[str, Any], kind: str, depth: int) -> None:
        while (count := self._number()) != 0:
            if count < 0:  # the block's length follows
                count = -count
                self._number()
            if count > self._left:
                raise OutOfBounds(f"it has a block of {count:,} items in {len(self._record):,} bytes")
            for _ in range(count):
                if kind == "map":
                    self._skip(self._number())
                self.value(schema["items" if kind == "array" else "values"], depth + 1)

    def _count(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise OutOfBounds(f"it has more values than {len(self._record):,} bytes can hold")

    def _skip(self, size: int) -> None:
        if size < 0 or self._at + size > len(self._record):
            raise OutOfBounds("it ends too early")
        self._at += size

    def _number(self) -> int:
        try:
            number, self._at = varint(self._record, self._at)
        except ValueError as error:
            raise OutOfBounds(str(error)) from error
        return number >> 1 ^ -(number & 1)


def _decimal(data: Any, written: dict[Any, Any] | None = None, _: dict[Any, Any] | None = None) -> Decimal:
    return decimal_of(data, int((written or {}).get("scale", 0)))


# fastavro's own reader takes quadratic time, rounds to the schema's precision, and shares a context between threads.
LOGICAL_READERS["bytes-decimal"] = LOGICAL_READERS["fixed-decimal"] = _decimal
