"""Every kind of join on comparable data in one run: rows per second, and the ratio to the inner join.

The same orders and payments go through an inner, a left outer, a tumbling window and an as-of join (payments take the
order that is valid at their time), through a chain of three topics, and, with a tenth of all records on one key whose
rows hardly match, through the inner join again.

    python bench/kinds.py --records 1000000 --out build/kinds.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from measure import run_job
from topics import Workload, produce

from joinery_devkit.kafka import KafkaBroker

SCHEMAS: dict[str, dict[str, str]] = {
    "orders": {"order_id": "string", "customer": "string", "amount": "double", "ts": "timestamp"},
    "payments": {"payment_id": "string", "order_id": "string", "method": "string", "ts": "timestamp"},
    "shipments": {"shipment_id": "string", "payment_id": "string", "ts": "timestamp"},
}
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


def job(kind: str, bootstrap: str, arguments: argparse.Namespace, work: Path) -> Path:
    topics, steps, select = KINDS[kind]
    inputs = [_input(topic, bootstrap) for topic in topics]
    if kind == "as-of":
        inputs[1]["table"] = {"key": ["order_id"]}
    name = kind.replace(" ", "-")
    document = {
        "apiVersion": "joinery.dev/v1alpha1",
        "kind": "StreamJoin",
        "metadata": {"name": name},
        "spec": {
            "inputs": inputs,
            "joins": steps,
            "select": [{"column": column} for column in select],
            "output": {"file": {"path": str(work / f"{name}-rows")}},
            "deadLetter": {"file": {"path": str(work / f"{name}-dead")}},
            "shards": arguments.shards,
            "trigger": {"maxRecordsPerEpoch": arguments.epoch},
        },
    }
    path = work / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def _input(topic: str, bootstrap: str) -> dict[str, Any]:
    name = topic.removeprefix("hot_")
    return {
        "name": name,
        "kafka": {"bootstrapServers": bootstrap, "topic": topic, "stopAt": "latest"},
        "format": "json",
        "schema": [{"name": column, "type": kind} for column, kind in SCHEMAS[name].items()],
        "eventTime": "ts",
        "watermark": {"delay": "10s"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="per topic")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--epoch", type=int, default=400_000, help="records per epoch, all topics together")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    topics = sorted({topic for kind in arguments.kinds for topic in KINDS[kind][0]})
    results: dict[str, Any] = {}
    with KafkaBroker() as broker, tempfile.TemporaryDirectory() as work:
        for topic in topics:
            broker.create_topic(topic, partitions=arguments.partitions)
        produce(broker.bootstrap, Workload(arguments.records, arguments.partitions), topics)
        for kind in arguments.kinds:
            results[kind] = run_job(job(kind, broker.bootstrap, arguments, Path(work)), Path(work))
            _print(kind, results[kind], results.get("inner"))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(results, indent=2))


def _print(kind: str, result: dict[str, Any], inner: dict[str, Any] | None) -> None:
    ratio = f", {result['rate'] / inner['rate']:.2f} of inner" if inner else ""
    size = f"{result['rows']:,} rows in {result['seconds']:.1f} s, {result['rows_out']:,} out"
    steady = f"steady {result['steady_rate']:,.0f}"
    print(f"{kind:11} {result['rate']:>10,.0f} rows/s ({size}, {steady}, {result['peak_bytes'] / 1e9:.2f} GB){ratio}")


if __name__ == "__main__":
    main()
