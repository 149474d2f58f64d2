"""A context with executors of its own, and what they are seen to do."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark import SparkContext

from joinery_devkit.spark_cluster import spark_home
from joinery_runtime.hosts.spark import start_context, stop_context

SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.shuffle.readHostLocalDisk": "false",  # executors of one machine would read each other's files
}
NATIVE_LIBRARY = "netty_tcnative"


@contextmanager
def started(
    master: str, environment: dict[str, str], warn: Callable[[str], None], **conf: str
) -> Iterator[SparkContext]:
    """A context in a Java process of its own."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.delenv("_SPARK_AUTH_SECRET", raising=False)  # of an earlier driver of this process
        patch.setattr(SparkContext, "_gateway", None)
        patch.setattr(SparkContext, "_jvm", None)
        context = start_context("exchange", SETTINGS | conf, master, None, warn)
        gateway = SparkContext._gateway
        yield context
        stop_context(context)
        gateway.shutdown()
        gateway.proc.stdin.close()  # its JVM ends with it
        gateway.proc.wait()


def on_this_machine(warnings: list[str], **conf: str) -> Any:
    return started("local-cluster[2,1,512]", {"SPARK_HOME": str(spark_home())}, warnings.append, **conf)


def exchanges(context: SparkContext) -> bool:
    """Whether a shuffle between all executors brings everything over."""
    pairs = context.parallelize(range(8), 4).map(lambda number: (number % 3, bytes(300_000)))
    return dict(pairs.groupByKey(2).mapValues(lambda blocks: sum(map(len, blocks))).collect()) == {
        0: 900_000,
        1: 900_000,
        2: 600_000,
    }


def command_lines() -> dict[psutil.Process, str]:
    """What this process has started, and what that has, with their arguments; without those that have ended."""
    lines: dict[psutil.Process, str] = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a zombie counts as one
            lines[process] = " ".join(process.cmdline())
    return lines


def executors() -> list[psutil.Process]:
    return [process for process, line in command_lines().items() if "CoarseGrainedExecutorBackend" in line]


def block_ports() -> list[int]:
    """The ports at which executors listen: each at one, for its blocks."""
    ports = [at.laddr.port for executor in executors() for at in executor.net_connections() if at.status == "LISTEN"]
    assert len(ports) == 2
    return ports


def trusting(certificate: Path) -> ssl.SSLContext:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(certificate)
    return client


def native(process: psutil.Process) -> bool:
    return NATIVE_LIBRARY in Path(f"/proc/{process.pid}/maps").read_text()
