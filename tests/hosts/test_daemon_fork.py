"""A fork of the driver that becomes PySpark's daemon. Each driver here is a process of its own: pytest has threads."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from joinery_runtime.hosts.daemon_fork import PROCESS_NAME
from joinery_runtime.hosts.spark import DEFAULT_CONF

MODULE = DEFAULT_CONF["spark.python.daemon.module"]

DRIVER = f"""
import os, socket, struct, subprocess, sys, threading
from pathlib import Path
from joinery_runtime.hosts import daemon_fork
from joinery_runtime.hosts.daemon_fork import ADDRESS

folder = Path(sys.argv[1])

def daemon(**environment):
    secret = {{"PYTHON_WORKER_FACTORY_SECRET": "secret", "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"}}
    return subprocess.Popen(
        [sys.executable, "-m", "{MODULE}", "pyspark.worker"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | secret | environment, cwd=folder,
    )

def worker_of(started):
    (port,) = struct.unpack("!i", started.stdout.read(4))
    with socket.create_connection(("127.0.0.1", port)) as spark:
        (pid,) = struct.unpack("!i", spark.recv(4, socket.MSG_WAITALL))
        proc = Path("/proc", str(pid))
        name, place = (proc / "comm").read_text().strip(), (proc / "cwd").readlink()
        print(name, place == folder.resolve(), flush=True)

def end(started):
    started.stdin.close()  # so Spark ends a daemon
    print(started.wait(60), started.stdout.read(), flush=True)
"""


def _outputs_of(program: str, folder: Path) -> list[str]:
    process = subprocess.run(
        [sys.executable, "-c", DRIVER + program, str(folder)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert process.stderr == ""
    return process.stdout.splitlines()


def test_the_process_that_spark_starts_becomes_a_fork_of_the_driver(tmp_path: Path) -> None:
    program = """
print("once")  # what the driver has printed stays with it
with daemon_fork.daemon_fork(folder):
    for _ in range(2):  # Spark starts another daemon where one has ended
        started = daemon()
        worker_of(started)
        end(started)
print(ADDRESS in os.environ)
"""
    assert _outputs_of(program, tmp_path) == ["once", *[f"{PROCESS_NAME} True", "0 b''"] * 2, "False"]


def test_the_process_that_spark_starts_is_the_daemon_where_nobody_takes_it(tmp_path: Path) -> None:
    program = """
started = daemon(**{ADDRESS: str(folder / "nobody")})
worker_of(started)
end(started)
"""
    assert _outputs_of(program, tmp_path)[0] != f"{PROCESS_NAME} True"


def test_another_python_is_declined(tmp_path: Path) -> None:
    program = """
with daemon_fork.daemon_fork(folder):
    daemon_fork._python = lambda: ["another"]
    print(daemon_fork.hand_over(os.environ[ADDRESS]))
"""
    assert _outputs_of(program, tmp_path) == ["False"]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("threading.Thread(target=threading.Event().wait, daemon=True).start()", id="a thread of Python's"),
        pytest.param("import polars; polars.DataFrame({'a': range(100_000)}).sort('a')", id="a pool of Polars"),
        pytest.param(
            "import pyarrow.compute as pc, pyarrow as pa\npa.table({'a': range(1_000_000)}).filter(pc.field('a') > 3)",
            id="a pool of Arrow's",
        ),
        pytest.param("folder /= 'a' * 120", id="a folder too deep for a socket"),
    ],
)
def test_there_is_no_fork_where_it_could_hang(program: str, tmp_path: Path) -> None:
    program += """
with daemon_fork.daemon_fork(folder):
    print(ADDRESS in os.environ)
"""
    assert _outputs_of(program, tmp_path) == ["False"]


def test_a_parked_thread_does_not_matter(tmp_path: Path) -> None:
    program = """
parked = threading.Thread(target=threading.Event().wait, daemon=True)
parked.start()
with daemon_fork.daemon_fork(folder, parked):
    started = daemon()
    worker_of(started)
    end(started)
"""
    assert _outputs_of(program, tmp_path)[0] == f"{PROCESS_NAME} True"


def test_the_fork_ends_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    program = """
with daemon_fork.daemon_fork(folder):
    started = daemon()
    worker_of(started)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER + program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline().decode() == f"{PROCESS_NAME} True\n"
        children = psutil.Process(driver.pid).children(recursive=True)
        assert len(children) >= 3, "the fork, the process that Spark would start, the daemon, for a moment its worker"
        driver.send_signal(signal.SIGKILL)
    assert psutil.wait_procs(children, timeout=60)[1] == []
