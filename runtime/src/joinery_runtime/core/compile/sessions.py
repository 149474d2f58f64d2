"""Compiles a `SessionWindow` to the core's `Pipeline`: one step with one side, whose state is made of sessions."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from joinery_runtime.core.aggregates import AggregateCall, accumulator
from joinery_runtime.core.kinds.session.change import state_schema
from joinery_runtime.core.kinds.session.kind import SessionAggregation
from joinery_runtime.core.pipeline.expression import Expression, check_predicate, column_type, parse_expression
from joinery_runtime.core.pipeline.sides import SESSIONS, Intake, OutputColumn, SideSpec
from joinery_runtime.core.pipeline.spec import InputSpec, Pipeline, StepSpec
from joinery_runtime.core.table.columns import arrow_schema, arrow_type, type_name
from joinery_runtime.errors import ExpressionError, JobError, Problem
from joinery_runtime.job import Aggregate, SessionWindow
from joinery_runtime.job.kinds.session.sessions import takes, takes_text
from joinery_runtime.job.model.references import RETRACTED, SESSION_COLUMNS, WINDOW_COLUMNS

SESSION_TYPES = dict(zip(SESSION_COLUMNS, (pa.int64(), pa.int64(), pa.uint64()), strict=True))


def compile_session(job: SessionWindow) -> Pipeline:
    """Compiles a session job. Raises JobError naming `spec.where`, `spec.compute[n].expression` or the SQL if an
    expression does not fit the input, and `spec.aggregates[n].column` if an aggregate does not take the column's
    type."""
    compiler = _SessionCompiler(job)
    step = StepSpec(0, (compiler.side(),), compiler.kind(), None, tuple(compiler.output()))
    return Pipeline((InputSpec(job.spec.input.name, 0, 0),), (step,))


@dataclass(frozen=True, slots=True)
class _ComputedColumn:
    name: str
    expression: Expression
    type: pa.DataType


class _SessionCompiler:
    def __init__(self, job: SessionWindow) -> None:
        self._job, self._sessions, self._input = job, job.sessions, job.spec.input
        self._declared = arrow_schema(self._input.columns)
        self._computed = [self._compute(n, c.as_, c.expression) for n, c in enumerate(self._sessions.compute)]
        self._schema = pa.schema([*self._declared, *(pa.field(c.name, c.type) for c in self._computed)])
        self._aggregates = tuple(self._aggregate(n, aggregate) for n, aggregate in enumerate(self._sessions.aggregates))

    def kind(self) -> SessionAggregation:
        spec = self._job.spec
        return SessionAggregation(
            gap=self._sessions.gap,
            max_duration=spec.max_duration,
            aggregates=self._aggregates,
            allowed_lateness=spec.allowed_lateness,
            drop_late=spec.late_data != "reopen",
            retracts=spec.emit_retractions,
            late_to_dead_letters=spec.late_data == "dlq",
        )

    def side(self) -> SideSpec:
        intake = self._intake()
        state = state_schema(intake, self._aggregates)
        return SideSpec(SESSIONS, (self._input.name,), self._input.name, intake, flags=True, state=state)

    def output(self) -> list[OutputColumn]:
        types = {name: self._schema.field(name).type for name in self._sessions.group_by}
        types |= {**SESSION_TYPES, **{call.name: accumulator(call).result_type for call in self._aggregates}}
        types |= dict.fromkeys(WINDOW_COLUMNS, arrow_type(self._job.window_times))
        types[RETRACTED] = pa.bool_()
        return [
            OutputColumn(column.name, types[column.step_column or ""], step_column=column.step_column)
            for column in self._job.output_columns
        ]

    def _intake(self) -> Intake:
        keys = self._sessions.group_by
        read = {*keys, *(call.column for call in self._aggregates if call.column)}
        return Intake(
            schema=self._schema,
            event_time=self._input.event_time,
            keys=keys,
            stored=tuple(name for name in self._schema.names if name in read),
            predicate=self._predicate("spec.where", self._sessions.where),
            filter=self._predicate("spec.input.where", self._input.where),
            computed=tuple((c.name, c.expression) for c in self._computed),
            grouped=True,
        )

    def _aggregate(self, number: int, aggregate: Aggregate) -> AggregateCall:
        kind = self._schema.field(aggregate.column).type if aggregate.column is not None else None
        if kind is not None and not takes(aggregate.function, type_name(kind) or ""):
            facts = f"{aggregate.function} takes {takes_text(aggregate.function)}, and {aggregate.column!r} is {kind}"
            raise self._error(f"spec.aggregates[{number}].column", f"{facts}; choose another function or type")
        return AggregateCall(aggregate.function, aggregate.as_, aggregate.column or "", kind, aggregate.distinct_limit)

    # --- expressions --------------------------------------------------------------------------------------------------

    def _predicate(self, path: str, text: str | None) -> Expression | None:
        if text is None:
            return None
        try:
            expression = parse_expression(text, self._input.name)
            check_predicate(expression, {self._input.name: self._declared})
        except ExpressionError as error:
            raise self._error(path, str(error)) from error
        return expression

    def _compute(self, number: int, name: str, text: str) -> _ComputedColumn:
        try:
            expression = parse_expression(text, self._input.name)
            kind = column_type(expression, {self._input.name: self._declared})
        except ExpressionError as error:
            raise self._error(f"spec.compute[{number}].expression", str(error)) from error
        return _ComputedColumn(name, expression, kind)

    def _error(self, path: str, message: str) -> JobError:
        of_sql = self._job.spec.sql is not None and path != "spec.input.where"
        return JobError(self._job.name, [Problem("spec.sql" if of_sql else path, message)])
