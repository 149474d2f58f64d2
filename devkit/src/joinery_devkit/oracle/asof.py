"""The stream-table as-of step: section A of semantics.md, row by row. No version is ever forgotten here; whether one
still counts is computed again for every row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from joinery_devkit.oracle.horizons import UNKNOWN, Time
from joinery_devkit.oracle.model import LEFT, RIGHT, AsOfRule, Step
from joinery_devkit.oracle.rows import Forget, Joined, Row, joined


@dataclass(slots=True)
class AsOfStep:
    """One as-of step. `stream` is the input at whose time a left row asks. In this epoch rows have waited up to
    `waited` (A3), versions that were superseded up to `expired` are gone (A2), and the table has `reached` a time
    (A4)."""

    step: Step
    stream: str
    rule: AsOfRule
    versions: list[Joined] = field(default_factory=list)
    waiting: list[Joined] = field(default_factory=list)
    waited: Time = UNKNOWN
    expired: Time = UNKNOWN
    reached: Time = math.inf

    def edit(self, step: Step, rule: AsOfRule, forget: Forget) -> None:
        """Continue the step with another condition, retention or grace."""
        self.step, self.rule = step, rule
        self.waiting = [forget(LEFT, row) for row in self.waiting]
        self.versions = [forget(RIGHT, version) for version in self.versions]

    def begin(self, waited: Time, expired: Time, reached: Time) -> None:
        """Begin an epoch with these times."""
        self.waited, self.expired, self.reached = waited, expired, reached

    def asked_from(self, until: Time) -> Time:
        """Return the time of the first waiting row up to `until`."""
        return min((time for time in map(self._time, self.waiting) if time <= until), default=math.inf)

    @property
    def at_once(self) -> Time:
        """Stream rows up to this time are emitted when they arrive."""
        return self.waited if self.rule.grace else max(self.waited, self.reached)

    def version_arrives(self, row: Joined) -> bool:
        """Add a version; return False if on arrival it is already superseded beyond the horizon (A2)."""
        if self._superseded(row, self._of_key(self.step.key(RIGHT, row))):
            return False
        self.versions.append(row)
        return True

    def close(self) -> list[Joined]:
        """Return the results of waiting rows whose time has come."""
        ready = [row for row in self.waiting if self._time(row) <= self.waited]
        self.waiting = [row for row in self.waiting if self._time(row) > self.waited]
        return [joined_row for row in sorted(ready, key=self._time) for joined_row in self._result(row)]

    def arrive(self, rows: Iterable[Joined]) -> list[Joined]:
        """Take stream rows: they are emitted at once, or wait until their time has come."""
        out: list[Joined] = []
        for row in rows:
            if row.time(self.stream) is None or self.step.why_unjoinable(LEFT, row) is not None:
                out += self._padded(row)  # O2, N4
            elif self._time(row) <= self.at_once:
                out += self._result(row)
            else:
                self.waiting.append(row)
        return out

    def _result(self, row: Joined) -> list[Joined]:
        of_key = self._of_key(self.step.key(LEFT, row))
        # A1: of the versions still there, the newest one that is not newer than the row.
        usable = [v for v in of_key if _input_row(v).ts <= self._time(row) and not self._superseded(v, of_key)]
        version = max(usable, key=_age, default=None)
        if version is None or _input_row(version).deleted or not self.step.fits(row, version):
            return self._padded(row)
        return [joined(row, version)]

    def _padded(self, row: Joined) -> list[Joined]:
        return [joined(row, Joined({self.step.right: None}))] if self.step.preserved(LEFT) else []

    def _time(self, row: Joined) -> int:
        time = row.time(self.stream)
        assert time is not None, "a row without a time is not looked up (N4)"
        return time

    def _superseded(self, version: Joined, of_key: Sequence[Joined]) -> bool:
        """Whether a newer version of the key is beyond the horizon (A2)."""
        return any(_age(other) > _age(version) and _input_row(other).ts <= self.expired for other in of_key)

    def _of_key(self, key: tuple[object, ...]) -> list[Joined]:
        return [version for version in self.versions if self.step.key(RIGHT, version) == key]


def _age(version: Joined) -> tuple[int, int]:
    """Return a sort key for versions: of two with the same key and time, the one with the higher offset counts (A1)."""
    row = _input_row(version)
    return row.ts, row.offset


def _input_row(row: Joined) -> Row:
    (only,) = row.rows.values()
    assert only is not None, "a row of an input is not padded"
    return only
