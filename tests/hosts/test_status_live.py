"""A running job observed over HTTP, as the operator, Prometheus and the kubelet do, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from connectors.kafka.kafka_bench import eventually
from e2e.jobs import Job, fresh_name, order, payment, produce, unbounded_job
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.processes import free_port
from joinery_devkit.spark_cluster import StandaloneCluster
from joinery_runtime.job.crd import DriverStatus, Ending
from joinery_runtime.state.postgres import PostgresStore

pytestmark = pytest.mark.services

PATIENCE_S = 480.0  # a start takes a minute on a busy machine
MAIN = [sys.executable, "-c", "from joinery_runtime.cli import main; main()"]


@dataclass(frozen=True)
class Run:
    """`joinery run` as in a pod."""

    process: subprocess.Popen[str]
    port: int
    ending_file: Path

    def get(self, page: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{page}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    @property
    def status(self) -> DriverStatus:
        return DriverStatus.model_validate_json(self.get("/status")[1])

    def until(self, holds: Callable[[DriverStatus], Any]) -> DriverStatus:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert self.process.poll() is None, "the job has ended"
            try:
                status = self.status
                if holds(status):
                    return status
            except urllib.error.URLError:
                status = DriverStatus()  # not up yet
            assert time.monotonic() < deadline, status
            time.sleep(0.2)

    @property
    def ending(self) -> Ending:
        return Ending.model_validate_json(self.ending_file.read_bytes())


@contextmanager
def started(path: Path, folder: Path, *options: str, environment: Mapping[str, str] = os.environ) -> Iterator[Run]:
    port, ending = free_port(), folder / "ending"
    environment = {**environment, "JOINERY_ENDING_FILE": str(ending), "JOINERY_REVISION": "abc123"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*MAIN, "run", str(path), "--status-port", str(port), *options],
            stdout=log,
            stderr=log,
            text=True,
            env=environment,
        )
    with process:
        try:
            yield Run(process, port, ending)
        finally:
            process.kill()


@pytest.fixture
def unbounded(kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path) -> tuple[Job, Path]:
    """A job that goes on for ever and checkpoints often."""
    store = f'{{postgres: {{dsn: "{postgres_dsn}", schema: status_live}}, checkpointInterval: 500ms}}'
    return unbounded_job(kafka_broker, store, tmp_path)


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of_one_moment(run: Run) -> dict[tuple[str, Any], float] | None:
    """The metrics; None if an epoch was committed between two of them."""
    metrics = samples(run.get("/metrics")[1])
    counted = metrics["joinery_epoch_seconds_count", ()], metrics["joinery_epochs_committed_total", ()]
    return metrics if counted[0] == counted[1] else None


def test_a_running_job_tells_where_it_stands_and_goes_on_counting_after_a_restart(
    unbounded: tuple[Job, Path], postgres_dsn: str, tmp_path: Path
) -> None:
    job, path = unbounded
    orders, payments = f"{job.name}.orders", f"{job.name}.payments"
    produce(job.bootstrap, orders, [order(7)] * 3 + [order(8)] * 2 + [order(9)])
    produce(job.bootstrap, payments, [payment(7)])
    with started(path, tmp_path, "--master", "local[2,4]") as run:
        first = run.until(lambda s: s.ready and s.rows_in == 7 and s.rows_out == 3)
        assert run.get("/healthz") == run.get("/readyz") == (200, "ok\n")
        assert (first.revision, first.job_generation) == ("abc123", 1)
        # The payment's row has expired by now: no later order can match it.
        produce(job.bootstrap, orders, [order(9)])
        hot = run.until(lambda s: s.rows_in == 8 and s.hottest_keys)
        hottest = hot.hottest_keys[0]
        assert (hottest.key, hottest.rows) == ("id=o7", 3)
        assert [(i.name, i.lag, i.ended, i.idle) for i in hot.inputs] == [
            ("orders", 0, False, False),
            ("payments", 0, False, False),
        ]
        assert hot.inputs[0].watermark is not None
        assert hot.state_bytes
        assert (hot.last_error, hot.executors, hot.late) == (None, None, 0)
        metrics = eventually(lambda: of_one_moment(run))
        assert metrics["joinery_info", (("name", job.name), ("revision", "abc123"), ("version", "0.1.0"))] == 1
        assert metrics["joinery_rows_in_total", (("input", "orders"),)] == 7
        assert metrics["joinery_state_rows", ()] == 7
        assert metrics["joinery_epochs_committed_total", ()] >= 2
        assert metrics["joinery_lag_records", (("input", "orders"),)] == 0
        assert run.get("/nothing")[0] == 404
        run.process.terminate()
        assert run.process.wait(PATIENCE_S) == 0
        assert run.ending == Ending(outcome="stopped")

    store = PostgresStore(postgres_dsn, "status_live")
    store.create_savepoint(job.name, "pin")
    store.close()
    with started(path, tmp_path, "--master", "local[2,4]") as run:
        again = run.until(lambda s: s.ready and s.last_savepoint)
        assert (again.rows_in, again.rows_out, again.committed, again.job_generation) == (8, 3, 0, 2)
        assert again.last_savepoint is not None
        assert (again.last_savepoint.name, again.last_savepoint.epoch) == ("pin", again.epoch)


@pytest.mark.slow
def test_an_epoch_that_was_planned_before_an_edit_is_none_of_the_edited_jobs_own(
    unbounded: tuple[Job, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, path = unbounded
    orders = f"{job.name}.orders"
    produce(job.bootstrap, orders, [order(7), order(8)])
    # The second one: the first epoch of an edited job is planned again.
    path.write_text(path.read_text().replace("  joins:", "  trigger: {maxRecordsPerEpoch: 1}\n  joins:"))
    monkeypatch.setenv("JOINERY_FAULT", "before-commit@2")
    with started(path, tmp_path, "--master", "local[2,4]") as killed:
        assert killed.process.wait(PATIENCE_S) == -signal.SIGKILL
    monkeypatch.delenv("JOINERY_FAULT")
    path.write_text(path.read_text().replace(", {column: payments.paid}", ""))
    with started(path, tmp_path, "--master", "local[2,4]") as run:
        settled = run.until(lambda s: s.ready)
        assert settled.committed == (settled.epoch or 0) - 2
        produce(job.bootstrap, orders, [order(9)])
        own = run.until(lambda s: s.rows_in == 3)
        assert own.committed == (own.epoch or 0) - 2 >= 1


def test_a_driver_whose_store_is_away_is_alive_and_says_so_and_stops_at_once(tmp_path: Path) -> None:
    store = f'{{postgres: {{dsn: "postgresql://nobody@127.0.0.1:{free_port()}/none"}}}}'
    job = Job(fresh_name(), "127.0.0.1:9", store, f'{{file: {{path: "{tmp_path / "out"}"}}}}')
    with started(job.write(tmp_path), tmp_path) as run:
        status = run.until(lambda s: s.last_error)
        assert "The state store is not available (host 127.0.0.1" in (status.last_error or "")
        assert not status.ready
        assert run.get("/healthz")[0] == 200
        assert run.get("/readyz") == (503, "the driver has not recovered\n")
        run.process.terminate()
        assert run.process.wait(PATIENCE_S) == 0
        assert run.ending == Ending(outcome="stopped")
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [event["event"] for event in events][-1] == "ended"
    assert events[-1]["reason"] == "stopped"


def test_a_stop_while_spark_starts_ends_it_at_once(unbounded: tuple[Job, Path], tmp_path: Path) -> None:
    _, path = unbounded
    slow = tmp_path / "slow-java" / "bin" / "java"
    slow.parent.mkdir(parents=True)
    # As Spark's JVM, it goes when its parent has gone.
    slow.write_text(f"#!/bin/sh\ntouch {tmp_path / 'asked'}\nexec cat > /dev/null\n")
    slow.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(tmp_path / "slow-java"))
        with started(path, tmp_path) as run:
            deadline = time.monotonic() + PATIENCE_S
            while not (tmp_path / "asked").exists():
                assert time.monotonic() < deadline
                time.sleep(0.05)
            began = time.monotonic()
            run.process.terminate()
            assert run.process.wait(PATIENCE_S) == 0
            assert time.monotonic() - began < 30
            assert run.ending == Ending(outcome="stopped")
            assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_a_stop_ends_an_epoch_that_waits_for_executors_and_leaves_its_plan(
    unbounded: tuple[Job, Path], postgres_dsn: str, tmp_path: Path
) -> None:
    job, path = unbounded
    produce(job.bootstrap, f"{job.name}.orders", [order(1)])
    with (
        StandaloneCluster(workers=0) as cluster,
        started(path, tmp_path, "--master", cluster.master_url, environment=cluster.environment) as run,
    ):
        status = run.until(lambda s: s.executors == 0 and s.waiting and s.inputs and s.inputs[0].lag)
        assert (status.ready, status.committed, status.waiting.system) == (False, 0, "executors")
        assert run.get("/readyz")[0] == 503
        assert "No executor runs" in run.get("/readyz")[1]
        run.process.terminate()
        assert run.process.wait(PATIENCE_S) == 0
        assert run.ending == Ending(outcome="stopped")
    store = PostgresStore(postgres_dsn, "status_live")
    record = store.record(job.name)
    store.close()
    assert record is not None
    assert record.plan is not None


@pytest.fixture
def without_a_broker(postgres_dsn: str, tmp_path: Path) -> Path:
    store = f'{{postgres: {{dsn: "{postgres_dsn}", schema: status_live}}}}'
    job = Job(fresh_name(), f"127.0.0.1:{free_port()}", store, f'{{file: {{path: "{tmp_path / "out"}"}}}}')
    return job.write(tmp_path)


@pytest.mark.slow
def test_a_driver_whose_broker_is_away_waits_and_says_so_and_stops(without_a_broker: Path, tmp_path: Path) -> None:
    with started(without_a_broker, tmp_path) as run:
        status = run.until(lambda s: s.waiting)
        assert status.waiting is not None
        assert status.waiting.system == "input"
        assert "the Kafka broker does not answer" in status.waiting.reason
        assert run.get("/healthz")[0] == 200
        assert 'joinery_waiting_seconds{system="input"}' in run.get("/metrics")[1]
        run.process.terminate()
        assert run.process.wait(PATIENCE_S) == 0
        assert run.ending == Ending(outcome="stopped")


def test_a_failure_says_that_the_same_again_fails_again(without_a_broker: Path, tmp_path: Path) -> None:
    without_a_broker.write_text(without_a_broker.read_text().replace("int64", "int65"))
    with started(without_a_broker, tmp_path) as run:
        assert run.process.wait(PATIENCE_S) != 0
        assert (run.ending.outcome, run.ending.kind, run.ending.retry) == ("failed", "JobError", False)
        assert run.ending.error
