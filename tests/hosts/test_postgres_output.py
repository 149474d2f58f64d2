"""Jobs that write into a Postgres table, run whole, without Spark: what becomes of the table when the job is edited or
somebody drops it. What a sink does at each step: tests/connectors/postgres."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from cli.commands import runner
from joinery_runtime.connectors.postgres.external import ExternalPostgresSink
from joinery_runtime.connectors.postgres.sink import PostgresSink
from joinery_runtime.engine.loop import JobListener
from joinery_runtime.hosts.run import run_job
from joinery_runtime.job import load_job

pytestmark = pytest.mark.services
JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: paid}}
spec:
  inputs:
    - name: orders
      file: {{path: orders, watch: true}}
      format: json
      schema: [{{name: id, type: string}}, {{name: note, type: string}}, {{name: ts, type: timestamp}}]
      eventTime: ts
    - name: payments
      file: {{path: payments, watch: true}}
      format: json
      schema: [{{name: order, type: string}}, {{name: ts, type: timestamp}}]
      eventTime: ts
  joins: [{{right: payments, keys: {{orders.id: payments.order}}, {bounds}}}]
  select: [{{column: orders.id}}{more}]
  output: {{postgres: {{table: {schema}_paid{dsn}}}, windowTimes: timestamp}}
  stateStore: {store}
  shards: 1
"""
INTERVAL = "interval: {of: orders, lower: 0s, upper: 1h}"
NOTE = ", {column: orders.note}"
MINUTE = 60_000
_schemas = (f"output_of_{number}" for number in count())


class Crash(BaseException):
    """Nothing of this process runs after it."""


class Scene:
    """A job whose table may be in another database than its state. `store` empty: the embedded Postgres."""

    def __init__(self, folder: Path, store: str, table_at: str) -> None:
        self._folder, self._store, self.table_at, self.schema = folder, store, table_at, next(_schemas)
        self._numbers = count(1)
        for name in ("orders", "payments"):
            (folder / name).mkdir()

    def arrive(self, order: str, minute: int) -> None:
        """An order and what pays it, in files of their own."""
        number = next(self._numbers)
        for name, row in (("orders", {"id": order, "note": f"note of {order}"}), ("payments", {"order": order})):
            text = json.dumps({**row, "ts": minute * MINUTE + 1}) + "\n"
            (self._folder / name / f"{number}.jsonl").write_text(text)

    def run(self, more: str = "", bounds: str = INTERVAL, end: str = "") -> list[str]:
        """Reads what is there, with what the job selects `more`. Returns the warnings."""
        warnings: list[str] = []
        dsn = "" if self.table_at == self._store else f', dsn: "{self.table_at}"'
        store = f'{{postgres: {{dsn: "{self._store}", schema: "{self.schema}"}}}}' if self._store else "{}"
        path = self._folder / "job.yaml"
        path.write_text(JOB.format(more=more, bounds=bounds, schema=self.schema, dsn=dsn, store=store) + end)
        hears = JobListener(lambda _: None, lambda _: None, lambda error, _: pytest.fail(str(error)))
        run_job(load_job(path), hears, Event(), master="local[2,4]", warn=warnings.append, once=True)
        return warnings

    def rows(self, columns: str = "*") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.table_at) as connection:
            return connection.execute(f"SELECT {columns} FROM {self.schema}_paid ORDER BY id").fetchall()

    def drop(self) -> None:
        with psycopg.connect(self.table_at) as connection:
            connection.execute(f"DROP TABLE {self.schema}_paid")


@pytest.fixture(params=[False, True], ids=["beside", "apart"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, postgres_dsn: str, worker_id: str) -> Scene:
    if not request.param:
        return Scene(tmp_path, postgres_dsn, postgres_dsn)
    name = f"outputs_{worker_id}"  # the workers' tables have the same names
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
            connection.execute(f"CREATE DATABASE {name}")
    return Scene(tmp_path, postgres_dsn, make_conninfo(postgres_dsn, dbname=name))


def test_a_column_that_is_selected_later_comes_to_the_table(scene: Scene) -> None:
    scene.arrive("o1", 5)
    scene.run()
    scene.arrive("o2", 6)
    scene.run(NOTE)
    assert scene.rows() == [("o1", None), ("o2", "note of o2")]


def dying_in_epoch_2(step: Callable[..., Any]) -> Callable[..., Any]:
    def done(*args: Any, **named: Any) -> Any:
        if inspect.signature(step).bind(*args, **named).arguments["epoch"] == 2:
            raise Crash
        return step(*args, **named)

    return done


@pytest.mark.parametrize("when", ["in_transaction", "publish"])
def test_what_was_begun_before_a_column_was_selected_comes_once_without_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Its rows are staged in tables without that column."""
    scene.arrive("o1", 5)
    scene.run()
    scene.arrive("o2", 6)
    with monkeypatch.context() as patched:
        for sink in (PostgresSink, ExternalPostgresSink):
            patched.setattr(sink, when, dying_in_epoch_2(getattr(sink, when)))
        with pytest.raises(Crash):
            scene.run()
    scene.arrive("o3", 7)
    scene.run(NOTE)
    assert scene.rows() == [("o1", None), ("o2", None), ("o3", "note of o3")]


@pytest.mark.parametrize("scene", [False], ids=["beside"], indirect=True)
def test_times_of_windows_are_timestamps(scene: Scene) -> None:
    scene.arrive("o1", 5)
    scene.arrive("o2", 20)  # after the end of the first one's window
    scene.run(", {column: window_start}", "window: {tumbling: 1m}")
    (row,) = scene.rows("id, window_start, pg_typeof(window_start)::text")
    assert row == ("o1", datetime.fromtimestamp(5 * 60, UTC), "timestamp with time zone")


def test_a_table_that_was_dropped_is_said_at_the_start(scene: Scene) -> None:
    """Its rows are not written again."""
    scene.arrive("o1", 5)
    assert scene.run() == []
    scene.drop()
    scene.arrive("o2", 6)
    (warning,) = scene.run()
    assert warning == (
        f"An output was not there and has been created: the table {scene.schema}_paid. Rows of epochs up to 1 are "
        "not written again. To write all rows again, stop the job and start it with new state: "
        "joinery state delete JOB.yaml --yes"
    )
    assert scene.rows("id") == [("o2",)]


@pytest.mark.parametrize("scene", [True], ids=["apart"], indirect=True)
def test_a_table_in_another_database_than_before_was_never_gone(scene: Scene, worker_id: str) -> None:
    """A definition has no dsn, which may hold a password."""
    scene.arrive("o1", 5)
    assert scene.run() == []
    name = f"other_outputs_{worker_id}"
    with psycopg.connect(scene.table_at, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name}")
        connection.execute(f"CREATE DATABASE {name}")
    scene.table_at = make_conninfo(scene.table_at, dbname=name)
    scene.arrive("o2", 6)
    (warning,) = scene.run()
    words = "in a database where this job has written nothing before (another dsn, or a new database)"
    assert warning.startswith(f"An output was not there and has been created: the table {scene.schema}_paid, {words}. ")
    assert scene.rows("id") == [("o2",)]
    scene.drop()
    scene.arrive("o3", 7)
    (warning,) = scene.run()
    assert warning.startswith(f"An output was not there and has been created: the table {scene.schema}_paid. ")


DEAD = "  deadLetter: {{file: {{path: {0}}}}}\n"


@pytest.mark.parametrize("scene", [False], ids=["beside"], indirect=True)
def test_a_dead_letter_output_that_is_added_was_never_gone(scene: Scene, tmp_path: Path) -> None:
    """Neither with rows to read nor without, nor while what was planned before is finished; and if it is dropped later,
    that is said, also when another part of the job was edited together with it."""
    scene.arrive("o1", 5)
    assert scene.run() == []
    dead = tmp_path / "dead"
    assert scene.run(end=DEAD.format(dead)) == []
    assert dead.is_dir()
    scene.arrive("o2", 6)
    assert scene.run(end=DEAD.format(dead)) == []
    shutil.rmtree(dead)
    (warning,) = scene.run(end=DEAD.format(dead))
    assert warning.startswith(
        f"An output was not there and has been created: the folder {dead}. Rows of epochs up to 2"
    )
    assert scene.run(end=DEAD.format(tmp_path / "elsewhere")) == []
    scene.drop()
    (warning,) = scene.run(end=DEAD.format(tmp_path / "a third"))
    assert "has been created: the table" in warning


@pytest.mark.parametrize("scene", [False], ids=["beside"], indirect=True)
def test_a_dead_letter_output_that_is_added_to_a_planned_epoch_was_never_gone(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.arrive("o1", 5)
    scene.run()
    scene.arrive("o2", 6)
    with monkeypatch.context() as patched:
        patched.setattr(PostgresSink, "in_transaction", dying_in_epoch_2(PostgresSink.in_transaction))
        with pytest.raises(Crash):
            scene.run()
    assert scene.run(end=DEAD.format(tmp_path / "dead")) == []
    assert scene.rows("id") == [("o1",), ("o2",)]


def test_a_table_in_the_embedded_postgres_is_asked_with_sql_after_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That server stops with the job."""
    monkeypatch.setenv("JOINERY_HOME", str(tmp_path / "home"))
    scene = Scene(tmp_path, "", "")
    scene.arrive("o1", 5)
    scene.run(NOTE)
    answer = runner(capsys)("sql", tmp_path / "job.yaml", "SELECT * FROM output LIMIT 10")
    assert answer.lines == [{"id": "o1", "note": "note of o1"}]
