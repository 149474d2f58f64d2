"""How an executor process builds its worker. It imports no more than a worker needs: a cold start waits for it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from joinery_runtime.core.compile import compile_job
from joinery_runtime.engine.worker import Worker, WorkerParts
from joinery_runtime.job import Job
from joinery_runtime.sinks.base import SinkWriter
from joinery_runtime.sources import Decoder, decoder_for, reader_for
from joinery_runtime.sources.base import SourceReader
from joinery_runtime.state.store import TaskStore


class StoreAddress(Protocol):
    """Where tasks find the store; pickles."""

    def connect(self) -> TaskStore: ...


@dataclass(frozen=True, slots=True)
class WorkerBuilder:
    """Builds an executor process's worker from values that pickle."""

    job: Job
    store: StoreAddress
    output: SinkWriter
    dead_letters: SinkWriter | None

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.job.model_dump_json().encode()).hexdigest()[:12]

    def __call__(self, cache: Path) -> Worker:
        pipeline = compile_job(self.job)
        store = self.store.connect()
        return Worker(
            WorkerParts(self.job.name, pipeline, _Inputs(self.job), store, self.output, self.dead_letters, cache)
        )


class _Inputs:
    """Readers and decoders of a worker, opened at first use and kept."""

    def __init__(self, job: Job) -> None:
        self._sides = {side.name: side for side in job.inputs}
        self._readers: dict[str, SourceReader] = {}
        self._decoders: dict[str, Decoder] = {}

    def reader(self, name: str) -> SourceReader:
        if name not in self._readers:
            self._readers[name] = reader_for(self._sides[name])
        return self._readers[name]

    def decoder(self, name: str) -> Decoder:
        if name not in self._decoders:
            self._decoders[name] = decoder_for(self._sides[name])
        return self._decoders[name]
