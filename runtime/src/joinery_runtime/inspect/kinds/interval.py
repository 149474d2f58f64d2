"""What is said about an interval join (rules J1-J7, O1-O2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from joinery_runtime.core.kinds.interval import IntervalJoin
from joinery_runtime.core.pipeline.spec import AcceptedRow, StepSpec
from joinery_runtime.core.pipeline.step import Horizons
from joinery_runtime.inspect.kinds.base import EpochTimes, JoinDescription, RowStatus, StoredRow
from joinery_runtime.job.model.duration import format_duration, format_time


class IntervalDescription(JoinDescription[IntervalJoin]):
    """See J3: the watermark of the other side decides when a row leaves."""

    __slots__ = ()

    describes: ClassVar[type[IntervalJoin]] = IntervalJoin
    matches_by: ClassVar[str] = "j1"
    padded_by: ClassVar[tuple[str, str]] = ("o1", "o2")
    leaves_when_matched: ClassVar[bool] = True

    def next_epoch_text(self, side: int, horizons: Horizons) -> str:
        padded = ""
        if self.step.sides[side].preserved:
            emission_text = "alone" if self.step.emits == "unmatched" else "with nulls for the other side"
            padded = f", unmatched rows older than that are emitted {emission_text}"
        return f"keeps rows from {format_time(horizons[self.step.sides[side].part].current)}{padded}"

    @property
    def reach_text(self) -> str:
        return f"the bound (right - left from {format_duration(self.kind.lower)} to {format_duration(self.kind.upper)})"

    def ms_out_of_reach(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        distance = right - left
        return np.asarray(np.maximum(np.maximum(self.kind.lower - distance, distance - self.kind.upper), 0))

    def eviction_condition(self, row: AcceptedRow, epoch_times: EpochTimes) -> str:
        return self._watermark_text(row.side, row.ts, epoch_times)

    def _last_partner(self, side: int, ts: int) -> tuple[int, int]:
        """Return the latest event time of partners of a row at `ts`, and by how much (ms) they may be late."""
        late = 0 if self.step.sides[1 - side].intake.chained else self.kind.allowed_lateness
        return ts + self.kind.partner_bounds(side)[1], late

    def _watermark_text(self, side: int, ts: int, epoch_times: EpochTimes) -> str:
        other, until = self.step.sides[1 - side], sum(self._last_partner(side, ts))
        upstream = f"what step {self.step.number} hands on of " if other.intake.chained else ""
        now = "" if other.intake.chained else f" ({format_time(epoch_times.watermarks[other.time])})"
        return f"{upstream}the watermark of {other.time}{now} is above {format_time(until)}"

    def row_statuses(self, rows: Sequence[StoredRow], epoch_times: EpochTimes) -> Sequence[RowStatus]:
        statuses = []
        for row in rows:
            other = self.step.sides[1 - row.side]
            last_partner, late = self._last_partner(row.side, row.ts)
            horizon = epoch_times.horizon(self.step.sides[row.side].part)
            watermark = epoch_times.watermarks[other.time]
            settled = bool(row.flagged) and self.kind.flagged_rows_leave(self.step)
            if settled or (horizon is not None and row.ts < horizon):
                may_match = "no"
            else:
                may_match = "on time" if watermark is None or last_partner >= watermark else "late"
            fields = {
                "until_input": other.time,
                "until": last_partner + late,
                "may_match": may_match,
                **({"matched": row.flagged} if row.flagged is not None else {}),
            }
            goes = f"goes when {self._watermark_text(row.side, row.ts, epoch_times)}"
            words = f"{goes}; {_MATCHES[may_match]}{_match_text(self.step, row, epoch_times)}"
            statuses.append(RowStatus(words, fields))
        return statuses


_MATCHES = {"on time": "may still match", "late": "may match late rows only", "no": "matches nothing any more"}


def _match_text(step: StepSpec, row: StoredRow, epoch_times: EpochTimes) -> str:
    """Say whether a row has matched, where that decides what is emitted. A preserved row that never does is emitted
    padded (O1), or alone by an anti join (E3), when an epoch closes it."""
    side = step.sides[row.side]
    if row.flagged is None or not (side.preserved or step.emits == "matched"):
        return ""
    if row.flagged:
        consequences = {"pairs": "", "matched": " and was emitted", "unmatched": ", so it is not emitted"}
        return f"; has matched{consequences[step.emits]}"
    if step.emits == "matched":
        return "; has not matched: is emitted if it still does"
    horizon, padded = epoch_times.horizons[side.part], " padded" if step.emits == "pairs" else ""
    if horizon.previous is not None and row.ts < horizon.previous:
        return f"; has not matched and was emitted{padded}"
    closed = horizon.current is not None and row.ts < horizon.current
    return f"; has not matched: is emitted{padded} {'with the next epoch' if closed else 'unless it still does'}"
