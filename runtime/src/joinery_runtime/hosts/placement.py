"""Decides where the epochs of a run run.

| Spark | epochs run |
|---|---|
| none (`joinery run --local`) | in the driver's process |
| on the driver's machine | in the driver's process until Spark has started, then on Spark (docs/decisions/0064) |
| on the driver's machine, and JOINERY_WAIT_FOR_SPARK is set | on Spark |
| on other machines | on Spark: the driver may lack what its executors have, above all memory |
| has started: the caller's, or this run's before an edit of the job | on Spark |
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from joinery_runtime.engine.tasks import MAX_THREADS
from joinery_runtime.hosts.spark_master import ALONE, master_of
from joinery_runtime.hosts.spark_security import is_on_this_machine

WAIT_FOR_SPARK = "JOINERY_WAIT_FOR_SPARK"
"""The environment variable that makes every epoch run on Spark when it is set: for tests and measurements."""


@dataclass(frozen=True, slots=True)
class EpochPlacement:
    """Where the epochs run. `master` is Spark's; "" while only spark-submit knows it."""

    master: str
    begins_in_driver: bool
    uses_spark: bool

    @classmethod
    def of(
        cls, conf: Mapping[str, str], master: str | None, *, local: bool = False, started_on: str | None = None
    ) -> Self:
        """`conf` is the job's `spark.conf`, and `master` overrides it. `started_on` is the master of a Spark that has
        started; with `local` there is no Spark."""
        if local:
            return cls(ALONE, begins_in_driver=True, uses_spark=False)
        if started_on is not None:
            return cls(started_on, begins_in_driver=False, uses_spark=True)
        named = master_of(conf, master)
        starts_late = is_on_this_machine(named) and not os.environ.get(WAIT_FOR_SPARK)
        return cls(named, begins_in_driver=starts_late, uses_spark=True)

    @property
    def cores(self) -> int:
        """How many tasks a master on this machine runs at a time. Epochs in the driver have as many, so that plans do
        not change when Spark takes over."""
        machine_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if local_cluster := re.match(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)", self.master):
            return int(local_cluster[1]) * int(local_cluster[2])
        local = re.match(r"local\[\s*(\d+|\*)", self.master)
        if local is None:
            return 1
        return machine_cores if local[1] == "*" else int(local[1])

    @property
    def threads(self) -> int:
        """How many threads an epoch in the driver has."""
        return min(self.cores, MAX_THREADS)
