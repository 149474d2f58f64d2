"""Segments close to the tasks: decoded once into uncompressed Arrow files, then memory-mapped by every process.

A segment is immutable and its key is unique for ever, so a cached copy is never stale. What is missing is loaded from
the state store; losing the directory costs time only.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from joinery_runtime.core.segment import Run, SegmentMeta, decode
from joinery_runtime.state.store import StateStore


class SegmentCache:
    """One process's view of a cache directory, which other processes on the machine may share."""

    def __init__(self, directory: Path, store: StateStore, job: str) -> None:
        self._directory, self._store, self._job = directory, store, job
        self._open: dict[str, Run] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def get(self, segments: Sequence[SegmentMeta]) -> list[Run]:
        """The runs of these segments, in order. Raises StateError when the store lacks one."""
        missing = [s.key for s in segments if s.key not in self._open and not self._map(s.key)]
        if missing:
            for key, blob in self._store.read_segments(self._job, missing).items():
                self.put(key, decode(blob))
        return [self._open[s.key] for s in segments]

    def put(self, key: str, batch: pa.RecordBatch) -> None:
        """Keeps a sorted batch under its segment key."""
        path = self._path(key)
        partial = path.with_suffix(f".{uuid.uuid4().hex}")
        with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        partial.rename(path)
        self._map(key)

    def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._open.pop(key, None)
            self._path(key).unlink(missing_ok=True)

    def _map(self, key: str) -> bool:
        try:
            source = pa.memory_map(str(self._path(key)))
        except FileNotFoundError:
            return False
        self._open[key] = Run.view(pa.ipc.open_file(source).get_batch(0))
        return True

    def _path(self, key: str) -> Path:
        return self._directory / f"{key.replace('/', os.extsep)}.arrow"
