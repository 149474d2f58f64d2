"""The functions of `joinery_runtime`: what they take and return, and interrupts. tests/docs runs docs/python.md."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import Any

import duckdb
import polars as pl
import psycopg
import pyarrow as pa
import pytest
from pyspark import SparkContext

from joinery_runtime import explain, load_job, run, trace
from joinery_runtime.api import RunResult
from joinery_runtime.engine.loop import JobListener
from joinery_runtime.errors import EnvironmentProblem, JobError, JoineryError
from joinery_runtime.job import job_from

SCHEMA = [{"name": name, "type": "string"} for name in ("k", "v")] + [{"name": "ts", "type": "timestamp"}]


def job(**spec: Any) -> dict[str, Any]:
    """A join of two files of the working folder."""
    inputs = [
        {"name": name, "file": {"path": f"{name}.jsonl"}, "format": "json", "schema": SCHEMA, "eventTime": "ts"}
        for name in ("l", "r")
    ]
    joins = [{"right": "r", "keys": {"l.k": "r.k"}, "interval": {"of": "l", "lower": "-10ms", "upper": "10ms"}}]
    select = [{"column": "l.v", "as": "l"}, {"column": "r.v", "as": "r"}, {"column": "r.ts", "as": "at"}]
    return {
        "apiVersion": "joinery.dev/v1alpha1",
        "kind": "StreamJoin",
        "metadata": {"name": "called"},
        "spec": {
            "inputs": inputs,
            "joins": joins,
            "select": select,
            "output": {"file": {"path": "out"}},
            "stateStore": {"memory": {}},
            **spec,
        },
    }


STEPS: list[dict[str, Any]] = [
    {"input": "l", "rows": [{"k": "a", "v": "A", "ts": 100}, {"k": "b", "v": "B", "ts": 100}]},
    {"input": "r", "rows": [{"k": "b", "v": "b", "ts": 101}, {"k": "a", "v": "a", "ts": 105}]},
    {"end": True},
]


# --- what a job is given as, and its plan -----------------------------------------------------------------------------


def test_a_job_is_a_path_a_dictionary_or_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job()))
    plan = explain(path)
    assert plan == explain(str(path)) == explain(job()) == explain(load_job(path))
    assert plan.inputs[0].source == f"file {tmp_path}/l.jsonl"


def test_a_dictionary_is_checked_as_a_file_is_without_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLDER", "/from/the/environment")
    assert "/from/the/environment" in explain(job(output={"file": {"path": "${FOLDER}"}})).output
    assert "/a/path" in explain(job(output={"file": {"path": Path("/a/path")}})).output
    with pytest.raises(JobError, match=r"the dictionary: 1 problem\(s\): \n  spec\.shard: ") as caught:
        explain(job(shard=1))
    assert caught.value.problems[0].line is None
    with pytest.raises(JobError, match="not Event; write numbers, text, paths"):
        explain(job(output={"file": {"path": Event()}}))


def test_a_notebook_shows_the_plan_as_it_is() -> None:
    plan = explain(job())
    assert plan._repr_html_().startswith("<pre>called: ")
    assert "wm(r) &gt; ts + 10ms" in plan._repr_html_()
    assert "wm(r) > ts + 10ms" in str(plan)


# --- traces -----------------------------------------------------------------------------------------------------------


def test_a_trace_is_a_list_of_results_and_a_table_of_rows() -> None:
    traced = trace(job(), STEPS)
    assert [line["step"] for line in traced] == [1, 2, 3]
    assert len(traced) == 3
    assert traced[1]["output"] == [{"l": "B", "r": "b", "at": 101}, {"l": "A", "r": "a", "at": 105}]
    table = traced.to_arrow()
    assert table.column_names == ["step", "l", "r", "at"]
    assert table.column("step").to_pylist() == [2, 2]
    assert table.column("l").to_pylist() == ["B", "A"], "in the order of the lists"
    assert pa.types.is_timestamp(table.schema.field("at").type)


def test_libraries_of_data_frames_take_a_trace_as_it_is() -> None:
    traced = trace(job(), STEPS)
    expected = traced.to_polars()
    assert expected.height == 2
    assert pl.DataFrame(traced).equals(expected)
    assert pa.table(traced).equals(traced.to_arrow())
    assert duckdb.sql("SELECT l FROM traced WHERE step = 2 ORDER BY 1 DESC").fetchall() == [("B",), ("A",)]
    assert "<table" in traced._repr_html_()


def test_a_column_of_the_output_keeps_the_name_step() -> None:
    traced = trace(job(select=[{"column": "l.v", "as": "step"}]), STEPS)
    assert traced.to_arrow().to_pylist() == [{"_step": 2, "step": "B"}, {"_step": 2, "step": "A"}]


def test_a_trace_without_rows_has_their_columns() -> None:
    none, some = trace(job(), STEPS[:1]).to_arrow(), trace(job(), STEPS).to_arrow()
    assert len(none) == 0
    assert none.schema.types == some.schema.types
    assert none.column_names == some.column_names


def test_pandas_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(EnvironmentProblem, match="no pandas to make a data frame"):
        trace(job(), STEPS).to_pandas()


# --- runs -------------------------------------------------------------------------------------------------------------


def write_inputs(folder: Path) -> None:
    for name, rows in (("l", STEPS[0]["rows"]), ("r", [*STEPS[1]["rows"], {"k": None, "v": "x", "ts": 100}])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.filterwarnings("ignore:stateStore is memory")
def test_a_run_says_what_it_did_and_reads_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)
    heard: list[int] = []
    result = run(job(), local=True, on_epoch=lambda progress: heard.append(progress.report.epoch))
    assert len(heard) == result.epochs
    assert (result.ended_by, result.rows_in, result.rows_out) == ("inputs", {"l": 2, "r": 3}, 2)
    assert result.dropped == {"r": {"null_key": 1}}
    assert repr(result).startswith("called: all inputs have ended; ")
    assert f"5 rows in, 2 out, 1 dropped\nrows are in {tmp_path}/out: head " in repr(result)
    assert sorted(pl.DataFrame(result.output())["l"]) == ["A", "B"]
    assert len(result.output()) == 2


@pytest.mark.filterwarnings("ignore:stateStore is memory")
def test_ids_of_sessions_are_read_back_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"k": str(n), "v": "x", "ts": 1_000} for n in range(20)]
    (tmp_path / "l.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = job()["spec"]
    sessions = {
        "input": spec["inputs"][0],
        "groupBy": ["k"],
        "gap": "30s",
        "maxDuration": "2h",
        "aggregates": [{"function": "count", "as": "n"}],
        "output": spec["output"],
        "stateStore": {"memory": {}},
    }
    result = run({**job(), "kind": "SessionWindow", "spec": sessions}, local=True)
    (tmp_path / "out" / "before-an-edit.jsonl").write_text('{"k": "of a join, without the id of a session"}\n')
    ids = result.output().to_polars()["session_id"].drop_nulls()
    assert ids.n_unique() == 20
    assert max(ids) >= 2**63, "as every other one is"


def types_of(table: Any) -> dict[str, Any]:
    return dict(table.to_polars().schema)


@pytest.mark.parametrize("kind", ["StreamJoin", "SessionWindow"])
@pytest.mark.parametrize("output_format", ["json", "parquet"])
@pytest.mark.filterwarnings("ignore:stateStore is memory")
def test_the_output_of_a_job_without_a_row_has_its_columns_and_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output_format: str, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    output = {"file": {"path": "out"}, "format": output_format}
    document = job(output=output)
    if kind == "SessionWindow":
        spec = {"input": document["spec"]["inputs"][0], "groupBy": ["k"], "gap": "30s", "maxDuration": "2h"}
        spec |= {"output": output}
        spec["aggregates"] = [{"function": "count", "as": "n"}, {"function": "max", "column": "ts", "as": "newest"}]
        document |= {"kind": kind, "spec": spec | {"stateStore": {"memory": {}}}}
    for name in ("l", "r"):
        (tmp_path / f"{name}.jsonl").touch()
    empty = run(document, local=True)
    assert empty.rows_out == 0
    assert len(empty.output()) == 0
    columns = types_of(empty.output())
    write_inputs(tmp_path)
    full = run(document, local=True).output()
    assert len(full) > 0
    assert types_of(full) == columns


@pytest.mark.services
def test_a_table_without_a_row_has_the_types_of_one_with_rows(postgres_dsn: str) -> None:
    columns = {"k": "string", "n": "int64", "price": "decimal(10,2)", "paid": "boolean", "ts": "timestamp"}
    document = job(output={"postgres": {"table": "typed", "dsn": postgres_dsn}})
    clicks = document["spec"]["inputs"][0]
    clicks["schema"] = [{"name": name, "type": kind} for name, kind in columns.items()]
    document["spec"] = {"inputs": [clicks], "output": document["spec"]["output"]}
    result = RunResult(job_from(document), "inputs", 1, {}, 0, {}, {})
    types = [pl.String(), pl.Int64(), pl.Decimal(10, 2), pl.Boolean(), pl.Datetime("ms", "UTC")]
    with closing(psycopg.connect(postgres_dsn, autocommit=True)) as connection:
        connection.execute("DROP TABLE IF EXISTS typed")
        connection.execute("CREATE TABLE typed (k text, n int8, price numeric, paid boolean, ts timestamptz)")
        assert types_of(result.output()) == dict(zip(columns, types, strict=True))
        connection.execute("INSERT INTO typed VALUES ('x', NULL, 1.5, NULL, '2026-01-15 10:00:00+00')")
        assert types_of(result.output()) == dict(zip(columns, types, strict=True))
        connection.execute("INSERT INTO typed VALUES ('x', NULL, 123456789.125, NULL, 'infinity')")
        with_others = result.output().to_polars()
        assert with_others["price"].to_list()[1] == Decimal("123456789.125"), "which the type of the job does not hold"
        assert with_others["ts"].to_list()[1] == "infinity"
        connection.execute("DROP TABLE typed")


def with_output(output_format: str) -> RunResult:
    edited = job(output={"file": {"path": "out"}, "format": output_format})
    return RunResult(job_from(edited), "inputs", 1, {}, 0, {}, {})


@pytest.mark.parametrize("output_format", ["json", "parquet"])
def test_files_from_before_an_edit_are_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output_format: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    at = datetime(2026, 1, 15, 10, tzinfo=UTC)
    pl.DataFrame({"k": ["p"], "n": [1], "at": [at]}).write_parquet("out/epoch-1.parquet")
    pl.DataFrame({"k": ["q"], "n": [2], "added": ["x"]}).write_parquet("out/epoch-2.parquet")
    for name in ("epoch-3.parquet", "epoch-3.jsonl"):
        Path("out", name).touch()
    Path("out/epoch-4.jsonl").write_text('{"k": "j", "n": 3}\n')
    Path("out/epoch-5.jsonl").write_text('{"k": "l", "later": 1.5, "at": "2026-01-15T10:00:00Z"}\n')
    rows = with_output(output_format).output().to_polars().sort("k")
    assert rows.select("k", "n", "added", "later").rows() == [
        ("j", 3, None, None),
        ("l", None, None, 1.5),
        ("p", 1, None, None),
        ("q", 2, "x", None),
    ]
    assert rows["at"].null_count() == 2


@pytest.mark.parametrize("name", ["epoch-1.jsonl", "epoch-1.parquet"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    Path("out", name).write_text("no rows of any kind")
    with pytest.raises(JoineryError, match=f"out/{name} of the output cannot be read"):
        with_output("json").output()


Body = Callable[[JobListener, Event], None]


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Callable[[Body], None]:
    """Puts `body` in the place of the job itself."""

    def replace(body: Body) -> None:
        def run_job(_job: Any, listener: JobListener, stop: Event, **_: Any) -> None:
            body(listener, stop)

        monkeypatch.setattr("joinery_runtime.hosts.run.run_job", run_job)

    return replace


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_ends_the_run_after_its_epoch(running: Callable[[Body], None]) -> None:
    done: list[str] = []

    def body(listener: JobListener, stop: Event) -> None:
        listener.started(None)  # type: ignore[arg-type]
        interrupt()
        assert stop.wait(10)
        done.append("the epoch")

    running(body)
    before = signal.getsignal(signal.SIGINT)
    assert run(job()).ended_by == "stopped"
    assert done == ["the epoch"]
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_ends_a_start_at_once(running: Callable[[Body], None]) -> None:
    def body(_: JobListener, stop: Event) -> None:
        interrupt()
        stop.wait(10)
        raise AssertionError("the start went on")

    running(body)
    assert (run(job()).ended_by, run(job()).epochs) == ("stopped", 0)


def test_a_second_interrupt_is_one_of_python(running: Callable[[Body], None]) -> None:
    def body(listener: JobListener, stop: Event) -> None:
        listener.started(None)  # type: ignore[arg-type]
        interrupt()
        interrupt()
        Event().wait(10)

    running(body)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(job())
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_runs_a_job_until_its_event_is_set(running: Callable[[Body], None]) -> None:
    def body(listener: JobListener, stop: Event) -> None:
        listener.started(None)  # type: ignore[arg-type]
        assert stop.wait(10)

    running(body)
    stop, ended = Event(), []
    thread = threading.Thread(target=lambda: ended.append(run(job(), stop=stop).ended_by))
    thread.start()
    stop.set()
    thread.join(10)
    assert ended == ["stopped"]


# --- Spark sessions ---------------------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused_before_the_job_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = object()
    with pytest.raises(EnvironmentProblem, match="spark and master"):
        run(job(), spark=nothing, master="local")
    with pytest.raises(EnvironmentProblem, match="local and spark: with local, all epochs run in this process"):
        run(job(), spark=nothing, local=True)
    with pytest.raises(EnvironmentProblem, match="local and master"):
        run(job(), master="local[2]", local=True)
    with pytest.raises(EnvironmentProblem, match=r"a builtins\.object has no Spark context"):
        run(job(), spark=nothing)
    monkeypatch.setattr(SparkContext, "_active_spark_context", nothing)
    with pytest.raises(EnvironmentProblem, match=r"run\(job, spark=session\)"):
        run(job())


ON_A_SESSION = """
import os, signal, sys, threading, warnings
from pathlib import Path
from pyspark import SparkConf, SparkContext
from joinery_runtime import run
from joinery_runtime.errors import JoineryError
from test_api import job

def refused(*parts, **given):
    try:
        run(job(**given), spark=context)
    except JoineryError as error:
        assert all(part in str(error) for part in parts), error
    else:
        raise AssertionError(f"{parts}: nothing was refused")

warnings.simplefilter("ignore")
os.environ["PYSPARK_PYTHON"] = sys.executable
conf = SparkConf().setMaster("local[2]").set("spark.ui.enabled", "false").set("spark.executor.memory", "1g")
context = SparkContext(conf=conf)
context.setLogLevel("OFF")
names = {
    "spark.job.description": "of the notebook", "spark.jobGroup.id": "its group", "spark.job.interruptOnCancel": "true",
    "spark.scheduler.pool": "its pool", "callSite.short": "its cell", "callSite.long": "its cell, in full", "mine": "own",
}
for name, value in names.items():
    context.setLocalProperty(name, value)

missing = "spark.executor.memory is 2g in the job's spark.conf and 1g in the session; spark.x is y in the job's spark.conf and not set"
refused(missing, spark={"conf": {"spark.executor.memory": "2g", "spark.x": "y", "spark.master": "local[7]"}})
context.pythonExec = "/bin/no-python"
refused("workers of the Spark session (/bin/no-python) cannot run", "PYSPARK_PYTHON", stateStore={})
context.pythonExec = sys.executable

# Unbounded: it goes on until the interrupt.
inputs = [side | {"file": {"path": str(Path(side["name"]).absolute()), "watch": True}} for side in job()["spec"]["inputs"]]
before = signal.getsignal(signal.SIGINT)
seen = []
def interrupt(progress):
    seen.append([context.getLocalProperty(name) for name in names])
    os.kill(os.getpid(), signal.SIGINT)
result = run(job(inputs=inputs, stateStore={"postgres": {"dsn": sys.argv[1], "schema": "test_api"}}), spark=context, on_epoch=interrupt)
assert (result.ended_by, result.epochs, result.rows_out) == ("stopped", 1, 2), result
assert len(result.output()) == 2
((description, group, interrupts, pool, stage, details, mine),) = seen
assert (description, group, interrupts) == ("called: epoch 1, join", "called epoch 1", "false"), seen
assert (pool, stage, mine) == ("its pool", "called: read, inner interval join, collect", "own"), seen
assert {name: context.getLocalProperty(name) for name in names} == names
assert signal.getsignal(signal.SIGINT) is before
assert context.parallelize([1, 2]).count() == 2
context.stop()
try:
    run(job(), spark=context)
except JoineryError as error:
    assert "has been stopped" in str(error)
print("all of it was so")
"""  # noqa: E501


@pytest.mark.services
@pytest.mark.slow  # the page about Python, in the gate, has a session too
def test_a_job_on_a_session_that_somebody_else_uses(postgres_dsn: str, tmp_path: Path) -> None:
    """Nobody else has made the Java process ready for Joinery."""
    ran = in_a_process(ON_A_SESSION, postgres_dsn, tmp_path, {"JOINERY_WAIT_FOR_SPARK", "PYSPARK_PYTHON"})
    assert ran.stdout.splitlines()[-1:] == ["all of it was so"], ran.stderr


def in_a_process(program: str, dsn: str, folder: Path, hidden: Collection[str]) -> subprocess.CompletedProcess[str]:
    """Runs the program in a process of its own, without the `hidden` variables of this one."""
    write_inputs(folder)
    for name in ("l", "r"):
        (folder / name).mkdir()
        shutil.copy(folder / f"{name}.jsonl", folder / name / "1.jsonl")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    return subprocess.run(
        [sys.executable, "-c", program, dsn],
        check=False,
        cwd=folder,
        env=environment | {"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )


IN_A_NOTEBOOK = """
import gc, os, shutil, signal, sys, threading, time, warnings
from pathlib import Path
import psycopg
from pyspark import SparkContext
from pyspark.sql import SparkSession
from joinery_runtime import run
from test_api import job

warnings.simplefilter("ignore")
os.environ["JOINERY_WAIT_FOR_SPARK"] = "1"
before = dict(os.environ)
assert run(job(spark={"conf": {"spark.mine": "of the job"}}), master="local[2]").rows_out == 2
assert {name for name in os.environ.keys() | before if os.environ.get(name) != before.get(name)} == set()
os.environ["PYSPARK_PYTHON"] = sys.executable
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
context = session.sparkContext
context.setLogLevel("OFF")
ours = {name for name, _ in context.getConf().getAll() if "mine" in name or "worker" in name or "joinery" in name}
assert ours == set(), ours

def worker_of_mine(_):
    return gc.get_threshold(), "joinery_runtime" in sys.modules
untouched = set(context.parallelize(range(4), 4).map(worker_of_mine).collect())
assert len(untouched) == 1, untouched

dsn, schema = sys.argv[1], "in_a_notebook"
locking = psycopg.connect(dsn)
def hold_the_tasks(progress):
    locking.execute(f"LOCK TABLE {schema}.state IN ACCESS EXCLUSIVE MODE")
    for name in ("l", "r"):
        shutil.copy(f"{name}.jsonl", f"{name}/2.jsonl")
    threading.Thread(target=interrupt_twice).start()
def interrupt_twice():
    with psycopg.connect(dsn, autocommit=True) as watching:
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        while watching.execute(waits).fetchone() == (0,):  # other tests of the server have databases of their own
            time.sleep(0.01)
    while not context.statusTracker().getActiveJobsIds():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    stop.wait()
    time.sleep(1)  # as a person: one that comes just before the main thread waits for Spark again is not seen until it has waited
    os.kill(os.getpid(), signal.SIGINT)
    while not raised.wait(60):  # that second was too short
        os.kill(os.getpid(), signal.SIGINT)

stop, raised, handler = threading.Event(), threading.Event(), signal.getsignal(signal.SIGINT)
inputs = [side | {"file": {"path": str(Path(side["name"]).absolute()), "watch": True}} for side in job()["spec"]["inputs"]]
watching = job(inputs=inputs, stateStore={"postgres": {"dsn": dsn, "schema": schema}}, output={"file": {"path": "seen"}})
try:
    run(watching, spark=session, stop=stop, on_epoch=hold_the_tasks)
except KeyboardInterrupt:
    raised.set()
    print("it was raised")
while context.statusTracker().getActiveJobsIds():
    time.sleep(0.01)
assert signal.getsignal(signal.SIGINT) is handler
assert set(context.parallelize(range(4), 4).map(worker_of_mine).collect()) == untouched
locking.rollback()
result = run(watching, spark=session, once=True)
assert (result.epochs, len(result.output())) == (1, 8), result
print("all of it was so")
"""  # noqa: E501


@pytest.mark.services
def test_a_notebook_goes_on_as_it_was(postgres_dsn: str, tmp_path: Path) -> None:
    """After a run that has started a Spark of its own, and after one on a session, which a second interrupt ends while
    an epoch runs: the epoch is cancelled, and the next run replays it."""
    hidden = {"PYSPARK_PYTHON", "POLARS_MAX_THREADS", "OMP_NUM_THREADS", "ARROW_IO_THREADS"}
    ran = in_a_process(IN_A_NOTEBOOK, postgres_dsn, tmp_path, hidden)
    assert ran.stdout.splitlines()[-2:] == ["it was raised", "all of it was so"], ran.stderr
