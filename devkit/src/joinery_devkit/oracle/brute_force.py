"""What a job emits over a whole history in which no row is late, by SQL's meaning of a join: all rows at once, without
epochs, watermarks or state. Where epochs are cut cannot change it (T9)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from joinery_devkit.oracle.model import LEFT, RIGHT, AsOfRule, IntervalRule, SessionRule, Step, WindowRule
from joinery_devkit.oracle.rows import Joined, Row, Window

Sides = tuple[list[Joined], list[Joined]]
Match = Callable[[Joined, Joined], Iterable[Window | None]]


def brute_force(inputs: Sequence[str], steps: Sequence[Step], rows: Mapping[str, Iterable[Row]]) -> list[Joined]:
    """All rows that the job emits. For an as-of step: as if the table had been read before the stream, and no version
    were ever forgotten."""
    left = [Joined({inputs[0]: row}) for row in rows[inputs[0]]]
    before = [inputs[0]]
    for step in steps:
        right = [Joined({step.right: row}) for row in rows[step.right]]
        left = step.filtered(_joined(step, before, (left, right)), defaultdict(Counter))
        before += [step.right] if step.emits_right else []
    return left


def _joined(step: Step, before: Sequence[str], sides: Sides) -> Iterator[Joined]:
    match step.rule:
        case IntervalRule():
            return _outer(step, before, sides, _interval(step, step.rule, step.left_input or before[0]), _no_window)
        case WindowRule():
            windows = _fixed(step, step.rule, before)
            return _outer(step, before, sides, lambda a, b: set(windows(a)) & set(windows(b)), windows)
        case SessionRule():
            sessions = _sessions(step, step.rule, before, sides)
            return _outer(step, before, sides, lambda a, b: {sessions(a)} & {sessions(b)}, lambda row: [sessions(row)])
        case AsOfRule():
            return _outer(step, before, sides, _newest(step, sides[RIGHT], step.left_input or before[0]), _no_window)


def _outer(
    step: Step, before: Sequence[str], sides: Sides, match: Match, windows: Callable[[Joined], Iterable[Window | None]]
) -> Iterator[Joined]:
    """Join, with padding of preserved rows. `match` yields the windows in which two rows meet, `windows` all windows
    of a row; None stands for a step without windows."""
    met: set[tuple[int, Window | None]] = set()
    for left in sides[LEFT]:
        for right in sides[RIGHT]:
            if _can(step, LEFT, left) and _can(step, RIGHT, right) and step.fits(left, right):
                for window in match(left, right):
                    if step.type == "semi" and (id(left), window) not in met:
                        yield Joined(left.rows, window or left.window)
                    met |= {(id(left), window), (id(right), window)}
                    if step.emits_right:
                        yield Joined({**left.rows, **right.rows}, window or left.window)
    absent = ({step.right: None}, dict.fromkeys(before))
    for side in (LEFT, RIGHT):
        for row in sides[side] if step.preserved(side) else ():
            for window in windows(row):
                if (id(row), window) not in met:
                    rows = {**row.rows, **(absent[side] if step.emits_right else {})}
                    by_name = {name: rows[name] for name in (*before, step.right) if name in rows}
                    yield Joined(by_name, window or row.window)


def _no_window(_: Joined) -> list[None]:
    return [None]


def _can(step: Step, side: int, row: Joined) -> bool:
    return step.why_unjoinable(side, row) is None


def _interval(step: Step, rule: IntervalRule, left_input: str) -> Match:
    def match(left: Joined, right: Joined) -> Iterator[None]:
        start, ts = left.time(left_input), right.time(step.right)
        if start is not None and ts is not None and start + rule.lower <= ts <= start + rule.upper:
            yield None

    return match


def _time(step: Step, before: Sequence[str], row: Joined) -> int:
    ts = row.time(step.right if step.right in row.rows else step.left_input or before[0])
    assert ts is not None, "no step before has padded the input whose time counts (W6)"
    return ts


def _fixed(step: Step, rule: WindowRule, before: Sequence[str]) -> Callable[[Joined], list[Window]]:
    def windows(row: Joined) -> list[Window]:
        if row.window is not None:  # of a step before (W5)
            return [row.window]
        return rule.spans(_time(step, before, row))

    return windows


def _sessions(step: Step, rule: SessionRule, before: Sequence[str], sides: Sides) -> Callable[[Joined], Window]:
    """Return a function that grows a session from a row until nothing more is within the gap of its ends."""
    joinable = [
        (step.key(side, row), _time(step, before, row))
        for side in (LEFT, RIGHT)
        for row in sides[side]
        if _can(step, side, row)
    ]
    right_side = {id(row) for row in sides[RIGHT]}

    def session(row: Joined) -> Window:
        side, ts = (RIGHT if id(row) in right_side else LEFT), _time(step, before, row)
        first = last = ts
        if not _can(step, side, row):
            return ts, ts
        times = [at for key, at in joinable if key == step.key(side, row)]
        while near := [at for at in times if first - rule.gap <= at < first or last < at <= last + rule.gap]:
            first, last = min(first, *near), max(last, *near)
        return first, last

    return session


def _newest(step: Step, versions: Sequence[Joined], left_input: str) -> Match:
    def match(left: Joined, right: Joined) -> Iterator[None]:
        key, at = step.key(LEFT, left), left.time(left_input)
        if at is None:
            return
        same_key = [_only(v) for v in versions if _can(step, RIGHT, v) and step.key(RIGHT, v) == key]
        newest = max((v for v in same_key if v.ts <= at), key=lambda v: (v.ts, v.offset), default=None)
        if newest is _only(right) and not newest.deleted:
            yield None

    return match


def _only(row: Joined) -> Row:
    (only,) = row.rows.values()
    assert only is not None, "a row of an input is not padded"
    return only
