"""What Spark's UI, its listeners, its event log and its history server say of a job on two executors."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.java_gateway import ensure_callback_server_started

from hosts.test_spark_progress import JOB
from joinery_devkit.processes import ChildProcess, free_port
from joinery_devkit.spark_cluster import spark_home
from joinery_runtime import run
from joinery_runtime.hosts.spark import start_context

pytestmark = [pytest.mark.services, pytest.mark.slow]

PATIENCE_S = 120.0
PROGRESS = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent"


def until(value: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (result := value()):
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.05)
    return result


def page(address: str) -> str:
    with urllib.request.urlopen(address) as answer:
        return str(answer.read().decode())


class Listener:
    """A SparkListener in Python."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.groups: list[str] = []
        self.progress: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[[Any], None]:
        if name.startswith("on"):
            return lambda _: None
        raise AttributeError(name)

    def onJobStart(self, event: Any) -> None:  # noqa: N802 - Spark's name
        self.groups.append(event.properties().getProperty("spark.jobGroup.id"))

    def onStageCompleted(self, event: Any) -> None:  # noqa: N802
        self.stages.append(event.stageInfo().name())

    def onOtherEvent(self, event: Any) -> None:  # noqa: N802
        if event.getClass().getName() == PROGRESS:
            self.progress.append(json.loads(event.progress().json()))

    class Java:
        implements = ("org.apache.spark.scheduler.SparkListenerInterface",)


@dataclass
class Seen:
    """Of the job, by each way; `log` are the lines of the event log."""

    jobs: list[dict[str, Any]]
    stages: list[dict[str, Any]]
    query: str
    listener: Listener
    folder: Path
    log: list[dict[str, Any]] = field(default_factory=list)

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["Event"].endswith(event)]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, postgres_dsn: str) -> Seen:
    folder, logs = tmp_path_factory.mktemp("job"), tmp_path_factory.mktemp("events")
    rows = [{"k": f"k{n}", "v": f"v{n}", "ts": 1_000 + n} for n in range(50)]
    for name in ("orders", "payments"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    conf = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": logs.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    store = {"postgres": {"dsn": postgres_dsn, "schema": "test_spark_ui"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(spark_home()))
        patch.chdir(folder)
        context = start_context("ui", conf, "local-cluster[2,1,1024]")
        try:
            java: Any = context._jsc
            until(lambda: java.sc().getExecutorIds().size() == 2)
            ensure_callback_server_started(context._gateway)
            listener = Listener()
            java.sc().addSparkListener(listener)
            spec = {**JOB["spec"], "stateStore": store, "trigger": {"maxBytesPerEpoch": "1Ki"}}
            result = run({**JOB, "spec": spec}, spark=context)
            assert result.rows_out == 50
            assert result.epochs > 2, "some of them have a watermark"
            until(lambda: len(listener.progress) == result.epochs)
            rest = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
            stages = until(lambda: json.loads(page(f"{rest}/stages?status=complete")))
            run_id = listener.progress[0]["runId"]
            address = f"{context.uiWebUrl}/StreamingQuery/statistics/?id={run_id}"
            java.sc().removeSparkListener(listener)
            seen = Seen(json.loads(page(f"{rest}/jobs")), stages, page(address), listener, logs)
        finally:
            context.stop()
    (log,) = [path for path in logs.iterdir() if path.is_file() and not path.name.endswith(".inprogress")]
    seen.log = [json.loads(line) for line in log.read_text().splitlines()]
    return seen


def test_an_epoch_is_a_job_with_a_group_to_cancel_and_a_description(seen: Seen) -> None:
    first = next(job for job in seen.jobs if job["jobGroup"] == "orders-payments epoch 1")
    assert first["description"] == "orders-payments: epoch 1, join"
    assert "orders-payments epoch 1" in seen.listener.groups


def test_stages_say_what_they_do(seen: Seen) -> None:
    group = {"orders-payments: read, inner interval join"}
    assert {stage["name"] for stage in seen.stages if "epoch 1," in stage["description"]} == group
    assert group <= set(seen.listener.stages)
    assert group <= {event["Stage Info"]["Stage Name"] for event in seen.logged("StageCompleted")}


def test_no_job_has_the_name_of_a_line_of_ours(seen: Seen) -> None:
    names = [stage["name"] for stage in seen.stages] + [job["name"] for job in seen.jobs]
    assert [name for name in names if " at " in name] == []


def test_a_listener_hears_the_figures_of_each_epoch(seen: Seen) -> None:
    heard = seen.listener.progress
    assert {epoch["name"] for epoch in heard} == {"orders-payments"}
    assert [epoch["batchId"] for epoch in heard] == list(range(1, len(heard) + 1))
    assert sum(epoch["numInputRows"] for epoch in heard) == 100
    assert sum(epoch["sink"]["numOutputRows"] for epoch in heard) == 50
    assert heard[0]["processedRowsPerSecond"] > 0
    sources = [source for epoch in heard for source in epoch["sources"]]
    written = sum(len(json.dumps({"k": f"k{n}", "v": f"v{n}", "ts": 1_000 + n})) for n in range(50)) * 2
    assert written <= sum(int(source["metrics"]["bytesRead"]) for source in sources) <= 1.5 * written, (
        "as read, with what separates records"
    )


def test_the_ui_has_a_page_with_charts_of_the_job(seen: Seen) -> None:
    assert "orders-payments" in seen.query
    charts = ("Input Rate", "Process Rate", "Global Watermark Gap", "Number Of Total State Rows")
    assert [chart for chart in charts if chart not in seen.query] == []
    assert re.search(r"<strong>\d+</strong>\s*completed batches", seen.query), seen.query[:3_000]


def test_the_event_log_has_the_query_from_its_start_to_its_end(seen: Seen) -> None:
    assert [len(seen.logged(f"Query{kind}Event")) for kind in ("Started", "Terminated")] == [1, 1]
    logged = [event["progress"] for event in seen.logged("QueryProgressEvent")]
    assert [epoch["batchId"] for epoch in logged] == [epoch["batchId"] for epoch in seen.listener.progress]
    assert (
        "exception" not in seen.logged("QueryTerminatedEvent")[0]
        or not seen.logged("QueryTerminatedEvent")[0]["exception"]
    )


def test_the_history_server_shows_the_page_after_the_job(seen: Seen, tmp_path: Path) -> None:
    port = free_port()
    options = f"-Dspark.history.fs.logDirectory={seen.folder.as_uri()} -Dspark.history.ui.port={port}"
    environment = {**os.environ, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1",
                   "SPARK_HISTORY_OPTS": options}  # fmt: skip
    command = [str(spark_home() / "bin/spark-class"), "org.apache.spark.deploy.history.HistoryServer"]
    server = ChildProcess(command, tmp_path / "log", environment)
    address = f"http://127.0.0.1:{port}"

    def listed_applications() -> list[dict[str, Any]]:
        assert server.running(), (tmp_path / "log").read_text()
        try:
            return list(json.loads(page(f"{address}/api/v1/applications")))
        except OSError:
            return []

    try:
        (application,) = until(listed_applications)
        queries = page(f"{address}/history/{application['id']}/StreamingQuery/")
        assert "orders-payments" in queries
        assert "FINISHED" in queries
    finally:
        server.stop()
