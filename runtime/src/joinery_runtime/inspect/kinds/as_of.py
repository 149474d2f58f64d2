"""What is said about an as-of join (rules A1-A4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from joinery_runtime.core.kinds.as_of import AsOfJoin
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT
from joinery_runtime.core.pipeline.spec import AcceptedRow
from joinery_runtime.core.pipeline.step import Horizons
from joinery_runtime.core.pipeline.watermark import END_OF_TIME
from joinery_runtime.inspect.kinds.base import EpochTimes, JoinDescription, RowStatus, StoredRow
from joinery_runtime.job.model.duration import format_time


class AsOfDescription(JoinDescription[AsOfJoin]):
    """See A2 and A3: rows of the stream wait for the table, versions for the one that supersedes them."""

    __slots__ = ()

    describes: ClassVar[type[AsOfJoin]] = AsOfJoin
    matches_by: ClassVar[str] = "a1"
    padded_by: ClassVar[tuple[str, str]] = ("a4", "a4")

    def next_epoch_text(self, side: int, horizons: Horizons) -> str:
        until = format_time(horizons[self.step.sides[side].part].current)
        if side == LEFT:
            return f"joins waiting rows up to {until} and lets them go"
        return f"needs no version that was superseded at {until} or before"

    @property
    def reach_text(self) -> str:
        return "the time of the stream's row (a version may not be newer)"

    def ms_out_of_reach(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return np.asarray(np.maximum(right - left, 0))

    def is_evicted(self, row: AcceptedRow, epoch_times: EpochTimes) -> bool:
        """See A3 and A4. A row of the stream that has nothing to wait for is not even kept."""
        reached = epoch_times.reached.get(self.step.sides[RIGHT].time, END_OF_TIME)
        at_once = row.side == LEFT and self.kind.grace == 0 and row.ts <= reached
        return at_once or super().is_evicted(row, epoch_times)

    def eviction_condition(self, row: AcceptedRow, epoch_times: EpochTimes) -> str:
        stream, table = (side.time for side in self.step.sides)
        if row.side == LEFT:
            reached = epoch_times.reached.get(table, END_OF_TIME)
            waits_for_table = f"{table} is read up to {format_time(row.ts)}"
            if self.kind.grace == 0:
                return "a row of the stream is joined when it comes" if row.ts <= reached else waits_for_table
            waited = f"the highest event time of {stream} is {format_time(row.ts + self.kind.grace)} or above"
            return waited if row.ts <= reached else f"{waited}, and {waits_for_table}"
        if row.newer is None:
            return f"a newer version of its key comes (of {table})"
        until = format_time(row.newer + self.kind.history_retention)
        return f"the highest event time of {table} is {until} or above (superseded at {format_time(row.newer)})"

    def row_statuses(self, rows: Sequence[StoredRow], epoch_times: EpochTimes) -> Sequence[RowStatus]:
        stream, table = (side.time for side in self.step.sides)
        statuses = []
        for row in rows:
            if row.side != LEFT:
                statuses.append(self._version_status(rows, row, epoch_times))
                continue
            until, words = row.ts + self.kind.grace, f"waits until {table} is read up to {format_time(row.ts)}"
            if self.kind.grace:
                words = f"waits until the highest event time of {stream} is {format_time(until)}"
            statuses.append(RowStatus(words, {"until_input": stream, "until": until}))
        return statuses

    def _version_status(self, rows: Sequence[StoredRow], row: StoredRow, epoch_times: EpochTimes) -> RowStatus:
        """Say until when a version is valid: its key's next one. At equal times the higher offset counts (A1)."""
        versions = sorted((r for r in rows if r.side == row.side), key=lambda r: (r.ts, r.offset, r.partition))
        newer = [
            other
            for other in versions
            if (other.ts, other.offset, other.partition) > (row.ts, row.offset, row.partition)
        ]
        until = newer[0].ts if newer else None
        version_kind = "deletion" if row.deleted else "version"
        fields = {"deleted": row.deleted, "valid_until": until}
        if until is None:
            return RowStatus(f"{version_kind}, the newest one: stays", fields)
        superseded = f"{version_kind}, superseded at {format_time(until)}"
        horizon = epoch_times.horizon(self.step.sides[row.side].part)
        if horizon is not None and until <= horizon:
            return RowStatus(f"{superseded}: needed no more, goes when its segment is merged", fields)
        return RowStatus(f"{superseded}: stays for the history retention", fields)
