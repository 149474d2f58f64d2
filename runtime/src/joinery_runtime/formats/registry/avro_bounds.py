"""Keeps the library that reads Avro within bounds.

The library reads by recursion in C, which ends the process if a record is nested too deep, and it makes a value for
each item of an array of nulls, of which a record of ten bytes may have a billion. So a record is checked before it is
read. Most schemas allow neither, which is known from the schema alone: their records are not looked at.

The library counts a negative index of an enum or a union from the end, as Python does. So it reads by a copy of the
schema in which such an index names nothing.

The library takes any byte but 0 for true, against Avro's specification. In that copy, a boolean is an enum: its bytes 0
and 1 are the indexes 0 and -1.

The library also raises an error for a time or a date that Python's types cannot hold, even in a field that no column
names. Here such a number stays a number. The library's readers of logical types belong to the process, so schemas get
names of our own in place of theirs. A time keeps its microseconds: only a timestamp column cuts them off. One in
nanoseconds stays its number, as in the library, except where a timestamp column asks for the time.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from itertools import product
from typing import Any

import fastavro
from fastavro.read import LOGICAL_READERS

from joinery_runtime.formats.connect_types import decimal_of, named_schemas
from joinery_runtime.formats.records import read_varint

DEEPEST = 100
"""How deep records, arrays and maps may be nested."""
_SHOWN_FIELDS = 5  # of a path in a message
_DEEPEST_TEXT = 500  # objects and arrays in a schema's text
_VALUES = 10_000  # that any record may have
_VALUES_PER_BYTE = 16  # that a longer record may have; a union and its null are two values of one byte
_MOST_SCHEMAS = 1_000  # that are remembered
_WIDTHS = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1, "enum": 1}

# By the id() of schemas, which this keeps alive: the schema by which the library reads, and the named types of those
# that are risky.
_judged: dict[int, tuple[Any, Any, Mapping[str, Any] | None]] = {}


def schema_document(text: str) -> Any:
    """Return a schema's text as JSON, for the library to parse. Raises ValueError if it is nested too deep for the
    library, which would end the process."""
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

    def __init__(self, text: str, at: int | None = None) -> None:
        """`at` is the byte of the record at which the fault is."""
        super().__init__(text)
        self._text, self._at, self._path = text, at, list[str]()

    def inside(self, field: str) -> None:
        """Note that the fault is in this field. Inner fields come first."""
        self._path.insert(0, field)

    def __str__(self) -> str:
        path = [*self._path[:_SHOWN_FIELDS], "..."] if len(self._path) > _SHOWN_FIELDS else self._path
        field = f"field {'.'.join(path)}" if path else ""
        position = ", ".join(filter(None, [field, "" if self._at is None else f"byte {self._at}"]))
        return f"{position}: {self._text}" if position else self._text


def check(record: bytes, start: int, schema: Any) -> Any:
    """Return the schema by which the library has to read the record. Raise OutOfBounds if reading the record by
    `schema`, as fastavro has parsed it, would be over a limit."""
    judged = _judged.get(id(schema))  # one look: other threads clear it
    if judged is None:
        if len(_judged) >= _MOST_SCHEMAS:
            _judged.clear()
        named = named_schemas(schema)
        judge = _Judge(named)
        try:
            surplus = judge.surplus_of(schema, ())
            # Whether a record of this schema may be nested without end, or have many more values than bytes.
            is_risky = judge.risky or surplus > _VALUES
        except KeyError:  # a name that the schema does not define is left to the library, which says so
            is_risky = False
        # The library parses a union again for each record, and drops what is special about it.
        is_guarded = isinstance(schema, dict) and _rejects_negative_indexes()
        is_risky |= judge.guarded and not is_guarded
        judged = schema, _guarded(schema, {}) if is_guarded else schema, named if is_risky else None
        _judged[id(schema)] = judged
    _, readable, named_types = judged
    # The library would take the lowest bits of a number of more than 64. Text that is not ASCII has bytes as those.
    if named_types is None and _NINE in record.translate(_CONTINUED):
        runs = _LONG_NUMBER.findall(record)
        if any((len(run) > 9 or end > b"\1") and run.decode(errors="ignore").encode() != run for run, end in runs):
            named_types = named_schemas(schema)
    if named_types is not None:
        _Walk(record, start, named_types).value(schema, 0)
    return readable


def first_fault(record: bytes, start: int, schema: Any) -> str | None:
    """Return what is wrong with the record's bytes, by its schema alone, with the field and the byte; None: nothing."""
    try:
        _Walk(record, start, named_schemas(schema)).value(schema, 0)
    except OutOfBounds as fault:
        return str(fault)
    return None


_CONTINUED = bytes(byte >> 7 for byte in range(256))
"""Maps bytes to 1 if a number continues behind them, and to 0 if not."""
_NINE = bytes([1] * 9)
_LONG_NUMBER = re.compile(rb"([\x80-\xff]{9,})([\x00-\x7f]?)")


class _ByIndex(dict[int, Any]):
    """The symbols of an enum, or the branches of a union, by their indexes."""

    def __init__(self, listed: Iterable[Any], words: str) -> None:
        super().__init__(enumerate(listed))
        self._words = words

    def __missing__(self, index: int) -> Any:
        raise OutOfBounds(f"{self._words} {index}")


_BOOLEAN: dict[str, Any] = {
    "type": "enum",
    "name": "joinery.boolean",
    "symbols": _ByIndex((), "a boolean is 0 or 1, not index"),
}
_BOOLEAN["symbols"] |= {0: False, -1: True}


def _branches(listed: Sequence[Any]) -> list[Any]:
    """Return the branches of a union as a list, as which the library knows a union. It adds the length to a negative
    index, so the length is 0; and it asks a method in C for a branch, because one in Python would take 0.1 us for each
    value."""
    own = {"__getitem__": _ByIndex(listed, "a union has no branch").__getitem__, "__len__": lambda _: 0}
    union: list[Any] = type("Union", (list,), own)(listed)
    return union


def _guarded(node: Any, copies: dict[int, Any]) -> Any:
    """Return a copy of a parsed schema, in which a negative index of an enum or a union names nothing. `copies` are
    those of its parts, by the id() of the original: a record may contain itself."""
    if isinstance(node, list):
        return _branches([_guarded(branch, copies) for branch in node])
    kind = node.get("type") if isinstance(node, dict) else node
    if kind == "boolean":
        return _BOOLEAN
    if not isinstance(node, dict):
        return node
    if id(node) not in copies:
        copy = copies[id(node)] = dict(node)
        for key in ("type", "items", "values"):
            if key in node and (key != "type" or not isinstance(kind, str)):
                copy[key] = _guarded(node[key], copies)
        if "fields" in node:
            copy["fields"] = [{**field, "type": _guarded(field["type"], copies)} for field in node["fields"]]
        if "symbols" in node:
            copy["symbols"] = _ByIndex(node["symbols"], "an enum has no symbol")
        if _NAMED in node:
            copy[_NAMED] = {name: _guarded(inner, copies) for name, inner in node[_NAMED].items()}
    return copies[id(node)]


_PREFIX = "joinery-"
_NAMED = "__named_schemas"


@cache
def _rejects_negative_indexes() -> bool:
    """Whether the library that is installed takes a guarded schema as it is meant. Without it, records are checked
    before they are read."""
    enum = {"type": "enum", "name": "e", "symbols": ["a", "b"]}
    for kind, index in product((enum, ["null", "boolean"]), (-1, -2)):
        fields = [{"name": "field", "type": kind}]
        schema = _guarded(fastavro.parse_schema({"type": "record", "name": "r", "fields": fields}), {})
        with suppress(OutOfBounds):
            fastavro.schemaless_reader(io.BytesIO(bytes([-2 * index - 1, 0])), schema, None)
            return False
    return True


class _Judge:
    """Counts by how many values a value may exceed what its bytes allow, without looking at a record."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named, self._surplus = named, dict[str, float]()
        self.risky = False  # whether an array or a map may have a surplus with each item, or there is a cycle
        self.guarded = False  # whether there is an enum, a union or a boolean

    def surplus_of(self, node: Any, inside: tuple[str, ...]) -> float:
        """Return the most values that a value is made of, less the values that its bytes allow. It is a part of the
        records that are named `inside`. Raises KeyError if a name is not defined."""
        if isinstance(node, list):
            self.guarded = True
            branches = [self.surplus_of(branch, inside) for branch in node]
            return 1 - _VALUES_PER_BYTE + max(branches, default=0)
        kind = node["type"] if isinstance(node, dict) else node
        if isinstance(kind, dict | list):
            return self.surplus_of(kind, inside)
        if kind in ("enum", "fixed"):
            self.guarded |= kind == "enum"
            width = int(node["size"]) if kind == "fixed" else _WIDTHS[kind]
            self._surplus[node["name"]] = 1 - _VALUES_PER_BYTE * width
            return self._surplus[node["name"]]
        if kind in _WIDTHS:
            self.guarded |= kind == "boolean"
            return 1 - _VALUES_PER_BYTE * _WIDTHS[kind]
        if kind in ("array", "map"):
            item = self.surplus_of(node["items" if kind == "array" else "values"], inside)
            self.risky |= item > _VALUES_PER_BYTE * (kind == "map")  # a key has a byte or more
            return 1 - _VALUES_PER_BYTE  # of one without items; none that is not risky adds to it
        if kind in ("record", "error"):
            name = node.get("name", "")
            if name in inside:
                return self._check_endless()
            fields = [self.surplus_of(field["type"], (*inside, name)) for field in node["fields"]]
            self._surplus[name] = 1 + sum(fields)
            return self._surplus[name]
        if kind in self._surplus:
            return self._surplus[kind]
        if kind in inside or len(inside) > DEEPEST:
            return self._check_endless()
        return self.surplus_of(self._named[kind], inside)

    def _check_endless(self) -> float:
        self.risky = True
        return math.inf


class _Walk:
    """Goes through a record without making anything of it."""

    def __init__(self, record: bytes, start: int, named: Mapping[str, Any]) -> None:
        self._record, self._at, self._named = record, start, named
        self._left = _VALUES + _VALUES_PER_BYTE * len(record)

    def value(self, schema: Any, depth: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise OutOfBounds(f"it has more values than {len(self._record):,} bytes can hold")
        if depth > DEEPEST:
            raise OutOfBounds(f"it is nested deeper than {DEEPEST}")
        if isinstance(schema, list):
            self.value(schema[self._read_index(len(schema), "a union has no branch")], depth)
            return
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, dict | list):
            self.value(kind, depth)
        elif kind in ("array", "map"):
            self._count_items(schema, kind, depth)
        elif kind in ("record", "error"):
            for field in schema["fields"]:
                try:
                    self.value(field["type"], depth + 1)
                except OutOfBounds as fault:
                    fault.inside(field["name"])
                    raise
        elif kind == "enum":
            self._read_index(len(schema["symbols"]), "an enum has no symbol")
        elif kind == "fixed":
            self._skip_bytes(int(schema["size"]))
        elif kind in _WIDTHS:
            self._primitive(kind)
        else:
            self.value(self._named[kind], depth)

    def _primitive(self, kind: str) -> None:
        start = self._at
        if kind in ("int", "long"):
            self._read_number()
        elif kind in ("bytes", "string"):
            self._skip_bytes(self._read_length("bytes" if kind == "bytes" else "a string"))
        else:
            if kind == "boolean" and self._record[start : start + 1] > b"\1":
                raise OutOfBounds(f"a boolean is 0 or 1, and this is {self._record[start]}", start)
            self._skip_bytes(_WIDTHS[kind])

    def _count_items(self, schema: Mapping[str, Any], kind: str, depth: int) -> None:
        while (count := self._read_number()) != 0:
            if count < 0:  # the block's length follows
                count = -count
                self._read_length("a block")
            if count > self._left:
                raise OutOfBounds(f"it has a block of {count:,} items in {len(self._record):,} bytes")
            for _ in range(count):
                if kind == "map":
                    self._skip_bytes(self._read_length("a key"))
                self.value(schema["items" if kind == "array" else "values"], depth + 1)

    def _read_index(self, count: int, words: str) -> int:
        start, index = self._at, self._read_number()
        if not 0 <= index < count:
            raise OutOfBounds(f"{words} {index}", start)
        return index

    def _read_length(self, words: str) -> int:
        start, size = self._at, self._read_number()
        if size < 0:
            raise OutOfBounds(f"the length of {words} is {size}", start)
        return size

    def _skip_bytes(self, size: int) -> None:
        if self._at + size > len(self._record):
            raise OutOfBounds(f"{size:,} bytes are expected, and the record ends after {len(self._record):,}", self._at)
        self._at += size

    def _read_number(self) -> int:
        start = self._at
        try:
            number, self._at = read_varint(self._record, start)
        except ValueError as error:
            raise OutOfBounds(str(error), start) from error
        if number >= 2**64:
            raise OutOfBounds("a number has more than 64 bits", start)
        return number >> 1 ^ -(number & 1)


def _read_decimal(data: Any, written: dict[Any, Any] | None = None, _: dict[Any, Any] | None = None) -> Decimal:
    return decimal_of(data, int((written or {}).get("scale", 0)))


# fastavro's own reader takes quadratic time, rounds to the schema's precision, and shares a context between threads.
LOGICAL_READERS["bytes-decimal"] = LOGICAL_READERS["fixed-decimal"] = _read_decimal


_EPOCH, _LOCAL_EPOCH = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)
_DAY = timedelta(days=1)
_US = {"millis": 1_000, "micros": 1}


def with_own_times(document: Any) -> Any:
    """Return the schema, as JSON, with our names for times and dates."""
    if isinstance(document, list):
        return [with_own_times(inner) for inner in document]
    if not isinstance(document, dict):
        return document
    named = {key: with_own_times(inner) for key, inner in document.items()}
    logical = named.get("logicalType")
    if isinstance(logical, str) and f"{named.get('type')}-{_PREFIX}{logical}" in _READERS:
        named["logicalType"] = _PREFIX + logical
    return named


def _or_number(read: Callable[[int], Any]) -> Callable[..., Any]:
    """Return a reader as fastavro calls it, which leaves numbers alone that Python's type cannot hold."""

    def read_if_possible(number: int, *_schemas: Any) -> Any:
        try:
            return read(number)
        except (OverflowError, ValueError):
            return number

    return read_if_possible


class Nanos(int):
    """Nanoseconds since 1970."""

    epoch = _EPOCH

    def time(self) -> datetime:
        """Return the time without the digits below a microsecond."""
        return self.epoch + timedelta(microseconds=self // 1_000)


class LocalNanos(Nanos):
    """Nanoseconds since 1970 by a clock whose zone is unknown."""

    epoch = _LOCAL_EPOCH


def _instant_reader(epoch: datetime, unit: str) -> Callable[..., Any]:
    return _or_number(lambda number: epoch + timedelta(microseconds=number * _US[unit]))


def _clock_reader(unit: str) -> Callable[..., Any]:
    def read_clock(number: int) -> time:
        since_midnight = timedelta(microseconds=number * _US[unit])
        if since_midnight >= _DAY:
            raise ValueError("no time of a day")
        return (datetime.min + since_midnight).time()

    return _or_number(read_clock)


_READERS: dict[str, Callable[..., Any]] = {
    f"int-{_PREFIX}date": _or_number(lambda number: date(1970, 1, 1) + timedelta(days=number)),
    f"int-{_PREFIX}time-millis": _clock_reader("millis"),
    f"long-{_PREFIX}time-micros": _clock_reader("micros"),
    **{f"long-{_PREFIX}timestamp-{unit}": _instant_reader(_EPOCH, unit) for unit in _US},
    **{f"long-{_PREFIX}local-timestamp-{unit}": _instant_reader(_LOCAL_EPOCH, unit) for unit in _US},
    f"long-{_PREFIX}timestamp-nanos": _or_number(Nanos),
    f"long-{_PREFIX}local-timestamp-nanos": _or_number(LocalNanos),
}
LOGICAL_READERS.update(_READERS)
