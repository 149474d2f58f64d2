"""The rows of an attempt in the defined order (rule J2), by ORDER_COLUMNS, which are not written.

Up to SORT_BYTES of rows are sorted in memory. Of more, each such part is sorted and put aside in a temporary file, and
the files are merged: a key that matches very many rows makes more of them than fit into memory.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryFile, gettempdir

import numpy as np
import pyarrow as pa

from joinery_runtime.connectors.sink import AttemptRows
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS
from joinery_runtime.core.table.keyhash import key_hash
from joinery_runtime.core.table.segment import concat
from joinery_runtime.errors import explain_full_disk

SORT_BYTES = 32 << 20
_HEAD_ROWS = 8_192  # of each file, in memory at a time


@dataclass(frozen=True, slots=True)
class OrderedRows:
    """`order` are ORDER_COLUMNS, most significant first (`connectors.kafka.target.KafkaTarget.order`). Rows of which no
    two have one `key` stay as they come, which costs less."""

    rows: AttemptRows
    order: tuple[str, ...]
    key: tuple[str, ...]
    sort_bytes: int = SORT_BYTES

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.RecordBatch] = []
        size = 0
        with ExitStack() as stack:
            parts: list[Iterator[pa.RecordBatch]] = []
            for batch in self.rows.to_batches():
                waiting.append(batch)
                size += batch.nbytes
                if size > self.sort_bytes:
                    parts.append(self._put_aside(self._sort_rows(waiting), stack))
                    waiting, size = [], 0
            if waiting and not parts and not self._repeat_keys(waiting):
                parts.append(iter(waiting))
            elif waiting:
                last = self._sort_rows(waiting)
                parts.append(_cut_heads(last) if parts else iter([last]))
            del waiting
            for rows in parts[0] if len(parts) == 1 else self._merge_parts(parts):
                yield rows.drop_columns(list(ORDER_COLUMNS))

    def _repeat_keys(self, batches: Sequence[pa.RecordBatch]) -> bool:
        """Say whether two rows may have one key."""
        hashes = np.concatenate([key_hash([batch.column(name) for name in self.key]) for batch in batches])
        hashes.sort()
        return bool((hashes[1:] == hashes[:-1]).any())

    def _sort_rows(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        rows = concat(batches)
        return rows.take(pa.array(self._rank_rows(rows)))

    def _rank_rows(self, rows: pa.RecordBatch) -> np.ndarray:
        """Return the numbers of the rows (int64[n]) in the order. Rows that are equal in it stay as they come."""
        columns = [rows.column(name).to_numpy() for name in reversed(self.order)]
        differing = [column for column in columns if (column != column[0]).any()] if rows.num_rows else []
        return np.lexsort(differing) if differing else np.arange(rows.num_rows)

    def _put_aside(self, rows: pa.RecordBatch, stack: ExitStack) -> Iterator[pa.RecordBatch]:
        with explain_full_disk("rows to sort", gettempdir()):
            file = stack.enter_context(TemporaryFile(prefix="joinery-order-"))  # noqa: SIM115 - until the merge ends
            with pa.ipc.new_stream(file, rows.schema) as stream:
                for head in _cut_heads(rows):
                    stream.write_batch(head)
            file.seek(0)
        return iter(pa.ipc.open_stream(file))

    def _merge_parts(self, parts: Iterable[Iterator[pa.RecordBatch]]) -> Generator[pa.RecordBatch, None, None]:
        """Merge sorted parts. A row is ready once no row that is not read yet can come before it: up to the first of
        the heads' last rows."""
        heads = [(head, part) for part in parts if (head := next(part, None)) is not None]
        while heads:
            rows = concat([head for head, _ in heads])
            ranked = self._rank_rows(rows)
            rank = np.empty_like(ranked)
            rank[ranked] = np.arange(len(ranked))
            ends = np.cumsum([head.num_rows for head, _ in heads])
            ready = int(rank[ends - 1].min()) + 1
            yield rows.take(pa.array(ranked[:ready]))
            remaining = []
            for (head, part), end in zip(heads, ends, strict=True):
                emitted = int((rank[end - head.num_rows : end] < ready).sum())
                rest = head.slice(emitted) if emitted < head.num_rows else next(part, None)
                if rest is not None:
                    remaining.append((rest, part))
            heads = remaining


def _cut_heads(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return (rows.slice(first, _HEAD_ROWS) for first in range(0, rows.num_rows, _HEAD_ROWS))
