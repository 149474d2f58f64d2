"""What a scalar function of expressions is: its names, its parameters, and the kernel that computes it.

Each module beside this one has the functions of one family. An entry (`Family.define`) is all that a function needs:
the parser's list of names, the check of calls, and the tables in docs/expressions.md come from it.

A kernel gets one value per parameter that is not `constant`: arrays of one length, or scalars if the value is the same
in all rows; at least one is an array. It gets what a constant parameter is as a Python value. Its result's type depends
on the types alone, so a call over no rows gives the type. It raises ArrowInvalid for a value that it cannot use, best
through `require`, and ArrowTypeError for a type. Unless `nulls` says otherwise, the result is NULL where an argument
is, whatever the kernel returns there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.pipeline.operators import TIMESTAMP, Value, is_number, type_text

MAX_CHARACTERS = 65_535
"""The longest text that a function makes whose length an argument states: a batch of them fits in memory."""


class RowsFailed(pa.ArrowInvalid):  # type: ignore[misc]  # pyarrow ships no types
    """A kernel cannot compute some rows. `failed` (boolean[rows], never NULL) says which."""

    def __init__(self, failed: pa.BooleanArray, reason: str) -> None:
        super().__init__(reason)
        self.failed = failed


class BatchFailed(pa.ArrowInvalid):  # type: ignore[misc]  # pyarrow ships no types
    """A kernel has no values for any row of its batch; they would be of this type."""

    def __init__(self, reason: str, kind: pa.DataType) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter. `kind` names the types that it takes (`KINDS`). `constant`: its argument is the same in all rows.
    `optional`: without an argument the kernel gets none. `repeated`: it takes all further arguments, at least one."""

    name: str
    kind: str
    constant: bool = False
    optional: bool = False
    repeated: bool = False

    @property
    def text(self) -> str:
        return f"{self.name} {self.kind}{' constant' if self.constant else ''}{', ...' if self.repeated else ''}"


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or kind == TIMESTAMP)


# By kind: the types that it takes, and the type that their values are converted to (None: they stay).
KINDS: dict[str, tuple[Callable[[pa.DataType], bool], pa.DataType | None]] = {
    "string": (_is_text, pa.string()),
    "bytes": (lambda kind: pa.types.is_binary(kind) or _is_text(kind), pa.binary()),
    "integer": (pa.types.is_integer, pa.int64()),
    "number": (is_number, None),
    "quantity": (lambda kind: is_number(kind) or pa.types.is_duration(kind), None),
    "double": (is_number, pa.float64()),
    "boolean": (pa.types.is_boolean, pa.bool_()),
    "timestamp": (_is_time, TIMESTAMP),
    "date": (_is_time, pa.date32()),
    "interval": (pa.types.is_duration, pa.duration("ms")),
    "any": (lambda _: True, None),
}
_NULL_TYPES = {"number": pa.int64(), "quantity": pa.int64()}


def string(name: str) -> Parameter:
    return Parameter(name, "string")


def integer(name: str) -> Parameter:
    return Parameter(name, "integer")


def number(name: str) -> Parameter:
    return Parameter(name, "number")


def double(name: str) -> Parameter:
    return Parameter(name, "double")


def optional(parameter: Parameter) -> Parameter:
    return replace(parameter, optional=True)


def constant(parameter: Parameter) -> Parameter:
    return replace(parameter, constant=True)


def repeated(parameter: Parameter) -> Parameter:
    return replace(parameter, repeated=True)


@dataclass(frozen=True, slots=True)
class Function:
    """A function. `returns`, `meaning`, `example` and its `result` are for the docs, and tests check the example.
    `fails`: it may fail on a row, for another reason than a parameter that is `constant`. `nulls` says what it does
    with NULLs, if not NULL for a NULL."""

    name: str
    synonyms: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    returns: str
    meaning: str
    example: str
    result: str
    fails: bool
    nulls: str
    kernel: Callable[..., Value] = field(repr=False)

    @property
    def signature(self) -> str:
        """The function with its parameters, optional ones in brackets."""
        text = ""
        for parameter in self.parameters:
            item = f"{', ' if text else ''}{parameter.text}"
            text += f"[{item}]" if parameter.optional else item
        return f"{self.name}({text})"

    @property
    def argument_counts(self) -> tuple[int, int | None]:
        """The fewest and the most arguments of a call; None: any number."""
        fewest = sum(not parameter.optional for parameter in self.parameters)
        has_more = any(parameter.repeated for parameter in self.parameters)
        return fewest, None if has_more else len(self.parameters)

    def bind(self, arguments: Sequence[Value]) -> tuple[Callable[..., Value], list[Value]]:
        """Return what computes a call from the values that are no constants, and these values, converted. Raises
        ArrowTypeError, with the name of the parameter."""
        repeats = max(len(arguments) - len(self.parameters), 0)
        parameters = [*self.parameters, *self.parameters[-1:] * repeats][: len(arguments)]
        constants: dict[int, object] = {}
        values: list[Value] = []
        for position, (parameter, argument) in enumerate(zip(parameters, arguments, strict=True)):
            value = _converted(parameter, argument)
            if not parameter.constant:
                values.append(value)
            elif isinstance(value, pa.Scalar) and value.is_valid:
                constants[position] = value.as_py()
            else:
                raise pa.ArrowTypeError(f"its {parameter.name} must be a constant, no column and not NULL")

        def compute(*values: Value) -> Value:
            rest = iter(values)
            return self.kernel(*(constants[i] if i in constants else next(rest) for i in range(len(parameters))))

        return (lambda *values: self._checked(compute, values)), values

    def _checked(self, compute: Callable[..., Value], values: Sequence[Value]) -> Value:
        """Compute values for arrays and scalars alike, with NULL where NULL is due."""
        if not self.nulls and any(isinstance(value, pa.Scalar) and not value.is_valid for value in values):
            return pa.scalar(None, compute(*(pa.array([], value.type) for value in values)).type)
        if all(isinstance(value, pa.Scalar) for value in values):
            result = compute(*(pa.repeat(value, 1) for value in values))
            return result if isinstance(result, pa.Scalar) else result[0]
        result = compute(*values)
        with_nulls = [value for value in values if not isinstance(value, pa.Scalar) and value.null_count]
        if self.nulls or not with_nulls:
            return result
        valid = reduce(pc.and_, (pc.is_valid(value) for value in with_nulls))
        return pc.if_else(valid, result, pa.scalar(None, result.type))


def _converted(parameter: Parameter, value: Value) -> Value:
    takes, kind = KINDS[parameter.kind]
    if pa.types.is_null(value.type):
        target = kind or _NULL_TYPES.get(parameter.kind)
        return value if target is None else value.cast(target)
    if not takes(value.type):
        facts = f"its {parameter.name} must be {parameter.kind}, found {type_text(value.type)}"
        if parameter.kind == "timestamp" and pa.types.is_integer(value.type):  # as times of windows are
            facts += "; the time of a number of milliseconds is TIMESTAMP_MILLIS(number)"
        raise pa.ArrowTypeError(facts)
    if kind is None or value.type == kind:
        return value
    return value.cast(kind, safe=False)  # a large integer becomes the nearest double, a timestamp its day


@dataclass(slots=True)
class Family:
    """The functions of one section of the docs, in the order of its table."""

    title: str
    functions: list[Function] = field(default_factory=list)

    def define(
        self,
        names: str,
        *parameters: Parameter,
        returns: str,
        meaning: str,
        example: str,
        result: str,
        fails: bool = False,
        nulls: str = "",
    ) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
        """Add the decorated kernel as a function. `names` are its name and synonyms, separated by spaces."""

        def add(kernel: Callable[..., Value]) -> Callable[..., Value]:
            name, *synonyms = names.split()
            self.functions.append(
                Function(name, tuple(synonyms), parameters, returns, meaning, example, result, fails, nulls, kernel)
            )
            return kernel

        return add


# --- for kernels ------------------------------------------------------------------------------------------------------


def require(valid: Value, reason: str) -> None:
    """Fail the rows where `valid` (boolean, a NULL counts as true) is false. A scalar fails all rows."""
    if isinstance(valid, pa.Scalar):
        if valid.is_valid and not valid.as_py():
            raise pa.ArrowInvalid(reason)
    elif not pc.all(pc.fill_null(valid, True), min_count=0).as_py():
        raise RowsFailed(pc.invert(pc.fill_null(valid, True)), reason)


def by_polars(build: Callable[..., pl.Expr]) -> Callable[..., pa.Array]:
    """Make a kernel of a Polars expression, which `build` makes from one expression per value."""

    def kernel(*values: Value) -> pa.Array:
        return computed_by_polars(build, *values)

    return kernel


def computed_by_polars(build: Callable[..., pl.Expr], *values: Value) -> pa.Array:
    """Compute a Polars expression over values. Raises ArrowInvalid for what Polars cannot compute."""
    columns = {str(i): pl.Series(value) for i, value in enumerate(values) if not isinstance(value, pa.Scalar)}
    expressions = [
        pl.lit(value.as_py(), dtype=pl.Series(pa.repeat(value, 1)).dtype)
        if isinstance(value, pa.Scalar)
        else pl.col(str(i))
        for i, value in enumerate(values)
    ]
    try:
        result = pl.DataFrame(columns).select(build(*expressions)).to_series().to_arrow()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise pa.ArrowInvalid(str(error).strip().splitlines()[0]) from error
    if pa.types.is_large_string(result.type) or pa.types.is_string_view(result.type):
        return result.cast(pa.string())
    if pa.types.is_large_binary(result.type) or pa.types.is_binary_view(result.type):
        return result.cast(pa.binary())
    return result
