"""The archive of Java classes: where it is, and that a JVM maps it, or goes on in silence without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from joinery_runtime.hosts.java_process import archive_path, java_options


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java's home, and a Python environment without an archive."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    (home / "release").write_text('JAVA_VERSION="17.0.15"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "a venv"))
    return home


def test_each_version_of_java_has_an_archive_of_its_own(java: Path) -> None:
    seventeen = archive_path()
    (java / "release").write_text('JAVA_VERSION="21"\n')
    assert None not in {seventeen, archive_path()}
    assert seventeen != archive_path()


def test_there_is_none_for_another_spark_or_a_java_that_says_no_version(
    java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (java / "release").unlink()
    assert archive_path() is None
    (java / "release").touch()
    assert archive_path() is not None
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert archive_path() is None
    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    assert archive_path() is not None


def test_a_jvm_is_told_of_an_archive_that_is_there(java: Path) -> None:
    assert java_options() == ""
    archive = archive_path()
    assert archive is not None
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert f"-XX:SharedArchiveFile='{archive}'" in java_options()


START = """
import sys
sys.prefix = {prefix!r}
from pathlib import Path
from joinery_runtime.hosts import class_archive
if {make}:
    assert class_archive.make() == class_archive.archive_path()
else:
    from pyspark import SparkContext
    from joinery_runtime.hosts.spark import start_context
    context = start_context("archive", {{}}, "local[1]")
    mapped = Path(f"/proc/{{SparkContext._gateway.proc.pid}}/maps").read_text()
    print("mapped" if str(class_archive.archive_path()) in mapped else "not mapped")
    context.stop()
"""


@pytest.mark.services
@pytest.mark.slow
def test_a_jvm_maps_the_archive_and_starts_without_a_word_where_it_is_another_ones(tmp_path: Path) -> None:
    def start(*, make: bool = False) -> str:
        code = START.format(prefix=str(tmp_path), make=make)
        environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        ended = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    start(make=True)
    assert start() == "mapped\n"
    (archive,) = (tmp_path / "share" / "joinery").iterdir()
    archive.unlink()
    archive.write_text("of another Java, as far as this one can tell")
    assert start() == "not mapped\n"
