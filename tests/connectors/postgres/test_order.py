"""An output table with an upsert key has, of each key, the last row in the defined order (rule J2), whichever shards
wrote the rows and in whatever order."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from connectors.postgres.committed import commit, content
from connectors.rows import attempt
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS

pytestmark = pytest.mark.services
PAIR = pa.schema({"k": pa.int64(), "v": pa.string()})


def rows(*placed: tuple[int, str, tuple[int, ...]]) -> pa.Table:
    """Rows of a key, a value and the first of their order columns; the others are 0."""
    table = pa.Table.from_pylist([{"k": key, "v": value} for key, value, _ in placed], schema=PAIR)
    for number, name in enumerate(ORDER_COLUMNS):
        order_values = [order[number] if number < len(order) else 0 for _, _, order in placed]
        table = table.append_column(name, pa.array(order_values, pa.int64()))
    return table


@pytest.mark.parametrize("number", range(len(ORDER_COLUMNS)), ids=ORDER_COLUMNS)
def test_each_order_column_decides(connection, make, table, number) -> None:
    sink = make(PAIR, "k", ordered=True)
    before, after = (0,) * number + (-1,), (0,) * number + (1,)
    receipts = [
        sink.writer().write(attempt(shard=0), rows((1, "last", after), (1, "first", before))),
        sink.writer().write(attempt(shard=1), rows((1, "middle", ()), (2, "other", ()))),
    ]
    commit(connection, sink, 1, *receipts)
    assert content(connection, table) == [(1, "last"), (2, "other")]


def test_rows_that_an_earlier_release_staged_are_kept_and_moved(connection, make, table) -> None:
    """Its staging tables have no columns for the order. In a database external, they may have committed rows."""
    older = make(PAIR, "k")
    receipt = older.writer().write(attempt(), pa.Table.from_pylist([{"k": 1, "v": v} for v in "ab"], schema=PAIR))
    sink = make(PAIR, "k", ordered=True)
    commit(connection, sink, 1, receipt)
    assert content(connection, table) == [(1, "b")]
    commit(connection, sink, 2, sink.writer().write(attempt(epoch=2), rows((1, "c", ()))))
    assert content(connection, table) == [(1, "c")]


@pytest.mark.parametrize("shards", [1, 3, 16])
def test_the_last_status_of_a_customer_is_the_last_in_order(dsn: str, tmp_path: Path, shards: int) -> None:
    """Orders of few customers, which are joined by the order's id: the rows of a customer come from many shards. In one
    epoch the pairs come in the order of the payments (J2)."""
    chance = random.Random(7)
    orders = [{"id": f"o{n}", "cust": chance.choice("abc"), "status": f"s{n:02}", "ts": n * 1000} for n in range(40)]
    paid = [{"id": order["id"], "ts": order["ts"] + 500} for order in orders]
    chance.shuffle(paid)
    for name, records in (("l", orders), ("r", paid)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    table = f"last_of_{shards}"
    schema = [{"name": "id", "type": "string"}, {"name": "ts", "type": "timestamp"}]
    extra = [{"name": name, "type": "string"} for name in ("cust", "status")]

    def side(name: str, columns: list[dict[str, str]]) -> dict[str, object]:
        path = str(tmp_path / f"{name}.jsonl")
        return {"name": name, "file": {"path": path}, "format": "json", "schema": columns, "eventTime": "ts"}

    job = {
        "apiVersion": "joinery.dev/v1alpha1",
        "kind": "StreamJoin",
        "metadata": {"name": table.replace("_", "-")},
        "spec": {
            "inputs": [side("l", [*schema, *extra]), side("r", schema)],
            "joins": [{"right": "r", "keys": {"l.id": "r.id"}, "interval": {"of": "l", "lower": "0s", "upper": "1h"}}],
            "select": [{"column": "l.cust"}, {"column": "l.status"}],
            "shards": shards,
            "output": {"postgres": {"table": table, "upsertKey": ["cust"]}},
            "stateStore": {"postgres": {"dsn": dsn, "schema": table}},
        },
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    command = [sys.executable, "-m", "joinery_runtime", "run", "--local", "--status-port", "0", "job.yaml"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    by_id = {order["id"]: order for order in orders}
    with psycopg.connect(dsn) as connection:
        stored = dict(connection.execute(f"SELECT cust, status FROM {table}").fetchall())
    assert stored == {by_id[payment["id"]]["cust"]: by_id[payment["id"]]["status"] for payment in paid}
