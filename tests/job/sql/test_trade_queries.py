"""Queries as data engineers write them, over some hundred made-up rows: the job's rows are those of DuckDB.

trade_queries.yaml has them. Of a query, `sql` is the text of the job, `beside` stands beside it, and `truth` is a text
that DuckDB runs over the same rows; without it, that is the query itself. Rows arrive in five parts, shuffled.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml

from job.chains import parsed
from job.queries import comparable, emitted_rows, file_input, inputs_read, resource_of, typed_columns
from joinery_runtime.core.table.columns import arrow_type
from joinery_runtime.job.model.base import ColumnType

QUERIES: Sequence[Mapping[str, Any]] = yaml.safe_load((Path(__file__).parent / "trade_queries.yaml").read_text())
BEGIN, HOURS, PARTS = datetime(2024, 3, 30, 20), 8, 5
COLUMNS = {
    "logins": "login_id int64, user_id string, ip string, country string, ok boolean",
    "views": "view_id int64, user_id string, url string, referrer string, dwell double",
    "txns": "txn_id int64, account string, merchant string, amount double, currency string",
    "orders": "order_id int64, customer string, product string, qty int64, amount double",
    "payments": "payment_id int64, order_id int64, method string, paid double",
    "shipments": "shipment_id int64, order_id int64, carrier string, weight double",
    "refunds": "refund_id int64, order_id int64, refunded double",
    "rates": "currency string, rate double",
    "accounts": "account string, tier string, country string",
    "readings": "device string, site string, temp double, humidity double",
    "requests": "host string, path string, status int64, bytes int64, ms double, agent string, body string",
    "trips": "trip_id int64, driver string, zone string, km double, fare double",
    "clicks": "click_id int64, user_id string, campaign string",
}
"""The inputs, each with an event time `ts` behind these columns."""
TABLES = {"rates": "currency", "accounts": "account"}
URLS = ("/", "/cart", "/p/1?utm_source=ads&x=1", "/p/2?utm_source=mail", "/checkout")
PATHS = ("/api/v1/users/17", "/api/v1/orders", "/health", "/api/v2/users/9?x=1")


@cache
def rows_by_input() -> Mapping[str, Sequence[Sequence[Any]]]:
    """Return rows of each input in the order of event time. Orders have up to two payments."""
    rng = random.Random(7)
    pick, number = rng.choice, rng.randrange

    def times(count: int) -> Sequence[datetime]:
        return sorted(BEGIN + timedelta(seconds=number(HOURS * 3600)) for _ in range(count))

    def behind(rows: Sequence[Sequence[Any]], least: int, most: int) -> Sequence[tuple[Sequence[Any], datetime]]:
        moved = [(row, row[-1] + timedelta(seconds=number(least, most))) for row in rows]
        return sorted(moved, key=lambda pair: pair[1])

    orders = [
        (i, pick(("ann", "bob", "cid", "dee")), pick(("pen", "cup", "hat")), number(1, 6), float(number(1, 100)), ts)
        for i, ts in enumerate(times(150))
    ]
    paid = [*rng.sample(orders, 110), *rng.sample(orders, 30)]
    return {
        "logins": [
            (
                i,
                pick(("u1", "u2", "u3", "u4", None)),
                f"10.0.{number(3)}.{number(5)}",
                pick(("CH", "DE", "US", None)),
                rng.random() < 0.6,
                ts,
            )
            for i, ts in enumerate(times(220))
        ],
        "views": [
            (
                i,
                pick(("u1", "u2", "u3", "u4")),
                pick(URLS),
                pick(("https://ads.example/x", None)),
                pick((None, number(1000) / 10)),
                ts,
            )
            for i, ts in enumerate(times(260))
        ],
        "txns": [
            (i, f"a{number(5)}", f"m{number(4)}", number(1, 200) / 2, pick(("EUR", "USD", "GBP")), ts)
            for i, ts in enumerate(times(200))
        ],
        "orders": orders,
        "payments": [
            (i, row[0], pick(("card", "cash", "bill")), row[4] if rng.random() < 0.8 else row[4] / 2, ts)
            for i, (row, ts) in enumerate(behind(paid, -600, 5400))
        ],
        "shipments": [
            (i, row[0], pick(("dhl", "ups", "post")), pick((None, number(100) / 10)), ts)
            for i, (row, ts) in enumerate(behind(rng.sample(orders, 100), 0, 9000))
        ],
        "refunds": [
            (i, row[0], row[4] / 2, ts) for i, (row, ts) in enumerate(behind(rng.sample(orders, 40), 60, 12000))
        ],
        "rates": [(pick(("EUR", "USD", "GBP")), number(50, 150) / 100, ts) for ts in sorted({*times(60)})],
        "accounts": [
            (f"a{i % 4}", pick(("gold", "basic")), pick(("CH", "US")), BEGIN + timedelta(minutes=25 * i))
            for i in range(18)
        ],
        "readings": [
            (
                f"d{number(4)}",
                pick(("a", "b")),
                pick((None, *(float(number(-5, 60)) for _ in range(4)))),
                float(number(100)),
                ts,
            )
            for ts in times(300)
        ],
        "requests": [
            (
                f"h{number(3)}",
                pick(PATHS),
                pick((200, 200, 200, 404, 500, 503)),
                number(5000),
                float(number(1, 900)),
                pick(("Mozilla/5.0 (X11)", "curl/8.1", None)),
                json.dumps({"trace": f"t{number(9)}", "tags": ["a", "b"], "n": {"x": number(5)}}),
                ts,
            )
            for ts in times(300)
        ],
        "trips": [
            (i, f"d{number(6)}", pick(("n", "s", "w")), float(number(1, 30)), float(number(5, 80)), ts)
            for i, ts in enumerate(times(120))
        ],
        "clicks": [
            (i, pick(("u1", "u2", "u3")), pick(("spring", "summer", None)), ts) for i, ts in enumerate(times(150))
        ],
    }


def columns_of(name: str) -> list[tuple[str, str]]:
    return typed_columns(f"{COLUMNS[name]}, ts timestamp")


def job_of(query: Mapping[str, Any]) -> dict[str, Any]:
    inputs = [
        file_input(name, columns_of(name), TABLES.get(name), watermark={"delay": "3h"})
        for name in query["inputs"].split()
    ]
    return resource_of(inputs, query["sql"], query.get("beside", {}))


def rows_of_job(query: Mapping[str, Any]) -> list[Sequence[Any]]:
    """Return the rows that the job emits. It reads tables first, then the other inputs in parts of some hours."""
    job, rng = parsed(job_of(query)), random.Random(3)
    steps: list[dict[str, Any]] = []
    for part in range(-1, PARTS):
        for alias, name in inputs_read(job).items():
            columns = [column for column, _ in columns_of(name)]
            rows = [
                {**dict(zip(columns, row, strict=True)), "ts": f"{row[-1].isoformat()}Z"}
                for row in rows_by_input()[name]
                if part == (-1 if name in TABLES else _part(row[-1]))
            ]
            rng.shuffle(rows if name not in TABLES else [])
            steps += [{"input": alias, "rows": rows}] if rows else []
    return emitted_rows(job, steps)


def _part(ts: datetime) -> int:
    return max(0, min(PARTS - 1, int((ts - BEGIN) / timedelta(hours=HOURS / PARTS))))


@cache
def database() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for name, rows in rows_by_input().items():
        columns = columns_of(name)
        arrays = [
            pa.array([row[i] for row in rows], arrow_type(ColumnType(kind))) for i, (_, kind) in enumerate(columns)
        ]
        connection.register(f"{name}_rows", pa.table(arrays, names=[column for column, _ in columns]))
        connection.execute(f"CREATE TABLE {name} AS SELECT * REPLACE (ts::TIMESTAMP AS ts) FROM {name}_rows")
    return connection


@pytest.mark.filterwarnings("ignore:stateStore is memory")
@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query["name"])
def test_a_query_gives_the_rows_of_duckdb(query: Mapping[str, Any]) -> None:
    expected = database().execute(query.get("truth", query["sql"])).fetchall()
    assert expected
    assert comparable(rows_of_job(query), digits=6) == comparable(expected, digits=6)
