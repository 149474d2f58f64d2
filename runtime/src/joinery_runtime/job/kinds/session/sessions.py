"""Models of sessions: groups, gap, computed columns and aggregates, and the names of output columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field
from sqlglot import exp
from sqlglot.errors import SqlglotError

from joinery_runtime.job.model.base import Int, Length, Model, Text
from joinery_runtime.job.model.expression_tree import parse_tree
from joinery_runtime.job.model.wording import listed

Function = Literal[
    "count",
    "count_col",
    "count_if",
    "count_distinct",
    "sum",
    "avg",
    "min",
    "max",
    "first",
    "last",
    "min_by",
    "max_by",
    "var_pop",
    "var_samp",
    "stddev_pop",
    "stddev_samp",
    "median",
    "percentile_cont",
    "percentile_disc",
    "approx_percentile",
    "bool_and",
    "bool_or",
    "array_agg",
    "string_agg",
]

SESSIONS_PART = "sessions"  # the part of the state that holds sessions
KEEPS_TYPE = frozenset({"min", "max", "first", "last", "min_by", "max_by"})  # they return a value of their column
EXACT_LIMIT = 10_000  # values per session if `limit` is not given

_NUMBERS = frozenset({"int32", "int64", "float", "double", "decimal"})
_UNORDERED = frozenset({"boolean", "binary"})
_OF_NUMBERS = frozenset({"sum", "avg", "var_pop", "var_samp", "stddev_pop", "stddev_samp"})
_PERCENTILES = ("percentile_cont", "percentile_disc", "approx_percentile")
_OF_CONDITIONS = frozenset({"bool_and", "bool_or", "count_if"})
_EXACT_PERCENTILES = ("percentile_cont", "percentile_disc", "median")
_LISTS = ("array_agg", "string_agg")

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "method": ("count_distinct",),
    "limit": ("count_distinct", *_LISTS, *_EXACT_PERCENTILES),
    "by": ("min_by", "max_by"),
    "percentile": _PERCENTILES,
    "separator": ("string_agg",),
}
"""The functions that each option is for."""
NEEDED = ("by", "percentile")
"""The options without which a function has no meaning."""


def takes(function: str, type_name: str) -> bool:
    """Say whether an aggregate is defined for values of this type (`ColumnType.name`)."""
    if function in {"min", "max"}:
        return has_order(type_name)
    accepted = _accepted_types(function)
    return accepted is None or type_name in accepted


def has_order(type_name: str) -> bool:
    """Say whether values of this type (`ColumnType.name`) have a least and a greatest one."""
    return type_name not in _UNORDERED


def takes_text(function: str) -> str:
    """Return the types that an aggregate takes, for messages."""
    accepted = _accepted_types(function)
    if accepted is None:
        return "all types but boolean and binary"
    return "numbers" if accepted == _NUMBERS else listed(sorted(accepted))


def _accepted_types(function: str) -> frozenset[str] | None:
    """None: every type, or for `min` and `max` every type with an order."""
    if function in {*_OF_NUMBERS, *_PERCENTILES, *_EXACT_PERCENTILES}:
        return _NUMBERS
    if function in _OF_CONDITIONS:
        return frozenset({"boolean"})
    return frozenset({"string", "json"}) if function == "string_agg" else None


def shares_values(function: str) -> str:
    """Return the name of the set of values that a function with a `limit` has in the state; equal names share one."""
    families = {**dict.fromkeys(_LISTS, "array_agg"), **dict.fromkeys(_EXACT_PERCENTILES, "percentile")}
    return families.get(function, function)


FROM_SQL = ("groupBy", "gap", "compute", "where", "aggregates", "having", "select")
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
    """count, count_col, count_if, count_distinct, sum, avg, min, max, first, last, min_by, max_by, var_pop,
    var_samp, stddev_pop, stddev_samp, median, percentile_cont, percentile_disc, approx_percentile, bool_and,
    bool_or, array_agg or string_agg."""
    column: Text | None = Field(default=None, examples=["page"])
    """The column to aggregate. `count` has none."""
    by: Text | None = Field(default=None, examples=["price"])
    """For min_by and max_by: the column whose least or greatest value chooses the row."""
    percentile: Annotated[float, Field(ge=0, le=1)] | None = Field(default=None, examples=[0.95])
    """For percentile_cont, percentile_disc and approx_percentile: the share of values up to the result."""
    separator: str | None = Field(default=None, examples=["; "])
    """For string_agg: the text between two values; if absent, a comma."""
    where: Text | None = Field(default=None, examples=["price > 10"])
    """An SQL condition over the input's columns: the aggregate takes only rows for which it is true."""
    method: Literal["exact", "hll"] | None = None
    """For count_distinct: `exact`, or `hll`, a sketch with a relative standard error of about 1.6 %."""
    limit: Annotated[Int, Field(ge=1)] | None = Field(default=None, examples=[100_000])
    """For functions that keep values (an exact count_distinct, array_agg, string_agg, median, percentile_cont and
    percentile_disc): more values than this in one session fail the job; if absent, 10,000."""
    as_: Annotated[Text, Field(alias="as")] = Field(examples=["pages"])
    """The output column's name."""

    @property
    def values_limit(self) -> int | None:
        """How many values the state lists at most; None for a sketch, and functions whose state is of one size."""
        listing = self.function in OPTIONS["limit"] and self.method != "hll"
        return (self.limit or EXACT_LIMIT) if listing else None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name in (self.column, self.by) if name is not None)

    def condition(self, columns: Collection[str]) -> str | None:
        return condition_text(self.where, columns) if self.where is not None else None

    def arguments(self, columns: Collection[str]) -> str:
        """Return what the state's columns are named after, beside the function; `columns` are as in
        `condition_text`."""
        return arguments_text(self.columns, self.condition(columns))


def condition_text(where: str, columns: Collection[str]) -> str:
    """Return a condition in one way of writing: what identifies it. `columns` are those that it may read; where these
    have no input's name before them, the name of the only input is left out."""
    try:
        tree = parse_tree(where)
    except SqlglotError:
        return where  # the core rejects it, and says why
    for column in tree.find_all(exp.Column):
        if f"{column.table}.{column.name}" not in columns:
            column.set("table", None)
    return tree.sql(comments=False)


def arguments_text(columns: Sequence[str], condition: str | None) -> str:
    """Return the arguments of an aggregate, as the names of the state's columns have them."""
    filters = [f"FILTER (WHERE {condition})"] if condition is not None else []
    return " ".join([*([", ".join(columns)] if columns else []), *filters])


class SessionColumn(Model):
    """One output column: exactly one of `column` and `expression` (docs/semantics.md#s6)."""

    column: Text | None = Field(default=None, examples=["user_id"])
    """A group, an aggregate, or session_id, window_start, window_end."""
    expression: Text | None = Field(default=None, examples=["clicks * 1.0 / pages"])
    """An SQL expression over such columns, in place of `column`."""
    as_: Annotated[str | None, Field(alias="as", min_length=1)] = Field(default=None, examples=["visitor"])
    """The output column's name, which an expression needs; if absent, the column's own."""


class Sessions(Model):
    """What the sessions of a job are: as its fields say, or as its SQL does. `gap` is milliseconds of event time;
    `where` keeps the input's rows for which it is true, `having` those of sessions; `select` is what is emitted, None
    for every column."""

    group_by: tuple[Text, ...]
    gap: Length
    compute: tuple[ComputedColumn, ...] = ()
    where: Text | None = None
    aggregates: tuple[Aggregate, ...] = ()
    having: Text | None = None
    select: Annotated[tuple[SessionColumn, ...], Field(min_length=1)] | None = None
