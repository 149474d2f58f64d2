"""Compiles what makes rows match: keys that are expressions (rule J12), each a column that its input's rows get as they
are read, and the side and the step that decide a condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import pyarrow as pa

from joinery_runtime.core.kinds.base import Join
from joinery_runtime.core.pipeline.expression import ColumnRef, Expression, column_type, parse_expression
from joinery_runtime.core.pipeline.operators import type_text
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT
from joinery_runtime.errors import ExpressionError, JobError, Problem
from joinery_runtime.job import JoinStep, KeyPair, Reference, StreamJoin
from joinery_runtime.job.model.references import ComputedKey
from joinery_runtime.job.model.wording import listed


class KeyCompiler:
    """The computed keys of a job. `declared` are the schemas of its inputs."""

    def __init__(self, job: StreamJoin, declared: Mapping[str, pa.Schema]) -> None:
        self._job, self._declared = job, dict(declared)
        self.expressions: dict[ColumnRef, Expression] = {}
        self._types: dict[ColumnRef, pa.DataType] = {}

    def compile(self) -> None:
        """Compile the keys of all steps. Raises JobError, which names each key whose expression does not fit its input
        or whose sides have different types."""
        problems: list[Problem] = []
        padded: set[str] = set()  # inputs that are nulls in some of the rows that the steps before made
        for number, step in enumerate(self._job.joins):
            for pair, text in zip(self._job.keys_of(step), step.keys, strict=True):
                path = f'spec.joins[{number}].keys["{text}"]' if self._job.spec.sql is None else "spec.sql"
                try:
                    self._compile_pair(pair, padded)
                except ExpressionError as error:
                    problems.append(Problem(path, str(error)))
            padded |= {step.right} if step.preserved[0] else set()
            padded |= {*self._job.left_inputs(number)} if step.preserved[1] else set()
        if problems:
            raise JobError(self._job.name, problems)

    def schema_of(self, name: str) -> pa.Schema:
        """Return the columns of an input, with its computed keys last."""
        added = [pa.field(ref.column, kind) for ref, kind in self._types.items() if ref.input == name]
        return pa.schema([*self._declared[name], *added])

    def computed_of(self, name: str) -> tuple[tuple[str, Expression], ...]:
        """Return the input's computed keys, in the order of its schema."""
        return tuple((ref.column, expression) for ref, expression in self.expressions.items() if ref.input == name)

    def _compile_pair(self, pair: KeyPair, padded: set[str]) -> None:
        for side in (pair.left, pair.right):
            if not isinstance(side, ComputedKey):
                continue
            expression = parse_expression(side.text)
            kind = column_type(expression, self._declared)
            if side.input in padded and not expression.is_null_of_nulls(self._declared[side.input]):
                gives = "may give" if expression.calls_declared else "gives"
                has_value = " OR ".join(f"{column} IS NOT NULL" for column in side.reads)
                raise ExpressionError(
                    f"{side.text!r} {gives} a value where {listed(map(str, side.reads))} is NULL",
                    facts=f"a step before pads {side.input} with nulls, and a key is computed as its record is read",
                    todo=f"Write an expression that is NULL there: CASE WHEN {has_value} THEN {side.text} END",
                )
            ref = ColumnRef(side.input, side.column)
            self.expressions[ref], self._types[ref] = expression, kind
        left, right = self._type(pair.left), self._type(pair.right)
        if _key_type(left) != _key_type(right):
            facts = f"{pair.left} is {type_text(left)}, {pair.right} is {type_text(right)}"
            todo = "Write a CAST on one side (int32 and int64 may meet)"
            raise ExpressionError("key types differ", facts=facts, todo=todo)

    def _type(self, side: Reference) -> pa.DataType:
        computed = self._types.get(ColumnRef(side.input, side.column))
        return self._declared[side.input].field(side.column).type if computed is None else computed


def _key_type(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if kind == pa.int32() else kind


# --- conditions -------------------------------------------------------------------------------------------------------


def deciding_side(part: Expression, left: tuple[str, ...], step: JoinStep, kind: Join) -> int | None:
    """Return the side that decides a predicate alone: rows that fail it are never kept (J4). A table must keep all of
    its rows, because dropping a version does not make an older one valid."""
    inputs = {ref.input for ref in part.columns}
    if inputs and inputs <= set(left):
        return LEFT
    return RIGHT if inputs == {step.right} and not kind.right_is_table else None


def move_conditions(steps: Sequence[JoinStep], written: Sequence[Sequence[Expression]]) -> list[list[Expression]]:
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
