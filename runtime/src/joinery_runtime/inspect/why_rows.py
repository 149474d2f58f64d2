"""The rows that a record may have met, for `joinery why`: those that epochs read, those that a step was handed by the
one before it, and those that were in the state before the first of the epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from joinery_runtime.core.pipeline.sides import FLAGS, stored_rows
from joinery_runtime.core.pipeline.spec import Pipeline, StepSpec
from joinery_runtime.core.table.columns import JOINABLE, OFFSET, PARTITION, TS, UNAVAILABLE, split_partition
from joinery_runtime.core.table.segment import Run, SegmentMeta
from joinery_runtime.engine.job_state import stored_floors
from joinery_runtime.engine.plan import InputState, input_states
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.inspect.replay import StoredState
from joinery_runtime.inspect.why_records import RecordPosition
from joinery_runtime.state.migrations import decode_run


@dataclass(frozen=True, slots=True)
class MatchableRows:
    """The rows of an input that can match, with the epoch (int64[n]) and the place of each; or rows that the step
    before has made, which have no places."""

    batch: pa.RecordBatch
    epochs: np.ndarray
    positions: Sequence[RecordPosition] = ()

    def at(self, position: RecordPosition) -> int | None:
        return self.positions.index(position) if position in self.positions else None

    def __len__(self) -> int:
        return len(self.epochs)


@dataclass(slots=True)
class JoinedRows:
    """Rows of the key that a step was handed by the one before it, and has kept. `hashes` are those of the key, by
    step; a step that joins on time only has all of its rows here."""

    pipeline: Pipeline
    hashes: Mapping[int, int]
    _batches: dict[str, list[tuple[int, pa.RecordBatch]]] = field(default_factory=dict)  # by part, with their epochs
    _seen: set[str] = field(default_factory=set)

    def note(self, segments: Callable[[Callable[[SegmentMeta], bool]], Sequence[tuple[SegmentMeta, Run]]]) -> None:
        """Those of the segments that are new."""
        for meta, run in segments(self._is_new_of_key):
            self._seen.add(meta.key)
            step, side = self.pipeline.side(meta.part)
            rows = stored_rows(step.sides[side], run.batch)
            if not step.broadcast:
                rows = rows.filter(pa.array(run.hash == np.uint64(self.hashes[step.number])))
            self._batches.setdefault(meta.part, []).append((meta.epoch, rows))

    def _is_new_of_key(self, meta: SegmentMeta) -> bool:
        if meta.key in self._seen or meta.part.endswith(FLAGS):
            return False
        step, side = self.pipeline.side(meta.part)
        of_key = step.number in self.hashes and meta.hash_min <= self.hashes[step.number] <= meta.hash_max
        return len(step.sides) > 1 and step.sides[side].intake.chained and (step.broadcast or of_key)

    def rows(self, part: str) -> MatchableRows | None:
        batches = [(epoch, rows) for epoch, rows in self._batches.get(part, ()) if len(rows)]
        if not batches:
            return None
        (batch,) = pa.Table.from_batches([rows for _, rows in batches]).combine_chunks().to_batches()
        return MatchableRows(batch, np.repeat([epoch for epoch, _ in batches], [len(rows) for _, rows in batches]))


@dataclass(frozen=True, slots=True)
class InitialState:
    """The state with which the first of the epochs began; `stored` None: it was empty."""

    pipeline: Pipeline
    stored: StoredState | None

    def rows(self, name: str) -> Iterator[tuple[pa.RecordBatch, list[RecordPosition]]]:
        """Yield the rows of an input in that state, as `prepare` makes them, with their places."""
        spec = self.pipeline.input(name)
        step = self.pipeline.steps[spec.step]
        side = step.sides[spec.side]
        if self.stored is None or side.state is not None:
            return
        record = self.stored.record
        state = input_states([name], record)[name]
        floor = stored_floors(record).get(side.part)
        for meta in record.segments:
            if meta.part == side.part:
                rows = stored_rows(side, decode_run(meta, self.stored.blobs[meta.key]).batch)
                rows = rows_above_floor(step, spec.side, rows, floor)
                schema = side.intake.prepared_schema()
                columns = [
                    pa.repeat(pa.scalar(True), len(rows))
                    if column.name == JOINABLE
                    else pa.nulls(len(rows), column.type)
                    if column.name == UNAVAILABLE
                    else rows.column(column.name)
                    for column in schema
                ]
                positions = zip(rows.column(PARTITION).to_pylist(), rows.column(OFFSET).to_pylist(), strict=True)
                yield (
                    pa.record_batch(columns, schema=schema),
                    [
                        RecordPosition(_partition_of_row(name, numbered, offset, state), offset)
                        for numbered, offset in positions
                    ],
                )


def rows_above_floor(step: StepSpec, side: int, rows: pa.RecordBatch, floor: int | None) -> pa.RecordBatch:
    """Return the rows of a segment that are still kept when its part of the state is closed up to `floor`."""
    since = None if floor is None else step.kind.retention[side].keep_from(floor)
    return rows if since is None else rows.filter(pa.array(rows.column(TS).to_numpy() >= since))


def _partition_of_row(name: str, numbered: int, offset: int, state: InputState) -> PartitionRef:
    """Return the partition of a stored row, which says its topic by number. Several topics may have number 0, which
    rows of earlier releases have: names all topics from which the row may be."""
    topic_number, partition = split_partition(numbered)
    numbers = state.topic_numbers.by_topic
    topics = {
        ref.topic
        for ref, end in state.positions.items()
        if ref.partition == partition and offset < end and (not topic_number or numbers.get(ref.topic) == topic_number)
    }
    return PartitionRef(name, " or ".join(sorted(topics)) or name, partition)
