from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JNetworkError
from pyspark import SparkConf
from pyspark.errors import PySparkRuntimeError

from joinery_runtime.engine.messages import EpochWork
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.errors import EnvironmentProblem, JoineryError
from joinery_runtime.hosts import spark
from joinery_runtime.hosts.spark import (
    DEFAULT_CONF,
    WORKER_ENVIRONMENT,
    SparkHost,
    balance_ranges,
    start_context,
    stop_context,
)
from joinery_runtime.sources.base import PartitionRef, Range

Start = Callable[..., dict[str, str]]


class RecordedContext:
    def __init__(self, conf: SparkConf) -> None:
        self.conf = dict(conf.getAll())

    def setLogLevel(self, level: str) -> None:  # noqa: N802 - Spark's name
        self.conf["log level"] = level


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Settings that a context is started with."""
    monkeypatch.setattr(spark, "SparkContext", RecordedContext)
    monkeypatch.setattr(spark, "SparkConf", lambda: SparkConf(loadDefaults=False))
    monkeypatch.setattr(os, "environ", {**os.environ})

    def start(conf: dict[str, str] | None = None, master: str | None = None) -> dict[str, str]:
        context: Any = start_context("name", conf or {}, master)
        return dict(context.conf)

    return start


def test_a_laptop_needs_no_settings(start: Start) -> None:
    settings = start()
    assert settings["spark.master"] == "local[*,4]"
    assert settings["spark.app.name"] == "name"
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert {name: settings[name] for name in DEFAULT_CONF} == DEFAULT_CONF
    assert {settings[f"spark.executorEnv.{name}"] for name in WORKER_ENVIRONMENT} == {"1"}


OURS = [*DEFAULT_CONF, "spark.executorEnv.OMP_NUM_THREADS", "spark.driver.defaultJavaOptions"]


@pytest.mark.parametrize("name", OURS)
def test_the_jobs_own_conf_goes_first(start: Start, name: str) -> None:
    assert start({name: "mine"})[name] == "mine"


def test_the_jobs_master_and_driver_host_stay(start: Start) -> None:
    settings = start({"spark.master": "local[1]", "spark.driver.host": "here"})
    assert (settings["spark.master"], settings["spark.driver.host"]) == ("local[1]", "here")


def test_the_argument_goes_before_the_jobs_master(start: Start) -> None:
    settings = start({"spark.master": "local[1]"}, "spark://there:7077")
    assert settings["spark.master"] == "spark://there:7077"
    assert "spark.driver.host" not in settings


def test_what_spark_submit_set_stays(start: Start) -> None:
    os.environ["PYSPARK_GATEWAY_PORT"] = "1"
    settings = start()
    assert "spark.master" not in settings
    assert "spark.driver.defaultJavaOptions" not in settings


@pytest.mark.parametrize("line", ["{} theirs", "  {}=theirs", "{}:theirs", "{} = theirs  "])
@pytest.mark.parametrize("name", [*OURS, "spark.master", "spark.driver.host"])
def test_what_the_conf_file_sets_stays(start: Start, tmp_path: Path, name: str, line: str) -> None:
    os.environ["SPARK_CONF_DIR"] = str(tmp_path)
    (tmp_path / "spark-defaults.conf").write_text(f"# ours\n\n{line.format(name)}\n")
    settings = start()
    assert name not in settings
    assert len(settings) >= len(OURS)
    assert start({name: "mine"})[name] == "mine"


def test_the_conf_file_is_looked_for_in_sparks_home_too(start: Start, tmp_path: Path) -> None:
    os.environ.pop("SPARK_CONF_DIR", None)
    os.environ["SPARK_HOME"] = str(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.master local[3]\n")
    assert "spark.master" not in start()
    assert start()["spark.driver.host"] == "127.0.0.1"


@pytest.mark.parametrize(("master", "level"), [("local[2]", "error"), ("k8s://https://there:443", "warn")])
def test_a_pods_log_has_warnings(start: Start, master: str, level: str) -> None:
    settings = start(master=master)
    assert settings["spark.driver.defaultJavaOptions"].endswith(f"-Djoinery.spark.log={level}")
    assert settings["log level"] == level.upper()


@pytest.mark.parametrize(
    ("root", "local", "directory"),
    [
        ("/tmp/spark/userFiles", "/var/data/a,/var/data/b", "/tmp/spark/userFiles"),
        (".", "/var/data/a,/var/data/b", "/var/data/a"),
        (".", None, "."),
    ],
)
def test_workers_write_where_they_may(
    monkeypatch: pytest.MonkeyPatch, root: str, local: str | None, directory: str
) -> None:
    monkeypatch.setattr(spark.SparkFiles, "getRootDirectory", lambda: root)
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    if local is not None:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", local)
    assert spark._local_directory() == Path(directory)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"JAVA_HOME": "/nowhere", "PATH": "/usr/bin:/bin"}, "JAVA_HOME holds no bin/java"),
        ({"PATH": "/nowhere"}, "no java on PATH, JAVA_HOME is not set"),
    ],
)
def test_without_java_it_says_so(
    start: Start, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], says: str
) -> None:
    with pytest.raises(EnvironmentProblem, match=f"Spark needs Java: {says}"):
        _fail_to_start(start, monkeypatch, environment)


def test_with_java_it_names_the_master(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    java = tmp_path / "java"
    java.write_text("")
    java.chmod(0o755)
    with pytest.raises(EnvironmentProblem, match="Spark does not start with master bogus: its Java process ended"):
        _fail_to_start(start, monkeypatch, {"PATH": str(tmp_path)}, "bogus")


def _fail_to_start(
    start: Start, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], master: str | None = None
) -> None:
    def no_context(conf: SparkConf) -> None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(spark, "SparkContext", no_context)
    monkeypatch.setattr(os, "environ", environment)
    start(master=master)


class LostContext:
    """A context whose Java process was killed."""

    defaultParallelism = 2  # noqa: N815 - Spark's name

    def setJobDescription(self, text: str) -> None:  # noqa: N802 - Spark's name
        raise ConnectionRefusedError(111, "Connection refused")

    def stop(self) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")


def test_a_java_process_that_is_gone_is_an_error_of_ours() -> None:
    context: Any = LostContext()
    setup: Any = None
    host = SparkHost(context, setup, "job")
    with pytest.raises(JoineryError, match="Spark gave up on epoch 7: the driver's Java process is gone"):
        host.run(EpochWork(1, EpochPlan(7, 2, (), {}), ()))
    stop_context(context)


# --- balanced ranges --------------------------------------------------------------------------------------------------

sizes = st.lists(st.integers(0, 1000), max_size=12)


def ranges_of(records: list[int]) -> list[Range]:
    return [Range(PartitionRef("l", "t", p), 5, 5 + count) for p, count in enumerate(records)]


def load(pile: list[Range]) -> int:
    return sum(r.end_exclusive - r.start for r in pile)


@given(records=sizes, hands=st.integers(1, 6))
def test_every_range_is_dealt_once_and_no_hand_is_left_empty(records: list[int], hands: int) -> None:
    ranges = ranges_of(records)
    piles = balance_ranges(ranges, hands)
    assert sorted((r for pile in piles for r in pile), key=lambda r: r.partition) == ranges
    assert len(piles) == min(hands, len(ranges))


@given(records=sizes.filter(bool), hands=st.integers(1, 6))
def test_hands_differ_by_no_more_than_the_largest_range(records: list[int], hands: int) -> None:
    loads = [load(pile) for pile in balance_ranges(ranges_of(records), hands)]
    assert max(loads) - min(loads) <= max(records)


def test_largest_first_beats_the_order_of_arrival() -> None:
    assert sorted(load(pile) for pile in balance_ranges(ranges_of([1, 1, 1, 1, 4]), 2)) == [4, 4]


def test_the_same_ranges_are_dealt_the_same_way() -> None:
    ranges = ranges_of([3, 3, 3, 1])
    assert balance_ranges(ranges, 2) == balance_ranges(list(reversed(ranges)), 2)
