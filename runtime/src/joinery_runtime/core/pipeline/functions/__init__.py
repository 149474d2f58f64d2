"""The scalar functions of expressions, by family. `called` finds the function of a node of the syntax tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from joinery_runtime.core.pipeline.functions.base import Family, Function
from joinery_runtime.core.pipeline.functions.conditionals import CONDITIONALS
from joinery_runtime.core.pipeline.functions.declared import declared_function
from joinery_runtime.core.pipeline.functions.hashing import HASHING
from joinery_runtime.core.pipeline.functions.numbers import BITS, NUMBERS
from joinery_runtime.core.pipeline.functions.patterns import JSON, PATTERNS
from joinery_runtime.core.pipeline.functions.text import TEXT
from joinery_runtime.core.pipeline.functions.time_texts import TIME_TEXTS
from joinery_runtime.core.pipeline.functions.times import TIMES
from joinery_runtime.core.pipeline.operators import Value
from joinery_runtime.errors import ExpressionError
from joinery_runtime.job.model.function_calls import call_of, cannot_call

FAMILIES: tuple[Family, ...] = (TEXT, PATTERNS, JSON, HASHING, NUMBERS, BITS, TIMES, TIME_TEXTS, CONDITIONALS)
FUNCTIONS: dict[str, Function] = {
    name: function
    for family in FAMILIES
    for function in family.functions
    for name in (function.name, *function.synonyms)
}


_BOUND = "declared function"


def is_declared(node: exp.Expr) -> bool:
    """Whether a node calls a function that the job declares."""
    return _BOUND in node.meta


def with_unknown_results(node: exp.Expr) -> exp.Expr:
    """Return a copy of an expression in which the functions that the job declares fail for every row."""
    copy = node.copy()
    for part in copy.walk():
        bound = part.meta.get(_BOUND)
        if isinstance(bound, Function):
            part.meta[_BOUND] = replace(bound, kernel=_unknown(bound.kernel))
    return copy


def _unknown(kernel: Callable[..., Value]) -> Callable[..., Value]:
    def compute(*values: Value) -> Value:
        if any(len(value) for value in values if not isinstance(value, pa.Scalar)):
            raise pa.ArrowInvalid("only a worker may be able to compute it")
        return kernel(*values)

    return compute


def called(node: exp.Expr) -> tuple[Function, list[exp.Expr]]:
    """Return the function that a call names, and the arguments. Raises ExpressionError for a function that does not
    exist, and for a wrong number of arguments."""
    call = call_of(node)
    assert call is not None, f"{type(node).__name__} is a call"
    name, arguments = call
    bound = node.meta.get(_BOUND)
    if isinstance(bound, Function):
        return bound, arguments
    if arguments and (declared := declared_function(name, arguments)) is not None:
        if not any(argument.find(exp.Column) for argument in arguments):
            facts = "a function of the job is computed for rows, and no argument reads a column"
            raise ExpressionError(f"{node.sql()!r}", facts=facts, todo="Write the value")
        node.meta[_BOUND] = declared  # for the threads that evaluate the expression, and copies of the node
        return declared, arguments
    problem = cannot_call(name, len(arguments))
    if problem:
        raise ExpressionError(f"{node.sql()!r}", facts=problem)
    return FUNCTIONS[name], arguments
