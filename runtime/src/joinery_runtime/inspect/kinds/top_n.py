"""What is said about top-N (rules R1 to R5), whose state is made of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from joinery_runtime.core.kinds.top_n import FirstRows
from joinery_runtime.core.pipeline.retention import AcceptedRow
from joinery_runtime.core.pipeline.step import Horizons
from joinery_runtime.inspect.kinds.base import EpochTimes, RankingDescription, RowStatus, StoredRow, accepted
from joinery_runtime.job.model.duration import format_time
from joinery_runtime.job.model.wording import counted


class TopNDescription(RankingDescription[FirstRows]):
    """See R3 and R4: a row waits for the end of its windows, unless others displace it."""

    __slots__ = ()

    describes: ClassVar[type[FirstRows]] = FirstRows

    def next_epoch_text(self, side: int, horizons: Horizons) -> str:
        at = format_time(horizons[self.step.sides[side].part].current)
        return f"emits the first {counted(self.kind.rows, 'row')} of windows that end at {at} or before"

    def eviction_condition(self, row: AcceptedRow, epoch_times: EpochTimes) -> str:
        return f"{self._until(row, epoch_times)}, or earlier if others displace it"

    def status(self, row: StoredRow, epoch_times: EpochTimes) -> RowStatus:
        if row.flagged:
            words = f"{counted(self.kind.rows, 'row')} of its key and window precede it"
        else:
            words = f"one of the first so far; goes when {self._until(accepted(row), epoch_times)}"
        fields: Mapping[str, Any] = {
            "until_input": epoch_times.watermark_name(self.step),
            "until": (self.deciding_time(accepted(row)) or 0) + self.kind.allowed_lateness,
        }
        return RowStatus(words, fields)

    def _until(self, row: AcceptedRow, epoch_times: EpochTimes) -> str:
        at = format_time((self.deciding_time(row) or 0) + self.kind.allowed_lateness)
        return f"{epoch_times.watermark_text(self.step)} is at {at} or above"
