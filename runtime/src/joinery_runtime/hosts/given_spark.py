"""Runs a job on a Spark session that the caller has started and keeps using. The job needs nothing that the session
lacks, and leaves the session as it was."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from joinery_runtime.engine.tasks import MAX_THREADS
from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.hosts.spark import DEFAULT_CONF, failure_cause
from joinery_runtime.hosts.spark_internals import (
    bytes_of_size,
    is_stopped,
    keep_environment_in_java,
    keep_java_names,
    thread_connection_is_idle,
    with_environment,
)
from joinery_runtime.hosts.spark_jobs import JobNames, collect_rdd, restore_names
from joinery_runtime.hosts.spark_security import is_local, is_secret

_DECIDED_BY_THE_SESSION = {"spark.master", "spark.app.name"}
_GIB = 1 << 30
_PATIENCE_S = 5.0
# Spark ends such workers after a minute without a task, and with them their caches and connections.
_OWN_WORKERS = {"JOINERY_WORKER": "1"}


@contextmanager
def session_context(session: SparkSession | SparkContext, conf: Mapping[str, str]) -> Iterator[SparkContext]:
    """Yield the context of a session, for a job whose `spark.conf` is `conf`. Raises EnvironmentProblem, which names
    each setting that the session lacks, or says what else keeps its workers from running tasks."""
    context = _context_of(session)
    if lacking := sorted(_missing_settings(context, conf)):
        raise EnvironmentProblem(
            "The Spark session lacks what the job needs",
            facts="; ".join(lacking),
            todo="Set that before the session starts, as in SparkSession.builder.config(...), or take it out of the "
            "job's spark.conf",
        )
    own = with_environment(context, _OWN_WORKERS)
    keep_environment_in_java(own)
    keep_java_names(own)
    tag = f"joinery-{uuid.uuid4().hex}"
    with restore_names(context):
        _check_workers(own)
        context.addJobTag(tag)
        try:
            yield own
        except BaseException:
            # An interrupt ends only the wait for an epoch's Spark job, not the job itself.
            cancelling = threading.Thread(target=_cancel_jobs, args=(context, tag), daemon=True)
            cancelling.start()
            cancelling.join(_PATIENCE_S)
            raise
        finally:
            # If Java is gone, an error from here would hide the error that says so.
            with suppress(Py4JError, OSError):
                if not is_stopped(context) and thread_connection_is_idle(context):
                    context.removeJobTag(tag)


def _cancel_jobs(context: SparkContext, tag: str) -> None:
    """Cancel the job's Spark jobs. Has to run in a thread of its own, which calls Java over a connection of its own:
    the interrupted call's connection still has an answer to come."""
    with suppress(Py4JError, OSError):
        if not is_stopped(context):
            context.cancelJobsWithTag(tag)


def _context_of(session: SparkSession | SparkContext) -> SparkContext:
    context: object = session
    if not isinstance(session, SparkContext):
        try:
            context = session.sparkContext
        except (AttributeError, PySparkException):  # a session of Spark Connect has none
            context = None
    if not isinstance(context, SparkContext):
        raise EnvironmentProblem(
            "The job cannot run on what was given as spark",
            facts=f"a {type(session).__module__}.{type(session).__qualname__} has no Spark context in this process",
            todo="Give a SparkSession or SparkContext that was started here, not one of Spark Connect",
        )
    if is_stopped(context):
        raise EnvironmentProblem("The Spark session has been stopped", todo="Start another one, or leave spark out")
    return context


def _missing_settings(context: SparkContext, conf: Mapping[str, str]) -> Iterator[str]:
    has = dict(context.getConf().getAll())
    for name, value in conf.items():
        if name in _DECIDED_BY_THE_SESSION or has.get(name) == value:
            continue
        if is_secret(name):
            yield f"{name} in the job's spark.conf differs from the session's"
        else:
            yield f"{name} is {value} in the job's spark.conf and {has.get(name, 'not set')} in the session"
    # Each block of rows travels between processes as one value, and Kryo rejects values larger than its buffer.
    name = "spark.kryoserializer.buffer.max"
    by_kryo = has.get("spark.serializer") == DEFAULT_CONF["spark.serializer"]
    one_process = is_local(context.master) and context.defaultParallelism <= MAX_THREADS
    if by_kryo and not one_process and name not in conf and bytes_of_size(context, has.get(name, "64m")) < _GIB:
        yield f"{name} has to be {DEFAULT_CONF[name]} and is {has.get(name, '64m, its default')}"


def _check_workers(context: SparkContext) -> None:
    """Raise EnvironmentProblem if the workers cannot run tasks. They need not run the same Python as this process, and
    they have to import this module."""
    try:
        JobNames(context, "joinery", ()).name_other_job("check workers")
        collect_rdd(context.parallelize([0], 1).map(_return_unchanged), 1)
    except Py4JError as error:
        raise EnvironmentProblem(
            f"The workers of the Spark session ({context.pythonExec}) cannot run the job's tasks",
            facts=failure_cause(error),
            todo="Install joinery-runtime[engine] for the Python of the workers. If they run on this machine, set "
            "os.environ['PYSPARK_PYTHON'] = sys.executable before the session starts",
        ) from error


def _return_unchanged(number: int) -> int:
    return number
