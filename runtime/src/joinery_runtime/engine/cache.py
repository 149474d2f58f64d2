"""Segments close to the tasks: decoded once into uncompressed Arrow files, then memory-mapped by every process.

A segment is immutable and its key is unique for ever, so a cached copy is never stale. What is missing is loaded from
the state store; losing the directory costs time only.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from joinery_runtime.core.table.segment import Run, SegmentMeta, decode
from joinery_runtime.state.store import SegmentReader


@dataclass(frozen=True, slots=True)
class _Cached:
    epoch: int
    run: Run


class SegmentCache:
    """One process's view of a cache directory, which other processes on the machine may share."""

    def __init__(self, directory: Path, store: SegmentReader, job: str) -> None:
        self._directory, self._store, self._job = directory, store, job
        self._open: dict[str, _Cached] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def get(self, segments: Sequence[SegmentMeta]) -> list[Run]:
        """The runs of these segments, in order. Raises StateError when the store lacks one."""
        missing = {s.key: s for s in segments if s.key not in self._open and not self._map(s.key, s.epoch)}
        if missing:
            for key, blob in self._store.read_segments(self._job, missing).items():
                self.put(key, missing[key].epoch, decode(blob))
        return [self._open[s.key].run for s in segments]

    def put(self, key: str, epoch: int, batch: pa.RecordBatch) -> None:
        """Keeps a sorted batch, made in `epoch`, under its segment key."""
        path = self._path(key)
        partial = path.with_suffix(f".{uuid.uuid4().hex}")
        with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        partial.rename(path)
        self._map(key, epoch)

    def retain(self, live: Collection[str], epoch: int) -> None:
        """Lets go of segments of epochs before `epoch` that are not live: expired, merged, or of an attempt that was
        never named. What this epoch stages is not live yet and stays."""
        for key in [key for key, cached in self._open.items() if cached.epoch < epoch and key not in live]:
            del self._open[key]
            self._path(key).unlink(missing_ok=True)

    def _map(self, key: str, epoch: int) -> bool:
        try:
            source = pa.memory_map(str(self._path(key)))
        except FileNotFoundError:
            return False
        self._open[key] = _Cached(epoch, Run.view(pa.ipc.open_file(source).get_batch(0)))
        return True

    def _path(self, key: str) -> Path:
        return self._directory / f"{key.replace('/', os.extsep)}.arrow"
