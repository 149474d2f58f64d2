"""What time means to a pipeline: which rows are late, how far each part of the state is closed, and what a step hands
on as watermarks to the next one (docs/architecture.md, "Horizons").

Everything here follows from the inputs' watermarks and the durations of the steps alone (N3), so it is the same in all
shards and after a restart. Times are event-time milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joinery_runtime.core.kinds import windows
from joinery_runtime.core.pipeline.spec import (
    COMPLETE,
    END_OF_TIME,
    LEFT,
    RIGHT,
    SESSIONS,
    AsOf,
    Interval,
    Pipeline,
    SessionGap,
    SessionWindow,
    StepSpec,
    TumblingWindow,
    Watermark,
    clamp,
    earlier,
)
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.table.segment import SegmentMeta


@dataclass(frozen=True, slots=True)
class InputTime:
    """An input's watermark in an epoch's plan, and the highest event time that earlier epochs have read of it."""

    watermark: Watermark = None
    highest: int | None = None


Times = Mapping[str, InputTime]
Horizons = Mapping[str, Horizon]  # by part, and COMPLETE
Floors = Mapping[str, int]  # by part: the horizons of the last committed epoch
Lows = Mapping[str, Watermark]  # by input: the lowest event time that may still come


# --- lateness ---------------------------------------------------------------------------------------------------------


def accept_from(step: StepSpec, watermarks: Mapping[str, Watermark]) -> tuple[int | None, ...]:
    """Per side, the lowest event time of an arriving record that is not late (J6, J7, S4); None where nothing is late.
    Rows of the step before never are (N2), and windows of joins judge by their horizons."""
    rule = step.rule
    if isinstance(rule, SessionWindow):
        watermark = watermarks[step.sides[0].time]
        return (earlier(watermark, rule.allowed_lateness) if rule.drop_late else None,)
    if not isinstance(rule, Interval) or not rule.drop_late:
        return None, None
    left, right = step.sides
    own = (None if left.intake.chained else watermarks[left.time], watermarks[right.time])
    if rule.lenient:
        return _lenient(rule, own)
    return earlier(own[LEFT], rule.allowed_lateness), earlier(own[RIGHT], rule.allowed_lateness)


def _lenient(rule: Interval, own: tuple[Watermark, Watermark]) -> tuple[int | None, int | None]:
    left, right = own
    if left is None or right is None:
        return None, None
    reach = max(rule.upper, -rule.lower)
    lowest = clamp(min(left, right) - reach - rule.allowed_lateness)
    return lowest, lowest


# --- horizons ---------------------------------------------------------------------------------------------------------


def horizons(pipeline: Pipeline, times: Times, floors: Floors) -> dict[str, Horizon]:
    """Every part's horizon in the epoch whose plan has these times, after epochs that closed up to `floors`."""
    found: dict[str, Horizon] = {}
    lows: Lows = {}
    for step in pipeline.steps:
        lows = {**lows, **_lows(step, times)}
        for name, now in _horizons(step, times, lows).items():
            found[name] = _risen(floors.get(name), now)
        lows = _handed_on(pipeline, step, lows, found)
    return found


def settled(pipeline: Pipeline, times: Times, floors: Floors) -> dict[str, Horizon]:
    """The horizons that are reached in the end, when follow-up epochs have closed all that these times close."""
    reached = dict(floors)
    found: Horizons = {}
    for _ in pipeline.steps:
        found = horizons(pipeline, times, reached)
        reached |= floors_after(found)
    return {name: Horizon(floors.get(name), reached.get(name)) for name in found}


def floors_after(found: Horizons) -> dict[str, int]:
    return {part: horizon.now for part, horizon in found.items() if horizon.now is not None}


def watermarks_out(pipeline: Pipeline, times: Times, floors: Floors) -> list[Lows]:
    """What each step hands on, per input (N3), once everything has been closed that can be."""
    reached = settled(pipeline, times, floors)
    final = {part: Horizon(horizon.now, horizon.now) for part, horizon in reached.items()}
    handed_on: list[Lows] = []
    lows: Lows = {}
    for step in pipeline.steps:
        lows = _handed_on(pipeline, step, {**lows, **_lows(step, times)}, final)
        handed_on.append(lows)
    return handed_on


def _lows(step: StepSpec, times: Times) -> Lows:
    """Of the inputs that this step reads: the lowest event time that may still come, late rows apart."""
    late = step.rule.allowed_lateness if not isinstance(step.rule, AsOf) else 0
    read = [side.time for side in step.sides if not side.intake.chained]
    return {name: earlier(times[name].watermark, late) for name in read}


def _horizons(step: StepSpec, times: Times, lows: Lows) -> dict[str, int | None]:
    if isinstance(step.rule, SessionWindow):
        return _session_horizons(step.rule, times[step.sides[0].time].watermark)
    left, right = step.sides
    now = _join_horizons(step, times, (lows[left.time], lows[right.time]))
    return {left.part: now[LEFT], right.part: now[RIGHT]}


def _session_horizons(rule: SessionWindow, watermark: Watermark) -> dict[str, int | None]:
    """S4, S5: sessions whose last row is before them are not kept any more, and have gone out."""
    complete = earlier(watermark, rule.gap)
    evicted = earlier(complete, rule.allowed_lateness)
    return {SESSIONS: evicted, COMPLETE: evicted if rule.drop_late else complete}


def _join_horizons(step: StepSpec, times: Times, lows: tuple[Watermark, Watermark]) -> tuple[int | None, int | None]:
    left, right = lows
    match step.rule:
        case Interval() as rule:
            return earlier(right, rule.upper), earlier(left, -rule.lower)
        case AsOf() as rule:
            stream, table = (times[side.time] for side in step.sides)
            return _over(stream, rule.grace), earlier(table.highest, rule.history_retention)
        case _:
            both = None if left is None or right is None else min(left, right)
            return both, both


def _over(stream: InputTime, grace: int) -> int | None:
    """Up to where rows have waited long enough (A3). The end releases them all (A4), but a table that has ended forgets
    nothing: its time stays where its last row was (A2)."""
    return END_OF_TIME if stream.watermark == END_OF_TIME else earlier(stream.highest, grace)


def _risen(floor: int | None, now: int | None) -> Horizon:
    if now is None or (floor is not None and floor > now):
        return Horizon(floor, floor)
    return Horizon(floor, now)


def _handed_on(pipeline: Pipeline, step: StepSpec, lows: Lows, found: Horizons) -> Lows:
    """N3: for each time, the lower of what may still come in and what may still go out from the state."""
    if not isinstance(step.rule, Interval):
        return lows
    left, right = step.sides
    kept = {left.time: _may_go_out(step, LEFT, found), right.time: _may_go_out(step, RIGHT, found)}
    for name in left.inputs:
        if name != left.time:
            kept[name] = earlier(kept[left.time], -_lower_bound(pipeline, name, left.time))
    return {name: _lower(lows[name], kept[name]) for name in kept}


def _may_go_out(step: StepSpec, side: int, found: Horizons) -> Watermark:
    """The lowest event time of a kept row of this side that this epoch, or a later one, may let out: a preserved row
    does when it is closed."""
    spec = step.sides[side]
    horizon = found[spec.part]
    return horizon.before if spec.preserved else horizon.now


def _lower(a: Watermark, b: Watermark) -> Watermark:
    return None if a is None or b is None else min(a, b)


def _lower_bound(pipeline: Pipeline, name: str, other: str) -> int:
    """The c of `name.ts >= other.ts + c`, added up over the bounds that lead from one to the other (N2). Every step
    links one new input to one before it, so there is one way."""
    links: dict[str, list[tuple[str, int]]] = {}
    for step in pipeline.steps:
        rule = step.rule
        assert isinstance(rule, Interval), "a chain has interval steps only"
        left, right = (side.time for side in step.sides)
        links.setdefault(left, []).append((right, rule.lower))
        links.setdefault(right, []).append((left, -rule.upper))
    return _along(links, other, name, set())


def _along(links: Mapping[str, list[tuple[str, int]]], start: str, goal: str, seen: set[str]) -> int:
    total = _find(links, start, goal, seen)
    assert total is not None, f"a chain of bounds leads from {start} to {goal}"
    return total


def _find(links: Mapping[str, list[tuple[str, int]]], start: str, goal: str, seen: set[str]) -> int | None:
    if start == goal:
        return 0
    for name, least in links[start]:
        if name not in seen:
            rest = _find(links, name, goal, seen | {start})
            if rest is not None:
                return least + rest
    return None


# --- what a horizon means to a segment, by its metadata ---------------------------------------------------------------


def needed(pipeline: Pipeline, meta: SegmentMeta, found: Horizons) -> bool:
    """Whether the epoch's tasks have to see the segment: it may hold a row that is kept, or one that is closed."""
    step, side = pipeline.side(meta.part)
    spec, horizon = step.sides[side], found[step.sides[side].part]
    match step.rule:
        case Interval():
            since = horizon.before if spec.preserved else horizon.now
            return since is None or meta.ts_max >= since
        case TumblingWindow() as rule:
            return horizon.before is None or meta.ts_max >= windows.keep_from(rule, horizon.before)
        case AsOf() if side == LEFT:
            return horizon.before is None or meta.ts_max > horizon.before
        case SessionWindow():
            return horizon.before is None or meta.ts_max >= horizon.before
        case _:
            return True


def expired(pipeline: Pipeline, meta: SegmentMeta, found: Horizons) -> bool:
    """Whether no row of the segment is kept after the epoch: it is dropped without being read."""
    step, side = pipeline.side(meta.part)
    now = found[step.sides[side].part].now
    if now is None:
        return False
    match step.rule:
        case Interval() | SessionWindow():
            return meta.ts_max < now
        case TumblingWindow() as rule:
            return meta.ts_max < windows.keep_from(rule, now)
        case AsOf():
            return side == LEFT and meta.ts_max <= now
        case SessionGap():
            return False


def closes(pipeline: Pipeline, meta: SegmentMeta, found: Horizons) -> bool:
    """Whether the epoch may emit rows of the segment although nothing arrives (T3)."""
    step, side = pipeline.side(meta.part)
    spec = step.sides[side]
    horizon = found[COMPLETE if isinstance(step.rule, SessionWindow) else spec.part]
    if horizon.now is None or horizon.now == horizon.before or meta.part == spec.marks_part:
        return False
    match step.rule:
        case SessionWindow():
            # What ends before the horizon of the last epoch has gone out, and may be kept for a long time (S5).
            return meta.ts_min < horizon.now and (horizon.before is None or meta.ts_max >= horizon.before)
        case Interval():
            return spec.preserved and meta.ts_min < horizon.now and needed(pipeline, meta, found)
        case TumblingWindow() | SessionGap() as rule:
            return windows.closes(rule, meta.ts_min, meta.ts_max, horizon)
        case AsOf():
            return side == LEFT and meta.ts_min <= horizon.now and needed(pipeline, meta, found)


def kept_for_ms(step: StepSpec, side: int) -> int | None:
    """For how long of event time a row is kept, apart from watermark delays; None: no event time ends it."""
    match step.rule:
        case Interval() as rule:
            return max(0, rule.partner_bounds(side)[1] + rule.allowed_lateness)
        case TumblingWindow() as rule:
            return rule.size + rule.allowed_lateness
        case SessionGap():
            return None  # a session may go on for ever
        case AsOf() as rule:
            return rule.grace if side == LEFT else None
        case SessionWindow():
            return None  # its rows are replaced, which no event time tells
