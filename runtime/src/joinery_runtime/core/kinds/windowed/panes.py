"""Panes of groups: folds arrivals into them, and merges them to windows (G1, G4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.aggregates import AggregateCall, Groups
from joinery_runtime.core.kinds.aligned import Windows
from joinery_runtime.core.kinds.cells import Bounds
from joinery_runtime.core.kinds.folding import Folding, in_defined_order
from joinery_runtime.core.kinds.grouping import changes, order_by_key
from joinery_runtime.core.kinds.rows import ReplaceableRows
from joinery_runtime.core.pipeline.sides import Intake, SideSpec
from joinery_runtime.core.table.columns import (
    EARLY,
    EARLY_FIELD,
    ENGINE_FIELDS,
    FLAG_FIELD,
    HASH,
    OFFSET,
    PARTITION,
    TS,
)
from joinery_runtime.core.table.segment import concat
from joinery_runtime.job.model.references import WINDOW_TIME


def pane_schema(intake: Intake, aggregates: Sequence[AggregateCall], *, emits_early: bool = False) -> pa.Schema:
    """Return the rows of the state. TS is the start of the pane. PARTITION and OFFSET are those of the group's first
    record in the pane, by partition and offset."""
    groups = [intake.schema.field(name) for name in intake.keys]
    early = [EARLY_FIELD] if emits_early else []
    return pa.schema([*ENGINE_FIELDS, FLAG_FIELD, *early, *groups, *Folding(aggregates).fields])


class Panes:
    """Makes rows of the state of one side. `written_at` is that of the work."""

    def __init__(self, windows: Windows, aggregates: Sequence[AggregateCall], side: SideSpec, written_at: int) -> None:
        self._written_at = written_at
        self._windows, self._aggregates, self._intake = windows, aggregates, side.intake
        self._keys, self._schema = side.intake.keys, side.segment_schema()
        self._folding = Folding(aggregates)

    def add(self, rows: pa.RecordBatch, stored: ReplaceableRows) -> pa.RecordBatch:
        """Fold n > 0 prepared rows into their panes. Returns the new rows of the state, and removes from `stored`
        those that they replace."""
        arrived = self._fold(in_defined_order(rows, self._aggregates) if self._intake.chained else rows)
        hashes, times = np.sort(pc.unique(arrived.column(HASH)).to_numpy()), arrived.column(TS).to_numpy()
        before = stored.with_hashes(hashes, (int(times.min()), int(times.max())))
        count = before.batch.num_rows
        if not count:
            return arrived
        members = concat([before.batch, arrived])
        panes = members.column(TS).to_numpy()
        order, begins = self._order(members, panes, panes, np.arange(members.num_rows))
        starts = np.flatnonzero(begins)
        changed = np.repeat(np.logical_or.reduceat(order >= count, starts), np.diff(starts, append=len(order)))
        order, begins = order[changed], begins[changed]
        groups = Groups(np.flatnonzero(begins), len(order))
        merged = self._merge(members, panes, order, groups)
        replaced = np.zeros(count, dtype=bool)
        replaced[order[order < count]] = True
        stored.remove(before, replaced)
        return merged

    def merge_windows(self, rows: pa.RecordBatch, bounds: Bounds, changed: np.ndarray) -> pa.RecordBatch:
        """Merge n panes to the windows that hold them, by number from `bounds[0]` to `bounds[1]` (int64[n] each), and
        that hold a `changed` one (bool[n]). Returns rows of the state with the number of the window as TS."""
        position, numbers = self._windows.expand(bounds)
        members = rows.take(pa.array(position))
        order, begins = self._order(members, numbers, numbers, members.column(TS).to_numpy())
        starts = np.flatnonzero(begins)
        chosen = np.repeat(np.logical_or.reduceat(changed[position[order]], starts), np.diff(starts, append=len(order)))
        order, begins = order[chosen], begins[chosen]
        if not len(order):
            return rows.slice(0, 0)
        groups = Groups(np.flatnonzero(begins), len(order))
        return self._merge(members, numbers, order, groups)

    def _fold(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """One row of the state for each group and pane of n > 0 rows."""
        ts = rows.column(TS).to_numpy()
        panes = self._windows.pane_starts(ts)
        # The place of a row that an aggregate has made is that of its group's first record, which behind joins depends
        # on where epochs are cut: such rows are in their defined order alone (G10).
        has_place = self._intake.event_time != WINDOW_TIME
        arrival_order = [rows.column(name).to_numpy() for name in (PARTITION, OFFSET)] if has_place else []
        order, begins = self._order(rows, panes, ts, *arrival_order, np.arange(rows.num_rows))
        groups = Groups(np.flatnonzero(begins), len(order))
        values = rows.select(self._folding.columns).take(pa.array(order))
        states = self._folding.fold(values, ts[order], groups)
        return self._state_rows(rows, panes, order, groups, states)

    def _merge(self, members: pa.RecordBatch, times: np.ndarray, order: np.ndarray, groups: Groups) -> pa.RecordBatch:
        """One row of the state for each group of rows of the state, which are taken in `order`."""
        states = members.select([field.name for field in self._folding.fields]).take(pa.array(order))
        return self._state_rows(members, times, order, groups, self._folding.merge(states, groups))

    def _order(self, rows: pa.RecordBatch, times: np.ndarray, *sorted_by: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return an order (int64[n]) in which the rows of one key and one time (int64[n], ascending with `sorted_by`)
        are consecutive, sorted by `sorted_by`, and bool[n]: where they begin."""
        keys = [rows.column(name) for name in self._keys]
        order, begins = order_by_key(rows.column(HASH).to_numpy(), keys, *sorted_by)
        return order, begins | changes(times[order])

    def _state_rows(
        self, rows: pa.RecordBatch, times: np.ndarray, order: np.ndarray, groups: Groups, states: pa.RecordBatch
    ) -> pa.RecordBatch:
        first = order[groups.starts]
        # The first record of a group is the one with the lowest partition, then the lowest offset.
        partitions, offsets = (rows.column(name).to_numpy()[order] for name in (PARTITION, OFFSET))
        partition = np.minimum.reduceat(partitions, groups.starts)
        of_first = np.where(partitions == partition[groups.number], offsets, np.iinfo(np.int64).max)
        offset = np.minimum.reduceat(of_first, groups.starts)
        engine = {HASH: rows.column(HASH).to_numpy()[first], TS: times[first], PARTITION: partition, OFFSET: offset}
        own = [pa.array(values) for values in (*engine.values(), np.zeros(len(first), dtype=bool))]
        if EARLY in self._schema.names:
            changed_at = np.full(len(first), self._written_at)  # arrivals
            if EARLY in rows.schema.names:
                changed_at = np.maximum.reduceat(rows.column(EARLY).to_numpy()[order], groups.starts)
            own.append(pa.array(changed_at))
        keys = [rows.column(name).take(pa.array(first)) for name in self._keys]
        return pa.record_batch([*own, *keys, *states.columns], schema=self._schema)
