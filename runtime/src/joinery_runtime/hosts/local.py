"""All tasks of an epoch in this process, one after the other: for traces and tests of the engine."""

from __future__ import annotations

from collections import defaultdict

from joinery_runtime.engine.messages import EpochOutcome, EpochWork
from joinery_runtime.engine.protocol import choose_attempts
from joinery_runtime.engine.worker import ReadReport, RowBlock, Worker


class LocalHost:
    """Implements `engine.host.Host` with one worker. Attempts are numbered, so runs are repeatable."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._attempts = 0

    def run(self, work: EpochWork) -> EpochOutcome:
        self._attempts += 1
        attempt = f"local{self._attempts}"
        rows: dict[int, list[RowBlock]] = defaultdict(list)
        reports: list[ReadReport] = []
        for shard, block in self._worker.read(work, work.plan.ranges):
            if isinstance(block, ReadReport):
                reports.append(block)
            else:
                rows[shard].append(block)
        shards = range(work.plan.shards)
        summaries = [(shard, self._worker.join(work, shard, rows[shard], attempt)) for shard in shards]
        return EpochOutcome(self._worker.collect(work, reports, attempt), choose_attempts(summaries, shards))
