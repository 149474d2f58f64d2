"""Functions that a job declares: Python functions on Arrow arrays (rule V4).

The type of a call is what the job says that the function returns, so a job is checked without its modules. A module is
imported at the first call on rows; before that, hosts.python_functions has imported it in the driver and in each
worker. What the function raises, for some rows of a batch, fails these rows (`EvaluatedRows`); an array of another
length or type fails all rows of the batch, because nobody knows which values belong to which rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import pyarrow as pa

from joinery_runtime.core.pipeline.functions.base import BatchFailed, Function, Parameter
from joinery_runtime.core.pipeline.operators import Value, row_count, to_array, type_text
from joinery_runtime.errors import ExpressionError

_SHOWN = 200  # characters of an exception's text
_RAISED = (Exception, SystemExit)  # a function that calls sys.exit() fails like others, and does not end its process


@dataclass(frozen=True, slots=True)
class DeclaredFunction:
    """`python` is `package.module:function`; `returns` is the type of its results."""

    name: str
    python: str
    returns: pa.DataType

    def __call__(self, *values: Value) -> pa.Array:
        """Compute a batch. Raises ArrowInvalid if the function raises, and BatchFailed for a wrong result."""
        count = row_count(values)
        if not count:
            return pa.array([], self.returns)
        columns = [to_array(value, count) for value in values]
        caller = _CALLER.get()
        return self.compute(columns) if caller is None else caller(self, columns)

    def compute(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Call the function in this process, with at least one row. Raises as `__call__` does."""
        count, function = len(columns[0]), imported(self.python)
        try:
            result = function(*columns)
        except MemoryError:
            raise
        except _RAISED as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())[:_SHOWN]
            raise pa.ArrowInvalid(f"{self.name} ({self.python}) raised {text}") from error
        return self._checked(result, count)

    def _checked(self, result: object, count: int) -> pa.Array:
        column = result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result
        if not isinstance(column, pa.Array):
            try:
                # A NaN stays one, also of pandas: only None is NULL.
                column = pa.array(column, self.returns, from_pandas=False)
            except MemoryError:
                raise
            except _RAISED as error:  # also whatever a generator does
                facts = f"returned {type(result).__name__}, which is no array of {type_text(self.returns)}"
                raise self._failed(f"{facts}: {' '.join(str(error).split())[:_SHOWN]}") from error
        if column.type != self.returns:
            facts = f"returned {type_text(column.type)}, and the job says returns: {type_text(self.returns)}"
            raise self._failed(facts)
        if len(column) != count:
            raise self._failed(f"returned {len(column)} values for {count} rows")
        return column

    def _failed(self, facts: str) -> BatchFailed:
        return BatchFailed(f"{self.name} ({self.python}) {facts}", self.returns)


FunctionCaller = Callable[[DeclaredFunction, Sequence[pa.Array]], pa.Array]
_CALLER: ContextVar[FunctionCaller | None] = ContextVar("what calls the functions", default=None)


@contextmanager
def called_by(caller: FunctionCaller) -> Iterator[None]:
    """Within the block, on this thread, functions are computed by `caller`, which raises as `compute` does."""
    token = _CALLER.set(caller)
    try:
        yield
    finally:
        _CALLER.reset(token)


@cache
def imported(python: str) -> Callable[..., Any]:
    """Import `package.module:function`. Raises ExpressionError, with the reason."""
    module_name, _, name = python.partition(":")
    try:
        module = import_module(module_name)
    except _RAISED as error:  # whatever the module does while it is imported
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:_SHOWN]
        missing = isinstance(error, ModuleNotFoundError)
        todo = "Put it into the image, or name its file with --py-files" if missing else "Correct the module"
        raise ExpressionError(f"{python!r} cannot be imported", facts=reason, todo=todo) from error
    function = getattr(module, name, None)
    if function is None:
        facts, todo = f"module {module_name} has no {name!r}", "Correct the name behind the colon"
        raise ExpressionError(f"{python!r} cannot be imported", facts=facts, todo=todo)
    if not callable(function):
        facts = f"{name!r} of module {module_name} is {type(function).__name__} and cannot be called"
        raise ExpressionError(f"{python!r} is no function", facts=facts, todo="Name a function")
    return function  # type: ignore[no-any-return]


@dataclass(slots=True)
class DeclaredFunctions:
    """The functions of one job, by name in capitals. `calls` are those that its expressions have, with their numbers of
    arguments."""

    functions: Mapping[str, DeclaredFunction] = field(default_factory=dict)
    calls: set[tuple[str, int]] = field(default_factory=set)

    def call(self, name: str, arguments: int) -> Function | None:
        """Return what a call of this name computes; None if the job does not declare it."""
        declared = self.functions.get(name)
        if declared is None:
            return None
        self.calls.add((name, arguments))
        return Function(
            name=declared.name,
            synonyms=(),
            parameters=(Parameter("argument", "any", repeated=True),),
            returns=type_text(declared.returns),
            meaning="",
            example="",
            result="",
            fails=True,
            nulls="as the function says",
            kernel=declared,
        )


_CURRENT: ContextVar[DeclaredFunctions | None] = ContextVar("functions of the job", default=None)


@contextmanager
def calling(functions: DeclaredFunctions) -> Iterator[None]:
    """Within the block, expressions that are parsed may call these functions."""
    token = _CURRENT.set(functions)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def declared_function(name: str, arguments: Sequence[object]) -> Function | None:
    """Return the function of `calling` that a call names."""
    current = _CURRENT.get()
    return None if current is None else current.call(name, len(arguments))
