"""Compiles what a job aggregates to a step with one side, whose state is made of groups and their accumulators: all of
a `SessionWindow`, or the last steps of a `StreamJoin`. Also the step that ranks the rows of an aggregate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import cast

import pyarrow as pa

from joinery_runtime.core.aggregates import AggregateCall, accumulator, condition_column
from joinery_runtime.core.kinds.base import Aggregating, Ranking, find_kinds
from joinery_runtime.core.pipeline.expression import (
    Expression,
    check_predicate,
    column_type,
    parse_expression,
    with_columns,
)
from joinery_runtime.core.pipeline.sides import SESSIONS, Intake, OutputColumn, SideSpec
from joinery_runtime.core.pipeline.spec import InputSpec, Pipeline, StepSpec
from joinery_runtime.core.table.columns import arrow_schema, arrow_type, type_name
from joinery_runtime.errors import ExpressionError, JobError, Problem
from joinery_runtime.job import Aggregate, Input, SessionWindow, StreamJoin
from joinery_runtime.job.kinds.aggregate.model import Aggregation
from joinery_runtime.job.kinds.aggregate.windows import AlignedWindow
from joinery_runtime.job.kinds.base import part_behind
from joinery_runtime.job.kinds.ranking import TopN
from joinery_runtime.job.kinds.session.sessions import ComputedColumn, has_order, takes, takes_text
from joinery_runtime.job.kinds.window_totals import FRACTIONS, WindowTotal
from joinery_runtime.job.model.references import (
    RANK_COLUMNS,
    RETRACTED,
    ROW_NUMBER,
    WINDOW_COLUMNS,
    WINDOW_TIME,
)

SQL_PATH = "spec.sql"
ToError = Callable[[str, str], JobError]
"""Makes the error of a message about a field of the aggregation: `aggregates[0].column`."""


def compile_session(job: SessionWindow) -> Pipeline:
    """Compile a session job. Raises JobError naming `spec.where`, `spec.compute[n].expression` or the SQL if an
    expression does not fit the input, and `spec.aggregates[n].column` if an aggregate does not take the column's
    type."""

    def error(path: str, message: str) -> JobError:
        of_sql = job.spec.sql is not None and path != "input.where"
        return JobError(job.name, [Problem(SQL_PATH if of_sql else f"spec.{path}", message)])

    aggregation, side = job.aggregation, job.spec.input
    rows = rows_of_input(aggregation, side, side.types, error)
    step = AggregateCompiler(job, aggregation, rows, error).step(
        0,
        SESSIONS,
        where=_predicate("where", job.sessions.where, side, error),
        input_filter=_predicate("input.where", side.where, side, error),
    )
    return Pipeline((InputSpec(side.name, 0, 0),), (step,))


@dataclass(frozen=True, slots=True)
class AggregatedRows:
    """The rows that are aggregated. `schema` are their columns as the side names them, with the `computed` ones last.
    `names` gives these names by those that the job writes, `columns` are those that the inputs have, as the job writes
    them. `event_time` is the column that counts, of the input `time`. `chained`: a step makes the rows, and has
    computed the columns."""

    schema: pa.Schema
    names: Mapping[str, str]
    columns: Collection[str]
    inputs: tuple[str, ...]
    time: str
    event_time: str
    computed: tuple[tuple[str, Expression], ...] = ()
    chained: bool = False


def rows_of_input(aggregation: Aggregation, side: Input, columns: Collection[str], error: ToError) -> AggregatedRows:
    """Return the records of an input, with the computed columns and those of the aggregates' conditions. `columns` are
    the input's, as the job may write them."""
    declared = arrow_schema(side.columns)
    computed = []
    for number, column in enumerate(aggregation.compute):
        try:
            expression = parse_expression(column.expression, side.name)
            kind = column_type(expression, {side.name: declared})
        except ExpressionError as problem:
            raise error(f"compute[{number}].expression", str(problem)) from problem
        computed.append((column.as_, expression, kind))
    for number, aggregate in enumerate(aggregation.aggregates):
        condition = aggregate.condition(columns)
        predicate = _predicate(f"aggregates[{number}].where", aggregate.where, side, error)
        if condition is not None and predicate is not None:
            name = condition_column(condition)
            if all(name != computed_name for computed_name, *_ in computed):
                computed.append((name, predicate, pa.bool_()))
    own = {name: name for name in (*declared.names, *(name for name, *_ in computed))}
    return AggregatedRows(
        schema=pa.schema([*declared, *(pa.field(name, kind) for name, _, kind in computed)]),
        names={**own, **{f"{side.name}.{name}": name for name in declared.names}},
        columns=columns,
        inputs=(side.name,),
        time=side.name,
        event_time=side.event_time,
        computed=tuple((name, expression) for name, expression, _ in computed),
    )


def _predicate(path: str, text: str | None, side: Input, error: ToError) -> Expression | None:
    if text is None:
        return None
    try:
        expression = parse_expression(text, side.name)
        check_predicate(expression, {side.name: arrow_schema(side.columns)})
    except ExpressionError as problem:
        raise error(path, str(problem)) from problem
    return expression


def aggregate_steps(
    job: StreamJoin, aggregation: Aggregation, rows: AggregatedRows, number: int, input_filter: Expression | None = None
) -> tuple[StepSpec, ...]:
    """Return the steps that aggregate the rows behind `number` steps: one, two with `then`, and one more that ranks the
    rows of the last aggregate. `input_filter` is that of an only input."""
    then, following, top = aggregation.then, aggregation.next, job.top_of_windows
    last = following or aggregation
    error, error_of_then = error_of_aggregate(job), error_of_aggregate(job, "then.")
    sort_expressions = list[Expression]()
    read_by_top = read_next = None
    if top is not None:
        for path, text in top.expressions.items():
            with errors_at(job, f"spec.{top.field}.{path}"):
                sort_expressions.append(parse_expression(text))
        read_by_top = read_next = NextStep(_columns_read_by_top(job, top, sort_expressions, last), error)
    if following is not None:
        aggregated = {name for aggregate in following.aggregates for name in aggregate.columns}
        read_next = NextStep({*following.group_by, *aggregated}, error_of_then, following.compute)
    compiler = AggregateCompiler(job, aggregation, rows, error, read_next=read_next)
    steps = [compiler.step(number, input_filter=input_filter)]
    if then is not None and following is not None:
        second = AggregateCompiler(
            job,
            following,
            _rows_made_by(steps[-1], rows),
            error_of_then,
            same_windows=then.same_windows,
            read_next=read_by_top,
        )
        steps.append(second.step(number + 1))
    if top is not None:
        ranked = _rows_made_by(steps[-1], rows)
        steps.append(_top_step(job, top, tuple(sort_expressions), last, ranked, number + len(steps)))
    return tuple(steps)


def _rows_made_by(step: StepSpec, rows: AggregatedRows) -> AggregatedRows:
    """Return the rows that a step has made of `rows`."""
    schema = step.output_schema()
    return AggregatedRows(
        schema=schema,
        names={name: name for name in schema.names},
        columns=schema.names,
        inputs=rows.inputs,
        time=rows.time,
        event_time=WINDOW_TIME,
        chained=True,
    )


# --- the first rows of windows ----------------------------------------------------------------------------------------


def _columns_read_by_top(
    job: StreamJoin, top: TopN, sort_expressions: Sequence[Expression], aggregation: Aggregation
) -> Collection[str]:
    """Return the columns of the aggregation's rows that they are ranked by, or that the job emits or computes what it
    emits of. The times of their windows, which the step knows, are among them only if rows are ranked by these."""
    names = {column: name for name, column in aggregation.columns_by_name.items()}
    emitted = {column.step_column for column in job.output_columns if column.step_column is not None}
    read = {names.get(column, column) for column in emitted}
    for number, column in enumerate(job.output_columns):
        if column.expression is not None:
            with errors_at(job, select_path(number)):
                read |= {ref.column for ref in parse_expression(aggregation.over_rows(column.expression)).columns}
    if top.having is not None:
        with errors_at(job, f"spec.{top.field}.having"):
            read |= {ref.column for ref in parse_expression(top.having).columns}
    sorted_by = {ref.column for expression in sort_expressions for ref in expression.columns}
    totals = {total.as_: total.column for total in top.totals or ()}
    added_up = {column for column in totals.values() if column is not None}
    return {*top.keys, *sorted_by, *added_up, *(read - {*RANK_COLUMNS, *totals})}


def _top_step(
    job: StreamJoin,
    top: TopN,
    sort_expressions: tuple[Expression, ...],
    aggregation: Aggregation,
    rows: AggregatedRows,
    number: int,
) -> StepSpec:
    """Return the step that emits the first of an aggregation's `rows` of each key and window (R6)."""
    schema = rows.schema
    types_by_text = dict[str, pa.DataType]()
    for (path, text), expression in zip(top.expressions.items(), sort_expressions, strict=True):
        with errors_at(job, f"spec.{top.field}.{path}"):
            types_by_text[text] = column_type(expression, {"": schema})
    intake = Intake(
        schema=schema,
        event_time=rows.event_time,
        keys=top.keys,
        stored=tuple(name for name in schema.names if name != rows.event_time),
        grouped=True,
        chained=True,
    )
    kind = next(kind for kind in ranking_kinds() if isinstance(top, kind.written_as))
    side = SideSpec(part_behind(top.field, number), rows.inputs, rows.time, intake, flags=True)
    names = {column: name for name, column in aggregation.columns_by_name.items()}
    window_times = arrow_type(job.window_times)

    def value_type(total: WindowTotal) -> pa.DataType | None:
        if total.expression is not None:
            return types_by_text[total.expression]
        return None if total.column is None else schema.field(total.column).type

    calls = tuple(
        total_call(job, top, total_number, total, value_type(total))
        for total_number, total in enumerate(top.totals or ())
        if not (total.is_rank or total.is_of_another_row)
    )
    types = {call.name: accumulator(call).result_type for call in calls}
    for total in top.totals or ():
        if total.is_rank:
            types[total.as_] = pa.float64() if total.function in FRACTIONS else pa.int64()
        elif total.is_of_another_row and (type_of_value := value_type(total)) is not None:
            types[total.as_] = type_of_value
    added = [
        *(pa.field(name, window_times) for name in WINDOW_COLUMNS),
        pa.field(ROW_NUMBER, pa.int64()),
        *(pa.field(name, kind) for name, kind in types.items()),
    ]
    readable = pa.schema([*added, *(field for field in schema if field.name not in RANK_COLUMNS)])
    output = []
    for number_in_select, column in enumerate(job.output_columns):
        written = column.step_column or ""
        if column.expression is not None:
            with errors_at(job, select_path(number_in_select)):
                expression = parse_expression(aggregation.over_rows(column.expression))
                output.append(OutputColumn(column.name, column_type(expression, {"": readable}), expression=expression))
        elif written in types:
            output.append(OutputColumn(column.name, types[written], step_column=written))
        elif written in RANK_COLUMNS:
            output.append(OutputColumn(column.name, arrow_type(column.type or job.window_times), step_column=written))
        else:
            output.append(OutputColumn(column.name, schema.field(names[written]).type, column=names[written]))
    kind_of_rows = kind.of(top, sort_expressions, cast(AlignedWindow, aggregation.form), calls)
    having = None
    if top.having is not None:
        with errors_at(job, f"spec.{top.field}.having"):
            having = parse_expression(top.having)
            check_predicate(having, {"": readable})
    return StepSpec(number, (side,), kind_of_rows, None, tuple(output), filter=having, window_times=window_times)


def total_call(job: StreamJoin, top: TopN, number: int, total: WindowTotal, kind: pa.DataType | None) -> AggregateCall:
    """Return the call of a total over the rows of a window (R9), or of a running total (R11), over values of type
    `kind`."""
    if total.value is None:
        return AggregateCall(total.function, total.as_)
    if not takes(total.function, type_name(kind) or ""):
        facts = f"{total.function} takes {takes_text(total.function)}, and {total.value!r} is {kind}"
        path = f"spec.{top.field}.totals[{number}].{'column' if total.expression is None else 'expression'}"
        raise error_at(job, path, f"{facts}; choose another function or column")
    return AggregateCall(total.function, total.as_, total.value, kind)


# --- an aggregate -----------------------------------------------------------------------------------------------------


def error_of_aggregate(job: StreamJoin, prefix: str = "") -> ToError:
    """Make errors about fields of the job's aggregate."""
    return lambda path, message: error_at(job, f"spec.aggregate.{prefix}{path}", message)


def error_at(job: StreamJoin | SessionWindow, path: str, message: str) -> JobError:
    """Make the error of a field, or of the SQL that stands for it."""
    return JobError(job.name, [Problem(path if job.spec.sql is None else SQL_PATH, message)])


@contextmanager
def errors_at(job: StreamJoin | SessionWindow, path: str) -> Iterator[None]:
    """Make an error of an expression that of the field at `path`, or of the SQL that stands for it."""
    try:
        yield
    except ExpressionError as problem:
        raise error_at(job, path, str(problem)) from problem


def select_path(number: int) -> str:
    """Return the path of an expression that the job emits."""
    return f"spec.select[{number}].expression"


@dataclass(frozen=True, slots=True)
class NextStep:
    """What the step behind an aggregate reads of its rows: `columns`, of which some are `computed` of the others."""

    columns: Collection[str]
    error: ToError
    computed: Sequence[ComputedColumn] = ()


class AggregateCompiler:
    """Compiles one aggregation. `same_windows`: the rows are those of an aggregate with the same windows. `read_next`
    is what the step behind it reads (None: it is the last step)."""

    def __init__(
        self,
        job: StreamJoin | SessionWindow,
        aggregation: Aggregation,
        rows: AggregatedRows,
        error: ToError,
        *,
        same_windows: bool = False,
        read_next: NextStep | None = None,
    ) -> None:
        self._job, self._aggregation, self._rows, self._error = job, aggregation, rows, error
        self._read_next = read_next
        self._keys = tuple(rows.names[name] for name in aggregation.group_by)
        self._aggregates = tuple(self._aggregate(n, aggregate) for n, aggregate in enumerate(aggregation.aggregates))
        kind = next(kind for kind in aggregate_kinds() if isinstance(aggregation.form, kind.written_as))
        self._kind = kind.of(aggregation, self._aggregates)
        if same_windows:
            self._kind = self._kind.of_same_windows()

    def step(
        self,
        number: int,
        part: str | None = None,
        *,
        where: Expression | None = None,
        input_filter: Expression | None = None,
    ) -> StepSpec:
        """Return the step with this number. `part` is that of its state (None: that of an aggregate at this place),
        `where` a condition on the rows, `input_filter` that of the input itself."""
        read = {*self._keys, *(name for call in self._aggregates for name in call.columns)}
        rows = self._rows
        intake = Intake(
            schema=rows.schema,
            event_time=rows.event_time,
            keys=self._keys,
            stored=tuple(name for name in rows.schema.names if name in read),
            computed=rows.computed,
            grouped=True,
            chained=rows.chained,
            predicate=where,
            filter=input_filter,
        )
        state = self._kind.state_schema(intake)
        part = part_behind(self._aggregation.field, number) if part is None else part
        side = SideSpec(part, rows.inputs, rows.time, intake, flags=True, state=state)
        output = tuple(self._output())
        having, key = None, self._aggregation.changelog_key
        if self._aggregation.having is not None:
            try:
                having = self._over_step_columns(self._aggregation.having)
                check_predicate(having, {"": pa.schema(list(self._step_types().items()))})
            except ExpressionError as problem:
                raise self._error("having", str(problem)) from problem
        return StepSpec(
            number,
            (side,),
            self._kind,
            None,
            output,
            filter=having,
            changelog_key=None if key is None else tuple(rows.names.get(name, name) for name in key),
            window_times=arrow_type(self._job.window_times),
        )

    def _over_step_columns(self, text: str) -> Expression:
        """Parse an expression over groups, aggregates and columns of the window, as the job names them."""
        (only, *others), groups = self._rows.inputs, dict(zip(self._aggregation.group_by, self._keys, strict=True))
        if not others and not self._rows.chained:  # the input's name may be left out, and it may stand there
            groups |= {f"{only}.{name}": key for name, key in groups.items()}
        return with_columns(parse_expression(text), groups)

    def _step_types(self) -> dict[str, pa.DataType]:
        """Return the types of the step's columns, as the kind makes them."""
        types = {name: self._rows.schema.field(name).type for name in self._keys}
        return {
            **types,
            **self._kind.column_types,
            **{call.name: accumulator(call).result_type for call in self._aggregates},
        }

    def _output(self) -> Iterator[OutputColumn]:
        following, groups = self._read_next, dict(zip(self._aggregation.group_by, self._keys, strict=True))
        if following is None:
            for number, field in enumerate(self._job.output_columns):
                if field.expression is None:
                    yield self._plain_column(field.name, groups.get(field.step_column or "", field.step_column or ""))
                    continue
                with errors_at(self._job, select_path(number)):
                    yield self._computed_column(field.name, self._over_step_columns(field.expression))
            return
        columns = {name: groups.get(written, written) for name, written in self._aggregation.columns_by_name.items()}
        for name, column in columns.items():
            if name in following.columns:
                yield self._plain_column(name, column)
        for number, item in enumerate(following.computed):
            try:
                expression = with_columns(parse_expression(item.expression), columns)
                yield self._computed_column(item.as_, expression)
            except ExpressionError as problem:
                raise following.error(f"compute[{number}].expression", str(problem)) from problem
        yield self._plain_column(WINDOW_TIME, WINDOW_TIME)

    def _plain_column(self, name: str, column: str) -> OutputColumn:
        return OutputColumn(name, self._emitted_types()[column], step_column=column)

    def _computed_column(self, name: str, expression: Expression) -> OutputColumn:
        schema = pa.schema(list(self._emitted_types().items()))
        return OutputColumn(name, column_type(expression, {"": schema}), expression=expression)

    def _emitted_types(self) -> dict[str, pa.DataType]:
        """Return the types that the step's columns have in its output, and in the expressions there."""
        times = dict.fromkeys(WINDOW_COLUMNS, arrow_type(self._job.window_times))
        return {**self._step_types(), **times, RETRACTED: pa.bool_()}

    def _aggregate(self, number: int, aggregate: Aggregate) -> AggregateCall:
        names = [self._rows.names[name] if name is not None else "" for name in (aggregate.column, aggregate.by)]
        kind, by_type = (self._rows.schema.field(name).type if name else None for name in names)
        if kind is not None and not takes(aggregate.function, type_name(kind) or ""):
            facts = f"{aggregate.function} takes {takes_text(aggregate.function)}, and {aggregate.column!r} is {kind}"
            raise self._error(f"aggregates[{number}].column", f"{facts}; choose another function or type")
        if by_type is not None and not has_order(type_name(by_type) or ""):
            facts = f"takes all types but boolean and binary, and {aggregate.by!r} is {by_type}"
            raise self._error(f"aggregates[{number}].by", f"{facts}; choose another column")
        return AggregateCall(
            aggregate.function,
            aggregate.as_,
            names[0],
            kind,
            aggregate.values_limit,
            names[1],
            by_type,
            share=Fraction(1, 2) if aggregate.percentile is None else Fraction(str(aggregate.percentile)),
            separator="," if aggregate.separator is None else aggregate.separator,
            condition=aggregate.condition(self._rows.columns),
        )


@cache
def ranking_kinds() -> tuple[type[Ranking], ...]:
    """Return the kinds of step that emit some of their rows."""
    return find_kinds(Ranking)  # type: ignore[type-abstract]


@cache
def aggregate_kinds() -> tuple[type[Aggregating], ...]:
    """Return the kinds of window that aggregate rows."""
    return find_kinds(Aggregating)  # type: ignore[type-abstract]
