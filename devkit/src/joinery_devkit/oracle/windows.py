"""Window steps: section W of semantics.md, row by row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from joinery_devkit.oracle.horizons import UNKNOWN, Time
from joinery_devkit.oracle.model import LEFT, RIGHT, SessionRule, Step, WindowRule
from joinery_devkit.oracle.rows import Forget, Joined, Window, joined

Sides = tuple[list[Joined], list[Joined]]


class WindowStep(Protocol):
    """A window step. `closed` is the least watermark minus allowedLateness. Its sides are named by numbers."""

    def edit(self, step: Step, forget: Forget) -> None:
        """Continue the step with another condition, or a side that is no longer preserved."""

    def close(self, closed: Time) -> list[Joined]:
        """Return the results of the windows that close now."""

    def windows_of(self, side: int, row: Joined) -> list[Window]:
        """Return the windows of a row that meets no other row."""

    def is_closed(self, window: Window, closed: Time) -> bool: ...

    def arrive(self, rows: Sides, closed: Time) -> tuple[int, int]:
        """Keep an epoch's joinable rows; return how many of each side are late (W2)."""


def time_of(step: Step, names: Sequence[str], side: int, row: Joined) -> int:
    """Return the event time of a row of a side. `names` are the inputs that are joined so far, in order."""
    ts = row.time(step.right if side == RIGHT else step.left_input or names[0])
    assert ts is not None, "no step before has padded the input whose time counts (W6)"
    return ts


def unmatched(step: Step, names: Sequence[str], side: int, row: Joined, window: Window) -> Joined:
    """Return the row as it is emitted without a partner: padded (W3), or alone by an anti join (E3)."""
    if not step.emits_right:
        return replace(row, window=window)
    absent = Joined(dict.fromkeys(name for name in names if name not in row.rows))
    return joined(row, absent, window) if side == LEFT else joined(absent, row, window)


def results(step: Step, names: Sequence[str], rows: Sides, window: Window) -> Iterator[Joined]:
    """Yield the results of one window (W1, W3): every pair, and preserved rows without a partner; of a semi join the
    left rows with one (E2)."""
    matched: set[int] = set()
    for left in rows[LEFT]:
        for right in rows[RIGHT]:
            if step.fits(left, right):
                matched |= {id(left), id(right)}
                if step.emits_right:
                    yield joined(left, right, window)
    if step.type == "semi":
        yield from (replace(row, window=window) for row in rows[LEFT] if id(row) in matched)
    for side in (LEFT, RIGHT):
        if step.preserved(side):
            yield from (unmatched(step, names, side, row, window) for row in rows[side] if id(row) not in matched)


@dataclass(slots=True)
class FixedWindows:
    """Tumbling and hopping windows."""

    step: Step
    names: Sequence[str]
    rule: WindowRule
    buffered: Sides = field(default_factory=lambda: ([], []))
    closed: Time = UNKNOWN

    def edit(self, step: Step, forget: Forget) -> None:
        self.step, self.buffered = step, _forgetting(self.buffered, forget)

    def close(self, closed: Time) -> list[Joined]:
        before, self.closed = self.closed, closed
        closing: dict[tuple[Window, Any], Sides] = defaultdict(lambda: ([], []))
        for side, rows in enumerate(self.buffered):
            for row in rows:
                for window in self.windows_of(side, row):
                    if before < window[1] <= closed:
                        closing[window, self.step.key(side, row)][side].append(row)
            rows[:] = [row for row in rows if any(window[1] > closed for window in self.windows_of(side, row))]
        return [row for (window, _), sides in closing.items() for row in results(self.step, self.names, sides, window)]

    def windows_of(self, side: int, row: Joined) -> list[Window]:
        if side == LEFT and self.step.one_window:
            assert row.window is not None, "no step in between pads the window (W6)"
            return [row.window]
        return self.rule.spans(time_of(self.step, self.names, side, row))

    def is_closed(self, window: Window, closed: Time) -> bool:
        return window[1] <= closed

    def arrive(self, rows: Sides, closed: Time) -> tuple[int, int]:
        late = [0, 0]
        for side, listed in enumerate(rows):
            for row in listed:
                if all(self.is_closed(window, closed) for window in self.windows_of(side, row)):
                    late[side] += 1
                else:
                    self.buffered[side].append(row)
        return late[LEFT], late[RIGHT]


@dataclass(slots=True)
class SessionWindows:
    """Sessions that the joinable rows of both sides form together, per key. The rows of an epoch arrive together: a row
    that would be late by itself is not if they, or buffered rows, connect it to an open session."""

    step: Step
    names: Sequence[str]
    rule: SessionRule
    buffered: Sides = field(default_factory=lambda: ([], []))

    def edit(self, step: Step, forget: Forget) -> None:
        self.step, self.buffered = step, _forgetting(self.buffered, forget)

    def close(self, closed: Time) -> list[Joined]:
        out: list[Joined] = []
        open_rows: Sides = ([], [])
        for window, sides in self._sessions(self.buffered):
            if self.is_closed(window, closed):
                out += results(self.step, self.names, sides, window)
            else:
                _add(open_rows, sides)
        self.buffered = open_rows
        return out

    def windows_of(self, side: int, row: Joined) -> list[Window]:
        return [(self._time(side, row),) * 2]

    def is_closed(self, window: Window, closed: Time) -> bool:
        return window[1] + self.rule.gap < closed

    def arrive(self, rows: Sides, closed: Time) -> tuple[int, int]:
        both: Sides = ([], [])
        _add(both, self.buffered)
        _add(both, rows)
        self.buffered = ([], [])
        late = [0, 0]
        for window, sides in self._sessions(both):
            if self.is_closed(window, closed):
                late = [count + len(listed) for count, listed in zip(late, sides, strict=True)]
            else:
                _add(self.buffered, sides)
        return late[LEFT], late[RIGHT]

    def _sessions(self, rows: Sides) -> Iterator[tuple[Window, Sides]]:
        """Group the rows of each key into sessions: rows at a distance <= gap belong together (S1)."""
        by_key: dict[Any, list[tuple[int, Joined]]] = defaultdict(list)
        for side, side_rows in enumerate(rows):
            for row in side_rows:
                by_key[self.step.key(side, row)].append((side, row))
        for listed in by_key.values():
            ordered = sorted(listed, key=lambda pair: self._time(*pair))
            session = ordered[:1]
            for side, row in ordered[1:]:
                if self._time(side, row) - self._time(*session[-1]) > self.rule.gap:
                    yield self._session(session)
                    session = []
                session.append((side, row))
            yield self._session(session)

    def _session(self, rows: Sequence[tuple[int, Joined]]) -> tuple[Window, Sides]:
        times = [self._time(side, row) for side, row in rows]
        left, right = ([row for at, row in rows if at == side] for side in (LEFT, RIGHT))
        return (min(times), max(times)), (left, right)

    def _time(self, side: int, row: Joined) -> int:
        return time_of(self.step, self.names, side, row)


def _forgetting(rows: Sides, forget: Forget) -> Sides:
    return [forget(LEFT, row) for row in rows[LEFT]], [forget(RIGHT, row) for row in rows[RIGHT]]


def _add(to: Sides, more: tuple[Iterable[Joined], Iterable[Joined]]) -> None:
    for listed, added in zip(to, more, strict=True):
        listed.extend(added)
