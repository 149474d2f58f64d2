"""Joinery's runtime: streaming joins and sessions on Spark, state and offsets together in Postgres.

from joinery_runtime import explain, load_job, run, trace
job = load_job("join.yaml")
print(explain(job))
trace(job, [{"input": "orders", "rows": [...]}, {"end": True}])
run(job)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from threading import Event
from typing import TYPE_CHECKING, Any

from joinery_runtime.job import Job, SessionWindow, StreamJoin, load_job, parse_job
from joinery_runtime.job import explain as _explain

if TYPE_CHECKING:
    from joinery_runtime.engine.loop import Progress

__all__ = ["Job", "SessionWindow", "StreamJoin", "explain", "load_job", "parse_job", "run", "trace"]


def explain(job: Job) -> str:
    """What `joinery explain` prints of a job without expressions; of one with expressions, the state is estimated as if
    all columns were kept."""
    return _explain(job).render()


def trace(job: Job, steps: Iterable[Mapping[str, Any]], *, shards: int | None = None) -> list[dict[str, Any]]:
    """Plays rows through a job, as `joinery trace` does: one result per step, with `output`, `watermarks`, `late` and
    `dead` (docs/trace.md). Nothing of the job's own state, inputs and output is touched.

    `shards` is how many; None takes the job's. Raises JoineryError naming the number, from 1 on, of a step that is not
    one. Needs the `engine` extra.
    """
    from joinery_runtime.hosts.trace import run_trace  # noqa: PLC0415 - this package stays light to import
    from joinery_runtime.state.memory import MemoryStore  # noqa: PLC0415

    return list(run_trace(job, steps, MemoryStore(), shards))


def run(
    job: Job,
    *,
    master: str | None = None,
    stop: Event | None = None,
    on_epoch: Callable[[Progress], None] | None = None,
    once: bool = False,
) -> None:
    """Runs a job until all its inputs have ended or `stop` is set (then after the running epoch); with `once`, to where
    the inputs end now, without ending one (docs/schedule.md).

    `master` is a Spark master URL; None takes the job's `spark.conf`, what spark-submit set, or `local[*]`. `on_epoch`
    hears of every committed epoch. Warnings go to the `warnings` module. Raises JoineryError. Needs the `engine` extra.
    """
    import warnings  # noqa: PLC0415 - this package stays light to import for who only reads resources

    from joinery_runtime.engine.loop import JobListener  # noqa: PLC0415
    from joinery_runtime.hosts.run import run_job  # noqa: PLC0415

    def nothing(*_: object) -> None:
        """Starts and troubles of the store are for the command line."""

    def warn(text: str) -> None:
        warnings.warn(text, stacklevel=2)

    listener = JobListener(started=nothing, committed=on_epoch or nothing, trouble=nothing)
    run_job(job, listener, stop or Event(), master=master, warn=warn, once=once)
