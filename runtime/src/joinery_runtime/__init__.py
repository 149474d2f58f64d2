"""Joinery's runtime: streaming joins and sessions on Spark, state and offsets together in Postgres.

from joinery_runtime import load_job, run
run(load_job("join.yaml"))
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING

from joinery_runtime.job import Job, SessionWindow, StreamJoin, load_job, parse_job

if TYPE_CHECKING:
    from joinery_runtime.engine.loop import Progress

__all__ = ["Job", "SessionWindow", "StreamJoin", "load_job", "parse_job", "run"]


def run(
    job: Job,
    *,
    master: str | None = None,
    stop: Event | None = None,
    on_epoch: Callable[[Progress], None] | None = None,
) -> None:
    """Runs a job until all its inputs have ended or `stop` is set (then after the running epoch).

    `master` is a Spark master URL; None takes the job's `spark.conf`, what spark-submit set, or `local[*]`. `on_epoch`
    hears of every committed epoch. Warnings go to the `warnings` module. Raises JoineryError. Needs the `engine` extra.
    """
    import warnings  # noqa: PLC0415 - this package stays light to import for who only reads resources

    from joinery_runtime.engine.loop import JobListener  # noqa: PLC0415
    from joinery_runtime.hosts.run import run_job  # noqa: PLC0415

    def nothing(*_: object) -> None:
        """Starts and troubles of the store are for the command line."""

    listener = JobListener(started=nothing, committed=on_epoch or nothing, trouble=nothing)
    run_job(job, listener, stop or Event(), master=master, warn=lambda text: warnings.warn(text, stacklevel=2))
