"""A real Spark standalone cluster on this machine: one master and several workers, each a JVM of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from joinery_devkit.environment import java_command
from joinery_devkit.processes import ChildProcess, deadline_after, free_port
from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.hosts.exchange_key import write_key

_START_SECONDS = 90.0

# What Spark's libraries need of their JVM: opened packages, and no comparison of names in certificates, for which Spark
# names no host. `spark-class` would set the same, but with settings of its own.
OPENED = [
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.lang", "java.nio", "java.util", "sun.nio.ch")
    ),
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
]
# What a Spark program logs when a driver does not admit it: the connection is closed while it still sends, or the
# driver answers so.
NOT_LET_IN = (
    "TransportClient(Factory)?: (Failed to send RPC|Exception while bootstrapping)|Unknown challenge message|"
    "Expected SaslMessage"
)


def spark_home() -> Path:
    """PySpark's own folder, which holds a whole Spark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EnvironmentProblem("PySpark is missing", todo="Install joinery-runtime[engine]")
    return Path(spec.origin).parent


class StandaloneCluster:
    """`workers` worker JVMs with `cores` cores and `memory` (Spark's notation) each; use it as a context manager.

    Drivers connect to `master_url` and have to know `secret`, which is in the `spark-defaults.conf` of
    `environment["SPARK_CONF_DIR"]`. With `tls` all of them speak TLS, with the key in the folder `directory`. A worker
    restarts an executor that is killed, as on any cluster.
    """

    def __init__(self, workers: int = 2, cores: int = 1, memory: str = "1g", *, tls: bool = False) -> None:
        self._workers_wanted, self._cores, self._memory, self._tls = workers, cores, memory, tls
        self._port, self._ui_port = free_port(), free_port()
        self.master_url = f"spark://127.0.0.1:{self._port}"
        self.directory = Path(tempfile.mkdtemp(prefix="joinery-spark-"))
        self.secret = secrets.token_hex(16)
        self._master: ChildProcess | None = None
        self._workers: list[ChildProcess] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def worker_pids(self) -> list[int]:
        """Return the pids of worker JVMs. Killing one is like losing its machine for good."""
        return [worker.pid for worker in self._workers if worker.running()]

    def executor_pids(self) -> list[int]:
        """Return the pids of the executor JVMs of all running applications."""
        return [executor.pid for executor in self._executor_processes()]

    def python_worker_pids(self) -> list[int]:
        """Return the pids of the Python processes that run tasks in the executors, including their parent daemons."""
        return [child.pid for executor in self._executor_processes() for child in _living_descendants(executor.pid)]

    def _executor_processes(self) -> list[psutil.Process]:
        executors: list[psutil.Process] = []
        for pid in self.worker_pids():
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(pid).children()
                executors += [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
        return executors

    def _start(self) -> None:
        self._write_settings()
        master = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._ui_port)]
        self._master = self._start_daemon("master", "org.apache.spark.deploy.master.Master", *master)
        size = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", str(self._cores), "--memory", self._memory]
        for index in range(self._workers_wanted):
            name = f"worker-{index}"
            where = ["--work-dir", str(self.directory / name), self.master_url]
            self._workers.append(self._start_daemon(name, "org.apache.spark.deploy.worker.Worker", *size, *where))
        self._wait_for_workers([self._master, *self._workers])

    def _start_daemon(self, name: str, main_class: str, *arguments: str) -> ChildProcess:
        # spark-class ends in `exec java`, so the pid is the JVM's.
        command = [str(spark_home() / "bin" / "spark-class"), main_class, *arguments]
        return ChildProcess(command, self.directory / f"{name}.log", self.environment)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the cluster's processes, and of a driver that starts as one of its own."""
        settings = {
            "SPARK_HOME": str(spark_home()),
            # This user's settings for another Spark must not leak in.
            "SPARK_CONF_DIR": str(self.directory / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # its life is too short for more
            "JAVA_HOME": str(Path(java_command()).resolve().parent.parent),
            "PYSPARK_PYTHON": sys.executable,
        }
        return {**os.environ, **settings}

    def _write_settings(self) -> None:
        settings = {"spark.authenticate": "true", "spark.authenticate.secret": self.secret}
        if self._tls:
            files = write_key(secrets.token_hex(32), self.directory)
            settings |= {
                "spark.ssl.rpc.enabled": "true",
                "spark.ssl.rpc.openSslEnabled": "true",
                "spark.ssl.rpc.privateKey": str(files.private_key),
                "spark.ssl.rpc.certChain": str(files.certificate),
            }
        else:
            settings["spark.network.crypto.enabled"] = "true"
        file = self.directory / "conf" / "spark-defaults.conf"
        file.parent.mkdir()
        file.touch(mode=0o600)
        file.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))

    def _wait_for_workers(self, processes: list[ChildProcess]) -> None:
        deadline = deadline_after(_START_SECONDS)
        while self._alive_workers() < self._workers_wanted:
            ended = [process for process in processes if not process.running()]
            if ended or time.monotonic() > deadline:
                tails = "\n".join(f"{process.log.name}:\n{process.log_tail()}" for process in ended or processes)
                raise EnvironmentProblem("The Spark standalone cluster does not start", facts=tails)
            time.sleep(0.05)

    def _alive_workers(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ui_port}/json/", timeout=5) as page:
                status: dict[str, Any] = json.load(page)
        except (OSError, ValueError):
            # No connection, or not JSON yet: the page is up before its parts are.
            return 0
        return sum(worker["state"] == "ALIVE" for worker in status["workers"])

    def _stop(self) -> None:
        # Executors are children of the workers, not of this process: those that outlive their worker are killed here.
        orphans = [child for pid in self.worker_pids() for child in _living_descendants(pid)]
        for daemon in [*self._workers, *([self._master] if self._master else [])]:
            daemon.stop()
        for process in orphans:
            # psutil does not signal a pid that belongs to another process by now.
            with suppress(psutil.NoSuchProcess):
                process.kill()
                process.wait(10)
        self._workers, self._master = [], None
        shutil.rmtree(self.directory, ignore_errors=True)


def _living_descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []
