"""Explains what each step of a job does: what matches, how long each side is kept, what is late, what is capped."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from joinery_runtime.job.join.steps import JoinStep, part_names
from joinery_runtime.job.join.stream_join import StreamJoin, stored_type
from joinery_runtime.job.kinds.aggregate.model import Aggregation
from joinery_runtime.job.kinds.base import (
    BYTES,
    COMPUTED_BYTES,
    ENGINE_ROW_BYTES,
    Chain,
    SidePlan,
    StepPlan,
    StepWords,
    limits_text,
)
from joinery_runtime.job.kinds.ranking import RankingKind, TopN
from joinery_runtime.job.kinds.session.explain import Aggregated, aggregate_plan, selected_lines
from joinery_runtime.job.model.base import ColumnType
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.model.references import Reference, parse_reference
from joinery_runtime.job.model.wording import listed


def step_plans(job: StreamJoin, stored: Mapping[str, Sequence[str]]) -> tuple[StepPlan, ...]:
    """Return the plans of the steps. `stored` names the columns that segments keep, per part of the state."""
    behind = [
        _ranking_plan(job, step, number, part, stored[part])
        if isinstance(step, RankingKind)
        else _aggregate_plan(job, step, number, part)
        for number, (part, step) in enumerate(job.behind_joins.items(), start=len(job.joins))
    ]
    if not job.joins and not behind:
        (side,) = job.inputs
        lines = [(item.as_ or "", item.expression) for item in job.select or () if item.expression is not None]
        late = "none: no row waits for a watermark, so watermark.delay and idleTimeout change nothing (rule P2)"
        return (StepPlan(f"projection of {side.name}", (*lines, ("late rows", late)), (), ""),)
    joins = [_StepExplainer(job, number).plan(stored, kept_ms) for number, kept_ms in enumerate(kept_for(job))]
    return (*joins, *behind)


def _ranking_plan(job: StreamJoin, ranking: RankingKind, number: int, part: str, stored: Sequence[str]) -> StepPlan:
    """Return the plan of step `number` (0 is the first), which emits some of the rows of the step before. The `part` of
    the state keeps the columns `stored`."""
    read = _read_rows_before(job, number)
    in_windows = read.of_windows or job.ranks_in_windows(ranking)
    if in_windows:
        read = replace(read, never_late="a window is emitted once")
    time = job.aggregated_time if read.of_windows else job.ranked_time(ranking)
    watermark = _watermark_name(time, number)
    lateness = f"{format_duration(ranking.allowed_lateness)} [allowedLateness]"
    handling = "written to the dead letters" if ranking.late_data == "dlq" else "dropped"
    none = "none, unless a step has lateData: reopen; such rows are " if number else ""
    late = f"none: {read.never_late}"
    if not read.never_late:
        late = f"{none}{handling} and counted when {ranking.late_text(watermark, lateness)}"
    lines = (
        ("key", ", ".join(ranking.keys) or "none: all rows are of one key, on one shard"),
        *((("event time", f"that of {time}"),) if number and not in_windows else ()),
        *ranking.lines(watermark, lateness),
        *(selected_lines(job.output_columns) if read.of_windows else ()),
        ("late rows", late),
        *((("limits", limits_text(ranking.limits, "the state")),) if ranking.limits is not None else ()),
    )
    widths = {name: BYTES[kind.name] for name, kind in read.types.items()}
    side = SidePlan(
        part=part,
        rows_of=read.words,
        kept_until=f"{watermark} {ranking.kept_text} + {lateness}",
        kept_for_ms=ranking.kept_for + ranking.allowed_lateness + _watermark_lag(job, time, number),
        row_bytes=ENGINE_ROW_BYTES + 1 + sum(widths.get(name, COMPUTED_BYTES) for name in stored),
    )
    return StepPlan(f"{ranking.title} of {read.words}", lines, (side,), ranking.shorter)


def _aggregate_plan(job: StreamJoin, aggregation: Aggregation, number: int, part: str) -> StepPlan:
    """Return the plan of step `number` (0 is the first), which aggregates the rows of the step before."""
    time, read = job.aggregated_time, _read_rows_before(job, number)
    then = job.aggregation.then if job.aggregation is not None and read.of_windows else None
    aggregated = Aggregated(
        rows_of=read.words,
        time=time,
        watermark=_watermark_name(time, number),
        lag=_watermark_lag(job, time, number),
        types=read.types,
        part=part,
        from_steps=number > 0 and not read.of_windows,
        never_late=read.never_late,
        of_windows=read.of_windows,
        same_windows=then is not None and then.same_windows,
        selected=job.output_columns if part == [*job.behind_joins][-1] else (),
    )
    return aggregate_plan(aggregation, aggregated)


@dataclass(frozen=True, slots=True)
class _RowsBefore:
    """The rows that a step behind the joins reads, in `words`, with the `types` of columns that the job declares.
    `of_windows`: an aggregate makes them. `never_late` says why none is late."""

    words: str
    types: Mapping[str, ColumnType]
    of_windows: bool = False
    never_late: str = ""


def _read_rows_before(job: StreamJoin, number: int) -> _RowsBefore:
    before = _steps_before(job, number)
    if before and isinstance(before[-1], Aggregation):
        words = f"{before[-1].form.rows} of step {number}"
        return _RowsBefore(words, {}, of_windows=True, never_late="a window is emitted once")
    joined = " + ".join(job.joined)
    if before:
        return _RowsBefore(f"deduplicated {joined}", job.aggregated_types, never_late=f"step {number} drops late rows")
    return _RowsBefore(joined, job.aggregated_types)


def _steps_before(job: StreamJoin, number: int) -> list[RankingKind | Aggregation]:
    """Return the steps behind the joins and before step `number`."""
    return list(job.behind_joins.values())[: number - len(job.joins)]


def _watermark_name(time: str, number: int) -> str:
    """Return the name of the watermark of the input `time` that step `number` sees: that of the step before, or its
    own."""
    return f"wm({time} after step {number})" if number else f"wm({time})"


def _watermark_lag(job: StreamJoin, time: str, number: int) -> int:
    """Say how far that watermark trails the rows (ms)."""
    joined = job.input(time).watermark.delay
    if job.joins:
        chain = Chain()
        deque(_keep_of_steps(job, chain), maxlen=0)  # which updates the chain, to what it is after the last step
        joined = chain.lag[time]
    return joined + sum(
        step.allowed_lateness + (step.waits_for if isinstance(step, RankingKind) else 0)
        for step in _steps_before(job, number)
    )


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
        sides = []
        for i, part in enumerate(part_names(self._number)):
            types = [stored_type(self._job, self._number, ("left", "right")[i], column) for column in stored[part]]
            widths = [BYTES[kind.name] if isinstance(kind, ColumnType) else COMPUTED_BYTES for kind in types]
            sides.append(SidePlan(part, labels[i], until[i], kept_ms[i], ENGINE_ROW_BYTES + sum(widths)))
        title = f"{self._step.type} {self._kind.title} join"
        return StepPlan(title, tuple(self._plan_lines()), tuple(sides), self._kind.shorter, self._step.right)

    def _plan_lines(self) -> Iterator[tuple[str, str]]:
        step = self._step
        pairs = [f"{pair.left} = {pair.right}" for pair in self._job.keys_of(step)]
        without = f"none, a join on time only; every shard gets all rows of {step.broadcast} (broadcast)"
        yield "keys", ", ".join(pairs) or without
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


# --- how long rows are kept -------------------------------------------------------------------------------------------


def kept_for(job: StreamJoin) -> Iterator[tuple[int, int]]:
    """Yield per step how long the left and the right rows are kept, in milliseconds of event time after their own."""
    yield from _keep_of_steps(job, Chain())


def _keep_of_steps(job: StreamJoin, chain: Chain) -> Iterator[tuple[int, int]]:
    """Yield what `kept_for` does, and update `chain` to the times after each step."""
    first = job.spec.inputs[0].name
    chain.distances[first, first] = (0, 0)
    for number, step in enumerate(job.joins):
        left = job.left_inputs(number)
        for name in (*(left if number == 0 else ()), step.right):
            chain.lag[name] = job.input(name).watermark.delay + step.allowed_lateness
        yield step.matching.keeps(chain, left, step.right)


# --- which columns a stored row has -----------------------------------------------------------------------------------


def assumed_columns(job: StreamJoin) -> Mapping[str, Sequence[str]]:
    """Return per part the columns that segments keep, as far as is known without parsing SQL: with an expression,
    all."""
    columns: dict[str, Sequence[str]] = {}
    for number, step in enumerate(job.joins):
        left, right = part_names(number)
        chained = number > 0
        refs = [ref for name in job.left_inputs(number) for ref in _stored_columns(job, name, chained=chained)]
        columns[left] = [f"{ref.input}.{ref.column}" if chained else ref.column for ref in refs]
        columns[right] = [ref.column for ref in _stored_columns(job, step.right, chained=False)]
    for part, behind in job.behind_joins.items():
        if isinstance(behind, TopN) and job.last_aggregation is not None:
            columns[part] = tuple(job.last_aggregation.columns_by_name)
        elif isinstance(behind, RankingKind):
            chained = bool(job.joins) or behind is not job.rankings[0]
            refs = [ref for name in job.joined for ref in _stored_columns(job, name, chained=chained)]
            columns[part] = [str(ref) if chained else ref.column for ref in refs]
    return columns


def _stored_columns(job: StreamJoin, name: str, *, chained: bool) -> list[Reference]:
    """Return the stored columns of an input. Its event time is a column of the engine, unless it came through a
    step."""
    used, side = _used_columns(job), job.input(name)
    every = [Reference(name, column) for column in side.types if chained or column != side.event_time]
    computed = [key for key in job.computed_keys if key.input == name]
    return [*(ref for ref in every if used is None or ref in used), *computed]


def _used_columns(job: StreamJoin) -> set[Reference] | None:
    """Return the columns that the job uses; None if an expression may use any column."""
    if job.has_expressions:
        return None
    keys = {ref for step in job.joins for pair in job.keys_of(step) for ref in (pair.left, pair.right)}
    counted = [name for step in job.joins if (name := step.matching.counted_from) is not None]
    times = {Reference(name, job.input(name).event_time) for name in counted}
    for ranking in job.rankings:
        keys |= {ref for name in ranking.keys if (ref := parse_reference(name)) is not None}
        time = job.ranked_time(ranking)
        times.add(Reference(time, job.input(time).event_time))
    if (aggregation := job.aggregation) is not None:
        names = (*aggregation.group_by, *(name for call in aggregation.aggregates for name in call.columns))
        aggregated = {ref for name in names if (ref := parse_reference(name)) is not None}
        return keys | times | aggregated | {Reference(job.aggregated_time, job.input(job.aggregated_time).event_time)}
    return keys | times | {column.source for column in job.output_columns if column.source is not None}
