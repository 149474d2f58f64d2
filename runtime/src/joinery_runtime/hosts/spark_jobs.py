"""What Spark's UI, its listeners and its history call a job of ours.

    job group     orders-payments epoch 812          to filter by, and to cancel
    description   orders-payments: epoch 812, join
    description   orders-payments: small epochs from 812, join     of a series (`hosts.epoch_series`)
    stage         orders-payments: read              without the epoch, so that figures can be summed by name

A stage's name is the call site that is set when the RDD that ends it is made: `exchanged_rdd` for what follows through
a shuffle, `collected` for the last one. `RDD.collect` and `RDD.partitionBy` set call sites of their own, and clear what
was set.

Each call of Java costs an epoch a fraction of a millisecond: these are one per epoch and one per stage.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext

from joinery_runtime.hosts.spark_internals import is_stopped, list_in_java, thread_connection_is_idle

CALL_SITE = "callSite.short"
LONG_CALL_SITE = "callSite.long"
GROUP = "spark.jobGroup.id"
DESCRIPTION = "spark.job.description"

WORK = "joinery.work"  # what the tasks of an epoch with one stage do (`spark_tasks.OneStageTask`)

_DETAILS = "Records, bytes and rates of each epoch are on the page Structured Streaming"

_NAMES = (DESCRIPTION, GROUP, "spark.job.interruptOnCancel", CALL_SITE, LONG_CALL_SITE, "spark.scheduler.pool", WORK)


class JobNames:
    """Names what this thread has Spark do for a job. `steps` are the words for its steps, in their order."""

    def __init__(self, context: SparkContext, job: str, steps: tuple[str, ...]) -> None:
        self._context, self._job, self._steps = context, job, steps
        self._kinds = ", ".join(dict.fromkeys("join" if step.endswith("join") else step.split()[0] for step in steps))
        self._detailed_in: int | None = None  # the thread whose stages have the details
        self._has_work = False

    def name_epoch(self, number: int) -> None:
        """Name the jobs that follow after an epoch."""
        self._set_group(f"{self._job} epoch {number}", f"{self._job}: epoch {number}, {self._kinds}")

    def name_series(self, first: int) -> str:
        """Name the job that this thread runs next after the small epochs from this one on, and return its group."""
        self._detailed_in = None  # a thread that has ended may have had the same number
        group = f"{self._job} small epochs from {first}"
        self._set_group(group, f"{self._job}: small epochs from {first}, {self._kinds}")
        return group

    def name_other_job(self, doing: str) -> None:
        """Name the jobs that follow after something else than an epoch."""
        self._set_group(f"{self._job} {doing}", f"{self._job}: {doing}")
        self._name_stage(doing)

    def name_read_stage(self) -> None:
        """Name the stage whose end is built next: it reads."""
        self._name_stage("read")

    def name_first_stage(self) -> None:
        """Name the stage whose end is built next: each peer reads all ranges, and runs the first step."""
        self._name_stage(f"read, {self._steps[0]}")

    def name_step_stage(self, number: int) -> None:
        """Name the stage whose end is built next: it runs this step, or collects reports after the last one."""
        self._name_stage(self._steps[number] if number < len(self._steps) else "collect")

    def name_full_stage(self, *, collects: bool = True) -> None:
        """Name the stage whose end is built next: one task per peer reads, runs all steps and, with `collects`,
        collects reports."""
        self._name_stage(", ".join(("read", *self._steps, *(["collect"] if collects else []))))

    def name_collect_stage(self) -> None:
        """Name the stage whose end is built next: it collects reports."""
        self._name_stage("collect")

    def bring_work(self, text: str | None) -> None:
        """Have the jobs that follow bring this text to their tasks, as the property WORK."""
        if text is not None or self._has_work:
            value: Any = text  # None removes it
            self._context.setLocalProperty(WORK, value)
            self._has_work = text is not None

    def _set_group(self, group: str, description: str) -> None:
        self._context.setJobGroup(group, description)
        if self._detailed_in != threading.get_ident():
            # Without details of ours, Spark would take Java's stack at each RDD.
            self._context.setLocalProperty(LONG_CALL_SITE, f"Joinery's job {self._job}. {_DETAILS}")
            self._detailed_in = threading.get_ident()

    def _name_stage(self, doing: str) -> None:
        self._context.setLocalProperty(CALL_SITE, f"{self._job}: {doing}")


def collect_rdd(rdd: RDD[Any], partitions: int) -> list[Any]:
    """Run a job and return what its last stage yields. As `rdd.collect()`, but under the name that is set for it."""
    results: list[Any] = rdd.context.runJob(rdd, _return_unchanged, list(range(partitions)))
    return results


class RepeatedJob:
    """A job that is run again and again. `runJob` makes an RDD in Java for its function each time; this hands it the
    one of the first time. Only for jobs of one stage: Spark would take the files of an earlier shuffle for those of a
    later run."""

    def __init__(self, rdd: RDD[Any], partitions: int) -> None:
        self._context, self._mapped = rdd.context, rdd.mapPartitions(_return_unchanged)
        self._partitions = list_in_java(self._context, range(partitions))

    def mapPartitions(self, _: object) -> RDD[Any]:  # noqa: N802 - the method of an RDD that `runJob` calls
        return self._mapped

    def collect(self) -> list[Any]:
        """Run the job, as `collect_rdd` does."""
        job: Any = self
        results: list[Any] = self._context.runJob(job, _return_unchanged, self._partitions)
        return results


def _return_unchanged(items: Any) -> Any:
    return items


@contextmanager
def restore_names(context: SparkContext) -> Iterator[None]:
    """Restore the names that this thread's jobs have, once the block has ended, as well as how they are scheduled."""
    before = {name: context.getLocalProperty(name) for name in _NAMES}
    try:
        yield
    finally:
        # If Java is gone, an error from here would hide the error that says so.
        with suppress(Py4JError, OSError):
            if not is_stopped(context) and thread_connection_is_idle(context):
                for name, value in before.items():
                    restored: Any = value  # None removes it
                    context.setLocalProperty(name, restored)
