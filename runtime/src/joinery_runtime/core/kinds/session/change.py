"""Applies arrivals to sessions: the new rows of the state, what is emitted, what is replaced (S1-S6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from joinery_runtime.core.kinds.folding import Folding, groups_of
from joinery_runtime.core.kinds.session.form import (
    AcceptedArrivals,
    Formed,
    SessionParameters,
    bool_column,
    concat_column,
    form,
)
from joinery_runtime.core.pipeline.sides import Intake, SideSpec
from joinery_runtime.core.table.columns import (
    EARLY,
    EARLY_FIELD,
    EMITTED,
    ENGINE_FIELDS,
    FLAG,
    FLAG_FIELD,
    FORCED,
    HASH,
    OFFSET,
    PARTITION,
    SESSION_FIELDS,
    SHOWN,
    SHOWN_FIELD,
    START,
    TS,
)
from joinery_runtime.core.table.segment import Run, concat


@dataclass(frozen=True, slots=True)
class Changed:
    """n sessions that took rows or reached the cap: their new `rows` of the state, and `to_emit` (bool[n]). Of the k
    kept rows (bool[k] each), `replaced` ones leave, `emitted` ones of these are in the output, and `renamed` ones have
    another id now. `successor` (int64[k]) is the row of `rows` in which a replaced one is now; -1 of the others."""

    rows: pa.RecordBatch
    to_emit: np.ndarray
    replaced: np.ndarray
    emitted: np.ndarray
    renamed: np.ndarray
    successor: np.ndarray


@dataclass(frozen=True, slots=True)
class _ChangedSessions:
    """m sessions. `session` (int64[elements]) is the session of each element. `filled` (bool[m]): it holds rows of this
    epoch. `emitted` (bool[m]): part of it has been emitted before, as complete. `shown` (bool[m]): a row with its id is
    in the output."""

    formed: Formed
    session: np.ndarray
    filled: np.ndarray
    emitted: np.ndarray
    shown: np.ndarray

    @property
    def changed(self) -> np.ndarray:
        return np.asarray(self.filled | self.formed.forced)

    def to_emit(self, complete: int | None) -> np.ndarray:
        """bool[m]. An emitted session is emitted again if it took rows (S5). One that reached the cap is emitted,
        unless it has been emitted as it is."""
        over = False if complete is None else self.formed.last < complete
        forced = self.formed.forced
        return np.asarray(np.where(self.filled, self.emitted | over | forced, forced & ~self.emitted))


def change(
    side: SideSpec, parameters: SessionParameters, arrived: AcceptedArrivals, complete: int | None, written_at: int
) -> Changed:
    """Apply the accepted arrivals. `complete` is the horizon before which sessions have been emitted, `written_at`
    that of the work."""
    elements, emitted = arrived.elements, bool_column(arrived.state_rows, EMITTED)
    if complete is not None:
        emitted = emitted | (arrived.state_rows.column(TS).to_numpy() < complete)
    shown = emitted
    if parameters.emit_every is not None:
        early = arrived.state_rows.column(EARLY).to_numpy() < written_at
        shown = emitted | early | bool_column(arrived.state_rows, SHOWN)
    sessions = _form(parameters, arrived, emitted, shown)
    changed, to_emit = sessions.changed, sessions.to_emit(complete)
    rows = _StateRows(side, parameters, arrived, sessions).rows(to_emit, written_at)
    state_elements = np.flatnonzero(~elements.row & changed[sessions.session])
    renamed = np.zeros(arrived.state_rows.num_rows, dtype=bool)
    successor = np.full(len(renamed), -1)
    number, session = elements.number[state_elements], sessions.session[state_elements]
    successor[number] = (np.cumsum(changed) - 1)[session]
    renamed[number] = elements.start[state_elements] != sessions.formed.start[session]
    replaced = successor >= 0
    return Changed(rows, to_emit[changed], replaced, shown & replaced, renamed, successor)


def rows_to_add(parameters: SessionParameters, rows: pa.RecordBatch) -> Run:
    """Return the changed sessions as rows of the state. One that reached the cap stays, without accumulators, so that
    later rows inside it are recognised."""
    index = np.arange(rows.num_rows)
    unless_forced = pa.array(index, mask=bool_column(rows, FORCED))
    accumulated = {field.name for field in Folding(parameters.aggregates).fields}
    columns = [
        column.take(unless_forced) if name in accumulated else column
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]
    return Run.sort(pa.record_batch(columns, schema=rows.schema))


def _form(
    parameters: SessionParameters, arrived: AcceptedArrivals, emitted: np.ndarray, shown: np.ndarray
) -> _ChangedSessions:
    elements = arrived.elements
    formed = form(elements.without_numbers, parameters.gap, parameters.max_duration)
    begins = np.zeros(len(elements.start), dtype=bool)
    begins[formed.begin] = True
    session, rows = np.cumsum(begins) - 1, np.zeros(arrived.rows.num_rows, dtype=bool)
    emitted_elements, shown_elements = (np.append(flags, rows)[elements.number] for flags in (emitted, shown))
    shown_elements &= elements.start == formed.start[session]
    filled, emitted_before, shown_before = (
        np.logical_or.reduceat(flags, formed.begin) for flags in (elements.row, emitted_elements, shown_elements)
    )
    return _ChangedSessions(formed, session, filled, emitted_before, shown_before)


class _StateRows:
    """Makes the changed sessions' new rows of the state."""

    def __init__(
        self, side: SideSpec, parameters: SessionParameters, arrived: AcceptedArrivals, sessions: _ChangedSessions
    ) -> None:
        self._side, self._arrived, self._sessions = side, arrived, sessions
        self._folding = Folding(parameters.aggregates)
        self._first = arrived.elements.number[sessions.formed.begin]  # element, by session

    def rows(self, to_emit: np.ndarray, written_at: int) -> pa.RecordBatch:
        formed, chosen = self._sessions.formed, self._sessions.changed
        first = self._first[chosen]
        schema = self._side.segment_schema()
        engine = {
            **{
                name: concat_column(self._arrived.state_rows, self._arrived.rows, name)[first]
                for name in (HASH, PARTITION, OFFSET)
            },
            **{TS: formed.last[chosen], START: formed.start[chosen], FLAG: np.zeros(len(first), dtype=bool)},
            **{EMITTED: to_emit[chosen], FORCED: formed.forced[chosen]},
        }
        if EARLY in schema.names:
            engine |= {EARLY: np.full(len(first), written_at), SHOWN: self._sessions.shown[chosen]}
        keys = self._arrived.keys(self._side, first)
        own = [pa.array(engine[name]) for name in schema.names[: len(engine)]]
        return pa.record_batch([*own, *keys, *self._merge_accumulators().columns], schema=schema)

    def _merge_accumulators(self) -> pa.RecordBatch:
        """Return the accumulators of each changed session: its kept ones merged with those of its new rows."""
        elements, session = self._arrived.elements, self._sessions.session
        at = np.flatnonzero(elements.row)
        groups = groups_of(session[at])
        rows = self._arrived.rows.select(self._folding.columns)
        rows = rows.take(pa.array(elements.number[at] - self._arrived.state_rows.num_rows))
        folded = self._folding.fold(rows, elements.start[at], groups)
        if not folded.num_columns:
            return folded
        kept_states, kept_sessions = self._kept_states()
        number = np.concatenate([kept_sessions, session[at][groups.starts]])
        order = np.argsort(number, kind="stable")  # kept states come first: their rows arrived earlier
        return self._folding.merge(concat([kept_states, folded]).take(pa.array(order)), groups_of(number[order]))

    def _kept_states(self) -> tuple[pa.RecordBatch, np.ndarray]:
        elements = self._arrived.elements
        at = np.flatnonzero(~elements.row & self._sessions.changed[self._sessions.session])
        names = [field.name for field in self._folding.fields]
        return self._arrived.state_rows.select(names).take(pa.array(elements.number[at])), self._sessions.session[at]


# --- the rows of the state --------------------------------------------------------------------------------------------


def state_schema(intake: Intake, parameters: SessionParameters) -> pa.Schema:
    groups = [intake.schema.field(name) for name in intake.keys]
    early = [EARLY_FIELD, SHOWN_FIELD] if parameters.emit_every is not None else []
    own = [*ENGINE_FIELDS, FLAG_FIELD, *SESSION_FIELDS, *early]
    return pa.schema([*own, *groups, *Folding(parameters.aggregates).fields])
