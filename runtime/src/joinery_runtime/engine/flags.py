"""Flags of stored rows: one bit per row of a segment, stored in a column of the segment and in later flag segments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.pipeline.step import StateRun
from joinery_runtime.core.table.columns import FLAG, FLAGS_SCHEMA, HASH, ROW, SEGMENT, TS
from joinery_runtime.core.table.segment import Run, SegmentMeta, concat, first_key
from joinery_runtime.engine.cache import SegmentCache


@dataclass(slots=True)
class _Flagged:
    """`rows` is bool[rows of the segment]; `applied` names the flag segments that it includes."""

    rows: np.ndarray
    applied: set[str] = field(default_factory=set)


class FlagCache:
    """The committed flags of segments that this process has read, never those that an attempt has only staged."""

    def __init__(self, cache: SegmentCache) -> None:
        self._cache = cache
        self._flagged: dict[str, _Flagged] = {}
        self._by_segment: dict[str, Mapping[str, np.ndarray]] = {}

    def flagged(self, segment: SegmentMeta, run: Run, flags: Iterable[SegmentMeta]) -> np.ndarray:
        """Returns bool[n] for the whole run of a segment; `flags` are the live flag segments of its part."""
        column = run.batch.column(FLAG).to_numpy(zero_copy_only=False)
        flagged = self._flagged.setdefault(segment.key, _Flagged(np.array(column)))
        new = [meta for meta in flags if meta.key not in flagged.applied]
        for rows in self._rows_of(new):
            flagged.rows[rows.get(first_key(segment.key), np.empty(0, dtype=np.int64))] = True
        flagged.applied.update(meta.key for meta in new)
        return flagged.rows

    def useless(self, flags: Sequence[SegmentMeta], live: Collection[str]) -> set[str]:
        """Keys of the flag segments that flag no row of the `live` segments."""
        names = {first_key(key) for key in live}
        flag_rows = zip(flags, self._rows_of(flags), strict=True)
        return {meta.key for meta, rows in flag_rows if rows.keys().isdisjoint(names)}

    def retain(self, live: Collection[str]) -> None:
        for by_key in (self._flagged, self._by_segment):
            for key in [key for key in by_key if key not in live]:
                del by_key[key]

    def _rows_of(self, flags: Sequence[SegmentMeta]) -> list[Mapping[str, np.ndarray]]:
        """The row numbers in each of these flag segments, by the first key of the segment that has the rows."""
        # Holds the rows itself, as `SegmentCache.get` does: another thread may drop them from the cache meanwhile.
        groups = {meta.key: rows for meta in flags if (rows := self._by_segment.get(meta.key)) is not None}
        new = [meta for meta in flags if meta.key not in groups]
        for meta, run in zip(new, self._cache.get(new), strict=True):
            names = run.batch.column(SEGMENT).dictionary_encode()
            keys, group_of = np.unique([first_key(name) for name in names.dictionary.to_pylist()], return_inverse=True)
            group = group_of[names.indices.to_numpy()]
            rows = run.batch.column(ROW).to_numpy()[np.argsort(group, kind="stable")]
            pieces = np.split(rows, np.cumsum(np.bincount(group, minlength=len(keys)))[:-1])
            groups[meta.key] = self._by_segment[meta.key] = dict(zip(keys.tolist(), pieces, strict=True))
        return [groups[meta.key] for meta in flags]


def flags_run(state_runs: Iterable[StateRun], numbers: Mapping[str, np.ndarray]) -> Run | None:
    """Makes a flag segment. `numbers` has row numbers by segment, and `state_runs` holds the rows of these segments."""
    batches = list[pa.RecordBatch]()
    for state_run in state_runs:
        if state_run.segment not in numbers:
            continue
        row_numbers = numbers[state_run.segment]
        rows = pa.array(row_numbers - state_run.first)
        columns = [
            state_run.run.batch.column(HASH).take(rows),
            state_run.run.batch.column(TS).take(rows),
            pa.repeat(pa.scalar(state_run.segment), len(row_numbers)),
            pa.array(row_numbers),
        ]
        batches.append(pa.record_batch(columns, schema=FLAGS_SCHEMA))
    return Run.sort(concat(batches)) if batches else None


def flags_of_live(runs: Sequence[Run], live: Collection[str]) -> list[Run]:
    """The flags in these runs whose segment is still live."""
    keys = {first_key(key) for key in live}
    live_flags = []
    for run in runs:
        names = run.batch.column(SEGMENT)
        live_names = [name for name in pc.unique(names).to_pylist() if first_key(name) in keys]
        live_flags.append(Run.view(run.batch.filter(pc.is_in(names, pa.array(live_names, pa.string())))))
    return live_flags
