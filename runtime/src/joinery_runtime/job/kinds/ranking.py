"""Steps that emit some of the rows which the joins make, or an only input has: `spec.deduplicate`, of each key the
first or the last row of a span of time (rules D1 to D4), and `spec.topN`, of each key and window the rows that come
first in an order (rules R1 to R5)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from joinery_runtime.job.kinds.aggregate.aligned import AlignedWindow, OwnWindow
from joinery_runtime.job.model.base import Length, Limits, Model, PositiveDuration, Text
from joinery_runtime.job.model.cel import Rule, dead_letter_rules, positive
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.model.references import MOST_RANKED_ROWS, RANK_COLUMNS
from joinery_runtime.job.model.wording import counted


def ranking_part(field: str, joins: int) -> str:
    """The part of the state that holds rows of the step `field` after so many joins: `deduplicate`, ..."""
    return field if joins == 0 else f"{field}.{joins + 1}"


class RankingKind(Model):
    """One kind of ranking. Durations are milliseconds of event time."""

    field: ClassVar[str]
    """Of `spec`, as YAML names it, and the part of the state that holds its rows."""
    title: ClassVar[str]
    """What the step does, in `<title> of orders + payments`."""
    fixed: ClassVar[Mapping[str, str]]
    """Of `signed`, with their names for people: what no edit may change while there is state."""
    shorter: ClassVar[str]
    """What makes its state smaller."""
    missing: ClassVar[Mapping[str, str]]
    """What a missing field says, by its name, for the fields that a job needs."""
    from_sql: ClassVar[tuple[str, ...]] = ()
    """Those of `missing` that SQL may say instead."""
    lost: ClassVar[str]
    """What a longer time does not bring back, to follow `rows that left the state before stay gone`."""
    adds: ClassVar[tuple[str, ...]] = ()
    """The columns that its rows have beside those of the inputs."""

    by: Annotated[tuple[Text, ...], Field(min_length=1)] | None = Field(default=None, examples=[["orders.order_id"]])
    """Columns `<input>.<column>` whose values are the key; NULL is a value."""
    of: Text | None = Field(default=None, examples=["orders"])
    """The input whose event time counts, by default the first one; no step may pad it."""
    late_data: Literal["drop", "dlq"] = "drop"
    """Late rows are counted (`drop`), or those of an only input dead letters (`dlq`)."""
    allowed_lateness: PositiveDuration = Field(default=0, examples=["1m"])
    """How much longer the step waits for rows behind the watermark, a duration."""
    limits: Limits | None = None
    """Caps on the rows that are kept."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the key, as the job writes them. Without any, all rows are of one key."""
        return self.by or ()

    @property
    def expressions(self) -> Mapping[str, str]:
        """The expressions over a row's columns that decide the order of rows, by their paths below the field."""
        return {}

    @abstractmethod
    def signed(self) -> dict[str, Any]:
        """What the state depends on beside keys and allowedLateness, as in the signature."""

    @classmethod
    def signed_text(cls, signed: Any) -> str:
        """Write a value of `signed` for people."""
        return str(signed)

    @property
    @abstractmethod
    def kept_for(self) -> int:
        """How far the watermark is above a row's event time when the row leaves."""

    @property
    @abstractmethod
    def kept_text(self) -> str:
        """When a row leaves, to follow `wm(orders)`: `>= ts + 1h [within]`."""

    @abstractmethod
    def late_text(self, watermark: str, lateness: str) -> str:
        """When a row is late, to follow `counted when`."""

    @abstractmethod
    def lines(self, watermark: str, lateness: str) -> Iterator[tuple[str, str]]:
        """What is emitted and when, as lines of the plan: names and texts. `watermark` names the watermark, `lateness`
        is the allowedLateness in words."""


class Deduplication(RankingKind):
    """Emits one row of each key and span. A span begins with a row that is in no earlier span, and holds all rows of
    its key less than `within` later."""

    field: ClassVar[str] = "deduplicate"
    title: ClassVar[str] = "deduplication"
    fixed: ClassVar[Mapping[str, str]] = {"keep": "the row of a span that is emitted (keep)"}
    shorter: ClassVar[str] = "shorten deduplicate.within"
    missing: ClassVar[Mapping[str, str]] = {"by": "it says which rows are of one key; name at least one column"}
    from_sql: ClassVar[tuple[str, ...]] = ("by",)
    lost: ClassVar[str] = "so repeats of them may be emitted"

    keep: Literal["first", "last"] = "first"
    """The row of a span that is emitted: `first`, as soon as the watermark has passed the row, or `last`, once it has
    reached the end of the span."""
    within: Length = Field(examples=["1h"])
    """How long a span is, from its first row on, a duration."""

    def signed(self) -> dict[str, Any]:
        return {"keep": self.keep, "within": self.within}

    @property
    def kept_for(self) -> int:
        return self.within

    @property
    def kept_text(self) -> str:
        return f">= ts + {format_duration(self.within)} [within]"

    def late_text(self, watermark: str, lateness: str) -> str:
        return f"ts < {watermark} - {lateness}"

    def lines(self, watermark: str, lateness: str) -> Iterator[tuple[str, str]]:
        within = f"{format_duration(self.within)} [within]"
        yield "span", f"begins with a row that is in no earlier span of its key, and ends {within} later"
        if self.keep == "first":
            yield "emitted", f"the first row of each span, when {watermark} > ts + {lateness}"
        else:
            yield "emitted", f"the last row of each span, when {watermark} >= the span's end + {lateness}"


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


class TopN(RankingKind):
    """Emits of each key and window the rows that come first in an order, once the window has ended."""

    field: ClassVar[str] = "topN"
    title: ClassVar[str] = "top-N"
    fixed: ClassVar[Mapping[str, str]] = {
        "orderBy": "the order of rows (orderBy)",
        "window": "the window",
    }
    shorter: ClassVar[str] = "shorten topN.window, or lower topN.rows"
    missing: ClassVar[Mapping[str, str]] = {
        "orderBy": "it says which rows come first; write for example orderBy: [{expression: bids.price, "
        "direction: desc}]",
        "rows": "it says how many rows of each key and window are emitted; write for example rows: 10",
        "window": "without a window no row would ever be one of the first for good; write for example "
        "window: {tumbling: {size: 1h}}",
    }
    from_sql: ClassVar[tuple[str, ...]] = ("orderBy", "rows", "window")
    lost: ClassVar[str] = "so open windows may lack them"
    adds: ClassVar[tuple[str, ...]] = RANK_COLUMNS

    order_by: Annotated[tuple[RankOrder, ...], Field(min_length=1)] | None = Field(
        default=None, examples=[[{"expression": "bids.price", "direction": "desc"}]]
    )
    """What rows are sorted by, the first one first. Rows that are equal in all of it are in the order of their event
    times."""
    rows: Annotated[int, Field(ge=1, le=MOST_RANKED_ROWS)] | None = Field(default=None, examples=[10])
    """How many rows of each key and window are emitted, at most."""
    window: OwnWindow | None = Field(default=None, examples=[{"tumbling": {"size": "1h"}}])
    """The windows."""

    @property
    def order(self) -> tuple[RankOrder, ...]:
        assert self.order_by, "the rules see to it"
        return self.order_by

    @property
    def form(self) -> AlignedWindow:
        """The kind of window."""
        assert self.window is not None, "the rules see to it"
        return self.window.form

    @property
    def count(self) -> int:
        """How many rows of each key and window are emitted, at most."""
        assert self.rows is not None, "the rules see to it"
        return self.rows

    @property
    def expressions(self) -> Mapping[str, str]:
        return {f"orderBy[{number}].expression": item.expression for number, item in enumerate(self.order)}

    def signed(self) -> dict[str, Any]:
        window = {self.form.field: self.form.durations()}
        return {"orderBy": [item.text for item in self.order], "rows": self.count, "window": window}

    @classmethod
    def signed_text(cls, signed: Any) -> str:
        if isinstance(signed, Mapping):
            durations = signed.items()
            return "; ".join(
                f"{form} {', '.join(f'{name} {format_duration(ms)}' for name, ms in lengths.items())}"
                for form, lengths in durations
            )
        return ", ".join(signed)

    @property
    def kept_for(self) -> int:
        return self.form.closes_after

    @property
    def kept_text(self) -> str:
        return ">= the end of their last window"

    def late_text(self, watermark: str, lateness: str) -> str:
        return self.form.late_text(watermark, lateness)

    def lines(self, watermark: str, lateness: str) -> Iterator[tuple[str, str]]:
        yield "order", ", ".join(item.text for item in self.order)
        yield from self.form.lines()
        yield (
            "emitted",
            f"the first {counted(self.count, 'row')} of each window, when {watermark} >= its end + {lateness}",
        )
        yield (
            "kept",
            f"{counted(self.count, 'row')} of each key and span of {format_duration(self.form.pane)}; others leave",
        )


RANKING_KINDS: tuple[type[RankingKind], ...] = (Deduplication, TopN)

# --- the rules that the API server can check ------------------------------------------------------------------------


def _rules_of(kind: type[RankingKind]) -> Iterator[Rule]:
    field = kind.field
    named = f"has(self.{field})"
    yield Rule(
        f"!{named} || !has(self.aggregate)",
        f"aggregate and {field} are both named; keep one, and do the other in a job of its own",
        f".{field}",
    )
    yield Rule(
        f"!{named} || !has(self.{field}.of) || self.inputs.exists(i, i.name == self.{field}.of)",
        "names no input",
        f".{field}.of",
    )
    for name, text in kind.missing.items():
        is_named = f"has(self.{field}.{name})" + (" || has(self.sql)" if name in kind.from_sql else "")
        yield Rule(f"!{named} || {is_named}", f"is missing: {text}", f".{field}.{name}")
    yield from dead_letter_rules(field)


RANKING_RULES: tuple[Rule, ...] = (
    *(rule for kind in RANKING_KINDS for rule in _rules_of(kind)),
    Rule(
        "!has(self.deduplicate) || !has(self.topN)",
        "deduplicate and topN are both named; keep one, and do the other in a job of its own",
        ".topN",
    ),
)
"""Rules over all of `spec`."""

RANKING_MODEL_RULES: Mapping[type | tuple[type, str], tuple[Rule, ...]] = {
    (Deduplication, "within"): positive(),
}
