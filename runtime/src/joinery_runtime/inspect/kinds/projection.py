"""What is said about records that are emitted each by itself (rules P1 to P3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from joinery_runtime.core.kinds.projection import RecordProjection
from joinery_runtime.core.pipeline.spec import AcceptedRow
from joinery_runtime.core.pipeline.step import Horizons
from joinery_runtime.inspect.kinds.base import EntryView, EpochTimes, StepDescription, StoredRows, ToJson


class ProjectionDescription(StepDescription[RecordProjection]):
    """See P1: no row is kept."""

    __slots__ = ()

    describes: ClassVar[type[RecordProjection]] = RecordProjection

    def entries(self, stored: Sequence[StoredRows], epoch_times: EpochTimes, to_json: ToJson) -> Sequence[EntryView]:
        return ()

    def next_epoch_text(self, side: int, horizons: Horizons) -> str:
        return "keeps no rows"

    def is_evicted(self, row: AcceptedRow, epoch_times: EpochTimes) -> bool:
        return True

    def eviction_condition(self, row: AcceptedRow, epoch_times: EpochTimes) -> str:
        return "a row is emitted by the epoch that reads its record"
