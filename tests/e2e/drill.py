"""A drill: drivers of one job that die one after another, by SIGKILL at a named point of the epoch, while records
arrive; and after them executors and Python workers of one that goes on.

Every other driver dies in an epoch that it runs by itself, since Spark has not started yet.

A module is one drill, in the order of its tests: one for each death, one for the tasks' processes, and a last one that
judges all that came out. `make soak` (JOINERY_KILLS=3) has each driver die at every point so many times, on a cluster.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from e2e.driver_process import Run
from e2e.kill_harness import Log
from joinery_runtime.engine.messages import CRASH_POINTS, TRANSACTION_POINTS

POINTS = tuple(point for point in CRASH_POINTS if point not in TRANSACTION_POINTS)
TIMES_EACH = int(os.environ.get("JOINERY_KILLS", "0"))
EPOCHS_BEFORE_A_KILL = 3
CLUSTER = "local-cluster[2,1,1024]"
LOCAL = CLUSTER if TIMES_EACH else "local[2,4]"  # a cluster takes three times as long to start
STURDY = '{spark.task.maxFailures: "8", spark.deploy.maxExecutorRetries: "-1"}'

MARKS = [pytest.mark.services, pytest.mark.slow, *([pytest.mark.soak] if TIMES_EACH else [])]


def deaths(points: Sequence[str], fewer: Sequence[str] | None = None) -> list[str]:
    """Where drivers die, shuffled: at all points, or without `make soak` at `fewer` of them."""
    chosen = list(points) * TIMES_EACH if TIMES_EACH else list(points if fewer is None else fewer)
    random.Random(7).shuffle(chosen)
    return chosen


@dataclass
class Drill:
    """`job` writes the job's file, with so many shards. Whoever enters it leaves no driver behind."""

    job: Callable[[Path, int], Path]
    folder: Path
    log: Log
    died: list[str] = field(default_factory=list)
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

    @property
    def last(self) -> Run:
        return self.runs[-1]

    def start(self, shards: int, master: str = LOCAL, fault: str | None = None, *, alone: bool = False) -> Run:
        """`alone`: the driver runs epochs by itself until Spark has started."""
        environment = {"JOINERY_FAULT": fault} if fault else {}
        environment |= {"JOINERY_WAIT_FOR_SPARK": ""} if alone else {}
        run = Run.start(self.job(self.path, shards), master, environment)
        self.runs.append(run)
        return run

    def kill_at(self, point: str, master: str = LOCAL) -> None:
        before = self.log.committed()
        shards = (4, 1, 3, 7)[len(self.died) % 4]
        alone = master == LOCAL and len(self.died) % 2 == 0
        run = self.start(shards, master, f"{point}@{before + EPOCHS_BEFORE_A_KILL}", alone=alone)
        assert run.wait() == -signal.SIGKILL, run.last_words
        self._check_replay(run)
        assert self.log.committed() >= before + EPOCHS_BEFORE_A_KILL - 1, "the driver died where it was told to"
        self.died.append(point)

    def kill_tasks(self, times: int, master: str = LOCAL) -> None:
        """Python workers of a driver that goes on; on a cluster executors and Python workers in turn. Its first epochs
        are its own, then Spark takes over."""
        run, choose = self.start(5, master, alone=True), random.Random(7)
        kinds = [run.executors, run.python_workers] if master == CLUSTER else [run.python_workers]
        for number in range(times):
            run.wait_for_more_epochs(3)
            run.kill_one(kinds[number % len(kinds)], choose)
        run.wait_for_more_epochs(2)
        self._check_replay(run)

    def _check_replay(self, run: Run) -> None:
        """Whatever died after it had planned and before it had committed has left a plan."""
        if self.died and self.died[-1] != "after-commit":
            assert run.replayed, f"a driver died at {self.died[-1]}, and the next one found no pending plan"
