"""The inner interval join of one shard in one epoch (rules J1-J7), on sorted runs.

    epoch = JoinEpoch(spec, arrivals, state, watermarks)
    for rows in epoch.output(): ...        # every matching pair once, when its later row arrives
    epoch.kept                             # what joins the state

No I/O, no clock, no randomness: the same arguments give the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.columns import OFFSET, PARTITION, TS
from joinery_runtime.core.expression import ColumnRef
from joinery_runtime.core.match import find_ranges, list_pairs
from joinery_runtime.core.segment import Run
from joinery_runtime.core.spec import LEFT, RIGHT, JoinSpec, SideSpec, Watermark

Pair = tuple[Run | None, Run | None]
SideRows = tuple[pa.RecordBatch, np.ndarray]  # a batch and which of its rows

# Order columns of a trace (interfaces.md "Traces"): the later row's place, then its partner's.
ORDER_COLUMNS = ("$side", "$later_partition", "$later_offset", "$partner_partition", "$partner_offset")


class JoinEpoch:
    """One shard's epoch.

    `arrivals` are the prepared rows per side (None: none), `state` the kept runs per side, already cut to the shard's
    hashes, `watermarks` those of the plan. Lateness is judged and the state that is kept decided at construction;
    matches are computed as `output` is consumed.
    """

    def __init__(
        self,
        spec: JoinSpec,
        arrivals: tuple[pa.RecordBatch | None, pa.RecordBatch | None],
        state: tuple[Sequence[Run], Sequence[Run]],
        watermarks: tuple[Watermark, Watermark],
        *,
        ordered: bool = False,
    ) -> None:
        self._spec = spec
        self._state = state
        self._ordered = ordered
        self._keep_from = [spec.keep_from(side, watermarks) for side in (LEFT, RIGHT)]
        accept_from = spec.accept_from(watermarks)
        judged = [_judge(batch, accept_from) for batch in arrivals]
        self.late = (judged[LEFT][1], judged[RIGHT][1])
        self._new = [None if rows is None else Run.sort(rows) for rows, _ in judged]
        self.kept = tuple(self._keepable(side) for side in (LEFT, RIGHT))

    def output(self) -> Iterator[pa.RecordBatch]:
        """The joined rows in bounded batches of `spec.output_schema()` (with ORDER_COLUMNS after them if ordered)."""
        for side in (LEFT, RIGHT):
            new, other = self._new[side], 1 - side
            arrived_before = [self.kept[LEFT]] if side == RIGHT else []
            for run in [*self._state[other], *arrived_before]:
                if new is not None and run is not None and len(run):
                    yield from self._probe(side, new, run)

    def _keepable(self, side: int) -> Run | None:
        new, keep_from = self._new[side], self._keep_from[side]
        if new is None or keep_from is None:
            return new
        kept = new.since(keep_from)
        return kept if len(kept) else None

    def _probe(self, side: int, new: Run, run: Run) -> Iterator[pa.RecordBatch]:
        me, keep_from = self._spec.sides[side], self._keep_from[1 - side]
        first, last = new.ts + me.partner_lower_ms, new.ts + me.partner_upper_ms
        if keep_from is not None:
            first = np.maximum(first, keep_from)
        for new_rows, run_rows in list_pairs(find_ranges(run.hash, run.ts, new.hash, first, last)):
            later, partner = (new.batch, new_rows), (run.batch, run_rows)
            pair = (later, partner) if side == LEFT else (partner, later)
            pair = self._confirm(pair)
            if len(pair[LEFT][1]):
                yield self._project(side, pair)

    def _confirm(self, pair: tuple[SideRows, SideRows]) -> tuple[SideRows, SideRows]:
        """Keeps the pairs whose keys are really equal (hashes may collide) and whose residual predicate is true."""
        left, right = self._spec.sides
        equal = [
            pc.equal(gather(left, pair[LEFT], a), gather(right, pair[RIGHT], b))
            for a, b in zip(left.keys, right.keys, strict=True)
        ]
        pair = _where(pair, reduce(pc.and_, equal))
        residual = self._spec.residual
        if residual is None or not len(pair[LEFT][1]):
            return pair
        return _where(pair, residual.mask(lambda ref: self._resolve(ref, pair), len(pair[LEFT][1])))

    def _resolve(self, ref: ColumnRef, pair: tuple[SideRows, SideRows]) -> pa.Array:
        side = self._spec.side_of(ref.input)
        return gather(self._spec.sides[side], pair[side], ref.column)

    def _project(self, side: int, pair: tuple[SideRows, SideRows]) -> pa.RecordBatch:
        sides = self._spec.sides
        columns = [gather(sides[c.side], pair[c.side], c.column) for c in self._spec.output]
        rows = pa.record_batch(columns, schema=self._spec.output_schema())
        return _with_order(rows, side, pair[side], pair[1 - side]) if self._ordered else rows


def gather(side: SideSpec, rows: SideRows, name: str) -> pa.Array:
    """A user column of these rows of a prepared batch; the event time comes back from `$ts` in its own type."""
    batch, index = rows
    if name == side.event_time:
        return batch.column(TS).take(pa.array(index)).cast(side.schema.field(name).type)
    return batch.column(name).take(pa.array(index))


def _judge(batch: pa.RecordBatch | None, accept_from: int | None) -> tuple[pa.RecordBatch | None, int]:
    """The rows that are not late and how many were (J6)."""
    if batch is None or accept_from is None:
        return batch, 0
    accepted = batch.column(TS).to_numpy() >= accept_from
    late = len(accepted) - int(accepted.sum())
    if late == len(accepted):
        return None, late
    return (batch.filter(pa.array(accepted)) if late else batch), late


def _where(pair: tuple[SideRows, SideRows], mask: pa.Array) -> tuple[SideRows, SideRows]:
    chosen = mask.to_numpy(zero_copy_only=False)
    (left, left_rows), (right, right_rows) = pair
    return (left, left_rows[chosen]), (right, right_rows[chosen])


def _with_order(rows: pa.RecordBatch, side: int, later: SideRows, partner: SideRows) -> pa.RecordBatch:
    values = [np.full(rows.num_rows, side)]
    for batch, index in (later, partner):
        values += [batch.column(PARTITION).to_numpy()[index], batch.column(OFFSET).to_numpy()[index]]
    table = pa.table(rows.columns + [pa.array(v) for v in values], names=[*rows.schema.names, *ORDER_COLUMNS])
    return table.combine_chunks().to_batches()[0]
