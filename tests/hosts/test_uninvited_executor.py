"""A real Spark with executors of its own: who does not know the application's secret is not let in."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark import SparkContext

from joinery_devkit.environment import java_command
from joinery_devkit.spark_cluster import NOT_LET_IN, OPENED, spark_home
from joinery_runtime.hosts.spark import start_context, stop_context

ENV_SECRET = "_SPARK_AUTH_SECRET"  # in which Spark passes the secret to the processes that it starts

pytestmark = [pytest.mark.services, pytest.mark.slow]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkContext]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(spark_home()))
        # Only what the driver is started with here, not what an earlier one of this process left behind: its JVM stays.
        patch.delenv(ENV_SECRET, raising=False)
        patch.setattr(SparkContext, "_gateway", None)
        patch.setattr(SparkContext, "_jvm", None)
        context = start_context(
            "guarded", {"spark.executor.memory": "512m", "spark.ui.enabled": "true"}, "local-cluster[1,1,512]"
        )
        yield context
        gateway = SparkContext._gateway
        stop_context(context)
        gateway.shutdown()
        gateway.proc.stdin.close()  # its JVM ends with it
        gateway.proc.wait()


def executors(context: SparkContext) -> set[str]:
    scheduler: Any = context._jsc.sc().schedulerBackend()
    executor_ids = scheduler.getExecutorIds()
    return {executor_ids.apply(i) for i in range(executor_ids.size())}


GUESSES = {ENV_SECRET: "guessed"}


@pytest.mark.parametrize("environment", [{}, GUESSES], ids=["without a secret", "with another secret"])
def test_an_uninvited_executor_is_refused(context: SparkContext, tmp_path: Path, environment: dict[str, str]) -> None:
    """It knows what Spark's page shows: the driver's address, the application's id, and the settings."""
    assert context.parallelize(range(4), 2).map(abs).collect() == [0, 1, 2, 3], "those of the application are let in"
    invited, conf = executors(context), dict(context.getConf().getAll())
    settings = [f"-D{key}={value}" for key, value in conf.items() if key.startswith(("spark.network.", "spark.ssl."))]
    command = [
        *(java_command(), "-Xmx512m", "-XX:TieredStopAtLevel=1", *OPENED, *settings),
        *(["-Dspark.authenticate=true"] if environment else []),
        *("-cp", f"{spark_home()}/jars/*", "org.apache.spark.executor.CoarseGrainedExecutorBackend"),
        *("--driver-url", f"spark://CoarseGrainedScheduler@127.0.0.1:{conf['spark.driver.port']}"),
        *("--app-id", context.applicationId, "--executor-id", "99", "--cores", "1", "--resourceProfileId", "0"),
        *("--bind-address", "127.0.0.1", "--hostname", "127.0.0.1"),
    ]
    log, guest_environment = tmp_path / "said", os.environ | environment
    with log.open("w") as out, subprocess.Popen(command, env=guest_environment, cwd=tmp_path, stderr=out) as guest:
        try:
            while guest.poll() is None:  # one that is let in goes on until the driver ends
                assert executors(context) == invited
                time.sleep(0.1)
        finally:
            guest.kill()
    assert guest.returncode != 0
    assert "Successfully registered with driver" not in log.read_text()
    assert re.search(NOT_LET_IN, log.read_text())
    assert executors(context) == invited


def processes() -> list[psutil.Process]:
    """What this process has started, and what that has; without those that have ended."""
    return [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]


def test_no_command_line_and_no_page_shows_the_secret(context: SparkContext) -> None:
    secret = context.getConf().get("spark.authenticate.secret")
    assert secret
    lines = [" ".join(process.cmdline()) for process in processes()]
    assert any("CoarseGrainedExecutorBackend" in line for line in lines), "or this looks in the wrong place"
    assert not [line for line in lines if secret in line]
    values = context.parallelize([0], 1).map(lambda _: os.environ.get(ENV_SECRET)).collect()
    assert values == [secret], "a task's process has it in its environment"


def test_sparks_page_listens_on_loopback(context: SparkContext) -> None:
    port = int((context.uiWebUrl or "").rpartition(":")[2])
    java = psutil.Process(SparkContext._gateway.proc.pid)
    addresses = {at.laddr.ip for at in java.net_connections() if at.status == "LISTEN" and at.laddr.port == port}
    assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert addresses
