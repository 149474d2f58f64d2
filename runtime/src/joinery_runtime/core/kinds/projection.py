"""Each record of one input by itself: filtered and projected as it is read, and emitted by the same epoch (rules P1 to
P3). Nothing is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from joinery_runtime.core.kinds.rows import PairFailures, Pairs, Selection, cut_pairs, project
from joinery_runtime.core.pipeline.sides import LEFT
from joinery_runtime.core.pipeline.spec import EventTime, Retention, StepOperator, StepSpec
from joinery_runtime.core.pipeline.step import Horizon, StepResult, StepRun, StepWork
from joinery_runtime.core.pipeline.watermark import OutputWatermarks, Times
from joinery_runtime.core.table.columns import OFFSET, PARTITION
from joinery_runtime.core.table.segment import SegmentMeta


@dataclass(frozen=True, slots=True)
class RecordProjection(StepOperator):
    """The intake has filtered the rows and computed their columns, because there they are still records, which can be
    dead letters. What is left is to emit them, those of a partition in its order (P3)."""

    stateless: ClassVar[bool] = True
    allowed_lateness: int = field(default=0, init=False)
    retention: tuple[Retention, ...] = field(default=(Retention(EventTime(), "p1", kept_for_ms=0),), init=False)

    def run(self, step: StepSpec, work: StepWork) -> StepRun:
        (rows,) = work.arrivals
        if rows is not None:
            places = [rows.column(name).to_numpy() for name in (OFFSET, PARTITION)]
            arrived = Pairs(Selection(rows, np.lexsort(places)), None)
            for piece in cut_pairs(step, arrived):
                yield project(step, piece, PairFailures(), ordered=work.ordered, arrived=LEFT)
        return StepResult.nothing(1)

    def needs_state(self, step: StepSpec, side: int, arrived: tuple[bool, ...], *, closing: bool) -> bool:
        return False

    def horizons(self, step: StepSpec, times: Times, lows: OutputWatermarks) -> Mapping[str, int | None]:
        return {}

    def closes(self, step: StepSpec, side: int, meta: SegmentMeta, horizon: Horizon) -> bool:
        return False
