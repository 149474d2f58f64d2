"""Steps that emit some of the rows which the joins make, or an only input has: `spec.deduplicate`, of each key the
first or the last row of a span of time (rules D1 to D4)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from joinery_runtime.job.model.base import Length, Limits, Model, PositiveDuration, Text
from joinery_runtime.job.model.cel import Rule, dead_letter_rules, positive
from joinery_runtime.job.model.duration import format_duration


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
        """The columns of the key, as the job writes them."""
        assert self.by, "the rules see to it"
        return self.by

    @abstractmethod
    def signed(self) -> dict[str, Any]:
        """What the state depends on beside keys and allowedLateness, as in the signature."""

    @property
    @abstractmethod
    def kept_for(self) -> int:
        """How far the watermark is above a row's event time when the row leaves."""

    @property
    @abstractmethod
    def kept_text(self) -> str:
        """When a row leaves, to follow `wm(orders)`: `>= ts + 1h [within]`."""

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

    def lines(self, watermark: str, lateness: str) -> Iterator[tuple[str, str]]:
        within = f"{format_duration(self.within)} [within]"
        yield "span", f"begins with a row that is in no earlier span of its key, and ends {within} later"
        if self.keep == "first":
            yield "emitted", f"the first row of each span, when {watermark} > ts + {lateness}"
        else:
            yield "emitted", f"the last row of each span, when {watermark} >= the span's end + {lateness}"


RANKING_KINDS: tuple[type[RankingKind], ...] = (Deduplication,)

# --- the rules that the API server can check ------------------------------------------------------------------------


def _rules_of(field: str) -> Iterator[Rule]:
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
    yield Rule(
        f"!{named} || has(self.{field}.by) || has(self.sql)",
        "is missing: it says which rows are of one key; name at least one column",
        f".{field}.by",
    )
    yield from dead_letter_rules(field)


RANKING_RULES: tuple[Rule, ...] = tuple(rule for kind in RANKING_KINDS for rule in _rules_of(kind.field))
"""Rules over all of `spec`."""

RANKING_MODEL_RULES: Mapping[type | tuple[type, str], tuple[Rule, ...]] = {(Deduplication, "within"): positive()}
