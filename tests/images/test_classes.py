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


pytestmark = [pytest.mark.services, pytest.mark.slow]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    settings = tmp_path_factory.mktemp("settings")
    (settings / "spark-defaults.conf").write_text("spark.locality.wait 7s\n")
    return {
        **os.environ,
        "JAVA_HOME": str(Path(java_command()).resolve().parents[1]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(settings),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def python(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python's prefix that has the archive, as the image's does."""
    prefix = tmp_path_factory.mktemp("prefix")
    archive = prefix / "share" / "joinery" / "image.jsa"
    python(environment, str(IMAGES / "classes.py"), str(IMAGES / "entrypoint.sh"), str(archive))
    return prefix


def test_drivers_and_executors_map_the_archive(environment: dict[str, str], prefix: Path) -> None:
    start = START.format(prefix=str(prefix), images=str(IMAGES))
    assert python(environment, "-c", start) == "mapped\nmapped\n"
