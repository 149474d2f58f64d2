"""One interval step: sections J, O and rule N4 of semantics.md, row by row."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from joinery_devkit.oracle.horizons import Time, bound
from joinery_devkit.oracle.model import LEFT, RIGHT, Step
from joinery_devkit.oracle.rows import Forget, Joined, Row, joined

SIDES = (LEFT, RIGHT)


@dataclass(slots=True)
class KeptRow:
    """A kept row, its key in this step, and whether it has ever matched (O1)."""

    row: Joined
    time: int
    key: tuple[Hashable, ...]
    matched: bool = False


@dataclass(slots=True)
class IntervalStep:
    """One interval step. `left` are the inputs of the left side, in the job's order; `first` is the job's first
    input."""

    step: Step
    left: Sequence[str]
    first: str
    buffers: tuple[list[KeptRow], list[KeptRow]] = field(default_factory=lambda: ([], []))

    def edit(self, step: Step, forget: Forget) -> None:
        """Continue the step with other bounds, another condition, or a side that is no longer preserved."""
        self.step = step
        for side in SIDES:
            self.buffers[side][:] = [replace(waiting, row=forget(side, waiting.row)) for waiting in self.buffers[side]]

    def close(self, keep_from: tuple[Time, Time]) -> list[Joined]:
        """Drop rows past their deadline (T3, O1). Returns those to pad: rows of a preserved side that never
        matched."""
        out: list[Joined] = []
        for side in SIDES:
            expired = [waiting for waiting in self.buffers[side] if waiting.time < keep_from[side]]
            self.buffers[side][:] = [waiting for waiting in self.buffers[side] if waiting.time >= keep_from[side]]
            if self.step.preserved(side):
                out += [self.padded(side, waiting.row) for waiting in expired if not waiting.matched]
        return out

    def arrive(self, side: int, rows: Iterable[Joined], keep_from: tuple[Time, Time]) -> list[Joined]:
        """Take rows of one side that are neither late nor dropped, and return the joined rows."""
        out: list[Joined] = []
        for row in rows:
            time = row.time(self.time_of(side))
            if time is None or self.step.why_unjoinable(side, row) is not None:
                out += self._padded_if_preserved(side, row)  # J4 and O2, N4
                continue
            arrived = KeptRow(row, time, self.step.key(side, row))
            out += self._matches(side, arrived)
            if time >= keep_from[side]:
                self.buffers[side].append(arrived)
            elif not arrived.matched:
                out += self._padded_if_preserved(side, row)  # J5 and O2
        return out

    def _matches(self, side: int, arrived: KeptRow) -> list[Joined]:
        """Return the matches of a row among the kept rows of the other side (J1)."""
        lower, upper = bound(self.step)
        matches: list[Joined] = []
        for other in self.buffers[1 - side]:
            if other.key != arrived.key:  # first, because it rules out most rows
                continue
            left, right = (arrived, other) if side == LEFT else (other, arrived)
            if lower <= right.time - left.time <= upper and self.step.fits(left.row, right.row):
                first = not left.matched
                arrived.matched = other.matched = True
                if self.step.emits_right:
                    matches.append(joined(left.row, right.row))
                elif self.step.type == "semi" and first:
                    matches.append(left.row)  # E2
        return matches

    def time_of(self, side: int) -> str:
        """Return the input to whose time the bound refers on this side."""
        return self.step.left_input or self.first if side == LEFT else self.step.right

    def padded(self, side: int, row: Joined) -> Joined:
        if not self.step.emits_right:
            return row  # E3
        absent: dict[str, Row | None] = dict.fromkeys([self.step.right] if side == LEFT else self.left)
        return joined(row, Joined(absent)) if side == LEFT else joined(Joined(absent), row)

    def _padded_if_preserved(self, side: int, row: Joined) -> list[Joined]:
        return [self.padded(side, row)] if self.step.preserved(side) else []
