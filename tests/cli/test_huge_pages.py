"""Linux gives no pages of 2 MiB to the processes that run epochs (decision 131)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from joinery_runtime.hosts.spark import DEFAULT_CONF, WORKER_ENVIRONMENT

pytestmark = pytest.mark.skipif(
    "THP_enabled" not in Path("/proc/self/status").read_text(), reason="this kernel does not say who gets huge pages"
)

DAEMON = DEFAULT_CONF["spark.python.daemon.module"]
ASKED = "import sys; sys.stdout.write(open('/proc/self/status').read())"
RUN = f"""
import subprocess, sys
from contextlib import nullcontext
from joinery_runtime.cli import app, run
app.start_ahead = lambda _: nullcontext()
run.run_job = lambda *_, **__: subprocess.run([sys.executable, "-c", {ASKED!r}], check=True)
from joinery_runtime.cli import main
main(["run", "--local", "--status-port", "0", sys.argv[1]])
"""


def test_a_run_and_what_it_starts_get_none(job_file: Path) -> None:
    printed = subprocess.run([sys.executable, "-c", RUN, job_file], check=True, stdout=subprocess.PIPE, text=True)
    assert "THP_enabled:\t0" in printed.stdout.splitlines()


def test_a_worker_of_spark_gets_none() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", DAEMON, "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | WORKER_ENVIRONMENT | {"PYTHON_WORKER_FACTORY_SECRET": "secret"},
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdin is not None
        daemon.stdout.read(4)  # its port: workers are forked from now on
        status = Path(f"/proc/{daemon.pid}/status").read_text()
        daemon.stdin.close()  # so Spark ends a daemon
        psutil.wait_procs([psutil.Process(daemon.pid)], timeout=60)
    assert "THP_enabled:\t0" in status.splitlines()
