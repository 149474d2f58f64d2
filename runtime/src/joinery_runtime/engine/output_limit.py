"""Output rows that are too large for their target: dead letters of the reason `failed` (rule T8)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa

from joinery_runtime.connectors.dead_letters import dead_letter_rows
from joinery_runtime.connectors.sink import Attempt, AttemptRows, Receipt, RowLimit, SinkWriter
from joinery_runtime.core.pipeline.spec import StepSpec
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS
from joinery_runtime.core.table.columns import split_partition
from joinery_runtime.core.table.segment import concat, encode
from joinery_runtime.engine.messages import ShardSummary
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.read_report import LateRecords
from joinery_runtime.errors import RecordTooLarge, WrittenWithOtherLimit
from joinery_runtime.formats.json.encode import rows_to_json
from joinery_runtime.job.model.outputs import ONLY_OUTPUT

T = TypeVar("T")


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
        """Passes on the rows that fit, and notes the others. May be called for each pass over the same rows."""
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
    ) -> LateRecords | None:
        """The dead letters of the rows that did not fit, each with the record that arrived last for it. `make_ordered`
        makes the same rows once more, with ORDER_COLUMNS."""
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
        return LateRecords(encode(rows), Counter(rows.column("input").to_pylist()))


def with_dead_letters(
    summary: ShardSummary, step: StepSpec, late: LateRecords | None, large: LateRecords | None
) -> ShardSummary:
    """The summary with the counts of these dead letters. Rows that are too `large` count as `failed`, too, at the
    step's last input."""
    dead = sum((Counter(letters.counts) for letters in (late, large) if letters is not None), Counter[str]())
    counted = replace(summary, dead=dead, first_dead="" if late is None else late.first)
    if large is None:
        return counted
    last = step.sides[-1].time
    of_last = Counter(summary.dropped.get(last, {})) + Counter(failed=sum(large.counts.values()))
    return replace(counted, dropped={**summary.dropped, last: of_last})


def _visible_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([name for name in batch.schema.names if name not in ORDER_COLUMNS])
