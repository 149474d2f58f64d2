"""What the size of the state costs: Joinery's rate while its state grows, and how long a restart takes until the first
row of new output, with all state still in Postgres.

The window holds `state` rows a side; the topics have a quarter more.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import joinery_jobs
from bench.outputs import FileOutput
from bench.peer import Peer, running
from bench.section import PARTITIONS, SHARDS, epoch_rows
from bench.topics import RECORDS_PER_SECOND, START_MS, Workload, produce, produce_records
from joinery_devkit.kafka import KafkaBroker

_SIZES = 8  # steps of the state's size for which a rate is given
_NEW = 1_000  # orders and payments that come after the restart
_WAIT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Growth:
    """`rates`: rows per second by how many rows the state had, both sides together."""

    rows: int
    rates: dict[int, float]
    state_bytes: int
    recovery_rows: int
    recovery_seconds: float


def run(work: Path, state: int, recovered: int) -> Growth:
    """`state` and `recovered`: rows a side of the two parts."""
    grown = _grow_state(work / "growth", state)
    rows, seconds = _recover_state(work / "recovery", recovered)
    return Growth(
        sum(map(joinery_jobs.rows_in, grown)),
        rates(grown),
        max(epoch["state_bytes"] for epoch in grown),
        rows,
        seconds,
    )


def rates(epochs: list[dict[str, Any]]) -> dict[int, float]:
    """Leave out the first epoch, in which workers start."""
    later = epochs[1:]
    edges = np.linspace(0, max(epoch["state_rows"] for epoch in later), _SIZES + 1)[1:]
    rates = {}
    for below, edge in zip([0, *edges], edges, strict=False):
        chosen = [epoch for epoch in later if below < epoch["state_rows"] <= edge]
        if chosen:
            seconds = sum(epoch["seconds"] for epoch in chosen)
            rates[int(edge)] = sum(map(joinery_jobs.rows_in, chosen)) / seconds
    return rates


def growth_table(growth: Growth) -> str:
    lines = [f"| {rows:,} | {rate:,.0f} |" for rows, rate in growth.rates.items()]
    return "\n".join(
        [
            "## State",
            "",
            "| state, rows of both sides up to | rows/s |",
            "| ---: | ---: |",
            *lines,
            "",
            f"- {growth.rows:,} rows read, {growth.state_bytes / 1e9:.2f} GB of state in Postgres.",
            f"- From a restart with {growth.recovery_rows:,} rows of state in Postgres to the first row of new output: "
            f"{growth.recovery_seconds:.1f} s.",
            "",
        ]
    )


def _grow_state(work: Path, state: int) -> list[dict[str, Any]]:
    with KafkaBroker() as broker:
        records = state + state // 4
        _fill_state(broker, records, state)
        peer = _peer(broker.bootstrap, work, state, records, stop=True)
        epochs = joinery_jobs.run_to_end(peer).epochs
    shutil.rmtree(work, ignore_errors=True)
    return epochs


def _recover_state(work: Path, state: int) -> tuple[int, float]:
    """Return rows of state, and seconds from the start of the second process to its first row."""
    with KafkaBroker() as broker:
        _fill_state(broker, state, state)
        peer = _peer(broker.bootstrap, work, state, state, stop=False)
        output = FileOutput(work / "rows", {})
        with running(peer) as ended:
            _wait_until(
                "all records were read",
                ended,
                lambda: sum(map(joinery_jobs.rows_in, joinery_jobs.epochs_in(peer.log))) == 2 * state,
            )
        before, state_rows = output.ends()[0], joinery_jobs.epochs_in(peer.log)[-1]["state_rows"]
        _send_payments(broker, state)
        started = time.monotonic()
        with running(peer) as ended:
            _wait_until("a new row came", ended, lambda: output.ends()[0] > before)
            seconds = time.monotonic() - started
    print(f"  {seconds:.1f} s to the first row from {state_rows:,} rows of state", file=sys.stderr, flush=True)
    shutil.rmtree(work, ignore_errors=True)
    return state_rows, seconds


def _fill_state(broker: KafkaBroker, records: int, state: int) -> None:
    for topic in ("orders", "payments"):
        broker.create_topic(topic, PARTITIONS)
    produce(broker.bootstrap, Workload(records, PARTITIONS, paid_within_ms=_window_ms(state)))


def _window_ms(state: int) -> int:
    return state * 1000 // RECORDS_PER_SECOND


def _send_payments(broker: KafkaBroker, state: int) -> None:
    """Send payments of the latest orders, just after them."""
    at = START_MS + _window_ms(state)
    keyed = [(number, b"o%09d" % number) for number in range(state - _NEW, state)]
    values = [
        (number, key, b'{"payment_id":"n%09d","order_id":"%b","method":"card","ts":%d}' % (number, key, at))
        for number, key in keyed
    ]
    parts = [[(key, value) for number, key, value in values if number % PARTITIONS == p] for p in range(PARTITIONS)]
    produce_records(broker.bootstrap, "payments", parts)


def _peer(bootstrap: str, work: Path, state: int, records: int, *, stop: bool) -> Peer:
    window = _window_ms(state)
    step = {
        "right": "payments",
        "keys": {"orders.order_id": "payments.order_id"},
        "interval": {"of": "orders", "lower": f"-{window}ms", "upper": f"{window}ms"},
    }
    bound = {"stopAt": "latest"} if stop else {}
    spec = {
        "inputs": [joinery_jobs.kafka_input(topic, bootstrap, **bound) for topic in ("orders", "payments")],
        "joins": [step],
        "select": [{"column": column} for column in ("orders.order_id", "payments.payment_id")],
        "output": joinery_jobs.to_files(work / "rows"),
        "shards": SHARDS,
        "trigger": {"maxRecordsPerEpoch": epoch_rows(2 * records)},
    }
    job = joinery_jobs.document("StreamJoin", "state", spec)
    return joinery_jobs.peer("Joinery", "", job, work)


def _wait_until(event: str, ended: Callable[[], str | None], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not condition():
        if problem := ended() or (time.monotonic() > deadline and f"still ran after {_WAIT_SECONDS:.0f} s") or None:
            raise SystemExit(f"The job {problem}, before {event}")
        time.sleep(0.05)
