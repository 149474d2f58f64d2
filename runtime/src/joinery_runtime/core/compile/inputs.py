"""Compiles what a `StreamJoin` says about single inputs: their filters, the branches of a union, and a job of one input
without joins, which aggregates its records, or makes a row of each by itself (rule P1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from joinery_runtime.core.compile.aggregates import (
    SQL_PATH,
    aggregate_steps,
    error_of_aggregate,
    errors_at,
    rows_of_input,
    select_path,
)
from joinery_runtime.core.kinds.projection import RecordProjection
from joinery_runtime.core.pipeline.expression import (
    Expression,
    check_predicate,
    column_type,
    conjunction,
    parse_expression,
    value_type,
)
from joinery_runtime.core.pipeline.operators import type_text
from joinery_runtime.core.pipeline.sides import Intake, OutputColumn, Placement, SideSpec
from joinery_runtime.core.pipeline.spec import BranchSpec, InputSpec, Pipeline, StepSpec
from joinery_runtime.core.table.columns import arrow_schema
from joinery_runtime.errors import ExpressionError, JobError, Problem
from joinery_runtime.job import Input, StreamJoin
from joinery_runtime.job.model.unions import UnionInput, UnitedInput

_PROJECTED = "rows"  # the part that the side of a projection would have; no segment has it


def compile_only_input(job: StreamJoin) -> Pipeline:
    """Compile a job without joins. Raises JobError naming `spec.inputs[0].where`, `spec.select[n].expression`, a field
    of `spec.aggregate`, or the SQL if an expression does not fit the input."""
    (side,) = job.inputs
    condition = input_filter(job, side.name)
    if job.aggregation is None:
        steps: tuple[StepSpec, ...] = (_projection(job, condition),)
    else:
        rows = rows_of_input(job.aggregation, side, job.aggregated_types, error_of_aggregate(job))
        steps = aggregate_steps(job, job.aggregation, rows, 0, condition)
    return Pipeline((input_spec(side, 0, 0),), steps)


def computed_column(
    job: StreamJoin, path: str, text: str, schemas: dict[str, pa.Schema]
) -> tuple[Expression, pa.DataType]:
    """Return an expression over the columns of inputs, with its type. Raises JobError naming the field at `path`, or
    the SQL."""
    with errors_at(job, path):
        expression = parse_expression(text)
        return expression, column_type(expression, schemas)


def input_filter(job: StreamJoin, name: str) -> Expression | None:
    """Return the condition of the input itself."""
    text = job.input_filters.get(name)
    if text is None:
        return None
    try:
        expression = parse_expression(text, name)
        check_predicate(expression, {name: arrow_schema(job.input(name).columns)})
    except ExpressionError as error:
        paths = {side.name: f"spec.inputs[{number}].where" for number, side in enumerate(job.declared_inputs)}
        paths |= {side.name: f"spec.unions[{number}].where" for number, side in enumerate(job.unions)}
        path = SQL_PATH if job.input(name).where is None else paths.get(name, SQL_PATH)
        raise JobError(job.name, [Problem(path, str(error))]) from error
    return expression


# --- each record by itself --------------------------------------------------------------------------------------------


def _projection(job: StreamJoin, condition: Expression | None) -> StepSpec:
    """Return the step that emits the records. Its intake computes their columns: a record on which an expression fails
    can be a dead letter there."""
    (side,) = job.inputs
    declared = arrow_schema(side.columns)
    output, computed, fields = list[OutputColumn](), list[tuple[str, Expression]](), list[pa.Field]()
    problems = list[Problem]()
    for number, column in enumerate(job.output_columns):
        if column.source is not None:
            kind = declared.field(column.source.column).type
            output.append(OutputColumn(column.name, kind, column=column.source.column))
            continue
        path = select_path(number)
        try:
            expression, kind = computed_column(job, path, column.expression or "", {side.name: declared})
        except JobError as error:
            problems += error.problems
            continue
        name = f"$select.{number}"  # no column of a user begins with $
        computed.append((name, expression))
        fields.append(pa.field(name, kind))
        output.append(OutputColumn(column.name, kind, column=name))
    if problems:
        raise JobError(job.name, problems)
    schema = pa.schema([*declared, *fields])
    read = {column.column for column in output} - {side.event_time}  # that is `$ts`
    intake = Intake(
        schema=schema,
        event_time=side.event_time,
        keys=(),
        stored=tuple(name for name in schema.names if name in read),
        placement=Placement.BY_PARTITION,
        computed=tuple(computed),
        filter=condition,
    )
    return StepSpec(
        0, (SideSpec(_PROJECTED, (side.name,), side.name, intake),), RecordProjection(), None, tuple(output)
    )


# --- unions -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BranchRows:
    """`condition` says which rows of the input count (None: all of them), `columns` computes those of `schema`, the
    union's, from the input's. `event_time` is the input's column."""

    event_time: str
    condition: Expression | None
    columns: tuple[Expression, ...]
    schema: pa.Schema

    def compute(self, rows: pa.Table) -> tuple[pa.Table, Mapping[int, str]]:
        """Make rows of the union from rows of the input. Also return, by row, why an expression failed on it."""
        columns, failed = list[pa.Array](), dict[int, str]()
        for expression, field in zip(self.columns, self.schema, strict=True):
            evaluated = expression.evaluate(lambda ref: rows[ref.column].combine_chunks(), rows.num_rows)
            columns.append(evaluated.values.cast(field.type))
            failed = {**evaluated.failed, **failed}
        return pa.table(columns, schema=self.schema), failed


def input_spec(side: Input, step: int, number: int) -> InputSpec:
    """Return what reads an input of the job, or a union of several: `number` is the side of the step."""
    branches = side.branches if isinstance(side, UnionInput) else ()
    return InputSpec(side.name, step, number, tuple(map(_branch_spec, branches)))


def _branch_spec(branch: UnitedInput) -> BranchSpec:
    expressions = {name: parse_expression(text, branch.source.name) for name, text in branch.columns}
    of_records = {
        name: expression.node.name if isinstance(expression.node, exp.Column) else name
        for name, expression in expressions.items()
        if expression.columns
    }
    return BranchSpec(branch.source.name, branch.source.event_time, of_records)


def compile_branch(branch: UnitedInput, union: UnionInput) -> BranchRows:
    """Raise ExpressionError if an expression of the branch does not fit its input."""
    source = branch.source
    schemas = {source.name: arrow_schema(source.columns)}
    conditions = [parse_expression(text, source.name) for text in (source.where, branch.where) if text is not None]
    for condition in conditions:
        check_predicate(condition, schemas)
    schema, columns = arrow_schema(union.columns), list[Expression]()
    for field, (_, text) in zip(schema, branch.columns, strict=True):
        expression = parse_expression(text, source.name)
        kind = column_type(expression, schemas)
        if kind != field.type and not pa.types.is_null(value_type(expression, schemas)):
            raise ExpressionError(
                f"{text!r} gives {type_text(kind)}",
                facts=f"column {field.name!r} of the union is {type_text(field.type)}",
                todo=f"Write CAST({text} AS {type_text(field.type)}), or in each other branch CAST(... AS "
                f"{type_text(kind)}) as {field.name}",
            )
        if expression.calls_declared:
            raise ExpressionError(
                f"{text!r} calls a function of the job",
                facts="a branch has the functions of SQL",
                todo="Call it behind the union",
            )
        columns.append(expression)
    return BranchRows(source.event_time, conjunction(conditions), tuple(columns), schema)


def check_unions(job: StreamJoin) -> None:
    """Raise JobError naming each branch with an expression that does not fit its input."""
    written, problems = [union.name for union in job.spec.unions], list[Problem]()
    for side in (side for side in job.inputs if isinstance(side, UnionInput)):
        for number, branch in enumerate(side.branches):
            try:
                compile_branch(branch, side)
            except ExpressionError as error:
                path = SQL_PATH
                if side.name in written:
                    path = f"spec.unions[{written.index(side.name)}].branches[{number}]"
                problems.append(Problem(path, str(error)))
    if problems:
        raise JobError(job.name, problems)
