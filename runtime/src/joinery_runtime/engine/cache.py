"""Caches segments next to the tasks: decoded once into uncompressed Arrow files, then memory-mapped by every process.

A segment is immutable and its key is unique for ever, so a cached copy is never stale. Missing segments are loaded from
the state store; losing a file, or the directory, costs only time. A file ends with the xxh3_64 of its content. A
process checks the hash when it maps a file that another process, or an earlier one, has written; a damaged file is
loaded again.

The flags of stored rows, one bit per row of a segment, are in a column of the segment and in later flag segments.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from joinery_runtime.core.pipeline.step import StateRun
from joinery_runtime.core.table.blob import from_blob
from joinery_runtime.core.table.columns import FLAG, FLAGS_SCHEMA, HASH, ROW, SEGMENT, TS
from joinery_runtime.core.table.keyhash import KeyHash, key_hash
from joinery_runtime.core.table.segment import Run, SegmentMeta, concat, decode, first_key
from joinery_runtime.errors import explain_full_disk
from joinery_runtime.state.decisions import by_bytes, damaged_segment
from joinery_runtime.state.store import SegmentReader

DEFAULT_MAX_BYTES = 10 << 30

READ_BYTES = 16 << 20
"""Bytes of blobs that a thread reads at a time: while it does, they are in memory twice, once in libpq."""

_SUFFIX = ".checked"  # earlier releases, whose files are `.arrow`, do not know the checksum
_CHECKSUM_BYTES = 8
_ABANDONED_SECONDS = 600  # a partial file without a write for this long belongs to a process that died

logger = logging.getLogger("joinery.cache")


@dataclass(frozen=True, slots=True)
class _Cached:
    epoch: int
    run: Run


class SegmentCache:
    """One process's view of a cache directory, which other processes on the machine may share. Files that it lacks are
    looked for in `earlier`, the directory of a process that ran the job's epochs before.

    After a `retain` of any process the files take `max_bytes` at most: the least recently used are deleted first. A
    deleted file takes up space until no process maps it; each process unmaps files in its own `retain`.
    """

    def __init__(
        self,
        directory: Path,
        store: SegmentReader,
        job: str,
        max_bytes: int = DEFAULT_MAX_BYTES,
        hasher: KeyHash = key_hash,
        earlier: Path | None = None,
    ) -> None:
        self._directory, self._store, self._job, self._max_bytes = directory, store, job, max_bytes
        self._hasher, self._earlier = hasher, earlier
        self._open: dict[str, _Cached] = {}
        self._evicted_in: int | None = None
        with explain_full_disk("the cache of the state's segments", directory):
            directory.mkdir(parents=True, exist_ok=True)
        for name, status in self._list_files():
            if not name.endswith(_SUFFIX) and status.st_mtime < time.time() - _ABANDONED_SECONDS:
                (directory / name).unlink(missing_ok=True)

    def get(self, segments: Sequence[SegmentMeta]) -> list[Run]:
        """Return the runs of these segments, in order. Reads the missing ones in few calls of the store. Raises
        StateError when the store lacks one or has it with other bytes."""
        # Holds the runs itself: a stale attempt of another epoch may meanwhile drop them from the cache.
        runs = dict[str, Run]()
        for segment in segments:
            cached = self._open.get(segment.key)
            if cached is None and (content := self._map_file(segment.key)) is not None:
                cached = self._open[segment.key] = _view_content(segment.epoch, content)
            if cached is not None:
                runs[segment.key] = cached.run
        missing = {s.key: s for s in segments if s.key not in runs}
        for keys in by_bytes(((key, meta.bytes) for key, meta in missing.items()), most=READ_BYTES):
            blobs = self._store.read_segments(self._job, keys)
            for key in keys:
                rows = self._decode_blob(missing[key], blobs.pop(key))
                runs[key] = self.put(key, missing[key].epoch, rows)
        for segment in segments:
            if segment.key not in missing:
                with suppress(FileNotFoundError):  # another process has evicted the file: the mapping stays valid
                    os.utime(f"{self._directory}/{_file_name(segment.key)}")
        return [runs[s.key] for s in segments]

    def _map_file(self, key: str) -> pa.Buffer | None:
        """Map the file of a segment. Takes it over from the earlier directory if need be; both then have it."""
        path = self._path_of(key)
        content = _map_checked(path)
        if content is None and self._earlier is not None:
            with suppress(OSError):  # it is not there either, or the file systems differ: the store has it
                path.hardlink_to(self._earlier / path.name)
                content = _map_checked(path)
        return content

    def has(self, key: str) -> bool:
        """Return whether the segment is available without a read from the store."""
        return key in self._open or self._path_of(key).exists()

    def _decode_blob(self, meta: SegmentMeta, blob: bytes) -> pa.RecordBatch:
        """Raise StateError if the blob cannot be decoded, or not to the hashes that were noted when it was written:
        older blobs have no checksum."""
        try:
            rows = from_blob(blob, self._hasher)
        except (ValueError, OSError, KeyError) as error:
            raise damaged_segment(self._job, meta.key, str(error)) from error
        hashes, noted = rows.column(HASH), (meta.hash_min, meta.hash_max)
        if rows.num_rows != meta.rows or (hashes[0].as_py(), hashes[-1].as_py()) != noted:
            between = f" with hashes {hashes[0]} to {hashes[-1]}" if len(hashes) else ""
            facts = f"{rows.num_rows} rows{between}, where {meta.rows} with {noted[0]} to {noted[1]} were noted"
            raise damaged_segment(self._job, meta.key, facts)
        return rows

    def put(self, key: str, epoch: int, batch: pa.RecordBatch) -> Run:
        """Store a sorted batch, made in `epoch`, under its segment key, and return it memory-mapped."""
        path = self._path_of(key)
        partial = path.with_suffix(f".{uuid.uuid4().hex}")
        try:
            with explain_full_disk("the cache of the state's segments", self._directory):
                with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
                    writer.write_batch(batch)
                content = pa.memory_map(str(partial)).read_buffer()
                with partial.open("ab") as file:
                    file.write(xxhash.xxh3_64_digest(content))
                partial.rename(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        cached = self._open[key] = _view_content(epoch, content)
        return cached.run

    def retain(self, live: Collection[str], epoch: int) -> None:
        """Drop segments of epochs before `epoch` that are not live: expired, merged, or staged by an attempt that no
        commit named. Segments staged in this epoch are not live yet, and stay. Only the first call in an epoch evicts
        files over the limit, because that looks at every file of the directory."""
        for key in [key for key, cached in self._open.items() if cached.epoch < epoch and key not in live]:
            del self._open[key]
            self._path_of(key).unlink(missing_ok=True)
        if epoch == self._evicted_in:
            return
        self._evicted_in = epoch
        files = [
            (status.st_mtime_ns, status.st_size, name) for name, status in self._list_files() if name.endswith(_SUFFIX)
        ]
        excess = sum(size for _, size, _ in files) - self._max_bytes
        remaining = {name for _, _, name in files}
        for _, size, name in sorted(files):
            if excess <= 0:
                break
            (self._directory / name).unlink(missing_ok=True)
            remaining.remove(name)
            excess -= size
        for key in [key for key in self._open if _file_name(key) not in remaining]:
            del self._open[key]

    def _list_files(self) -> list[tuple[str, os.stat_result]]:
        """List the names of the files, without those that disappear meanwhile. A small epoch has no time to make a
        Path for each of them."""
        files = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    files.append((entry.name, entry.stat()))
        return files

    def _path_of(self, key: str) -> Path:
        return self._directory / _file_name(key)


def _file_name(key: str) -> str:
    return f"{key.replace('/', os.extsep)}{_SUFFIX}"


def _map_checked(path: Path) -> pa.Buffer | None:
    """Map a file of the cache. Return None if there is none, or if it is damaged, as after a crash of the machine: then
    the file is removed."""
    try:
        file_bytes = pa.memory_map(str(path)).read_buffer()
    except FileNotFoundError:
        return None
    content, noted = file_bytes[:-_CHECKSUM_BYTES], file_bytes[-_CHECKSUM_BYTES:]
    if noted.to_pybytes() == xxhash.xxh3_64_digest(content):
        return content
    logger.warning("The file %s of the segment cache is damaged; the segment is read from the store again", path)
    path.unlink(missing_ok=True)
    return None


def _view_content(epoch: int, content: pa.Buffer) -> _Cached:
    # Reads from one buffer over the mapping, so that every read is a memory access: nothing is copied either way.
    return _Cached(epoch, Run.view(decode(content)))


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
        """Return bool[n] for the whole run of a segment; `flags` are the live flag segments of its part."""
        column = run.batch.column(FLAG).to_numpy(zero_copy_only=False)
        flagged = self._flagged.setdefault(segment.key, _Flagged(np.array(column)))
        new = [meta for meta in flags if meta.key not in flagged.applied]
        for rows in self._rows_of(new):
            flagged.rows[rows.get(first_key(segment.key), np.empty(0, dtype=np.int64))] = True
        flagged.applied.update(meta.key for meta in new)
        return flagged.rows

    def useless(self, flags: Sequence[SegmentMeta], live: Collection[str]) -> set[str]:
        """Return keys of the flag segments that flag no row of the `live` segments."""
        names = {first_key(key) for key in live}
        flag_rows = zip(flags, self._rows_of(flags), strict=True)
        return {meta.key for meta, rows in flag_rows if rows.keys().isdisjoint(names)}

    def retain(self, live: Collection[str]) -> None:
        for by_key in (self._flagged, self._by_segment):
            for key in [key for key in by_key if key not in live]:
                del by_key[key]

    def _rows_of(self, flags: Sequence[SegmentMeta]) -> list[Mapping[str, np.ndarray]]:
        """Return the row numbers in each of these flag segments, by the first key of the segment that has the rows."""
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
    """Make a flag segment. `numbers` has row numbers by segment, and `state_runs` holds the rows of these segments."""
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
    """Return the flags in these runs whose segment is still live."""
    keys = {first_key(key) for key in live}
    live_flags = []
    for run in runs:
        names = run.batch.column(SEGMENT)
        live_names = [name for name in pc.unique(names).to_pylist() if first_key(name) in keys]
        live_flags.append(Run.view(run.batch.filter(pc.is_in(names, pa.array(live_names, pa.string())))))
    return live_flags
