"""The base of all kinds that join two sides, including how `joinery state show` lists their stored rows."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa

from joinery_runtime.core.pipeline.describe import (
    AcceptedRow,
    EpochTimes,
    RowStatus,
    RowView,
    StoredRow,
    StoredRows,
    ToJson,
)
from joinery_runtime.core.pipeline.spec import StepOperator, StepSpec
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.pipeline.watermark import BEGIN_OF_TIME, OutputWatermarks
from joinery_runtime.core.table.columns import DELETED, OFFSET, PARTITION, TS, partitions_of
from joinery_runtime.job import JoinStep
from joinery_runtime.job.kinds.base import StepKind
from joinery_runtime.job.model.duration import format_time


class Join(StepOperator):
    """A `StepOperator` of step with a left and a right side, whose state is made of rows."""

    __slots__ = ()

    written_as: ClassVar[tuple[type[StepKind], ...]]
    """The forms in which a job asks for this kind."""
    right_is_table: ClassVar[bool] = False
    """Whether the right side's rows are versions of a table."""
    matches_by: ClassVar[str]
    """The id of the rule in docs/semantics.md that says which rows match."""
    padded_by: ClassVar[tuple[str, str]]
    """The ids of the rules for unmatched rows that are emitted padded: in phase CLOSING, and in phase ARRIVAL."""

    @classmethod
    @abstractmethod
    def of(cls, step: JoinStep, only: bool, /) -> Self:
        """The kind as the step asks for it; `only`: the job has no other step."""

    def flags_rows(self, *, preserved: bool) -> bool:
        """Whether stored rows of a side, preserved or not, carry flags."""
        return False

    @abstractmethod
    def misses(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """By how many milliseconds (int64[n]) pairs with these event times (int64[n] each) are out of reach; 0: within
        reach."""

    @property
    @abstractmethod
    def reach_text(self) -> str:
        """The limit within which pairs match, to follow `outside`: `the bound (right - left from -10 ms to 10 ms)`."""

    @abstractmethod
    def statuses(self, step: StepSpec, rows: Sequence[StoredRow], epoch_times: EpochTimes) -> Sequence[RowStatus]:
        """What will happen to each row. `rows` are all stored rows of one key."""

    def shown(
        self, step: StepSpec, stored: Sequence[StoredRows], epoch_times: EpochTimes, to_json: ToJson
    ) -> Sequence[RowView]:
        rows = sorted(
            (row for segment_rows in stored for row in _rows(step, segment_rows, to_json)),
            key=lambda row: (row.side, row.ts, row.partition, row.offset),
        )
        times = np.sort(np.array([row.ts for row in rows], dtype=np.int64))
        newer = [
            after.ts if after is not None and after.side == row.side else None
            for row, after in zip_longest(rows, rows[1:])
        ]
        # What is stored was not emitted when it arrived, and left by the committed horizons alone.
        horizons = {part: Horizon(at.previous, at.previous) for part, at in epoch_times.horizons.items()}
        before = replace(epoch_times, horizons=horizons, reached=dict.fromkeys(epoch_times.watermarks, BEGIN_OF_TIME))
        return [
            RowView(
                " + ".join(step.sides[row.side].inputs),
                row,
                status,
                self.is_evicted(step, AcceptedRow(row.side, row.ts, times, next_ts), before),
            )
            for row, next_ts, status in zip(rows, newer, self.statuses(step, rows, epoch_times), strict=True)
        ]


def _rows(step: StepSpec, stored: StoredRows, to_json: ToJson) -> Iterator[StoredRow]:
    spec, batch = step.sides[stored.side], stored.rows
    documents = to_json(pa.table(batch.select(list(spec.intake.stored))))
    partitions = partitions_of(batch.column(PARTITION).to_numpy()).tolist()
    row_positions = zip(batch.column(TS).to_pylist(), partitions, batch.column(OFFSET).to_pylist(), strict=True)
    flagged = stored.flagged.tolist() if spec.flags else [None] * batch.num_rows
    deleted = _deleted(batch).tolist()
    for (ts, partition, offset), document, flag, is_deletion in zip(
        row_positions, documents, flagged, deleted, strict=True
    ):
        yield StoredRow(stored.side, ts, partition, offset, json.loads(document), flag, is_deletion)


def _deleted(batch: pa.RecordBatch) -> np.ndarray:
    if DELETED not in batch.schema.names:
        return np.zeros(batch.num_rows, dtype=bool)
    return np.asarray(batch.column(DELETED).to_numpy(zero_copy_only=False))


def slower_watermark(step: StepSpec, allowed_lateness: int, epoch_times: EpochTimes | None = None) -> str:
    """The watermark that closes windows of both sides, in words. With these epoch times, includes its present
    values."""
    at = (
        {}
        if epoch_times is None
        else {side.time: f" ({format_time(epoch_times.watermarks[side.time])})" for side in step.sides}
    )
    names = " and ".join(f"{side.time}{at.get(side.time, '')}" for side in step.sides)
    late = f" - {allowed_lateness} ms" if allowed_lateness else ""
    return f"the lower watermark of {names}{late}"


def lower_of_both(step: StepSpec, lows: OutputWatermarks) -> Mapping[str, int | None]:
    """The horizons of window kinds: the lower of the two times closes both sides."""
    left, right = step.sides
    low, other = lows[left.time], lows[right.time]
    both = None if low is None or other is None else min(low, other)
    return {left.part: both, right.part: both}
