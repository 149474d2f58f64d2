"""The oracle of a `SessionWindow`: section S of docs/semantics.md, one row at a time. A session is the list of its
rows, and everything else is computed from these."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from joinery_devkit.oracle.aggregates import Judged, RowRules, Sketch, aggregate_rows, exact
from joinery_devkit.oracle.horizons import UNKNOWN, EarlyHorizon, Time, as_time
from joinery_devkit.oracle.joins import LATE, EpochExpectation, SideBatches, Watermarks
from joinery_devkit.oracle.model import FAILED, FILTERED_ROWS
from joinery_devkit.oracle.rows import END, Row, Selection, Values, comparable, selected
from joinery_runtime.job import SessionWindow

Identify = Callable[[Sequence[Any]], int]
"""The hash (V1) of the group's values and the start of the session."""
Output = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Arrived:
    """A row that belongs to a session: `position` is its arrival (epoch, partition, offset), `values` are its columns,
    including computed ones."""

    ts: int
    position: tuple[int, int, int]
    values: Values


@dataclass(frozen=True)
class SessionShape:
    """What a job's rows and sessions look like. `where` and `computed` are its expressions in Python, on a row's
    columns; `conditions` are those of its aggregates, by their text; `having` and `selection` (None: all columns) are
    on what `output` gives."""

    job: SessionWindow
    identify: Identify
    where: Callable[[Values], bool | None] | None = None
    computed: Mapping[str, Callable[[Values], Any]] = field(default_factory=dict)
    sketch: Sketch = exact
    conditions: Mapping[str, Callable[[Values], bool | None]] = field(default_factory=dict)
    having: Callable[[Values], bool | None] | None = None
    selection: Selection | None = None

    @property
    def retracts(self) -> bool:
        return self.job.spec.emit_retractions

    def passes(self, values: Values) -> bool:
        return self.where is None or self.where(values) is True

    @property
    def rules(self) -> RowRules:
        return RowRules.of(self.job.aggregation, self.job.spec.select, self.having)

    def arrived(self, row: Row, epoch: int) -> Arrived:
        values = {**row.values, **{name: compute(row.values) for name, compute in self.computed.items()}}
        return Arrived(row.ts, (epoch, row.partition, row.offset), values)

    def group(self, row: Arrived) -> Values:
        return {name: row.values[name] for name in self.job.sessions.group_by}

    def key(self, row: Arrived) -> Hashable:
        """Return the group's key: NULL is a group like any other, and so is NaN (S1)."""
        return tuple(comparable(value) for value in self.group(row).values())

    def output(self, rows: Iterable[Arrived]) -> Output:
        """Return a session's row (S6), with its aggregates (S7)."""
        ordered = sorted(rows, key=lambda row: (row.ts, row.position))
        group, start = self.group(ordered[0]), ordered[0].ts
        values, types = [row.values for row in ordered], self.job.spec.input.types
        aggregates = {
            spec.as_: aggregate_rows(spec, values, types.get(spec.column or ""), self.sketch, self.conditions)
            for spec in self.job.sessions.aggregates
        }
        return {
            **group,
            "window_start": start,
            "window_end": ordered[-1].ts,
            "session_id": self.identify([*group.values(), start]),
            **aggregates,
            **({"retracted": False} if self.retracts else {}),
        }


def sessions_at_once(shape: SessionShape, rows: Iterable[Row]) -> list[Output]:
    """Return the sessions at the end of a whole history in which no row is late and no session reaches the cap: all
    rows sorted, and cut where they are further apart than the gap. Where epochs are cut cannot change this (T9)."""
    groups: dict[Hashable, list[list[Arrived]]] = defaultdict(list)
    arrived = [shape.arrived(row, 0) for row in rows if shape.passes(row.values)]
    for row in sorted(arrived, key=lambda row: (row.ts, row.position)):
        sessions = groups[shape.key(row)]
        if not sessions or row.ts - sessions[-1][-1].ts > shape.job.sessions.gap:
            sessions.append([])
        sessions[-1].append(row)
    rows_of_sessions = (shape.output(session) for sessions in groups.values() for session in sessions)
    judged = map(shape.rules.judge_row, rows_of_sessions)
    return [result.row for result in judged if result.row is not None]


CLOSED = "closed"


@dataclass(slots=True)
class OpenSession:
    """An open session. `out` holds, by id, the rows that were emitted for it or for sessions that are now part of it,
    and that nothing has taken back. `judged`: it was emitted as complete, or left out because of
    `having`. `pending`: it has changed since the last early results (G8)."""

    rows: list[Arrived]
    out: dict[int, Output] = field(default_factory=dict)
    changed: bool = True
    judged: bool = False
    pending: bool = True

    @property
    def start(self) -> int:
        return min(row.ts for row in self.rows)

    @property
    def last(self) -> int:
        return max(row.ts for row in self.rows)

    def with_row(self, ts: int) -> int:
        """How long the session would be with a row at this time."""
        return max(self.last, ts) - min(self.start, ts)


@dataclass(slots=True)
class _Key:
    """The sessions of a group: open `sessions`, and (start, last) of the `capped` ones, which reached the cap."""

    sessions: list[OpenSession] = field(default_factory=list)
    capped: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Horizon:
    before: Time = UNKNOWN
    now: Time = UNKNOWN

    def rise(self, to: Time) -> None:
        self.before, self.now = self.now, max(self.now, to)


class SessionOracle:
    """The oracle. `depth` is how many epochs it takes until what the first one closes has been emitted."""

    depth = 1

    def __init__(self, shape: SessionShape) -> None:
        self.inputs = (shape.job.spec.input.name,)
        self._keys: dict[Hashable, _Key] = defaultdict(_Key)
        self._retained, self._complete, self._early = _Horizon(), _Horizon(), EarlyHorizon()
        self._epoch, self._accept_from = 0, as_time(None)
        self._judged = list[Judged]()  # the rows of the epoch
        self._use(shape)

    def edit(self, job: SessionWindow) -> None:
        """Continue the job with another cap, lateness or retractions."""
        self._use(replace(self.shape, job=job))

    def _use(self, shape: SessionShape) -> None:
        spec, self.shape = shape.job.spec, shape
        self._gap, self._cap = shape.job.sessions.gap, spec.max_duration
        self._lateness, self._drops = spec.allowed_lateness, spec.late_data != "reopen"
        self._every = spec.emit.every if spec.emit is not None else None

    def epoch(self, watermarks: Watermarks, rows: SideBatches) -> EpochExpectation:
        """Replay one epoch, like `Oracle.epoch`."""
        self._epoch += 1
        (name,) = self.inputs
        dropped: Counter[str] = Counter()
        self._judged.clear()
        complete = as_time(watermarks[name]) - self._gap
        self._accept_from = as_time(watermarks[name]) - self._lateness
        self._retained.rise(complete - self._lateness)
        self._complete.rise(complete - self._lateness if self._drops else complete)
        out = [row for key in self._keys.values() for row in self._close(key)]
        if self._early.passes(as_time(watermarks[name]), self._every):
            out += [row for key in self._keys.values() for row in self._emit_early(key)]
        arrivals = []
        for row in rows.get(name, ()):
            if self.shape.passes(row.values):
                arrivals.append(self.shape.arrived(row, self._epoch))
            else:
                dropped["filtered"] += 1
        for arrived in sorted(arrivals, key=lambda row: (row.ts, row.position)):
            key = self._keys[self.shape.key(arrived)]
            if self._late(key, arrived.ts):
                dropped[LATE] += 1
            elif any(start <= arrived.ts <= last for start, last in key.capped):
                dropped[CLOSED] += 1
            else:
                out += self._join(key, arrived)
        out += [row for key in self._keys.values() for row in self._changed(key)]
        late = dropped.pop(LATE, 0)
        unfit = sum(result.unfit for result in self._judged)
        dropped += Counter({FILTERED_ROWS: sum(result.left_out for result in self._judged), FAILED: unfit})
        if self.shape.selection is not None:
            pairs = [(row, *selected(self.shape.selection, row)) for row in out]
            retracted = [{"retracted": row["retracted"]} if self.shape.retracts else {} for row in out]
            out = [{**columns, **last} for (_, columns, _), last in zip(pairs, retracted, strict=True)]
            # What is taken back was counted when it was emitted, and what is unfit already.
            counted = [result.row for result in self._judged if result.unfit]
            dropped += Counter(
                {
                    FAILED: sum(
                        failed
                        for row, _, failed in pairs
                        if not row.get("retracted") and all(row is not other for other in counted)
                    )
                }
            )
        return EpochExpectation((), tuple(out), {name: late}, {name: dropped}, unfit)

    def end(self) -> Iterator[EpochExpectation]:
        """Yield the epoch that ends the input (T7)."""
        yield self.epoch(dict.fromkeys(self.inputs, END), {})

    # --- what the horizons end ----------------------------------------------------------------------------------------

    def _close(self, key: _Key) -> Iterator[Output]:
        for session in key.sessions:
            if self._complete.before <= session.last < self._complete.now and not session.judged:
                yield from self._emit(session)
            session.changed = False
        key.sessions = [session for session in key.sessions if session.last >= self._retained.now]
        key.capped = [(start, last) for start, last in key.capped if last >= self._retained.now]

    def _emit_early(self, key: _Key) -> Iterator[Output]:
        """Yield the open sessions that have changed (G8)."""
        for session in key.sessions:
            if session.pending and not session.judged and session.last >= self._complete.now:
                row = self._judge_row(session)
                assert row is not None, "no row is left out beside early results (G8)"
                session.out, session.pending = {row["session_id"]: row}, False
                yield row

    # --- a row --------------------------------------------------------------------------------------------------------

    def _late(self, key: _Key, ts: int) -> bool:
        """Whether a row is late (rule 1). A row reopens only a session that it can join; one that could not be kept is
        not let in."""
        if self._drops:
            return ts < max(self._accept_from, self._retained.now)
        return ts < self._retained.now and not any(self._may_join(session, ts) for session in key.sessions)

    def _may_join(self, session: OpenSession, ts: int) -> bool:
        if session.start <= ts <= session.last:  # longer than the cap already, if an edit has made the cap smaller
            return True
        near = session.start - self._gap <= ts <= session.last + self._gap
        return near and session.with_row(ts) < self._cap

    def _join(self, key: _Key, row: Arrived) -> Iterator[Output]:
        """Join a row to its sessions (rules 3 and 4)."""
        inside = next((s for s in key.sessions if s.start <= row.ts <= s.last), None)
        # The last session that ends before the row, and the first that starts after it, each only if within the gap.
        near = [s for s in key.sessions if s.start - self._gap <= row.ts <= s.last + self._gap]
        earlier = max((s for s in near if s.last < row.ts), key=lambda s: s.last, default=None)
        later = min((s for s in near if s.start > row.ts), key=lambda s: s.start, default=None)
        if inside is not None:
            self._add(inside, row)
        elif earlier is not None and later is not None and later.last - earlier.start < self._cap:
            self._add(earlier, row)
            earlier.rows += later.rows
            earlier.out |= later.out
            earlier.judged |= later.judged
            key.sessions.remove(later)
        elif earlier is not None and earlier.with_row(row.ts) < self._cap:
            self._add(earlier, row)
        elif later is not None and later.with_row(row.ts) < self._cap:
            self._add(later, row)
        else:
            if earlier is not None:  # it has reached the cap (S2)
                key.sessions.remove(earlier)
                key.capped.append((earlier.start, earlier.last))
                if earlier.changed or not earlier.judged:  # otherwise its row was already emitted
                    yield from self._emit(earlier)
            key.sessions.append(OpenSession([row]))

    def _add(self, session: OpenSession, row: Arrived) -> None:
        session.rows.append(row)
        session.changed = session.pending = True

    # --- emitted rows -------------------------------------------------------------------------------------------------

    def _changed(self, key: _Key) -> Iterator[Output]:
        """Yield changed sessions that were emitted before, or are already complete (S5), and take back the ids that
        others had in early results (G8)."""
        for session in key.sessions:
            if session.changed and (session.judged or session.last < self._complete.now):
                yield from self._emit(session)
            elif session.changed and session.out:
                row = self.shape.rules.judge_row(self.shape.output(session.rows)).row
                assert row is not None, "no row is left out beside early results (G8)"
                if self.shape.retracts:
                    replaced = [before for id_, before in session.out.items() if id_ != row["session_id"]]
                    yield from ({**before, "retracted": True} for before in replaced)
                session.out = {id_: row for id_ in session.out if id_ == row["session_id"]}

    def _emit(self, session: OpenSession) -> Iterator[Output]:
        row = self._judge_row(session)
        identifier = None if row is None else row["session_id"]
        if self.shape.retracts:
            replaced = [before for id_, before in session.out.items() if id_ != identifier]
            yield from ({**before, "retracted": True} for before in replaced)
        session.out, session.judged = {} if row is None else {row["session_id"]: row}, True
        if row is not None:
            yield row

    def _judge_row(self, session: OpenSession) -> Output | None:
        """Return the session's row as it is emitted now; None if it is not."""
        judged = self.shape.rules.judge_row(self.shape.output(session.rows))
        self._judged.append(judged)
        return judged.row
