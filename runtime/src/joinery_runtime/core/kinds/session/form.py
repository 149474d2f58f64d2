"""Forms sessions from kept sessions and new rows of one epoch (rules S1-S3; docs/architecture.md, "Sessions").

Elements are kept sessions [start, end] and rows (start = end), sorted by (key, start, kept sessions first, arrival).
Everything is arithmetic on arrays. Times are event-time milliseconds; positions count elements.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from joinery_runtime.core.aggregates import AggregateCall
from joinery_runtime.core.kinds.grouping import changes, order_by_key, reachable_positions
from joinery_runtime.core.pipeline.sides import SideSpec
from joinery_runtime.core.pipeline.step import StepWork
from joinery_runtime.core.pipeline.watermark import earlier
from joinery_runtime.core.table.columns import FORCED, HASH, OFFSET, PARTITION, START, TS

_LARGEST = 2**62


@dataclass(frozen=True, slots=True)
class SessionParameters:
    """The parameters of an input's sessions (S1-S7). `drop_late` False is `lateData: reopen` (S5). `retracts`: a
    replaced id is emitted once more, as a retraction. `emit_every` (ms): open sessions are emitted early, at each
    multiple of this time (G8); None: they are not."""

    gap: int
    max_duration: int
    aggregates: tuple[AggregateCall, ...]
    allowed_lateness: int = 0
    drop_late: bool = True
    retracts: bool = False
    late_to_dead_letters: bool = False
    emit_every: int | None = None


@dataclass(frozen=True, slots=True)
class Elements:
    """n > 0 sorted elements. `first` (bool[n]): it is the first of its key. `row` (bool[n]): it is a row, not a kept
    session. `start` and `end` are int64[n]. Kept sessions of a key do not overlap."""

    first: np.ndarray
    row: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class Formed:
    """m sessions. `begin` (int64[m]) is the position of each session's first element; `start` and `last` (int64[m]) are
    the event times of its first and last row. `forced` (bool[m]): it reached the cap (S2)."""

    begin: np.ndarray
    start: np.ndarray
    last: np.ndarray
    forced: np.ndarray


def form(elements: Elements, gap: int, max_duration: int) -> Formed:
    linked = _linked(elements, gap)
    begin = np.flatnonzero(~linked)
    if (_extent(elements, begin) >= max_duration).any():
        begin = _cut(elements, begin, max_duration)
    last = np.maximum.reduceat(elements.end, begin)
    return Formed(begin, elements.start[begin], last, _forced(elements, linked, begin, gap, max_duration))


def _linked(elements: Elements, gap: int) -> np.ndarray:
    """bool[n]: the elements linked to the ones before them. Only a row links, and it links a kept session to earlier
    elements only if it lies in no kept session itself: kept sessions that are near each other stay apart."""
    key = latest_chosen(elements.first)
    row, session = _shift_positions(latest_chosen(elements.row)), _shift_positions(latest_chosen(~elements.row))
    in_session = (session >= key) & (elements.end[row] <= elements.end[session])
    near_row = (row >= key) & (elements.start - elements.end[row] <= gap) & (elements.row | ~in_session)
    near_kept = (session >= key) & (elements.start - elements.end[session] <= gap)
    return np.asarray(near_row | (elements.row & near_kept))


def latest_chosen(chosen: np.ndarray) -> np.ndarray:
    """int64[n]: for each element, the position of the latest chosen one up to it; -1 without one."""
    return np.maximum.accumulate(np.where(chosen, np.arange(len(chosen)), -1))


def next_chosen(chosen: np.ndarray, first: np.ndarray) -> np.ndarray:
    """int64[n]: for each element, the position of the next chosen one of its key, itself included; n without one."""
    n = len(chosen)
    nearest = np.minimum.accumulate(np.where(chosen, np.arange(n), n)[::-1])[::-1]
    next_key = np.minimum.accumulate(np.append(np.where(first, np.arange(n), n)[1:], n)[::-1])[::-1]
    return np.where(nearest < next_key, nearest, n)


def _shift_positions(positions: np.ndarray) -> np.ndarray:
    return np.concatenate([[-1], positions[:-1]])


def _extent(elements: Elements, begin: np.ndarray) -> np.ndarray:
    """Return the length of each chain in milliseconds (int64)."""
    return np.asarray(np.maximum.reduceat(elements.end, begin) - elements.start[begin])


# --- the cap ----------------------------------------------------------------------------------------------------------


def _cut(elements: Elements, begin: np.ndarray, max_duration: int) -> np.ndarray:
    """Cut the chains that begin at `begin` into sessions shorter than `max_duration`. Returns where these begin."""
    long = _extent(elements, begin) >= max_duration
    stop = np.append(begin[1:], len(elements))
    begins = [begin]
    # So many at once that the sum of their lengths stays within int64.
    at_once = max(1, _LARGEST // _room(_extent(elements, begin)[long], max_duration))
    for first in range(0, int(long.sum()), at_once):
        chains = slice(first, first + at_once)
        begins.append(_cut_chains(elements, begin[long][chains], stop[long][chains], max_duration))
    return np.unique(np.concatenate(begins))


def _room(extents: np.ndarray, max_duration: int) -> int:
    return 2 * int(extents.max()) + max_duration + 1


def _cut_chains(elements: Elements, begin: np.ndarray, stop: np.ndarray, max_duration: int) -> np.ndarray:
    """Cut these chains. A session that begins with an element ends before the first element whose end is
    `max_duration` or more after its start. The chains are lined up on one time axis, so that one binary search finds
    for every element where the next session would begin."""
    count = stop - begin
    chain = np.repeat(np.arange(len(begin)), count)
    position = np.arange(len(chain)) + np.repeat(begin - (np.cumsum(count) - count), count)
    shift = (
        chain * _room(elements.end[position] - elements.start[begin][chain], max_duration)
        - elements.start[begin][chain]
    )
    ends = np.maximum.accumulate(elements.end[position] + shift)
    # A session kept under an earlier, larger cap may be longer than this one.
    until = np.maximum(elements.start[position] + max_duration, elements.end[position] + 1)
    after = np.searchsorted(ends, until + shift)
    return np.asarray(position[reachable_positions(after, np.cumsum(count) - count)])


def _forced(elements: Elements, linked: np.ndarray, begin: np.ndarray, gap: int, max_duration: int) -> np.ndarray:
    """bool[m]: the sessions that reached the cap: the next session begins with a row that is near but would make this
    one too long. A session is not forced if that row extends a later kept session (S3)."""
    after = begin[1:]
    later = next_chosen(~elements.row, elements.first)[after]
    has_later = later < len(elements)
    later = np.where(has_later, later, 0)
    near, fits = (
        elements.start[later] - elements.start[after] <= gap,
        elements.end[later] - elements.start[after] < max_duration,
    )
    return np.append(elements.row[after] & linked[after] & ~(has_later & near & fits), False)


# --- arrivals ---------------------------------------------------------------------------------------------------------

_CAPPED, _SESSION, _ROW = 0, 1, 2


@dataclass(frozen=True, slots=True)
class SortedElements:
    """n elements in order. `number` (int64[n]) counts the kept rows of the state, then the arrivals. `kind` is _CAPPED,
    _SESSION or _ROW. The rest is as in `Elements`."""

    number: np.ndarray
    kind: np.ndarray
    first: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def where(self, chosen: np.ndarray) -> SortedElements:
        key = (np.cumsum(self.first) - 1)[chosen]
        return SortedElements(
            self.number[chosen], self.kind[chosen], changes(key), self.start[chosen], self.end[chosen]
        )

    @property
    def row(self) -> np.ndarray:
        return np.asarray(self.kind == _ROW)

    @property
    def without_numbers(self) -> Elements:
        return Elements(self.first, self.row, self.start, self.end)


@dataclass(frozen=True, slots=True)
class AcceptedArrivals:
    """The arrivals that go into sessions. `state_rows` are k rows of the state. Element number k + i is row i of
    `rows`, prepared rows that are not late.

    `elements` are kept sessions and rows that may belong to one. `dropped` counts arrivals by reason. `after_eviction`
    counts rows that go into sessions but may have been near one that is no longer kept (T10).
    """

    state_rows: pa.RecordBatch
    rows: pa.RecordBatch
    elements: SortedElements
    dropped: dict[str, int]
    after_eviction: int

    @property
    def accepted_count(self) -> int:
        """The number of rows that go into sessions."""
        return int(self.elements.row.sum())

    def keys(self, side: SideSpec, elements: np.ndarray) -> list[pa.Array]:
        """Return the group columns of these elements (by number)."""
        index = pa.array(elements)
        return [key.take(index) for key in _keys(side, self.state_rows, self.rows)]


def accept_arrivals(
    side: SideSpec, parameters: SessionParameters, work: StepWork, rows: pa.RecordBatch, state_rows: pa.RecordBatch
) -> AcceptedArrivals:
    """Decide which arrivals go into sessions. Sessions whose last row is before the horizon are no longer kept."""
    evicted = work.horizons[0].current
    accept_from, on_time = work.accept_from[0], rows
    if parameters.drop_late and accept_from is not None:
        # After an edit, rows before `evicted` are late as well (S4): sessions evicted under the former settings have
        # been emitted with their ids. With `reopen`, lateness depends on what is kept.
        lowest = accept_from if evicted is None else max(accept_from, evicted)
        is_late = rows.column(TS).to_numpy() < lowest
        on_time = rows.filter(pa.array(~is_late)) if is_late.any() else rows
    late = rows.num_rows - on_time.num_rows
    elements = _sorted_elements(side, state_rows, on_time)
    forgotten = _touches_nothing(elements, parameters, evicted)
    closed = ~forgotten & _inside_capped(elements)
    counts = {"late": late + int(forgotten.sum()), "closed": int(closed.sum())}
    dropped = {reason: count for reason, count in counts.items() if count}
    accepted = elements.where((elements.kind != _CAPPED) & ~forgotten & ~closed)
    complete = earlier(evicted, -parameters.gap)  # from this time on, every session that a row is near is still kept
    after_eviction = 0 if complete is None else int((accepted.row & (accepted.start < complete)).sum())
    return AcceptedArrivals(state_rows, on_time, accepted, dropped, after_eviction)


def _sorted_elements(side: SideSpec, state_rows: pa.RecordBatch, rows: pa.RecordBatch) -> SortedElements:
    hashes, keys = concat_column(state_rows, rows, HASH), _keys(side, state_rows, rows)
    start, end = concat_column(state_rows, rows, START, TS), concat_column(state_rows, rows, TS)
    kind = np.concatenate([np.where(bool_column(state_rows, FORCED), _CAPPED, _SESSION), np.full(rows.num_rows, _ROW)])
    arrival_order = [concat_column(state_rows, rows, name) for name in (PARTITION, OFFSET)]
    if side.intake.chained:  # rows that one record has made share its place; they are in a defined order already
        arrival_order.append(np.arange(len(hashes)))
    order, first = order_by_key(hashes, keys, start, kind, *arrival_order)
    return SortedElements(order, kind[order], first, start[order], end[order])


def _touches_nothing(elements: SortedElements, parameters: SessionParameters, evicted: int | None) -> np.ndarray:
    """bool[n]: the rows whose own session would no longer be kept and that no kept session can take (S5)."""
    if evicted is None or parameters.drop_late:
        return np.zeros(len(elements.start), dtype=bool)
    old = elements.row & (elements.start < evicted)
    if not old.any():
        return old
    session = elements.kind == _SESSION
    earlier_one, later = latest_chosen(session), next_chosen(session, elements.first)
    near = (earlier_one >= latest_chosen(elements.first)) & (
        elements.start - elements.end[earlier_one] <= parameters.gap
    )
    has_later = later < len(later)
    later = np.where(has_later, later, 0)
    near |= (
        has_later
        & (elements.start[later] - elements.start <= parameters.gap)
        & (elements.end[later] - elements.start < parameters.max_duration)
    )
    return np.asarray(old & ~near)


def _inside_capped(elements: SortedElements) -> np.ndarray:
    """bool[n]: the rows inside a session that has reached the cap, both ends included (S2)."""
    capped = np.flatnonzero(elements.kind == _CAPPED)
    if not len(capped):
        return np.zeros(len(elements.start), dtype=bool)
    # A capped session may lie inside another one, because a session may grow over it.
    key = np.cumsum(elements.first)[capped]
    reach = pl.DataFrame({"key": key, "end": elements.end[capped]}).select(pl.col("end").cum_max().over("key"))
    end = np.zeros(len(elements.start), dtype=np.int64)
    end[capped] = reach.to_series().to_numpy()
    nearest = latest_chosen(elements.kind == _CAPPED)
    return np.asarray(elements.row & (nearest >= latest_chosen(elements.first)) & (end[nearest] >= elements.start))


def concat_column(state_rows: pa.RecordBatch, rows: pa.RecordBatch, name: str, of_rows: str = "") -> np.ndarray:
    """Return a numeric engine column of all elements, by number. `of_rows` is its name in `rows`, if that differs."""
    return np.concatenate([state_rows.column(name).to_numpy(), rows.column(of_rows or name).to_numpy()])


def bool_column(rows: pa.RecordBatch, name: str) -> np.ndarray:
    return np.asarray(rows.column(name).to_numpy(zero_copy_only=False))


def _keys(side: SideSpec, state_rows: pa.RecordBatch, rows: pa.RecordBatch) -> list[pa.Array]:
    return [pa.concat_arrays([state_rows.column(name), rows.column(name)]) for name in side.intake.keys]
