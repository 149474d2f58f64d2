"""Every kind of join on comparable data: Joinery's rate, and the ratio to the inner join.

The same orders and payments go through an inner, a left outer, a tumbling window and an as-of join (payments take the
order that is valid at their time), through a chain of three topics, and, with a tenth of all records on one key whose
rows hardly match, through the inner join again.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import joinery_jobs
from bench.peer import Figures, Peer
from bench.section import PARTITIONS, SHARDS, epoch_rows
from bench.topics import Workload, produce
from joinery_devkit.kafka import KafkaBroker

KEYS = {"orders.order_id": "payments.order_id"}
INTERVAL = {"of": "orders", "lower": "0s", "upper": "15m"}
STEP = {"right": "payments", "keys": KEYS, "interval": INTERVAL}
SELECT = ("orders.order_id", "orders.customer", "orders.amount", "payments.payment_id", "payments.method")
CHAIN = {"right": "shipments", "keys": {"payments.payment_id": "shipments.payment_id"},
         "interval": {"of": "payments", "lower": "0s", "upper": "15m"}}  # fmt: skip
AS_OF = {
    "right": "orders",
    "keys": {"payments.order_id": "orders.order_id"},
    "asOf": {"historyRetention": "15m", "grace": "10s"},
}
# Rows of the hot key are a second apart: each meets one or two of the other side.
NARROW = {"of": "orders", "lower": "0ms", "upper": "20ms"}

Kind = tuple[tuple[str, ...], list[Mapping[str, Any]], tuple[str, ...]]  # topics, steps, select
KINDS: dict[str, Kind] = {
    "inner": (("orders", "payments"), [STEP], SELECT),
    "left outer": (("orders", "payments"), [STEP | {"type": "left"}], SELECT),
    "tumbling": (("orders", "payments"), [{"right": "payments", "keys": KEYS, "window": {"tumbling": "15m"}}], SELECT),
    "as-of": (("payments", "orders"), [AS_OF], SELECT),
    "three-way": (("orders", "payments", "shipments"), [STEP, CHAIN], (*SELECT, "shipments.shipment_id")),
    "skewed": (("hot_orders", "hot_payments"), [STEP | {"interval": NARROW}], SELECT),
}


def run(work: Path, records: int, names: list[str] | None) -> list[Figures]:
    """Measure with `records` per topic; `names` names some of the kinds, None all of them."""
    kinds = [kind for kind in KINDS if names is None or kind in names]
    topics = sorted({topic for kind in kinds for topic in KINDS[kind][0]})
    figures = []
    with KafkaBroker() as broker:
        for topic in topics:
            broker.create_topic(topic, PARTITIONS)
        produce(broker.bootstrap, Workload(records, PARTITIONS), topics)
        for kind in kinds:
            peer = _peer(kind, broker.bootstrap, records, work)
            ended = joinery_jobs.run_to_end(peer)
            figures.append(
                Figures(
                    peer.name,
                    peer.settings_after_run(),
                    ended.rows,
                    ended.rows_out,
                    cold_rate=ended.cold_rate,
                    warm_rate=ended.warm_rate,
                    cold_cpu_us=ended.cpu_us,
                    peak_bytes=ended.peak_bytes,
                )
            )
            shutil.rmtree(peer.folder, ignore_errors=True)
            print(f"  {kind}: {ended.cold_rate:,.0f} rows/s", file=sys.stderr, flush=True)
    return figures


def _peer(kind: str, bootstrap: str, records: int, work: Path) -> Peer:
    topics, steps, select = KINDS[kind]
    slug = kind.replace(" ", "-")
    inputs = [
        joinery_jobs.kafka_input(topic.removeprefix("hot_"), bootstrap, topic=topic, stopAt="latest")
        for topic in topics
    ]
    if kind == "as-of":
        inputs[1]["table"] = {"key": ["order_id"]}
    spec = {
        "inputs": inputs,
        "joins": steps,
        "select": [{"column": column} for column in select],
        "output": joinery_jobs.to_files(work / slug / "rows"),
        "shards": SHARDS,
        "trigger": {"maxRecordsPerEpoch": epoch_rows(len(topics) * records)},
    }
    job = joinery_jobs.document("StreamJoin", slug, spec)
    return joinery_jobs.peer(
        f"Joinery, {kind}", f"{records:,} records of each of {', '.join(topics)}", job, work / slug
    )
