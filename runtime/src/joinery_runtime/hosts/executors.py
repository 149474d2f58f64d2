"""Which executors of a Spark context run, which of them take part in an epoch, and how a task gets to one of them.

PySpark places no task; the JVM's RDDs do. A place is a preference: Spark keeps to it while that executor has a free
core, as between epochs, and takes another executor for one that is busy or gone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

from pyspark import SparkContext

from joinery_runtime.hosts.background_call import BackgroundCall
from joinery_runtime.hosts.spark_internals import (
    end_executors,
    list_executors,
    placed_rdd,
    request_total_executors,
    takes_tasks,
)
from joinery_runtime.hosts.spark_jobs import JobNames, collect_rdd
from joinery_runtime.hosts.spark_security import is_local

_REGISTRATION_SECONDS = 10.0  # how long a new executor may take until Spark gives it tasks
_REGISTRATION_POLL_SECONDS = 0.02


def executor_ids(context: SparkContext) -> list[str]:
    """Return the ids of the executors that run now, the oldest first. Empty where tasks run in the driver, and before
    the first executor has come."""
    return [name for name, _ in _list_members(context)]


def _list_members(context: SparkContext) -> list[tuple[str, str]]:
    """Return ids and hosts, the oldest first."""
    executors = [] if is_local(context.master) else list_executors(context)
    return sorted(executors, key=lambda executor: (len(executor[0]), executor[0]))  # by number


def _executor_location(executor: str, host: str) -> str:
    return f"executor_{host}_{executor}"


def request_executors(context: SparkContext, count: int) -> int:
    """Have Spark keep this many executors. Ends the newest of those that run beyond them, and says how many. No task
    may be running. Raises Py4JError and ConnectionError."""
    surplus = executor_ids(context)[count:]
    if surplus:
        end_executors(context, surplus)
    request_total_executors(context, count)
    return len(surplus)


class ActiveExecutors:
    """The executors that take part in epochs: those that have run `warm`, which builds a process's worker.

    A new executor does so beside the epochs, which continue without it. If it had a share at once, all others would
    wait until it has imported, built and connected (3 s on a node of two cores). Where no executor remains that has,
    all take part.
    """

    def __init__(self, context: SparkContext, warm: Callable[[object], object], names: JobNames) -> None:
        self._context, self._warm, self._names = context, warm, names
        self._running: dict[str, str] = {}  # their hosts, by id
        self._ready = set[str]()
        self._warming: dict[str, BackgroundCall[None]] = {}

    def locations(self) -> list[str]:
        """Those that take part now as Spark names preferred locations, the oldest first."""
        self._running = running = dict(_list_members(self._context))
        self._warming = {name: call for name, call in self._warming.items() if name in running}
        # What went wrong, the next epoch meets too, and says so.
        self._ready |= {name for name, call in self._warming.items() if call.done}
        self._ready &= running.keys()
        if not self._ready:
            self._ready.update(running)
        for name in running.keys() - self._ready - self._warming.keys():
            self._warming[name] = BackgroundCall(
                partial(self._prepare_executor, name, running[name]), "joinery-new-executor"
            )
        return [_executor_location(name, host) for name, host in running.items() if name in self._ready]

    @property
    def cores(self) -> int:
        """How many cores they have; where tasks run in the driver, and before an executor has come, all that Spark has
        or expects."""
        share = len(self._ready) / len(self._running) if self._running else 1
        cores: int = self._context.defaultParallelism
        return math.ceil(cores * share)

    def _prepare_executor(self, name: str, host: str) -> None:
        deadline = time.monotonic() + _REGISTRATION_SECONDS
        # A task that prefers an executor unknown to the scheduler goes to another one.
        while not takes_tasks(self._context, name) and time.monotonic() < deadline:
            time.sleep(_REGISTRATION_POLL_SECONDS)
        warm = self._warm
        self._names.name_other_job("build a worker")
        collect_rdd(
            placed_rdd(self._context, [None], [_executor_location(name, host)]).map(lambda item: bool(warm(item))), 1
        )
