"""The oracle of `deduplicate` of one input: section D of docs/semantics.md, one row at a time. It keeps every row that
was not late, and forms all spans of a key again in each epoch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from joinery_devkit.oracle.horizons import UNKNOWN, as_time
from joinery_devkit.oracle.joins import LATE, EpochExpectation, SideBatches, Watermarks
from joinery_devkit.oracle.rows import END, Row, Values, comparable
from joinery_runtime.job import StreamJoin
from joinery_runtime.job.kinds.ranking import Deduplication


@dataclass(frozen=True)
class DeduplicationShape:
    """What a job keeps and emits. `where` is the condition of its input in Python, on a row's columns."""

    job: StreamJoin
    where: Callable[[Values], bool | None] | None = None

    @property
    def rule(self) -> Deduplication:
        assert self.job.spec.deduplicate is not None, "the job deduplicates"
        return self.job.spec.deduplicate

    def key(self, row: Row) -> tuple[Hashable, ...]:
        return tuple(comparable(row.values[name.partition(".")[2]]) for name in self.rule.keys)

    def output(self, row: Row) -> dict[str, Any]:
        return {column.name: row.values[column.source.column] for column in self.job.output_columns if column.source}


class DeduplicationOracle:
    """The oracle. `depth` is how many epochs it takes until what the first one closes has been emitted. `decided` are
    the rows of the last epoch, and `handed_on` is the lowest event time that these may have had (N3)."""

    depth = 1

    def __init__(self, shape: DeduplicationShape) -> None:
        self.decided: list[Row] = []
        self.handed_on = UNKNOWN
        (self._input,) = self.inputs = tuple(side.name for side in shape.job.inputs)
        self._shape, self._closed = shape, UNKNOWN
        self._rows: dict[tuple[Hashable, ...], list[Row]] = defaultdict(list)
        self._emitted: set[tuple[int, int]] = set()

    def edit(self, job: StreamJoin) -> None:
        """Continue the job with another lateness."""
        self._shape = replace(self._shape, job=job)

    def epoch(self, watermarks: Watermarks, rows: SideBatches) -> EpochExpectation:
        """Replay one epoch, like `Oracle.epoch`."""
        lateness = self._shape.rule.allowed_lateness
        waits = self._shape.rule.within - 1 if self._shape.rule.keep == "last" else 0
        self.handed_on = self._closed - waits
        self._closed = max(self._closed, as_time(watermarks[self._input]) - lateness)
        self.decided = list(self._decided())
        emitted = tuple(self._shape.output(row) for row in self.decided)
        dropped: Counter[str] = Counter()
        for row in rows.get(self._input, ()):
            if self._shape.where is not None and self._shape.where(row.values) is not True:
                dropped["filtered"] += 1
            elif row.ts < self._closed:
                dropped[LATE] += 1
            else:
                self._rows[self._shape.key(row)].append(row)
        late = dropped.pop(LATE, 0)
        return EpochExpectation((), emitted, {self._input: late}, {self._input: dropped})

    def end(self) -> Iterator[EpochExpectation]:
        """Yield the epoch that ends the input (T7)."""
        yield self.epoch({self._input: END}, {})

    def _decided(self) -> Iterator[Row]:
        """Emit the rows that were not emitted yet, and whose turn it is (D2)."""
        last = self._shape.rule.keep == "last"
        for rows in self._rows.values():
            for span in self._spans(rows):
                chosen = span[-1] if last else span[0]
                is_decided = span[0].ts + self._shape.rule.within <= self._closed if last else chosen.ts < self._closed
                if is_decided and (chosen.partition, chosen.offset) not in self._emitted:
                    self._emitted.add((chosen.partition, chosen.offset))
                    yield chosen

    def _spans(self, rows: list[Row]) -> list[list[Row]]:
        """Return the rows of a key before the horizon, by span (D1)."""
        spans: list[list[Row]] = []
        for row in sorted(rows, key=lambda row: (row.ts, row.partition, row.offset)):
            if row.ts >= self._closed:
                break
            if spans and row.ts < spans[-1][0].ts + self._shape.rule.within:
                spans[-1].append(row)
            else:
                spans.append([row])
        return spans
