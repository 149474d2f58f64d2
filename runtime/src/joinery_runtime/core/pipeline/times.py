"""Horizons and watermarks of a pipeline: how far each part of the state is closed, and which watermarks a step hands on
to the next one (docs/architecture.md, "Horizons").

Everything here follows from the inputs' times and the durations of the steps alone (N3), so it is the same in all
shards and after a restart. Times are event-time milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from joinery_runtime.core.pipeline.sides import LEFT, WINDOW_END
from joinery_runtime.core.pipeline.spec import Pipeline, StepSpec
from joinery_runtime.core.pipeline.step import Horizon, Horizons
from joinery_runtime.core.pipeline.watermark import OutputWatermarks, Times
from joinery_runtime.core.table.segment import SegmentMeta

Floors = Mapping[str, int]  # by part: the horizons of the last committed epoch


def horizons(pipeline: Pipeline, times: Times, floors: Floors) -> dict[str, Horizon]:
    """Every part's horizon in an epoch whose plan has these times, after earlier epochs closed up to `floors`."""
    horizons_by_part: dict[str, Horizon] = {}
    lows: OutputWatermarks = {}
    for step in pipeline.steps:
        lows = {**lows, **step.kind.lowest_times(step, times)}
        for name, now in step.kind.horizons(step, times, lows).items():
            floor = floors.get(name)  # a horizon never goes back
            horizons_by_part[name] = Horizon(floor, floor if now is None else max(now, now if floor is None else floor))
        lows = _output_watermarks(pipeline, step, lows, horizons_by_part)
    return horizons_by_part


def settled(pipeline: Pipeline, times: Times, floors: Floors) -> dict[str, Horizon]:
    """Return the horizons that are reached once follow-up epochs have closed everything that these times close."""
    reached = dict(floors)
    horizons_by_part: Horizons = {}
    for _ in pipeline.steps:
        horizons_by_part = horizons(pipeline, times, reached)
        reached |= floors_after(horizons_by_part)
    return {name: Horizon(floors.get(name), reached.get(name)) for name in horizons_by_part}


def floors_after(horizons_by_part: Horizons) -> dict[str, int]:
    return {part: horizon.current for part, horizon in horizons_by_part.items() if horizon.current is not None}


def watermarks_out(pipeline: Pipeline, times: Times, floors: Floors) -> list[OutputWatermarks]:
    """Return the watermarks that each step hands on per input (N3), once everything that can be closed is closed."""
    reached = settled(pipeline, times, floors)
    final = {part: Horizon(horizon.current, horizon.current) for part, horizon in reached.items()}
    output_watermarks: list[OutputWatermarks] = []
    lows: OutputWatermarks = {}
    for step in pipeline.steps:
        lows = _output_watermarks(pipeline, step, {**lows, **step.kind.lowest_times(step, times)}, final)
        output_watermarks.append({name: low for name, low in lows.items() if name != WINDOW_END})
    return output_watermarks


def watermarks_before(pipeline: Pipeline, step: StepSpec, times: Times, horizons_by_part: Horizons) -> OutputWatermarks:
    """Return what the step sees of each input's time in an epoch with these horizons: the watermark of an input that it
    reads, and of the others the one that the step before hands on (N3)."""
    lows: OutputWatermarks = {}
    for before in pipeline.steps[: step.number]:
        lows = {**lows, **before.kind.lowest_times(before, times)}
        lows = _output_watermarks(pipeline, before, lows, horizons_by_part)
    read = {side.time for side in step.sides if not side.intake.chained}
    return {name: times[name].watermark if name in read else lows.get(name) for name in times}


def _output_watermarks(
    pipeline: Pipeline, step: StepSpec, lows: OutputWatermarks, horizons_by_part: Horizons
) -> OutputWatermarks:
    return step.kind.output_watermarks(
        step, lows, horizons_by_part, lambda name, other: _lower_bound(pipeline, name, other)
    )


def _lower_bound(pipeline: Pipeline, name: str, other: str) -> int | None:
    """Return the c of `name.ts >= other.ts + c`, summed over the bounds that lead from `other` to `name` (N2). Every
    step links one new input to an earlier one, and a row's window to its left side, so there is one path at most; None:
    a step on it bounds nothing."""
    links: dict[str, list[tuple[str, int]]] = {}
    for step in pipeline.steps:
        if step.kind.bounds is not None:
            (left, right), (lower, upper) = (side.time for side in step.sides), step.kind.bounds
            links.setdefault(left, []).append((right, lower))
            links.setdefault(right, []).append((left, -upper))
        if step.kind.window_ends is not None:
            links.setdefault(step.sides[LEFT].time, []).append((WINDOW_END, step.kind.window_ends[0]))
    return _find(links, other, name, set())


def _find(links: Mapping[str, list[tuple[str, int]]], start: str, goal: str, seen: set[str]) -> int | None:
    if start == goal:
        return 0
    for name, least in links.get(start, ()):
        if name not in seen:
            rest = _find(links, name, goal, seen | {start})
            if rest is not None:
                return least + rest
    return None


# --- what a horizon means to a segment, by its metadata ---------------------------------------------------------------


def needed(pipeline: Pipeline, meta: SegmentMeta, horizons_by_part: Horizons) -> bool:
    """Whether the epoch's tasks have to read the segment: it may hold a row that is kept or that the epoch closes."""
    step, side = pipeline.side(meta.part)
    return step.kind.needs(step, side, meta, horizons_by_part[step.sides[side].part])


def expired(pipeline: Pipeline, meta: SegmentMeta, horizons_by_part: Horizons) -> bool:
    """Whether no row of the segment is kept after the epoch. Such a segment is dropped without being read."""
    step, side = pipeline.side(meta.part)
    return step.kind.expires(side, meta, horizons_by_part[step.sides[side].part].current)


def closes(pipeline: Pipeline, meta: SegmentMeta, horizons_by_part: Horizons) -> bool:
    """Whether rows of the segment may be emitted although nothing arrives (T3), with horizons that move so. A part
    whose horizon is missing is not closed at all."""
    step, side = pipeline.side(meta.part)
    spec = step.sides[side]
    horizon = horizons_by_part.get(spec.complete, horizons_by_part.get(spec.part, Horizon()))
    early = horizons_by_part.get(spec.early, Horizon())
    if meta.part == spec.part and early.current != early.previous:
        return True  # any row may have changed since the last early results (G8)
    if horizon.current is None or horizon.current == horizon.previous or meta.part == spec.flags_part:
        return False
    return step.kind.closes(step, side, meta, horizon)
