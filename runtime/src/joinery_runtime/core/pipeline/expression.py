"""SQL expressions over Arrow columns: sqlglot's syntax tree, evaluated by pyarrow.compute, a whole batch at a time.

Semantics (fixed by tests/core/pipeline/test_expression.py; `operators` has the rules for types, `evaluation` those for
failures):

* NULL follows SQL's three-valued logic; a predicate keeps a row only where it is TRUE.
* Numbers compare and combine by value; NaN compares as in IEEE 754 (equal to nothing, not even itself).
* `/` divides as double; division and remainder by zero are NULL. The remainder has the dividend's sign and does not
  accept decimals.
* A row on which an expression cannot be computed (an overflow, a CAST that does not fit) fails with a reason; its
  neighbours do not. Values never wrap. `AND`, `OR`, `CASE` and `COALESCE` shield what they guard, from left to right.
* Strings compare by code points. `timestamp + INTERVAL` and `timestamp - INTERVAL` are exact; months are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp
from sqlglot.errors import SqlglotError

from joinery_runtime.core.pipeline.evaluation import evaluate, first_line, is_known, may_fail, unguarded_parts
from joinery_runtime.core.pipeline.functions import called, is_declared, with_unknown_results
from joinery_runtime.core.pipeline.operators import Value, boolean, to_array, type_text
from joinery_runtime.core.table.columns import type_name
from joinery_runtime.errors import ExpressionError
from joinery_runtime.job.model.expression_tree import parse_tree, shown, split_ands
from joinery_runtime.job.model.function_calls import call_of


@dataclass(frozen=True, slots=True, order=True)
class ColumnRef:
    """A column of an input, written `orders.amount` in expressions."""

    input: str
    column: str

    def __str__(self) -> str:
        return f"{self.input}.{self.column}"


Resolve = Callable[[ColumnRef], Value]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One value per row. `failed` gives, by row in ascending order, why a row has no value; its value is NULL."""

    values: pa.Array
    failed: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression. `columns` are the input columns that it reads."""

    text: str
    node: exp.Expr
    columns: frozenset[ColumnRef]

    def evaluate(self, resolve: Resolve, rows: int) -> Evaluated:
        """Evaluate the expression for `rows` rows, whose columns `resolve` gives as arrays. Raises ExpressionError for
        types that do not fit."""
        try:
            value, failed = evaluate(self.node, lambda name, column: resolve(ColumnRef(name, column)), rows)
        except pa.ArrowException as error:
            raise ExpressionError(self._cannot, facts=first_line(error)) from error
        values = to_array(value, rows)
        if failed:
            fine = np.ones(rows, dtype=bool)
            fine[list(failed)] = False
            values = pc.if_else(pa.array(fine), values, pa.scalar(None, values.type))
        return Evaluated(values, {row: f"{self._cannot}: {failed[row]}" for row in sorted(failed)})

    def mask(self, resolve: Resolve, rows: int) -> Evaluated:
        """Evaluate a predicate: TRUE where it is TRUE, FALSE where it is FALSE, NULL or fails."""
        evaluated = self.evaluate(resolve, rows)
        return Evaluated(pc.fill_null(boolean(evaluated.values), False), evaluated.failed)

    @property
    def calls_declared(self) -> bool:
        """Whether it calls a function that the job declares, which only a worker may be able to compute."""
        return any(is_declared(node) for node in self.node.walk())

    def is_null_of_nulls(self, schema: pa.Schema) -> bool:
        """Whether the expression, which reads one input of this schema, is NULL for a row of NULLs, whatever the
        functions that the job declares give for it."""
        without_declared = replace(self, node=with_unknown_results(self.node))
        of_nulls = without_declared.evaluate(lambda ref: pa.nulls(1, schema.field(ref.column).type), 1)
        needs_declared = self.calls_declared and bool(of_nulls.failed)
        return not needs_declared and not of_nulls.values[0].is_valid

    @property
    def may_fail(self) -> bool:
        """Whether the expression may fail on some row."""
        return may_fail(self.node)

    @property
    def _cannot(self) -> str:
        return f"cannot evaluate {self.text!r}"


def parse_expression(text: str, default_input: str = "") -> Expression:
    """Parse an expression. A column without an input's name belongs to `default_input`. Raises ExpressionError, with
    the position in the text, if it does not parse or is not supported."""
    try:
        node = parse_tree(text)
    except SqlglotError as error:
        raise ExpressionError(f"{shown(text)} is not an SQL expression", facts=first_line(error)) from error
    for part in node.walk():
        _check(part, text)
    for column in node.find_all(exp.Column):
        if default_input and not column.table:
            column.set("table", exp.to_identifier(default_input))
    return _expression(node, text)


def check_predicate(expression: Expression, schemas: dict[str, pa.Schema]) -> None:
    """Raise ExpressionError unless the expression is boolean over these input schemas (unknown columns, types)."""
    kind = value_type(expression, schemas)
    if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise ExpressionError(
            f"{expression.text!r} is not a condition", facts=f"it gives {type_text(kind)}, not boolean"
        )


def column_type(expression: Expression, schemas: dict[str, pa.Schema]) -> pa.DataType:
    """Return the type of a column that holds the expression's values over these input schemas. An interval becomes
    int64 milliseconds; an expression that is always NULL becomes a string. Raises ExpressionError for unknown columns,
    wrong types, and values that no column can hold."""
    kind = value_type(expression, schemas)
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_duration(kind):
        return pa.int64()
    if type_name(kind) is None:
        raise ExpressionError(
            f"{expression.text!r} gives {type_text(kind)}", facts="no column can hold that", todo="Add a CAST"
        )
    return kind


def value_type(expression: Expression, schemas: dict[str, pa.Schema]) -> pa.DataType:
    """Find the type of an expression's values, null if it is always NULL, by evaluating over no rows: it depends on
    the types of the columns alone."""
    for ref in sorted(expression.columns):
        if ref.input not in schemas:
            raise ExpressionError(
                f"{expression.text!r} uses {str(ref).lstrip('.')!r}",
                facts=f"the inputs are {', '.join(sorted(filter(None, schemas)))}",
                todo="Write a column as <input>.<column>",
            )
        if ref.column not in schemas[ref.input].names:
            raise ExpressionError(
                f"{expression.text!r} uses unknown column {str(ref).lstrip('.')!r}",
                facts=f"{ref.input} has {', '.join(schemas[ref.input].names)}",
            )
    return expression.evaluate(lambda ref: pa.array([], schemas[ref.input].field(ref.column).type), 0).values.type


def parts_of_one_input(expression: Expression, name: str) -> list[Expression]:
    """Return the largest parts that read only this input, may fail, and are computed for every row for which the whole
    expression is. If one of them fails on a row, the row is known to be bad before it meets a partner."""
    if {ref.input for ref in expression.columns} == {name}:
        return [expression] if expression.may_fail else []
    parts = [_expression(part, part.sql()) for part in unguarded_parts(expression.node)]
    return [inner_part for part in parts for inner_part in parts_of_one_input(part, name)]


def conjuncts(expression: Expression) -> list[Expression]:
    """Return the ANDed parts of a predicate."""
    return [_expression(part, part.sql()) for part in split_ands(expression.node)]


def conjunction(parts: list[Expression]) -> Expression | None:
    """All parts ANDed; None without parts."""
    if not parts:
        return None
    node = exp.and_(*(part.node for part in parts))
    return _expression(node, node.sql())


def with_columns(expression: Expression, names: Mapping[str, str]) -> Expression:
    """Return the expression over the columns of one table. `names` gives their names by those that the expression
    writes, with an input's name before a column where it has one; other names stay."""

    def renamed(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        written = f"{node.table}.{node.name}" if node.table else node.name
        return exp.column(names.get(written, written), quoted=False)  # messages write a name as the job does

    return _expression(expression.node.transform(renamed), expression.text)


def _expression(node: exp.Expr, text: str) -> Expression:
    refs = frozenset(ColumnRef(column.table, column.name) for column in node.find_all(exp.Column))
    return Expression(text, node, refs)


# --- what is supported ------------------------------------------------------------------------------------------------


def _check(node: exp.Expr, text: str) -> None:
    kind = type(node)
    if call_of(node) is not None:
        called(node)  # raises for a wrong name or number of arguments
        return
    if not is_known(node) and type(node.parent) not in _PARTS.get(kind, ()):
        raise _unsupported(node, text, kind.__name__)
    # Ignoring an argument would silently change the meaning (BETWEEN SYMMETRIC, TRIM's characters).
    read = _ARGUMENTS.get(kind, _USUAL_ARGUMENTS)
    unread = [name for name, value in node.args.items() if value not in (None, False, []) and name not in read]
    if unread:
        raise _unsupported(node, text, f"{kind.__name__} with {', '.join(unread)}")


def _unsupported(node: exp.Expr, text: str, construct: str) -> ExpressionError:
    todo = _INSTEAD.get(type(node), "See docs/expressions.md for what is")
    return ExpressionError(f"{text!r}: {node.sql()!r} is not supported", facts=f"found {construct}", todo=todo)


_INSTEAD: dict[type[exp.Expr], str] = {
    exp.SimilarTo: "Write REGEXP_LIKE(text, '^(a|b)$'), whose patterns are those of RE2",
    exp.Any: "Write a condition for each value, with OR between them",
    exp.All: "Write a condition for each value, with AND between them",
}


# Nodes without a value of their own, and the nodes that may contain them.
_PARTS: dict[type[exp.Expr], tuple[type[exp.Expr], ...]] = {
    exp.Identifier: (exp.Column,),
    exp.If: (exp.Case,),
    exp.DataType: (exp.Cast, exp.TryCast),
    exp.DataTypeParam: (exp.DataType,),
    exp.Var: (exp.Interval,),
}
_USUAL_ARGUMENTS = frozenset({"this", "expression", "safe", "typed"})
_ARGUMENTS: dict[type[exp.Expr], frozenset[str]] = {
    exp.Column: frozenset({"this", "table"}),
    exp.Identifier: frozenset({"this", "quoted"}),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.In: frozenset({"this", "expressions"}),
    exp.Case: frozenset({"this", "ifs", "default"}),
    exp.If: frozenset({"this", "true"}),
    exp.Coalesce: frozenset({"this", "expressions"}),
    exp.Cast: frozenset({"this", "to"}),
    exp.TryCast: frozenset({"this", "to", "safe"}),
    exp.DataType: frozenset({"this", "expressions"}),
    exp.Interval: frozenset({"this", "unit"}),
    exp.Like: frozenset({"this", "expression", "negate"}),
    exp.ILike: frozenset({"this", "expression", "negate"}),
}
