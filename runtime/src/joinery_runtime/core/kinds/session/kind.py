"""Aggregated sessions of one shard in one epoch (rules S1-S7; docs/architecture.md, "Sessions").

First the kept sessions that the horizons complete are emitted, and those that they end are forgotten. Then arrivals
form sessions together with the kept ones (T3). No I/O, no clock, no randomness: the same work gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.aggregates import AggregateCall
from joinery_runtime.core.kinds.base import Aggregating
from joinery_runtime.core.kinds.folding import in_defined_order, with_order_columns
from joinery_runtime.core.kinds.group_rows import GroupOutput
from joinery_runtime.core.kinds.rows import ReplaceableRows, rows_at_once
from joinery_runtime.core.kinds.session.change import Changed, change, rows_to_add, state_schema
from joinery_runtime.core.kinds.session.form import SessionParameters, accept_arrivals, bool_column
from joinery_runtime.core.pipeline.sides import Intake
from joinery_runtime.core.pipeline.spec import EventTime, Retention, StepOperator, StepSpec
from joinery_runtime.core.pipeline.step import (
    ARRIVAL,
    CLOSING,
    Horizon,
    Horizons,
    StateRun,
    StepResult,
    StepRun,
    StepWork,
    UnfitRows,
)
from joinery_runtime.core.pipeline.watermark import OutputWatermarks, Times, Watermark, earlier, passed_multiple
from joinery_runtime.core.table.columns import EARLY, EMITTED, FORCED, HASH, START, TS
from joinery_runtime.core.table.keyhash import key_hash
from joinery_runtime.core.table.segment import Run, SegmentMeta
from joinery_runtime.job.kinds.aggregate.model import Aggregation
from joinery_runtime.job.kinds.aggregate.windows import SessionOfGroup
from joinery_runtime.job.kinds.base import WindowKind
from joinery_runtime.job.model.references import RETRACTED, SESSION_COLUMNS


@dataclass(frozen=True, slots=True)
class SessionAggregation(SessionParameters, Aggregating):
    """Aggregates the sessions of one input, or of what a step makes. A row of the state is a session, or the bounds of
    one that reached the cap. It is flagged once another row has replaced it.

    A session is emitted when its last row is before COMPLETE, and leaves when it is before the part's own horizon."""

    written_as: ClassVar[tuple[type[WindowKind], ...]] = (SessionOfGroup,)
    column_types: ClassVar[Mapping[str, pa.DataType]] = dict(
        zip(SESSION_COLUMNS, (pa.int64(), pa.int64(), pa.uint64()), strict=True)
    )

    @classmethod
    def of(cls, aggregation: Aggregation, aggregates: tuple[AggregateCall, ...], /) -> Self:
        session = cast(SessionOfGroup, aggregation.form)
        return cls(
            gap=session.gap,
            max_duration=session.max_duration,
            aggregates=aggregates,
            allowed_lateness=aggregation.allowed_lateness,
            drop_late=aggregation.late_data != "reopen",
            retracts=aggregation.emit_retractions,
            late_to_dead_letters=aggregation.late_data == "dlq",
            emit_every=aggregation.emit_every,
        )

    def state_schema(self, intake: Intake) -> pa.Schema:
        return state_schema(intake, self)

    def run(self, step: StepSpec, work: StepWork) -> StepRun:
        epoch = _SessionEpoch(self, step, work)
        yield from epoch.complete()
        yield from epoch.emit_early()
        yield from epoch.arrive()
        return epoch.result()

    def flagged_rows_leave(self, step: StepSpec) -> bool:
        return True

    def needs_state(self, step: StepSpec, side: int, arrived: tuple[bool, ...], *, closing: bool) -> bool:
        return True

    # --- time ---------------------------------------------------------------------------------------------------------

    def accept_from(self, step: StepSpec, watermarks: Mapping[str, Watermark]) -> tuple[int | None, ...]:
        """See S4."""
        return (earlier(watermarks[step.sides[0].time], self.allowed_lateness) if self.drop_late else None,)

    def late_below(
        self, step: StepSpec, side: int, watermarks: Mapping[str, Watermark], horizons: Horizons
    ) -> int | None:
        """See S4. After an edit to longer times, records before what was evicted already are late as well."""
        (lowest,), evicted = self.accept_from(step, watermarks), horizons[step.sides[side].part].current
        return lowest if lowest is None or evicted is None else max(lowest, evicted)

    def horizons(self, step: StepSpec, times: Times, lows: OutputWatermarks) -> Mapping[str, int | None]:
        """See S4 and S5. Rows of a step follow the watermark that the step hands on (S8)."""
        (side,) = step.sides
        watermark = lows[side.time] if side.intake.chained else times[side.time].watermark
        complete = earlier(watermark, self.gap)
        evicted = earlier(complete, self.allowed_lateness)
        early = {} if self.emit_every is None else {side.early: passed_multiple(watermark, self.emit_every)}
        return {side.part: evicted, side.complete: evicted if self.drop_late else complete, **early}

    @property
    def retention(self) -> tuple[Retention, ...]:
        """The event time of a stored session is that of its last row. Rows also leave when they are replaced, which
        does not depend on event time."""
        return _WITHOUT_LATE if self.drop_late else _WITH_LATE

    def closes(self, step: StepSpec, side: int, meta: SegmentMeta, horizon: Horizon) -> bool:
        """Return False for a segment of sessions that all ended before the last epoch's horizon: they have been
        emitted, and may be kept for a long time (S5)."""
        assert horizon.current is not None, "asked when a horizon moves"
        return meta.ts_min < horizon.current and (horizon.previous is None or meta.ts_max >= horizon.previous)

    def live_rows(
        self, step: StepSpec, side: int, state_run: StateRun, horizon: Horizon, complete: int | None
    ) -> StateRun:
        """Flag complete sessions as emitted: they may be reopened (S5)."""
        live_run = StepOperator.live_rows(self, step, side, state_run, horizon, complete)
        if complete is None:
            return live_run
        batch = live_run.run.batch
        at = batch.schema.get_field_index(EMITTED)
        out = pa.array(bool_column(batch, EMITTED) | (live_run.run.ts < complete), pa.bool_())
        return replace(live_run, run=Run.view(batch.set_column(at, batch.schema.field(at), out)))


_WITHOUT_LATE, _WITH_LATE = (Retention(EventTime(), "s4"),), (Retention(EventTime(), "s5"),)


class _SessionEpoch:
    def __init__(self, kind: SessionAggregation, step: StepSpec, work: StepWork) -> None:
        (self._side,), (state_runs,), (self._horizon,), (self._rows,) = (
            step.sides,
            work.state_runs,
            work.horizons,
            work.arrivals,
        )
        self._work, self._kind, self._complete = work, kind, work.complete
        self._stored = ReplaceableRows(state_runs, self._horizon.previous, self._side.segment_schema())
        self._out = SessionOutput(kind, step, ordered=work.ordered)
        self._added: Run | None = None
        self._dropped: dict[str, int] = {}
        self._looked_up = self._after_eviction = 0
        self._lost: UnfitRows | None = None

    def result(self) -> StepResult:
        return StepResult(
            added=(self._added,),
            flags=(self._stored.flags(),),
            finished=self._stored.finished(),
            dropped=(self._dropped,),
            lookups=(self._looked_up,),
            failed=self._out.rows.failures.count,
            filtered=self._out.rows.failures.filtered,
            unfit=tuple(self._out.rows.unfit),
            lost=self._lost,
            after_eviction={0: self._after_eviction},
        )

    def complete(self) -> Iterator[pa.RecordBatch]:
        """Emit the sessions that became complete since the last epoch, unless they were emitted before (S4, S5).
        Then forgets those behind the part's horizon."""

        def completes(rows: pa.RecordBatch) -> np.ndarray:
            complete = self._complete.passes(rows.column(TS).to_numpy())
            return np.asarray(complete & ~bool_column(rows, EMITTED) & ~bool_column(rows, FORCED))

        if self._complete.current != self._complete.previous:
            for rows, chosen in self._stored.where(completes):
                yield from self._out.emit(rows, chosen, CLOSING)
        self._stored.forget(self._horizon.current)

    def emit_early(self) -> Iterator[pa.RecordBatch]:
        """Emit the open sessions that have changed since the last early results, as they are so far (G8)."""

        def has_changed(rows: pa.RecordBatch) -> np.ndarray:
            changed = self._work.early.passes(rows.column(EARLY).to_numpy())
            if self._complete.current is not None:
                changed = changed & (rows.column(TS).to_numpy() >= self._complete.current)
            return np.asarray(changed & ~bool_column(rows, EMITTED) & ~bool_column(rows, FORCED))

        if self._work.early.current != self._work.early.previous:
            for rows, chosen in self._stored.where(has_changed):
                yield from self._out.emit(rows, chosen, CLOSING)

    def arrive(self) -> Iterator[pa.RecordBatch]:
        if self._rows is None:
            return
        if self._side.intake.chained:
            self._rows = in_defined_order(self._rows, self._kind.aggregates)
        # Unlike numpy's `unique`, Arrow's costs the same however often each hash occurs.
        key_sessions = self._stored.with_hashes(np.sort(pc.unique(self._rows.column(HASH)).to_numpy()))
        arrived = accept_arrivals(self._side, self._kind, self._work, self._rows, key_sessions.batch)
        self._dropped, self._looked_up, self._after_eviction = (
            arrived.dropped,
            arrived.accepted_count,
            arrived.after_eviction,
        )
        if not arrived.accepted_count:
            return
        changed = change(self._side, self._kind, arrived, self._complete.current, self._work.written_at)
        if self._kind.retracts:
            taken_back = self._taken_back(key_sessions.batch, changed)
            yield from self._out.emit(key_sessions.batch, taken_back, ARRIVAL, retracted=True)
        yield from self._out.emit(changed.rows, changed.to_emit, ARRIVAL)
        self._lost = self._out.rows.lost_values(changed.rows, changed.rows.column(START).to_numpy())
        self._stored.remove(key_sessions, changed.replaced)
        self._added = rows_to_add(self._kind, changed.rows)

    def _taken_back(self, key_sessions: pa.RecordBatch, changed: Changed) -> np.ndarray:
        """bool[k]: the sessions of the state that were emitted and that no row with their id replaces (S6, G7)."""
        if not changed.emitted.any():
            return changed.emitted
        ends = changed.renamed | ~self._out.passes(changed.rows)[changed.successor]
        taken_back = np.asarray(changed.emitted & ends)
        taken_back[taken_back] = self._out.passes(key_sessions.filter(pa.array(taken_back)))
        return taken_back


# --- what is emitted --------------------------------------------------------------------------------------------------


class SessionOutput:
    def __init__(self, parameters: SessionParameters, step: StepSpec, *, ordered: bool) -> None:
        self._ordered = ordered
        self.rows = GroupOutput(step, parameters.aggregates)

    def passes(self, sessions: pa.RecordBatch) -> np.ndarray:
        """bool[n]: the rows of the state, of sessions that are not capped, that are emitted (G7)."""
        return self.rows.are_emitted(self._values(sessions, retracted=False), sessions)

    def emit(
        self, stored: pa.RecordBatch, chosen: np.ndarray, phase: int, *, retracted: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Emit the chosen (bool[n]) of n rows of the state, as far as they meet the condition (G7). `phase` is CLOSING
        or ARRIVAL."""
        rows, at_once = np.flatnonzero(chosen), rows_at_once([stored])
        for first in range(0, len(rows), at_once):
            sessions = stored.take(pa.array(rows[first : first + at_once]))
            values = self._values(sessions, retracted=retracted)
            emitted, passes = self.rows.make_rows(values, sessions, retracted=retracted)
            if self._ordered:
                start, last = (sessions.column(name).to_numpy() for name in (START, TS))
                emitted = with_order_columns(emitted, sessions, phase, start, last, retracted=retracted)
            if passes.any():
                yield emitted if passes.all() else emitted.filter(pa.array(passes))

    def _values(self, sessions: pa.RecordBatch, *, retracted: bool) -> dict[str, pa.Array]:
        """Return the columns of the step, by name."""
        groups, start = self.rows.group_values(sessions), sessions.column(START)
        own = (start, sessions.column(TS), pa.array(key_hash([*groups.values(), start])))  # documented: S6, V1
        return {
            **groups,
            **dict(zip(SESSION_COLUMNS, own, strict=True)),
            **self.rows.aggregate_values(sessions),
            RETRACTED: pa.repeat(pa.scalar(retracted), sessions.num_rows),
        }
