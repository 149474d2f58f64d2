"""Compiles the branches of a union: how rows of a branch's input become rows of the union (rule U3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from joinery_runtime.core.compile.aggregates import SQL_PATH
from joinery_runtime.core.pipeline.expression import (
    Expression,
    check_predicate,
    column_type,
    conjunction,
    parse_expression,
)
from joinery_runtime.core.pipeline.operators import type_text
from joinery_runtime.core.table.columns import arrow_schema
from joinery_runtime.errors import ExpressionError, JobError, Problem
from joinery_runtime.job import StreamJoin
from joinery_runtime.job.model.unions import UnionInput, UnitedInput


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


def compile_branch(branch: UnitedInput, union: UnionInput) -> BranchRows:
    """Raise ExpressionError if an expression of the branch does not fit its input."""
    source = branch.source
    schemas = {source.name: arrow_schema(source.columns)}
    conditions = [parse_expression(text, source.name) for text in (source.where, branch.where) if text is not None]
    for condition in conditions:
        check_predicate(condition, schemas)
    schema = arrow_schema(union.columns)
    columns = [
        _column(text, source.name, schemas, field) for field, (_, text) in zip(schema, branch.columns, strict=True)
    ]
    return BranchRows(source.event_time, conjunction(conditions), tuple(columns), schema)


def _column(text: str, name: str, schemas: dict[str, pa.Schema], field: pa.Field) -> Expression:
    expression = parse_expression(text, name)
    kind = column_type(expression, schemas)
    is_null = pa.types.is_null(
        expression.evaluate(lambda ref: pa.array([], schemas[name].field(ref.column).type), 0).values.type
    )
    if kind != field.type and not is_null:
        raise ExpressionError(
            f"{text!r} gives {type_text(kind)}",
            facts=f"column {field.name!r} of the union is {type_text(field.type)}",
            todo=f"Write CAST({text} AS {type_text(field.type)})",
        )
    if expression.calls_declared:
        raise ExpressionError(
            f"{text!r} calls a function of the job",
            facts="a branch has the functions of SQL",
            todo="Call it behind the union",
        )
    return expression


def check_unions(job: StreamJoin) -> None:
    """Raise JobError naming each branch with an expression that does not fit its input."""
    problems = list(_problems(job))
    if problems:
        raise JobError(job.name, problems)


def _problems(job: StreamJoin) -> Iterator[Problem]:
    written = [union.name for union in job.spec.unions]
    for side in (side for side in job.inputs if isinstance(side, UnionInput)):
        for number, branch in enumerate(side.branches):
            try:
                compile_branch(branch, side)
            except ExpressionError as error:
                if side.name in written:
                    yield Problem(f"spec.unions[{written.index(side.name)}].branches[{number}]", str(error))
                else:
                    yield Problem(SQL_PATH, str(error))
