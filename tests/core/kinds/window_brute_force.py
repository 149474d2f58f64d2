"""What window joins put out, by nested loops over rows: the measure of the kernels. Written from rules W1-W4."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from core.kinds.window_steps import PRESERVED, Joined, Row
from joinery_devkit.oracle.model import hopping_spans
from joinery_runtime.core.kinds.session_join import SessionWindowJoin
from joinery_runtime.core.kinds.window import WindowJoin
from joinery_runtime.core.pipeline.sides import SIDES

Rows = tuple[Sequence[Row], Sequence[Row]]
Window = tuple[int, int]


def joined(kind: str, differ: bool, window: Window, rows: Rows) -> Iterator[Joined]:
    """The rows of one window, of any keys: pairs, and preserved rows without a partner. `differ`: v must not be equal
    modulo 3, the tests' residual predicate."""
    met: tuple[set[int], set[int]] = (set(), set())
    for left in rows[0]:
        for right in rows[1]:
            if left.key == right.key and not (differ and left.v % 3 == right.v % 3):
                met[0].add(left.v)
                met[1].add(right.v)
                yield (left.v, right.v, *window)
    for side in SIDES:
        if PRESERVED[kind][side]:
            yield from (padded(side, row, window) for row in rows[side] if row.v not in met[side])


def padded(side: int, row: Row, window: Window) -> Joined:
    return (row.v, None, *window) if side == 0 else (None, row.v, *window)


@dataclass
class TumblingBruteForce:
    rule: WindowJoin
    kind: str
    differ: bool
    open: dict[Window, tuple[list[Row], list[Row]]] = field(default_factory=dict)
    late: list[int] = field(default_factory=lambda: [0, 0])

    def epoch(self, now: int, arrivals: Rows) -> Counter[Joined]:
        out: Counter[Joined] = Counter()
        for window in [w for w in self.open if w[1] <= now]:
            out.update(joined(self.kind, self.differ, window, self.open.pop(window)))
        self.late = [0, 0]
        for side in SIDES:
            for row in arrivals[side]:
                out.update(self._arrive(side, row, now))
        return out

    def _arrive(self, side: int, row: Row, now: int) -> Iterator[Joined]:
        if not row.joinable and not PRESERVED[self.kind][side]:
            return
        windows = [w for w in self._windows(row.ts) if w[1] > now]
        self.late[side] += not windows
        for window in windows:
            if row.joinable:
                self.open.setdefault(window, ([], []))[side].append(row)
            else:
                yield padded(side, row, window)

    def _windows(self, ts: int) -> list[Window]:
        windows = self.rule.windows
        return hopping_spans(windows.size, windows.every, windows.offset, windows.zone, ts)


@dataclass
class SessionBruteForce:
    rule: SessionWindowJoin
    kind: str
    differ: bool
    open: list[tuple[int, Row]] = field(default_factory=list)
    late: list[int] = field(default_factory=lambda: [0, 0])

    def epoch(self, now: int, arrivals: Rows) -> Counter[Joined]:
        out: Counter[Joined] = Counter()
        for session in self._closed(now):
            rows = ([row for side, row in session if side == 0], [row for side, row in session if side == 1])
            out.update(joined(self.kind, self.differ, (session[0][1].ts, session[-1][1].ts), rows))
        self.late = [0, 0]
        for side in SIDES:
            for row in arrivals[side]:
                out.update(self._arrive(side, row, now))
        for session in self._closed(now):
            for side, _ in session:
                self.late[side] += 1
        return out

    def _arrive(self, side: int, row: Row, now: int) -> Iterator[Joined]:
        if row.joinable:
            self.open.append((side, row))
        elif PRESERVED[self.kind][side]:
            if row.ts + self.rule.gap < now:
                self.late[side] += 1
            else:
                yield padded(side, row, (row.ts, row.ts))

    def _closed(self, now: int) -> list[list[tuple[int, Row]]]:
        """Takes the sessions that are over out of what is open."""
        over = [s for s in self._sessions() if s[-1][1].ts + self.rule.gap < now]
        closed = {(side, row.v) for session in over for side, row in session}
        self.open = [(side, row) for side, row in self.open if (side, row.v) not in closed]
        return over

    def _sessions(self) -> list[list[tuple[int, Row]]]:
        sessions: list[list[tuple[int, Row]]] = []
        for side, row in sorted(self.open, key=lambda r: (str(r[1].key), r[1].ts)):
            last = sessions[-1][-1][1] if sessions else None
            if last is not None and last.key == row.key and row.ts - last.ts <= self.rule.gap:
                sessions[-1].append((side, row))
            else:
                sessions.append([(side, row)])
        return sessions
