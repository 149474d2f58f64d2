"""Caches segments next to the tasks: decoded once into uncompressed Arrow files, then memory-mapped by every process.

A segment is immutable and its key is unique for ever, so a cached copy is never stale. Missing segments are loaded from
the state store; losing a file, or the directory, costs only time.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from joinery_runtime.core.table.blob import from_blob
from joinery_runtime.core.table.columns import HASH
from joinery_runtime.core.table.keyhash import KeyHash, key_hash
from joinery_runtime.core.table.segment import Run, SegmentMeta, decode
from joinery_runtime.errors import StateError
from joinery_runtime.state.decisions import by_bytes
from joinery_runtime.state.store import SegmentReader

DEFAULT_MAX_BYTES = 10 << 30

READ_BYTES = 16 << 20
"""Bytes of blobs that a thread reads at a time: while it does, they are in memory twice, once in libpq."""

_SUFFIX = ".arrow"
_ABANDONED_SECONDS = 600  # a partial file without a write for this long belongs to a process that died


@dataclass(frozen=True, slots=True)
class _Cached:
    epoch: int
    run: Run


class SegmentCache:
    """One process's view of a cache directory, which other processes on the machine may share.

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
    ) -> None:
        self._directory, self._store, self._job, self._max_bytes = directory, store, job, max_bytes
        self._hasher = hasher
        self._open: dict[str, _Cached] = {}
        self._evicted_in: int | None = None
        directory.mkdir(parents=True, exist_ok=True)
        for path, status in self._files():
            if path.suffix != _SUFFIX and status.st_mtime < time.time() - _ABANDONED_SECONDS:
                path.unlink(missing_ok=True)

    def get(self, segments: Sequence[SegmentMeta]) -> list[Run]:
        """Returns the runs of these segments, in order. Reads the missing ones in few calls of the store. Raises
        StateError when the store lacks one."""
        # Holds the runs itself: a stale attempt of another epoch may meanwhile drop them from the cache.
        found = {s.key: run for s in segments if (run := self._here(s)) is not None}
        missing = {s.key: s for s in segments if s.key not in found}
        for keys in by_bytes(((key, meta.bytes) for key, meta in missing.items()), most=READ_BYTES):
            blobs = self._store.read_segments(self._job, keys)
            for key in keys:
                rows = from_blob(blobs.pop(key), self._hasher)
                self._check(missing[key], rows)
                found[key] = self.put(key, missing[key].epoch, rows)
        for segment in segments:
            if segment.key not in missing:
                with suppress(FileNotFoundError):  # another process has evicted the file: the mapping stays valid
                    os.utime(self._path(segment.key))
        return [found[s.key] for s in segments]

    def has(self, key: str) -> bool:
        """Whether the segment is available without a read from the store."""
        return key in self._open or self._path(key).exists()

    def _check(self, meta: SegmentMeta, rows: pa.RecordBatch) -> None:
        """Raises StateError if the hashes, which decoding computes again, are not those noted when it was written."""
        hashes = rows.column(HASH)
        if (hashes[0].as_py(), hashes[-1].as_py()) != (meta.hash_min, meta.hash_max):
            raise StateError(
                f"Segment {meta.key} of job {self._job} does not hold what was noted of it",
                facts=f"hashes {hashes[0]} to {hashes[-1]}, where {meta.hash_min} to {meta.hash_max} were noted",
                todo="Restore a savepoint from before it was written, and report this",
            )

    def put(self, key: str, epoch: int, batch: pa.RecordBatch) -> Run:
        """Stores a sorted batch, made in `epoch`, under its segment key, and returns it memory-mapped."""
        path = self._path(key)
        partial = path.with_suffix(f".{uuid.uuid4().hex}")
        try:
            with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
                writer.write_batch(batch)
            mapped = pa.memory_map(str(partial))
            partial.rename(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        cached = self._open[key] = _view(epoch, mapped)
        return cached.run

    def retain(self, live: Collection[str], epoch: int) -> None:
        """Drops segments of epochs before `epoch` that are not live: expired, merged, or staged by an attempt that no
        commit named. Segments staged in this epoch are not live yet, and stay. Only the first call in an epoch evicts
        files over the limit, because that looks at every file of the directory."""
        for key in [key for key, cached in self._open.items() if cached.epoch < epoch and key not in live]:
            del self._open[key]
            self._path(key).unlink(missing_ok=True)
        if epoch != self._evicted_in:
            self._evicted_in = epoch
            self._evict()

    def _evict(self) -> None:
        files = [(status.st_mtime_ns, status.st_size, path) for path, status in self._files() if path.suffix == _SUFFIX]
        excess = sum(size for _, size, _ in files) - self._max_bytes
        remaining = {path for _, _, path in files}
        for _, size, path in sorted(files):
            if excess <= 0:
                break
            path.unlink(missing_ok=True)
            remaining.remove(path)
            excess -= size
        for key in [key for key in self._open if self._path(key) not in remaining]:
            del self._open[key]

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """Lists the files, without those that disappear meanwhile."""
        found = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found.append((Path(entry.path), entry.stat()))
        return found

    def _here(self, segment: SegmentMeta) -> Run | None:
        """Returns the run if it is available without the store."""
        cached = self._open.get(segment.key)
        if cached is None:
            try:
                source = pa.memory_map(str(self._path(segment.key)))
            except FileNotFoundError:
                return None
            cached = self._open[segment.key] = _view(segment.epoch, source)
        return cached.run

    def _path(self, key: str) -> Path:
        return self._directory / f"{key.replace('/', os.extsep)}{_SUFFIX}"


def _view(epoch: int, source: pa.MemoryMappedFile) -> _Cached:
    # Reads from one buffer over the mapping, so that every read is a memory access: nothing is copied either way.
    return _Cached(epoch, Run.view(decode(source.read_buffer())))
