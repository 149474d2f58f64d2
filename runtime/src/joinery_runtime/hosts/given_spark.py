"""A Spark session that somebody else has started and goes on to use: a job runs on it, asks for nothing that it does
not have, and leaves it as it was."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from joinery_runtime.engine.tasks import MAX_THREADS
from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.hosts.spark import DEFAULT_CONF, cause

_DESCRIPTION = "spark.job.description"
_DECIDED_BY_THE_SESSION = {"spark.master", "spark.app.name"}
_GIB = 1 << 30
_PATIENCE_S = 5.0
_OWN_WORKERS = {"JOINERY_WORKER": "1"}


@contextmanager
def given_context(session: SparkSession | SparkContext, conf: Mapping[str, str]) -> Iterator[SparkContext]:
    """The context of a session, for a job whose `spark.conf` is `conf`. Raises EnvironmentProblem naming each setting
    that the session lacks, or saying what else keeps its workers from running tasks."""
    context = _context_of(session)
    if lacking := sorted(_lacking(context, conf)):
        raise EnvironmentProblem(
            "The Spark session lacks what the job needs",
            facts="; ".join(lacking),
            todo="Set that before the session starts, as in SparkSession.builder.config(...), or take it out of the "
            "job's spark.conf",
        )
    own = _with_own_workers(context)
    _check_workers(own)
    described, tag = context.getLocalProperty(_DESCRIPTION), f"joinery-{uuid.uuid4().hex}"
    context.addJobTag(tag)
    try:
        yield own
    except BaseException:
        # An interrupt ends the wait for an epoch's Spark job, not the job.
        cancelling = threading.Thread(target=_cancel, args=(context, tag), daemon=True)
        cancelling.start()
        cancelling.join(_PATIENCE_S)
        raise
    finally:
        # What it raises where Java is gone would hide the error that says so.
        with suppress(Py4JError, OSError):
            if context._jsc is not None and _between_calls(context):
                given: Any = described  # None takes it away
                context.setLocalProperty(_DESCRIPTION, given)
                context.removeJobTag(tag)


def _with_own_workers(context: SparkContext) -> SparkContext:
    """The same context, for tasks in Python workers that no other task gets: Spark keeps workers by the variables that
    a task asks for. When nobody has asked for a minute it ends them, and with them their caches and connections."""
    own = object.__new__(SparkContext)  # another one cannot be started
    own.__dict__.update(context.__dict__, environment={**context.environment, **_OWN_WORKERS})
    return own


def _cancel(context: SparkContext, tag: str) -> None:
    """For a thread of its own, which calls Java by a connection of its own: an interrupted call has left the other
    one's with an answer to come."""
    with suppress(Py4JError, OSError):
        if context._jsc is not None:
            context.cancelJobsWithTag(tag)


def _between_calls(context: SparkContext) -> bool:
    """Whether this thread's connection to Java is idle. One of an interrupted call is not: its answer is to come, and
    the next call would take that for its own. PySpark drops that connection with the traceback, and all that was set
    for the thread goes with it."""
    gateway: Any = context._gateway
    client = gateway._gateway_client
    connection = client.get_thread_connection() if hasattr(client, "get_thread_connection") else None
    return connection is None or connection in client.deque


def _context_of(session: SparkSession | SparkContext) -> SparkContext:
    context = session if isinstance(session, SparkContext) else getattr(session, "_sc", None)
    if not isinstance(context, SparkContext):
        raise EnvironmentProblem(
            "The job cannot run on what was given as spark",
            facts=f"a {type(session).__module__}.{type(session).__qualname__} has no Spark context in this process",
            todo="Give a SparkSession or SparkContext that was started here, not one of Spark Connect",
        )
    if context._jsc is None:
        raise EnvironmentProblem("The Spark session has been stopped", todo="Start another one, or leave spark out")
    return context


def _lacking(context: SparkContext, conf: Mapping[str, str]) -> Iterator[str]:
    has = dict(context.getConf().getAll())
    for name, value in conf.items():
        if name not in _DECIDED_BY_THE_SESSION and has.get(name) != value:
            yield f"{name} is {value} in the job's spark.conf and {has.get(name, 'not set')} in the session"
    # Blocks of rows go from process to process as one value each, which Kryo refuses when it is larger than its buffer.
    name = "spark.kryoserializer.buffer.max"
    by_kryo = has.get("spark.serializer") == DEFAULT_CONF["spark.serializer"]
    one_process = context.master.startswith("local") and context.defaultParallelism <= MAX_THREADS
    if by_kryo and not one_process and name not in conf:
        jvm: Any = context._jvm
        size = jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(has.get(name, "64m"))
        if size < _GIB:
            yield f"{name} has to be {DEFAULT_CONF[name]} and is {has.get(name, '64m, its default')}"


def _check_workers(context: SparkContext) -> None:
    """They run a Python of their own, which need not be this one: to run a task they import this module."""
    try:
        context.parallelize([0], 1).map(_run).collect()
    except Py4JError as error:
        raise EnvironmentProblem(
            f"The workers of the Spark session ({context.pythonExec}) cannot run the job's tasks",
            facts=cause(error),
            todo="Have them run a Python that has joinery-runtime[engine]: os.environ['PYSPARK_PYTHON'] = "
            "sys.executable, set before the session starts, where they are on this machine",
        ) from error


def _run(given: int) -> int:
    return given
