"""Compiles what each output of a job has of its rows."""

from __future__ import annotations

import pyarrow as pa

from joinery_runtime.core.pipeline.expression import Expression, check_predicate, parse_expression
from joinery_runtime.core.pipeline.row_selection import RowSelection
from joinery_runtime.errors import ExpressionError, JobError, Problem
from joinery_runtime.job import Job
from joinery_runtime.job.model.draft import path_text
from joinery_runtime.job.model.outputs import NamedOutput


def row_selections(job: Job, schema: pa.Schema) -> tuple[RowSelection, ...]:
    """Compile the selection of each output, in the job's order. `schema` is that of the job's rows. Raises JobError
    naming `spec.outputs[n].when`."""
    return tuple(
        RowSelection(
            None if output.when is None else _condition(job, output, output.when, number, schema),
            None if output.select is None else tuple((item.column, item.as_ or item.column) for item in output.select),
        )
        for number, output in enumerate(job.outputs)
    )


def _condition(job: Job, output: NamedOutput, text: str, number: int, schema: pa.Schema) -> Expression:
    path = path_text(("spec", "outputs", number, "when"))
    try:
        condition = parse_expression(text, output.name)
        check_predicate(condition, {output.name: schema})
    except ExpressionError as error:
        raise JobError(job.name, [Problem(path, str(error))]) from error
    if condition.may_fail:
        facts = f"{text!r} may fail on a row, and a row that has been joined is no dead letter any more"
        raise JobError(job.name, [Problem(path, f"{facts}; compute it as a column of `select`, and compare that")])
    return condition
