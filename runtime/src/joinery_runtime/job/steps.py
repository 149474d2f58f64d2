"""Models of `spec.joins[]` and `spec.select[]`: what matches, for how long rows wait, and what goes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from joinery_runtime.job.base import Model, NotYet, PositiveDuration, Text, not_yet
from joinery_runtime.job.duration import format_duration, parse_duration


def _bound(value: Any) -> int:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error} (a bound is constant, it cannot depend on a column)") from error


Bound = Annotated[int, BeforeValidator(_bound), PlainSerializer(format_duration, when_used="json")]


class Interval(Model):
    """`right.ts - left.ts` lies in [lower, upper], both ends included, in milliseconds; either may be negative. `of`
    names the left input, whose times the bounds are counted from."""

    of: Text
    lower: Bound
    upper: Bound


@dataclass(frozen=True, slots=True)
class Reference:
    """`orders.amount` taken apart. A column name may itself hold dots, an input name never does."""

    input: str
    column: str

    def __str__(self) -> str:
        return f"{self.input}.{self.column}"


def parse_reference(text: str) -> Reference | None:
    """None when the text is not `input.column`."""
    input_name, dot, column = text.partition(".")
    return Reference(input_name, column) if dot and input_name and column else None


class JoinStep(Model):
    """Joins the first input (the left side) with `right`. `keys` maps `left.column` to `right.column`."""

    right: Text
    type: Annotated[Literal["inner"], not_yet("a {} join", "left", "right", "full", todo="use inner")] = "inner"
    keys: dict[str, str]
    interval: Interval | None = None
    window: Annotated[None, NotYet("a window join", "use interval")] = None
    as_of: Annotated[None, NotYet("an asOf join", "use interval")] = None
    where: Text | None = None
    late_data: Literal["drop", "reopen"] = "drop"
    allowed_lateness: PositiveDuration = 0
    broadcast: Annotated[None, NotYet("broadcast (a join on time only)", "name at least one key")] = None
    co_partitioned: Annotated[Literal[False], not_yet("coPartitioned: true", True, todo="leave it out")] = False
    limits: Annotated[None, NotYet("limits")] = None


class SelectItem(Model):
    """One output column: `column` is `input.column`; without `as` it keeps its name without the input's."""

    column: Text
    as_: Annotated[str | None, Field(alias="as", min_length=1)] = None
