"""Models of sessions: groups, gap, computed columns and aggregates, and the names of output columns."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from joinery_runtime.job.model.base import Int, Length, Model, Text

Function = Literal["count", "count_col", "sum", "min", "max", "avg", "first", "last", "count_distinct"]

SESSIONS_PART = "sessions"  # the part of the state that holds sessions
_NUMBERS = frozenset({"int32", "int64", "float", "double", "decimal"})
_UNORDERED = frozenset({"boolean", "binary"})
KEEPS_TYPE = frozenset({"min", "max", "first", "last"})  # functions that return a value of their column
EXACT_LIMIT = 10_000  # distinct values per session if `limit` is not given


def takes(function: str, type_name: str) -> bool:
    """Whether an aggregate is defined for values of this type (`ColumnType.name`)."""
    if function in {"sum", "avg"}:
        return type_name in _NUMBERS
    return function not in {"min", "max"} or type_name not in _UNORDERED


def takes_text(function: str) -> str:
    """The types that an aggregate takes, for messages."""
    return "numbers" if function in {"sum", "avg"} else "all types but boolean and binary"


FROM_SQL = ("groupBy", "gap", "compute", "where", "aggregates", "select")
"""The fields of `spec` that `sql` may replace."""


class ComputedColumn(Model):
    """A column that an SQL expression over the input's columns makes, for `groupBy` and aggregates."""

    expression: Text = Field(examples=["lower(country)"])
    """An SQL expression over the input's columns."""
    as_: Annotated[Text, Field(alias="as")] = Field(examples=["country"])
    """The column's name."""


class Aggregate(Model):
    """One aggregate of a session (docs/semantics.md#s7); NULLs are skipped. `count` counts rows, every other
    function needs a `column`."""

    function: Function
    """count, count_col, sum, min, max, avg, first, last or count_distinct."""
    column: Text | None = Field(default=None, examples=["page"])
    """The column to aggregate. `count` has none."""
    method: Literal["exact", "hll"] | None = None
    """For count_distinct: `exact`, or `hll`, a sketch with a relative standard error of about 1.6 %."""
    limit: Annotated[Int, Field(ge=1)] | None = Field(default=None, examples=[100_000])
    """For count_distinct with `exact`: more values than this in one session fail the job; if absent, 10,000."""
    as_: Annotated[Text, Field(alias="as")] = Field(examples=["pages"])
    """The output column's name."""

    @property
    def distinct_limit(self) -> int | None:
        """How many distinct values an exact count takes; None for a sketch, and other functions."""
        exact = self.function == "count_distinct" and self.method != "hll"
        return (self.limit or EXACT_LIMIT) if exact else None


class SessionColumn(Model):
    """One output column (docs/semantics.md#s6)."""

    column: Text = Field(examples=["user_id"])
    """A group, an aggregate, or session_id, window_start, window_end."""
    as_: Annotated[str | None, Field(alias="as", min_length=1)] = Field(default=None, examples=["visitor"])
    """The output column's name; if absent, the column's own."""


class Sessions(Model):
    """What the sessions of a job are: as its fields say, or as its SQL does. `gap` is milliseconds of event time;
    `where` keeps the input's rows for which it is true; `select` is what is emitted, None for every column."""

    group_by: tuple[Text, ...]
    gap: Length
    compute: tuple[ComputedColumn, ...] = ()
    where: Text | None = None
    aggregates: tuple[Aggregate, ...] = ()
    select: Annotated[tuple[SessionColumn, ...], Field(min_length=1)] | None = None
