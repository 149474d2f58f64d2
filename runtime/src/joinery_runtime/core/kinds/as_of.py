"""The stream-table as-of join of one shard in one epoch (rules A1-A4): inner and left. LEFT is the stream, RIGHT the
table.

The table's arrivals become versions first. Next the waiting rows whose grace is over are emitted, by time. Last come
the stream's arrivals that need not wait, by (partition, offset).

No I/O, no clock, no randomness: the same work gives the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import ClassVar, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.kinds.base import Join, lower_of, lowest_of_left
from joinery_runtime.core.kinds.grouping import rows_with_hashes
from joinery_runtime.core.kinds.rows import (
    PairFailures,
    Pairs,
    Selection,
    apply_filter,
    as_segment,
    gather,
    project,
    residual,
    rows_at_once,
    same_keys,
)
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT, SideSpec
from joinery_runtime.core.pipeline.spec import AcceptedRow, Distance, EventTime, Retention, RowTime, StepSpec
from joinery_runtime.core.pipeline.step import Horizon, Horizons, StateRun, StepResult, StepRun, StepWork
from joinery_runtime.core.pipeline.watermark import (
    BEGIN_OF_TIME,
    END_OF_TIME,
    OutputWatermarks,
    Times,
    Watermark,
    earlier,
)
from joinery_runtime.core.table.columns import DELETED, HASH, JOINABLE, OFFSET, PARTITION, TS, UNAVAILABLE
from joinery_runtime.core.table.segment import Run, SegmentMeta, concat
from joinery_runtime.core.table.sort import find_ranges, sort_order
from joinery_runtime.job import AsOf, JoinStep
from joinery_runtime.job.kinds.base import StepKind


@dataclass(frozen=True, slots=True)
class NextVersion(RowTime):
    """The event time of the version that supersedes the row decides."""

    by_event_time: ClassVar[bool] = False

    def time_of(self, row: AcceptedRow) -> int | None:
        return row.newer

    def event_time_at(self, time: int) -> int:
        return time - 1  # a version is older than the one that supersedes it


@dataclass(frozen=True, slots=True)
class AsOfJoin(Join):
    """Joins each stream row with the table's version valid at its time (rules A1-A4)."""

    written_as: ClassVar[tuple[type[StepKind], ...]] = (AsOf,)
    right_is_table: ClassVar[bool] = True

    history_retention: int
    grace: int = 0
    retention: tuple[Retention, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        waiting = Retention(EventTime(), "a3", kept_for_ms=self.grace, inclusive=True)
        object.__setattr__(self, "retention", (waiting, Retention(NextVersion(), "a2", inclusive=True)))

    @classmethod
    def of(cls, step: JoinStep, _only: bool, /) -> Self:
        matching = cast(AsOf, step.matching)
        return cls(matching.history_retention, matching.grace)

    @property
    def allowed_lateness(self) -> int:
        return 0

    def run(self, step: StepSpec, work: StepWork) -> StepRun:
        """Look up every stream row that is emitted in this epoch. No stream row is dropped as late (A3)."""
        work, unresolved = _with_unavailable_values(step, work)
        runs = [state_run.run for state_run in work.state_runs[RIGHT]]
        arrivals, horizon, expired = work.arrivals[RIGHT], work.horizons[RIGHT].current, 0
        if arrivals is None or horizon is None:
            new_versions = _to_run(step, RIGHT, arrivals)
        else:
            superseded = superseded_on_arrival(step, arrivals, runs, horizon)
            new_versions, expired = _to_run(step, RIGHT, arrivals.filter(pa.array(~superseded))), int(superseded.sum())
        if new_versions is not None:
            runs.append(new_versions)
        at_once, waiting = self._split_arrivals(step, work)
        batches = [(rows, closing) for rows, closing in ((_due_rows(work), True), (at_once, False)) if rows is not None]
        lookups, matches, failures = 0, 0, PairFailures()
        for rows, closing in batches:
            piece_length = rows_at_once([rows, *(run.batch for run in runs)])
            for first in range(0, rows.num_rows, piece_length):
                joined = _join(step, work, rows.slice(first, piece_length), runs, failures, closing=closing)
                lookups, matches = lookups + joined.lookups, matches + joined.matches
                if joined.rows.num_rows:
                    yield joined.rows
        return StepResult(
            added=(waiting, new_versions),
            dropped=({}, {"expired": expired} if expired else {}),
            lookups=(lookups, 0),
            matches=matches,
            failed=failures.count,
            filtered=failures.filtered,
            late=(np.empty((0, 2), np.int64), unresolved),
        )

    def needs_state(self, step: StepSpec, side: int, arrived: tuple[bool, ...], *, closing: bool) -> bool:
        return closing or (side == RIGHT and any(arrived))

    def sorts_by_offset(self, side: int) -> bool:
        return side == RIGHT

    def _split_arrivals(self, step: StepSpec, work: StepWork) -> tuple[pa.RecordBatch | None, Run | None]:
        """Split the stream's arrivals into those that are emitted at once, by (partition, offset), and those that
        wait, for late versions (A3) or for versions that are not read yet (A4). A row that cannot match has nothing to
        wait for (O2)."""
        rows = work.arrivals[LEFT]
        if rows is None:
            return None, None
        ts, now = rows.column(TS).to_numpy(), work.horizons[LEFT].current
        waits = _joinable(rows) & ((self.grace > 0) | (ts > work.reached))
        if now is not None:
            waits &= ts > now
        at_once = _sort_rows(rows.filter(pa.array(~waits)), PARTITION, OFFSET)
        return at_once, _to_run(step, LEFT, rows.filter(pa.array(waits)))

    # --- time ---------------------------------------------------------------------------------------------------------

    def complete_from(self, step: StepSpec, side: int, horizons: Sequence[Horizon]) -> int | None:
        """Return the version that was valid at an earlier row's time may be superseded and evicted (A2)."""
        return horizons[RIGHT].current if side == LEFT else None

    def horizons(self, step: StepSpec, times: Times, lows: OutputWatermarks) -> Mapping[str, int | None]:
        """Return the horizons. The stream's is the time up to which rows have waited long enough (A3) and the table was
        read (A4); `end` ends the waiting for late versions. A table that has ended forgets nothing: its time stays at
        its last row. Rows that are not read yet, wait for the table, or may still come from the steps before will ask
        for versions of their times (A2)."""
        left, right = step.sides
        stream, table = times[left.time], times[right.time]
        waited = END_OF_TIME if stream.watermark == END_OF_TIME else earlier(stream.highest, self.grace)
        earliest_lookup = _lowest(table.highest, table.reached, stream.reached)
        if left.intake.chained and stream.highest is not None:
            earliest_lookup = lower_of(earliest_lookup, lows[left.time])
        return {left.part: _lowest(waited, table.reached), right.part: earlier(earliest_lookup, self.history_retention)}

    def output_watermarks(
        self, step: StepSpec, lows: OutputWatermarks, horizons: Horizons, distance: Distance
    ) -> OutputWatermarks:
        """Count waiting rows as later than the horizon of the epoch before. A version may be older than its row by any
        time, so nothing counts from the table's times."""
        return lowest_of_left(step, lows, earlier(horizons[step.sides[LEFT].part].previous, -1), distance)

    def closes(self, step: StepSpec, side: int, meta: SegmentMeta, horizon: Horizon) -> bool:
        assert horizon.current is not None, "asked when a horizon moves"
        return side == LEFT and meta.ts_min <= horizon.current and self.needs(step, side, meta, horizon)

    def survivors(self, step: StepSpec, side: int, runs: Sequence[StateRun], horizon: Horizon) -> Sequence[StateRun]:
        """Keep the stream's waiting rows, and the table's versions that are not superseded at the horizon.

        A deletion valid at the horizon stays even as a key's only version. Without it, a version from before the
        deletion that arrives later would come back to life instead of being dropped (A2).
        """
        if side == LEFT or horizon.current is None or not runs:
            return Join.survivors(self, step, side, runs, horizon)
        live = live_versions(step, [state_run.run for state_run in runs], horizon.current)
        return [state_run.where(chosen) for state_run, chosen in zip(runs, live, strict=True)]

    def released_by(self, step: StepSpec, side: int, watermarks: Mapping[str, Watermark]) -> set[str]:
        left, table = step.sides[LEFT], step.sides[RIGHT].time
        if side == RIGHT:
            return {table, *left.inputs} if left.intake.chained else {table}
        return {left.time, table} if self.grace else {table}


# --- what is emitted, what stays --------------------------------------------------------------------------------------


def _lowest(time: int | None, *reached: int) -> int | None:
    lowest = min(reached)
    return None if time is None or lowest == BEGIN_OF_TIME else min(time, lowest)


def _with_unavailable_values(step: StepSpec, work: StepWork) -> tuple[StepWork, np.ndarray]:
    """Give the table's arrivals the values that their records lack, from the version before them (A1). Returns also
    the partitions and offsets (int64[k, 2]) of those that are left out, because there is none."""
    rows, no_rows = work.arrivals[RIGHT], np.empty((0, 2), np.int64)
    if rows is None or UNAVAILABLE not in rows.schema.names or rows.column(UNAVAILABLE).null_count == rows.num_rows:
        return work, no_rows
    table = step.sides[RIGHT]
    lacks = [{*(names or "").splitlines()} & {*table.intake.stored} for names in rows.column(UNAVAILABLE).to_pylist()]
    hashes = np.unique(rows.column(HASH).to_numpy()[[bool(names) for names in lacks]])
    runs = [state_run.run for state_run in work.state_runs[RIGHT]]
    batches = [run.batch.take(pa.array(rows_with_hashes(run.hash, hashes))) for run in runs]
    versions = concat([*batches, as_segment(table, rows)])
    every, first = Selection(versions, np.arange(versions.num_rows)), versions.num_rows - rows.num_rows
    names = sorted(set[str]().union(*lacks))
    lacking = {name: np.array([*[False] * first, *(name in lacked_names for lacked_names in lacks)]) for name in names}
    deleted = versions.column(DELETED).to_numpy(zero_copy_only=False)
    sources = sources_of(_key_numbers(table, every), _ranks(every, VERSION_ORDER), deleted, lacking)
    missing = np.zeros(rows.num_rows, dtype=bool)
    for name, source in sources.items():
        missing |= source[first:] < 0
        values = versions.column(name).take(pa.array(np.maximum(source[first:], 0)))
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), values)
    partition_offsets = np.stack(
        [rows.column(name).to_numpy().astype(np.int64) for name in (PARTITION, OFFSET)], axis=1
    )
    return replace(work, arrivals=(work.arrivals[LEFT], rows.filter(pa.array(~missing)))), partition_offsets[missing]


def sources_of(
    keys: np.ndarray, ranks: np.ndarray, deleted: np.ndarray, lacking: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """For each column the row (int64[n]) from which each of n rows has its value: the row itself, or the latest earlier
    row of its key that has one; -1 where there is none, because the key was deleted since then or was never there.
    Rows with equal `keys` belong together, in order of their `ranks`; `deleted` is bool[n], as `lacking` by column."""
    order = np.lexsort((ranks, keys))
    position = np.arange(len(keys))
    first_of_key = np.maximum.accumulate(np.where(np.diff(keys[order], prepend=-1) != 0, position, 0))
    sources = {}
    for name, lacks in lacking.items():
        latest = np.maximum.accumulate(np.where(lacks[order], -1, position))
        usable = (latest >= first_of_key) & (~deleted[order][latest] | (latest == position))
        sources[name] = np.empty(len(keys), np.int64)
        sources[name][order] = np.where(usable, order[latest], -1)
    return sources


def _due_rows(work: StepWork) -> pa.RecordBatch | None:
    """Return the kept rows whose wait ends now, by time. Rows emitted in an earlier epoch may still be stored."""
    horizon = work.horizons[LEFT]
    if horizon.current is None:
        return None
    due = [_between(state_run.run, horizon.previous, horizon.current) for state_run in work.state_runs[LEFT]]
    return _sort_rows(concat(due), TS, PARTITION, OFFSET) if due else None


def _between(run: Run, before: int | None, now: int) -> pa.RecordBatch:
    due = run.ts <= now if before is None else (run.ts > before) & (run.ts <= now)
    return run.batch.filter(pa.array(due))


def _joinable(rows: pa.RecordBatch) -> np.ndarray:
    if JOINABLE not in rows.schema.names:
        return np.ones(rows.num_rows, dtype=bool)
    return np.asarray(rows.column(JOINABLE).to_numpy(zero_copy_only=False))


def _to_run(step: StepSpec, side: int, rows: pa.RecordBatch | None) -> Run | None:
    if rows is None or not rows.num_rows:
        return None
    return Run.sort(as_segment(step.sides[side], rows), by_offset=side == RIGHT)


def _sort_rows(rows: pa.RecordBatch, *names: str) -> pa.RecordBatch:
    return rows.take(pc.sort_indices(rows, [(name, "ascending") for name in names]))


# --- joining ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Joined:
    """Output `rows` in the order of their stream rows. `lookups` is the number of stream rows that could match."""

    rows: pa.RecordBatch
    lookups: int
    matches: int


def _join(
    step: StepSpec,
    work: StepWork,
    rows: pa.RecordBatch,
    runs: Sequence[Run],
    failures: PairFailures,
    *,
    closing: bool,
) -> _Joined:
    """Join stream rows with the versions valid at their times. Of a left join, emits the others with NULLs."""
    stream_rows = Selection(rows, np.flatnonzero(_joinable(rows)))
    unmatched, parts, matches = np.ones(rows.num_rows, dtype=bool), list[Pairs](), 0
    valid = valid_versions(step, stream_rows, runs, work.horizons[RIGHT].current)
    if valid is not None:
        # A pair that fails the residual predicate never makes an older version valid.
        deleted = valid.versions.batch.column(DELETED).to_numpy(zero_copy_only=False)[valid.versions.index]
        matched_rows = stream_rows.where(valid.probes).where(~deleted)
        pairs = Pairs(matched_rows, valid.versions.where(~deleted))
        passes = residual(step, pairs, failures)
        unmatched[matched_rows.index[passes]] = False
        parts.append(pairs.where(passes))
        matches = int(passes.sum())
    if step.sides[LEFT].preserved:
        parts.append(Pairs(Selection(rows, np.flatnonzero(unmatched)), None))
    parts = [apply_filter(step, part, failures) for part in parts]
    arrived = None if closing else LEFT
    batches = [project(step, part, failures, ordered=work.ordered, arrived=arrived) for part in parts]
    if not batches:
        return _Joined(pa.RecordBatch.from_pylist([], step.output_schema()), len(stream_rows), matches)
    if len(batches) == 1:
        return _Joined(batches[0], len(stream_rows), matches)
    positions = np.concatenate([part.left.index for part in parts if part.left is not None])
    return _Joined(concat(batches).take(pa.array(np.argsort(positions))), len(stream_rows), matches)


# --- versions ---------------------------------------------------------------------------------------------------------
#
# Versions of a key have an order: by ts, then offset, then partition, in case a key has moved to another partition and
# even the offsets are equal. A version is *superseded* when a later version of its key has ts <= H, the horizon of the
# table. The version valid at H therefore stands for the time before H too, back to its own ts. The search relies on
# runs sorted by hash, then in this order (`Run.sort(..., by_offset=True)`). Hashes may collide, so keys are compared as
# well.

VERSION_ORDER = (TS, OFFSET, PARTITION)


@dataclass(frozen=True, slots=True)
class ValidVersions:
    """`probes` (int64[m], ascending) are the positions of the rows that have a valid version; `versions` are these m
    versions. A deletion is a version."""

    probes: np.ndarray
    versions: Selection


def valid_versions(step: StepSpec, rows: Selection, runs: Sequence[Run], horizon: int | None) -> ValidVersions | None:
    """Find the version valid at each stream row's time. None if no row has one."""
    ts = rows.numbers(TS)
    latest = _latest(step, rows, ts if horizon is None else np.maximum(ts, horizon), runs)
    # The version valid at the horizon is all that remains of earlier times, and it may be newer than the row.
    return latest.chosen(runs, latest.version_order[0] <= ts)


def superseded_on_arrival(step: StepSpec, arrivals: pa.RecordBatch, runs: Sequence[Run], horizon: int) -> np.ndarray:
    """bool[n]: the versions that were superseded on arrival (A2), by one in `runs` or by one that arrived before them,
    which has a lower (partition, offset)."""
    old = np.flatnonzero(arrivals.column(TS).to_numpy() <= horizon)
    rows = Selection(arrivals, old)
    superseded = np.zeros(arrivals.num_rows, dtype=bool)
    table = step.sides[RIGHT]
    latest = _latest(replace(step, sides=(table, table)), rows, np.full(len(rows), horizon), runs)
    superseded[old] = _later(latest.version_order, _version_order(rows)) | _superseded_before(step, rows)
    return superseded


def live_versions(step: StepSpec, runs: Sequence[Run], horizon: int) -> list[np.ndarray]:
    """For each run, bool[rows]: the versions that are not superseded, judged by these runs alone."""
    batch = concat([run.batch for run in runs])
    old = np.flatnonzero(batch.column(TS).to_numpy() <= horizon)
    rows = Selection(batch, old)
    live = np.ones(batch.num_rows, dtype=bool)
    live[old] = _last_of_their_keys(_key_numbers(step.sides[RIGHT], rows), _ranks(rows, VERSION_ORDER))
    return np.split(live, np.cumsum([len(run) for run in runs])[:-1])


# --- the latest version up to a time ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Latest:
    """The latest version for each probe: its run's number (-1: none found), its row there, and its `_version_order`
    (int64[3, n])."""

    run: np.ndarray
    row: np.ndarray
    version_order: np.ndarray

    @classmethod
    def none(cls, count: int) -> _Latest:
        nothing = np.full(count, -1)
        return cls(nothing, nothing.copy(), np.full((len(VERSION_ORDER), count), BEGIN_OF_TIME))

    def improve(self, number: int, probes: np.ndarray, versions: Selection) -> None:
        """Take those `versions` of a run, one for each of `probes`, that are later than the versions known so far."""
        version_order = _version_order(versions)
        better = _later(version_order, self.version_order[:, probes])
        chosen = probes[better]
        self.run[chosen], self.row[chosen] = number, versions.index[better]
        self.version_order[:, chosen] = version_order[:, better]

    def at(self, probes: np.ndarray) -> _Latest:
        return _Latest(self.run[probes], self.row[probes], self.version_order[:, probes])

    def chosen(self, runs: Sequence[Run], usable: np.ndarray) -> ValidVersions | None:
        """Return the versions found for the probes that are `usable` (bool[n])."""
        probes = np.flatnonzero((self.run >= 0) & usable)
        if not len(probes):
            return None
        number, row = self.run[probes], self.row[probes]
        used = np.unique(number)
        if len(used) == 1:
            return ValidVersions(probes, Selection(runs[used[0]].batch, row))
        batch = concat([runs[k].batch.take(pa.array(row[number == k])) for k in used])
        index = np.empty(len(row), dtype=np.int64)
        index[np.argsort(number, kind="stable")] = np.arange(len(row))
        return ValidVersions(probes, Selection(batch, index))


def _latest(step: StepSpec, rows: Selection, at: np.ndarray, runs: Sequence[Run]) -> _Latest:
    """Find the latest version of each row's key with ts <= `at` (int64[n])."""
    best = _Latest.none(len(rows))
    # Probes sorted like the runs read each run once from front to back, which is many times faster.
    order = np.argsort(rows.numbers(HASH))
    probed, until = rows.where(order), at[order]
    hashes = probed.numbers(HASH)
    for number, run in enumerate(runs):
        candidates = run.filter.may_contain(hashes)
        probes, run_rows = _find_in_run(step, probed.where(candidates), hashes[candidates], until[candidates], run)
        best.improve(number, candidates[probes], Selection(run.batch, run_rows))
    return best.at(np.argsort(order))


def _find_in_run(
    step: StepSpec, rows: Selection, hashes: np.ndarray, at: np.ndarray, run: Run
) -> tuple[np.ndarray, np.ndarray]:
    """Return (probe, row of the run). Steps back over rows that have the hash but another key."""
    probes, first, stop = find_ranges(run.hash, run.ts, hashes, np.full(len(at), BEGIN_OF_TIME), at)
    matches, row = [(probes[:0], stop[:0])], stop - 1
    while len(probes):
        equal = same_keys(step, Pairs(rows.where(probes), Selection(run.batch, row)))
        matches.append((probes[equal], row[equal]))
        on = ~equal & (row > first)
        probes, first, row = probes[on], first[on], row[on] - 1
    return np.concatenate([probe for probe, _ in matches]), np.concatenate([row for _, row in matches])


# --- superseded versions ----------------------------------------------------------------------------------------------


def _superseded_before(step: StepSpec, rows: Selection) -> np.ndarray:
    """bool[n]: rows whose key already had a later version when they arrived."""
    by_key_and_arrival = _key_numbers(step.sides[RIGHT], rows) * len(rows) + _ranks(rows, (PARTITION, OFFSET))
    order = np.argsort(by_key_and_arrival)
    # These numbers grow from key to key, so the highest so far belongs to the row's own key.
    by_key_and_version = (_key_numbers(step.sides[RIGHT], rows) * len(rows) + _ranks(rows, VERSION_ORDER))[order]
    superseded = np.empty(len(rows), dtype=bool)
    superseded[order] = np.maximum.accumulate(by_key_and_version) > by_key_and_version
    return superseded


def _last_of_their_keys(keys: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """bool[n]: the rows that have the highest rank of their key."""
    highest = np.full(len(keys), -1)
    np.maximum.at(highest, keys, ranks)
    return np.asarray(ranks == highest[keys])


def _key_numbers(table: SideSpec, rows: Selection) -> np.ndarray:
    """int64[n] in [0, n): numbers that are equal where the keys are equal."""
    columns = [_numbers(gather(table, rows, name)) for name in table.intake.keys]
    return reduce(lambda numbers, more: _numbers(pa.array(numbers * len(rows) + more)), columns)


def _numbers(values: pa.Array) -> np.ndarray:
    if pa.types.is_floating(values.type):
        values = pc.add(values, 0.0)  # -0.0 equals 0.0 (V1)
    return np.asarray(values.dictionary_encode().indices.to_numpy().astype(np.int64))


# --- the order of versions --------------------------------------------------------------------------------------------


def _version_order(rows: Selection) -> np.ndarray:
    return np.stack([rows.numbers(name).astype(np.int64) for name in VERSION_ORDER])


def _later(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """bool[n]: where the version (`_version_order`, int64[3, n]) in `first` comes after that in `second`."""
    (ts, offset, partition), (other_ts, other_offset, other_partition) = first, second
    tie = (offset > other_offset) | ((offset == other_offset) & (partition > other_partition))
    return np.asarray((ts > other_ts) | ((ts == other_ts) & tie))


def _ranks(rows: Selection, names: Sequence[str]) -> np.ndarray:
    """int64[n]: each row's position when the rows are sorted by these columns."""
    ranks = np.empty(len(rows), dtype=np.int64)
    ranks[sort_order(*(rows.numbers(name) for name in names))] = np.arange(len(rows))
    return ranks
