"""SparkHost on a real cluster: two workers on two addresses, so that Spark may also speculate."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from e2e.spark_trace import TASK_CONF, SparkTrace
from hosts.stand_ins import (
    LETTERS,
    PATIENCE_S,
    EndsItsExecutor,
    FailingWorker,
    FailsAfterwards,
    HasDeadLetters,
    HasDeadLettersOnce,
    KillsItsExecutor,
    WaitsForTheOther,
)
from joinery_devkit.processes import ChildProcess
from joinery_devkit.spark_cluster import StandaloneCluster, spark_home
from joinery_runtime.connectors.source import Range
from joinery_runtime.engine.messages import EpochWork
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.engine.planner import Planner
from joinery_runtime.errors import DataLoss, JoineryError, RecordError, SinkError
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.hosts.spark import DEFAULT_CONF, SparkHost, start_context
from joinery_runtime.hosts.spark_tasks import WorkerSetup
from joinery_runtime.hosts.stores import PostgresStoreAddress
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.job import StreamJoin, parse_job
from joinery_runtime.state.postgres import PostgresStore

pytestmark = [pytest.mark.services, pytest.mark.slow]

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1",
    "spark.speculation.minTaskRuntime": "500ms",
}
OTHER_ADDRESS = "127.0.0.2"  # the same machine, but not to Spark, which speculates on another host only


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkContext]:
    folder = tmp_path_factory.mktemp("worker")
    with StandaloneCluster(workers=1) as cluster:
        command = [str(spark_home() / "bin" / "spark-class"), "org.apache.spark.deploy.worker.Worker",
                   "--host", OTHER_ADDRESS, "--webui-port", "0", "--cores", "1", "--memory", "1g",
                   "--work-dir", str(folder), cluster.master_url]  # fmt: skip
        other = ChildProcess(command, folder / "log", {**cluster.environment, "SPARK_LOCAL_IP": OTHER_ADDRESS})
        conf = {**TASK_CONF, **SPECULATION, "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m",
                "spark.authenticate.secret": cluster.secret}  # fmt: skip
        context = start_context("host tests", conf, cluster.master_url)
        _wait_for_executors(context, 2)
        yield context
        context.stop()
        other.stop()


def _wait_for_executors(context: SparkContext, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    status: Any = context._jsc.sc()
    while status.getExecutorMemoryStatus().size() < count + 1:  # the driver is listed too
        assert time.monotonic() < deadline, "the executors do not come"
        time.sleep(0.05)


# --- errors -----------------------------------------------------------------------------------------------------------

WORK = EpochWork(
    generation=1,
    plan=EpochPlan(7, 2, tuple(Range(PartitionRef("l", "t", p), 0, 5) for p in range(3)), {"l": None, "r": None}),
    segments=(),
)


def run(context: SparkContext, at: str, error: Exception) -> Any:
    worker = FailingWorker(at, error)
    return SparkHost(context, WorkerSetup(f"{at}-{error!r}", worker, worker.steps), "job").run(WORK)


def test_an_epoch_without_errors(context: SparkContext) -> None:
    outcome = run(context, "never", RuntimeError())
    rows = {task: summary.rows_out for task, summary in outcome.shards.items()}
    assert rows == {(0, 0): 3, (0, 1): 0, (1, 0): 0, (1, 1): 3}, "three ranges, then on to the shard before"
    assert [read.partition.partition for read in sorted(outcome.read.partitions, key=lambda r: r.partition)] == [
        0,
        1,
        2,
    ]


CO_PARTITIONED = replace(WORK, plan=replace(WORK.plan, co_partitions=2))


def test_peers_that_exchange_no_rows(context: SparkContext) -> None:
    worker = FailingWorker("never", RuntimeError(), steps=1)
    host = SparkHost(context, WorkerSetup("co-partitioned", worker, worker.steps), "job")
    assert host.processes == 1, "nothing is known of executors before an epoch"
    outcome = host.run(CO_PARTITIONED)
    assert host.processes == 2
    rows = {task: summary.rows_out for task, summary in outcome.shards.items()}
    assert rows == {(0, 0): 2, (0, 1): 1}, "partitions 0 and 2 are of the first shard"
    assert sorted(read.partition.partition for read in outcome.read.partitions) == [0, 1, 2]


@pytest.mark.parametrize(
    ("work", "steps", "named"),
    [
        (WORK, 2, ["tried: read", "tried: join 1", "tried: join 2"]),
        (CO_PARTITIONED, 1, ["tried: read, join 1"]),
    ],
)
def test_stages_have_the_names_of_what_they_do(
    context: SparkContext, work: EpochWork, steps: int, named: list[str]
) -> None:
    worker = FailingWorker("never", RuntimeError(), steps)
    plan = replace(work.plan, epoch=40 + steps)
    SparkHost(context, WorkerSetup(f"names {steps}", worker, steps), "tried").run(replace(work, plan=plan))
    (job,) = context.statusTracker().getJobIdsForGroup(f"tried epoch {plan.epoch}")
    assert stage_names(context, job) == named


def stage_names(context: SparkContext, job: int) -> list[str]:
    tracker = context.statusTracker()
    info = tracker.getJobInfo(job)
    assert info is not None
    stages = [tracker.getStageInfo(stage) for stage in sorted(info.stageIds)]
    return [stage.name for stage in stages if stage is not None]


def test_dead_letters_of_peers_that_exchange_no_rows_are_collected_by_one_task(context: SparkContext) -> None:
    worker = HasDeadLetters("never", RuntimeError(), steps=1)
    host = SparkHost(context, WorkerSetup("letters of all", worker, worker.steps), "lettered")
    jobs = [(71, ["lettered: read, join 1"], 2), (72, ["lettered: read, join 1", "lettered: collect"], 1)]
    for epoch, names, count in jobs:
        outcome = host.run(replace(CO_PARTITIONED, plan=replace(CO_PARTITIONED.plan, epoch=epoch)))
        assert outcome.read.dead_letters == LETTERS
        assert sorted(read.partition.partition for read in outcome.read.partitions) == [0, 1, 2]
        assert {task: summary.rows_out for task, summary in outcome.shards.items()} == {(0, 0): 2, (0, 1): 1}
        ids = sorted(context.statusTracker().getJobIdsForGroup(f"lettered epoch {epoch}"))
        assert len(ids) == count, "the first epoch with dead letters is run again, later ones are not"
        assert stage_names(context, ids[0]) == names


SMALL = replace(WORK, is_small=True)


@pytest.mark.parametrize(
    ("steps", "named", "expected"),
    [
        (1, ["small: read, join 1"], {(0, 0): 3, (0, 1): 0}),
        (2, ["small: read, join 1", "small: join 2"], {(0, 0): 3, (0, 1): 0, (1, 0): 0, (1, 1): 3}),
    ],
)
def test_in_a_small_epoch_each_peer_reads_all_and_what_is_read_counts_once(
    context: SparkContext, steps: int, named: list[str], expected: dict[tuple[int, int], int]
) -> None:
    """All three ranges have their row in shard 0."""
    worker = FailingWorker("never", RuntimeError(), steps)
    work = replace(SMALL, plan=replace(SMALL.plan, epoch=80 + steps))
    outcome = SparkHost(context, WorkerSetup(f"small {steps}", worker, steps), "small").run(work)
    assert {task: summary.rows_out for task, summary in outcome.shards.items()} == expected
    assert sorted(read.partition.partition for read in outcome.read.partitions) == [0, 1, 2]
    (job,) = context.statusTracker().getJobIdsForGroup(f"small epoch {work.plan.epoch}")
    assert stage_names(context, job) == named


@pytest.mark.parametrize(
    ("work", "reads_once"), [(SMALL, True), (replace(SMALL, careful=True), False)], ids=["said so", "careful"]
)
def test_what_may_be_dear_to_read_is_read_by_one_peer(context: SparkContext, work: EpochWork, reads_once: bool) -> None:
    worker, epoch = FailingWorker("never", RuntimeError(), 1), 84 + reads_once
    setup = WorkerSetup(f"dear {reads_once}", worker, 1, reads_once=reads_once)
    SparkHost(context, setup, "dear").run(replace(work, plan=replace(work.plan, epoch=epoch)))
    (job,) = context.statusTracker().getJobIdsForGroup(f"dear epoch {epoch}")
    assert stage_names(context, job) == ["dear: read", "dear: join 1"]


def test_dead_letters_of_small_epochs_are_collected_by_one_task(context: SparkContext) -> None:
    worker = HasDeadLetters("never", RuntimeError(), steps=1)
    host = SparkHost(context, WorkerSetup("small letters", worker, worker.steps), "letters")
    for epoch in (91, 92):
        outcome = host.run(replace(SMALL, plan=replace(SMALL.plan, epoch=epoch)))
        assert outcome.read.dead_letters == LETTERS
        assert sorted(read.partition.partition for read in outcome.read.partitions) == [0, 1, 2]
        assert {task: summary.rows_out for task, summary in outcome.shards.items()} == {(0, 0): 3, (0, 1): 0}
        (job,) = context.statusTracker().getJobIdsForGroup(f"letters epoch {epoch}")
        assert stage_names(context, job) == ["letters: read, join 1"]


def test_peers_that_exchange_no_rows_write_them_once_where_they_cannot_be_withdrawn(context: SparkContext) -> None:
    worker = HasDeadLetters("never", RuntimeError(), steps=1)
    setup = WorkerSetup("letters at least once", worker, worker.steps, repeats_rows=True)
    outcome = SparkHost(context, setup, "cautious").run(CO_PARTITIONED)
    assert outcome.read.dead_letters == LETTERS
    (job,) = context.statusTracker().getJobIdsForGroup(f"cautious epoch {CO_PARTITIONED.plan.epoch}")
    assert stage_names(context, job) == ["cautious: read, join 1", "cautious: collect"]


def test_the_stage_that_collects_is_left_out_again_after_a_while_without_dead_letters(
    context: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("joinery_runtime.hosts.spark._COLLECTING_EPOCHS", 1)
    worker = HasDeadLettersOnce("never", RuntimeError(), steps=1, epoch=95)
    host = SparkHost(context, WorkerSetup("letters once", worker, worker.steps), "once")
    newest: list[list[str]] = []
    for epoch in (94, 95, 96, 97):
        outcome = host.run(replace(CO_PARTITIONED, plan=replace(CO_PARTITIONED.plan, epoch=epoch)))
        assert outcome.read.dead_letters == (LETTERS if epoch == 95 else None)
        newest.append(stage_names(context, max(context.statusTracker().getJobIdsForGroup(f"once epoch {epoch}"))))
    assert [names[1:] for names in newest] == [[], ["once: collect"], ["once: collect"], []]


@pytest.mark.parametrize("at", ["read", "step 0", "collect"])
def test_an_error_of_a_small_epoch_arrives_as_it_was_raised(context: SparkContext, at: str) -> None:
    error = DataLoss("what happened", facts="at t/0 offset 5", todo="Mend it")
    worker = (HasDeadLetters if at == "collect" else FailingWorker)(at, error, steps=1)
    with pytest.raises(DataLoss) as raised:
        SparkHost(context, WorkerSetup(f"small {at}", worker, worker.steps), "job").run(SMALL)
    assert str(raised.value) == str(error)


def test_a_small_epochs_peer_is_run_again_where_its_executor_dies(context: SparkContext, tmp_path: Path) -> None:
    worker = EndsItsExecutor("never", RuntimeError(), steps=1, directory=tmp_path)
    outcome = SparkHost(context, WorkerSetup("a small epoch's peer dies", worker, worker.steps), "job").run(SMALL)
    assert (tmp_path / "ended").exists()
    assert {task: summary.rows_out for task, summary in outcome.shards.items()} == {(0, 0): 3, (0, 1): 0}
    assert sorted(read.partition.partition for read in outcome.read.partitions) == [0, 1, 2]


@pytest.mark.parametrize("at", ["read", "step 0", "collect"])
def test_an_error_of_a_peer_that_exchanges_no_rows_arrives_as_it_was_raised(context: SparkContext, at: str) -> None:
    error = DataLoss("what happened", facts="at t/0 offset 5", todo="Mend it")
    worker = (HasDeadLetters if at == "collect" else FailingWorker)(at, error, steps=1)
    with pytest.raises(DataLoss) as raised:
        SparkHost(context, WorkerSetup(f"co-partitioned {at}", worker, worker.steps), "job").run(CO_PARTITIONED)
    assert str(raised.value) == str(error)


def test_workers_are_forked_from_a_daemon_of_ours(context: SparkContext) -> None:
    parents = context.parallelize([0], 1).map(lambda _: Path(f"/proc/{os.getppid()}/cmdline").read_text()).collect()
    assert DEFAULT_CONF["spark.python.daemon.module"] in parents[0].split("\0")


@pytest.mark.parametrize("kind", [DataLoss, SinkError, RecordError])
@pytest.mark.parametrize("at", ["read", "step 0", "step 1", "collect"])
def test_an_error_of_ours_arrives_as_it_was_raised(context: SparkContext, at: str, kind: type[JoineryError]) -> None:
    error = kind("what happened", facts="at t/0 offset 5", todo="Mend it")
    with pytest.raises(kind) as raised:
        run(context, at, error)
    assert type(raised.value) is kind
    assert str(raised.value) == str(error)


@pytest.mark.parametrize("at", ["read", "step 0", "step 1"])
def test_any_other_error_ends_the_epoch_with_its_cause(context: SparkContext, at: str) -> None:
    with pytest.raises(JoineryError) as raised:
        run(context, at, ValueError("no such thing"))
    assert "Spark gave up on epoch 7: ValueError: no such thing" in str(raised.value)
    assert "Traceback" not in str(raised.value)
    assert "maxBytesPerEpoch" not in str(raised.value)


@pytest.mark.parametrize("at", ["read", "step 0"])
def test_an_epoch_that_ran_out_of_memory_says_what_to_lower(context: SparkContext, at: str) -> None:
    with pytest.raises(JoineryError, match=r"lower trigger\.maxBytesPerEpoch or trigger\.maxRecordsPerEpoch"):
        run(context, at, MemoryError())


def test_a_peer_that_exchanges_no_rows_is_run_again_where_its_executor_dies(
    context: SparkContext, tmp_path: Path
) -> None:
    worker = EndsItsExecutor("never", RuntimeError(), steps=1, directory=tmp_path)
    outcome = SparkHost(context, WorkerSetup("a peer dies", worker, worker.steps), "job").run(CO_PARTITIONED)
    assert (tmp_path / "ended").exists()
    assert {task: summary.rows_out for task, summary in outcome.shards.items()} == {(0, 0): 2, (0, 1): 1}
    assert sorted(read.partition.partition for read in outcome.read.partitions) == [0, 1, 2]


# --- attempts ---------------------------------------------------------------------------------------------------------

JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: {name}}}
spec:
  inputs:
    - {{name: l, file: {{path: l}}, format: json, schema: [{{name: k, type: int64}}, {{name: ts, type: timestamp}}],
        eventTime: ts}}
    - {{name: r, file: {{path: r}}, format: json, schema: [{{name: k, type: int64}}, {{name: ts, type: timestamp}}],
        eventTime: ts}}
  joins: [{{right: r, keys: {{l.k: r.k}}, interval: {{of: l, lower: -10ms, upper: 10ms}}}}]
  select: [{{column: l.k}}]
  output: {{file: {{path: out}}}}
  stateStore: {{memory: {{}}}}
"""
KEYS = range(20)
STEPS = [{"input": side, "rows": [{"k": k, "ts": 100} for k in KEYS]} for side in ("l", "r", "l")]
SHARDS = 3


@pytest.fixture(scope="module")
def address(postgres_dsn: str) -> PostgresStoreAddress:
    return PostgresStoreAddress(postgres_dsn, "host_tests")


@pytest.fixture(scope="module")
def store(address: PostgresStoreAddress) -> Iterator[PostgresStore]:
    store = PostgresStore(address.dsn, address.schema)
    yield store
    store.close()


def traced(job: StreamJoin, store: PostgresStore, environment: SparkTrace) -> list[Counter[int]]:
    """Keys of the output rows of each step."""
    lines = run_trace(job, STEPS, store, SHARDS, environment)
    return [Counter(row["k"] for row in line["output"]) for line in lines]


def check_state(job: StreamJoin, store: PostgresStore) -> None:
    """Every arrival is kept once, from one attempt per shard and epoch; the other attempts' segments are garbage."""
    record = store.record(job.name)
    assert record is not None
    assert sum(segment.rows for segment in record.segments) == len(STEPS) * len(KEYS)
    attempts = Counter(tuple(segment.key.split("/")[1].split("-")[:3]) for segment in record.segments)
    assert set(attempts.values()) == {1}
    assert store.sweep(job.name, record.generation) > 0


@pytest.mark.parametrize("small", [True, False], ids=["each peer reads all", "peers exchange rows"])
@pytest.mark.parametrize(
    "around",
    [FailsAfterwards, WaitsForTheOther, KillsItsExecutor],
    ids=["a task that failed once", "a task that ran twice at once", "an executor that died"],
)
def test_attempts_leave_rows_and_state_once(
    around: Any,
    small: bool,
    context: SparkContext,
    address: PostgresStoreAddress,
    store: PostgresStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Planner, "is_small", lambda *_: small)
    job = parse_job(JOB.format(name=f"{around.__name__.lower()}-{'small' if small else 'large'}"), "job.yaml")
    environment = SparkTrace(context, address, tmp_path, partial(around, directory=tmp_path / "attempts"))
    once, never = Counter(KEYS), Counter[int]()
    assert traced(job, store, environment) == [never, once, once]
    check_state(job, store)
    written = Counter(tuple(path.name.split("-")[:3]) for path in (tmp_path / "output").iterdir())
    assert max(written.values()) >= 2, "no task ran a second time"
