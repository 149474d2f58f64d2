"""Columns that a job does not name have the names in its stored state, else those of `whenNeeded` (J10)."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pytest
from psycopg import sql

from joinery_runtime.api import RunResult, run
from joinery_runtime.cli.replay_commands import verify_command, why_command
from joinery_runtime.engine.loop import JobListener
from joinery_runtime.hosts.run import run_job
from joinery_runtime.hosts.status.board import Board, Liveness
from joinery_runtime.inspect.admin.check import check_job
from joinery_runtime.inspect.sql import run_query
from joinery_runtime.job import job_from

ORDERS, PAYMENTS = ("id", "item", "ts"), ("id", "method", "ts")
BY_INPUT = ["orders_id", "item", "orders_ts", "payments_id", "method", "payments_ts"]
ALWAYS = ["left_id", "left_item", "left_ts", "right_id", "right_method", "right_ts"]
BY_SIDE = ["left_id", "left_ts", "right_id", "right_ts"]
LISTENER = JobListener(lambda _: None, lambda _: None, lambda error, _: pytest.fail(str(error)))

pytestmark = [pytest.mark.services, pytest.mark.filterwarnings("ignore")]


class Shop:
    """A job that reads two directories, and its state."""

    def __init__(self, folder: Path, dsn: str, schema: str) -> None:
        self._folder, self._dsn, self._schema, self._runs = folder, dsn, schema, 0
        self._store = {"postgres": {"dsn": dsn, "schema": schema}}
        for name in ("orders", "payments"):
            (folder / name).mkdir()

    def document(self, payments: tuple[str, ...] = PAYMENTS, **spec: Any) -> dict[str, Any]:
        inputs = [
            {
                "name": name,
                "file": {"path": str(self._folder / name), "watch": True},
                "format": "json",
                "schema": [{"name": column, "type": "timestamp" if column == "ts" else "string"} for column in columns],
                "eventTime": "ts",
                "watermark": {"delay": "1h"},
            }
            for name, columns in (("orders", ORDERS), ("payments", payments))
        ]
        join = {"right": "payments", "keys": {"orders.id": "payments.id"}}
        full_spec = {
            "inputs": inputs,
            "joins": [{**join, "interval": {"of": "orders", "lower": "0s", "upper": "1h"}}],
            "output": {"file": {"path": str(self._folder / "out")}},
            "stateStore": self._store,
            **spec,
        }
        return {
            "apiVersion": "joinery.dev/v1alpha1",
            "kind": "StreamJoin",
            "metadata": {"name": "shop"},
            "spec": full_spec,
        }

    def run(self, **edits: Any) -> RunResult:
        """Reads one more pair."""
        self._runs += 1
        order = {"id": f"o{self._runs}", "item": "book", "ts": self._runs * 1000}
        payment = {"id": f"o{self._runs}", "method": "card", "ts": self._runs * 1000 + 1}
        for name, row in (("orders", order), ("payments", payment)):
            (self._folder / name / f"{self._runs}.jsonl").write_text(json.dumps(row) + "\n")
        return run(self.document(**edits), once=True, local=True)

    def newest(self) -> list[str]:
        """The names of the newest row."""
        rows = [line for file in (self._folder / "out").glob("*.jsonl") for line in file.read_text().splitlines()]
        (names,) = (list(row) for row in map(json.loads, rows) if f"o{self._runs}" in row.values())
        return names

    def rename_stored(self, names: dict[str, str]) -> None:
        """Gives selected columns of the stored definition other names."""
        with psycopg.connect(self._dsn) as connection:
            table = sql.Identifier(self._schema, "jobs")
            stored = connection.execute(sql.SQL("SELECT definition FROM {}").format(table)).fetchone()
            assert stored is not None
            text = json.dumps(stored[0])
            for before, after in names.items():
                text = text.replace(f'"as": "{before}"', f'"as": "{after}"')
            connection.execute(sql.SQL("UPDATE {} SET definition = %s").format(table), [text])

    def as_if_stored_earlier(self) -> None:
        """Takes from the stored definition what earlier releases did not write."""
        without = sql.SQL("UPDATE {} SET definition = (definition::jsonb - 'prefixes')::json")
        with psycopg.connect(self._dsn) as connection:
            done = connection.execute(without.format(sql.Identifier(self._schema, "jobs")))
            assert done.rowcount == 1


@pytest.fixture
def shop(tmp_path: Path, postgres_dsn: str, schema: str) -> Shop:
    return Shop(tmp_path, postgres_dsn, schema)


def test_a_job_that_an_earlier_release_began_keeps_its_names(shop: Shop) -> None:
    shop.run(prefixes="always")
    assert shop.newest() == ALWAYS
    shop.as_if_stored_earlier()
    result = shop.run()
    assert shop.newest() == result.output().to_arrow().column_names == ALWAYS
    job = job_from(shop.document())
    assert verify_command(job, None).right
    assert [row for record in why_command(job, ["id=o2"], None, None, None).records for row in record.produced[2]]
    assert run_query(job, "SELECT * FROM output")[0].columns == ALWAYS
    assert check_job(job).fits
    board = Board("shop", ["orders", "payments"], Liveness(stalled_after_s=60))
    run_job(job, LISTENER, Event(), warn=lambda _: None, board=board, once=True, local=True)
    assert "left_id, left_item, left_ts" in board.description.output
    assert "as stored with the state" in board.description.output
    shop.run(prefixes="whenNeeded")
    assert shop.newest() == BY_INPUT


def test_a_job_without_state_has_a_prefix_where_it_is_needed_and_keeps_that_too(shop: Shop) -> None:
    result = shop.run()
    assert shop.newest() == result.output().to_arrow().column_names == BY_INPUT
    shop.run(payments=(*PAYMENTS, "item"))
    later = [*BY_INPUT[:5], "payments_item", BY_INPUT[5]]
    assert sorted(shop.newest()) == sorted(later), "a column that came later gives no other one another name"
    shop.run(payments=(*PAYMENTS, "item"))
    assert sorted(shop.newest()) == sorted(later)


def test_stars_of_sql_keep_the_names_of_an_earlier_release(shop: Shop) -> None:
    text = "SELECT * FROM orders o JOIN payments p ON o.id = p.id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL '1' HOUR"
    stars: dict[str, Any] = {"joins": [], "sql": text}
    shop.run(**stars)
    assert shop.newest() == BY_INPUT
    earlier = dict(zip(("orders_id", "orders_ts", "payments_id", "payments_ts"), BY_SIDE, strict=True))
    shop.rename_stored(earlier)
    shop.run(**stars)
    names = [earlier.get(name, name) for name in BY_INPUT]
    assert shop.newest() == names
    job = job_from(shop.document(**stars))
    assert run_query(job, "SELECT * FROM output WHERE left_id = 'o2'")[0].rows
    assert check_job(job).fits
    shop.run(**stars)
    assert shop.newest() == names


def test_state_that_does_not_have_a_key_s_name_says_which_it_has(shop: Shop) -> None:
    shop.run(prefixes="always")
    shop.as_if_stored_earlier()
    output = {"kafka": {"bootstrapServers": "nowhere:1", "topic": "t", "key": ["orders_id"]}}
    (refused,) = check_job(job_from(shop.document(output=output))).refused
    assert "orders_id is no name of one column" in refused
    assert "left_id, left_item" in refused
