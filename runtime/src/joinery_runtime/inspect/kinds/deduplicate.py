"""What is said about deduplication (rules D1 to D4), whose state is made of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from joinery_runtime.core.kinds.deduplicate import Deduplicate
from joinery_runtime.core.pipeline.retention import AcceptedRow
from joinery_runtime.core.pipeline.step import Horizons
from joinery_runtime.inspect.kinds.base import EpochTimes, RankingDescription, RowStatus, StoredRow
from joinery_runtime.job.model.duration import format_time


class DeduplicateDescription(RankingDescription[Deduplicate]):
    """See D2 and D3: a row waits for the watermark, and leaves with its span."""

    __slots__ = ()

    describes: ClassVar[type[Deduplicate]] = Deduplicate

    def next_epoch_text(self, side: int, horizons: Horizons) -> str:
        at = format_time(horizons[self.step.sides[side].part].current)
        if self.kind.keep_last:
            return f"emits the last row of spans that end at {at} or before"
        return f"emits first rows from before {at}"

    def eviction_condition(self, row: AcceptedRow, epoch_times: EpochTimes) -> str:
        return f"{self._until(row.ts, epoch_times)}, or earlier if it is a repeat"

    def status(self, row: StoredRow, epoch_times: EpochTimes) -> RowStatus:
        closed = epoch_times.horizons[self.step.sides[row.side].part].previous
        decided, until = closed is not None and row.ts < closed, self._until(row.ts, epoch_times)
        if row.flagged:
            words = "a repeat, or of a span that was emitted"
        elif not decided:
            at = format_time(row.ts + self.kind.allowed_lateness)
            words = f"waits until {epoch_times.watermark_text(self.step)} is above {at}; then repeats of it are known"
        elif self.kind.keep_last:
            words = f"in an open span, of which the last row is emitted; goes at the latest when {until}"
        else:
            words = f"was emitted; repeats of it are dropped until {until}"
        fields: Mapping[str, Any] = {
            "until_input": epoch_times.watermark_name(self.step),
            "until": row.ts + self.kind.within + self.kind.allowed_lateness,
            "decided": decided,
        }
        return RowStatus(words, fields)

    def _until(self, ts: int, epoch_times: EpochTimes) -> str:
        at = format_time(ts + self.kind.within + self.kind.allowed_lateness)
        return f"{epoch_times.watermark_text(self.step)} is at {at} or above"
