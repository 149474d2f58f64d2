"""The image's archive of Java classes, made as its build makes it, without an image: what drivers and executors on
Kubernetes map."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from joinery_devkit.environment import java_command
from joinery_devkit.images.build import PROJECT
from joinery_devkit.spark_cluster import spark_home

IMAGES = PROJECT / "images"
# As in a driver's pod: its folder of settings has files, and it runs in a Python whose prefix has the archive.
START = """
import sys
from pathlib import Path
sys.prefix = {prefix!r}
sys.path.insert(0, {images!r})
import classes
from joinery_runtime.hosts.spark import start_context, stop_context
from pyspark import SparkContext
with classes.kubernetes(Path({images!r}, "entrypoint.sh")) as (server, master):
    context = start_context("pods", classes.SETTINGS, master)
    classes.run_job(context)
    for process in (SparkContext._gateway.proc, *server.executors):
        maps = Path(f"/proc/{{process.pid}}/maps").read_text()
        print("mapped" if "/share/joinery/image.jsa" in maps else "not mapped")
    stop_context(context)
"""


@pytest.mark.services
@pytest.mark.slow
def test_drivers_and_executors_map_the_archive(tmp_path: Path) -> None:
    settings = tmp_path / "settings"
    settings.mkdir()
    (settings / "spark-defaults.conf").write_text("spark.locality.wait 7s\n")
    environment = {
        **os.environ,
        "JAVA_HOME": str(Path(java_command()).resolve().parents[1]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(settings),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(str(IMAGES / "classes.py"), str(IMAGES / "entrypoint.sh"), str(tmp_path / "share" / "joinery" / "image.jsa"))
    assert run("-c", START.format(prefix=str(tmp_path), images=str(IMAGES))) == "mapped\nmapped\n"
