"""`spec.aggregate` of a StreamJoin: the groups and windows of the rows that the joins make, and what is computed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar, Literal

from pydantic import Field
from sqlglot import exp

from joinery_runtime.job.kinds.aggregate.windows import (
    ALIGNED_WINDOWS,
    CumulativeOfGroup,
    HoppingOfGroup,
    OwnWindow,
    SessionOfGroup,
    TumblingOfGroup,
)
from joinery_runtime.job.kinds.base import WindowKind
from joinery_runtime.job.kinds.session.sessions import Aggregate, ComputedColumn
from joinery_runtime.job.model.base import Bool, Length, Limits, Model, PositiveDuration, Text
from joinery_runtime.job.model.cel import Rule, dead_letter_rules, exactly_one, names_input, positive
from joinery_runtime.job.model.expression_tree import replace_columns
from joinery_runtime.job.model.output_rules import CHANGELOG_SOURCES, lake_rules
from joinery_runtime.job.model.references import WINDOW_START, parse_reference

AGGREGATE = "aggregate"
WINDOW_KINDS: tuple[type[WindowKind], ...] = (*ALIGNED_WINDOWS, SessionOfGroup)


class AggregateWindow(Model):
    """The windows in which rows are aggregated, and the input whose event time counts."""

    fields: ClassVar[tuple[str, ...]] = tuple(kind.field for kind in WINDOW_KINDS)

    of: Text | None = Field(default=None, examples=["orders"])
    """The input whose event time counts: one that no step pads with nulls. If absent, the first input."""
    tumbling: TumblingOfGroup | None = Field(default=None, examples=[{"size": "1h"}])
    """Windows of one length, one after the other."""
    hopping: HoppingOfGroup | None = None
    """Windows that overlap."""
    cumulative: CumulativeOfGroup | None = None
    """Windows that begin together and grow step by step."""
    session: SessionOfGroup | None = None
    """A window ends when its group has no row for longer than `gap`."""

    @property
    def form(self) -> WindowKind:
        """The one kind of window that is named."""
        named: list[WindowKind] = [window for name in self.fields if (window := getattr(self, name)) is not None]
        assert named, "an aggregate has a window"
        return named[0]


class EarlyEmission(Model):
    """When windows are emitted before they end."""

    every: Length = Field(examples=["10s"])
    """How often, a duration of event time: each time the watermark passes a multiple of it."""


class NextAggregation(Model):
    """Groups the rows of an aggregate, and computes aggregates of these."""

    group_by: tuple[Text, ...] = Field(default=(), examples=[["category"]])
    """Columns of the aggregate's rows, or names of `compute`, whose values have windows of their own. Without any, all
    rows are one group."""
    window: OwnWindow | None = Field(default=None, examples=[{"tumbling": {"size": "24h"}}])
    """The windows, of event time; a row's time is the last millisecond of its window. If absent, the windows from which
    the rows come."""
    compute: tuple[ComputedColumn, ...] = Field(
        default=(), examples=[[{"expression": "spent / visits", "as": "per_visit"}]]
    )
    """Columns that SQL expressions make of the aggregate's rows, for `groupBy` and `aggregates`."""
    aggregates: tuple[Aggregate, ...] = ()
    """What is computed of each group and window. `where` is not available."""
    having: Text | None = Field(default=None, examples=["highest > 10"])
    """An SQL condition over groups, aggregates and the window's columns: only rows for which it is true are emitted."""
    limits: Limits | None = None
    """Caps on the rows that are kept."""

    @property
    def same_windows(self) -> bool:
        """Whether the windows are those from which the rows come."""
        return self.window is None


class Aggregation(Model):
    """Groups rows by columns and windows of event time, and computes aggregates of each."""

    field: ClassVar[str] = AGGREGATE

    group_by: tuple[Text, ...] = Field(default=(), examples=[["orders.country"]])
    """Columns whose values have windows of their own: `<input>.<column>`, or names of `compute`. Without any, all rows
    are one group, which sessions cannot have."""
    window: AggregateWindow = Field(examples=[{"session": {"gap": "30m", "maxDuration": "12h"}}])
    """The windows."""
    compute: tuple[ComputedColumn, ...] = ()
    """Columns that SQL expressions make, for `groupBy` and `aggregates`."""
    aggregates: tuple[Aggregate, ...] = ()
    """What is computed of each group and window."""
    having: Text | None = Field(default=None, examples=["paid_orders > 1"])
    """An SQL condition over groups, aggregates and the window's columns: only rows for which it is true are emitted."""
    late_data: Literal["drop", "reopen", "dlq"] = "drop"
    """What happens to rows behind the watermark: `drop` counts them, `reopen` changes what was emitted, `dlq` writes
    records of an only input to the dead letters."""
    allowed_lateness: PositiveDuration = Field(default=0, examples=["1m"])
    """How much longer windows are kept for rows behind the watermark, a duration."""
    emit_retractions: Bool = False
    """For sessions, with `reopen` or `emit`: a row that takes back an old session id is emitted before the one that
    replaces it."""
    emit: EarlyEmission | None = Field(default=None, examples=[{"every": "10s"}])
    """Early results: windows that have changed are emitted as they are so far, and each row replaces the one before. If
    absent, only final ones."""
    then: NextAggregation | None = Field(
        default=None, examples=[{"aggregates": [{"function": "max", "column": "bids", "as": "highest"}]}]
    )
    """Aggregates the rows of this aggregate once more: emitted are only the rows of the second one."""
    limits: Limits | None = None
    """Caps on the rows that are kept."""

    @property
    def next(self) -> Aggregation | None:
        """`then` as an aggregation of its own."""
        if self.then is None:
            return None
        window = self.window
        if (named := self.then.window) is not None:
            window = AggregateWindow.model_construct(**{name: getattr(named, name) for name in named.fields})
        return Aggregation.model_construct(
            group_by=self.then.group_by,
            window=window,
            compute=self.then.compute,
            aggregates=self.then.aggregates,
            having=self.then.having,
            limits=self.then.limits,
        )

    @property
    def form(self) -> WindowKind:
        """The kind of window."""
        return self.window.form

    @property
    def columns_by_name(self) -> Mapping[str, str]:
        """The groups, the columns of the window and the aggregates, by the names that they have in the next step or, if
        no `select` renames them, in the output: a group loses its input's."""
        computed = {column.as_ for column in self.compute}
        groups = {
            name if name in computed or (ref := parse_reference(name)) is None else ref.column: name
            for name in self.group_by
        }
        return groups | {name: name for name in (*self.form.columns, *(call.as_ for call in self.aggregates))}

    def over_rows(self, expression: str) -> str:
        """Return an expression over groups, aggregates and columns of the window with the names that these have in the
        rows: groups lose their input's."""
        groups = {name: exp.column(column) for column, name in self.columns_by_name.items() if column != name}
        return replace_columns(expression, groups)

    @property
    def emit_every(self) -> int | None:
        """How often early results are emitted (ms of event time); None: never."""
        return self.emit.every if self.emit is not None else None

    @property
    def changelog_key(self) -> tuple[str, ...] | None:
        """The columns by which a row replaces an earlier one: groups and what tells windows apart. None: rows are only
        appended."""
        changes = self.late_data == "reopen" or self.emit is not None
        return (*self.group_by, *self.form.identity) if changes else None

    @property
    def lasting_columns(self) -> Collection[str] | None:
        """The columns that a row of a changelog has in common with the ones that it replaces; None: rows are only
        appended. A session's id is made of its start (rule S6), while its end moves with each row."""
        if self.changelog_key is None:
            return None
        return {*self.changelog_key, *({WINDOW_START} if self.form.renames else ())}

    @property
    def counted_from(self) -> str | None:
        """The input whose event time counts; None: the first one."""
        return self.window.of


# --- the rules that the API server can check -------------------------------------------------------------------------

AGGREGATE_RULES: tuple[Rule, ...] = (
    Rule("!has(self.aggregate) || !has(self.sql)", "aggregate and sql are both named; keep one", ".aggregate"),
    Rule(
        "!has(self.aggregate) || !has(self.prefixes)",
        "groups and aggregates name the columns; drop `prefixes`",
        ".prefixes",
    ),
    Rule(
        f"!has(self.aggregate) || !has(self.aggregate.window.of) || {names_input('self.aggregate.window.of')}",
        "names no input",
        ".aggregate.window.of",
    ),
    Rule(
        "!has(self.aggregate) || !has(self.aggregate.window.session) || "
        "(has(self.aggregate.groupBy) && size(self.aggregate.groupBy) > 0)",
        "is missing or empty: one session of the whole stream would not be bounded by key (rule S1); name at least one "
        "column",
        ".aggregate.groupBy",
    ),
    *dead_letter_rules("aggregate"),
    Rule(
        "!has(self.aggregate) || !has(self.aggregate.having) || self.aggregate.lateData != 'reopen' || "
        "(has(self.aggregate.emitRetractions) && self.aggregate.emitRetractions)",
        "lateData is reopen, so rows that were emitted may stop meeting the condition, and nothing takes them back "
        "(rule G7); write emitRetractions: true",
        ".aggregate.having",
    ),
    Rule(
        "!has(self.aggregate) || !has(self.aggregate.emitRetractions) || !self.aggregate.emitRetractions || "
        "has(self.aggregate.window.session)",
        "is for sessions, whose ids change: other windows keep their key, so no row is taken back; leave it out",
        ".aggregate.emitRetractions",
    ),
    Rule(
        "!has(self.aggregate) || !has(self.aggregate.having) || !has(self.aggregate.emit)",
        "rows that were emitted early may stop meeting the condition, and what they were is not stored (rule G8); keep "
        "one of having and emit",
        ".aggregate.having",
    ),
    *lake_rules("self.aggregate", ".aggregate"),
    Rule(
        "!has(self.aggregate) || !has(self.aggregate.then) || !has(self.aggregate.window.session)",
        "each session ends at a time of its own, and then aggregates windows that end together (rule G10); write "
        "tumbling, hopping or cumulative, or aggregate the output in a job of its own",
        ".aggregate.window.session",
    ),
    *(
        Rule(
            f"!has(self.aggregate) || !has(self.aggregate.then) || !({source.condition.format('self.aggregate')})",
            f"{source.facts}, and then aggregates rows that stay (rule G10); {source.todo}, or aggregate the output in "
            "a job of its own",
            f".aggregate.{source.field}",
        )
        for source in CHANGELOG_SOURCES
    ),
    Rule(
        "!has(self.aggregate) || !has(self.aggregate.then) || !has(self.aggregate.then.aggregates) || "
        "self.aggregate.then.aggregates.all(a, !has(a.where))",
        "the aggregates of then have no `where` (rule G10); write `having` of the first aggregate, which leaves rows "
        "out, or aggregate the output in a job of its own",
        ".aggregate.then.aggregates",
    ),
)
"""Rules over all of `spec`."""

AGGREGATE_MODEL_RULES: Mapping[type | tuple[type, str], tuple[Rule, ...]] = {
    AggregateWindow: (exactly_one(*AggregateWindow.fields),),
    (EarlyEmission, "every"): positive(),
    **{target: rules for kind in WINDOW_KINDS for target, rules in kind.cel.items()},
}
