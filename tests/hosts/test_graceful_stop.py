"""`joinery run` as a process: a signal ends it after the running epoch, and nothing is pending then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from e2e.jobs import Job, order, payment, produce, unbounded_job
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_runtime.hosts.daemon_fork import PROCESS_NAME
from joinery_runtime.state.postgres import PostgresStore

pytestmark = pytest.mark.services


@pytest.fixture
def unbounded(kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path) -> tuple[Job, Path]:
    """A job that goes on for ever."""
    store = f'{{postgres: {{dsn: "{postgres_dsn}", schema: graceful_stop}}}}'
    return unbounded_job(kafka_broker, store, tmp_path)


@pytest.mark.parametrize(
    "how",
    [
        "SIGTERM to the driver",
        "SIGTERM while Spark starts",
        pytest.param("Ctrl-C to everybody in the terminal", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_the_job_in_order(
    unbounded: tuple[Job, Path], postgres_dsn: str, how: str, tmp_path: Path
) -> None:
    job, path = unbounded
    command = [sys.executable, "-c", "from joinery_runtime.cli import main; main()", "run", str(path)]
    environment = os.environ | ({"JOINERY_WAIT_FOR_SPARK": ""} if how == "SIGTERM while Spark starts" else {})
    log = tmp_path / "stderr"
    with log.open("w") as stderr:
        driver = subprocess.Popen(
            [*command, "--master", "local[2,4]"],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
            env=environment,
        )
    with driver:
        try:
            lines = _events(driver)
            last = _feed_until_epochs(job, lines, 3)
            forks = [
                child for child in psutil.Process(driver.pid).children(recursive=True) if name_of(child) == PROCESS_NAME
            ]
            if how != "SIGTERM while Spark starts":
                assert len(forks) == 3, "a fork of the driver is the daemon, and has a worker"
            if how == "Ctrl-C to everybody in the terminal":
                os.killpg(driver.pid, signal.SIGINT)
            else:
                driver.terminate()
            events = [last, *lines]
            assert driver.wait(60) == 0, log.read_text()
        finally:
            driver.kill()
    assert events[-1]["event"] == "ended"
    assert events[-1]["reason"] == "stopped"
    assert log.read_text() == ""
    assert psutil.wait_procs(forks, timeout=60)[1] == []
    store = PostgresStore(postgres_dsn, "graceful_stop")
    record = store.record(job.name)
    store.close()
    assert record is not None
    assert record.epoch == max(event["epoch"] for event in events if event["event"] == "epoch")


def _events(driver: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert driver.stdout is not None
    for line in driver.stdout:
        yield json.loads(line)


def _feed_until_epochs(job: Job, events: Iterator[dict[str, Any]], epoch_count: int) -> dict[str, Any]:
    """Feeds the job until it has told of that many epochs, and once more: an epoch is likely to run. Returns the last
    of them."""
    seen = 0
    for number, event in enumerate(events, start=1):
        seen += event["event"] == "epoch"
        produce(job.bootstrap, f"{job.name}.orders", [order(number)])
        produce(job.bootstrap, f"{job.name}.payments", [payment(number)])
        if seen == epoch_count:
            return event
    raise AssertionError("the job has ended by itself")


@pytest.mark.parametrize("times", [1, pytest.param(100, marks=pytest.mark.slow)])
def test_ctrl_c_while_java_starts_leaves_no_process_and_no_word_of_java(tmp_path: Path, times: int) -> None:
    """To everybody in the terminal; also by somebody without patience, whose second one ends the driver at once."""
    for side in ("orders", "payments"):
        (tmp_path / side).write_text("")
    columns = "[{name: k, type: string}, {name: ts, type: timestamp}]"
    inputs = [
        f"{{name: {side}, file: {{path: {side}}}, format: json, schema: {columns}, eventTime: ts}}"
        for side in ("orders", "payments")
    ]
    (tmp_path / "job.yaml").write_text(f"""
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: cut-short}}
spec:
  inputs: [{", ".join(inputs)}]
  joins: [{{right: payments, keys: {{orders.k: payments.k}}, interval: {{of: orders, lower: 0, upper: 10ms}}}}]
  output: {{file: {{path: out}}}}
  stateStore: {{memory: {{}}}}
""")
    command = [sys.executable, "-m", "joinery_runtime", "run", str(tmp_path / "job.yaml"), "--master", "local[2]"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as driver:
        own = psutil.Process(driver.pid)
        while "java" not in map(name_of, started := own.children(recursive=True)):
            assert driver.poll() is None
        for _ in range(times):
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGINT)
                time.sleep(0.01)
        out, err = driver.communicate(timeout=60)  # until nobody has them open any more
    assert (driver.returncode, err) == (0 if times == 1 else -signal.SIGINT, "")
    assert times > 1 or json.loads(out.splitlines()[-1])["reason"] == "stopped"
    psutil.wait_procs(started, timeout=60)
    assert [process for process in started if process.is_running()] == []


def name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""
