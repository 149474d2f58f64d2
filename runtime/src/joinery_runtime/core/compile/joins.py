"""Compiles a job to the core's `Pipeline`: splits predicates by side and finds the columns that each side stores."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

import pyarrow as pa

from joinery_runtime.core import kinds
from joinery_runtime.core.compile.outputs import row_selections
from joinery_runtime.core.compile.sessions import compile_session
from joinery_runtime.core.kinds.base import Join
from joinery_runtime.core.pipeline.expression import (
    ColumnRef,
    Expression,
    check_predicate,
    column_type,
    conjunction,
    conjuncts,
    parse_expression,
    parts_of_one_input,
)
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT, Intake, OutputColumn, Placement, SideSpec, part_name
from joinery_runtime.core.pipeline.spec import Emits, InputSpec, Pipeline, StepSpec
from joinery_runtime.core.table.columns import arrow_schema, arrow_type
from joinery_runtime.errors import ExpressionError, JobError, Problem
from joinery_runtime.job import Job, JoinStep, Reference, SessionWindow, StreamJoin

SQL_PATH = "spec.sql"


def compile_job(job: Job) -> Pipeline:
    """Compiles any job. Raises JobError with the place if an expression does not fit the inputs."""
    match job:
        case StreamJoin():
            pipeline = compile_join(job)
        case SessionWindow():
            pipeline = compile_session(job)
        case _:
            raise TypeError(f"no compiler for {job.kind}")
    row_selections(job, pipeline.output_schema())
    return pipeline


def compile_join(job: StreamJoin) -> Pipeline:
    """Compiles a join. Raises JobError naming `spec.joins[n].where`, `spec.select[n].expression` or the SQL if an
    expression does not fit the inputs."""
    return _JoinCompiler(job).pipeline()


def stored_columns(pipeline: Pipeline) -> dict[str, tuple[str, ...]]:
    """The columns that segments store, per part of the state, for the job's signature."""
    return {part: side.stored for part, side in pipeline.parts().items()}


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

    @property
    def confirmed(self) -> set[ColumnRef]:
        """The columns that are compared once a candidate pair is found."""
        residual = self.residual.columns if self.residual is not None else frozenset()
        return {ref for pair in self.keys for ref in pair} | set(residual)

    @property
    def left_time(self) -> str:
        return self.step.matching.counted_from or self.left[0]


class _JoinCompiler:
    def __init__(self, job: StreamJoin) -> None:
        self._job = job
        self._schemas = {side.name: arrow_schema(side.columns) for side in job.inputs}
        self._output = self._outputs()
        written = [
            conjuncts(self._predicate(number, step.where)) if step.where else []
            for number, step in enumerate(job.joins)
        ]
        conditions = [[*own, *moved] for own, moved in zip(written, _move_conditions(job.joins, written), strict=True)]
        self._steps = [self._split(number, step, conditions[number]) for number, step in enumerate(job.joins)]

    def pipeline(self) -> Pipeline:
        steps = tuple(self._compile(step) for step in self._steps)
        read = {steps[0].sides[LEFT].time: (0, LEFT)} | {
            step.right: (n, RIGHT) for n, step in enumerate(self._job.joins)
        }
        return Pipeline(tuple(InputSpec(side.name, *read[side.name]) for side in self._job.inputs), steps)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _split(self, number: int, step: JoinStep, parts: list[Expression]) -> _SplitStep:
        left = tuple(self._job.left_inputs(number))
        keys = tuple((_ref(pair.left), _ref(pair.right)) for pair in self._job.keys_of(step))
        written = next(kind for kind in join_kinds() if isinstance(step.matching, kind.written_as))
        kind = written.of(step, len(self._job.joins) == 1)
        of_side: tuple[list[Expression], list[Expression]] = ([], [])
        rest: list[Expression] = []
        for part in parts:
            side = _deciding_side(part, left, step, kind)
            (rest if side is None else of_side[side]).append(part)
        return _SplitStep(
            number=number,
            step=step,
            kind=kind,
            left=left,
            keys=keys,
            conditions=tuple(parts),
            predicates=(conjunction(of_side[LEFT]), conjunction(of_side[RIGHT])),
            residual=conjunction(rest),
        )

    def _compile(self, split: _SplitStep) -> StepSpec:
        return StepSpec(
            number=split.number,
            sides=(self._side(split, LEFT), self._side(split, RIGHT)),
            kind=split.kind,
            residual=split.residual,
            output=tuple(self._output_columns(split)),
            emits=_emits(split.step),
        )

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
        )

    def _intake(self, split: _SplitStep, side: int, inputs: tuple[str, ...], time: str, *, preserved: bool) -> Intake:
        chained = split.number > 0 and side == LEFT
        table = split.kind.right_is_table and side == RIGHT
        event_time = ColumnRef(time, self._job.input(time).event_time)
        read_columns = {ref for ref in split.confirmed | self._needed_after(split.number) if ref.input in inputs}
        if not chained:
            read_columns.discard(event_time)  # it is `$ts`
        schema = self._schemas[time]
        if chained:
            refs = self._forwarded_refs(split.number - 1)
            schema = pa.schema([pa.field(str(ref), self._type(ref)) for ref in refs])
        naming = Intake(schema, "", (), (), chained=chained)
        names = {naming.name_of(ref) for ref in read_columns}
        return Intake(
            schema=schema,
            event_time=naming.name_of(event_time),
            keys=tuple(naming.name_of(pair[side]) for pair in split.keys),
            stored=tuple(name for name in schema.names if name in names),
            predicate=split.predicates[side],
            preserved=preserved,
            table=table,
            placement=_placement(split.step, inputs),
            chained=chained,
            checked=() if chained or table else self._checked_parts(time),
            compared=() if chained or table else self._compared_parts(split.number, time),
            partitioner=split.step.partitioner if split.step.co_partitioned else None,
            filter=None if chained else self._filter(time),
        )

    def _filter(self, name: str) -> Expression | None:
        """The condition of the input itself."""
        text = self._job.input_filters.get(name)
        if text is None:
            return None
        try:
            expression = parse_expression(text, name)
            check_predicate(expression, {name: self._schemas[name]})
        except ExpressionError as error:
            number = next(number for number, side in enumerate(self._job.inputs) if side.name == name)
            if self._job.inputs[number].where is None:
                raise self._error(SQL_PATH, error) from error
            raise JobError(self._job.name, [Problem(f"spec.inputs[{number}].where", str(error))]) from error
        return expression

    def _checked_parts(self, name: str) -> tuple[Expression, ...]:
        """The parts of output expressions that read only this input."""
        expressions = [output.expression for output in self._output if output.expression is not None]
        return tuple(part for expression in expressions for part in parts_of_one_input(expression, name))

    def _compared_parts(self, reading: int, name: str) -> tuple[Expression, ...]:
        """The parts of match conditions that read only this input, from step `reading` on, which reads it. Within a
        step, a condition that reads other inputs shields those that follow it."""
        parts: list[Expression] = []
        for split in self._steps[reading:]:
            for condition in split.conditions:
                own = split.number == reading and {ref.input for ref in condition.columns} == {name}
                if not own:  # an own condition is part of the side's predicate
                    parts += parts_of_one_input(condition, name)
                    break
        return tuple(parts)

    # --- columns ------------------------------------------------------------------------------------------------------

    def _needed_after(self, number: int) -> set[ColumnRef]:
        """The columns that a row still needs once the step has made it."""
        needed = {ref for output in self._output for ref in output.columns}
        for later in self._steps[number + 1 :]:
            needed |= later.confirmed | {ColumnRef(later.left_time, self._job.input(later.left_time).event_time)}
            needed |= set(later.predicates[LEFT].columns) if later.predicates[LEFT] is not None else set()
        return needed

    def _forwarded_refs(self, number: int) -> list[ColumnRef]:
        inputs = (*self._steps[number].left, self._steps[number].step.right)
        needed = self._needed_after(number)
        columns = (ColumnRef(name, column) for name in inputs for column in self._schemas[name].names)
        return [ref for ref in columns if ref in needed]

    def _output_columns(self, split: _SplitStep) -> Iterable[OutputColumn]:
        if split is not self._steps[-1]:
            return [
                self._plain_column(split, ref, str(ref), self._type(ref)) for ref in self._forwarded_refs(split.number)
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

    def _type(self, ref: ColumnRef) -> pa.DataType:
        return self._schemas[ref.input].field(ref.column).type

    # --- expressions --------------------------------------------------------------------------------------------------

    def _outputs(self) -> list[_Output]:
        outputs = []
        for number, column in enumerate(self._job.output_columns):
            if column.source is not None:
                ref = _ref(column.source)
                outputs.append(_Output(column.name, self._type(ref), ref))
            elif column.step_column is not None:
                outputs.append(
                    _Output(
                        column.name,
                        arrow_type(self._job.window_times),
                        step_column=column.step_column,
                    )
                )
            else:
                expression, kind = self._computed_column(number, column.expression or "")
                outputs.append(_Output(column.name, kind, expression=expression))
        return outputs

    def _computed_column(self, number: int, text: str) -> tuple[Expression, pa.DataType]:
        try:
            expression = parse_expression(text)
            kind = column_type(expression, self._schemas)
        except ExpressionError as error:
            raise self._error(f"spec.select[{number}].expression", error) from error
        return expression, kind

    def _predicate(self, number: int, text: str) -> Expression:
        try:
            expression = parse_expression(text)
            joined = (*self._job.left_inputs(number), self._job.joins[number].right)
            check_predicate(expression, {name: self._schemas[name] for name in joined})
        except ExpressionError as error:
            raise self._error(f"spec.joins[{number}].where", error) from error
        return expression

    def _error(self, path: str, error: ExpressionError) -> JobError:
        return JobError(self._job.name, [Problem(path if self._job.spec.sql is None else SQL_PATH, str(error))])


def _ref(reference: Reference) -> ColumnRef:
    return ColumnRef(reference.input, reference.column)


def _emits(step: JoinStep) -> Emits:
    if step.type == "semi":
        return "matched"
    return "unmatched" if step.type == "anti" else "pairs"


def _deciding_side(part: Expression, left: tuple[str, ...], step: JoinStep, kind: Join) -> int | None:
    """Returns the side that decides a predicate alone: rows that fail it are never kept (J4). A table must keep all of
    its rows, because dropping a version does not make an older one valid."""
    inputs = {ref.input for ref in part.columns}
    if inputs and inputs <= set(left):
        return LEFT
    return RIGHT if inputs == {step.right} and not kind.right_is_table else None


def _move_conditions(steps: Sequence[JoinStep], written: Sequence[Sequence[Expression]]) -> list[list[Expression]]:
    """Return, by step, the conditions of later steps that it can check already: rows that fail them are never emitted,
    so they are dropped and counted where they are read, and need no state. The later step keeps the condition, because
    the state may hold rows from before it was checked earlier. A condition that may fail moves only if no other one
    shields it."""
    moved: list[list[Expression]] = [[] for _ in steps]
    for number, step in enumerate(steps):
        shielded = False
        for condition in written[number]:
            inputs = {ref.input for ref in condition.columns}
            earliest = None
            if inputs and step.right not in inputs and step.type in {"inner", "right", "semi"}:
                earliest = _earliest(inputs, steps[:number])
            if earliest is None or (shielded and condition.may_fail):
                shielded = True
            else:
                moved[earliest].append(condition)
    return moved


def _earliest(inputs: Set[str], steps: Sequence[JoinStep]) -> int | None:
    """Find the earliest step at which a condition on matches drops the rows that a filter behind the steps would
    drop."""
    earliest = None
    for number, step in reversed(list(enumerate(steps))):
        earliest = number if step.type in {"inner", "semi"} else earliest
        if step.right in inputs or step.type in {"right", "full"}:
            break
    return earliest


def _placement(step: JoinStep, inputs: tuple[str, ...]) -> Placement:
    if step.broadcast is None:
        return Placement.BY_KEY
    return Placement.EVERYWHERE if step.broadcast in inputs else Placement.SPREAD


@cache
def join_kinds() -> tuple[type[Join], ...]:
    """The kinds of join found in the modules of `core.kinds`. A new kind only needs a module there."""
    modules = [import_module(f"{kinds.__name__}.{module_info.name}") for module_info in iter_modules(kinds.__path__)]
    return tuple(
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Join) and value is not Join
        if value.__module__ == module.__name__
    )
