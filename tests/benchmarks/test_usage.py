"""What the benchmark takes a process for, and that its CPU seconds count once, however it ends."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest
from bench.usage import CpuByKind, CpuMeter, ProcessTimes, kind_of

ROOT, JAVA, DAEMON, WORKER, DRIVER = 1, 20, 30, 31, 10


@pytest.mark.parametrize(
    ("name", "command", "kind"),
    [
        ("java", "/usr/bin/java -Xmx512m -cp kafka/*.jar kafka.Kafka server.properties", "broker"),
        ("java", "/usr/bin/java -cp pyspark/jars/* org.apache.spark.deploy.SparkSubmit pyspark-shell", "java"),
        ("java", "java -cp jars org.apache.spark.executor.CoarseGrainedExecutorBackend --cores 1", "java"),
        ("java", "java -cp jars org.apache.spark.deploy.worker.Worker spark://127.0.0.1:7077", "java"),
        ("python", "/venv/bin/python -m joinery_runtime.hosts.worker_daemon pyspark.worker", "workers"),
        ("python3.11", "python3 -m pyspark.daemon", "workers"),
        ("python", "/venv/bin/python /venv/bin/joinery run job.yaml --master local[2,4]", "driver"),
        ("bash", "bash pyspark/bin/spark-class org.apache.spark.deploy.SparkSubmit", "driver"),
        ("postgres", "postgres: joinery joinery [local] COMMIT", "postgres"),
        ("initdb", "/venv/pgserver/bin/initdb -D data", "postgres"),
    ],
)
def test_what_a_process_is(name: str, command: str, kind: str) -> None:
    assert kind_of(name, command.split()) == kind


def looked(*looks: tuple[dict[int, tuple[int, str, float, float]], float]) -> dict[str, float]:
    """The seconds by kind after these looks: parent, kind, own seconds and those of ended children by pid; and those of
    the root's ended children."""
    cpu = CpuByKind(ROOT)
    for processes, ended in looks:
        times = [
            (ProcessTimes(pid, parent, own, children), kind) for pid, (parent, kind, own, children) in processes.items()
        ]
        cpu.look(times, ended)
    return {kind: seconds for kind, seconds in cpu.seconds.items() if seconds}


def test_each_process_counts_as_what_it_is() -> None:
    assert looked(
        ({DRIVER: (ROOT, "driver", 1.0, 0.0), JAVA: (DRIVER, "java", 2.0, 0.0)}, 0.0),
        ({DRIVER: (ROOT, "driver", 1.5, 0.0), JAVA: (DRIVER, "java", 5.0, 0.0)}, 0.0),
    ) == {"driver": 1.5, "java": 5.0}


def test_a_process_that_becomes_another_keeps_what_it_was_before() -> None:
    """A script of Spark's that ends in `exec java`."""
    cpu_by_kind = looked(({JAVA: (ROOT, "driver", 0.5, 0.0)}, 0.0), ({JAVA: (ROOT, "java", 3.0, 0.0)}, 0.0))
    assert cpu_by_kind == {"driver": 0.5, "java": 2.5}


JAVA_ALONE = {JAVA: (ROOT, "java", 9.0, 0.0)}
DAEMON_WITH_WORKER = {**JAVA_ALONE, DAEMON: (JAVA, "workers", 1.0, 0.0), WORKER: (DAEMON, "workers", 4.0, 0.0)}


@pytest.mark.parametrize(
    "after",
    [
        # The worker's last 0.5 s come with its end.
        [({**JAVA_ALONE, DAEMON: (JAVA, "workers", 1.0, 4.5)}, 0.0)],
        # The look after that in which the worker is missing tells of them.
        [
            ({**JAVA_ALONE, DAEMON: (JAVA, "workers", 1.0, 0.0)}, 0.0),
            ({**JAVA_ALONE, DAEMON: (JAVA, "workers", 1.0, 4.5)}, 0.0),
        ],
        # Both end between two looks.
        [({JAVA: (ROOT, "java", 9.0, 5.5)}, 0.0)],
        # The worker ends, then its daemon, before anybody has waited for the worker.
        [
            ({**JAVA_ALONE, DAEMON: (JAVA, "workers", 1.0, 0.0)}, 0.0),
            ({JAVA: (ROOT, "java", 9.0, 0.0)}, 0.0),
            ({JAVA: (ROOT, "java", 9.0, 5.5)}, 0.0),
        ],
    ],
)
def test_a_worker_that_ends_counts_once_and_with_its_last_moments(after: list[object]) -> None:
    assert looked((DAEMON_WITH_WORKER, 0.0), *after) == {"java": 9.0, "workers": 5.5}  # type: ignore[arg-type]


def test_everything_counts_once_when_all_processes_have_ended() -> None:
    assert looked((DAEMON_WITH_WORKER, 0.0), ({}, 14.0), ({}, 14.0)) == {"java": 9.0, "workers": 5.0}


def test_an_orphan_counts_once_though_another_process_waits_for_it() -> None:
    """Postgres leaves the program that has started it."""
    cpu_by_kind = looked(
        ({DRIVER: (ROOT, "driver", 1.0, 0.0), 40: (DRIVER, "postgres", 0.2, 0.0), 41: (40, "postgres", 0.3, 0.0)}, 0.0),
        ({DRIVER: (ROOT, "driver", 1.0, 0.2), 41: (ROOT, "postgres", 0.7, 0.0)}, 0.0),
        ({DRIVER: (ROOT, "driver", 1.0, 0.2)}, 0.7),
    )
    assert cpu_by_kind == pytest.approx({"driver": 1.0, "postgres": 0.9})


def test_a_short_life_that_no_look_saw_counts_as_its_siblings() -> None:
    cpu_by_kind = looked((DAEMON_WITH_WORKER, 0.0), ({**DAEMON_WITH_WORKER, DAEMON: (JAVA, "workers", 1.0, 0.3)}, 0.0))
    assert cpu_by_kind == pytest.approx({"java": 9.0, "workers": 5.3})


def test_time_of_a_child_that_nobody_waits_for_stays_counted() -> None:
    assert looked((DAEMON_WITH_WORKER, 0.0), (JAVA_ALONE, 0.0), (JAVA_ALONE, 0.0)) == {"java": 9.0, "workers": 5.0}


BURN = "import time\nwhile time.process_time() < 0.3: pass"
PARENT = f"import subprocess, sys\nfor _ in range(2): subprocess.run([sys.executable, '-c', {BURN!r}])"


def test_a_list_that_misses_a_process_does_not_count_it_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when its parent ends while the list is made."""
    child = subprocess.Popen(
        [sys.executable, "-c", f"{BURN}\nprint('burnt', flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"burnt\n"
        meter = CpuMeter()
        before = meter.seconds()["driver"]
        with monkeypatch.context() as patch:
            patch.setattr(psutil.Process, "children", lambda *_, **__: [])
            meter._list_at = 0.0
            meter.seconds()
        meter._list_at = 0.0
        assert meter.seconds()["driver"] - before < 0.2
        child.communicate(b"\n")


def test_processes_that_come_and_go_below_this_one_are_measured() -> None:
    meter = CpuMeter()
    before = meter.seconds()["driver"]
    subprocess.run([sys.executable, "-c", PARENT], check=True)
    spent = meter.seconds()["driver"] - before
    assert 0.6 <= spent < 2.0
