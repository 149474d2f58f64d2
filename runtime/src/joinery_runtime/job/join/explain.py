"""Explains what each step of a job does: what matches, how long each side is kept, what is late, what is capped."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from joinery_runtime.job.join.steps import JoinStep, part_names
from joinery_runtime.job.join.stream_join import StreamJoin, stored_type
from joinery_runtime.job.kinds.aggregate.model import Aggregation, aggregate_part
from joinery_runtime.job.kinds.base import Chain, StepWords
from joinery_runtime.job.kinds.ranking import RankingKind, ranking_part
from joinery_runtime.job.kinds.session.explain import Aggregated, aggregate_plan
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.model.plan import BYTES, COMPUTED_BYTES, ENGINE_ROW_BYTES, SidePlan, StepPlan, limits_text
from joinery_runtime.job.model.references import Reference, parse_reference
from joinery_runtime.job.model.types import ColumnType
from joinery_runtime.job.model.wording import listed


def step_plans(job: StreamJoin, stored: Mapping[str, Sequence[str]]) -> tuple[StepPlan, ...]:
    """The plans of the steps. `stored` names the columns that segments keep, per part of the state."""
    if not job.joins and job.aggregation is None and job.ranking is None:
        return (_projection_plan(job),)
    joins = [_StepExplainer(job, number).plan(stored, kept_ms) for number, kept_ms in enumerate(kept_for(job))]
    if job.ranking is not None:
        return (*joins, _ranking_plan(job, job.ranking, stored))
    if job.aggregation is None:
        return tuple(joins)
    following = job.aggregation.next
    then = [] if following is None else [_next_plan(job, job.aggregation, following)]
    return (*joins, _aggregate_plan(job, job.aggregation), *then)


def _projection_plan(job: StreamJoin) -> StepPlan:
    (side,) = job.inputs
    lines = [(item.as_ or "", item.expression) for item in job.select or () if item.expression is not None]
    late = "none: no row waits for a watermark, so watermark.delay and idleTimeout change nothing (rule P2)"
    return StepPlan(f"projection of {side.name}", (*lines, ("late rows", late)), (), "")


def _ranking_plan(job: StreamJoin, ranking: RankingKind, stored: Mapping[str, Sequence[str]]) -> StepPlan:
    after, time = len(job.joins), job.ranked_time
    part = ranking_part(ranking.field, after)
    rows_of, watermark, lag = " + ".join(job.joined), _watermark(job, time), _lag(job, time)
    lateness = f"{format_duration(ranking.allowed_lateness)} [allowedLateness]"
    handling = "written to the dead letters" if ranking.late_data == "dlq" else "dropped"
    none = "none, unless a step has lateData: reopen; such rows are " if after else ""
    lines = (
        ("key", ", ".join(ranking.keys) or "none: all rows are of one key, on one shard"),
        *((("event time", f"that of {time}"),) if after else ()),
        *ranking.lines(watermark, lateness),
        ("late rows", f"{none}{handling} and counted when {ranking.late_text(watermark, lateness)}"),
        *((("limits", limits_text(ranking.limits, "the state")),) if ranking.limits is not None else ()),
    )
    side = SidePlan(
        part=part,
        rows_of=rows_of,
        kept_until=f"{watermark} {ranking.kept_text} + {lateness}",
        kept_for_ms=ranking.kept_for + ranking.allowed_lateness + lag,
        row_bytes=ENGINE_ROW_BYTES + 1 + sum(BYTES[job.aggregated_types[name].name] for name in stored[part]),
    )
    return StepPlan(f"{ranking.title} of {rows_of}", lines, (side,), ranking.shorter)


def _aggregate_plan(job: StreamJoin, aggregation: Aggregation) -> StepPlan:
    time, after = job.aggregated_time, len(job.joins)
    aggregated = Aggregated(
        rows_of=" + ".join(job.joined),
        time=time,
        watermark=_watermark(job, time),
        lag=_lag(job, time),
        types=job.aggregated_types,
        part=aggregate_part(after),
        from_steps=after > 0,
    )
    return aggregate_plan(aggregation, aggregated)


def _next_plan(job: StreamJoin, first: Aggregation, following: Aggregation) -> StepPlan:
    """The plan of `then`, which reads the rows of the first aggregate (G10)."""
    after, time = len(job.joins) + 1, job.aggregated_time
    aggregated = Aggregated(
        rows_of=f"{first.form.rows} of step {after}",
        time=time,
        watermark=f"wm({time} after step {after})",
        lag=_lag(job, time) + first.allowed_lateness,
        types={},
        part=aggregate_part(after),
        of_windows=True,
        same_windows=first.then is not None and first.then.same_windows,
    )
    return aggregate_plan(following, aggregated)


def _watermark(job: StreamJoin, time: str) -> str:
    """The name of the watermark that the last join hands on for the input `time`, or the only input's own."""
    return f"wm({time} after step {len(job.joins)})" if job.joins else f"wm({time})"


def _lag(job: StreamJoin, time: str) -> int:
    """How far that watermark trails the rows (ms)."""
    return _chain(job).lag[time] if job.joins else job.input(time).watermark.delay


class _StepExplainer:
    def __init__(self, job: StreamJoin, number: int) -> None:
        self._job, self._number = job, number
        self._step: JoinStep = job.joins[number]
        self._kind = self._step.matching
        self._words = StepWords(
            number=number,
            left=job.left_inputs(number),
            right=self._step.right,
            times={side.name: side.event_time for side in job.inputs},
            allowed_lateness=self._step.allowed_lateness,
            late_data=self._step.late_data,
            only_inner=job.only_step and self._step.type in {"inner", "semi"},
            windows_of_step=next(
                (n + 1 for n in range(number) if job.joins[n].matching.windowed and self._kind.windowed), None
            ),
        )

    def plan(self, stored: Mapping[str, Sequence[str]], kept_ms: tuple[int, int]) -> StepPlan:
        until, labels = self._kind.kept_until(self._words), self._words.labels
        sides = [
            SidePlan(part, labels[i], until[i], kept_ms[i], _row_bytes(self._job, self._number, i, stored[part]))
            for i, part in enumerate(part_names(self._number))
        ]
        title = f"{self._step.type} {self._kind.title} join"
        return StepPlan(title, tuple(self._lines()), tuple(sides), self._kind.shorter, self._step.right)

    def _lines(self) -> Iterator[tuple[str, str]]:
        step = self._step
        yield "keys", self._keys()
        yield self._kind.bound(self._words)
        if step.where is not None:
            yield "where", step.where
        if step.filter is not None:
            yield "filter", f"{step.filter}; rows for which it is not true are not emitted, and counted"
        if not step.emits_right:
            chosen = f"with a match, {self._kind.matched}"
            if step.type == "anti":
                chosen = f"without a match, {self._kind.padding}"
            yield "emits", f"{self._words.labels[0]} rows alone: those {chosen}"
        elif any(step.preserved):
            sides = listed(
                label for label, preserved in zip(self._words.labels, step.preserved, strict=True) if preserved
            )
            yield "unmatched", f"{sides} rows are emitted padded with nulls, {self._kind.padding}"
        yield "late rows", self._kind.late(self._words)
        if step.limits is not None:
            yield "limits", limits_text(step.limits, "a side")

    def _keys(self) -> str:
        pairs = [f"{pair.left} = {pair.right}" for pair in self._job.keys_of(self._step)]
        if pairs:
            return ", ".join(pairs)
        return f"none, a join on time only; every shard gets all rows of {self._step.broadcast} (broadcast)"


# --- how long rows are kept -------------------------------------------------------------------------------------------


def kept_for(job: StreamJoin) -> Iterator[tuple[int, int]]:
    """Per step, how long the left and the right rows are kept, in milliseconds of event time after their own."""
    yield from _steps_of(job, Chain())


def _chain(job: StreamJoin) -> Chain:
    """How far the watermarks trail what arrives, after the last step."""
    chain = Chain()
    deque(_steps_of(job, chain), maxlen=0)
    return chain


def _steps_of(job: StreamJoin, chain: Chain) -> Iterator[tuple[int, int]]:
    """Like `kept_for`. Updates `chain` to the times after each step."""
    first = job.spec.inputs[0].name
    chain.distances[first, first] = (0, 0)
    for number, step in enumerate(job.joins):
        left = job.left_inputs(number)
        for name in (*(left if number == 0 else ()), step.right):
            chain.lag[name] = job.input(name).watermark.delay + step.allowed_lateness
        yield step.matching.keeps(chain, left, step.right)


# --- about how wide a stored row is -----------------------------------------------------------------------------------


def _row_bytes(job: StreamJoin, step_index: int, side: int, columns: Sequence[str]) -> int:
    """The bytes of a row with these stored columns, on the left (0) or right (1) side of a step."""
    types = (stored_type(job, step_index, ("left", "right")[side], column) for column in columns)
    return ENGINE_ROW_BYTES + sum(
        BYTES[kind.name] if isinstance(kind, ColumnType) else COMPUTED_BYTES for kind in types
    )


def assumed_columns(job: StreamJoin) -> Mapping[str, Sequence[str]]:
    """Per part, the columns that segments keep, as far as is known without parsing SQL: with an expression, all."""
    columns: dict[str, Sequence[str]] = {}
    for number, step in enumerate(job.joins):
        left, right = part_names(number)
        chained = number > 0
        refs = [ref for name in job.left_inputs(number) for ref in _stored(job, name, chained=chained)]
        columns[left] = [f"{ref.input}.{ref.column}" if chained else ref.column for ref in refs]
        columns[right] = [ref.column for ref in _stored(job, step.right, chained=False)]
    if job.ranking is not None:
        chained = bool(job.joins)
        refs = [ref for name in job.joined for ref in _stored(job, name, chained=chained)]
        part = ranking_part(job.ranking.field, len(job.joins))
        columns[part] = [str(ref) if chained else ref.column for ref in refs]
    return columns


def _stored(job: StreamJoin, name: str, *, chained: bool) -> list[Reference]:
    """The stored columns of an input. Its event time is a column of the engine, unless it came through a step."""
    used, side = _used(job), job.input(name)
    every = [Reference(name, column) for column in side.types if chained or column != side.event_time]
    computed = [key for key in job.computed_keys if key.input == name]
    return [*(ref for ref in every if used is None or ref in used), *computed]


def _used(job: StreamJoin) -> set[Reference] | None:
    """The columns that the job uses; None if an expression may use any column."""
    if job.has_expressions:
        return None
    keys = {ref for step in job.joins for pair in job.keys_of(step) for ref in (pair.left, pair.right)}
    counted = [name for step in job.joins if (name := step.matching.counted_from) is not None]
    times = {Reference(name, job.input(name).event_time) for name in counted}
    if (aggregation := job.aggregation) is not None:
        names = (*aggregation.group_by, *(name for call in aggregation.aggregates for name in call.columns))
        aggregated = {ref for name in names if (ref := parse_reference(name)) is not None}
        return keys | times | aggregated | {Reference(job.aggregated_time, job.input(job.aggregated_time).event_time)}
    if job.ranking is not None:
        keys |= {ref for name in job.ranking.keys if (ref := parse_reference(name)) is not None}
        times.add(Reference(job.ranked_time, job.input(job.ranked_time).event_time))
    return keys | times | {column.source for column in job.output_columns if column.source is not None}
