"""From decoded rows to prepared rows: event time, key hash, one-sided predicate, only the columns that are stored.

What does not go on is counted by reason (rule T10): `null_key` (J4), `filtered` (the side's own predicate, J4). Rows
whose event time is null or out of range are reported for the dead-letter output (T8).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.columns import ENGINE_FIELDS, HASH
from joinery_runtime.core.keyhash import KeyHash, key_hash
from joinery_runtime.core.shards import shard_starts
from joinery_runtime.core.spec import SideSpec

# RFC 3339's years 0001 to 9999: one corrupt event time must not move the watermark past everything.
EVENT_TIME_MIN = -62_135_596_800_000
EVENT_TIME_MAX = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class Prepared:
    """`rows` go on; `lowest` and `highest` are event times of all readable rows, also of those that were dropped;
    `dropped` counts by reason; `bad_time` lists positions (int64) whose event time cannot be used."""

    rows: pa.RecordBatch
    lowest: int | None
    highest: int | None
    dropped: dict[str, int] = field(default_factory=dict)
    bad_time: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))


def prepared_schema(side: SideSpec) -> pa.Schema:
    return pa.schema([*ENGINE_FIELDS, *(side.schema.field(name) for name in side.stored)])


def prepare(
    side: SideSpec, rows: pa.RecordBatch, partition: int, offsets: np.ndarray, hasher: KeyHash = key_hash
) -> Prepared:
    """`rows` are n decoded rows of the input's schema, `offsets` int64[n] their places in `partition`."""
    times = rows.column(side.event_time).cast(pa.int64())
    usable = _usable(times)
    bad_time = np.flatnonzero(~usable)
    if len(bad_time):
        keep = pa.array(usable)
        rows, times, offsets = rows.filter(keep), times.filter(keep), offsets[usable]
    span = pc.min_max(times).as_py()
    wanted, dropped = _wanted(side, rows)
    if dropped:
        keep = pa.array(wanted)
        rows, times, offsets = rows.filter(keep), times.filter(keep), offsets[wanted]
    hashes = hasher([rows.column(name) for name in side.keys])
    places = [pa.array(np.full(len(offsets), partition, dtype=np.int32)), pa.array(offsets)]
    columns = [pa.array(hashes), times, *places, *(rows.column(name) for name in side.stored)]
    return Prepared(pa.record_batch(columns, schema=prepared_schema(side)), span["min"], span["max"], dropped, bad_time)


def _usable(times: pa.Array) -> np.ndarray:
    values = pc.fill_null(times, EVENT_TIME_MIN - 1).to_numpy(zero_copy_only=False)
    return np.asarray((values >= EVENT_TIME_MIN) & (values <= EVENT_TIME_MAX))


def _wanted(side: SideSpec, rows: pa.RecordBatch) -> tuple[np.ndarray, dict[str, int]]:
    has_key = np.ones(rows.num_rows, dtype=bool)
    for name in side.keys:
        has_key &= _joinable(rows.column(name))
    passes = np.ones(rows.num_rows, dtype=bool)
    if side.predicate is not None:
        mask = side.predicate.mask(lambda ref: rows.column(ref.column), rows.num_rows)
        passes = mask.to_numpy(zero_copy_only=False)
    counts = {"null_key": int((~has_key).sum()), "filtered": int((has_key & ~passes).sum())}
    return has_key & passes, {reason: count for reason, count in counts.items() if count}


def _joinable(key: pa.Array) -> np.ndarray:
    """J1: NULL and NaN equal nothing."""
    valid = key.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_floating(key.type):
        valid = valid & ~pc.fill_null(pc.is_nan(key), True).to_numpy(zero_copy_only=False)
    return np.asarray(valid)


def cut_by_shard(rows: pa.RecordBatch, shards: int) -> list[tuple[int, pa.RecordBatch]]:
    """(shard, its rows) for every shard that has rows; arrival order is kept inside each."""
    if not rows.num_rows:
        return []
    hashes = rows.column(HASH).to_numpy()
    shard = np.searchsorted(shard_starts(shards), hashes, side="right") - 1
    ordered = rows.take(pa.array(np.argsort(shard, kind="stable")))
    counts = np.bincount(shard, minlength=shards)
    starts = np.cumsum(counts) - counts
    return [(t, ordered.slice(starts[t], counts[t])) for t in range(shards) if counts[t]]
