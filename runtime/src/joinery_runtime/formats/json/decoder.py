"""JSON records, one object each, decoded in whole batches.

`JsonFallbackDecoder` defines what a record means, or `NestedJsonDecoder` where columns have paths. Most streams consist
of ordinary objects, which a kernel reads at a fifth of the cost or less. `JsonKernel` prepares the tables that the
kernel reads, and turns its output into columns. Records that the kernel gives up go to the judge. The result is the
same as if the judge had read all records (decision 21).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from joinery_runtime.formats.compiled import kernels
from joinery_runtime.formats.json.fallback import JsonFallbackDecoder, NestedJsonDecoder, is_nested
from joinery_runtime.formats.json.texts import WantedValue, wanted_tree
from joinery_runtime.formats.records import ByValue, Decoded, FormatDecoder, IntArray, merge_decoded
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.job.model.references import Path

_WORTHWHILE = 1_000  # a decoder loads the kernel after this many records: loading costs as much as decoding a million
_UNUSUAL = 8  # one in this many records may be given up; with more, the judge of flat records alone is cheaper
_PAUSE = 32  # if too many records of a batch were given up, this many times its records go straight to the judge
_NO_NAME = -1
_ROOM = 16  # bytes that the kernel may read or write beyond a text


class JsonDecoder(ByValue, FormatDecoder):
    """Decodes JSON objects into rows of `schema`. `paths` maps columns to paths. Other columns are fields of the
    record."""

    tells_deletions: ClassVar[bool] = True

    @classmethod
    def of(cls, schema: pa.Schema, model: Input, /) -> Self:
        return cls(schema, {column.name: column.steps for column in model.columns})

    def __init__(self, schema: pa.Schema, paths: Mapping[str, Path] = MappingProxyType({})) -> None:
        self._schema, self._paths = schema, paths
        self._judge: ByValue = (
            NestedJsonDecoder(schema, paths) if is_nested(schema, paths) else JsonFallbackDecoder(schema)
        )
        self._followed = follows([paths.get(name, (name,)) for name in schema.names])
        self._kernel: JsonKernel | None = None
        self._pause = _WORTHWHILE  # records before the kernel is tried

    def decode(self, values: pa.BinaryArray) -> Decoded:
        if self._pause > 0:
            self._pause -= len(values)
            return self._judge.decode(values)
        if self._kernel is None:
            module = kernels("json") if self._followed else None
            if module is None:
                return self._judge.decode(values)
            self._kernel = JsonKernel(module, self._schema, self._paths)
        usual = self._kernel.decode(values)
        if isinstance(self._judge, JsonFallbackDecoder) and len(usual.rejected) * _UNUSUAL > len(values):
            self._pause = len(values) * _PAUSE
        decoded = Decoded(usual.rows, usual.accepted, [])
        if not len(usual.rejected):
            return decoded
        return merge_decoded(decoded, self._judge.decode(values.take(pa.array(usual.rejected))).at(usual.rejected))


DECODER = JsonDecoder


@dataclass(frozen=True, slots=True)
class KernelBatch:
    """The kernel's result for a batch: `rows` of the records `accepted`, in order. The others were `rejected`."""

    rows: pa.Table
    accepted: IntArray
    rejected: IntArray


class JsonKernel:
    """Decodes ordinary records into rows of `schema`. `paths` maps columns to paths, for which `follows` must be true.
    Other columns are fields of the record."""

    def __init__(self, kernel: Any, schema: pa.Schema, paths: Mapping[str, Path] = MappingProxyType({})) -> None:
        self._kernel, self._schema = kernel, schema
        # Arrays that the kernel reads by their address have to stay alive.
        self._names, table, buckets, items, arrays = _name_tables(
            kernel, [paths.get(name, (name,)) for name in schema.names]
        )
        self._nodes = len(arrays)
        kinds = {
            pa.bool_(): kernel.BOOL,
            pa.int32(): kernel.INT32,
            pa.int64(): kernel.INT64,
            pa.float32(): kernel.FLOAT,
            pa.float64(): kernel.DOUBLE,
            pa.string(): kernel.STRING,
            pa.date32(): kernel.DATE,
            pa.timestamp("ms", tz="UTC"): kernel.TIMESTAMP,
        }
        # The kind of each column, with its precision and scale.
        columns = [
            (kernel.DECIMAL, arrow.precision, arrow.scale)
            if pa.types.is_decimal(arrow)
            else (kinds.get(arrow, kernel.OTHER), 0, 0)
            for arrow in schema.types
        ]
        self._name_tables = kernel.Tables(
            names=self._names.ctypes.data,
            table=table,
            buckets=buckets,
            items=items,
            arrays=arrays,
            kinds=np.array(columns, np.int64).reshape(-1, 3),
            powers=_powers_of_ten(kernel.MAX_POWER),
            exact=10.0 ** np.arange(23),
        )

    def decode(self, values: pa.BinaryArray) -> KernelBatch:
        count = len(values)
        _, buffer, data = values.buffers()
        offsets = np.zeros(1, np.int32)
        if buffer is not None and buffer.size:
            offsets = np.frombuffer(buffer, np.int32, count + 1, values.offset * 4)
        missing = values.is_null().cast(pa.uint8()).to_numpy() if values.null_count else np.empty(0, np.uint8)
        arena = np.empty(int(offsets[-1] - offsets[0]) + _ROOM, np.uint8)
        address = 0 if data is None else data.address
        size = 0 if data is None else data.size
        kernel, width = self._kernel, len(self._schema)
        memory = kernel.Memory(
            data=address,
            limit=address + size,
            arena=arena.ctypes.data,
            predicted=np.zeros((kernel.PREDICTED, 4), np.int64),
            around=np.zeros(2 * kernel.DEEPEST, np.int64),
            seen=np.full(width + self._nodes, -1, np.int64),
        )
        slots, valid = np.empty((width, count), np.int64), np.empty((width, count), np.uint8)
        accepted, rejected = np.empty(count, np.int64), np.empty(count, np.int64)
        looked_at, rows = kernel.decode(
            offsets, missing, self._name_tables, memory, kernel.KernelRows(slots, valid), accepted, rejected
        )
        columns = [
            _build_column(field.type, kernel, memory, slots[at, :rows], valid[at, :rows])
            for at, field in enumerate(self._schema)
        ]
        rest = np.arange(looked_at, count)
        return KernelBatch(
            pa.table(columns, schema=self._schema),
            accepted[:rows],
            np.concatenate([rejected[: looked_at - rows], rest]) if looked_at < count else rejected[: looked_at - rows],
        )


def follows(paths: Sequence[Path]) -> bool:
    """Return whether the kernel can find all of these paths: none occurs twice, none leads into a value that another
    one takes as a whole, and no value would have to be both an object and an array."""

    def is_plain(node: WantedValue) -> bool:
        kinds = {type(step) for step in node.inner}
        return len(node.columns) + len(kinds) <= 1 and all(map(is_plain, node.inner.values()))

    return is_plain(wanted_tree(paths))


def _name_tables(
    kernel: ModuleType, paths: Sequence[Path]
) -> tuple[npt.NDArray[np.uint8], IntArray, IntArray, IntArray, IntArray]:
    """Return the names, and the `table`, `buckets`, `items` and `arrays` of the kernel's `Tables`."""
    text = b""
    table: list[list[int]] = []
    items: list[list[int]] = []
    arrays = [0]
    buckets = np.full(kernel.BUCKETS, _NO_NAME, np.int64)
    waiting = [(0, wanted_tree(paths))]
    while waiting:
        at, node = waiting.pop()
        for step, inner in node.inner.items():
            if inner.columns:
                target = inner.columns[0]
            else:
                target = len(paths) + len(arrays)
                waiting.append((len(arrays), inner))
                arrays.append(int(any(isinstance(inner_step, int) for inner_step in inner.inner)))
            if isinstance(step, int):
                items.append([at, step, target])
                continue
            quoted = b'"' + step.encode() + b'"'
            entry = [len(text), len(quoted) - 1, _NO_NAME, at, target]
            text += quoted[1:] + bytes(8)
            # The kernel leaves names that JSON writes with escapes to the other decoder.
            if not any(letter in '"\\' or letter < " " for letter in step):
                bucket = (quoted[1] + 31 * quoted[-2] + 7 * (len(quoted) - 1)) % kernel.BUCKETS
                entry[2], buckets[bucket] = buckets[bucket], len(table)
            table.append(entry)
    names = np.frombuffer(text + bytes(8), np.uint8).copy()
    in_arrays = np.array(items, np.int64).reshape(-1, 3)
    return names, np.array(table, np.int64).reshape(-1, 5), buckets, in_arrays, np.array(arrays, np.int64)


def _powers_of_ten(largest: int) -> IntArray:
    """Return the upper 128 bits of powers of ten, lower word first, as Eisel and Lemire define them: rounded down, or
    up for negative powers."""
    words = []
    for power in range(-largest, largest + 1):
        if power >= 0:
            bits = 10**power
            bits = bits << 128 >> bits.bit_length()
        else:
            divisor = 10**-power
            bits = (1 << 127 + divisor.bit_length()) // divisor
            bits = bits + 1 if bits < 1 << 128 else (bits >> 1) + 1
        words += [bits & (1 << 64) - 1, bits >> 64]
    return np.array(words, np.uint64).view(np.int64)


def _build_column(
    arrow: pa.DataType, kernel: Any, memory: Any, slots: IntArray, valid: npt.NDArray[np.uint8]
) -> pa.Array:
    nulls = len(valid) - int(np.count_nonzero(valid))
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    if pa.types.is_string(arrow):
        offsets = np.empty(len(slots) + 1, np.int32)
        size = kernel.lay_out(slots, offsets)
        text = np.empty(size + _ROOM, np.uint8)
        kernel.gather(memory.data, memory.limit, memory.arena, slots, offsets, text.ctypes.data)
        buffers = [offsets, text[:size]]
    elif pa.types.is_boolean(arrow):
        buffers = [np.packbits(slots != 0, bitorder="little")]
    elif pa.types.is_float32(arrow):
        buffers = [slots.view(np.float64).astype(np.float32)]
    elif pa.types.is_decimal(arrow):
        buffers = [np.stack([slots, slots >> 63], axis=1)]
    elif pa.types.is_int32(arrow) or pa.types.is_date32(arrow):
        buffers = [slots.astype(np.int32)]
    elif pa.types.is_binary(arrow):
        return pa.nulls(len(slots), arrow)
    else:
        buffers = [slots]
    return pa.Array.from_buffers(arrow, len(slots), [bitmap, *map(pa.py_buffer, buffers)], nulls)
