"""How kept sessions and new rows of one epoch become sessions (rules S1-S3; docs/architecture.md, "Sessions").

Elements are kept sessions [start, end] and rows (start = end), sorted by (key, start, kept sessions first, arrival).
All of it is arithmetic on arrays: times are event-time milliseconds, positions count elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

_LARGEST = 2**62


@dataclass(frozen=True, slots=True)
class Elements:
    """n > 0 sorted elements: `first` is bool[n], the first one of its key; `row` is bool[n]; `start` and `end` are
    int64[n]. Kept sessions of a key do not overlap."""

    first: np.ndarray
    row: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class Formed:
    """m sessions: `begin` (int64[m]) is the position of each one's first element; `start` and `last` (int64[m]) are the
    event times of its first and last row; `forced` (bool[m]): it reached the cap (S2)."""

    begin: np.ndarray
    start: np.ndarray
    last: np.ndarray
    forced: np.ndarray


def form(of: Elements, gap: int, max_duration: int) -> Formed:
    linked = _linked(of, gap)
    begin = np.flatnonzero(~linked)
    if (_extent(of, begin) >= max_duration).any():
        begin = _cut(of, begin, max_duration)
    last = np.maximum.reduceat(of.end, begin)
    return Formed(begin, of.start[begin], last, _forced(of, linked, begin, gap, max_duration))


def _linked(of: Elements, gap: int) -> np.ndarray:
    """bool[n]: where a row brings the element near to what is before it. Only rows do, and to a kept session only one
    that is in no other: kept sessions that are near each other stay apart."""
    key = latest(of.first)
    row, kept = _before(latest(of.row)), _before(latest(~of.row))
    in_session = (kept >= key) & (of.end[row] <= of.end[kept])
    near_row = (row >= key) & (of.start - of.end[row] <= gap) & (of.row | ~in_session)
    near_kept = (kept >= key) & (of.start - of.end[kept] <= gap)
    return np.asarray(near_row | (of.row & near_kept))


def latest(chosen: np.ndarray) -> np.ndarray:
    """int64[n]: the position of the latest chosen element up to each, -1 where there is none."""
    return np.maximum.accumulate(np.where(chosen, np.arange(len(chosen)), -1))


def following(chosen: np.ndarray, first: np.ndarray) -> np.ndarray:
    """int64[n]: the position of the next chosen element of the same key from each on, n where there is none."""
    n = len(chosen)
    nearest = np.minimum.accumulate(np.where(chosen, np.arange(n), n)[::-1])[::-1]
    next_key = np.minimum.accumulate(np.append(np.where(first, np.arange(n), n)[1:], n)[::-1])[::-1]
    return np.where(nearest < next_key, nearest, n)


def _before(positions: np.ndarray) -> np.ndarray:
    return np.concatenate([[-1], positions[:-1]])


def _extent(of: Elements, begin: np.ndarray) -> np.ndarray:
    """int64: how long each chain is."""
    return np.asarray(np.maximum.reduceat(of.end, begin) - of.start[begin])


# --- the cap ----------------------------------------------------------------------------------------------------------


def _cut(of: Elements, begin: np.ndarray, max_duration: int) -> np.ndarray:
    """Where sessions begin, of chains that begin at `begin`: none is as long as `max_duration`."""
    long = _extent(of, begin) >= max_duration
    stop = np.append(begin[1:], len(of))
    found = [begin]
    for first, last in _in_range(_extent(of, begin)[long], max_duration):
        found.append(_cut_chains(of, begin[long][first:last], stop[long][first:last], max_duration))
    return np.unique(np.concatenate(found))


def _in_range(extents: np.ndarray, max_duration: int) -> Iterator[tuple[int, int]]:
    """Chains to cut together, so that the sum of their lengths stays in int64."""
    at_once = max(1, _LARGEST // _room(extents, max_duration))
    yield from ((first, min(first + at_once, len(extents))) for first in range(0, len(extents), at_once))


def _room(extents: np.ndarray, max_duration: int) -> int:
    return 2 * int(extents.max()) + max_duration + 1


def _cut_chains(of: Elements, begin: np.ndarray, stop: np.ndarray, max_duration: int) -> np.ndarray:
    """A session that begins with an element ends before the first one that ends `max_duration` after its start. Lines
    up the chains on one axis of time, where that is one binary search that leads from session to session."""
    count = stop - begin
    chain = np.repeat(np.arange(len(begin)), count)
    position = np.arange(len(chain)) + np.repeat(begin - (np.cumsum(count) - count), count)
    shift = chain * _room(of.end[position] - of.start[begin][chain], max_duration) - of.start[begin][chain]
    ends = np.maximum.accumulate(of.end[position] + shift)
    # Kept under another cap, a session may be longer than it.
    until = np.maximum(of.start[position] + max_duration, of.end[position] + 1)
    after = np.searchsorted(ends, until + shift)
    return np.asarray(position[_reached(after, np.cumsum(count) - count)])


def _reached(after: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Positions that are reached from `begin` by going from each element to the one `after` it (n: nowhere), in log2 of
    the longest way many rounds."""
    jump = np.append(after, len(after))
    found = np.zeros(len(jump), dtype=bool)
    found[begin] = True
    known = 0
    while (now := int(found.sum())) > known:
        known = now
        found[jump[found]] = True
        jump = jump[jump]
    return np.flatnonzero(found[:-1])


def _forced(of: Elements, linked: np.ndarray, begin: np.ndarray, gap: int, max_duration: int) -> np.ndarray:
    """bool[m]: the row that the next session begins with is near, and too late for this one: then this one goes out,
    unless the row extends a later kept session (S3)."""
    after = begin[1:]
    later = following(~of.row, of.first)[after]
    there = later < len(of)
    later = np.where(there, later, 0)
    near, fits = of.start[later] - of.start[after] <= gap, of.end[later] - of.start[after] < max_duration
    return np.append(of.row[after] & linked[after] & ~(there & near & fits), False)
