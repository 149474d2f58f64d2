"""What is said about steps that emit some of their rows: deduplication (rules D1 to D5) and top-N (rules R1 to R9)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from joinery_runtime.core.kinds.deduplicate import Deduplicate
from joinery_runtime.core.kinds.top_n import FirstRows
from joinery_runtime.core.pipeline.spec import AcceptedRow
from joinery_runtime.core.pipeline.step import Horizons
from joinery_runtime.inspect.kinds.base import (
    EpochTimes,
    Operator,
    RowStatus,
    RowView,
    StepDescription,
    StoredRow,
    StoredRows,
    ToJson,
    accepted,
    rows_of_key,
)
from joinery_runtime.job.model.duration import format_time
from joinery_runtime.job.model.wording import counted


class RankingDescription(StepDescription[Operator]):
    """Describes a step with one side that emits some of its rows. The state is made of rows, with flags on those that
    have left."""

    __slots__ = ()

    def entries(self, stored: Sequence[StoredRows], epoch_times: EpochTimes, to_json: ToJson) -> Sequence[RowView]:
        (side,) = self.step.sides
        closed, retention = epoch_times.horizons[side.part].previous, self.kind.retention[0]
        return [
            RowView(
                " + ".join(side.inputs),
                row,
                self.status(row, epoch_times),
                row.flagged is True or retention.has_ended(accepted(row), closed),
            )
            for row in rows_of_key(self.step, stored, to_json)
        ]

    @abstractmethod
    def status(self, row: StoredRow, epoch_times: EpochTimes) -> RowStatus:
        """Say what becomes of a stored row."""


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


class TopNDescription(RankingDescription[FirstRows]):
    """See R3 and R4: a row waits for the end of its windows, unless others displace it."""

    __slots__ = ()

    describes: ClassVar[type[FirstRows]] = FirstRows

    def next_epoch_text(self, side: int, horizons: Horizons) -> str:
        at = format_time(horizons[self.step.sides[side].part].current)
        rows = "all rows" if self.kind.rows is None else f"the first {counted(self.kind.rows, 'row')}"
        return f"emits {rows} of windows that end at {at} or before"

    def eviction_condition(self, row: AcceptedRow, epoch_times: EpochTimes) -> str:
        return f"{self._until(row, epoch_times)}, or earlier if others displace it"

    def status(self, row: StoredRow, epoch_times: EpochTimes) -> RowStatus:
        if row.flagged:
            words = f"{counted(self.kind.rows or 0, 'row')} of its key and window precede it"
        elif self.kind.rows is None:
            words = f"waits for its window; goes when {self._until(accepted(row), epoch_times)}"
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
