"""`joinery verify` of Postgres tables: rows that are inserted, rows that replace others, and sessions that are taken
back; in the state's database and in another one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cli.verified import Database, Written, left_join
from joinery_runtime.engine.plan import JUDGED_BY_CLOCK, PLAN_FORMAT, EpochPlan
from joinery_runtime.errors import JoineryError
from joinery_runtime.job import parse_job

pytestmark = pytest.mark.services
COLUMNS = "[{name: k, type: string}, {name: v, type: int64}, {name: raw, type: binary}, {name: ts, type: timestamp}]"
JOIN = left_join(
    COLUMNS,
    """\
  output: {postgres: {table: TABLE, dsn: "DSN", upsertKey: [KEY]}}
  stateStore: {postgres: {dsn: "STATE"}}
""",
)
SESSIONS = """\
apiVersion: joinery.dev/v1alpha1
kind: SessionWindow
metadata: {name: visits}
spec:
  input: {name: c, file: {path: c.jsonl}, format: json, eventTime: ts, schema: COLUMNS}
  groupBy: [k]
  gap: 20ms
  maxDuration: 1h
  aggregates: [{function: count, as: n}, {function: sum, column: v, as: total}]
  lateData: reopen
  allowedLateness: 1m
  emitRetractions: true
  output: {postgres: {table: TABLE, dsn: "DSN"}}
  stateStore: {postgres: {dsn: "STATE"}}
""".replace("COLUMNS", COLUMNS)
FLOATS = """\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {name: floats}
spec:
  inputs:
    - {name: c, file: {path: c.jsonl}, format: json, eventTime: ts, schema: COLUMNS}
  joins: []
  select: [{expression: "CAST(c.k AS DOUBLE)", as: key}, {column: c.v}]
  output: {postgres: {table: TABLE, dsn: "DSN", upsertKey: [key]}}
  stateStore: {postgres: {dsn: "STATE"}}
""".replace("COLUMNS", COLUMNS)
# Texts that CSV, JSON and Postgres write in different ways.
TEXTS = ["", 'a,"b"', "two\nlines", "\\N", "null", "é\t", "with\0nul", "k7", "k8", "k9"]
EPOCHS = 3


def row(key: str, value: int, ts: int) -> dict[str, Any]:
    return {"k": key, "v": value, "raw": None if value % 3 else "/wA=", "ts": ts}


STEPS: list[dict[str, Any]] = [
    {
        "rows": {
            "l": [row(key, i, 100 * step + i) for i, key in enumerate(TEXTS)],
            "r": [row(key, 10 * i, 100 * step + i) for i, key in enumerate(TEXTS[::2])],
        }
    }
    for step in range(EPOCHS)
]
CLICKS: list[dict[str, Any]] = [
    {"input": "c", "rows": [row("a", 1, 100), row("b", 1, 100), row("a", 1, 130)]},
    {"watermark": {"c": 200}},  # all three sessions go out
    {"input": "c", "rows": [row("a", 5, 115)]},  # and two of them become one
    {"input": "c", "rows": [row("b", 1, 1000)]},
    {"watermark": {"c": 2000}},
]


@pytest.fixture
def table(tmp_path: Path) -> str:
    return f"out_{tmp_path.name.replace('-', '_')}"[:60]


@pytest.fixture
def database(postgres_dsn: str, schema: str) -> Database:
    return Database(postgres_dsn, schema)


@pytest.fixture
def connection(postgres_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_dsn, autocommit=True) as opened:
        yield opened


@pytest.fixture
def write(table: str, database: Database, tmp_path: Path) -> Any:
    """Runs a job into the table; `apart`: it is in another database than the state, or taken to be."""

    def write(job: str, steps: Any, key: str = "", *, external: bool = False, store: Any = None) -> Written:
        dsn = f"{database.dsn}&application_name=external" if external else database.dsn
        text = job.replace("TABLE", table).replace("DSN", dsn).replace("STATE", database.dsn).replace("KEY", key)
        return Written(parse_job(text, "job.yaml"), steps, tmp_path / "cache", database, store)

    return write


def test_keys_that_are_no_numbers_and_zeros(write: Any, table: str, connection: psycopg.Connection[Any]) -> None:
    """NaN and NULL are two keys, 0.0 and -0.0 are one."""
    rows = [("NaN", 1), (None, 2), ("-0.0", 3)], [("0.0", 4), ("1.5", 5)], [("NaN", 6)]
    steps = [{"input": "c", "rows": [{"k": key, "v": value, "ts": value} for key, value in epoch]} for epoch in rows]
    written = write(FLOATS, steps)
    written.publish()
    present = connection.execute(f"SELECT key::text, v FROM {table} ORDER BY v").fetchall()
    assert present == [(None, 2), ("0", 4), ("1.5", 5), ("NaN", 6)]
    verdict = written.verdict()
    assert (verdict.right, verdict.compared.rows) == (True, 4)
    assert connection.execute(f"DELETE FROM {table} WHERE key = 'NaN'").rowcount == 1
    assert dict(written.verdict().compared.counted) == {"missing": 1}


@pytest.mark.parametrize("external", [False, True], ids=["beside", "external"])
def test_rows_that_are_inserted(write: Any, table: str, connection: psycopg.Connection[Any], *, external: bool) -> None:
    written = write(JOIN, STEPS, external=external)
    written.publish()
    verdict = written.verdict()
    assert (verdict.right, verdict.notes) == (True, [])
    assert verdict.compared.rows == sum(rows.num_rows for rows in written.rows.values())
    # One row is gone, one has another value, one is twice.
    spoil = {
        "DELETE FROM {} WHERE left_k = 'k7' AND left_ts = ": 7,
        "UPDATE {} SET left_raw = '\\x00' WHERE left_k = E'two\nlines' AND left_ts = ": 102,
        "INSERT INTO {0} SELECT * FROM {0} WHERE left_k = 'k8' AND left_ts = ": 208,
    }
    for statement, ts in spoil.items():
        changed = connection.execute(f"{statement.format(table)} timestamptz 'epoch' + interval '{ts} ms'")
        assert changed.rowcount == 1, statement
    spoilt = written.verdict()
    assert dict(spoilt.compared.counted) == {"missing": 1, "different": 1, "extra": 1}
    differences = {difference.kind: difference for difference in spoilt.compared.differences}
    assert differences["missing"].expected["left_k"] == "k7"
    assert differences["different"].actual == differences["different"].expected | {"left_raw": "AA=="}
    assert (differences["extra"].actual["left_k"], differences["extra"].actual["left_ts"]) == ("k8", 208)
    assert {what: difference.epoch for what, difference in differences.items()} == {
        "missing": written.epoch_of(7), "different": written.epoch_of(102), "extra": written.epoch_of(208),
    }  # fmt: skip
    assert not written.verdict(1, written.epoch_of(7)).right
    assert written.verdict(written.epoch_of(208) + 1).right


def test_a_table_that_is_published_after_the_commit(write: Any) -> None:
    written = write(JOIN, STEPS, external=True)
    newest = max(written.rows)
    written.publish(newest - 1)
    verdict = written.verdict()
    assert (verdict.right, verdict.last) == (True, newest - 1)


def test_rows_that_replace_others(write: Any, table: str, connection: psycopg.Connection[Any]) -> None:
    written = write(JOIN, STEPS, "left_k")
    written.publish()
    verdict = written.verdict()
    assert verdict.right
    assert verdict.compared.rows == len(TEXTS)
    assert f"{len(TEXTS)} rows, the newest of each key," in next(iter(verdict.lines()))
    # A row of an earlier epoch is still there.
    connection.execute(f"UPDATE {table} SET left_ts = 'epoch'::timestamptz WHERE left_k = ''")
    connection.execute(f"DELETE FROM {table} WHERE left_k = 'k8'")
    connection.execute(f"INSERT INTO {table} (left_k) VALUES ('new')")
    spoilt = written.verdict()
    assert dict(spoilt.compared.counted) == {"missing": 1, "different": 1, "extra": 1}
    differences = {difference.kind: difference for difference in spoilt.compared.differences}
    assert (differences["missing"].expected["left_k"], differences["extra"].actual["left_k"]) == ("k8", "new")
    assert (differences["different"].expected["left_k"], differences["different"].actual["left_ts"]) == ("", 0)
    assert differences["extra"].epoch is None


@pytest.mark.parametrize(("plan_format", "first_is_right"), [(PLAN_FORMAT, False), (JUDGED_BY_CLOCK - 1, True)])
def test_of_several_rows_of_a_key_in_one_epoch_the_last_in_order_is_there(
    write: Any,
    table: str,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    plan_format: int,
    first_is_right: bool,
) -> None:
    """In epochs of releases that kept no order, any of them."""
    steps = [{"rows": {"l": [row("a", 1, 100)], "r": [row("a", 10, 100), row("a", 20, 101)]}}]
    from_json = EpochPlan.from_json
    monkeypatch.setattr(EpochPlan, "from_json", lambda doc: replace(from_json(doc), format=plan_format))
    written = write(JOIN, steps, "left_k")
    written.publish()
    for value, right in ((10, first_is_right), (20, True), (30, False)):
        connection.execute(f"UPDATE {table} SET right_v = {value}, right_ts = timestamptz 'epoch' + interval '101 ms'")
        if value == 10:
            connection.execute(f"UPDATE {table} SET right_ts = timestamptz 'epoch' + interval '100 ms'")
        connection.execute(f"UPDATE {table} SET right_raw = '\\xff00' WHERE right_v % 3 = 0")
        connection.execute(f"UPDATE {table} SET right_raw = NULL WHERE right_v % 3 <> 0")
        verdict = written.verdict()
        assert (verdict.right, verdict.compared.rows) == (right, 1)


def test_rows_of_an_earlier_life_make_nothing_wrong_unless_this_one_has_put_them_out_too(
    write: Any, table: str, connection: psycopg.Connection[Any]
) -> None:
    first = write(JOIN, STEPS)
    first.publish()
    connection.execute(f"UPDATE {table} SET left_v = left_v + 1000")  # it had another select
    first.store.delete_job(first.job.name)
    second = write(JOIN, STEPS, store=first.store)
    assert min(second.rows) > max(first.rows)
    second.publish()
    verdict, rows = second.verdict(), sum(rows.num_rows for rows in second.rows.values())
    assert (verdict.right, verdict.compared.rows) == (True, rows)
    assert verdict.notes[0].startswith(f"output: {rows} rows are there that these epochs have not emitted")
    connection.execute(f"DELETE FROM {table} WHERE left_k = 'k8' AND left_ts < timestamptz 'epoch' + interval '99 ms'")
    assert dict(second.verdict().compared.counted) == {"missing": 1}
    connection.execute(f"UPDATE {table} SET left_v = left_v - 1000 WHERE left_v >= 1000 AND left_k = 'k7'")
    verdict = second.verdict()
    again = sum(row["left_k"] == "k7" for rows in second.rows.values() for row in rows.to_pylist())
    assert dict(verdict.compared.counted) == {"missing": 1, "extra": again}
    assert f"{again} rows are there once too often" in verdict.notes[0]


@pytest.mark.parametrize("external", [False, True], ids=["beside", "external"])
def test_sessions_that_were_taken_back(
    write: Any, table: str, connection: psycopg.Connection[Any], *, external: bool
) -> None:
    written = write(SESSIONS, CLICKS, external=external)
    written.publish()
    rows = connection.execute(f"SELECT k, n, total FROM {table} ORDER BY k, window_start").fetchall()
    assert rows == [("a", 3, 7), ("b", 1, 1), ("b", 1, 1)]
    verdict = written.verdict()
    assert (verdict.right, verdict.compared.rows) == (True, 3)
    connection.execute(f"UPDATE {table} SET total = 8 WHERE k = 'a'")
    (difference,) = written.verdict().compared.differences
    assert (difference.kind, difference.expected["total"], difference.actual["total"]) == ("different", 7, 8)


def test_a_table_that_is_not_there(write: Any) -> None:
    with pytest.raises(JoineryError, match=r"The output table .* is missing"):
        write(JOIN, STEPS).verdict()
