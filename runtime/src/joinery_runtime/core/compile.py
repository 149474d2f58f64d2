"""From the resource to the core's `JoinSpec`: bounds per side, predicates split by side, columns to store."""

from __future__ import annotations

from collections.abc import Iterable

from joinery_runtime.core.expression import (
    ColumnRef,
    Expression,
    check_predicate,
    conjunction,
    conjuncts,
    parse_expression,
)
from joinery_runtime.core.schema import arrow_schema
from joinery_runtime.core.spec import LEFT, RIGHT, JoinSpec, OutputColumn, SideSpec
from joinery_runtime.errors import ExpressionError, JobError, Problem
from joinery_runtime.job import Input, StreamJoin

WHERE_PATH = "spec.joins[0].where"
SQL_PATH = "spec.sql"


def compile_join(job: StreamJoin) -> JoinSpec:
    """Raises JobError naming `spec.joins[0].where`, or the SQL, when the predicate does not fit the inputs."""
    left, right = job.left, job.right
    predicates = _Predicates.of(job)
    lower, upper = job.interval.lower, job.interval.upper
    used = {ColumnRef(c.source.input, c.source.column) for c in job.output_columns} | predicates.residual_columns
    sides = (
        _side(left, [pair.left for pair in job.key_pairs], used, predicates.left, (lower, upper)),
        _side(right, [pair.right for pair in job.key_pairs], used, predicates.right, (-upper, -lower)),
    )
    output = tuple(
        OutputColumn(LEFT if c.source.input == left.name else RIGHT, c.source.column, c.name)
        for c in job.output_columns
    )
    return JoinSpec(
        sides=sides,
        residual=predicates.residual,
        output=output,
        allowed_lateness_ms=job.step.allowed_lateness,
        drop_late=job.step.late_data == "drop",
    )


def stored_columns(spec: JoinSpec) -> dict[str, tuple[str, ...]]:
    """Columns that segments keep, per input: what the job's signature needs."""
    return {side.input: side.stored for side in spec.sides}


class _Predicates:
    """`where` taken apart: what only one side can decide is decided before the shuffle and never kept (J4)."""

    def __init__(self, parts: Iterable[Expression], left: str, right: str) -> None:
        by_side: dict[frozenset[str], list[Expression]] = {}
        for part in parts:
            by_side.setdefault(frozenset(ref.input for ref in part.columns), []).append(part)
        self.left = conjunction(by_side.pop(frozenset({left}), []))
        self.right = conjunction(by_side.pop(frozenset({right}), []))
        self.residual = conjunction([part for rest in by_side.values() for part in rest])

    @classmethod
    def of(cls, job: StreamJoin) -> _Predicates:
        text = job.step.where
        return cls(conjuncts(_checked(job, text)) if text else [], job.left.name, job.right.name)

    @property
    def residual_columns(self) -> frozenset[ColumnRef]:
        return self.residual.columns if self.residual is not None else frozenset()


def _checked(job: StreamJoin, text: str) -> Expression:
    try:
        expression = parse_expression(text)
        check_predicate(expression, {side.name: arrow_schema(side.columns) for side in (job.left, job.right)})
    except ExpressionError as error:
        raise JobError(job.name, [Problem(WHERE_PATH if job.spec.sql is None else SQL_PATH, str(error))]) from error
    return expression


def _side(
    side: Input, keys: list[str], used: set[ColumnRef], predicate: Expression | None, partner: tuple[int, int]
) -> SideSpec:
    wanted = {ref.column for ref in used if ref.input == side.name} | set(keys)
    stored = [name for name in side.types if name in wanted and name != side.event_time]
    return SideSpec(
        input=side.name,
        schema=arrow_schema(side.columns),
        event_time=side.event_time,
        keys=tuple(keys),
        stored=tuple(stored),
        predicate=predicate,
        partner_lower_ms=partner[0],
        partner_upper_ms=partner[1],
    )
