"""What PySpark's daemon loads before it forks workers, and what a worker is spared."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import psutil
import pyspark
import pytest

from joinery_runtime.hosts.spark import DEFAULT_CONF, WORKER_ENVIRONMENT

MODULE = DEFAULT_CONF["spark.python.daemon.module"]

THREADS_PROGRAM = f"""
import os, sys
import {MODULE} as daemon
daemon.load()
threads = [open(f"/proc/self/task/{{task}}/comm").read().strip() for task in os.listdir("/proc/self/task")]
assert len(threads) > 1, "or this counts the wrong threads"
assert not set(threads) - {{threads[0], "jemalloc_bg_thd", "polars-ooc-clea"}}, threads
ours = {{"joinery_runtime.hosts.stores", "joinery_runtime.hosts.worker_builder"}}
assert ours | {{"numpy.ma", "polars", "pyarrow.compute", "pyspark.worker"}} <= set(sys.modules)
"""


def test_none_of_its_threads_are_missed_in_a_fork() -> None:
    """What they are is told in the module."""
    subprocess.run([sys.executable, "-c", THREADS_PROGRAM], check=True, env=WORKER_ENVIRONMENT)


INSTALLED = f"""
import sys
import {MODULE} as daemon
daemon.load()
import pyspark, py4j
assert ".zip" not in pyspark.__file__ + py4j.__file__, (pyspark.__file__, py4j.__file__)
assert [entry for entry in sys.path if entry.endswith(".zip")][-2:] == sys.path[-2:], sys.path
"""


def test_installed_packages_come_before_the_archives_that_spark_puts_first() -> None:
    """Which are for who has nothing else; without them compiled, each executor's start takes a second longer."""
    archives = sorted(Path(pyspark.__file__).parent.glob("python/lib/*.zip"))
    assert len(archives) == 2
    environment = WORKER_ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(map(str, archives))}
    subprocess.run([sys.executable, "-c", INSTALLED], check=True, env=environment)


WORKER = """
import gc
from contextlib import nullcontext
from pyspark import SparkFiles
from joinery_runtime.hosts.spark_tasks import WorkerSetup, process_for
SparkFiles._is_running_on_worker, SparkFiles._root_directory = True, "."
process_for(WorkerSetup("any", nullcontext, 1), 2)
assert gc.get_freeze_count() > 50_000, "every task's end would go over all that was imported"
assert gc.get_threshold()[0] > 100_000, "a call of the Kafka client gives thousands of objects that die together"
"""


def test_the_collector_stays_out_of_a_workers_tasks() -> None:
    subprocess.run([sys.executable, "-c", WORKER], check=True)


@pytest.mark.parametrize("closed", ["before the worker's first byte", "in the middle of a task"])
def test_a_worker_whose_task_spark_has_cancelled_says_nothing(closed: str) -> None:
    """PySpark's own daemon prints the stack of a BrokenPipeError."""
    environment = WORKER_ENVIRONMENT | {
        "PYTHON_WORKER_FACTORY_SECRET": "secret",
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",  # Spark sets both
    }
    with subprocess.Popen(
        [sys.executable, "-m", MODULE, "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        (port,) = struct.unpack("!i", daemon.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port)) as spark:
            (pid,) = struct.unpack("!i", spark.recv(4, socket.MSG_WAITALL))
            worker = psutil.Process(pid)
            if closed == "in the middle of a task":
                spark.sendall(struct.pack("!i", 6) + b"secret")
                spark.recv(6, socket.MSG_WAITALL)  # its "ok"
                spark.sendall(struct.pack("!i", 0))  # the number of the partition, and no more
            spark.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
        psutil.wait_procs([worker], timeout=60)
        daemon.stdin.close()  # so Spark ends a daemon
        assert daemon.stderr.read().decode() == ""
