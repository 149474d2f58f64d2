"""Passes output rows on in chunks of bounded size. Chunks are made on demand, so memory never has all rows of a shard.

Two kinds of rows become dead letters of the reason `failed` instead: rows that are too large for their target (rule
T8), and rows of an aggregate with a value that does not fit its type (rule S7)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Generic, TypeVar

import pyarrow as pa

from joinery_runtime.connectors.sink import Attempt, AttemptRows, Receipt, RowLimit, SinkWriter, dead_letter_rows
from joinery_runtime.core.pipeline.spec import StepSpec
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS, UnfitRows
from joinery_runtime.core.table.columns import split_partition
from joinery_runtime.core.table.segment import concat, encode
from joinery_runtime.engine.messages import ShardSummary
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.read_report import StepDeadLetters
from joinery_runtime.errors import RecordTooLarge, WrittenWithOtherLimit
from joinery_runtime.formats.convert import quote_value
from joinery_runtime.formats.json.encode import rows_to_json
from joinery_runtime.job.model.duration import format_time
from joinery_runtime.job.model.outputs import ONLY_OUTPUT
from joinery_runtime.job.model.references import SESSION_ID, WINDOW_COLUMNS

# A chunk holds at most this many rows and bytes, unless a single batch has more: enough that a cost per chunk is small
# per row, and few enough that a task, which holds a few chunks, needs little memory.
CHUNK_ROWS = 65_536
CHUNK_BYTES = 16 << 20

T = TypeVar("T")


def in_chunks(batches: Generator[pa.RecordBatch, None, T]) -> Generator[pa.RecordBatch, None, T]:
    """Combine the batches into fewer, and return the generator's result. A step makes a small batch per probed
    run."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    while True:
        try:
            batch = next(batches)
        except StopIteration as end:
            if waiting:
                yield concat(waiting)
            result: T = end.value
            return result
        if waiting and (rows + batch.num_rows > CHUNK_ROWS or size + batch.nbytes > CHUNK_BYTES):
            yield concat(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes


def slice_batches(batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
    """Cut the batches to about CHUNK_BYTES and at most CHUNK_ROWS, by the mean row size of each batch."""
    for batch in batches:
        size = max(1, batch.nbytes // max(1, batch.num_rows))
        at_once = max(1, min(CHUNK_ROWS, CHUNK_BYTES // size))
        for first in range(0, batch.num_rows, at_once):
            yield batch.slice(first, at_once)


class ReplayableBatches(Generic[T]):
    """Rows for a sink (`connectors.sink.Rows`), made on demand and made again for each new read. `make` yields the
    batches and then returns a result, which `result` hands out."""

    def __init__(self, make: Callable[[], Generator[pa.RecordBatch, None, T]]) -> None:
        self._make = make
        self._begun: Iterator[pa.RecordBatch] | None = None
        self._results: list[T] = []
        self.count = 0

    def any(self) -> bool:
        """Return whether there is any row. The batch made to find out becomes the first one of `to_batches`."""
        batches = self._remaining_batches()
        first = next(batches, None)
        self._begun = None if first is None else chain([first], batches)
        return first is not None

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        begun, self._begun = self._begun, None
        return self._remaining_batches() if begun is None else begun

    def result(self) -> T:
        """Return the result, after making the rest of the rows if no reader has. `count` is then the number of
        rows."""
        if not self._results:
            for _ in self.to_batches():
                """Only the result is wanted: a replayed epoch's rows may be in the output already."""
        return self._results[0]

    def _remaining_batches(self) -> Iterator[pa.RecordBatch]:
        self.count = 0
        chunks = in_chunks(self._make())
        while True:
            try:
                batch = next(chunks)
            except StopIteration as end:
                self._results.append(end.value)
                return
            self.count += batch.num_rows
            yield batch


@dataclass(slots=True)
class OutputLimit:
    """Keeps the rows of a shard's step within the limit of the output. `planned` is the limit by the job and the plan;
    without it, rows may have any size. `by_answers` has, by output, limits that only the brokers' answers have shown,
    to this attempt or to the one that wrote the rows."""

    planned: RowLimit | None
    step: StepSpec
    by_answers: dict[str, int] = field(default_factory=dict)
    _large: list[tuple[pa.RecordBatch, list[int]]] = field(default_factory=list)  # with the rows' sizes

    @property
    def limit(self) -> RowLimit | None:
        return self.planned and self.planned.rejected_above(self.by_answers)

    def write(self, writer: SinkWriter, attempt: Attempt, rows: AttemptRows) -> Receipt:
        """Write the rows, which `within` passes on. If the brokers reject rows as too large, or another attempt has
        written the rows with another limit, change the limit and write again."""
        while True:
            if self.planned is not None:
                attempt = replace(attempt, row_limits=dict(self.by_answers))
            try:
                return writer.write(attempt, rows)
            except RecordTooLarge as error:
                if error.row_limit is None or self.planned is None:
                    raise
                output = error.output or ONLY_OUTPUT
                self.by_answers[output] = min(error.row_limit, self.by_answers.get(output, error.row_limit))
            except WrittenWithOtherLimit as error:
                # The topic has these rows for good, also if its own limit has been raised or lowered since.
                self.by_answers.pop(error.output or ONLY_OUTPUT, None)
                if error.row_limit is not None:
                    self.by_answers[error.output or ONLY_OUTPUT] = error.row_limit

    def within(self, batches: Generator[pa.RecordBatch, None, T]) -> Generator[pa.RecordBatch, None, T]:
        """Pass on the rows that fit, and note the others. May be called for each pass over the same rows."""
        self._large.clear()
        limit = self.limit
        if limit is None:
            return (yield from batches)
        while True:
            try:
                batch = next(batches)
            except StopIteration as end:
                result: T = end.value
                return result
            sizes = limit.excess(_visible_columns(batch))
            if sizes is None:
                yield batch
                continue
            self._large.append((batch.filter(pa.array(sizes > 0)), sizes[sizes > 0].tolist()))
            if (sizes == 0).any():
                yield batch.filter(pa.array(sizes == 0))

    def dead_letters(
        self, plan: EpochPlan, make_ordered: Callable[[], Generator[pa.RecordBatch, None, object]]
    ) -> StepDeadLetters | None:
        """Return the dead letters of the rows that did not fit, each with the record that arrived last for it.
        `make_ordered` makes the same rows once more, with ORDER_COLUMNS."""
        limit = self.limit
        if limit is None or not self._large:
            return None
        if ORDER_COLUMNS[0] not in self._large[0][0].schema.names:
            deque(self.within(make_ordered()), maxlen=0)
        topics = {(ref.input, plan.numbered(ref)): ref.topic for ref in plan.partitions}
        letters = []
        for batch, sizes in self._large:
            texts = rows_to_json(_visible_columns(batch))
            for origin, text, size in zip(batch.select(list(ORDER_COLUMNS)).to_pylist(), texts, sizes, strict=True):
                name, numbered = self.step.sides[origin["$order_side"]].time, origin["$order_partition"]
                row = dead_letter_rows(
                    input_name=name,
                    topic=topics.get((name, numbered), ""),
                    partition=split_partition(numbered)[1],
                    offsets=[origin["$order_offset"]],
                    reasons=[f"failed: the row has {size:,} bytes, and {limit.words}"],
                    values=pa.array([text], pa.binary()),
                )
                letters.append(row)
        rows = concat(letters)
        return StepDeadLetters(encode(rows), Counter(rows.column("input").to_pylist()))


def unfit_rows(step: StepSpec, unfit: Sequence[UnfitRows]) -> StepDeadLetters | None:
    """Return the dead letters of an aggregate's rows with values that do not fit (S7). Such a row is made of many
    records, so it has no topic, partition and offset: the group and the window say which one it is."""
    if not unfit:
        return None
    name = step.sides[0].time
    reasons = [[f"failed: {reason}" for reason in reasons_of(group)] for group in unfit]
    letters = [
        dead_letter_rows(
            input_name=name,
            topic=None,
            partition=None,
            offsets=[None] * group.rows.num_rows,
            reasons=group_reasons,
            values=pa.array(rows_to_json(group.rows), pa.binary()),
        )
        for group, group_reasons in zip(unfit, reasons, strict=True)
    ]
    rows = concat(letters)
    return StepDeadLetters(encode(rows), {name: rows.num_rows}, reasons[0][0])


def reasons_of(unfit: UnfitRows) -> Iterator[str]:
    """Say why rows do not fit, and name the group and the window of each."""
    for row, reason in zip(unfit.rows.to_pylist(), unfit.reasons, strict=True):
        keys = [f"{name}={quote_value(row[name])}" for name in unfit.keys]
        times = [format_time(row[name]) for name in WINDOW_COLUMNS if name in row]
        kind = "session" if SESSION_ID in row else "window"
        where = f"in the {kind} from {times[0]} to {times[-1]}" if len(times) > 1 else f"at {times[0]}"
        yield f"{reason}; {', '.join([*keys, where])}"


def with_dead_letters(
    summary: ShardSummary,
    step: StepSpec,
    late: StepDeadLetters | None,
    large: StepDeadLetters | None,
    unfit: StepDeadLetters | None = None,
) -> ShardSummary:
    """Return the summary with the counts of these dead letters. Rows that are too `large` count as `failed`, too, at
    the step's last input; those that are `unfit` are counted by the step."""
    dead = sum((Counter(letters.counts) for letters in (late, large, unfit) if letters is not None), Counter[str]())
    counted = replace(
        summary,
        dead=dead,
        first_dead="" if late is None else late.first,
        first_unfit="" if unfit is None else unfit.first,
    )
    if large is None:
        return counted
    last = step.sides[-1].time
    last_dropped = Counter(summary.dropped.get(last, {})) + Counter(failed=sum(large.counts.values()))
    return replace(counted, dropped={**summary.dropped, last: last_dropped})


def _visible_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([name for name in batch.schema.names if name not in ORDER_COLUMNS])
