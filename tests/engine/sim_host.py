"""The tasks of the simulated world."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from engine.sim_process import CRASHES, IN_TASK, LOSSES, Fault, TaskLost, call
from joinery_runtime.connectors.source import Range
from joinery_runtime.engine.messages import EpochOutcome, EpochWork, ShardSummary
from joinery_runtime.engine.protocol import Task, choose_attempts
from joinery_runtime.engine.read_report import ReadReport, StepDeadLetters
from joinery_runtime.engine.worker import Block, Sent, Worker
from joinery_runtime.errors import Superseded

T = TypeVar("T")
Dealt = Mapping[int, list[Block]]  # by shard


class SimHost:
    """Runs an epoch's tasks as Spark does: a lost one again under a new attempt, some of them twice at a time."""

    cores = None
    processes = 1

    def __init__(
        self,
        new_worker: Callable[[], Worker],
        attempts: Iterator[int],
        spawn: Callable[[str, Callable[[], None]], None],
    ) -> None:
        self._new_worker, self._attempts, self._spawn = new_worker, attempts, spawn
        self._worker = new_worker()
        self.merged = 0  # segments that shards replaced
        self.flagged = 0  # segments of flags that shards staged

    def run(self, work: EpochWork) -> EpochOutcome:
        shards, steps = work.plan.shards, self._worker.steps
        sent = self.read(work)
        driver_blocks = sent[shards]
        for number in range(steps):
            sent = self.step(work, number, sent)
            driver_blocks = [*driver_blocks, *sent[shards]]
        reports = [block for block in driver_blocks if isinstance(block, ReadReport | StepDeadLetters)]
        summaries = self.summaries([block for block in driver_blocks if isinstance(block, ShardSummary)])
        read = self.task(lambda worker, attempt: worker.collect(work, reports, attempt))
        return EpochOutcome(read, choose_attempts(summaries, steps, shards))

    def read(self, work: EpochWork) -> Dealt:
        return _dealt(s for planned in work.plan.ranges for s in self.task(partial(_read, work, planned)))

    def step(self, work: EpochWork, number: int, sent: Dealt) -> Dealt:
        return _dealt(s for shard in range(work.plan.shards) for s in self.shard(work, number, shard, sent))

    def shard(self, work: EpochWork, number: int, shard: int, sent: Dealt) -> list[Sent]:
        return self.task(lambda worker, attempt: list(worker.step(work, number, shard, sent[shard], attempt)))

    def summaries(self, shard_summaries: Sequence[ShardSummary]) -> list[tuple[Task, ShardSummary]]:
        self.merged += sum(len(summary.replaced) for summary in shard_summaries)
        self.flagged += sum(meta.part.endswith(".marks") for summary in shard_summaries for meta in summary.staged)
        return [((summary.step, summary.shard), summary) for summary in shard_summaries]

    def task(self, body: Callable[[Worker, str], T]) -> T:
        """One task: as many attempts as it takes, of which one counts."""
        while True:
            try:
                return self._attempt(body)
            except (TaskLost, Superseded):
                continue

    def _attempt(self, body: Callable[[Worker, str], T]) -> T:
        call("task.start", IN_TASK - {Fault.FAIL_AFTER} | {Fault.DUPLICATE}, lambda: None, aside=self._duplicate(body))
        result = body(self._worker, self.name_attempt())
        call("task.result", LOSSES | CRASHES, lambda: None)
        return result

    def _duplicate(self, body: Callable[[Worker, str], object]) -> Callable[[Fault], None]:
        def stray() -> None:
            body(self._new_worker(), self.name_attempt())

        return lambda fault: self._spawn("stray attempt", stray) if fault is Fault.DUPLICATE else None

    def name_attempt(self) -> str:
        return f"a{next(self._attempts)}"


class LosesOutputs(SimHost):
    """After the first shard of every step an executor dies: for the others, all that was sent before is made again."""

    def step(self, work: EpochWork, number: int, sent: Dealt) -> Dealt:
        first = self.shard(work, number, 0, sent)
        again = self.read(work)
        for earlier in range(number):
            again = SimHost.step(self, work, earlier, again)
        rest = [s for shard in range(1, work.plan.shards) for s in self.shard(work, number, shard, again)]
        return _dealt([*first, *rest])


def _dealt(sent: Iterable[Sent]) -> Dealt:
    blocks_by_shard: dict[int, list[Block]] = defaultdict(list)
    for shard, block in sent:
        blocks_by_shard[shard].append(block)
    return blocks_by_shard


def _read(work: EpochWork, planned: Range, worker: Worker, attempt: str) -> list[Sent]:
    return list(worker.read(work, [planned]))
