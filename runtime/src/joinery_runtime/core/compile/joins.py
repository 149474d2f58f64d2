"""Compiles joins to the core's `Pipeline`: splits predicates by side and finds the columns that each side stores."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from joinery_runtime.core.aggregates import condition_column
from joinery_runtime.core.compile.aggregates import (
    AggregatedRows,
    aggregate_steps,
    errors_at,
    ranking_kinds,
    select_path,
)
from joinery_runtime.core.compile.inputs import computed_column, input_filter, input_spec
from joinery_runtime.core.compile.matching import KeyCompiler, deciding_side, move_conditions
from joinery_runtime.core.kinds.base import Join, find_kinds
from joinery_runtime.core.pipeline.expression import (
    ColumnRef,
    Expression,
    check_predicate,
    conjunction,
    conjuncts,
    parse_expression,
    parts_of_one_input,
)
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT, Intake, OutputColumn, Placement, SideSpec, part_name
from joinery_runtime.core.pipeline.spec import Emits, Pipeline, StepSpec
from joinery_runtime.core.table.columns import arrow_schema, arrow_type
from joinery_runtime.job import JoinStep, Reference, StreamJoin
from joinery_runtime.job.kinds.aggregate.model import Aggregation
from joinery_runtime.job.kinds.base import part_behind
from joinery_runtime.job.kinds.ranking import RankingKind
from joinery_runtime.job.model.references import WINDOW_COLUMNS, WINDOW_TIME, parse_reference


@dataclass(frozen=True, slots=True)
class _Output:
    """A column of the job's output: an input's column, an expression over such columns, or a time of a window."""

    name: str
    type: pa.DataType
    ref: ColumnRef | None = None
    expression: Expression | None = None
    step_column: str | None = None

    @property
    def columns(self) -> Collection[ColumnRef]:
        return [self.ref] if self.ref is not None else self.expression.columns if self.expression is not None else ()


@dataclass(frozen=True, slots=True)
class _SplitStep:
    """A step of the job, taken apart. `left` are the inputs that earlier steps joined."""

    number: int
    step: JoinStep
    kind: Join
    left: tuple[str, ...]
    keys: tuple[tuple[ColumnRef, ColumnRef], ...]
    conditions: tuple[Expression, ...]
    predicates: tuple[Expression | None, Expression | None]
    residual: Expression | None
    filter: Expression | None
    left_time: str
    """The input whose event time left rows have."""
    one_window: bool
    """Whether a step before has put left rows into windows that this step joins in (W5)."""

    @property
    def filtered_by(self) -> Set[ColumnRef]:
        """The columns that the filter reads of a row once the step has made it."""
        return self.filter.columns if self.filter is not None else frozenset()

    @property
    def confirmed(self) -> set[ColumnRef]:
        """The columns that are compared once a candidate pair is found."""
        residual = self.residual.columns if self.residual is not None else frozenset()
        return {ref for pair in self.keys for ref in pair} | set(residual)


class JoinCompiler:
    """Compiles one job. Its methods raise JobError as `compile_join` does."""

    def __init__(self, job: StreamJoin) -> None:
        self._job = job
        self._declared = {side.name: arrow_schema(side.columns) for side in job.inputs}
        self._keys = KeyCompiler(job, self._declared)
        self._keys.compile()
        self._schemas = {name: self._keys.schema_of(name) for name in self._declared}
        times = [pa.field(name, arrow_type(job.window_times)) for name in WINDOW_COLUMNS] if job.windowed else []
        self._windows = {"": pa.schema(times)} if times else {}
        self._readable = {**self._declared, **self._windows}
        self._output = self._outputs()
        self._ranked_by = [
            computed_column(job, f"spec.{ranking.field}.{path}", text, self._declared)[0]
            for ranking in job.rankings
            for path, text in ranking.expressions.items()
        ]
        written: list[list[Expression]] = []
        for number, step in enumerate(job.joins):
            joined, where = (*job.left_inputs(number), step.right), step.where
            path = f"spec.joins[{number}].where"
            written.append([] if where is None else conjuncts(self._predicate(path, where, joined)))
        self._filters: list[list[Expression]] = [[] for _ in job.joins]
        self._filters_of_inputs: dict[str, list[Expression]] = {side.name: [] for side in job.inputs}
        for number, step in enumerate(job.joins):
            if step.filter is None:
                continue
            is_windowed = any(before.matching.windowed for before in job.joins[: number + 1])
            made_of = (*job.left_inputs(number + 1), *(self._windows if is_windowed else ()))
            for condition in conjuncts(self._predicate(f"spec.joins[{number}].filter", step.filter, made_of)):
                self._place_filter(condition, number, written)
        conditions = [[*own, *moved] for own, moved in zip(written, move_conditions(job.joins, written), strict=True)]
        self._steps = [self._split(number, step, conditions[number]) for number, step in enumerate(job.joins)]

    def pipeline(self) -> Pipeline:
        steps = tuple(
            StepSpec(
                number=split.number,
                sides=(self._side(split, LEFT), self._side(split, RIGHT)),
                kind=split.kind,
                residual=split.residual,
                output=tuple(self._output_columns(split)),
                emits=_emits(split.step),
                filter=split.filter,
                window_times=arrow_type(self._job.window_times),
            )
            for split in self._steps
        )
        for ranking in self._job.rankings:
            steps = (*steps, self._rank(ranking, steps))
        if self._job.aggregation is not None:
            time, schema = self._job.aggregated_time, steps[-1].output_schema()
            rows = AggregatedRows(
                schema=schema,
                names={name: name for name in schema.names},
                columns=self._job.aggregated_types,
                inputs=self._job.joined,
                time=time,
                event_time=str(self._event_time(time)),
                chained=True,
            )
            steps = (*steps, *aggregate_steps(self._job, self._job.aggregation, rows, len(steps)))
        read = {self._job.inputs[0].name: (0, LEFT)} | {
            step.right: (n, RIGHT) for n, step in enumerate(self._job.joins)
        }
        return Pipeline(tuple(input_spec(side, *read[side.name]) for side in self._job.inputs), steps)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _split(self, number: int, step: JoinStep, parts: list[Expression]) -> _SplitStep:
        left = tuple(self._job.left_inputs(number))
        keys = tuple((_ref(pair.left), _ref(pair.right)) for pair in self._job.keys_of(step))
        written = next(kind for kind in join_kinds() if isinstance(step.matching, kind.written_as))
        kind = written.of(step, self._job.only_step)
        of_side: tuple[list[Expression], list[Expression]] = ([], [])
        rest: list[Expression] = []
        for part in parts:
            side = deciding_side(part, left, step, kind)
            (rest if side is None else of_side[side]).append(part)
        windowing = next((before for before in self._job.joins[:number] if before.matching.windowed), None)
        one_window = windowing is not None and step.matching.windowed
        counted = windowing if windowing is not None and one_window else step
        return _SplitStep(
            number=number,
            step=step,
            kind=kind,
            left=left,
            keys=keys,
            conditions=tuple(parts),
            predicates=(conjunction(of_side[LEFT]), conjunction(of_side[RIGHT])),
            residual=conjunction(rest),
            filter=conjunction(self._filters[number]),
            left_time=counted.matching.counted_from or left[0],
            one_window=one_window,
        )

    def _place_filter(self, condition: Expression, number: int, matching: Sequence[list[Expression]]) -> None:
        """Place a condition on the rows that a step makes where it leaves out the same rows earliest: at the step
        itself, an earlier one, among the conditions on matches of an inner one (`matching`, by step), or at an input.
        A condition that may fail stays, because elsewhere it would be computed for other rows. So do those of session
        windows, where a row that is left out earlier would change sessions, and those on the times of windows, which a
        row has once the step has made it."""
        step = self._job.joins[number]
        inputs = {ref.input for ref in condition.columns}
        if not inputs or "" in inputs or condition.may_fail or step.kind == "session":
            self._filters[number].append(condition)
        elif step.type in {"inner", "semi"}:
            matching[number].append(condition)
        elif step.right not in inputs and step.type in {"left", "anti"} and number:
            self._place_filter(condition, number - 1, matching)
        elif inputs == {self._job.inputs[0].name} and step.type in {"left", "anti"}:
            self._filters_of_inputs[self._job.inputs[0].name].append(condition)
        elif inputs == {step.right} and step.type == "right":
            self._filters_of_inputs[step.right].append(condition)
        else:
            self._filters[number].append(condition)

    def _side(self, split: _SplitStep, side: int) -> SideSpec:
        inputs = split.left if side == LEFT else (split.step.right,)
        time = split.left_time if side == LEFT else split.step.right
        preserved = split.step.preserved[side]
        return SideSpec(
            part=part_name(split.number, side),
            inputs=inputs,
            time=time,
            intake=self._intake(split, side, inputs, time, preserved=preserved),
            flags=split.kind.flags_rows(side, _emits(split.step), preserved=preserved),
            one_window=split.one_window and side == LEFT,
        )

    def _intake(self, split: _SplitStep, side: int, inputs: tuple[str, ...], time: str, *, preserved: bool) -> Intake:
        chained = split.number > 0 and side == LEFT
        table = split.kind.right_is_table and side == RIGHT
        event_time = self._event_time(time)
        read = split.confirmed | split.filtered_by | self._needed_after(split.number)
        read_columns = {ref for ref in read if ref.input in inputs}
        if not chained:
            read_columns.discard(event_time)  # it is `$ts`
        schema = self._schemas[time]
        if chained:
            refs = self._forwarded_refs(split.number - 1)
            windows = self._forwarded_windows(split.number - 1)
            columns = {**{str(ref): self._type(ref) for ref in refs}, **dict.fromkeys(windows, pa.int64())}
            schema = pa.schema(list(columns.items()))
        naming = Intake(schema, "", (), (), chained=chained)
        names = {naming.name_of(ref) for ref in read_columns}
        if chained and not split.step.matching.windowed:
            own = [ref.column for ref in split.filtered_by if not ref.input]
            names |= {*own, *self._forwarded_windows(split.number)}
        placement = Placement.BY_KEY
        if split.step.broadcast is not None:
            placement = Placement.EVERYWHERE if split.step.broadcast in inputs else Placement.SPREAD
        return Intake(
            schema=schema,
            event_time=split.kind.time_in_window if split.one_window and chained else naming.name_of(event_time),
            keys=tuple(naming.name_of(pair[side]) for pair in split.keys),
            stored=tuple(name for name in schema.names if name in names),
            predicate=split.predicates[side],
            preserved=preserved,
            table=table,
            placement=placement,
            chained=chained,
            checked=() if chained or table else self._checked_parts(time),
            compared=() if chained or table else self._compared_parts(split.number, time),
            partitioner=split.step.partitioner if split.step.co_partitioned else None,
            filter=None if chained else self._input_filter(time),
            computed=() if chained else self._keys.computed_of(time),
        )

    def _input_filter(self, name: str) -> Expression | None:
        own = input_filter(self._job, name)
        return conjunction([*([own] if own is not None else []), *self._filters_of_inputs[name]])

    def _checked_parts(self, name: str) -> tuple[Expression, ...]:
        """Return the parts of output expressions and of filters that read only this input."""
        expressions = [output.expression for output in self._output if output.expression is not None]
        expressions += [condition for conditions in self._filters for condition in conditions]
        expressions += self._ranked_by
        return tuple(part for expression in expressions for part in parts_of_one_input(expression, name))

    def _compared_parts(self, reading: int, name: str) -> tuple[Expression, ...]:
        """Return the parts of match conditions that read only this input, from step `reading` on, which reads it.
        Within a step, a condition that reads other inputs shields those that follow it."""
        parts: list[Expression] = []
        for split in self._steps[reading:]:
            for condition in split.conditions:
                own = split.number == reading and {ref.input for ref in condition.columns} == {name}
                if not own:  # an own condition is part of the side's predicate
                    parts += parts_of_one_input(condition, name)
                    break
        return tuple(parts)

    def _rank(self, ranking: RankingKind, before: Sequence[StepSpec]) -> StepSpec:
        """Return the step that emits some of the rows that the last of the steps before makes, or the only input
        has."""
        number, time, chained = len(before), self._job.ranked_time(ranking), bool(before)
        schema = before[-1].output_schema() if chained else self._schemas[time]
        naming = Intake(schema, "", (), (), chained=chained)
        in_windows = self._job.ranks_in_windows(ranking)
        event_time = WINDOW_TIME if in_windows else naming.name_of(self._event_time(time))
        own, *following = self._job.rankings[number - len(self._steps) :]
        read = {naming.name_of(ref) for ref in self._needed_by([own, *following])} - {event_time}  # it is `$ts`
        intake = Intake(
            schema=schema,
            event_time=event_time,
            keys=tuple(naming.name_of(ref) for ref in _refs(ranking.keys)),
            stored=tuple(name for name in schema.names if name in read),
            chained=chained,
            grouped=True,
            checked=() if chained else self._checked_parts(time),
            filter=None if chained else self._input_filter(time),
        )
        written = next(kind for kind in ranking_kinds() if isinstance(ranking, kind.written_as))
        windows = self._job.windows_of_joins if in_windows else None
        kind = written.of(ranking, tuple(self._ranked_by) if ranking.expressions else (), windows)
        part = part_behind(ranking.field, number)
        side = SideSpec(part, self._job.joined, time, intake, flags=True, one_window=in_windows)
        output = [
            OutputColumn(column.name, column.type, column=naming.name_of(column.ref))
            if column.ref is not None
            else OutputColumn(column.name, column.type, expression=column.expression, step_column=column.step_column)
            for column in self._output
        ]
        if following:
            refs = self._columns_of(self._job.joined, self._needed_by(following))
            output = [OutputColumn(str(ref), self._type(ref), column=naming.name_of(ref)) for ref in refs]
        return StepSpec(number, (side,), kind, None, tuple(output))

    # --- columns ------------------------------------------------------------------------------------------------------

    def _needed_by(self, rankings: Sequence[RankingKind]) -> set[ColumnRef]:
        """Return the columns that the output needs, and these last ones of the job's rankings."""
        needed = {ref for output in self._output for ref in output.columns}
        for ranking in rankings:
            needed |= {*_refs(ranking.keys)}
            if not self._job.ranks_in_windows(ranking):
                needed.add(self._event_time(self._job.ranked_time(ranking)))
        if rankings:
            needed |= {ref for expression in self._ranked_by for ref in expression.columns}
        return needed

    def _needed_after(self, number: int) -> set[ColumnRef]:
        """Return the columns that a row still needs once the step has made it."""
        needed = self._needed_by(self._job.rankings)
        for later in self._steps[number + 1 :]:
            needed |= later.confirmed | later.filtered_by
            if not later.one_window:
                needed.add(self._event_time(later.left_time))
            needed |= set(later.predicates[LEFT].columns) if later.predicates[LEFT] is not None else set()
        return needed

    def _forwarded_refs(self, number: int) -> list[ColumnRef]:
        inputs = (*self._steps[number].left, self._steps[number].step.right)
        return self._columns_of(inputs, self._needed_after(number))

    def _columns_of(self, inputs: Iterable[str], needed: Collection[ColumnRef]) -> list[ColumnRef]:
        """Return the needed columns of the inputs, in the order of these."""
        columns = (ColumnRef(name, column) for name in inputs for column in self._schemas[name].names)
        return [ref for ref in columns if ref in needed]

    def _forwarded_windows(self, number: int) -> tuple[str, ...]:
        """Return the columns of the windows that a step's rows have and later ones, or the output, read (W5)."""
        windowed = [later for later, step in enumerate(self._job.joins) if step.matching.windowed]
        if not windowed or windowed[0] > number:
            return ()
        following = next((later for later in windowed if later > number), None)
        in_windows = following is None and any(self._job.ranks_in_windows(step) for step in self._job.rankings)
        readers = self._steps[number + 1 : following]  # a step in windows makes the columns again
        refs = {ref for reader in readers for ref in reader.filtered_by}
        if following is None:
            refs |= {ref for output in self._output for ref in output.columns}
            refs |= {ColumnRef("", output.step_column) for output in self._output if output.step_column is not None}
        read = {ref.column for ref in refs if not ref.input} | ({WINDOW_TIME} if in_windows else set())
        read |= {self._steps[following].kind.time_in_window} if following is not None else set()
        return tuple(name for name in (*WINDOW_COLUMNS, WINDOW_TIME) if name in read)

    def _output_columns(self, split: _SplitStep) -> Iterable[OutputColumn]:
        if split is not self._steps[-1] or self._job.rankings:
            refs, windows = self._forwarded_refs(split.number), self._forwarded_windows(split.number)
            return [
                *(self._plain_column(split, ref, str(ref), self._type(ref)) for ref in refs),
                *(OutputColumn(name, pa.int64(), step_column=name) for name in windows),
            ]
        return [
            self._plain_column(split, output.ref, output.name, output.type)
            if output.ref is not None
            else OutputColumn(output.name, output.type, expression=output.expression, step_column=output.step_column)
            for output in self._output
        ]

    def _plain_column(self, split: _SplitStep, ref: ColumnRef, name: str, kind: pa.DataType) -> OutputColumn:
        side = RIGHT if ref.input == split.step.right else LEFT
        chained = side == LEFT and split.number > 0
        return OutputColumn(name, kind, side, str(ref) if chained else ref.column)

    def _event_time(self, name: str) -> ColumnRef:
        return ColumnRef(name, self._job.input(name).event_time)

    def _type(self, ref: ColumnRef) -> pa.DataType:
        return self._schemas[ref.input].field(ref.column).type

    # --- expressions --------------------------------------------------------------------------------------------------

    def _aggregated_columns(self, aggregation: Aggregation) -> list[_Output]:
        """Return what the last join hands on: the columns that are aggregated, and the event time."""
        time, computed = self._job.aggregated_time, {column.as_: column.expression for column in aggregation.compute}
        named = [*aggregation.group_by, *(name for call in aggregation.aggregates for name in call.columns)]
        refs = [ref for name in named if name not in computed and (ref := parse_reference(name)) is not None]
        columns = dict.fromkeys([self._event_time(time), *map(_ref, refs)])
        outputs = [_Output(str(ref), self._type(ref), ref) for ref in columns]
        for number, (name, text) in enumerate(computed.items()):
            path = f"spec.aggregate.compute[{number}].expression"
            expression, kind = computed_column(self._job, path, text, self._declared)
            outputs.append(_Output(name, kind, expression=expression))
        conditions: dict[str, _Output] = {}
        for number, call in enumerate(aggregation.aggregates):
            condition = call.condition(self._job.aggregated_types)
            if call.where is not None and condition is not None:
                path, name = f"spec.aggregate.aggregates[{number}].where", condition_column(condition)
                expression = self._predicate(path, call.where, self._job.joined)
                conditions[name] = _Output(name, pa.bool_(), expression=expression)
        return [*outputs, *conditions.values()]

    def _outputs(self) -> list[_Output]:
        if self._job.aggregation is not None:
            return self._aggregated_columns(self._job.aggregation)
        outputs = []
        for number, column in enumerate(self._job.output_columns):
            if column.source is not None:
                ref = _ref(column.source)
                outputs.append(_Output(column.name, self._type(ref), ref))
            elif column.step_column is not None:
                outputs.append(
                    _Output(
                        column.name,
                        arrow_type(column.type or self._job.window_times),
                        step_column=column.step_column,
                    )
                )
            else:
                path = select_path(number)
                expression, kind = computed_column(self._job, path, column.expression or "", self._readable)
                outputs.append(_Output(column.name, kind, expression=expression))
        return outputs

    def _predicate(self, path: str, text: str, inputs: Sequence[str]) -> Expression:
        """Read a condition over the columns of inputs, and of the windows, which are those of the input ""."""
        with errors_at(self._job, path):
            expression = parse_expression(text)
            check_predicate(expression, {name: self._readable[name] for name in inputs})
            return expression


def _ref(reference: Reference) -> ColumnRef:
    return ColumnRef(reference.input, reference.column)


def _refs(names: Iterable[str]) -> list[ColumnRef]:
    return [_ref(reference) for name in names if (reference := parse_reference(name)) is not None]


def _emits(step: JoinStep) -> Emits:
    if step.type == "semi":
        return "matched"
    return "unmatched" if step.type == "anti" else "pairs"


@cache
def join_kinds() -> tuple[type[Join], ...]:
    """Return the kinds of join."""
    return find_kinds(Join)  # type: ignore[type-abstract]
