from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf
from pyspark.errors import PySparkRuntimeError

from job.chains import DEAD, document, step, time_only
from joinery_runtime.connectors.source import Range
from joinery_runtime.engine.messages import EpochOutcome, EpochWork, ReadSummary
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.tasks import WorkerProcesses, deal_ranges
from joinery_runtime.errors import EnvironmentProblem, JoineryError
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.hosts import spark, spark_internals, spark_tasks
from joinery_runtime.hosts.exchange_key import write_key
from joinery_runtime.hosts.spark import (
    DEFAULT_CONF,
    WORKER_ENVIRONMENT,
    SparkHost,
    share_out,
    start_context,
    stop_context,
)
from joinery_runtime.hosts.spark_security import ENV_KEY_FOLDER, SECRET
from joinery_runtime.hosts.spark_tasks import LettersAfterSteps, WorkerSetup
from joinery_runtime.hosts.wiring import Wiring
from joinery_runtime.job import parse_job

Start = Callable[..., dict[str, str]]


class RecordedContext:
    arguments: ClassVar[dict[str, str]]
    """What the JVM was started with."""
    applicationId = "app-1"  # noqa: N815 - Spark's name

    @classmethod
    def start_java(cls, conf: SparkConf | None = None) -> None:
        cls.arguments = dict(conf.getAll()) if conf else {}

    def __init__(self, conf: SparkConf) -> None:
        self.conf, self._conf = dict(conf.getAll()), conf
        self.master = str(conf.get("spark.master", ""))
        self.environment: dict[str, str] = {}

    def getConf(self) -> SparkConf:  # noqa: N802 - Spark's name
        return self._conf

    def stop(self) -> None:
        pass

    def setLogLevel(self, level: str) -> None:  # noqa: N802 - Spark's name
        self.conf["log level"] = level


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Settings that a context is started with."""
    monkeypatch.setattr(spark, "SparkContext", RecordedContext)
    monkeypatch.setattr(spark, "start_java", RecordedContext.start_java)
    for name in ("silence_accumulator_server", "keep_environment_in_java", "keep_java_names"):
        monkeypatch.setattr(spark, name, lambda _: None)
    monkeypatch.setattr(spark, "SparkConf", lambda **_: SparkConf(loadDefaults=False))
    monkeypatch.setattr(os, "environ", {**os.environ})
    monkeypatch.setattr(spark_internals, "native_tls_problem", lambda _: None)

    def start(conf: dict[str, str] | None = None, master: str | None = None) -> dict[str, str]:
        context: Any = start_context("name", conf or {}, master)
        stop_context(context)
        return dict(context.conf)

    return start


def test_a_laptop_needs_no_settings(start: Start) -> None:
    settings = start()
    assert settings["spark.master"] == "local[*,4]"
    assert settings["spark.app.name"] == "name"
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert {name: settings[name] for name in DEFAULT_CONF} == DEFAULT_CONF
    assert {name: settings[f"spark.executorEnv.{name}"] for name in WORKER_ENVIRONMENT} == WORKER_ENVIRONMENT


OURS = [
    *DEFAULT_CONF,
    "spark.executorEnv.OMP_NUM_THREADS",
    "spark.driver.defaultJavaOptions",
    "spark.executor.defaultJavaOptions",
]


@pytest.mark.parametrize("name", OURS)
def test_the_jobs_own_conf_goes_first(start: Start, name: str) -> None:
    assert start({name: "mine"})[name] == "mine"


def test_the_jobs_master_and_driver_host_stay(start: Start) -> None:
    settings = start({"spark.master": "local[1]", "spark.driver.host": "here"})
    assert (settings["spark.master"], settings["spark.driver.host"]) == ("local[1]", "here")


def test_the_argument_goes_before_the_jobs_master(start: Start) -> None:
    settings = start({"spark.master": "local[1]", "spark.authenticate.secret": "s"}, "spark://there:7077")
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


def test_executors_that_have_our_files_log_warnings_with_their_causes(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default Spark logs lines of INFO for each task."""
    name = "spark.executor.defaultJavaOptions"
    options = start(master="local-cluster[2,1,1024]")[name].split()
    (file,) = (option for option in options if option.startswith("-Dlog4j2.configurationFile=file:"))
    assert Path(file.partition("file:")[2]).is_file()
    assert {"-Djoinery.spark.log=warn", "-Djoinery.spark.causes=full"} <= set(options)
    assert "log4j" not in start({SECRET: "s"}, "spark://there:7077")[name]
    monkeypatch.setattr(spark, "_LOG", tmp_path / "joinery.zip" / "log4j2.properties")
    assert "log4j" not in start(master="local-cluster[2,1,1024]")[name]


@pytest.mark.parametrize("process", ["driver", "executor"])
def test_a_job_or_its_environment_may_choose_the_jvms_collector(start: Start, process: str) -> None:
    """Java does not start with two of them."""
    options, ours, other = f"spark.{process}.defaultJavaOptions", "-XX:+UseSerialGC", "-XX:+UseZGC"
    assert ours in start()[options]
    for setting in (f"spark.{process}.extraJavaOptions", "spark.executorEnv.JAVA_TOOL_OPTIONS"):
        chosen = start({setting: other})[options]
        assert ours not in chosen
        assert "-XX:TieredStopAtLevel=1" in chosen
    os.environ["JAVA_TOOL_OPTIONS"] = f"-Xss1m {other}"
    assert ours not in start()[options]
    assert ours not in start({SECRET: "s"}, "spark://there:7077")["spark.executor.defaultJavaOptions"]


def test_an_archive_of_classes_is_for_jvms_of_this_machine(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "java_options", lambda: "-XX:SharedArchiveFile=here")
    names = ("spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions")
    using = {
        master: ["here" in start({SECRET: "s"}, master)[name] for name in names]
        for master in ("local-cluster[2,1,1024]", "spark://there:7077")
    }
    assert using == {"local-cluster[2,1,1024]": [True, True], "spark://there:7077": [True, False]}


def test_executors_in_pods_use_the_archive_of_the_image(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    option, master = "-XX:SharedArchiveFile=", "k8s://https://there:443"
    assert option not in start(master=master)["spark.executor.defaultJavaOptions"]
    archive = tmp_path / "share" / "joinery" / "image.jsa"
    archive.parent.mkdir(parents=True)
    archive.touch()
    settings = start(master=master)
    for role in ("driver", "executor"):
        assert f"{option}{archive}" in settings[f"spark.{role}.defaultJavaOptions"]


@pytest.mark.parametrize(
    ("master", "path"),
    [("local[2]", "/home/joinery.zip"), ("spark://there:7077", "joinery.zip"), ("yarn", "joinery.zip")],
)
def test_the_daemon_of_workers_finds_joinery_in_a_submitted_zip(
    start: Start, monkeypatch: pytest.MonkeyPatch, master: str, path: str
) -> None:
    monkeypatch.setattr(spark, "__file__", "/home/joinery.zip/joinery_runtime/hosts/spark.py")
    name, secret = "spark.executorEnv.PYTHONPATH", {SECRET: "s"}
    assert name not in start(secret | {"spark.submit.pyFiles": "file:/home/other.zip"}, master)
    submitted = secret | {"spark.submit.pyFiles": "file:/home/other.zip,file:/home/joinery.zip"}
    assert start(submitted, master)[name] == path
    assert start(submitted | {name: "mine"}, master)[name] == "mine"


def test_only_on_kubernetes_spark_never_ends_a_driver_whose_executors_fail(start: Start) -> None:
    name, on_kubernetes = "spark.executor.maxNumFailures", "k8s://https://there:443"
    assert int(start({}, on_kubernetes)[name]) == 2**31 - 1
    assert start({name: "7"}, on_kubernetes)[name] == "7"
    assert name not in start({}, "yarn")


# --- who may talk to Spark --------------------------------------------------------------------------------------------

EVERY_MASTER = ["local", "local[2]", "local[*,4]", "local-cluster[2,1,1024]", "k8s://https://there:443", "yarn"]


@pytest.mark.parametrize("in_our_pod", [True, False])
@pytest.mark.parametrize("master", EVERY_MASTER)
def test_connections_are_authenticated_and_encrypted_once_on_every_master(
    start: Start, tmp_path: Path, master: str, in_our_pod: bool
) -> None:
    os.environ.pop(ENV_KEY_FOLDER, None)
    if in_our_pod:
        os.environ[ENV_KEY_FOLDER] = str(tmp_path)
    settings = start({f"spark.executorEnv.{ENV_KEY_FOLDER}": "/run/joinery"} if in_our_pod else {}, master)
    by_tls = master.startswith("local-cluster[") or (master.startswith("k8s://") and in_our_pod)
    assert settings["spark.authenticate"] == "true"
    assert settings.get("spark.ssl.rpc.enabled", "false") == str(by_tls).lower()
    assert settings.get("spark.network.crypto.enabled", "false") == str(not by_tls).lower()


@pytest.mark.parametrize("setting", ["keyStore", "rpc.privateKey", "rpc.certChain"])
@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "k8s://https://there:443"])
def test_a_key_that_somebody_names_for_something_else_leaves_nothing_unencrypted(
    start: Start, tmp_path: Path, master: str, setting: str
) -> None:
    os.environ[ENV_KEY_FOLDER] = str(tmp_path)
    conf = {f"spark.ssl.{setting}": "/etc/ui", f"spark.executorEnv.{ENV_KEY_FOLDER}": "/run/joinery"}
    settings = start(conf, master)
    assert settings["spark.network.crypto.enabled"] == "true"
    assert "spark.ssl.rpc.enabled" not in settings


def test_executors_of_an_earlier_template_get_no_key(start: Start, tmp_path: Path) -> None:
    """The revision's template was rendered before there were keys, and its driver was started after that."""
    os.environ[ENV_KEY_FOLDER] = str(tmp_path)
    settings = start(master="k8s://https://there:443")
    assert settings["spark.network.crypto.enabled"] == "true"
    assert not any(name.endswith("JOINERY_EXCHANGE_SECRET") for name in settings)


@pytest.mark.parametrize(
    ("master", "encrypted"),
    [("local[2]", False), ("local-cluster[2,1,1024]", False), ("k8s://https://there:443", True), ("yarn", True)],
)
def test_blocks_are_encrypted_where_others_may_have_the_disk(start: Start, master: str, encrypted: bool) -> None:
    assert (start(master=master).get("spark.io.encryption.enabled") == "true") == encrypted


@pytest.mark.parametrize("own", [{"spark.ssl.rpc.enabled": "false"}, {"spark.network.crypto.enabled": "true"}])
def test_who_chooses_how_connections_are_encrypted_gets_that(start: Start, own: dict[str, str]) -> None:
    settings = start(own, "local-cluster[2,1,1024]")
    assert settings["spark.network.crypto.enabled"] == "true"
    assert settings["spark.network.crypto.authEngineVersion"] == "2"
    assert settings.get("spark.ssl.rpc.enabled") != "true"
    assert "spark.ssl.rpc.privateKey" not in settings


def test_a_standalone_cluster_has_the_key_that_its_file_names(start: Start, tmp_path: Path) -> None:
    os.environ["SPARK_CONF_DIR"] = str(tmp_path)
    files = write_key("s", tmp_path)
    tls = {
        "spark.ssl.rpc.enabled": "true",
        "spark.ssl.rpc.openSslEnabled": "true",
        "spark.ssl.rpc.privateKey": str(files.private_key),
        "spark.ssl.rpc.certChain": str(files.certificate),
    }
    lines = "".join(f"{name} {value}\n" for name, value in tls.items())
    (tmp_path / "spark-defaults.conf").write_text(f"{SECRET} shared\n{lines}")
    settings = start(master="spark://there:7077")
    assert not [name for name in settings if name.startswith(("spark.network.crypto", "spark.ssl"))], "the file has it"
    assert settings["spark.io.encryption.enabled"] == "true"
    files.private_key.unlink()
    with pytest.raises(EnvironmentProblem, match=r"spark.ssl.rpc.privateKey names .*key.pem: No such file"):
        start(master="spark://there:7077")


def test_the_warnings_of_a_start_are_passed_on(start: Start) -> None:
    warnings: list[str] = []
    start_context("name", {SECRET: "s"}, "spark://there:7077", None, warnings.append)
    assert [text for text in warnings if "spark.ssl.rpc.enabled is not set" in text]


def test_spark_makes_a_secret_of_its_own_where_it_can_and_else_each_application_gets_one(start: Start) -> None:
    secrets = {master: start(master=master).get(SECRET) for master in EVERY_MASTER}
    assert [master for master, secret in secrets.items() if secret] == ["local-cluster[2,1,1024]"]
    assert start(master="local-cluster[2,1,1024]")[SECRET] != secrets["local-cluster[2,1,1024]"]
    assert len(secrets["local-cluster[2,1,1024]"] or "") == 64


@pytest.mark.parametrize("named", ["job", "file"])
def test_a_standalone_clusters_secret_has_to_be_named(start: Start, tmp_path: Path, named: str) -> None:
    os.environ["SPARK_CONF_DIR"] = str(tmp_path)
    with pytest.raises(EnvironmentProblem, match=r"is not named: .* neither in spark-defaults.conf nor in the job's"):
        start(master="spark://there:7077")
    if named == "file":
        (tmp_path / "spark-defaults.conf").write_text(f"{SECRET} shared\n")
    settings = start({SECRET: "shared"} if named == "job" else {}, "spark://there:7077")
    assert settings["spark.authenticate"] == "true"
    assert "spark.network.crypto.cipher" not in settings, "both ends need the same, and the cluster has its own"


@pytest.mark.parametrize("master", [*EVERY_MASTER, "spark://there:7077"])
def test_who_switches_authentication_off_gets_nothing_that_needs_it(start: Start, master: str) -> None:
    settings = start({"spark.authenticate": "false"}, master)
    assert settings["spark.authenticate"] == "false"
    assert not [name for name in settings if re.search("crypto|encryption|secret|ssl", name)]


@pytest.mark.parametrize("own", [{"spark.authenticate": "true"}, {"spark.network.crypto.enabled": "true"}])
def test_the_jobs_own_words_for_the_same_change_nothing(start: Start, own: dict[str, str]) -> None:
    assert start(own, "local[2]") == start(master="local[2]")


def test_no_secret_is_an_argument_of_the_jvm(start: Start) -> None:
    conf = {"spark.hadoop.fs.s3a.secret.key": "hush", "spark.ssl.keyPassword": "hush", "spark.mine": "seen"}
    settings = start(conf, "local-cluster[2,1,1024]")
    assert settings.items() >= conf.items()
    assert RecordedContext.arguments["spark.mine"] == "seen"
    assert settings["spark.ssl.rpc.enabled"] == "true"
    assert not [name for name in RecordedContext.arguments if name.startswith("spark.ssl.")], "of this context only"
    assert not {"hush", settings[SECRET]} & set(RecordedContext.arguments.values())


@pytest.mark.parametrize(
    ("master", "address", "page"),
    [
        ("local[2]", "127.0.0.1", "false"),
        ("local-cluster[2,1,1024]", "127.0.0.1", "false"),
        ("spark://there:7077", None, "false"),
        ("k8s://https://there:443", None, None),  # the operator sets the pod's address
    ],
)
def test_sparks_page_is_off_or_for_this_machine_only(
    start: Start, master: str, address: str | None, page: str | None
) -> None:
    os.environ.pop("SPARK_LOCAL_IP", None)
    settings = start({SECRET: "s"}, master)
    assert (os.environ.get("SPARK_LOCAL_IP"), settings.get("spark.ui.enabled")) == (address, page)
    os.environ["SPARK_LOCAL_IP"] = "10.0.0.1"
    assert start({SECRET: "s", "spark.ui.enabled": "true"}, master)["spark.ui.enabled"] == "true"
    assert os.environ["SPARK_LOCAL_IP"] == "10.0.0.1"


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
    monkeypatch.setattr(spark_tasks.SparkFiles, "getRootDirectory", lambda: root)
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    if local is not None:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", local)
    assert spark_tasks._local_directory() == Path(directory)


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
    def no_java(conf: SparkConf | None = None) -> None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(spark, "start_java", no_java)
    monkeypatch.setattr(os, "environ", environment)
    start(master=master)


class LostContext:
    """A context whose Java process was killed."""

    master = "local[2]"
    defaultParallelism = 2  # noqa: N815 - Spark's name

    def setJobGroup(self, group: str, description: str) -> None:  # noqa: N802 - Spark's name
        raise ConnectionRefusedError(111, "Connection refused")

    def stop(self) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")


def test_a_java_process_that_is_gone_is_an_error_of_ours() -> None:
    context: Any = LostContext()
    host = SparkHost(context, WorkerSetup("d", lambda _: nullcontext(context), 1), "job")
    with pytest.raises(JoineryError, match="Spark gave up on epoch 7: the driver's Java process is gone"):
        host.run(EpochWork(1, EpochPlan(7, 2, (), {}), ()))
    stop_context(context)


def test_an_epoch_that_cannot_be_exchanged_names_the_port_unless_memory_ran_out() -> None:
    def failed(message: str) -> Any:
        error: Any = Py4JJavaError.__new__(Py4JJavaError)
        error.java_exception = SimpleNamespace(getMessage=lambda: message)
        return error

    unreachable = "org.apache.spark.shuffle.FetchFailedException: Failed to connect to /10.0.0.7:7079"
    assert "spark.blockManager.port" in spark._failure_advice(failed(unreachable))
    assert "spark.executor.memory" in spark._failure_advice(
        failed(f"{unreachable}\nExecutorLostFailure (exit code 137)")
    )


# --- peers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "executors", "shards", "ranges", "peers"),
    [
        (2, 0, 8, 4, WorkerProcesses(1, 2)),  # in the driver, or before an executor has come
        (8, 1, 8, 4, WorkerProcesses(1, 8)),
        (12, 1, 8, 4, WorkerProcesses(2, 6)),
        (6, 3, 8, 4, WorkerProcesses(3, 2)),
        (32, 2, 8, 4, WorkerProcesses(4, 8)),
        (6, 3, 1, 2, WorkerProcesses(2, 2)),  # who has neither a shard nor a range is left out
        (6, 3, 1, 0, WorkerProcesses(1, 2)),
    ],
)
def test_cores_become_threads_and_executors_peers(
    cores: int, executors: int, shards: int, ranges: int, peers: WorkerProcesses
) -> None:
    work = EpochWork(1, EpochPlan(7, shards, tuple(ranges_of([1] * ranges)), {}), ())
    assert share_out(work, cores, executors) == peers


def test_peers_exchange_rows_while_the_keys_or_times_of_an_input_are_judged() -> None:
    """Each judges what all of them have read."""
    work = EpochWork(1, EpochPlan(7, 8, tuple(ranges_of([1] * 4)), {}, co_partitions=4), ())
    assert share_out(work, 8, 4) == WorkerProcesses(4, 2, co_partitions=4)
    assert share_out(replace(work, keys_to_check={"in": (frozenset({"k"}),)}), 8, 4) == WorkerProcesses(4, 2)
    assert share_out(replace(work, int64_times={"in": "ts"}), 8, 4) == WorkerProcesses(4, 2)


def test_peers_that_each_read_all_are_not_said_to_exchange_rows() -> None:
    warned = list[str]()
    context: Any = SimpleNamespace(master="local[2]")
    host = SparkHost(context, WorkerSetup("d", lambda _: nullcontext(context), 1), "job", warned.append)
    work = EpochWork(1, EpochPlan(7, 6, tuple(ranges_of([1] * 4)), {}, co_partitions=4), (), is_small=True)
    host._warn_of_exchange(work, share_out(work, 8, 4))
    assert not warned
    large = replace(work, is_small=False)
    host._warn_of_exchange(large, share_out(large, 8, 4))
    (text,) = warned
    assert "6 shards and 4 partitions have 2 as their greatest common divisor, and 4 processes need" in text


@pytest.mark.parametrize(
    ("changed", "reads_once", "repeats_rows"),
    [
        ({}, False, False),
        ({"joins": [time_only()]}, True, False),
        ({"functions": [{"name": "risk_score", "python": "math:floor", "returns": "int64"}]}, True, False),
        ({"delivery": "atLeastOnce"}, False, False),
        ({"delivery": "atLeastOnce"} | DEAD, False, True),
        (DEAD, False, False),
    ],
    ids=["plain", "broadcast", "functions", "at least once", "at least once with dead letters", "dead letters"],
)
def test_what_a_job_says_of_how_its_epochs_may_run(
    changed: dict[str, Any], reads_once: bool, repeats_rows: bool
) -> None:
    """Two reads of a compacted topic may differ, and each shard needs the same rows of a broadcast side."""
    written = document(step())
    written["spec"] |= changed
    wiring = Wiring.of(parse_job(json.dumps(written), "job.json"), print)
    assert (wiring.reads_once, wiring.repeats_rows) == (reads_once, repeats_rows)


@pytest.mark.parametrize(
    ("cores", "executors", "shards", "co_partitions", "peers"),
    [
        (6, 3, 8, 0, WorkerProcesses(3, 2, reads_all=True)),
        (6, 3, 2, 0, WorkerProcesses(3, 2)),  # shards stay where they are in large epochs
        (9, 9, 18, 0, WorkerProcesses(9, 1)),  # too many readers
        (8, 4, 8, 4, WorkerProcesses(4, 2, co_partitions=4)),
    ],
)
def test_peers_of_a_small_epoch_each_read_all(
    cores: int, executors: int, shards: int, co_partitions: int, peers: WorkerProcesses
) -> None:
    plan = EpochPlan(7, shards, tuple(ranges_of([1] * 10)), {}, co_partitions=co_partitions)
    work = EpochWork(1, plan, (), is_small=True)
    assert share_out(work, cores, executors) == peers
    assert not share_out(work, cores, executors, reads_once=True).reads_all
    assert not share_out(replace(work, careful=True), cores, executors).reads_all
    judged = replace(work, keys_to_check={"in": (frozenset({"k"}),)})
    assert share_out(judged, cores, executors).co_partitions == 0, "each judges what all of them have read"


# --- balanced ranges --------------------------------------------------------------------------------------------------

sizes = st.lists(st.integers(0, 1000), max_size=12)


def ranges_of(records: list[int]) -> list[Range]:
    return [Range(PartitionRef("l", "t", p), 5, 5 + count) for p, count in enumerate(records)]


def load(pile: list[Range]) -> int:
    """An empty range is work too."""
    return sum(max(1, r.end_exclusive - r.start) for r in pile)


@given(records=sizes, hands=st.integers(1, 6))
def test_every_range_is_dealt_once(records: list[int], hands: int) -> None:
    ranges = ranges_of(records)
    piles = deal_ranges(ranges, hands)
    assert sorted((r for pile in piles for r in pile), key=lambda r: r.partition) == ranges
    assert len(piles) == min(hands, len(ranges))


@given(records=sizes.filter(bool), hands=st.integers(1, 6))
def test_a_hand_gets_little_more_than_its_share(records: list[int], hands: int) -> None:
    loads = [load(pile) for pile in deal_ranges(ranges_of(records), hands)]
    assert max(loads) <= sum(loads) / len(loads) + max(1, *records)


def test_large_ranges_are_dealt_first() -> None:
    assert sorted(load(pile) for pile in deal_ranges(ranges_of([1, 1, 1, 1, 4]), 2)) == [4, 4]


def test_the_same_ranges_are_dealt_the_same_way() -> None:
    ranges = ranges_of([3, 3, 3, 1])
    assert deal_ranges(ranges, 2) == deal_ranges(list(reversed(ranges)), 2)


def test_a_partition_is_dealt_to_the_same_hand_from_epoch_to_epoch() -> None:
    """Although each epoch has other sizes, and not every partition has records in each."""
    random = Random(1)
    hands: dict[PartitionRef, Counter[int]] = defaultdict(Counter)
    for _ in range(50):
        sizes = [random.randint(900, 1_000) if random.random() < 0.95 else 0 for _ in range(100)]
        for hand, pile in enumerate(deal_ranges(ranges_of(sizes), 4)):
            for planned in pile:
                hands[planned.partition][hand] += 1
    assert sum(counts.most_common(1)[0][1] for counts in hands.values()) > 0.9 * 50 * 100


def test_a_host_whose_java_is_gone_has_the_cores_that_it_had() -> None:
    """The next epoch says what is wrong; a look at the cores while the job is idle must not end it without a word."""

    class Gone:
        master = "local[3]"
        cores: Any = 3

        @property
        def defaultParallelism(self) -> int:  # noqa: N802 - Spark's name
            if isinstance(self.cores, Exception):
                raise self.cores
            return int(self.cores)

    context: Any = Gone()
    host = SparkHost(context, WorkerSetup("d", lambda _: nullcontext(context), 1), "job")
    assert host.cores == 3
    for error in (ConnectionRefusedError(), Py4JNetworkError()):
        context.cores = error
        assert host.cores == 3


@pytest.mark.parametrize(("repeats", "epochs"), [(False, [7, 7, 300, 300]), (True, [7, 7, 300])])
def test_late_found_letters_repeat_rows_in_one_epoch_of_a_driver(
    monkeypatch: pytest.MonkeyPatch, repeats: bool, epochs: list[int]
) -> None:
    """Exactly once, a second run repeats none, so the stage that collects is left out again after a while."""
    runs = list[int]()

    def run_epoch(host: SparkHost, work: EpochWork, setup: WorkerSetup) -> EpochOutcome:
        runs.append(work.plan.epoch)
        if not setup.collects_letters:
            raise LettersAfterSteps("a row is too large")
        return EpochOutcome(ReadSummary((), {"rows": 1}), {})

    monkeypatch.setattr(SparkHost, "_run_epoch", run_epoch)
    context: Any = SimpleNamespace(master="local[2]")
    host = SparkHost(context, WorkerSetup("d", lambda _: nullcontext(context), 1, repeats_rows=repeats), "job")
    for epoch in (7, 300):
        host.run(EpochWork(1, EpochPlan(epoch, 2, (), {}), ()))
    assert runs == epochs
