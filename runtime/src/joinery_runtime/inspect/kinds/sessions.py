"""What is said about sessions (rules S1-S7): those of one group, and the numbers of all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.kinds.folding import Folding
from joinery_runtime.core.kinds.session.form import SessionParameters, bool_column
from joinery_runtime.core.kinds.session.kind import SessionAggregation
from joinery_runtime.core.pipeline.spec import AcceptedRow, StepSpec
from joinery_runtime.core.pipeline.step import Horizon, Horizons
from joinery_runtime.core.table.columns import EMITTED, FORCED, START, TS
from joinery_runtime.core.table.keyhash import key_hash
from joinery_runtime.core.table.segment import concat
from joinery_runtime.inspect.kinds.base import EntryView, EpochTimes, Span, StepDescription, StoredRows, ToJson
from joinery_runtime.job.model.duration import format_time
from joinery_runtime.job.model.wording import counted


class SessionsDescription(StepDescription[SessionAggregation]):
    """See S4 and S5: a row leaves with the session into which it was merged."""

    __slots__ = ()

    describes: ClassVar[type[SessionAggregation]] = SessionAggregation
    merges_rows: ClassVar[bool] = True
    summary_columns: ClassVar[tuple[str, ...]] = (TS, EMITTED, FORCED)

    def entries(self, stored: Sequence[StoredRows], epoch_times: EpochTimes, to_json: ToJson) -> Sequence[SessionView]:
        """List the sessions that no later row has replaced, by start."""
        if not stored:
            return []
        rows = concat(segment_rows.rows.filter(pa.array(~segment_rows.flagged)) for segment_rows in stored)
        timers, last = SessionTimers(self.kind, self.step, epoch_times), rows.column(TS).to_numpy()
        rows = rows.filter(pa.array(timers.is_kept(last)))
        rows = rows.take(pc.sort_indices(pa.table([rows.column(START)], names=[START]), [(START, "ascending")]))
        last, forced, emitted = rows.column(TS).to_numpy(), bool_column(rows, FORCED), bool_column(rows, EMITTED)
        groups = [rows.column(name) for name in self.step.sides[0].intake.keys]
        # The present aggregates of each session, as in the output; capped sessions have none.
        calls, aggregates = self.kind.aggregates, list[dict[str, Any]]({} for _ in forced)
        numbers = np.flatnonzero(~forced)
        if calls and len(numbers):
            folded = Folding(calls).results(rows.take(pa.array(numbers)))
            results = pa.table(folded, names=[call.name for call in calls])
            for number, text in zip(numbers.tolist(), to_json(results), strict=True):
                aggregates[number] = json.loads(text)
        columns = {
            "start": rows.column(START).to_pylist(),
            "last": last.tolist(),
            "session_id": key_hash([*groups, rows.column(START)]).tolist(),
            "capped": forced.tolist(),
            "emitted": (forced | timers.has_gone_out(last, emitted)).tolist(),
            "due": timers.goes_out_next(last).tolist(),
            "goes": (~_is_not_before(last, epoch_times.horizon(self.step.sides[0].part))).tolist(),
            "aggregates": aggregates,
        }
        values = zip(*columns.values(), strict=True)
        return [SessionView(timers, **dict(zip(columns, of_session, strict=True))) for of_session in values]

    def count_text(self, entries: Sequence[EntryView]) -> str:
        capped = sum(isinstance(session, SessionView) and session.capped for session in entries)
        sessions = counted(len(entries) - capped, "session")
        return f"{sessions} and {counted(capped, 'mark')} of capped ones" if capped else sessions

    def spans_of(self, entries: Sequence[EntryView]) -> Sequence[Span]:
        return [session.span for session in entries if isinstance(session, SessionView)]

    def summary(self, rows: pa.Table, epoch_times: EpochTimes) -> SessionCounts:
        return SessionCounts.of(SessionTimers(self.kind, self.step, epoch_times), rows)

    def stored_times(self, rows: pa.RecordBatch) -> Mapping[str, pa.Array]:
        return {"window_start": rows.column(START), "window_end": rows.column(TS)}

    def next_epoch_text(self, side: int, horizons: Horizons) -> str:
        spec = self.step.sides[side]
        eviction = f"forgets sessions whose last row is before {format_time(horizons[spec.part].current)}"
        early = horizons.get(spec.early, Horizon())
        if early.current != early.previous:
            eviction = f"emits early results, {eviction}"
        if self.kind.drop_late:
            return eviction
        complete = format_time(horizons[spec.complete].current)
        return f"emits those whose last row is before {complete}, {eviction}"

    def eviction_condition(self, row: AcceptedRow, epoch_times: EpochTimes) -> str:
        timers = SessionTimers(self.kind, self.step, epoch_times)
        return f"{timers.above(timers.forgotten_above(row.ts))}: then its session leaves"


@dataclass(frozen=True, slots=True)
class SessionTimers:
    """When a job's sessions are emitted and forgotten, by the event time of their last row (milliseconds)."""

    sessions: SessionParameters
    step: StepSpec
    epoch_times: EpochTimes

    @property
    def input(self) -> str:
        return self.step.sides[0].time

    def goes_out_above(self, last: int) -> int:
        """Return the watermark above which a session is emitted, unless it grows (S4, S5)."""
        return last + self.sessions.gap + (self.sessions.allowed_lateness if self.sessions.drop_late else 0)

    def forgotten_above(self, last: int) -> int:
        return last + self.sessions.gap + self.sessions.allowed_lateness

    def above(self, ts: int) -> str:
        """Say when the watermark is above `ts`: `the watermark of clicks (...) is above ...`."""
        return f"{self.epoch_times.watermark_text(self.step)} is above {format_time(ts)}"

    def is_kept(self, last: np.ndarray) -> np.ndarray:
        """Whether no committed epoch has forgotten the session. Its row may stay stored for longer, with its
        segment."""
        return _is_not_before(last, self.epoch_times.horizons[self.step.sides[0].part].previous)

    def has_gone_out(self, last: np.ndarray, emitted: np.ndarray) -> np.ndarray:
        return np.asarray(
            emitted | ~_is_not_before(last, self.epoch_times.horizons[self.step.sides[0].complete].previous)
        )

    def goes_out_next(self, last: np.ndarray) -> np.ndarray:
        """Whether the session is complete in the next epoch."""
        return ~_is_not_before(last, self.epoch_times.horizon(self.step.sides[0].complete))


def _is_not_before(last: np.ndarray, horizon: int | None) -> np.ndarray:
    return np.ones(len(last), dtype=bool) if horizon is None else last >= horizon


# --- of one group -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionView:
    """An open session, or one that reached the cap and was emitted (`capped`). `due`: the next epoch emits it. `goes`:
    the next epoch forgets it."""

    timers: SessionTimers
    start: int
    last: int
    session_id: int
    capped: bool
    emitted: bool
    due: bool
    goes: bool
    aggregates: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        window = {"window_start": self.start, "window_end": self.last, "session_id": self.session_id}
        until = {
            "until_input": self.timers.epoch_times.watermark_name(self.timers.step),
            "until": self.timers.forgotten_above(self.last),
        }
        fields = {"input": self.timers.input, **window, "capped": self.capped, "emitted": self.emitted, **until}
        if self.capped:
            return fields
        out = None if self.emitted else self.timers.goes_out_above(self.last)
        return {**fields, "goes_out": out, "aggregates": dict(self.aggregates)}

    @property
    def left(self) -> bool:
        return False  # a session that has left is not listed

    @property
    def span(self) -> Span:
        """The session as a span. The span of a capped one has ended (S2)."""
        times = f"{format_time(self.start)} to {format_time(self.last)}"
        ended = (f"its session, {times}, reached maxDuration and was emitted", "s2") if self.capped else ()
        return Span(self.start, self.last, *ended)

    def line(self) -> str:
        bounds = f"{format_time(self.start)} to {format_time(self.last)}, id {self.session_id}"
        if self.capped:
            until = f"rows inside it are dropped until {self.timers.above(self.timers.forgotten_above(self.last))}"
            rest = "forgotten with the next epoch" if self.goes else until
            return f"mark of a session that reached maxDuration, {bounds}: it was emitted; {rest}"
        values = ", ".join(f"{name} {json.dumps(value)}" for name, value in self.aggregates.items())
        out, forgotten = self.timers.goes_out_above(self.last), self.timers.forgotten_above(self.last)
        eviction = "forgotten with the next epoch" if self.goes else f"forgotten when {self.timers.above(forgotten)}"
        if self.emitted:
            coming = f"has been emitted; {eviction}"
        elif self.due:
            coming = f"is emitted with the next epoch; {eviction}"
        elif out == forgotten:
            coming = f"is emitted, and forgotten, when {self.timers.above(out)}, unless it grows"
        else:
            coming = f"is emitted when {self.timers.above(out)}, unless it grows; {eviction}"
        return f"session {bounds}: {values}{'; ' if values else ''}{coming}"


# --- of all -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """Numbers of sessions: `open` ones; `due` ones, which are open and emitted with the next epoch; `gone_out` ones,
    which still take late rows; `capped` ones, which reached the cap. `until` is the watermark (ms) of `until_input`
    above which the first session that is not due is emitted, unless it grows (None: there is no such session)."""

    open: int
    due: int
    gone_out: int
    capped: int
    until_input: str
    until: int | None

    @classmethod
    def of(cls, timers: SessionTimers, rows: pa.Table) -> SessionCounts:
        """Count the sessions. `rows` are all rows that no later one has replaced."""
        last, emitted, forced = (rows.column(name).to_numpy() for name in SessionsDescription.summary_columns)
        live = timers.is_kept(last)
        emitted_before = timers.has_gone_out(last, emitted)
        open_ = live & ~forced & ~emitted_before
        due = open_ & timers.goes_out_next(last)
        first = last[open_ & ~due].min(initial=np.iinfo(np.int64).max)
        return cls(
            open=int(open_.sum()),
            due=int(due.sum()),
            gone_out=int((live & ~forced & emitted_before).sum()),
            capped=int((live & forced).sum()),
            until_input=timers.epoch_times.watermark_name(timers.step),
            until=timers.goes_out_above(int(first)) if (open_ & ~due).any() else None,
        )

    def document(self) -> Mapping[str, Any]:
        counts = asdict(self)
        return {"sessions": {"marks" if name == "capped" else name: count for name, count in counts.items()}}

    def lines(self) -> Iterator[str]:
        parts = [
            f"{self.open:,} open ({self.due:,} to be emitted with the next epoch)",
            f"{self.gone_out:,} emitted and still open to late rows",
            f"{self.capped:,} marks of sessions that reached maxDuration",
        ]
        yield f"sessions: {', '.join(parts)}"
        if self.until is not None:
            yield f"  the first is emitted when the watermark of {self.until_input} is above {format_time(self.until)}"
