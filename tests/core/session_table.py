"""What a reader of the output has: rows by group and session_id, replaced and taken back as they come."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from joinery_devkit.oracle import Row, SessionShape, differences, sessions_at_once
from joinery_devkit.oracle.rows import comparable
from joinery_runtime.job import SessionWindow


class UpsertTable:
    """S6's upserts. Raises AssertionError for rows that no reader can make sense of."""

    def __init__(self, job: SessionWindow) -> None:
        self._groups = job.sessions.group_by
        self._counts = [aggregate.as_ for aggregate in job.sessions.aggregates if aggregate.function == "count"]
        self._rows: dict[Hashable, dict[str, Any]] = {}
        self._taken_back: dict[Hashable, dict[str, Any]] = {}
        self._forgotten: set[Hashable] = set()

    @property
    def rows(self) -> Sequence[dict[str, Any]]:
        return list(self._rows.values())

    def apply(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            key = (*self._group(row), row["session_id"])
            if row.get("retracted"):
                self._take_back(key, row)
            else:
                self._put(key, row)

    def _take_back(self, key: Hashable, row: dict[str, Any]) -> None:
        before = self._rows.pop(key, None)
        assert before is not None, f"{row} takes back what is not there"
        assert not differences([before], [_values(row)]), f"{row} takes back another row than {before}"
        self._taken_back[key] = before

    def _put(self, key: Hashable, row: dict[str, Any]) -> None:
        """Sessions only grow: a second one of one id that is no larger has lost rows, or says nothing new."""
        before = self._rows.get(key)
        for count in self._counts if before is not None else ():
            assert row[count] > before[count], f"{row} replaces {before}"
        assert key not in self._taken_back, f"{row} had been taken back"
        self._rows[key] = _values(row)

    def check_apart(self) -> None:
        """No two sessions of a group in the state share a moment: for jobs that take back what they replace."""
        remembered = [row for key, row in self._rows.items() if key not in self._forgotten]
        ordered = sorted(remembered, key=lambda row: (str(self._group(row)), row["window_start"]))
        for one, other in pairwise(ordered):
            together = self._group(one) == self._group(other) and one["window_end"] >= other["window_start"]
            assert not together, f"{one} and {other} overlap"

    def forget(self, last: int | None) -> None:
        """Sessions that ended before `last` have left the state. One that is there, and takes late rows, may come to
        share a moment with such a session, and may get a start that was replaced inside it (S5)."""
        if last is None:
            return
        self._forgotten |= {key for key, row in self._rows.items() if row["window_end"] < last}
        remembered = [row for key, row in self._rows.items() if key not in self._forgotten]
        self._taken_back = {
            key: old for key, old in self._taken_back.items() if any(self._holds(row, old) for row in remembered)
        }

    def _holds(self, row: dict[str, Any], other: dict[str, Any]) -> bool:
        same = self._group(row) == self._group(other)
        return same and row["window_start"] <= other["window_start"] <= row["window_end"]

    def compare(self, shape: SessionShape, arrivals: Iterable[Row]) -> None:
        """With all rows of a history at once."""
        difference = differences(map(_values, sessions_at_once(shape, arrivals)), self.rows)
        assert not difference, difference

    def _group(self, row: dict[str, Any]) -> tuple[Hashable, ...]:
        return tuple(comparable(row[name]) for name in self._groups)


def _values(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "retracted"}
