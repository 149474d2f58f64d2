"""The interface of decoders, the result of decoding a batch, and helpers that decoders share: the boundary around
decoding, where only the record that fails is bad (rule T8), and what a record is that is not in its input's format."""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.table.columns import arrow_schema
from joinery_runtime.errors import JoineryError
from joinery_runtime.formats.batch import Cut, RawBatch
from joinery_runtime.job.model.inputs import Input

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
# Says which rows of a batch are bad, and gives the reason of each bad row in turn.
Fault = tuple[BoolArray, Sequence[str]]

NULL_VALUE = "null value"
_QUOTED = 200  # characters of a library's error in a reason
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that cannot be used: its position in the batch, and why (rule T8)."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Events that stand for no row because their op is not wanted: the valid ones of their event times (int64 ms), and
    the positions of their records in the batch. They move the watermark as those of rows do (T1, T11)."""

    times: IntArray
    index: IntArray


@dataclass(frozen=True, slots=True)
class Decoded:
    """The result of decoding a batch. `rows` has the input's schema. `index[i]` is the position in the batch of the
    record from which row i comes.

    `index` and `bad` both ascend. Together they name every record of the batch exactly once, except records that stand
    for no row. `dropped` counts these by reason (T10), and `passed` is the lowest and the highest event time (ms) that
    the input has reached with them (None: they have none). `deleted` (None: the input is not a table) tells deletions:
    only their key and event time count, and their other columns are null. `unavailable` (None: it has nothing to tell)
    names for each row the columns, one a line, whose values its record does not have, though the row has them: the
    value of the key's earlier version counts. `left_out` are events without a row whose times are still to be checked.
    """

    rows: pa.Table
    index: IntArray
    bad: Sequence[BadRecord]
    deleted: BoolArray | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    passed: tuple[int, int] | None = None
    unavailable: pa.Array | None = None
    left_out: LeftOut | None = None

    def at(self, positions: IntArray) -> Decoded:
        """Return the same result for a larger batch, in which the records are at these places (ascending)."""
        bad = [BadRecord(int(positions[record.index]), record.reason) for record in self.bad]
        left_out = self.left_out and replace(self.left_out, index=positions[self.left_out.index])
        return replace(self, index=positions[self.index], bad=bad, left_out=left_out)

    def in_place(self, count: int) -> tuple[pa.Table, BoolArray]:
        """Return one row for each of `count` records, and bool[count]: which were decoded. The other rows are null."""
        back = np.full(count, -1, np.int64)
        back[self.index] = np.arange(len(self.index))
        return self.rows.take(pa.array(back, mask=back < 0)), back >= 0


class Decoder(Protocol):
    """Decodes whole batches of records into rows. The content of a record never makes it raise. Not thread-safe."""

    def decode_batch(self, raw: RawBatch) -> Decoded: ...


class ByValue(ABC):
    """A decoder that reads only the records' values. A record without a value is bad."""

    @abstractmethod
    def decode(self, values: pa.BinaryArray) -> Decoded: ...

    def decode_batch(self, raw: RawBatch) -> Decoded:
        return self.decode(raw.values)


class FormatDecoder(ABC):
    """The decoder of one input format. `formats` has a module for each. Those of records are `ByValue` too."""

    columnar: ClassVar[bool] = False
    """Whether files of the format hold columns (`RawBatch.columns`) instead of records."""

    tells_deletions: ClassVar[bool] = False
    """Whether a row can have a `$delete` column, which makes it a deletion in a table (A1)."""
    tombstones_repeat: ClassVar[bool] = False
    """Whether a record without a value only repeats a deletion in an earlier record."""

    @classmethod
    def cut(cls, model: Input, /) -> Cut:
        """Return how files of the input are cut into records."""
        return Cut()

    @classmethod
    @abstractmethod
    def of(cls, schema: pa.Schema, model: Input, /) -> Self:
        """Make a decoder of the input's records into rows of `schema`: the input's columns, and DELETE_FIELD for a
        table if the format tells deletions. Raises SourceError if an input file does not fit the schema."""

    @abstractmethod
    def decode_batch(self, raw: RawBatch) -> Decoded: ...


def records_of(raw: RawBatch, positions: Sequence[int]) -> pa.BinaryArray:
    """Return the original records at these positions of the batch. Rows of a columnar file become JSON."""
    chosen = pa.array(positions, pa.int64())
    if raw.columns is None:
        return raw.values.take(chosen)
    rows = raw.columns.take(chosen)
    values = [python_values(column.combine_chunks()) for column in rows.columns]
    objects = (dict(zip(rows.column_names, row, strict=True)) for row in zip(*values, strict=True))
    return pa.array([json_text(row).encode("utf-8", "surrogatepass") for row in objects], pa.binary())


class GarbledText(bytes):
    """A text that is not UTF-8."""


def python_values(values: pa.Array) -> list[Any]:
    """Convert an array to Python values. Values that Python cannot hold (nanoseconds, the year 10000) become text, and
    text that is not UTF-8 becomes bytes, inside of structs and lists too."""
    try:
        converted: list[Any] = values.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException):
        converted = [_python_value(scalar) for scalar in values]
    return converted


def _python_value(scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if pa.types.is_struct(kind):
        return {name: _python_value(inner) for name, inner in scalar.items()}
    if pa.types.is_map(kind):
        return [[_python_value(entry["key"]), _python_value(entry["value"])] for entry in scalar.values]
    if pa.types.is_nested(kind):
        return [_python_value(inner) for inner in scalar.values]
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return GarbledText(scalar.as_buffer().to_pybytes())
    except (ValueError, OverflowError):
        zone = kind.tz if pa.types.is_timestamp(kind) else None
        return (scalar.cast(pa.timestamp(kind.unit)) if zone else scalar).cast(pa.string()).as_py() + (
            "Z" if zone else ""
        )


def json_text(value: Any) -> str:
    """Encode a Python value as JSON. Types that JSON lacks become text: times as RFC 3339, decimals with their digits,
    bytes in base64."""
    return _JSON.encode(value)


def text_in_json(value: Any) -> str:
    """Return the text that stands in JSON for a value whose type JSON lacks."""
    match value:
        case datetime():
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
        case date() | time():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            return str(value)


def is_json(text: bytes) -> bool:
    """Return whether the whole text is one JSON value."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


# json.dumps would create an encoder for each record.
_JSON = json.JSONEncoder(default=text_in_json, ensure_ascii=False)


def drop_rows(rows: pa.Table, index: IntArray, faults: Sequence[Fault]) -> Decoded:
    """Drop the rows of each fault. A row of several faults gets the first one's reason."""
    if not faults:
        return Decoded(rows, index, [])
    bad: dict[int, str] = {}
    keep = np.ones(len(index), dtype=np.bool_)
    for mask, reasons in faults:
        keep &= ~mask
        for position, reason in zip(index[mask].tolist(), reasons, strict=True):
            bad.setdefault(position, reason)
    return Decoded(
        rows.filter(pa.array(keep)), index[keep], [BadRecord(position, bad[position]) for position in sorted(bad)]
    )


def with_bad(decoded: Decoded, extra: Sequence[BadRecord]) -> Decoded:
    """Add bad records, and keep them in ascending order."""
    if not extra:
        return decoded
    return replace(decoded, bad=sorted([*decoded.bad, *extra], key=lambda record: record.index))


def with_rows(decoded: Decoded, rows: pa.Table, faults: Sequence[Fault]) -> Decoded:
    """Return `decoded` with these rows in place of its own, one for each, less those of a fault."""
    readable = drop_rows(rows, decoded.index, faults)
    return with_bad(replace(readable, deleted=decoded.deleted, dropped=decoded.dropped), decoded.bad)


def merge_decoded(first: Decoded, second: Decoded) -> Decoded:
    """Merge the rows, deletions and bad records of two parts of a batch, in the records' order."""
    index = np.concatenate([first.index, second.index])
    order = np.argsort(index)
    rows = pa.concat_tables([first.rows, second.rows]).take(pa.array(order))
    deleted: BoolArray | None = None
    if first.deleted is not None and second.deleted is not None:
        deleted = np.concatenate([first.deleted, second.deleted])[order]
    return with_bad(Decoded(rows, index[order], first.bad, deleted), second.bad)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a Protobuf varint. Returns the number and the position after it. Raises ValueError if it does not end
    within ten bytes."""
    number = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
    raise ValueError("a number does not end")


def in_pieces(
    decode: Callable[[pa.BinaryArray, IntArray], Decoded], values: pa.BinaryArray, index: IntArray, size: int
) -> Decoded:
    """Decode `size` records at a time and join the results, to narrow a batch down to its bad records."""
    starts = range(0, len(values), size)
    parts = [decode(values[start : start + size], index[start : start + size]) for start in starts]
    rows = pa.concat_tables(part.rows for part in parts)
    return Decoded(rows, np.concatenate([part.index for part in parts]), [bad for part in parts for bad in part.bad])


def unreadable_reason(error: BaseException) -> str:
    """Return the reason of a record at which a library has failed with this error, which may quote all of the
    record."""
    words = " ".join(str(error).split())
    return f"it cannot be read: {type(error).__name__}: {words[:_QUOTED]}{'...' if len(words) > _QUOTED else ''}"


def all_bad(index: IntArray, reason: str) -> list[BadRecord]:
    """Every record of `index` as a bad one, for the same reason."""
    return [BadRecord(position, reason) for position in index.tolist()]


def set_aside(
    values: pa.BinaryArray, index: IntArray, unusable: pa.BooleanArray, reason: str
) -> tuple[pa.BinaryArray, IntArray, list[BadRecord]]:
    """Remove the records that are `unusable`. Returns the others, their positions, and the removed ones as bad."""
    if not pc.any(unusable).as_py():
        return values, index, []
    mask = unusable.to_numpy(zero_copy_only=False)
    return values.filter(pc.invert(unusable)), index[~mask], all_bad(index[mask], reason)


def not_utf8(values: pa.BinaryArray) -> pa.BooleanArray:
    """Which values are not UTF-8. Checks them one by one only if at least one is not."""
    garbled = np.zeros(len(values), dtype=np.bool_)
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        for position, value in enumerate(values.to_pylist()):
            try:
                (value or b"").decode()
            except UnicodeDecodeError:
                garbled[position] = True
    return pa.array(garbled)


def read_utf8(column: str, values: pa.BinaryArray) -> tuple[pa.StringArray, list[Fault]]:
    """Read bytes as text. Returns the text, and at most one fault: the rows that are not UTF-8, where it is null."""
    garbled = not_utf8(values).to_numpy(zero_copy_only=False)
    text = pc.if_else(pa.array(garbled), pa.scalar(None, pa.binary()), values).cast(pa.string())
    return text, not_utf8_faults(column, garbled)


def not_utf8_faults(column: str, garbled: BoolArray) -> list[Fault]:
    return [(garbled, [f"column {column}: not UTF-8"] * int(garbled.sum()))] if garbled.any() else []


def may_contain(values: pa.BinaryArray, needle: bytes) -> bool:
    """Return whether a record may contain these bytes. False is certain. One fast scan of the values' buffer, which
    other arrays may share."""
    data = values.buffers()[2]
    return data is not None and needle in data.to_pybytes()


def join_lines(values: pa.BinaryArray) -> bytes:
    """Join all records, each followed by a newline, so that the last one reads like the others."""
    as_list = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    lines: bytes = pc.binary_join(as_list, b"\n")[0].as_py() + b"\n"
    return lines


def without_bom(values: pa.BinaryArray) -> pa.BinaryArray:
    """Remove BOMs. Otherwise parsers would skip the one of a batch's first record, but no other."""
    return pc.replace_substring_regex(values, r"\A\xEF\xBB\xBF", "") if may_contain(values, BOM) else values


class RejectedBatch(Exception):
    """A parser rejects at least one record of a batch. The text is the parser's."""


class Guarded:
    """Decodes as `decoder` does what `model` reads. Where that fails with an error that is not of the job or its
    environment, halves the batch until the record that makes it fail is alone, and makes it a bad record."""

    def __init__(self, model: Input, decoder: Decoder) -> None:
        self.model, self._decoder = model, decoder
        self._schema, self._deletes = arrow_schema(model.columns), model.table is not None

    def decode_batch(self, raw: RawBatch) -> Decoded:
        count = len(raw.offsets)
        if raw.refusal is not None:
            return self._all_bad(all_bad(np.arange(count, dtype=np.int64), raw.refusal))
        try:
            try:
                return self._decoder.decode_batch(raw)
            except MemoryError:  # perhaps of another thread's doing: a record alone gets a second chance
                if count > 1:
                    raise
                return self._decoder.decode_batch(raw)
        except (JoineryError, OSError):
            raise
        except (Exception, pl.exceptions.PanicException) as error:
            if count <= 1:
                return self._all_bad(all_bad(np.arange(count, dtype=np.int64), unreadable_reason(error)))
        return decode_halves(self.decode_batch, raw)

    def _all_bad(self, bad: list[BadRecord]) -> Decoded:
        nothing = np.empty(0, np.int64)
        return Decoded(self._schema.empty_table(), nothing, bad, np.empty(0, np.bool_) if self._deletes else None)


def decode_halves(decode: Callable[[RawBatch], Decoded], raw: RawBatch) -> Decoded:
    """Decode the halves of a batch of several records one after the other."""
    count = len(raw.offsets)
    first_positions, second_positions = np.split(np.arange(count, dtype=np.int64), [count // 2])
    first = decode(raw.take(first_positions)).at(first_positions)
    second = decode(raw.take(second_positions)).at(second_positions)
    deleted = unavailable = left_out = None
    if first.deleted is not None and second.deleted is not None:
        deleted = np.concatenate([first.deleted, second.deleted])
    if first.unavailable is not None or second.unavailable is not None:
        unavailable = pa.concat_arrays(
            [
                pa.nulls(len(half.index), pa.string()) if half.unavailable is None else half.unavailable
                for half in (first, second)
            ]
        )
    events = [half.left_out for half in (first, second) if half.left_out is not None]
    if events:
        left_out = LeftOut(
            np.concatenate([part.times for part in events]), np.concatenate([part.index for part in events])
        )
    passed = [*(first.passed or ()), *(second.passed or ())]
    return Decoded(
        pa.concat_tables([first.rows, second.rows]),
        np.concatenate([first.index, second.index]),
        [*first.bad, *second.bad],
        deleted,
        Counter(first.dropped) + Counter(second.dropped),
        (min(passed), max(passed)) if passed else None,
        unavailable,
        left_out,
    )


_OTHERS = {
    b"\x1f\x8b": "gzip inside of the value; let the producer use compression.type instead",
    b"\x78\x9c": "zlib inside of the value; let the producer use compression.type instead",
    b"\x28\xb5\x2f\xfd": "zstd inside of the value; let the producer use compression.type instead",
    b"Obj\x01": "an Avro container, which topics do not have; write records one by one",
    b"PAR1": "Parquet",
}
_BYTE_ORDERS = (b"\xff\xfe", b"\xfe\xff")  # how UTF-16 begins
_TOLD = 8  # how many first bytes identify UTF-16 without its byte order
FRAME = 5  # bytes of Confluent's framing: a zero, and the schema's number


def is_framed(values: pa.BinaryArray) -> pa.BooleanArray:
    """Which values may begin with Confluent's framing."""
    long = pc.greater_equal(pc.binary_length(values), FRAME)
    return pc.fill_null(pc.and_(pc.starts_with(values, "\0"), long), False)


def looks_like(record: bytes) -> str | None:
    """Say what a record is that is not in its input's format; None if that is not known."""
    for magic, description in _OTHERS.items():
        if record.startswith(magic):
            return description
    # Every second byte is zero in UTF-16 text that begins with ASCII letters or digits. The zeros may come first or
    # second, because lines of a file begin after half of a line break.
    begins = record[:_TOLD]
    even, odd = begins[::2], begins[1::2]
    has_zeros = (not any(even) and all(odd)) or (not any(odd) and all(even))
    if record.startswith(_BYTE_ORDERS) or (len(begins) == _TOLD and has_zeros):
        return "UTF-16; let the producer write UTF-8"
    if record[:1] == b"\0" and len(record) > FRAME:
        number = int.from_bytes(record[1:FRAME])
        if record[FRAME : FRAME + 1] in (b"{", b"["):
            return f"Confluent JSON of schema {number}; name its schemaRegistry"
        kind = "Protobuf" if _may_be_protobuf(record[FRAME:]) else "Avro"
        return f"Confluent {kind} of schema {number}; write format: {kind.lower()} and its schemaRegistry"
    return None


def _may_be_protobuf(framed: bytes) -> bool:
    """Return whether the first message's index (a zero) is followed by Protobuf fields up to the end. This is seldom
    true of Avro that begins with a zero."""
    at, size = 1, len(framed)
    try:
        while at < size:
            tag, at = read_varint(framed, at)
            match tag & 7:
                case 0:
                    _, at = read_varint(framed, at)
                case 1:
                    at += 8
                case 2:
                    length, at = read_varint(framed, at)
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
