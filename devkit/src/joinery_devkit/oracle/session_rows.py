"""The inputs and outputs of sessions as plain values, and the sessions of a whole history at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from joinery_devkit.oracle.aggregates import Sketch, aggregate_rows, exact
from joinery_devkit.oracle.rows import Row, Values, comparable
from joinery_runtime.job import SessionWindow

Identify = Callable[[Sequence[Any]], int]
"""The hash (V1) of the group's values and the start of the session."""
Output = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Arrived:
    """A row that belongs to a session: `position` is its arrival (epoch, partition, offset), `values` are its columns,
    including computed ones."""

    ts: int
    position: tuple[int, int, int]
    values: Values


@dataclass(frozen=True)
class SessionShape:
    """What a job's rows and sessions look like. `where` and `computed` are its expressions in Python, on a row's
    columns; `conditions` are those of its aggregates, by their text; `having` is on what `output` gives."""

    job: SessionWindow
    identify: Identify
    where: Callable[[Values], bool | None] | None = None
    computed: Mapping[str, Callable[[Values], Any]] = field(default_factory=dict)
    sketch: Sketch = exact
    conditions: Mapping[str, Callable[[Values], bool | None]] = field(default_factory=dict)
    having: Callable[[Values], bool | None] | None = None

    @property
    def retracts(self) -> bool:
        return self.job.spec.emit_retractions

    def passes(self, values: Values) -> bool:
        return self.where is None or self.where(values) is True

    def is_emitted(self, row: Output) -> bool:
        """Whether a session's row meets `having` (G7)."""
        return self.having is None or self.having(row) is True

    def arrived(self, row: Row, epoch: int) -> Arrived:
        values = {**row.values, **{name: compute(row.values) for name, compute in self.computed.items()}}
        return Arrived(row.ts, (epoch, row.partition, row.offset), values)

    def group(self, row: Arrived) -> Values:
        return {name: row.values[name] for name in self.job.sessions.group_by}

    def key(self, row: Arrived) -> Hashable:
        """The group's key: NULL is a group like any other, and so is NaN (S1)."""
        return tuple(comparable(value) for value in self.group(row).values())

    def output(self, rows: Iterable[Arrived]) -> Output:
        """A session's row (S6), with its aggregates (S7)."""
        ordered = sorted(rows, key=lambda row: (row.ts, row.position))
        group, start = self.group(ordered[0]), ordered[0].ts
        return {
            **group,
            "window_start": start,
            "window_end": ordered[-1].ts,
            "session_id": self.identify([*group.values(), start]),
            **self._aggregates(ordered),
            **({"retracted": False} if self.retracts else {}),
        }

    def _aggregates(self, rows: Sequence[Arrived]) -> Output:
        types = self.job.spec.input.types
        values = [row.values for row in rows]
        return {
            spec.as_: aggregate_rows(spec, values, types.get(spec.column or ""), self.sketch, self.conditions)
            for spec in self.job.sessions.aggregates
        }


def sessions_at_once(shape: SessionShape, rows: Iterable[Row]) -> list[Output]:
    """The sessions at the end of a whole history in which no row is late and no session reaches the cap: all rows
    sorted, and cut where they are further apart than the gap. Where epochs are cut cannot change this (T9)."""
    groups: dict[Hashable, list[list[Arrived]]] = defaultdict(list)
    arrived = [shape.arrived(row, 0) for row in rows if shape.passes(row.values)]
    for row in sorted(arrived, key=lambda row: (row.ts, row.position)):
        sessions = groups[shape.key(row)]
        if not sessions or row.ts - sessions[-1][-1].ts > shape.job.sessions.gap:
            sessions.append([])
        sessions[-1].append(row)
    rows_of_sessions = (shape.output(session) for sessions in groups.values() for session in sessions)
    return [row for row in rows_of_sessions if shape.is_emitted(row)]
