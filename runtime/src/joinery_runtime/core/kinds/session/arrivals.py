"""The rows that arrive in an epoch, and what they make of the sessions that are kept of their keys.

Kept rows and arrivals are elements, kept ones first, numbered through. What `form` and all that follows see of them is
in the order (key, start, marks, kept sessions, rows, place of arrival).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from joinery_runtime.core.kinds.cells import changes
from joinery_runtime.core.kinds.session.form import Elements, following, latest
from joinery_runtime.core.kinds.sessions import mixed, tell_apart
from joinery_runtime.core.pipeline.spec import SessionWindow, SideSpec
from joinery_runtime.core.pipeline.step import StepWork
from joinery_runtime.core.table.columns import FORCED, HASH, OFFSET, PARTITION, START, TS
from joinery_runtime.core.table.sort import by_hash_and_time, sort_order

_MARK, _SESSION, _ROW = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Lined:
    """n elements in order: `number` (int64[n]) is each one's number, the rest is as in `Elements`."""

    number: np.ndarray
    kind: np.ndarray
    first: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def where(self, chosen: np.ndarray) -> Lined:
        key = (np.cumsum(self.first) - 1)[chosen]
        return Lined(self.number[chosen], self.kind[chosen], changes(key), self.start[chosen], self.end[chosen])

    @property
    def row(self) -> np.ndarray:
        return np.asarray(self.kind == _ROW)

    @property
    def elements(self) -> Elements:
        return Elements(self.first, self.row, self.start, self.end)


@dataclass(frozen=True, slots=True)
class Arrived:
    """`kept` are k rows of the state; element number k + i is row i of `rows`, prepared rows that are not late.

    `lined` are kept sessions and rows that may be part of one; `dropped` counts arrivals by reason.
    """

    kept: pa.RecordBatch
    rows: pa.RecordBatch
    lined: Lined
    dropped: dict[str, int]

    @property
    def taken(self) -> int:
        """How many rows are in sessions."""
        return int(self.lined.row.sum())

    def of_each(self, name: str, of_rows: str = "") -> np.ndarray:
        """An engine column of numbers of all elements, by number."""
        return _both(self.kept, self.rows, name, of_rows)

    def keys(self, side: SideSpec, elements: np.ndarray) -> list[pa.Array]:
        """The group columns of these elements (by number)."""
        index = pa.array(elements)
        return [key.take(index) for key in _keys(side, self.kept, self.rows)]


def judge(side: SideSpec, rule: SessionWindow, work: StepWork, rows: pa.RecordBatch, kept: pa.RecordBatch) -> Arrived:
    """Which arrivals go into sessions, under the horizon before which no session is kept any more."""
    evicted = work.horizons[0].now
    on_time = _on_time(rule, rows, work.accept_from[0], evicted)
    late = rows.num_rows - on_time.num_rows
    lined = _line_up(side, kept, on_time)
    forgotten = _touches_nothing(lined, rule, evicted)
    closed = ~forgotten & _in_mark(lined)
    counts = {"late": late + int(forgotten.sum()), "closed": int(closed.sum())}
    dropped = {reason: count for reason, count in counts.items() if count}
    return Arrived(kept, on_time, lined.where((lined.kind != _MARK) & ~forgotten & ~closed), dropped)


def _on_time(rule: SessionWindow, rows: pa.RecordBatch, accept_from: int | None, evicted: int | None) -> pa.RecordBatch:
    """S4: rows at or after `accept_from`. After an edit, not before what was evicted under longer times either: its
    ids have gone out. With `reopen` it depends on what is kept."""
    if not rule.drop_late or accept_from is None:
        return rows
    lowest = accept_from if evicted is None else max(accept_from, evicted)
    late = rows.column(TS).to_numpy() < lowest
    return rows.filter(pa.array(~late)) if late.any() else rows


def _line_up(side: SideSpec, kept: pa.RecordBatch, rows: pa.RecordBatch) -> Lined:
    hashes, keys = _both(kept, rows, HASH), _keys(side, kept, rows)
    start, end = _both(kept, rows, START, TS), _both(kept, rows, TS)
    forced = kept.column(FORCED).to_numpy(zero_copy_only=False)
    kind = np.concatenate([np.where(forced, _MARK, _SESSION), np.full(rows.num_rows, _ROW)])
    places = (_both(kept, rows, PARTITION), _both(kept, rows, OFFSET))
    order = by_hash_and_time(hashes, start, kind, *places)
    first = changes(hashes[order])
    if mixed(hashes, keys, order):
        key = tell_apart(hashes, keys)
        order = sort_order(hashes, key, start, kind, *places)
        first = changes(hashes[order]) | changes(key[order])
    return Lined(order, kind[order], first, start[order], end[order])


def _touches_nothing(lined: Lined, rule: SessionWindow, evicted: int | None) -> np.ndarray:
    """bool[n]: rows that would be a session that is not kept any more, where none that is can take them (S5)."""
    if evicted is None or rule.drop_late:
        return np.zeros(len(lined.start), dtype=bool)
    old = lined.row & (lined.start < evicted)
    if not old.any():
        return old
    session = lined.kind == _SESSION
    earlier_one, later = latest(session), following(session, lined.first)
    near = (earlier_one >= latest(lined.first)) & (lined.start - lined.end[earlier_one] <= rule.gap)
    there = later < len(later)
    later = np.where(there, later, 0)
    near |= (
        there & (lined.start[later] - lined.start <= rule.gap) & (lined.end[later] - lined.start < rule.max_duration)
    )
    return np.asarray(old & ~near)


def _in_mark(lined: Lined) -> np.ndarray:
    """bool[n]: rows inside a session that has reached the cap (S2), both ends included."""
    marks = np.flatnonzero(lined.kind == _MARK)
    if not len(marks):
        return np.zeros(len(lined.start), dtype=bool)
    # A mark may lie inside another one: a session may grow over it.
    key = np.cumsum(lined.first)[marks]
    reach = pl.DataFrame({"key": key, "end": lined.end[marks]}).select(pl.col("end").cum_max().over("key"))
    end = np.zeros(len(lined.start), dtype=np.int64)
    end[marks] = reach.to_series().to_numpy()
    mark = latest(lined.kind == _MARK)
    return np.asarray(lined.row & (mark >= latest(lined.first)) & (end[mark] >= lined.start))


def _both(kept: pa.RecordBatch, rows: pa.RecordBatch, name: str, of_rows: str = "") -> np.ndarray:
    return np.concatenate([kept.column(name).to_numpy(), rows.column(of_rows or name).to_numpy()])


def _keys(side: SideSpec, kept: pa.RecordBatch, rows: pa.RecordBatch) -> list[pa.Array]:
    return [pa.concat_arrays([kept.column(name), rows.column(name)]) for name in side.intake.keys]
