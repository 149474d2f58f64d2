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
        self._counts = [of.as_ for of in job.sessions.aggregates if of.function == "count"]
        self._rows: dict[Hashable, dict[str, Any]] = {}
        self._taken_back: set[Hashable] = set()

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
        self._taken_back.add(key)

    def _put(self, key: Hashable, row: dict[str, Any]) -> None:
        """Sessions only grow: a second one of one id that is no larger has lost rows, or says nothing new."""
        before = self._rows.get(key)
        for count in self._counts if before is not None else ():
            assert row[count] > before[count], f"{row} replaces {before}"
        assert key not in self._taken_back, f"{row} had been taken back"
        self._rows[key] = _values(row)

    def check_apart(self) -> None:
        """No two sessions of a group share a moment: for jobs that take back what they replace."""
        ordered = sorted(self.rows, key=lambda row: (str(self._group(row)), row["window_start"]))
        for one, other in pairwise(ordered):
            together = self._group(one) == self._group(other) and one["window_end"] >= other["window_start"]
            assert not together, f"{one} and {other} overlap"

    def compare(self, shape: SessionShape, arrivals: Iterable[Row]) -> None:
        """With all rows of a history at once."""
        told = differences(map(_values, sessions_at_once(shape, arrivals)), self.rows)
        assert not told, told

    def _group(self, row: dict[str, Any]) -> tuple[Hashable, ...]:
        return tuple(comparable(row[name]) for name in self._groups)


def _values(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "retracted"}
