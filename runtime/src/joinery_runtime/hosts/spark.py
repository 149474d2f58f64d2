"""The tasks of an epoch as one Spark job: read, shuffle blocks by shard, join.

    parallelize(ranges) -> mapPartitions(read) -> partitionBy(shard) -> mapPartitions(join | collect) -> collect

The RDD form costs half of the same job as DataFrames, and blocks stay opaque bytes: the JVM never sees a record (see
architecture.md, "Why our own epoch loop"). Partition number `shards` takes the read reports.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext, SparkFiles, TaskContext

from joinery_runtime.engine.messages import EpochOutcome, EpochWork, ReadSummary, ShardSummary, TaskFailure
from joinery_runtime.engine.protocol import choose_attempts
from joinery_runtime.engine.worker import Block, ReadReport, RowBlock, Worker
from joinery_runtime.errors import JoineryError
from joinery_runtime.sources.base import Range

# Spark gives the parallelism; a worker that starts threads of its own for every task only gets slower.
WORKER_ENVIRONMENT = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}

DEFAULT_CONF = {
    "spark.python.unix.domain.socket.enabled": "true",  # halves the cost of a small PySpark job
    "spark.python.worker.reuse": "true",  # workers keep consumers, connections and mapped segments
    "spark.ui.showConsoleProgress": "false",
    "spark.shuffle.compress": "false",  # blocks of one epoch live for a moment
    "spark.locality.wait": "0s",
}

WorkerFactory = Callable[[Path], Worker]


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """How an executor process builds its worker: `digest` tells setups apart, `build` gets the cache directory. Must
    pickle."""

    digest: str
    build: WorkerFactory


class SparkHost:
    """Implements `engine.host.Host` on a Spark context."""

    def __init__(self, context: SparkContext, setup: WorkerSetup, job: str) -> None:
        self._context, self._setup, self._job = context, setup, job

    def run(self, work: EpochWork) -> EpochOutcome:
        context, plan, setup = self._context, work.plan, self._setup
        groups = deal(plan.ranges, context.defaultParallelism)
        context.setJobDescription(f"{self._job}: epoch {plan.epoch}")
        results: list[tuple[int, Any]] = (
            context.parallelize(groups, max(1, len(groups)))
            .mapPartitions(lambda tasks: _read(setup, work, tasks))
            .partitionBy(plan.shards + 1, lambda shard: shard)
            .mapPartitionsWithIndex(lambda index, blocks: _join(setup, work, index, blocks))
            .collect()
        )
        _raise_first_failure(results)
        chosen = choose_attempts(results, range(plan.shards + 1))
        read: ReadSummary = chosen[plan.shards]
        return EpochOutcome(read, {shard: chosen[shard] for shard in range(plan.shards)})

    def close(self) -> None:
        self._context.stop()


def start_context(name: str, conf: dict[str, str], master: str | None) -> SparkContext:
    """A context with the job's own `spark.conf` over our defaults; `master` None takes what spark-submit set."""
    settings = SparkConf().setAppName(name)
    for key, value in {**DEFAULT_CONF, **conf}.items():
        if conf.get(key) is not None or not settings.contains(key):
            settings.set(key, value)
    for key, value in WORKER_ENVIRONMENT.items():
        os.environ.setdefault(key, value)
        settings.set(f"spark.executorEnv.{key}", value)
    if master is not None:
        settings.setMaster(master)
    context = SparkContext(conf=settings)
    context.setLogLevel("ERROR")
    return context


def deal(ranges: Sequence[Range], hands: int) -> list[list[Range]]:
    """The ranges dealt to at most `hands` read tasks of similar size, largest first."""
    piles: list[list[Range]] = [[] for _ in range(min(hands, len(ranges)))]
    for planned in sorted(ranges, key=lambda r: (r.start - r.end_exclusive, r.partition)):
        min(piles, key=_records).append(planned)
    return piles


def _records(pile: Sequence[Range]) -> int:
    return sum(r.end_exclusive - r.start for r in pile)


# --- inside the tasks ------------------------------------------------------------------------------------------------

_workers: dict[str, Worker] = {}


def _worker(setup: WorkerSetup) -> Worker:
    """This process's worker. Spark reuses processes, so consumers, connections and mapped segments live on."""
    if setup.digest not in _workers:
        _workers.clear()
        _workers[setup.digest] = setup.build(Path(SparkFiles.getRootDirectory()) / f"joinery-{setup.digest}")
    return _workers[setup.digest]


def _read(setup: WorkerSetup, work: EpochWork, tasks: Iterable[Sequence[Range]]) -> Iterator[tuple[int, Any]]:
    try:
        for ranges in tasks:
            yield from _worker(setup).read(work, ranges)
    except JoineryError as error:
        yield work.plan.shards, TaskFailure(error)


def _join(
    setup: WorkerSetup, work: EpochWork, index: int, blocks: Iterable[tuple[int, Block | TaskFailure]]
) -> Iterator[tuple[int, ReadSummary | ShardSummary | TaskFailure]]:
    try:
        yield index, _joined(_worker(setup), work, index, blocks)
    except JoineryError as error:
        yield index, TaskFailure(error)


def _joined(
    worker: Worker, work: EpochWork, index: int, blocks: Iterable[tuple[int, Block | TaskFailure]]
) -> ReadSummary | ShardSummary | TaskFailure:
    received = [block for _, block in blocks]
    failure = next((block for block in received if isinstance(block, TaskFailure)), None)
    if failure is not None:
        return failure
    if index < work.plan.shards:
        return worker.join(work, index, [b for b in received if isinstance(b, RowBlock)], _attempt())
    return worker.collect(work, [b for b in received if isinstance(b, ReadReport)], _attempt())


def _attempt() -> str:
    """Unique for ever: the same task may run twice, also at once (speculation), also as a zombie."""
    context = TaskContext.get()
    return f"{context.taskAttemptId() if context else 0}-{uuid.uuid4().hex[:12]}"


def _raise_first_failure(results: Iterable[tuple[int, Any]]) -> None:
    for _, result in results:
        if isinstance(result, TaskFailure):
            raise result.error
