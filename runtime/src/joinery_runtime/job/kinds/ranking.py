"""Steps that emit some of the rows which the joins make, or an only input has: `spec.deduplicate`, of each key the
first or the last row of a span of time (rules D1 to D5), and `spec.topN`, of each key and window the rows that come
first in an order (rules R1 to R10). Beside `spec.aggregate`, `topN` ranks the rows of the aggregate (rule R6)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from joinery_runtime.job.kinds.aggregate.windows import AlignedWindow, OwnWindow, signed_window_text
from joinery_runtime.job.kinds.window_totals import RankOrder, WindowTotal
from joinery_runtime.job.model.base import Length, Limits, Model, PositiveDuration, Text
from joinery_runtime.job.model.cel import Rule, dead_letter_rules, names_input, positive, time
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.model.expression_tree import parse_tree, replace_columns
from joinery_runtime.job.model.output_rules import CHANGELOG_SOURCES
from joinery_runtime.job.model.references import MOST_RANKED_ROWS, RANK_COLUMNS
from joinery_runtime.job.model.wording import counted


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
    missing_unless: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Those of `missing` that a job with one of these other fields of `spec` need not have."""
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
    def in_windows_of_rows(self) -> bool:
        """Whether rows are ranked in the windows in which they are already, those of an aggregate or of joins."""
        return False

    @property
    def expressions(self) -> Mapping[str, str]:
        """The expressions over a row's columns that decide the order of rows, by their paths below the field."""
        return {}

    @abstractmethod
    def signed(self) -> dict[str, Any]:
        """Return what the state depends on beside keys and allowedLateness, as in the signature."""

    @classmethod
    def signed_text(cls, signed: Any) -> str:
        """Write a value of `signed` for people."""
        return str(signed)

    @property
    @abstractmethod
    def kept_for(self) -> int:
        """How far the watermark is above a row's event time when the row leaves."""

    @property
    def waits_for(self) -> int:
        """How far behind the horizon the watermark is that the step hands on (N3), in milliseconds."""
        return 0

    @property
    @abstractmethod
    def kept_text(self) -> str:
        """When a row leaves, to follow `wm(orders)`: `>= ts + 1h [within]`."""

    @abstractmethod
    def late_text(self, watermark: str, lateness: str) -> str:
        """Say when a row is late, to follow `counted when`."""

    @abstractmethod
    def lines(self, watermark: str, lateness: str) -> Iterator[tuple[str, str]]:
        """Yield what is emitted and when, as lines of the plan: names and texts. `watermark` names the watermark,
        `lateness` is the allowedLateness in words."""


class Deduplication(RankingKind):
    """Emits one row of each key and span. A span begins with a row that is in no earlier span, and holds all rows of
    its key less than `within` later."""

    field: ClassVar[str] = "deduplicate"
    title: ClassVar[str] = "deduplication"
    fixed: ClassVar[Mapping[str, str]] = {"keep": "the row of a span that is emitted (keep)"}
    shorter: ClassVar[str] = "shorten deduplicate.within"
    missing: ClassVar[Mapping[str, str]] = {"by": "it says which rows are of one key; name at least one column"}
    missing_unless: ClassVar[Mapping[str, tuple[str, ...]]] = {"by": ("sql",)}
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
    def waits_for(self) -> int:
        return self.within if self.keep == "last" else 0

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


class TopN(RankingKind):
    """Emits of each key and window the rows that come first in an order, once the window has ended. Without `window`,
    the rows are those of an aggregate or of window joins, in their windows."""

    field: ClassVar[str] = "topN"
    title: ClassVar[str] = "top-N"
    fixed: ClassVar[Mapping[str, str]] = {
        "orderBy": "the order of rows (orderBy)",
        "window": "the window",
        "totals": "what is computed over all rows of a window (totals)",
    }
    shorter: ClassVar[str] = "shorten topN.window, or lower topN.rows"
    missing: ClassVar[Mapping[str, str]] = {
        "orderBy": "it says which rows come first; write for example orderBy: [{expression: bids.price, "
        "direction: desc}]",
        "rows": "it says how many rows of each key and window are emitted; write for example rows: 10",
        "window": "without a window no row would ever be one of the first for good; write for example "
        "window: {tumbling: {size: 1h}}",
    }
    missing_unless: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "orderBy": ("sql", "topN.totals"),
        "rows": ("aggregate", "sql"),
        "window": ("aggregate", "sql"),
    }
    of_windows: ClassVar[Mapping[str, str]] = {
        "window": "the rows are in windows already, those of the aggregate (rule R6); leave it out",
        "of": "the rows are in windows already, and aggregate.window.of says whose event time counts (rule R6); leave "
        "it out",
        "allowedLateness": "no row of an aggregate is late (rule R6); leave it out, or write aggregate.allowedLateness",
        "lateData": "no row of an aggregate is late (rule R6); write drop, and lateData: dlq in aggregate",
    }
    """Why a field has no meaning for the rows of an aggregate, by its name."""
    of_joins: ClassVar[Mapping[str, str]] = {
        "of": "without a window, rows are ranked in those of the joins, whatever time counted there (rule R8); leave "
        "it out, or write window",
        "allowedLateness": "no row of a window join is late (rule R8); leave it out, or write it into the window step",
    }
    """The same of rows that are ranked in the windows of joins."""
    lost: ClassVar[str] = "so open windows may lack them"
    adds: ClassVar[tuple[str, ...]] = RANK_COLUMNS

    order_by: Annotated[tuple[RankOrder, ...], Field(min_length=1)] | None = Field(
        default=None, examples=[[{"expression": "bids.price", "direction": "desc"}]]
    )
    """What rows are sorted by, the first one first. Rows that are equal in all of it are in the order of their event
    times."""
    rows: Annotated[int, Field(ge=1, le=MOST_RANKED_ROWS)] | None = Field(default=None, examples=[10])
    """How many rows of each key and window are emitted, at most. Behind an `aggregate` it may be absent: then all
    are."""
    totals: Annotated[tuple[WindowTotal, ...], Field(min_length=1)] | None = Field(
        default=None, examples=[[{"function": "sum", "column": "revenue", "as": "total"}]]
    )
    """Columns of values over the rows of a key and window, and of ranks, behind an `aggregate`."""
    having: Text | None = Field(default=None, examples=["revenue > 0.2 * total"])
    """A condition on the rows that would be emitted, their numbers and totals, behind an `aggregate`; rows for which
    it is not true are not emitted, and are counted."""
    window: OwnWindow | None = Field(default=None, examples=[{"tumbling": {"size": "1h"}}])
    """The windows. Beside `aggregate` there is none, because its rows are in windows. Behind window joins, the windows
    of the joins are the default."""

    @property
    def order(self) -> tuple[RankOrder, ...]:
        return self.order_by or ()

    def ordered_by(self, expressions: Mapping[str, str]) -> TopN:
        """Return the ranking with these expressions in the place of their names."""
        trees = {name: parse_tree(text) for name, text in expressions.items()}
        if not trees:
            return self

        def replaced(order: tuple[RankOrder, ...] | None) -> tuple[RankOrder, ...] | None:
            if order is None:
                return None
            texts = (replace_columns(item.expression, trees) for item in order)
            return tuple(item.model_copy(update={"expression": text}) for item, text in zip(order, texts, strict=True))

        totals = self.totals and tuple(
            total.model_copy(
                update={
                    "order_by": replaced(total.order_by),
                    "expression": total.expression and replace_columns(total.expression, trees),
                }
            )
            for total in self.totals
        )
        return self.model_copy(update={"order_by": replaced(self.order_by), "totals": totals})

    @property
    def in_windows_of_rows(self) -> bool:
        return self.window is None

    @property
    def form(self) -> AlignedWindow:
        """The kind of window."""
        assert self.window is not None, "the rules see to it"
        return self.window.form

    @property
    def rows_text(self) -> str:
        """How many rows of each key and window are emitted."""
        return "all rows" if self.rows is None else f"the first {counted(self.rows, 'row')}"

    @property
    def expressions(self) -> Mapping[str, str]:
        orders = (self.order_by_path, *(order for _, order in self.ordered_totals))
        values = {f"totals[{at}].expression": total.expression for at, total in enumerate(self.totals or ())}
        return {
            **{path: item.expression for order in orders for path, item in order.items()},
            **{path: text for path, text in values.items() if text is not None},
        }

    @property
    def order_by_path(self) -> Mapping[str, RankOrder]:
        """What rows are sorted by, by the paths of the expressions below the field."""
        return {f"orderBy[{number}].expression": item for number, item in enumerate(self.order)}

    @property
    def ordered_totals(self) -> Sequence[tuple[WindowTotal, Mapping[str, RankOrder]]]:
        """The totals that depend on an order of the rows, each with its own order by paths as in `order_by_path`; none
        of its own means that of the rows."""
        return [
            (total, {f"totals[{at}].orderBy[{n}].expression": item for n, item in enumerate(total.order_by or ())})
            for at, total in enumerate(self.totals or ())
            if total.is_ordered
        ]

    def signed(self) -> dict[str, Any]:
        window = {} if self.window is None else {"window": {self.form.field: self.form.durations()}}
        # With totals, all rows of a window are kept, however many are emitted.
        more = {"rows": self.rows} if self.totals is None else {"totals": [total.text for total in self.totals]}
        return {"orderBy": [item.text for item in self.order], **more, **window}

    @classmethod
    def signed_text(cls, signed: Any) -> str:
        if not signed:
            return "none"
        if isinstance(signed, Mapping):
            return "; ".join(
                f"{form} {', '.join(f'{name} {signed_window_text(name, value)}' for name, value in fields.items())}"
                for form, fields in signed.items()
            )
        return ", ".join(signed)

    @property
    def kept_for(self) -> int:
        return 0 if self.window is None else self.form.closes_after

    @property
    def kept_text(self) -> str:
        return ">= the end of their last window"

    def late_text(self, watermark: str, lateness: str) -> str:
        return self.form.late_text(watermark, lateness)

    def lines(self, watermark: str, lateness: str) -> Iterator[tuple[str, str]]:
        if self.order:
            yield "order", ", ".join(item.text for item in self.order)
        if self.totals is not None:
            yield "totals", f"{', '.join(total.text for total in self.totals)}, over all rows of each key and window"
        if self.having is not None:
            yield "having", f"{self.having}; other rows are not emitted, and count as filtered_rows"
        pane = "window"
        if self.window is None:
            yield "windows", "those of the rows"
        else:
            yield from self.form.lines()
            pane = f"span of {format_duration(self.form.pane)}"
        yield (
            "emitted",
            f"{self.rows_text} of each window, when {watermark} >= its end + {lateness}",
        )
        if self.totals is not None or self.rows is None:
            yield "kept", "all rows of each window, until it is emitted"
        else:
            yield "kept", f"{counted(self.rows, 'row')} of each key and {pane}; others leave"


RANKING_KINDS: tuple[type[RankingKind], ...] = (Deduplication, TopN)


def ranking_beside_sql(deduplicate: Any, top_n: Any) -> str | None:
    """Return the field beside `sql` of which ROW_NUMBER says a part; None: there is none. Each is a model, or what a
    resource has in its place. A `deduplicate` with its key is a step of its own (rule R7)."""
    if top_n is not None:
        return TopN.field
    by = deduplicate.get("by") if isinstance(deduplicate, Mapping) else getattr(deduplicate, "by", None)
    return Deduplication.field if deduplicate is not None and not by else None


NO_SESSIONS = (
    "each session ends at a time of its own, and topN beside aggregate ranks windows that end together (rule R6); "
    "write tumbling, hopping or cumulative, or rank the output in a job of its own"
)
LATE_BEFORE = (
    "deduplicate reads the records, and lets no late row through to the aggregate (rule D5); write drop, and lateData: "
    "dlq in deduplicate"
)
NO_LATE_ROW = (
    "deduplicate lets no late row through to the aggregate (rule D5); leave it out, and to wait for late records write "
    "allowedLateness into deduplicate"
)
NO_LATE_ROW_TO_RANK = (
    "deduplicate lets no late row through to topN (rule R7); leave it out, and write it into deduplicate"
)
OF_AGGREGATE = {
    "totals": "are of the rows of an aggregate, whose number has a bound (rule R9); write `aggregate`, or leave them "
    "out",
    "having": "is on the rows of an aggregate (rule R9); write `aggregate`, or the condition into `where` of the input "
    "or `filter` of a step",
}
"""Why fields of `topN` are rejected without an `aggregate`, by their names."""
STAYS = "and topN ranks rows that stay (rule R6); {todo}, or rank the output in a job of its own"

# --- the rules that the API server can check ------------------------------------------------------------------------


_IN_WINDOWS = (
    "has(self.joins) && self.joins.exists(step, has(step.window) && (has(step.window.tumbling) || "
    "has(step.window.hopping)))"
)


def _rules_of(kind: type[RankingKind]) -> Iterator[Rule]:
    field = kind.field
    named = f"has(self.{field})"
    yield Rule(
        f"!{named} || !has(self.{field}.of) || has(self.sql) || {names_input(f'self.{field}.of')}",
        "names no input",
        f".{field}.of",
    )
    for name, text in kind.missing.items():
        elsewhere = kind.missing_unless.get(name, ())
        is_named = " || ".join([f"has(self.{field}.{name})", *(f"has(self.{other})" for other in elsewhere)])
        if name == "window":
            is_named += f" || ({_IN_WINDOWS})"
        yield Rule(f"!{named} || {is_named}", f"is missing: {text}", f".{field}.{name}")
    yield from dead_letter_rules(field)


def _rules_of_windows() -> Iterator[Rule]:
    both = "!has(self.topN) || !has(self.aggregate)"
    present = {
        "allowedLateness": f"{time('topN.allowedLateness')} != duration('0s')",
        "lateData": "self.topN.lateData == 'dlq'",
    }
    for name, text in TopN.of_windows.items():
        yield Rule(f"{both} || !({present.get(name, f'has(self.topN.{name})')})", text, f".topN.{name}")
    yield Rule(f"{both} || !has(self.aggregate.window.session)", NO_SESSIONS, ".aggregate.window.session")
    for source in CHANGELOG_SOURCES:
        yield Rule(
            f"{both} || !({source.condition.format('self.aggregate')})",
            f"{source.facts}, {STAYS.format(todo=source.todo)}",
            f".aggregate.{source.field}",
        )


_BOTH_RANK = "!has(self.deduplicate) || !has(self.topN) || has(self.aggregate)"

RANKING_RULES: tuple[Rule, ...] = (
    *(
        Rule(
            f"!has(self.topN) || !has(self.topN.{name}) || has(self.aggregate) || has(self.sql)",
            text,
            f".topN.{name}",
        )
        for name, text in OF_AGGREGATE.items()
    ),
    *(rule for kind in RANKING_KINDS for rule in _rules_of(kind)),
    Rule(
        "!has(self.deduplicate) || !has(self.aggregate) || self.aggregate.lateData != 'dlq'",
        LATE_BEFORE,
        ".aggregate.lateData",
    ),
    *_rules_of_windows(),
    Rule(
        f"{_BOTH_RANK} || {time('topN.allowedLateness')} == duration('0s')",
        NO_LATE_ROW_TO_RANK,
        ".topN.allowedLateness",
    ),
    Rule(f"{_BOTH_RANK} || self.topN.lateData != 'dlq'", NO_LATE_ROW_TO_RANK, ".topN.lateData"),
)
"""Rules over all of `spec`."""

RANKING_MODEL_RULES: Mapping[type | tuple[type, str], tuple[Rule, ...]] = {
    (Deduplication, "within"): positive(),
}
