"""Each private part of PySpark and Spark that Joinery uses, on the Spark that is installed: `make matrix` runs this on
every version. A test has the name of the function that would fail."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
from py4j.java_gateway import JVMView
from pyspark import SparkContext

from e2e.spark_trace import TASK_CONF
from hosts.stand_ins import PATIENCE_S
from joinery_devkit.spark_cluster import spark_home
from joinery_runtime.hosts import spark_internals as internals
from joinery_runtime.hosts.spark import start_context

pytestmark = [pytest.mark.services, pytest.mark.slow]


@pytest.fixture(scope="module")
def context() -> Iterator[SparkContext]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(spark_home()))
        conf = {**TASK_CONF, "spark.ui.enabled": "true", "spark.ui.port": "0"}
        context = start_context("internals", conf, "local-cluster[2,1,1024]")
        _until(lambda: len(internals.list_executors(context)) == 2)
        yield context
        context.stop()


def _until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _locations(context: SparkContext) -> list[str]:
    return [f"executor_{host}_{name}" for name, host in sorted(internals.list_executors(context))]


def test_each_function_has_a_test_and_says_why_there_is_no_public_way() -> None:
    functions = {
        name: function
        for name, function in inspect.getmembers(internals, inspect.isfunction)
        if function.__module__ == internals.__name__ and not name.startswith("_")
    }
    assert {name for name in functions if f"test_{name}" not in globals()} == set()
    assert {name for name, function in functions.items() if not inspect.getdoc(function)} == set()


# --- the Java process -------------------------------------------------------------------------------------------------

STARTS = """
import subprocess, sys
from pyspark import SparkConf, SparkContext
from joinery_runtime.hosts import spark_internals as internals

launched = []
def popen(command, **options):
    launched.append(subprocess.Popen(command, **options))
    return launched[-1]

assert internals.current_java_gateway() is None and internals.java_process() is None
with internals.launch_java_with(popen):
    internals.start_java(SparkConf(loadDefaults=False).set("spark.master", "local[1]").set("spark.app.name", "starts"))
process = internals.java_process()
assert launched == [process], launched
assert internals.current_java_gateway().jvm.java.lang.System.getProperty("spark.app.name") == "starts"
assert not internals.context_is_active()
context = SparkContext()
assert internals.java_process() is process and internals.context_is_active() and not internals.is_stopped(context)
context.stop()
assert internals.is_stopped(context) and not internals.context_is_active()
internals.forget_java()
assert internals.java_process() is None
process.kill()
process.wait()
internals.start_java()
assert internals.java_process() not in (None, process) and len(launched) == 1
print("all of it was so")
"""


@pytest.fixture(scope="module")
def starts() -> None:
    """In a process of its own, whose Java is started, forgotten and started again."""
    ran = subprocess.run([sys.executable, "-c", STARTS], capture_output=True, text=True, check=False, timeout=300)
    assert ran.stdout.splitlines()[-1:] == ["all of it was so"], ran.stderr


@pytest.mark.usefixtures("starts")
def test_start_java() -> None: ...


@pytest.mark.usefixtures("starts")
def test_current_java_gateway() -> None: ...


@pytest.mark.usefixtures("starts")
def test_java_process() -> None: ...


@pytest.mark.usefixtures("starts")
def test_forget_java() -> None: ...


@pytest.mark.usefixtures("starts")
def test_launch_java_with() -> None: ...


@pytest.mark.usefixtures("starts")
def test_context_is_active() -> None: ...


@pytest.mark.usefixtures("starts")
def test_is_stopped() -> None: ...


def test_thread_connection_is_idle(context: SparkContext) -> None:
    context.getLocalProperty("any")
    assert internals.thread_connection_is_idle(context)
    client = context._gateway._gateway_client
    connection = client.get_thread_connection()
    client.deque.remove(connection)  # as while a call waits for its answer
    try:
        assert not internals.thread_connection_is_idle(context)
    finally:
        client.deque.append(connection)


def test_silence_accumulator_server(context: SparkContext, capfd: pytest.CaptureFixture[str]) -> None:
    server: Any = context._accumulatorServer
    internals.silence_accumulator_server(context)
    try:
        raise ConnectionResetError
    except ConnectionResetError:
        server.handle_error(None, ("127.0.0.1", 1))
    assert capfd.readouterr().err == ""


def test_with_environment(context: SparkContext) -> None:
    own = internals.with_environment(context, {"JOINERY_TEST": "of its own"})
    assert own.parallelize([0], 1).map(lambda _: os.environ.get("JOINERY_TEST")).collect() == ["of its own"]
    assert context.parallelize([0], 1).map(lambda _: os.environ.get("JOINERY_TEST")).collect() == [None]


def test_keep_environment_in_java(context: SparkContext) -> None:
    own = internals.with_environment(context, {"JOINERY_TEST": "kept in Java"})
    internals.keep_environment_in_java(own)
    assert not isinstance(own.environment, dict)
    assert own.parallelize([0], 1).map(lambda _: os.environ.get("JOINERY_TEST")).collect() == ["kept in Java"]


def test_keep_java_names(context: SparkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    internals.keep_java_names(context)
    names: list[str] = []
    ask = JVMView.__getattr__

    def ask_and_note(view: JVMView, name: str) -> Any:
        names.append(name)
        return ask(view, name)

    monkeypatch.setattr(JVMView, "__getattr__", ask_and_note)
    assert context.runJob(context.parallelize([1, 2], 2), lambda numbers: [n + 1 for n in numbers]) == [2, 3]
    assert not set(names) & {"PythonRDD", "PythonUtils", "SimplePythonFunction"}


# --- executors --------------------------------------------------------------------------------------------------------


def test_list_in_java(context: SparkContext) -> None:
    listed = internals.list_in_java(context, range(3))
    assert str(listed.getClass().getName()) == "java.util.ArrayList"
    assert list(listed) == [0, 1, 2]


def test_list_executors(context: SparkContext) -> None:
    # Java keeps the address of its start: a test before this one may have started it, with or without SPARK_LOCAL_IP.
    local = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    executors = dict(internals.list_executors(context))
    assert sorted(executors) == ["0", "1"]
    assert set(executors.values()) <= local


def test_count_executors(context: SparkContext) -> None:
    assert internals.count_executors(context) == 2


def test_takes_tasks(context: SparkContext) -> None:
    _until(lambda: internals.takes_tasks(context, "0"))
    assert not internals.takes_tasks(context, "99")


def test_native_tls_problem(context: SparkContext) -> None:
    assert internals.native_tls_problem(context) is None


def test_record_log_errors(context: SparkContext) -> None:
    name = "org.apache.spark.scheduler.cluster.k8s"
    take = internals.record_log_errors(context, name)
    jvm: Any = context._jvm
    allocator = jvm.org.apache.logging.log4j.LogManager.getLogger(f"{name}.ExecutorPodsAllocator")
    allocator.error("no pod", jvm.java.lang.IllegalStateException("first"))
    allocator.error("no pod", jvm.java.lang.IllegalStateException("second\nline"))
    allocator.error("says nothing of an exception")
    assert take().split() == ["first", "second", "line"]
    assert take() == ""


def test_bytes_of_size(context: SparkContext) -> None:
    assert internals.bytes_of_size(context, "64m") == 64 << 20


# --- RDDs -------------------------------------------------------------------------------------------------------------


def _preferred(context: SparkContext, rdd: Any, partitions: int) -> list[str]:
    spark: Any = context._jsc
    return [spark.sc().getPreferredLocs(rdd._jrdd.rdd(), n).head().toString() for n in range(partitions)]


def test_placed_rdd(context: SparkContext) -> None:
    locations = _locations(context)
    items = internals.placed_rdd(context, ["a", "b", "c"], locations)
    assert _preferred(context, items, 3) == [*locations, locations[0]]
    assert items.collect() == ["a", "b", "c"]


def test_placed_empty_rdd(context: SparkContext) -> None:
    locations = _locations(context)
    placed = internals.placed_empty_rdd(context, 3, locations)
    assert _preferred(context, placed, 3) == [*locations, locations[0]]
    assert placed.collect() == [None] * 3
    again, fewer = (internals.placed_empty_rdd(context, count, locations) for count in (3, 2))
    assert again._jrdd.id() == placed._jrdd.id(), "Java keeps it"
    assert fewer.collect() == [None] * 2


def test_exchanged_rdd(context: SparkContext) -> None:
    """Under the name that is set, and with more pairs than are pickled at once."""
    context.setJobGroup("exchanged", "exchanged")
    context.setLocalProperty("callSite.short", "sends")
    sent = context.parallelize([(n % 3, n) for n in range(300)], 2)
    received = internals.exchanged_rdd(sent, 3)
    gathered = received.mapPartitionsWithIndex(lambda peer, pairs: [(peer, sorted(n for _, n in pairs))])
    assert gathered.collect() == [(peer, list(range(peer, 300, 3))) for peer in range(3)]
    tracker = context.statusTracker()
    (job,) = tracker.getJobIdsForGroup("exchanged")
    info: Any = tracker.getJobInfo(job)
    first: Any = tracker.getStageInfo(min(info.stageIds))
    assert first.name == "sends"


def test_placed_again_rdd(context: SparkContext) -> None:
    locations = _locations(context)
    sent = context.parallelize([(n % 3, n) for n in range(300)], 2)
    placed = internals.placed_again_rdd(internals.exchanged_rdd(sent, 3), 3, locations)
    assert _preferred(context, placed, 3) == [*locations, locations[0]]
    gathered = placed.mapPartitionsWithIndex(lambda peer, pairs: [(peer, sorted(n for _, n in pairs))])
    assert gathered.collect() == [(peer, list(range(peer, 300, 3))) for peer in range(3)]


# --- listeners and the UI ---------------------------------------------------------------------------------------------


def test_has_listeners(context: SparkContext) -> None:
    assert internals.has_listeners(context), "the UI"


def test_logs_events(context: SparkContext) -> None:
    assert internals.logs_events(context) is (context.getConf().get("spark.eventLog.enabled") == "true")


def test_post_event(context: SparkContext) -> None:
    """Spark's own event, so that nothing but the way is tested: an executor that is excluded."""
    event = {
        "Event": "org.apache.spark.scheduler.SparkListenerExecutorExcluded",
        "time": 1,
        "executorId": "0",
        "taskFailures": 3,
    }
    internals.post_event(context, json.dumps(event))
    address = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/executors"
    _until(lambda: any(load.get("isExcluded") for load in json.loads(_page(address))))


def test_add_streaming_page(context: SparkContext) -> None:
    kind = "org.apache.spark.sql.streaming.StreamingQueryListener$Query{}Event"
    ids = {"id": "00000000-0000-0000-0000-000000000001", "runId": "00000000-0000-0000-0000-000000000002"}
    internals.add_streaming_page(context)
    internals.add_streaming_page(context)
    started = {"Event": kind.format("Started"), **ids, "name": "a query", "timestamp": "2026-01-01T00:00:00.000Z"}
    internals.post_event(context, json.dumps({**started, "jobTags": []}))
    _until(lambda: "a query" in _page(f"{context.uiWebUrl}/StreamingQuery/"))
    assert _page(f"{context.uiWebUrl}/jobs/").count('href="/StreamingQuery/"') == 1


def _page(address: str) -> str:
    with urllib.request.urlopen(address) as answer:
        return str(answer.read().decode())


# --- last: executors go -----------------------------------------------------------------------------------------------


def test_request_total_executors(context: SparkContext) -> None:
    internals.request_total_executors(context, 2)
    assert internals.count_executors(context) == 2


def test_end_executors(context: SparkContext) -> None:
    internals.request_total_executors(context, 1)
    internals.end_executors(context, ["1"])
    _until(lambda: [name for name, _ in internals.list_executors(context)] == ["0"])
