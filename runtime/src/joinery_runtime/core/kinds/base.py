"""What the kinds that join two sides share: how `joinery state show` lists stored rows."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa

from joinery_runtime.core.pipeline.describe import Outlook, RowStatus, ShownRow, StoredRow, StoredRows, ToJson
from joinery_runtime.core.pipeline.spec import Kind, StepSpec
from joinery_runtime.core.pipeline.watermark import Lows
from joinery_runtime.core.table.columns import DELETED, OFFSET, PARTITION, TS
from joinery_runtime.job import JoinStep
from joinery_runtime.job.kinds.base import StepKind
from joinery_runtime.job.model.duration import format_time


class Join(Kind):
    """A `Kind` of step with a left and a right side, whose state are rows."""

    __slots__ = ()

    written_as: ClassVar[tuple[type[StepKind], ...]]
    """How jobs say that a step is of this kind."""
    right_is_table: ClassVar[bool] = False
    """Whether the right side's rows are versions."""
    matches_by: ClassVar[str]
    """The rule that says which rows match, as docs/semantics.md names it."""
    padded_by: ClassVar[tuple[str, str]]
    """Likewise, when an unmatched row goes out padded: of CLOSING, and of ARRIVAL."""

    @classmethod
    @abstractmethod
    def of(cls, step: JoinStep, only: bool, /) -> Self:
        """What the step says; `only`: it is the job's only one."""

    def marks_rows(self, *, preserved: bool) -> bool:
        """Whether rows of a side have marks."""
        return False

    @abstractmethod
    def misses(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """int64[n]: by how many milliseconds pairs with these event times (int64[n] each) are out of reach of each
        other; 0: they are within it."""

    @property
    @abstractmethod
    def reach_text(self) -> str:
        """Within what a pair matches, after `outside`: `the bound (right - left from -10 ms to 10 ms)`."""

    @abstractmethod
    def statuses(self, step: StepSpec, rows: Sequence[StoredRow], outlook: Outlook) -> Sequence[RowStatus]:
        """What is to come for each of the rows, which are all that are stored of a key."""

    def shown(
        self, step: StepSpec, stored: Sequence[StoredRows], outlook: Outlook, to_json: ToJson
    ) -> Sequence[ShownRow]:
        rows = sorted(
            (row for some in stored for row in _rows(step, some, to_json)),
            key=lambda row: (row.side, row.ts, row.partition, row.offset),
        )
        return [
            ShownRow(" + ".join(step.sides[row.side].inputs), row, status)
            for row, status in zip(rows, self.statuses(step, rows, outlook), strict=True)
        ]


def _rows(step: StepSpec, stored: StoredRows, to_json: ToJson) -> Iterator[StoredRow]:
    spec, batch = step.sides[stored.side], stored.rows
    documents = to_json(pa.table(batch.select(list(spec.intake.stored))))
    places = zip(*(batch.column(name).to_pylist() for name in (TS, PARTITION, OFFSET)), strict=True)
    marked = stored.marked.tolist() if spec.marks else [None] * batch.num_rows
    deleted = _deleted(batch).tolist()
    for (ts, partition, offset), document, mark, gone in zip(places, documents, marked, deleted, strict=True):
        yield StoredRow(stored.side, ts, partition, offset, json.loads(document), mark, gone)


def _deleted(batch: pa.RecordBatch) -> np.ndarray:
    if DELETED not in batch.schema.names:
        return np.zeros(batch.num_rows, dtype=bool)
    return np.asarray(batch.column(DELETED).to_numpy(zero_copy_only=False))


def slower_watermark(step: StepSpec, allowed_lateness: int, outlook: Outlook | None = None) -> str:
    """What windows of both sides close by, in words; with an outlook, as it is there."""
    at = (
        {}
        if outlook is None
        else {side.time: f" ({format_time(outlook.watermarks[side.time])})" for side in step.sides}
    )
    names = " and ".join(f"{side.time}{at.get(side.time, '')}" for side in step.sides)
    late = f" - {allowed_lateness} ms" if allowed_lateness else ""
    return f"the lower watermark of {names}{late}"


def lower_of_both(step: StepSpec, lows: Lows) -> Mapping[str, int | None]:
    """The horizons of windows: both sides close by the lower of the two times."""
    left, right = step.sides
    low, other = lows[left.time], lows[right.time]
    both = None if low is None or other is None else min(low, other)
    return {left.part: both, right.part: both}
