"""Jobs whose SQL DuckDB runs as well give the rows that DuckDB gives."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from job.chains import document, stream
from local_rows import rows_of, run_job

# TUMBLE and HOP as table functions make the rows that Flink's have; in PARTITION BY, TUMBLE is a function of a time.
MACROS = """
CREATE MACRO tumble(t, size) AS time_bucket(size, t);
CREATE MACRO tumbling(size) AS TABLE SELECT *, time_bucket(size, ts) AS window_start,
    time_bucket(size, ts) + size AS window_end, window_end - INTERVAL '1' MILLISECOND AS window_time FROM bids;
CREATE MACRO hopping(slide, parts) AS TABLE SELECT *, time_bucket(slide, ts) - part * slide AS window_start,
    time_bucket(slide, ts) + (parts - part) * slide AS window_end FROM bids, range(parts) AS r(part)
"""
AS_IN_DUCKDB = {
    "TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' MINUTE))": "tumbling(INTERVAL '10' MINUTE)",
    "TABLE(HOP(TABLE bids, DESCRIPTOR(ts), INTERVAL '5' MINUTE, INTERVAL '15' MINUTE))": (
        "hopping(INTERVAL '5' MINUTE, 3)"
    ),
}
INPUT = stream("bids", "auction", "bidder:int64", "price:int64", watermark={"delay": "1h"})
IN_FOUR_EPOCHS = {"stateStore": {"memory": {}}, "trigger": {"maxRecordsPerEpoch": 40}}
BIDS = [
    {"auction": "abc"[(n * 7) % 3], "bidder": n, "price": (n * 37) % 101, "ts": f"2026-03-01T10:{n % 50:02}:00Z"}
    for n in range(150)
]

QUERIES = {
    "qualify": """
        SELECT auction, price, bidder, ROW_NUMBER() OVER (PARTITION BY auction, TUMBLE(ts, INTERVAL '10' MINUTE)
            ORDER BY price DESC, bidder) AS place
        FROM bids WHERE price > 10 QUALIFY place <= 3""",
    "no key": """
        SELECT bidder, price + 1 AS more FROM bids
        QUALIFY ROW_NUMBER() OVER (PARTITION BY TUMBLE(ts, INTERVAL '1' HOUR) ORDER BY price % 10 DESC, bidder) < 8""",
    "Flink's window top-N": """
        SELECT * FROM (
            SELECT bidder, auction, price, ROW_NUMBER() OVER (
                PARTITION BY window_start, window_end, auction ORDER BY price DESC, bidder DESC) AS rownum
            FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' MINUTE)))
        WHERE rownum <= 2 AND auction <> 'b'""",
    "hopping": """
        WITH ranked AS (
            SELECT auction AS a, price, bidder, ROW_NUMBER() OVER (
                PARTITION BY w.window_start, w.window_end, w.auction ORDER BY w.price, w.bidder) AS rn
            FROM TABLE(HOP(TABLE bids, DESCRIPTOR(ts), INTERVAL '5' MINUTE, INTERVAL '15' MINUTE)) AS w)
        SELECT rn AS place, a, price, bidder FROM ranked WHERE 2 > rn""",
    "groups of groups": """
        SELECT MAX(n) AS most, MIN(total) AS least, COUNT(*) AS auctions
        FROM (
            SELECT auction, window_start, window_end, COUNT(*) AS n, SUM(price) AS total
            FROM TABLE(HOP(TABLE bids, DESCRIPTOR(ts), INTERVAL '5' MINUTE, INTERVAL '15' MINUTE))
            WHERE price > 20 GROUP BY auction, window_start, window_end HAVING COUNT(*) > 1)
        WHERE total > 300 GROUP BY window_start, window_end HAVING COUNT(*) > 1""",
    "groups in windows of their own": """
        WITH highest AS (
            SELECT w.auction AS a, w.price % 5 AS kind, w.window_time AS upto, MAX(w.price) AS top
            FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' MINUTE)) AS w
            GROUP BY w.auction, w.price % 5, w.window_start, w.window_end, w.window_time)
        SELECT a, AVG(top) AS mean, COUNT(DISTINCT kind) AS kinds FROM highest
        GROUP BY a, TUMBLE(upto, INTERVAL '20' MINUTE)""",
    "distinct": """
        SELECT auction, kind FROM (
            SELECT DISTINCT auction, price % 3 AS kind, window_start
            FROM TABLE(HOP(TABLE bids, DESCRIPTOR(ts), INTERVAL '5' MINUTE, INTERVAL '15' MINUTE)) WHERE price > 50)""",
    "distinct in groups": """
        SELECT auction, COUNT(*) AS kinds FROM (
            SELECT DISTINCT w.auction, w.price % 7 AS kind, w.window_start, w.window_end
            FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' MINUTE)) w)
        GROUP BY auction, window_start, window_end""",
}  # fmt: skip


def rows_in_duckdb(sql: str) -> Counter[tuple[Any, ...]]:
    for written, instead in AS_IN_DUCKDB.items():
        sql = sql.replace(written, instead)
    with duckdb.connect() as connection:
        connection.register("events", pl.DataFrame(BIDS).with_columns(pl.col("ts").str.to_datetime("%FT%TZ")))
        connection.execute(f"CREATE TABLE bids AS FROM events;{MACROS}")
        return rows_of(connection.sql(sql).pl())


@pytest.mark.filterwarnings("ignore:stateStore is memory")
@pytest.mark.parametrize("sql", QUERIES.values(), ids=QUERIES)
def test_a_job_gives_the_rows_that_duckdb_gives_for_its_sql(sql: str, tmp_path: Path) -> None:
    (tmp_path / "bids.jsonl").write_text("".join(json.dumps(bid) + "\n" for bid in BIDS))
    expected = rows_in_duckdb(sql)
    assert len(expected) > 5
    assert rows_of(run_job(document(inputs=[INPUT], sql=sql, **IN_FOUR_EPOCHS), tmp_path)) == expected
