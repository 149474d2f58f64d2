"""A real context: what `spark-defaults.conf` says, the job's conf over it, our defaults under both, and Spark's log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.services

SCRIPT = """
import json, sys
from joinery_runtime.hosts import spark
spark._log_level = lambda _: "warn"
context = spark.start_context("defaults", {"spark.task.maxFailures": "7", "spark.mine": "job"}, None)
settings = dict(context.getConf().getAll())
context._jvm.org.slf4j.LoggerFactory.getLogger("test").warn("a word of warning")
context._jvm.org.slf4j.LoggerFactory.getLogger("test").info("a word of information")
context.stop()
print(json.dumps(settings))
"""
FILE = """
# what an operator writes
spark.master=local[2]
spark.locality.wait 7s
spark.executorEnv.OMP_NUM_THREADS: 2
spark.mine file
spark.theirs file
spark.driver.extraJavaOptions=-Dtheirs=1
"""


def test_a_context_takes_each_setting_from_who_has_the_say(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(FILE)
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    settings = json.loads(ended.stdout.splitlines()[-1])
    expected = {
        "spark.master": "local[2]",
        "spark.locality.wait": "7s",
        "spark.executorEnv.OMP_NUM_THREADS": "2",
        "spark.executorEnv.ARROW_IO_THREADS": "1",
        "spark.mine": "job",
        "spark.theirs": "file",
        "spark.task.maxFailures": "7",
        "spark.driver.host": "127.0.0.1",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.shuffle.compress": "false",
    }
    assert {name: settings.get(name) for name in expected} == expected
    assert "-Dtheirs=1" in settings["spark.driver.extraJavaOptions"]
    assert "WARN test: a word of warning" in ended.stderr
    assert "a word of information" not in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["spark-defaults.conf"], (
        "nothing is left in the working directory"
    )
