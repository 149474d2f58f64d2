"""Top-N behind an aggregate gives the rows that DuckDB computes from the same file (rule R6)."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import pytest

from job.chains import document, stream
from local_rows import run_job

JOB = document(
    inputs=[
        stream("bid", "price:int64", "supplier", file={"path": "bids.csv"}, format="csv", watermark={"delay": "30s"}),
    ],
    aggregate={
        "groupBy": ["bid.supplier"],
        "window": {"hopping": {"size": "10m", "slide": "4m"}},
        "aggregates": [{"function": "sum", "column": "bid.price", "as": "sales"}, {"function": "count", "as": "bids"}],
    },
    topN={"orderBy": [{"expression": "sales", "direction": "desc"}, {"expression": "bids"}], "rows": 3},
    stateStore={"memory": {}},
)
TRUTH = """
    SELECT supplier, start AS window_start, start + 600000 AS window_end, sum(price)::BIGINT AS sales, count(*) AS bids,
        row_number() OVER (PARTITION BY start ORDER BY sales DESC, bids, supplier) AS row_number
    FROM (SELECT *, epoch_ms(ts) AS ms FROM read_csv('{path}', types = {{'ts': 'TIMESTAMP'}})),
        (SELECT unnest(range(3)) AS hop), LATERAL (SELECT ((ms // 240000 - hop) * 240000)::BIGINT AS start)
    WHERE ms < start + 600000
    GROUP BY supplier, start
    QUALIFY row_number <= 3
"""


@pytest.mark.filterwarnings("ignore:stateStore is memory")
def test_the_first_rows_of_each_window_are_those_of_duckdb(tmp_path: Path) -> None:
    """Few prices, so that many sums are equal; the records are out of order by 20 seconds at most."""
    chosen, path = random.Random(6), tmp_path / "bids.csv"
    first = datetime(2020, 4, 15, 8)
    times = [first + timedelta(seconds=at) for at in range(0, 7200, 5)]
    times.sort(key=lambda at: at + timedelta(seconds=chosen.randrange(20)))
    bids = (f"{chosen.randrange(1, 4)},s{chosen.randrange(6)},{at.isoformat()}Z" for at in times)
    path.write_text("price,supplier,ts\n" + "\n".join(bids) + "\n")
    rows = run_job(JOB, tmp_path)
    with duckdb.connect() as connection:
        truth = connection.sql(TRUTH.format(path=path)).pl()
    assert Counter(rows.rows()) == Counter(truth.select(rows.columns).rows())
    assert rows.height > 80
