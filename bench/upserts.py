"""A Postgres table upserted by key: commits of rows into a table that has millions, through the sink itself. Gives
rows per second of the tasks' staging, of the commit's transaction, and of both together, and the CPU time of the
commit's backend, which other work on the machine changes less.

Keys are texts in no order. Rounds of replaced rows and of new rows take turns. The embedded Postgres flushes (fsync)
each commit; the target is logged.
"""

from __future__ import annotations

import statistics
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

from bench.topics import START_MS
from joinery_runtime.connectors.postgres.sink import PostgresSink, PostgresWriter, Staging
from joinery_runtime.connectors.postgres.table import TargetTable
from joinery_runtime.connectors.sink import Attempt, AttemptId, Receipt
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
ROUNDS = 5


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
    """Return a task: its receipt, and the seconds that its rows took."""
    new_rows = rows(keys, epoch)
    attempt = Attempt(AttemptId(1, epoch, shard, "a"), "bench", lambda *_: None, lambda _: None)
    began = time.monotonic()
    return writer.write(attempt, new_rows), time.monotonic() - began


class Commits:
    """Epochs of rows with given keys, as a driver and its tasks write them."""

    def __init__(self, sink: PostgresSink, connection: psycopg.Connection[Any], pool: ProcessPoolExecutor) -> None:
        self._sink, self._connection, self._pool, self._epoch = sink, connection, pool, 0

    def run(self, keys: np.ndarray) -> dict[str, float]:
        """Return rows per second, and microseconds of the backend's CPU per row."""
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


def measure(dsn: str, before: int, epoch: int) -> dict[str, dict[str, float]]:
    sink = PostgresSink(dsn, TargetTable(TABLE, (KEY,)), Staging.of("joinery_bench", "bench", TABLE))
    sink.prepare(SCHEMA)
    random = np.random.default_rng(1)
    stored_keys = random.permutation(before)
    replaced, new = [], []
    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        ProcessPoolExecutor(TASKS, mp_context=get_context("spawn")) as pool,
    ):
        commits = Commits(sink, connection, pool)
        for first in range(0, before, PER_LOAD):
            commits.run(stored_keys[first : first + PER_LOAD])
        connection.execute(f"VACUUM ANALYZE {TABLE}")
        coming = before + random.permutation(ROUNDS * epoch)
        for number in range(ROUNDS):
            replaced.append(commits.run(random.choice(before, epoch, replace=False)))
            new.append(commits.run(coming[number * epoch :][:epoch]))
    sink.close()
    return {"replaced rows": medians(replaced), "new rows": medians(new)}


def run(work: Path, rows_before: int) -> dict[str, dict[str, float]]:
    """Round of a tenth of `rows_before` each."""
    with embedded_postgres(work / "upserts") as dsn:
        return measure(dsn, rows_before, rows_before // 10)


def rates_table(results: dict[str, dict[str, float]]) -> str:
    head = "| rows | rows/s of the commit | CPU us/row of it | rows/s staged by two tasks | rows/s with staging |"
    lines = [
        f"| {name} | {rates['committed']:,.0f} | {rates['cpu_us']:.2f} | {rates['staged']:,.0f} | "
        f"{rates['both']:,.0f} |"
        for name, rates in results.items()
    ]
    return "\n".join(["## Upserts into Postgres", "", head, "| --- | ---: | ---: | ---: | ---: |", *lines, ""])
