"""The byte format of a segment in the store.

Version 5 has the bytes of version 4. In it sums of aggregates are decimals, wide enough for every sum, and a list of an
aggregate is NULL where there are more values than the aggregate's limit. An earlier release would read both wrongly.

Version 4 is version 3 with `$partition` as int64, which tells topics and files of one input apart.

Version 3 is eight bytes that name it, the xxh3_64 (seed 0, big-endian) of all bytes that follow, and the bytes of
version 2: a flipped bit often decodes, to other rows.

Version 2 is two Arrow streams, one after the other, with every buffer compressed by zstd:

* one batch of the run's n rows, in which columns may be packed. A text or binary column becomes the lengths of its
  values. A column of whole numbers becomes distances from its lowest value. Both use as few bytes as possible, and the
  field's metadata (`type`, `from`) describe them;
* one batch of one row with the bytes of all texts: one column for each text column, under its name.

`$hash` is not stored where it follows from the key columns, which the schema's metadata name (`keys`): it takes eight
bytes a row that do not compress. For co-partitioned inputs it also follows from `$partition` and the number of
partitions that they share (`partitions`). Rows keep the order of the run, so a row's number never changes.

Version 1 is one Arrow file with the plain columns, compressed with lz4. The smallest segments of version 2 have this
format too; the first bytes tell the formats apart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from joinery_runtime.core.table.columns import ENGINE_FIELDS, HASH, PARTITION, SCALARS, partitions_of, type_name
from joinery_runtime.core.table.keyhash import KeyHash, key_hash
from joinery_runtime.core.table.partitioning import partition_addresses
from joinery_runtime.core.table.segment import decode, encode

FEW_ROWS = 4_096
"""Fewer rows than this are stored in version 1's format: packing takes 0.6 ms, however small the segment."""

_CHECKED = b"JOINERY3"
_CHECKSUM_END = len(_CHECKED) + 8
_FLIPPED_BITS = 8  # a byte
_FILE = b"ARROW1"
_TYPE, _FROM, _KEYS, _PARTITIONS = b"type", b"from", b"keys", b"partitions"
_ZSTD_LEVEL = 1
_PARTITION_FIELD = next(field for field in ENGINE_FIELDS if field.name == PARTITION)
_TEXTS = {"string", "binary"}
_NUMBERS = {"int32", "int64", "timestamp"}
_NARROW: tuple[tuple[int, pa.DataType], ...] = ((1 << 8, pa.uint8()), (1 << 16, pa.uint16()), (1 << 32, pa.uint32()))


def to_blob(rows: pa.RecordBatch, keys: Sequence[str] = (), co_partitions: int = 0) -> bytes:
    """Encode the rows of a run. `keys` are the columns from which `$hash` is computed (rule V1); empty: `$hash` is
    stored. `co_partitions` is the number of partitions that co-partitioned inputs share."""
    content = _pack(rows, keys, co_partitions)
    return b"".join((_CHECKED, xxhash.xxh3_64_digest(content), content))


def check_blob(blob: bytes | pa.Buffer) -> None:
    """Raise ValueError if the blob has a checksum and its bytes are not those that were written."""
    _content(blob)


def _content(blob: bytes | pa.Buffer) -> memoryview:
    """Return the bytes behind the checksum; all bytes of a blob without one."""
    view = memoryview(blob)
    if view[: len(_CHECKED)] != _CHECKED:
        name = int.from_bytes(view[: len(_CHECKED)], "big")
        # Of versions without a checksum, 17 bits and more are other ones.
        if (name ^ int.from_bytes(_CHECKED, "big")).bit_count() <= _FLIPPED_BITS:
            raise ValueError(f"its first bytes are {bytes(view[: len(_CHECKED)])!r}, which is {_CHECKED!r} damaged")
        return view
    noted, content = view[len(_CHECKED) : _CHECKSUM_END], view[_CHECKSUM_END:]
    digest = xxhash.xxh3_64_digest(content)
    if noted != digest:
        raise ValueError(f"its checksum (xxh3) is {digest.hex()}, {noted.hex()} was noted when it was written")
    return content


def _pack(rows: pa.RecordBatch, keys: Sequence[str], co_partitions: int) -> bytes:
    """Encode the rows as version 2 does."""
    if rows.num_rows < FEW_ROWS:
        return encode(rows)
    texts: dict[str, pa.Array] = {}
    stored = [
        _pack_column(field, column, texts)
        for field, column in zip(rows.schema, rows.columns, strict=True)
        if not keys or field.name != HASH
    ]
    metadata = {_KEYS: json.dumps(list(keys))} if keys else {}
    if keys and co_partitions:
        metadata[_PARTITIONS] = str(co_partitions)
    schema = pa.schema([field for field, _ in stored], metadata=metadata)
    sink = pa.BufferOutputStream()
    _write(sink, pa.record_batch([column for _, column in stored], schema=schema))
    _write(sink, pa.record_batch(texts or {"": pa.nulls(1)}))
    return bytes(sink.getvalue().to_pybytes())


def from_blob(blob: bytes | pa.Buffer, hasher: KeyHash = key_hash) -> pa.RecordBatch:
    """Decode the rows, of any version that this release reads. Raises ValueError for other bytes."""
    content = _content(blob)
    if content[: len(_FILE)] == _FILE:
        return _with_wide_partitions(decode(content))
    source = pa.BufferReader(content)
    stored, texts = _read(source), _read(source)
    columns = {
        field.name: _unpack_column(field, column, texts)
        for field, column in zip(stored.schema, stored.columns, strict=True)
    }
    fields = [pa.field(field.name, columns[field.name].type, field.nullable) for field in stored.schema]
    rows = _with_wide_partitions(pa.record_batch(list(columns.values()), schema=pa.schema(fields)))
    metadata = stored.schema.metadata or {}
    if _KEYS not in metadata:
        return rows
    hashes = hasher([columns[name] for name in json.loads(metadata[_KEYS])])
    if _PARTITIONS in metadata:
        partitions = partitions_of(rows.column(PARTITION).to_numpy())
        hashes = partition_addresses(partitions, hashes, int(metadata[_PARTITIONS]))
    return rows.add_column(0, pa.field(HASH, pa.uint64(), nullable=False), pa.array(hashes))  # where it was


def _with_wide_partitions(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with PARTITION as int64. Versions before 4 have int32."""
    at = rows.schema.get_field_index(PARTITION)
    if at < 0 or pa.types.is_int64(rows.schema.field(at).type):
        return rows
    return rows.set_column(at, _PARTITION_FIELD, rows.column(at).cast(_PARTITION_FIELD.type))


def _pack_column(field: pa.Field, column: pa.Array, texts: dict[str, pa.Array]) -> tuple[pa.Field, pa.Array]:
    """Return the packed form of a column. Adds the bytes of its texts to `texts`."""
    name, metadata = type_name(field.type), {}
    if name in _TEXTS:
        column, texts[field.name] = _lengths(column)
        metadata = {_TYPE: name}
    elif name in _NUMBERS:
        column, lowest = _distances(column)
        metadata = {_TYPE: name, _FROM: str(lowest)} if lowest is not None else {}
    return pa.field(field.name, column.type, field.nullable, metadata), column


def _unpack_column(field: pa.Field, column: pa.Array, texts: pa.RecordBatch) -> pa.Array:
    metadata = field.metadata or {}
    if _TYPE not in metadata:
        return column
    kind = SCALARS[metadata[_TYPE].decode()]
    if _FROM not in metadata:
        ends = np.zeros(len(column) + 1, dtype=np.int32)
        np.cumsum(column.fill_null(0).to_numpy(), out=ends[1:])
        buffers = [column.buffers()[0], pa.py_buffer(ends), texts.column(field.name).buffers()[2]]
        return pa.Array.from_buffers(kind, len(column), buffers, column.null_count)
    return pc.add(column.cast(pa.int64()), int(metadata[_FROM])).cast(kind)


def _write(sink: pa.NativeFile, batch: pa.RecordBatch) -> None:
    codec = pa.Codec("zstd", compression_level=_ZSTD_LEVEL)
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=batch.num_rows >= FEW_ROWS)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)


def _read(source: pa.NativeFile) -> pa.RecordBatch:
    """Read a stream's only batch, up to and including the stream's end."""
    (batch,) = pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(use_threads=False))
    return batch


def _distances(column: pa.Array) -> tuple[pa.Array, int | None]:
    """Return the numbers minus their lowest, and the lowest. Returns them unchanged, and None, if that makes them no
    narrower."""
    numbers = column.cast(pa.int64())
    low, high = pc.min_max(numbers).as_py().values()
    if low is None:
        return column, None
    for values, kind in _NARROW:
        if high - low < values and kind.bit_width < column.type.bit_width:
            return pc.subtract(numbers, low).cast(kind), low
    return column, None


def _lengths(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the lengths in bytes (uint[n]), and one value with the bytes of all values."""
    nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    if nulls is not None:  # Arrow may keep arbitrary bytes in place of a NULL
        column = column.fill_null("" if pa.types.is_string(column.type) else b"")
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1] if len(column) else [0]
    lengths = np.diff(ends)
    narrow = next(kind for values, kind in _NARROW if lengths.max(initial=0) < values)
    span = np.array([ends[0], ends[-1]], dtype=np.int64)
    value = pa.Array.from_buffers(pa.large_binary(), 1, [None, pa.py_buffer(span), data or pa.py_buffer(b"")])
    return pa.array(lengths.astype(narrow.to_pandas_dtype()), mask=nulls), value
