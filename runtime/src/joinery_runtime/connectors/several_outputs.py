"""One sink for the several outputs of a job. A shard's rows are computed once, and each output gets those it has.

A receipt has the receipt of each output under the output's name, and only those of outputs that have rows of the
shard. All outputs of an epoch are in one commit: what happens in the commit's transaction is in the same one, and what
becomes visible after it is published, or published again at recovery, from the receipts that this commit names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from joinery_runtime.connectors.sink import (
    Attempt,
    AttemptRows,
    BufferedSink,
    Receipt,
    RecoveryContext,
    RowLimit,
    Sink,
    SinkWriter,
)
from joinery_runtime.connectors.source import StoreIdentity
from joinery_runtime.core.compile.jobs import RowSelection
from joinery_runtime.errors import RowLimitError, Unavailable

_SPOOL_BYTES = 16 << 20  # of an output's rows in memory; more are in a temporary file


@dataclass(frozen=True, slots=True)
class OutputPart:
    """What one output has of the job's rows. `ordered`: its writer knows ORDER_COLUMNS."""

    selection: RowSelection
    ordered: bool

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self.selection.select(batch, ordered=self.ordered)


class _Spool:
    """An output's rows of one shard, which may be read more than once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream: pa.RecordBatchStreamWriter | None = None

    @property
    def is_empty(self) -> bool:
        return self._stream is None

    def add(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        if self._stream is None:
            self._stream = pa.ipc.new_stream(self._file, rows.schema)
        self._stream.write_batch(rows)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        self._file.seek(0)
        yield from pa.ipc.open_stream(self._file)


@dataclass(frozen=True, slots=True)
class SeveralWriters:
    """The task half, by the outputs' names."""

    writers: Mapping[str, SinkWriter]
    parts: Mapping[str, OutputPart]

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        with ExitStack() as stack:
            spools = {
                name: _Spool(stack.enter_context(SpooledTemporaryFile(max_size=_SPOOL_BYTES, prefix="joinery-output-")))
                for name in self.writers
            }
            for batch in rows.to_batches():
                for name, spool in spools.items():
                    spool.add(self.parts[name].rows(batch))
            receipts = {}
            for name, spool in spools.items():
                spool.close()
                if not spool.is_empty:
                    try:
                        receipts[name] = self.writers[name].write(attempt, spool)
                    except RowLimitError as error:
                        error.output = name
                        raise
            return receipts


class SeveralOutputs(BufferedSink):
    """The driver half, by the outputs' names."""

    def __init__(self, sinks: Mapping[str, Sink], parts: Mapping[str, OutputPart]) -> None:
        self._sinks, self._parts = sinks, parts

    def prepare(self, schema: pa.Schema) -> str | None:
        created = [sink.prepare(self._parts[name].selection.schema(schema)) for name, sink in self._sinks.items()]
        return "; ".join(words for words in created if words is not None) or None

    def writer(self) -> SinkWriter:
        return SeveralWriters({name: sink.writer() for name, sink in self._sinks.items()}, self._parts)

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        for name, sink in self._sinks.items():
            sink.in_transaction(connection, epoch, _receipts_of(name, receipts))

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        for name, sink in self._sinks.items():
            sink.publish(epoch, _receipts_of(name, receipts))

    def recover(self, recovery: RecoveryContext) -> bool:
        visible = [sink.recover(recovery) for sink in self._sinks.values()]  # each sweeps
        return any(visible)

    def other_store(self) -> StoreIdentity | None:
        return next((store for sink in self._sinks.values() if (store := sink.other_store()) is not None), None)

    def unavailability(self) -> Unavailable | None:
        return next((reason for sink in self._sinks.values() if (reason := sink.unavailability()) is not None), None)

    def close(self) -> None:
        with ExitStack() as stack:
            for sink in self._sinks.values():
                stack.callback(sink.close)

    @property
    def buffered_rows(self) -> int:
        return sum(sink.buffered_rows for sink in self._buffered_sinks().values())

    def due(self, *, last: bool) -> bool:
        return any(sink.due(last=last) for sink in self._buffered_sinks().values())

    def seal(self, generation: int, epoch: int, receipts: Sequence[Receipt], *, last: bool) -> Sequence[Receipt]:
        return [
            {name: sealed}
            for name, sink in self._buffered_sinks().items()
            for sealed in sink.seal(generation, epoch, _receipts_of(name, receipts), last=last)
        ]

    def _buffered_sinks(self) -> Mapping[str, BufferedSink]:
        return {name: sink for name, sink in self._sinks.items() if isinstance(sink, BufferedSink)}


def _receipts_of(name: str, receipts: Iterable[Receipt]) -> list[Receipt]:
    return [receipt[name] for receipt in receipts if name in receipt]


@dataclass(frozen=True, slots=True)
class SeveralLimits:
    """How large a row may be: one that an output has and does not take is in none of them."""

    limits: tuple[tuple[RowSelection, RowLimit], ...]

    @property
    def words(self) -> str:
        return ", ".join(limit.words for _, limit in self.limits)

    def at_most(self, sizes: Mapping[str, int]) -> SeveralLimits:
        return SeveralLimits(tuple((selection, limit.at_most(sizes)) for selection, limit in self.limits))

    def rejected_above(self, sizes: Mapping[str, int]) -> SeveralLimits:
        return SeveralLimits(tuple((selection, limit.rejected_above(sizes)) for selection, limit in self.limits))

    def excess(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
        sizes = np.zeros(rows.num_rows, dtype=np.int64)
        for selection, limit in self.limits:
            large = limit.excess(selection.select(rows))
            if large is not None:
                selected = np.flatnonzero(selection.mask(rows))
                sizes[selected] = np.maximum(sizes[selected], large)
        return sizes if sizes.any() else None
