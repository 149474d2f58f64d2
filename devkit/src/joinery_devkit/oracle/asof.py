"""The stream-table as-of step: A of semantics.md, row by row. No version is ever forgotten here; whether one still
counts is worked out anew for every row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from joinery_devkit.oracle.horizons import UNKNOWN, Time
from joinery_devkit.oracle.model import LEFT, RIGHT, AsOfRule, Step
from joinery_devkit.oracle.rows import Joined, Row, joined
from joinery_devkit.oracle.windows import time_of


@dataclass(slots=True)
class AsOfStep:
    """`stream` is the name of the left input. Times of both sides move by the rows of earlier epochs (A2, A3)."""

    step: Step
    stream: str
    rule: AsOfRule
    versions: list[Joined] = field(default_factory=list)
    waiting: list[Joined] = field(default_factory=list)
    stream_time: Time = UNKNOWN
    table_time: Time = UNKNOWN

    @property
    def table(self) -> str:
        return self.step.right

    @property
    def released(self) -> Time:
        """A stream row up to here goes out."""
        return self.stream_time - self.rule.grace if self.rule.grace else math.inf

    @property
    def expired(self) -> Time:
        """A version that was superseded up to here is gone."""
        return self.table_time - self.rule.retention

    def version_arrives(self, row: Joined) -> bool:
        """False: it is superseded beyond the horizon on arrival (A2)."""
        if self._superseded(row, self._of_key(self.step.key(RIGHT, row))):
            return False
        self.versions.append(row)
        return True

    def close(self) -> list[Joined]:
        """The waiting rows whose time has come."""
        ready = [row for row in self.waiting if time_of(row) <= self.released]
        self.waiting = [row for row in self.waiting if time_of(row) > self.released]
        return [found for row in sorted(ready, key=time_of) for found in self._result(row)]

    def arrive(self, rows: Iterable[Joined]) -> list[Joined]:
        """Stream rows: out at once, or kept until their time has come."""
        out: list[Joined] = []
        for row in rows:
            if self.step.why_unjoinable(LEFT, row) is not None:
                out += self._alone(row)  # O2
            elif time_of(row) <= self.released:
                out += self._result(row)
            else:
                self.waiting.append(row)
        return out

    def end_stream(self) -> None:
        """Nothing can come any more that a row would have to wait for (A4)."""
        self.stream_time = math.inf

    def settle(self, stream: Iterable[Row], table: Iterable[Row]) -> None:
        """What this epoch's rows imply counts from the next one on (T3)."""
        self.stream_time = max([self.stream_time, *(row.ts for row in stream)])
        self.table_time = max([self.table_time, *(row.ts for row in table)])

    def _result(self, row: Joined) -> list[Joined]:
        of_key = self._of_key(self.step.key(LEFT, row))
        # A1: of what is still there, the newest version that is not newer than the row.
        usable = [v for v in of_key if time_of(v) <= time_of(row) and not self._superseded(v, of_key)]
        version = max(usable, key=_age, default=None)
        if version is None or _input_row(version).deleted or not self.step.fits(row, version):
            return self._alone(row)
        return [joined(row, version)]

    def _alone(self, row: Joined) -> list[Joined]:
        return [joined(row, Joined({self.table: None}))] if self.step.preserved(LEFT) else []

    def _superseded(self, version: Joined, of_key: Sequence[Joined]) -> bool:
        """Whether a newer version of the key is beyond the horizon (A2)."""
        return any(_age(other) > _age(version) and time_of(other) <= self.expired for other in of_key)

    def _of_key(self, key: tuple[object, ...]) -> list[Joined]:
        return [version for version in self.versions if self.step.key(RIGHT, version) == key]


def _age(version: Joined) -> tuple[int, int]:
    """Orders versions: of two with one key and time the one with the higher offset counts (A1)."""
    row = _input_row(version)
    return row.ts, row.offset


def _input_row(row: Joined) -> Row:
    (only,) = row.rows.values()
    assert only is not None, "a row of an input is not padded"
    return only
