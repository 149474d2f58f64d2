"""A Postgres table upserted by key: commits of rows into a table that has 3 M, through the sink itself. Prints rows per
second of the tasks' staging, of the commit's transaction, and of both together, and the CPU time of the commit's
backend, which other work on the machine changes less; writes them as JSON.

Keys are texts in no order. Rounds of replaced rows and of new rows take turns. The embedded Postgres flushes (fsync)
each commit; the target is logged.

    python bench/upserts.py --out build/upserts.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil
import psycopg
import pyarrow as pa
from topics import START_MS

from joinery_runtime.sinks.base import Attempt, AttemptId, Receipt
from joinery_runtime.sinks.postgres import PostgresSink, PostgresWriter, Staging
from joinery_runtime.sinks.postgres_table import TargetTable
from joinery_runtime.state.embedded import embedded_postgres

TABLE, KEY = "upserted", "order_id"
SCHEMA = pa.schema(
    {
        KEY: pa.string(),
        "payment_id": pa.string(),
        "amount": pa.float64(),
        "method": pa.string(),
        "paid_at": pa.timestamp("ms", tz="UTC"),
    }
)
TASKS = 2
PER_LOAD = 300_000  # rows per commit while the table is filled


def rows(keys: np.ndarray, epoch: int) -> pa.Table:
    key = pl.Series(keys)
    digits = pl.Series(np.char.zfill(keys.astype(str), 9))
    frame = pl.DataFrame(
        {
            KEY: "o" + digits,
            "payment_id": "p" + digits,
            "amount": (key + epoch) % 100_000 / 100,
            "method": ["card"] * len(keys),
            "paid_at": (START_MS + key + epoch).cast(pl.Datetime("ms", "UTC")),
        }
    )
    return frame.to_arrow().cast(SCHEMA)


def stage(writer: PostgresWriter, epoch: int, shard: int, keys: np.ndarray) -> tuple[Receipt, float]:
    """A task: its receipt, and the seconds that its rows took."""
    made = rows(keys, epoch)
    attempt = Attempt(AttemptId(1, epoch, shard, "a"), "bench", lambda *_: None, lambda _: None)
    began = time.monotonic()
    return writer.write(attempt, made), time.monotonic() - began


class Commits:
    """Epochs of rows with given keys, as a driver and its tasks write them."""

    def __init__(self, sink: PostgresSink, connection: psycopg.Connection[Any], pool: ProcessPoolExecutor) -> None:
        self._sink, self._connection, self._pool, self._epoch = sink, connection, pool, 0

    def run(self, keys: np.ndarray) -> dict[str, float]:
        """Rows per second, and microseconds of the backend's CPU per row."""
        self._epoch += 1
        shards = np.array_split(keys, TASKS)
        tasks = [
            self._pool.submit(stage, self._sink.writer(), self._epoch, *numbered) for numbered in enumerate(shards)
        ]
        receipts, seconds = zip(*(task.result() for task in tasks), strict=True)
        staging = max(seconds)
        backend = psutil.Process(self._connection.info.backend_pid)
        cpu, began = _cpu_seconds(backend), time.monotonic()
        with self._connection.transaction():
            self._sink.in_transaction(self._connection, self._epoch, receipts)
        committing, cpu = time.monotonic() - began, _cpu_seconds(backend) - cpu
        self._sink.publish(self._epoch, receipts)
        return {
            "staged": len(keys) / staging,
            "committed": len(keys) / committing,
            "both": len(keys) / (staging + committing),
            "cpu_us": 1e6 * cpu / len(keys),
        }


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(measured[name] for measured in rounds) for name in rounds[0]}


def measure(dsn: str, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    sink = PostgresSink(dsn, TargetTable(TABLE, (KEY,)), Staging.of("joinery_bench", "bench", TABLE))
    sink.prepare(SCHEMA)
    random = np.random.default_rng(1)
    there = random.permutation(arguments.rows)
    replaced, new = [], []
    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        ProcessPoolExecutor(TASKS, mp_context=get_context("spawn")) as pool,
    ):
        commits = Commits(sink, connection, pool)
        for first in range(0, arguments.rows, PER_LOAD):
            commits.run(there[first : first + PER_LOAD])
        connection.execute(f"VACUUM ANALYZE {TABLE}")
        coming = arguments.rows + random.permutation(arguments.rounds * arguments.epoch)
        for number in range(arguments.rounds):
            replaced.append(commits.run(random.choice(arguments.rows, arguments.epoch, replace=False)))
            new.append(commits.run(coming[number * arguments.epoch :][: arguments.epoch]))
    sink.close()
    return {"replaced rows": medians(replaced), "new rows": medians(new)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000, help="in the table before the first round")
    parser.add_argument("--epoch", type=int, default=300_000, help="rows per commit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work, embedded_postgres(Path(work)) as dsn:
        results = measure(dsn, arguments)
    for name, rates in results.items():
        print(f"{name:13} {rates['committed']:>9,.0f} rows/s in the commit ({rates['cpu_us']:.1f} us of CPU a row), "
              f"{rates['staged']:,.0f} staged by {TASKS} tasks, {rates['both']:,.0f} with staging")  # fmt: skip
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"rows": arguments.rows, "epoch": arguments.epoch, **results}, indent=2))


if __name__ == "__main__":
    main()
