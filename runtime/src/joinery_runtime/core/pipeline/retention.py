"""When a stored row leaves the state: stated once per side of a step, as a value from which everything else follows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np


@dataclass(frozen=True, slots=True)
class AcceptedRow:
    """A row that the job has taken in. `times` (int64[n], ascending) are the event times of all rows of its key, on all
    sides. `newer` is the event time of the next row of its own side, if any."""

    side: int
    ts: int
    times: np.ndarray
    newer: int | None = None


class RowTime(ABC):
    """The time of a row that decides when the row leaves: its event time, the end of its last window, ..."""

    __slots__ = ()

    by_event_time: ClassVar[bool] = True
    """Whether it follows from the row's event time alone, without other rows of the key."""

    @abstractmethod
    def time_of(self, row: AcceptedRow) -> int | None:
        """Return this time of a row; None: not known yet."""

    @abstractmethod
    def event_time_at(self, time: int) -> int:
        """Return the event time before which rows have a time before `time`; may have, if other rows decide too."""


@dataclass(frozen=True, slots=True)
class EventTime(RowTime):
    """The event time of a row decides."""

    def time_of(self, row: AcceptedRow) -> int | None:
        return row.ts

    def event_time_at(self, time: int) -> int:
        return time


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a side keeps a row: until `time` of the row is before the horizon of the side's part or, if `inclusive`,
    at it. `rule` is the id of the rule in docs/semantics.md that says so. `kept_for_ms` is for how long in event time a
    row is kept, watermark delays aside (None: event time does not decide)."""

    time: RowTime
    rule: str
    kept_for_ms: int | None = None
    inclusive: bool = False

    def keep_from(self, horizon: int) -> int | None:
        """Return the event time before which rows leave under the horizon; None: other rows decide too."""
        return self.time.event_time_at(horizon + self.inclusive) if self.time.by_event_time else None

    def may_leave_before(self, horizon: int) -> int:
        """Return the event time before which rows may leave under the horizon."""
        return self.time.event_time_at(horizon + self.inclusive)

    def has_ended(self, row: AcceptedRow, horizon: int | None) -> bool:
        """Tell whether the row leaves under the horizon."""
        time = self.time.time_of(row)
        return horizon is not None and time is not None and time < horizon + self.inclusive
