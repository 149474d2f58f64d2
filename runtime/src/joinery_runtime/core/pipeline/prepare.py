"""Turns decoded rows into prepared rows: event time, key hash, one-sided predicate, only the columns that are stored.

Rows that are dropped are counted by reason (rule T10): `null_key` (J4), `filtered` (the side's own predicate, J4),
`future` (T11), and `late` where late records go to the dead letters (J6, W2, S4). Rows are reported for the dead-letter
output (T8) if their event time is null, out of range or too far ahead (T11), if they are late, if an expression fails
on them, or if a co-partitioned input has them outside their key's partition. Rows of the previous step go through
`prepare_joined`. They no longer belong to a single record: a NULL time there only matches nothing (N4), and a predicate
that fails there is not true (J1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.pipeline.expression import Evaluated, Expression
from joinery_runtime.core.pipeline.lateness import FutureCheck, LateRows, Timestamps, behind_highest
from joinery_runtime.core.pipeline.operators import event_times
from joinery_runtime.core.pipeline.sides import ComputedColumns, Intake, Placement
from joinery_runtime.core.table.columns import HASH, partitions_of
from joinery_runtime.core.table.keyhash import KeyHash, key_hash, partition_hash, shard_starts, spread_hash
from joinery_runtime.core.table.partitioning import key_partitions, partition_addresses

_SHOWN = 60  # characters of a key in a message


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """n decoded rows of an input's schema, from one partition, with their records' `offsets` (int64[n]). `partition` is
    a value of PARTITION. `deleted` is bool[n] for a table (None: no row deletes). `timestamps` are Kafka's, if the
    records have any. `unavailable` is that of `Decoded`."""

    rows: pa.RecordBatch
    partition: int
    offsets: np.ndarray
    deleted: np.ndarray | None = None
    timestamps: Timestamps | None = None
    unavailable: pa.Array | None = None


@dataclass(frozen=True, slots=True)
class RecordChecks:
    """The checks that an epoch's plan prescribes for an input's records. `future` finds those too far ahead (None: no
    check). `late` finds those too late for the step (None, or not certain: the step itself drops them).
    `co_partitions`: the number of partitions that a co-partitioned input shares with the other one; 0: the input's
    partitions mean nothing."""

    future: FutureCheck | None = None
    late: LateRows | None = None
    co_partitions: int = 0


NO_CHECKS = RecordChecks()


@dataclass(frozen=True, slots=True)
class Prepared:
    """The result of preparing a batch. `rows` are those for the step. `lowest` and `highest` are event times over all
    readable rows, dropped ones included, and `disorder` is the most (ms) that one is behind an earlier one. `dropped`
    counts rows by reason. `bad` maps positions of unusable rows to the reason. `left_out` are positions of rows for
    which the input's own condition is not true (None: it has none)."""

    rows: pa.RecordBatch
    lowest: int | None
    highest: int | None
    dropped: dict[str, int] = field(default_factory=dict)
    bad: Mapping[int, str] = field(default_factory=dict)
    disorder: int = 0
    left_out: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class _DecodedRows:
    """n decoded rows of an input or of the previous step, with event times and places. `positions` are those in the
    incoming batch. `deleted` is bool[n], for a table, and `unavailable` is its UNAVAILABLE."""

    user: pa.RecordBatch
    times: pa.Array  # int64
    partitions: np.ndarray
    offsets: np.ndarray
    positions: np.ndarray
    deleted: np.ndarray | None = None
    unavailable: pa.Array | None = None

    def where(self, chosen: np.ndarray) -> _DecodedRows:
        if chosen.all():
            return self
        keep = pa.array(chosen)
        return _DecodedRows(
            self.user.filter(keep),
            self.times.filter(keep),
            self.partitions[chosen],
            self.offsets[chosen],
            self.positions[chosen],
            self.deleted[chosen] if self.deleted is not None else None,
            self.unavailable.filter(keep) if self.unavailable is not None else None,
        )


def prepare(
    intake: Intake,
    records: DecodedRecords,
    checks: RecordChecks = NO_CHECKS,
    hasher: KeyHash = key_hash,
) -> Prepared:
    """Prepare the records of an input, all of one partition, for the side that reads it. `hasher` gives the key
    hashes (uint64[n])."""
    rows, offsets = records.rows, records.offsets
    times = rows.column(intake.event_time).cast(pa.int64())
    values, usable = event_times(times)
    ahead: dict[int, str] = {}
    if checks.future is not None:
        ahead = _reasons_too_far_ahead(checks.future, intake.event_time, values, usable, records.timestamps)
    readable = usable.copy()
    readable[list(ahead)] = False
    partitions = np.full(len(offsets), records.partition, dtype=np.int64)
    every = _DecodedRows(
        rows, times, partitions, offsets, np.arange(len(offsets)), records.deleted, records.unavailable
    )
    read = every.where(readable)
    span = pc.min_max(read.times).as_py()
    subject = f"event time {intake.event_time!r} is"
    missing, outside = f"{subject} null", f"{subject} outside the years 0001 to 9999"
    null = times.is_null().to_numpy(zero_copy_only=False)
    bad = {row: missing if null[row] else outside for row in np.flatnonzero(~usable).tolist()} | ahead
    selected, left_out = read, None
    if intake.filter is not None:
        selected, left_out = _apply_filter(intake.filter, read, bad)
    prepared, dropped = _prepare_rows(intake, selected, hasher, bad, checks)
    if left_out is not None and len(left_out):
        dropped = {**dropped, "filtered": dropped.get("filtered", 0) + len(left_out)}
    counted = {**dropped, "future": len(ahead)} if ahead else dropped
    in_order = read.times.to_numpy(zero_copy_only=False)
    disorder = int(behind_highest(in_order).max()) if len(in_order) else 0
    return Prepared(prepared, span["min"], span["max"], counted, bad, disorder, left_out)


def too_far_ahead(
    intake: Intake, rows: pa.RecordBatch, future: FutureCheck, timestamps: Timestamps | None
) -> dict[int, str]:
    """Return, by position, why rows are too far ahead. Agrees with `prepare`."""
    values, usable = event_times(rows.column(intake.event_time))
    return _reasons_too_far_ahead(future, intake.event_time, values, usable, timestamps)


def usable_times(
    intake: Intake, rows: pa.RecordBatch, future: FutureCheck | None, timestamps: Timestamps | None
) -> np.ndarray:
    """Return the event times (int64 ms) of rows that move a watermark, in order of arrival."""
    values, usable = event_times(rows.column(intake.event_time))
    if future is not None:
        usable[list(_reasons_too_far_ahead(future, intake.event_time, values, usable, timestamps))] = False
    return np.asarray(values[usable])


def _reasons_too_far_ahead(
    future: FutureCheck, event_time: str, times: np.ndarray, usable: np.ndarray, timestamps: Timestamps | None
) -> dict[int, str]:
    """Return, by position, why rows are too far ahead."""
    positions = np.flatnonzero(usable)
    limits = future.find(times[positions], None if timestamps is None else lambda at: timestamps(positions[at]))
    return {
        int(positions[at]): future.reason(event_time, int(times[positions[at]]), limit) for at, limit in limits.items()
    }


def prepare_joined(
    intake: Intake, rows: pa.RecordBatch, partitions: np.ndarray, offsets: np.ndarray, hasher: KeyHash = key_hash
) -> pa.RecordBatch:
    """Prepare the rows of one step for the left side of the next. `partitions` and `offsets` are the places of the
    rows that arrived last."""
    times = rows.column(intake.event_time).cast(pa.int64())
    joined = _DecodedRows(rows, times, partitions.astype(np.int64), offsets, np.arange(len(offsets)))
    return _prepare_rows(intake, joined, hasher, None)[0]


def _hashes(intake: Intake, rows: _DecodedRows, joinable: np.ndarray, hasher: KeyHash) -> np.ndarray:
    """Return the hash that places each row (uint64[n]), by default its key's. Rows that cannot match are spread, so
    that no one shard gets them all."""
    if intake.placement is Placement.SPREAD:
        return spread_hash(rows.partitions, rows.offsets)
    if intake.placement is Placement.BY_PARTITION:
        return partition_hash(rows.partitions)
    if intake.placement is Placement.EVERYWHERE or not intake.keys:  # without keys all rows are one group (G4)
        return np.zeros(len(rows.offsets), dtype=np.uint64)
    hashes = hasher([rows.user.column(name) for name in intake.keys])
    return hashes if joinable.all() else np.where(joinable, hashes, spread_hash(rows.partitions, rows.offsets))


def _prepare_rows(
    intake: Intake,
    rows: _DecodedRows,
    hasher: KeyHash,
    bad: dict[int, str] | None,
    checks: RecordChecks = NO_CHECKS,
) -> tuple[pa.RecordBatch, dict[str, int]]:
    """Add to `bad` the rows that are late, fail an expression or are outside their key's partition. `bad` None: the
    rows come from a step and belong to no single record."""
    late, co_partitions = checks.late, checks.co_partitions if intake.partitioner else 0
    rows, passes = _apply_predicate(intake, rows, bad)
    if bad is not None and intake.computed_keys:
        rows, passes = _add_computed_keys(intake, rows, passes, bad)
    joinable, counted = _joinable(intake, rows, passes)
    if bad is not None and co_partitions:
        in_place = _reject_misplaced(intake, rows, joinable, co_partitions, bad)
        rows, joinable = rows.where(in_place), joinable[in_place]
    dropped = {} if intake.preserved else counted
    if not intake.preserved:
        rows = rows.where(joinable)
        joinable = joinable[joinable]
    if bad is not None and (intake.other_computed or intake.checked or intake.compared):
        rows, fine = _add_computed_columns(intake, rows, joinable, bad)
        joinable = joinable[fine]
    if bad is not None and late is not None and late.certain:
        on_time = _reject_late(intake, rows, late, bad)
        dropped = dropped | ({} if on_time.all() else {"late": int((~on_time).sum())})
        rows, joinable = rows.where(on_time), joinable[on_time]
    addresses = _hashes(intake, rows, joinable, hasher)  # decide which shard gets a row
    if co_partitions:
        addresses = partition_addresses(partitions_of(rows.partitions), addresses, co_partitions)
    deleted = np.zeros(len(rows.offsets), dtype=bool) if rows.deleted is None else rows.deleted
    unavailable = pa.nulls(len(rows.offsets), pa.string()) if rows.unavailable is None else rows.unavailable
    columns = [
        pa.array(addresses),
        pc.fill_null(rows.times, 0),
        pa.array(rows.partitions),
        pa.array(rows.offsets),
        *([pa.array(joinable)] if intake.preserved else []),
        *([pa.array(deleted), unavailable] if intake.table else []),
        *(rows.user.column(name) for name in intake.stored),
    ]
    return pa.record_batch(columns, schema=intake.prepared_schema()), dropped


def _reject_misplaced(
    intake: Intake, rows: _DecodedRows, joinable: np.ndarray, co_partitions: int, bad: dict[int, str]
) -> np.ndarray:
    """bool[n]: the rows that are in their key's partition or match nothing. Adds the others to `bad`. The verdict on a
    row depends on no other row, so every attempt reaches the same one, wherever it runs."""
    assert intake.partitioner is not None
    (name,) = intake.keys
    key = rows.user.column(name)
    expected, partitions = key_partitions(key, intake.partitioner, co_partitions), partitions_of(rows.partitions)
    fine = (expected == partitions % co_partitions) | ~joinable
    for row in np.flatnonzero(~fine):
        text = repr(key[int(row)].as_py())
        shown_key = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        bad[int(rows.positions[row])] = (
            f"not in the partition of its key: coPartitioned and partitioner {intake.partitioner} put {name} "
            f"{shown_key} into partition {expected[row]} of {co_partitions}, not into "
            f"{partitions[row]}; check that its producer keys records by {name} and uses this partitioner, or run "
            "the job without coPartitioned, with new state"
        )
    return np.asarray(fine)


def _reject_late(intake: Intake, rows: _DecodedRows, late: LateRows, bad: dict[int, str]) -> np.ndarray:
    """bool[n]: the rows that are not late. Adds the others to `bad`."""
    times = rows.times.to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(times < late.accept_from):
        bad[int(rows.positions[row])] = late.reason(intake.event_time, int(times[row]))
    return np.asarray(times >= late.accept_from)


def _apply_filter(condition: Expression, rows: _DecodedRows, bad: dict[int, str]) -> tuple[_DecodedRows, np.ndarray]:
    """Return the rows for which the input's own condition is true, and the positions of those for which it is not. Adds
    the rows on which it fails to `bad`."""
    evaluated = condition.mask(lambda ref: rows.user.column(ref.column), rows.user.num_rows)
    fine = _record_failures(rows, [evaluated], bad)
    passes = evaluated.values.to_numpy(zero_copy_only=False)
    return rows.where(fine & passes), rows.positions[fine & ~passes]


def _apply_predicate(intake: Intake, rows: _DecodedRows, bad: dict[int, str] | None) -> tuple[_DecodedRows, np.ndarray]:
    """Return the rows on which the side's own predicate does not fail, and bool[n]: those for which it is true. Adds
    the failing rows to `bad`."""
    if intake.predicate is None:
        return rows, np.ones(len(rows.offsets), dtype=bool)
    user = rows.user
    evaluated = intake.predicate.mask(lambda ref: user.column(intake.name_of(ref)), user.num_rows)
    passes = evaluated.values.to_numpy(zero_copy_only=False)
    if bad is None:
        return rows, passes
    fine = _record_failures(rows, [evaluated], bad)
    return rows.where(fine), passes[fine]


def _add_computed_keys(
    intake: Intake, rows: _DecodedRows, passes: np.ndarray, bad: dict[int, str]
) -> tuple[_DecodedRows, np.ndarray]:
    """Add the computed keys of the side's own step, and leave out the rows on which one fails, which go to `bad`. A row
    for which the side's predicate is not true (`passes`, bool[n]) matches nothing anyway: a key that fails there is
    NULL. Also returns `passes` of the rows that stay."""
    evaluated = [_evaluate(intake, expression, rows.user) for _, expression in intake.computed_keys]
    needed = [
        replace(key, failed={row: reason for row, reason in key.failed.items() if passes[row]}) for key in evaluated
    ]
    fine = _record_failures(rows, needed, bad)
    return _with_columns(intake, rows, intake.computed_keys, evaluated).where(fine), passes[fine]


def _evaluate(intake: Intake, expression: Expression, user: pa.RecordBatch) -> Evaluated:
    return expression.evaluate(lambda ref: user.column(intake.name_of(ref)), user.num_rows)


def _with_columns(
    intake: Intake, rows: _DecodedRows, computed: ComputedColumns, evaluated: Sequence[Evaluated]
) -> _DecodedRows:
    fields = [intake.schema.field(name) for name, _ in computed]
    columns = [column.values.cast(field.type) for field, column in zip(fields, evaluated, strict=True)]
    schema = pa.schema([*rows.user.schema, *fields])
    return replace(rows, user=pa.record_batch([*rows.user.columns, *columns], schema=schema))


def _add_computed_columns(
    intake: Intake, rows: _DecodedRows, joinable: np.ndarray, bad: dict[int, str]
) -> tuple[_DecodedRows, np.ndarray]:
    """Add the other computed columns and leave out the rows on which an expression fails, which go to `bad`. Also
    returns bool[n]: the rows that stay."""
    computed = [_evaluate(intake, expression, rows.user) for _, expression in intake.other_computed]
    checked = [_evaluate(intake, expression, rows.user) for expression in intake.checked]
    fine = _record_failures(rows, [*computed, *checked], bad)
    for expression in intake.compared:  # only rows that can match are compared
        comparison = _evaluate(intake, expression, rows.user)
        joinable_failures = {row: reason for row, reason in comparison.failed.items() if joinable[row]}
        fine &= _record_failures(rows, [replace(comparison, failed=joinable_failures)], bad)
    if computed:
        rows = _with_columns(intake, rows, intake.other_computed, computed)
    return rows.where(fine), fine


def _record_failures(rows: _DecodedRows, evaluated: Sequence[Evaluated], bad: dict[int, str]) -> np.ndarray:
    """Add the rows that failed to `bad`, each with its first reason. Returns the others as bool[n]."""
    fine = np.ones(len(rows.offsets), dtype=bool)
    for expression_values in evaluated:
        for row, reason in expression_values.failed.items():
            bad.setdefault(int(rows.positions[row]), reason)
            fine[row] = False
    return fine


def _joinable(intake: Intake, rows: _DecodedRows, passes: np.ndarray) -> tuple[np.ndarray, dict[str, int]]:
    """Return the rows that may match (bool[n]), and the number of others by reason."""
    has_key = rows.times.is_valid().to_numpy(zero_copy_only=False)
    for name in () if intake.grouped else intake.keys:
        key = rows.user.column(name)
        has_key = has_key & key.is_valid().to_numpy(zero_copy_only=False)
        if pa.types.is_floating(key.type):  # NaN equals nothing, as NULL does (J1)
            has_key = has_key & ~pc.fill_null(pc.is_nan(key), True).to_numpy(zero_copy_only=False)
    counts = {"null_key": int((~has_key).sum()), "filtered": int((has_key & ~passes).sum())}
    return has_key & passes, {reason: count for reason, count in counts.items() if count}


def cut_by_shard(
    rows: pa.RecordBatch, shards: int, hashes: np.ndarray | None = None
) -> list[tuple[int, pa.RecordBatch]]:
    """Return (shard, its rows) for every shard that has rows, in arrival order within each. `hashes` (uint64[n]) are
    those of n rows without HASH."""
    if not rows.num_rows:
        return []
    hashes = rows.column(HASH).to_numpy() if hashes is None else hashes
    shard = np.searchsorted(shard_starts(shards), hashes, side="right") - 1
    # On 16-bit integers, numpy's stable sort is a radix sort.
    ordered = rows.take(pa.array(np.argsort(shard.astype(np.uint16), kind="stable")))
    counts = np.bincount(shard, minlength=shards)
    starts = np.cumsum(counts) - counts
    return [(t, ordered.slice(starts[t], counts[t])) for t in range(shards) if counts[t]]
