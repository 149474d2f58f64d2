"""Columns that `topN` adds to the rows of an aggregate: values over the rows of a key and window (rule R9), ranks (rule
R10), and by an order of the rows running totals and values of other rows (rule R11)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from joinery_runtime.job.model.base import Model, Text
from joinery_runtime.job.model.references import RANKS, VALUES_OF_OTHERS

FRACTIONS = ("percent_rank", "cume_dist")
"""The ranks that are numbers from 0 to 1."""


class RankOrder(Model):
    """What rows are sorted by."""

    expression: Text = Field(examples=["bids.price"])
    """A column `<input>.<column>`, or an SQL expression over such columns."""
    direction: Literal["asc", "desc"] = "asc"
    """`asc`: the lowest value comes first. `desc`: the highest."""
    nulls: Literal["first", "last"] | None = None
    """Where NULL comes. If absent, it is the lowest value: first with `asc`, last with `desc`."""

    @property
    def nulls_first(self) -> bool:
        return self.direction == "asc" if self.nulls is None else self.nulls == "first"

    @property
    def text(self) -> str:
        return f"{self.expression} {self.direction.upper()} NULLS {'FIRST' if self.nulls_first else 'LAST'}"


class WindowTotal(Model):
    """A value over the rows of a key and window, or where a row stands among these."""

    function: Literal[
        "sum",
        "avg",
        "min",
        "max",
        "count",
        "rank",
        "dense_rank",
        "row_number",
        "percent_rank",
        "cume_dist",
        "ntile",
        "lag",
        "lead",
        "first_value",
    ]
    """How the value is computed, as by the functions of SQL with these names."""
    column: Text | None = Field(default=None, examples=["revenue"])
    """The column of the aggregate's rows, which all functions need but `count` and ranks. NULLs are not added up."""
    expression: Text | None = Field(default=None, examples=["revenue / sales"])
    """An SQL expression over such columns, in place of `column`."""
    order_by: Annotated[tuple[RankOrder, ...], Field(min_length=1)] | None = Field(
        default=None, examples=[[{"expression": "revenue", "direction": "desc"}]]
    )
    """What rows are sorted by, for ranks and values of other rows by default `topN.orderBy`. A `sum`, `avg`, `min`,
    `max` or `count` with an order is a running total: of the rows up to each row."""
    frame: Literal["range", "rows"] | None = None
    """Up to where a running total goes: to the last row that is equal in all of its order (`range`, the default), or to
    the row itself (`rows`)."""
    offset: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(default=None, examples=[1])
    """How many rows before or behind a row `lag` and `lead` read, by default 1."""
    buckets: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(default=None, examples=[4])
    """Into how many parts of equal size `ntile` divides the rows."""
    as_: Annotated[Text, Field(alias="as")] = Field(examples=["total"])
    """The column's name."""

    @property
    def value(self) -> str | None:
        """The column or the expression whose values count; None: rows do."""
        return self.column if self.expression is None else self.expression

    @property
    def is_rank(self) -> bool:
        return self.function in RANKS

    @property
    def is_of_another_row(self) -> bool:
        return self.function in VALUES_OF_OTHERS

    @property
    def is_ordered(self) -> bool:
        """Whether the value depends on an order of the rows."""
        return self.is_rank or self.is_of_another_row or self.order_by is not None

    @property
    def text(self) -> str:
        ordered = f" by {', '.join(item.text for item in self.order_by)}" if self.order_by is not None else ""
        framed = f" in {self.frame}" if self.frame == "rows" else ""
        if self.is_rank:
            function = self.function if self.buckets is None else f"{self.function}({self.buckets})"
            return f"{self.as_} = {function}{ordered}"
        argument = "*" if self.value is None else self.value
        distance = f", {self.offset}" if self.offset not in (None, 1) else ""
        return f"{self.as_} = {self.function}({argument}{distance}){ordered}{framed}"
