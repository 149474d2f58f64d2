"""The table of an as-of step: which version of a key is valid at a time, and which are gone (rules A1, A2).

Versions of a key follow each other by *place*: (ts, offset), and by partition where a key has moved to another one and
even the offsets are equal. A version is *gone* when a later one of its key has ts <= H, the table's horizon; so what is
valid at H stands for all the time before H, too, as far as it goes back. The search relies on runs that are sorted by
hash, then by place (`Run.sort(..., by_offset=True)`). Hashes may collide: keys are compared themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.kinds.rows import Pairs, Selection, gather, same_keys
from joinery_runtime.core.pipeline.spec import BEGIN_OF_TIME, RIGHT, SideSpec, StepSpec
from joinery_runtime.core.table.columns import HASH, OFFSET, PARTITION, TS
from joinery_runtime.core.table.match import find_ranges
from joinery_runtime.core.table.segment import Run, concat
from joinery_runtime.core.table.sort import sort_order

PLACE = (TS, OFFSET, PARTITION)


@dataclass(frozen=True, slots=True)
class Found:
    """`probes` (int64[m], ascending) are the positions of the rows that have a valid version, `versions` the m of
    them; a deletion is a version."""

    probes: np.ndarray
    versions: Selection


def valid_versions(step: StepSpec, rows: Selection, runs: Sequence[Run], horizon: int | None) -> Found | None:
    """The version that each of n stream rows takes at its time; None where no row has one."""
    ts = rows.numbers(TS)
    found = _latest(step, rows, ts if horizon is None else np.maximum(ts, horizon), runs)
    # What is valid at the horizon is all that is left of the time before it, and it may have come only after the row.
    return found.chosen(runs, found.place[0] <= ts)


def superseded_on_arrival(step: StepSpec, arrivals: pa.RecordBatch, runs: Sequence[Run], horizon: int) -> np.ndarray:
    """bool[n]: the versions that were gone when they arrived, for one in `runs` or for one that had arrived before,
    which is to say with a lower (partition, offset) (A2)."""
    old = np.flatnonzero(arrivals.column(TS).to_numpy() <= horizon)
    rows = Selection(arrivals, old)
    gone = np.zeros(arrivals.num_rows, dtype=bool)
    gone[old] = _superseded_by(step, rows, runs, horizon) | _superseded_before(step, rows)
    return gone


def still_there(step: StepSpec, runs: Sequence[Run], horizon: int) -> list[np.ndarray]:
    """Per run bool[rows]: the versions that are not gone, as far as these runs tell."""
    batch = concat([run.batch for run in runs])
    old = np.flatnonzero(batch.column(TS).to_numpy() <= horizon)
    rows = Selection(batch, old)
    there = np.ones(batch.num_rows, dtype=bool)
    there[old] = _last_of_their_keys(_key_numbers(step.sides[RIGHT], rows), _ranks(rows, PLACE))
    return np.split(there, np.cumsum([len(run) for run in runs])[:-1])


# --- the latest version up to a time ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Latest:
    """Per probe: number of the run (-1: none has one), row in it, and place (int64[3, n]) of the latest version."""

    run: np.ndarray
    row: np.ndarray
    place: np.ndarray

    @classmethod
    def none(cls, count: int) -> _Latest:
        nothing = np.full(count, -1)
        return cls(nothing, nothing.copy(), np.full((len(PLACE), count), BEGIN_OF_TIME))

    def improve(self, number: int, probes: np.ndarray, versions: Selection) -> None:
        """Takes those of a run's `versions` (of these probes) that are later than what is known."""
        place = _places(versions)
        better = _later(place, self.place[:, probes])
        chosen = probes[better]
        self.run[chosen], self.row[chosen] = number, versions.index[better]
        self.place[:, chosen] = place[:, better]

    def at(self, probes: np.ndarray) -> _Latest:
        return _Latest(self.run[probes], self.row[probes], self.place[:, probes])

    def chosen(self, runs: Sequence[Run], usable: np.ndarray) -> Found | None:
        """What those probes found for which `usable` (bool[n]) is true."""
        probes = np.flatnonzero((self.run >= 0) & usable)
        return Found(probes, _picked(runs, self.run[probes], self.row[probes])) if len(probes) else None


def _latest(step: StepSpec, rows: Selection, at: np.ndarray, runs: Sequence[Run]) -> _Latest:
    """The latest versions of the rows' keys with ts <= `at` (int64[n])."""
    best = _Latest.none(len(rows))
    # Probes in the order of the runs read each run once from front to back, which is many times faster.
    order = np.argsort(rows.numbers(HASH))
    probed, until = rows.where(order), at[order]
    hashes = probed.numbers(HASH)
    for number, run in enumerate(runs):
        probes, found = _in_run(step, probed, hashes, until, run)
        best.improve(number, probes, Selection(run.batch, found))
    return best.at(np.argsort(order))


def _in_run(
    step: StepSpec, rows: Selection, hashes: np.ndarray, at: np.ndarray, run: Run
) -> tuple[np.ndarray, np.ndarray]:
    """(probe, row of the run): steps back over rows that have the hash, but not the key."""
    probes, first, stop = find_ranges(run.hash, run.ts, hashes, np.full(len(at), BEGIN_OF_TIME), at)
    found, row = [(probes[:0], stop[:0])], stop - 1
    while len(probes):
        equal = same_keys(step, Pairs(rows.where(probes), Selection(run.batch, row)))
        found.append((probes[equal], row[equal]))
        on = ~equal & (row > first)
        probes, first, row = probes[on], first[on], row[on] - 1
    return np.concatenate([probe for probe, _ in found]), np.concatenate([row for _, row in found])


def _picked(runs: Sequence[Run], number: np.ndarray, row: np.ndarray) -> Selection:
    """Rows of several runs as one selection, in their order."""
    used = np.unique(number)
    if len(used) == 1:
        return Selection(runs[used[0]].batch, row)
    batch = concat([runs[k].batch.take(pa.array(row[number == k])) for k in used])
    index = np.empty(len(row), dtype=np.int64)
    index[np.argsort(number, kind="stable")] = np.arange(len(row))
    return Selection(batch, index)


# --- versions that are gone -------------------------------------------------------------------------------------------


def _superseded_by(step: StepSpec, rows: Selection, runs: Sequence[Run], horizon: int) -> np.ndarray:
    table = step.sides[RIGHT]
    among_versions = replace(step, sides=(table, table))
    valid = _latest(among_versions, rows, np.full(len(rows), horizon), runs)
    return _later(valid.place, _places(rows))


def _superseded_before(step: StepSpec, rows: Selection) -> np.ndarray:
    """bool[n]: rows whose key has had a later version before they arrived themselves."""
    by_key_and_arrival = _key_numbers(step.sides[RIGHT], rows) * len(rows) + _ranks(rows, (PARTITION, OFFSET))
    order = np.argsort(by_key_and_arrival)
    # One number per row that grows from key to key: the highest so far is of the row's own key.
    by_key_and_place = (_key_numbers(step.sides[RIGHT], rows) * len(rows) + _ranks(rows, PLACE))[order]
    gone = np.empty(len(rows), dtype=bool)
    gone[order] = np.maximum.accumulate(by_key_and_place) > by_key_and_place
    return gone


def _last_of_their_keys(keys: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    highest = np.full(len(keys), -1)
    np.maximum.at(highest, keys, ranks)
    return np.asarray(ranks == highest[keys])


def _key_numbers(table: SideSpec, rows: Selection) -> np.ndarray:
    """int64[n] in [0, n): equal where the keys are equal."""
    columns = [_numbers(gather(table, rows, name)) for name in table.intake.keys]
    return reduce(lambda one, more: _numbers(pa.array(one * len(rows) + more)), columns)


def _numbers(values: pa.Array) -> np.ndarray:
    if pa.types.is_floating(values.type):
        values = pc.add(values, 0.0)  # -0.0 equals 0.0 (V1)
    return np.asarray(values.dictionary_encode().indices.to_numpy().astype(np.int64))


# --- places -----------------------------------------------------------------------------------------------------------


def _places(rows: Selection) -> np.ndarray:
    return np.stack([rows.numbers(name).astype(np.int64) for name in PLACE])


def _later(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """bool[n]: places (int64[3, n]) of `one` that come after those of `other`."""
    (ts, offset, partition), (other_ts, other_offset, other_partition) = one, other
    tie = (offset > other_offset) | ((offset == other_offset) & (partition > other_partition))
    return np.asarray((ts > other_ts) | ((ts == other_ts) & tie))


def _ranks(rows: Selection, names: Sequence[str]) -> np.ndarray:
    """int64[n]: the number of each row when they are sorted by these columns."""
    ranks = np.empty(len(rows), dtype=np.int64)
    ranks[sort_order(*(rows.numbers(name) for name in names))] = np.arange(len(rows))
    return ranks
