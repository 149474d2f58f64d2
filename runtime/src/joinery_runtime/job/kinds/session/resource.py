"""`SessionWindow`: the whole resource, with the views that the engine needs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from joinery_runtime.job.kinds.aggregate.model import AggregateWindow, Aggregation, EarlyEmission
from joinery_runtime.job.kinds.aggregate.windows import SessionOfGroup, too_short_a_cap
from joinery_runtime.job.kinds.session.rules import broken_rules
from joinery_runtime.job.kinds.session.sessions import (
    KEEPS_TYPE,
    SESSIONS_PART,
    Aggregate,
    ComputedColumn,
    SessionColumn,
    Sessions,
)
from joinery_runtime.job.model.base import PLAIN_NUMBERS, Bool, ColumnType, Length, Limits, PositiveDuration, Text
from joinery_runtime.job.model.draft import Finding, Loc
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.job.model.outputs import NamedOutput
from joinery_runtime.job.model.references import RETRACTED, SESSION_COLUMNS, SESSION_ID, Reference
from joinery_runtime.job.model.resource import Job, JobSpec, OutputField, PlacedExpression
from joinery_runtime.job.sql import SqlInput, translate_sessions

_NO_WIDTH = "a session has no width, it grows with its rows; write gap, and maxDuration for the most"
_NO_FIELDS = {
    **dict.fromkeys(("width", "widthMs", "width_ms", "hop", "hopMs", "hop_ms"), _NO_WIDTH),
    **dict.fromkeys(("size", "slide", "tumbling", "hopping", "window"), _NO_WIDTH),
    **dict.fromkeys(("gapMs", "gap_ms"), "write gap, for example 30s"),
    **dict.fromkeys(("maxSessionDuration", "max_session_duration_ms"), "write maxDuration, for example 2h"),
    "joins": "it is of a StreamJoin; sessions have groupBy and aggregates",
}


class SessionWindowSpec(JobSpec):
    """`gap` and `max_duration` are milliseconds of event time."""

    input: Input = Field(
        examples=[
            {
                "name": "clicks",
                "kafka": {"bootstrapServers": "kafka:9092", "topic": "clicks"},
                "format": "json",
                "schema": [{"name": "user_id", "type": "string"}, {"name": "ts", "type": "timestamp"}],
                "eventTime": "ts",
            }
        ]
    )
    """What the rows come from."""
    group_by: tuple[Text, ...] | None = Field(default=None, examples=[["user_id"]])
    """Columns whose values have sessions of their own."""
    gap: Length | None = Field(default=None, examples=["30s"])
    """A session ends when the group has no row for longer than this, a duration."""
    max_duration: Length = Field(examples=["2h"])
    """The longest that a session may be, a duration: a longer one is cut."""
    compute: tuple[ComputedColumn, ...] = ()
    """Columns that SQL expressions make, for `groupBy` and `aggregates`."""
    where: Text | None = Field(default=None, examples=["page <> '/health'"])
    """An SQL condition over the input's columns that a row must meet."""
    aggregates: tuple[Aggregate, ...] = ()
    """What is computed of each session."""
    having: Text | None = Field(default=None, examples=["events > 1"])
    """An SQL condition over groups, aggregates, session_id, window_start and window_end that a session must meet to be
    emitted."""
    select: Annotated[tuple[SessionColumn, ...], Field(min_length=1)] | None = None
    """What is emitted: exactly these columns, in this order. If absent, groups, session_id, window_start,
    window_end and aggregates."""
    sql: Text | None = Field(
        default=None,
        examples=["SELECT user_id, COUNT(*) AS events FROM clicks GROUP BY user_id, SESSION(ts, INTERVAL '30' SECOND)"],
    )
    """A SELECT with `GROUP BY ..., SESSION(...)`, instead of `groupBy`, `gap`, `compute`, `where`, `aggregates`,
    `having` and `select`."""
    late_data: Literal["drop", "reopen", "dlq"] = "drop"
    """What happens to late rows: `drop` counts them, `reopen` changes sessions that were emitted, `dlq` writes them
    to the dead letters."""
    allowed_lateness: PositiveDuration = Field(default=0, examples=["1m"])
    """How much longer sessions are kept for rows behind the watermark, a duration."""
    emit_retractions: Bool = False
    """With `reopen` or `emit`: a row that takes back an old session_id is emitted before the one that replaces it."""
    emit: EarlyEmission | None = Field(default=None, examples=[{"every": "10s"}])
    """Early results: sessions that have changed are emitted as they are so far, and each row replaces the one before.
    If absent, only final ones."""
    limits: Limits | None = None
    """Caps on the sessions that are kept."""


class SessionWindow(Job):
    """Sessions of one input: rows of a group whose distance is at most `gap`, aggregated."""

    no_fields: ClassVar[Mapping[str, str]] = _NO_FIELDS

    row_fields: ClassVar[frozenset[str]] = frozenset(
        {
            *("input", "group_by", "gap", "max_duration", "compute", "where", "aggregates", "having", "select"),
            *("late_data", "allowed_lateness", "emit_retractions", "emit", "limits"),
        }
    )

    kind: Literal["SessionWindow"] = "SessionWindow"
    spec: SessionWindowSpec

    @classmethod
    def broken_rules(cls, data: dict[str, Any]) -> list[Finding]:
        return broken_rules(data)

    def unwise_settings(self) -> Iterator[Finding]:
        cap, gap = self.spec.max_duration, self.sessions.gap
        if cap <= gap:
            yield ("spec", "maxDuration"), too_short_a_cap(cap, gap)
        yield from super().unwise_settings()

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (self.spec.input,)

    @property
    def sessions(self) -> Sessions:
        """The fields of `spec`, or what `spec.sql` says in their place."""
        if self.spec.sql is None:
            return Sessions.model_validate(
                self.spec.model_dump(include=set(Sessions.model_fields)), context=PLAIN_NUMBERS
            )
        side = self.spec.input
        table = SqlInput(side.name, tuple(side.types), side.event_time, side.types[side.event_time].name == "int64")
        translation = translate_sessions(self.spec.sql, table, self.function_names)
        return Sessions.model_validate(translation.fields, context=PLAIN_NUMBERS)

    @property
    def aggregation(self) -> Aggregation:
        """The sessions as a StreamJoin writes them in `aggregate`."""
        spec, sessions = self.spec, self.sessions
        session = SessionOfGroup.model_construct(gap=sessions.gap, max_duration=spec.max_duration)
        return Aggregation.model_construct(
            group_by=sessions.group_by,
            window=AggregateWindow.model_construct(of=spec.input.name, session=session),
            compute=sessions.compute,
            aggregates=sessions.aggregates,
            having=sessions.having,
            late_data=spec.late_data,
            allowed_lateness=spec.allowed_lateness,
            emit_retractions=spec.emit_retractions,
            emit=spec.emit,
            limits=spec.limits,
        )

    @property
    def without_sql(self) -> dict[str, Any]:
        return dict(self.sessions)

    @property
    def unread_expressions(self) -> tuple[PlacedExpression, ...]:
        name, sessions = self.spec.input.name, self.sessions
        texts = [("spec.input.where", self.spec.input.where), ("spec.where", sessions.where)]
        texts += [
            (f"spec.compute[{number}].expression", computed.expression)
            for number, computed in enumerate(sessions.compute)
        ]
        texts += [
            (f"spec.aggregates[{number}].where", aggregate.where)
            for number, aggregate in enumerate(sessions.aggregates)
        ]
        return tuple(PlacedExpression(path, text, (name,), name) for path, text in texts if text is not None)

    @property
    def has_expressions(self) -> bool:
        sessions = self.sessions
        filtered = any(aggregate.where is not None for aggregate in sessions.aggregates)
        selected = any(item.expression is not None for item in sessions.select or ())
        return sessions.where is not None or filtered or selected or bool(sessions.compute or self.input_filters)

    def upsert_key(self, output: NamedOutput) -> tuple[str, ...]:
        """Return the output's `postgres.upsertKey`, else the group columns and session_id (rule S6)."""
        target = output.postgres
        if target is None:
            return ()
        names = {column.step_column: column.name for column in reversed(self.columns_of(output))}
        return target.upsert_key or tuple(
            names[session_column] for session_column in (*self.sessions.group_by, SESSION_ID)
        )

    @property
    def limits(self) -> Mapping[tuple[str, ...], Limits]:
        return {(SESSIONS_PART,): self.spec.limits or Limits()}

    @property
    def retracted(self) -> str | None:
        return RETRACTED if self.spec.emit_retractions else None

    @property
    def changelog_key(self) -> tuple[str, ...] | None:
        return self.aggregation.changelog_key

    @property
    def lasting_columns(self) -> Collection[str] | None:
        return self.aggregation.lasting_columns

    @property
    def inputs_without_lateness(self) -> frozenset[str]:
        return frozenset() if self.spec.allowed_lateness else frozenset({self.spec.input.name})

    @property
    def input_places(self) -> tuple[Loc, ...]:
        return (("input",),)

    def with_inputs(self, inputs: Sequence[Input]) -> dict[str, Any]:
        (only,) = inputs
        return {"input": only}

    @property
    def output_columns(self) -> tuple[OutputField, ...]:
        """The output columns (rule S6), with RETRACTED last if retractions are on."""
        sessions, types = self.sessions, self.spec.input.types
        every = [*sessions.group_by, *SESSION_COLUMNS, *(aggregate.as_ for aggregate in sessions.aggregates)]
        chosen = sessions.select or tuple(SessionColumn(column=name) for name in every)
        sources = {name: Reference(self.spec.input.name, name) for name in sessions.group_by if name in types}
        # An aggregate may have the name of another column of the input than its own.
        read = {name: name for name in sources}
        read |= {
            typed_aggregate.as_: typed_aggregate.column
            for typed_aggregate in sessions.aggregates
            if typed_aggregate.column and typed_aggregate.function in KEEPS_TYPE
        }
        column_types = {name: types[column] for name, column in read.items() if column in types}
        column_types |= {
            aggregate.as_: ColumnType("json") for aggregate in sessions.aggregates if aggregate.function == "array_agg"
        }
        named = [
            OutputField(item.as_ or "", expression=item.expression)
            if item.column is None
            else OutputField(
                item.as_ or item.column, sources.get(item.column), None, column_types.get(item.column), item.column
            )
            for item in chosen
        ]
        last = [OutputField(self.retracted, step_column=RETRACTED)] if self.retracted is not None else []
        return (*named, *last)
