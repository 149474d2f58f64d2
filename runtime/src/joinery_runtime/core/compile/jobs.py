"""Compiles a job as a whole: its pipeline, and which rows and columns of the last step each of its outputs has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from joinery_runtime.core.compile.aggregates import SQL_PATH, compile_session
from joinery_runtime.core.compile.inputs import check_unions, compile_only_input
from joinery_runtime.core.compile.joins import JoinCompiler
from joinery_runtime.core.pipeline.expression import Expression, check_predicate, parse_expression
from joinery_runtime.core.pipeline.functions.declared import DeclaredFunction, DeclaredFunctions, calling
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS
from joinery_runtime.core.table.columns import arrow_type
from joinery_runtime.errors import ExpressionError, JobError, Problem
from joinery_runtime.job import Job, SessionWindow, StreamJoin
from joinery_runtime.job.model.draft import path_text
from joinery_runtime.job.sql import placed

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


def compile_job(job: Job) -> Pipeline:
    """Compile any job. Raises JobError with the place if an expression does not fit the inputs."""
    pipeline, _ = compile_with_functions(job)
    return pipeline


def compile_with_functions(job: Job) -> tuple[Pipeline, DeclaredFunctions]:
    """Like `compile_job`. Also returns the functions that the job declares, with their calls."""
    declared = {
        function.name.upper(): DeclaredFunction(function.name, function.python, arrow_type(function.returns))
        for function in job.spec.functions
    }
    functions = DeclaredFunctions(declared)
    try:
        with calling(functions):
            match job:
                case StreamJoin():
                    pipeline = compile_join(job)
                case SessionWindow():
                    pipeline = compile_session(job)
                case _:
                    raise TypeError(f"no compiler for {job.kind}")
            row_selections(job, pipeline.output_schema())
    except JobError as error:
        sql = job.spec.sql if isinstance(job, StreamJoin | SessionWindow) else None
        if sql is None:
            raise
        sessions = isinstance(job, SessionWindow)
        problems = [
            replace(problem, message=placed(problem.message, sql, sessions=sessions))
            if problem.path == SQL_PATH
            else problem
            for problem in error.problems
        ]
        raise JobError(job.name, problems) from error
    return pipeline, functions


def compile_join(job: StreamJoin) -> Pipeline:
    """Compile a join. Raises JobError naming `spec.joins[n].where`, `spec.select[n].expression` or the SQL if an
    expression does not fit the inputs."""
    check_unions(job)
    if not job.joins and not job.rankings:
        return compile_only_input(job)
    return JoinCompiler(job).pipeline()


def stored_columns(pipeline: Pipeline) -> dict[str, tuple[str, ...]]:
    """Return the columns that segments store, per part of the state, for the job's signature."""
    return {part: side.stored for part, side in pipeline.parts().items()}


# --- outputs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Some of the rows and columns. `condition` (None: every row) cannot fail and refers to columns of the rows, of
    whichever input. `columns` (None: all) pairs each column's name in the rows with its name in the output."""

    condition: Expression | None = None
    columns: tuple[tuple[str, str], ...] | None = None

    def schema(self, rows: pa.Schema) -> pa.Schema:
        if self.columns is None:
            return rows
        return pa.schema([rows.field(column).with_name(name) for column, name in self.columns])

    def mask(self, rows: pa.RecordBatch | pa.Table) -> np.ndarray:
        """bool[n]: which of the rows the output has."""
        if self.condition is None:
            return np.ones(rows.num_rows, dtype=bool)
        evaluated = self.condition.mask(lambda ref: rows.column(ref.column), rows.num_rows)
        return np.asarray(evaluated.values.to_numpy(zero_copy_only=False))

    def select(self, rows: Rows, *, ordered: bool = False) -> Rows:
        """Return the output's rows with its columns; if `ordered`, with those of ORDER_COLUMNS that the rows have."""
        selected = rows if self.condition is None else rows.filter(pa.array(self.mask(rows)))
        names = rows.schema.names
        pairs = self.columns or tuple((name, name) for name in names if name not in ORDER_COLUMNS)
        pairs += tuple((name, name) for name in ORDER_COLUMNS if ordered and name in names)
        return selected.select([column for column, _ in pairs]).rename_columns([name for _, name in pairs])


def row_selections(job: Job, schema: pa.Schema) -> tuple[RowSelection, ...]:
    """Compile the selection of each output, in the job's order. `schema` is that of the job's rows. Raises JobError
    naming `spec.outputs[n].when`."""
    selections = []
    for number, output in enumerate(job.outputs):
        condition, path = None, path_text(("spec", "outputs", number, "when"))
        if output.when is not None:
            try:
                condition = parse_expression(output.when, output.name)
                check_predicate(condition, {output.name: schema})
            except ExpressionError as error:
                raise JobError(job.name, [Problem(path, str(error))]) from error
            if condition.may_fail:
                facts = f"{output.when!r} may fail on a row, and a row that has been joined is no dead letter any more"
                todo = "compute it as a column of `select`, and compare that"
                raise JobError(job.name, [Problem(path, f"{facts}; {todo}")])
        columns = None
        if output.select is not None:
            columns = tuple((item.column, item.as_ or item.column) for item in output.select)
        selections.append(RowSelection(condition, columns))
    return tuple(selections)
