"""All tasks of an epoch in this process, one after the other: for traces and tests of the engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from joinery_runtime.engine.messages import EpochOutcome, EpochWork, ShardSummary
from joinery_runtime.engine.protocol import choose_attempts
from joinery_runtime.engine.read_report import ReadReport
from joinery_runtime.engine.worker import Block, Sent, Worker


class LocalHost:
    """Implements `engine.driver.Host` with one worker. Attempts are numbered, so runs are repeatable."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._attempts = 0

    def run(self, work: EpochWork) -> EpochOutcome:
        self._attempts += 1
        attempt = f"local{self._attempts}"
        shards = work.plan.shards
        sent = _sorted(self._worker.read(work, work.plan.ranges))
        for step in range(self._worker.steps):
            done = [s for shard in range(shards) for s in self._worker.step(work, step, shard, sent[shard], attempt)]
            sent = _sorted([*((shards, block) for block in sent[shards]), *done])
        reports = [block for block in sent[shards] if isinstance(block, ReadReport)]
        summaries = [((s.step, s.shard), s) for s in sent[shards] if isinstance(s, ShardSummary)]
        chosen = choose_attempts(summaries, self._worker.steps, shards)
        return EpochOutcome(self._worker.collect(work, reports, attempt), chosen)


def _sorted(sent: Iterable[Sent]) -> dict[int, list[Block]]:
    found: dict[int, list[Block]] = defaultdict(list)
    for shard, block in sent:
        found[shard].append(block)
    return found
