"""A job, the drivers of it that a test starts as processes, and what came out in the end."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from e2e.driver_process import PATIENCE_S, Run
from e2e.kill_harness import Feeder, Job, judge_topics, log_of, wait_until_read

MASTER = "local[2,4]"


@dataclass
class Scene:
    job: Job
    folder: Path
    runs: list[Run] = field(default_factory=list)

    def start(
        self,
        hurt: str = "",
        master: str = MASTER,
        conf: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> Run:
        """A driver of the job, changed so. `hurt` is what happens to its Python workers (`e2e.hurt_daemon`)."""
        conf = {**(conf or {}), **(self._hurting(hurt) if hurt else {})}
        job = replace(self.job, conf=json.dumps(conf), **changes)
        path = job.write(self.folder / f"job-{len(self.runs)}.yaml")
        self.runs.append(Run.start(path, master, environment))
        return self.runs[-1]

    def _hurting(self, hurt: str) -> dict[str, str]:
        self._seen.mkdir(exist_ok=True)
        return {
            "spark.python.daemon.module": "e2e.hurt_daemon",
            "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[1]),
            "spark.executorEnv.JOINERY_TEST_HURT": hurt,
            "spark.executorEnv.JOINERY_TEST_HURT_SEEN": str(self._seen),
        }

    @property
    def _seen(self) -> Path:
        return self.folder / "seen"

    def hurt_at(self, point: str) -> int:
        """Waits until a worker has been hurt there; the epoch then."""
        path, deadline = self._seen / point, time.monotonic() + PATIENCE_S
        while not path.exists():
            assert time.monotonic() < deadline, f"no worker reached {point}\n{self.runs[-1].last_words}"
            time.sleep(0.01)
        return int(path.read_text().split()[1])

    def hurt_worker(self, point: str) -> int:
        """The process id of the worker that has been hurt there."""
        return int((self._seen / point).read_text().split()[0])

    def file(self, number: int) -> Path:
        """The job file of a driver, counted from 0."""
        return self.folder / f"job-{number}.yaml"

    def settle(self, feeder: Feeder, run: Run) -> list[dict[str, Any]]:
        """Has the run read everything and stop. The epoch log."""
        feeder.stop()
        with log_of(self.job) as log:
            wait_until_read(run, log, self.job)
            assert run.stop() == 0, run.last_words
            return log.entries()

    def finish(self, feeder: Feeder, run: Run) -> list[dict[str, Any]]:
        """The same, and output and dead letters of the job, which says the same all the time, must be right."""
        entries = self.settle(feeder, run)
        verdict = judge_topics(self.file(0), self.job, entries)
        assert verdict.pairs > 0
        return entries
