"""Drivers of one job that die one after another, by SIGKILL at a named point, and what was seen of them."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.driver_process import Run
from e2e.kill_harness import Log, kill_task_processes

POINTS = ("planned", "reading", "staged", "output-written", "before-commit", "after-commit")
MASTER = "local-cluster[2,1,1024]"
STURDY = '{spark.task.maxFailures: "8", spark.deploy.maxExecutorRetries: "-1"}'


@dataclass
class Drill:
    """`job` writes the job's file, with so many shards. Whoever enters it leaves no driver behind."""

    job: Callable[[Path, int], Path]
    folder: Path
    log: Log
    epochs_before_a_kill: int
    replays: int = 0
    deaths: Counter[str] = field(default_factory=Counter)
    runs: list[Run] = field(default_factory=list)

    def __enter__(self) -> Drill:
        return self

    def __exit__(self, *_: object) -> None:
        for run in self.runs:
            if run.process.poll() is None:
                run.kill()

    @property
    def path(self) -> Path:
        return self.folder / "job.yaml"

    def start(self, shards: int, fault: str | None = None) -> Run:
        run = Run.start(self.job(self.path, shards), MASTER, {"JOINERY_FAULT": fault} if fault else None)
        self.runs.append(run)
        return run

    def kill_at(self, point: str, shards: int) -> None:
        before = self.log.committed()
        run = self.start(shards, f"{point}@{before + self.epochs_before_a_kill}")
        assert run.wait() == -signal.SIGKILL, run.last_words
        self.replays += run.replayed
        self.deaths[point] += 1
        assert self.log.committed() >= before + self.epochs_before_a_kill - 1, "the driver died where it was told to"

    def kill_everything(
        self, deaths: Mapping[str, int], random_kills: int, least_epochs: int, choose: random.Random
    ) -> Run:
        """A driver dies at each point so many times; then executors and Python workers of one that goes on, until there
        are so many epochs. That one."""
        points = [point for point, times in deaths.items() for _ in range(times)]
        choose.shuffle(points)
        for number, point in enumerate(points):
            self.kill_at(point, shards=(4, 1, 3, 7)[number % 4])
        last = self.start(shards=5)
        killed = kill_task_processes(last, random_kills, choose)
        last.wait_for("enough epochs", lambda epochs: bool(epochs) and epochs[-1]["epoch"] >= least_epochs)
        assert self.deaths == deaths
        assert len(killed) == random_kills
        return last
