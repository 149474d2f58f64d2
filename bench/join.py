"""Inner interval join of 2 x N JSON records: this engine (into files, and into Kafka under both delivery guarantees),
Spark's own join, and the raw read, on the same topics in one run. Prints rows per second, ratios and peak memory, and
writes them as JSON.

    python bench/join.py --records 3000000 --out build/bench.json
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import run_job, run_raw, run_spark
from report import print_and_write
from topics import Workload, produce

from joinery_devkit.kafka import KafkaBroker

UPPER_MS = 900_000

JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: "{name}"}}
spec:
  inputs:
    - name: orders
      kafka: {{bootstrapServers: "{bootstrap}", topic: orders, stopAt: latest}}
      format: json
      schema:
        - {{name: order_id, type: string}}
        - {{name: customer, type: string}}
        - {{name: amount, type: double}}
        - {{name: ts, type: timestamp}}
      eventTime: ts
      watermark: {{delay: 10s}}
    - name: payments
      kafka: {{bootstrapServers: "{bootstrap}", topic: payments, stopAt: latest}}
      format: json
      schema:
        - {{name: payment_id, type: string}}
        - {{name: order_id, type: string}}
        - {{name: method, type: string}}
        - {{name: ts, type: timestamp}}
      eventTime: ts
      watermark: {{delay: 10s}}
  joins:
    - right: payments
      keys: {{orders.order_id: payments.order_id}}
      interval: {{of: orders, lower: 0s, upper: {upper}ms}}
  select:
    - {{column: orders.order_id}}
    - {{column: orders.customer}}
    - {{column: orders.amount}}
    - {{column: payments.payment_id}}
    - {{column: payments.method}}
    - {{column: payments.ts}}
  output: {output}
  deadLetter: {{file: {{path: "{dead}"}}}}
  delivery: {delivery}
  shards: {shards}
  trigger: {{maxRecordsPerEpoch: {epoch}}}
"""


@dataclass(frozen=True, slots=True)
class Sink:
    """What a run writes to. `name` is the job's too: each has a state of its own."""

    name: str
    output: str
    delivery: str = "exactlyOnce"


def sinks(bootstrap: str, work: Path) -> list[Sink]:
    kafka = '{{kafka: {{bootstrapServers: "{}", topic: {}}}}}'
    return [
        Sink("joinery", f'{{file: {{path: "{work / "joined"}"}}}}'),
        Sink("exactly-once", kafka.format(bootstrap, "exactly-once")),
        Sink("at-least-once", kafka.format(bootstrap, "at-least-once"), "atLeastOnce"),
    ]


def run_joinery(bootstrap: str, sink: Sink, arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    job = work / f"{sink.name}.yaml"
    job.write_text(
        JOB.format(
            name=sink.name,
            bootstrap=bootstrap,
            upper=UPPER_MS,
            output=sink.output,
            delivery=sink.delivery,
            dead=work / f"{sink.name}.dead",
            shards=arguments.shards,
            epoch=arguments.epoch,
        )
    )
    return run_job(job, work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=3_000_000, help="per topic")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--epoch", type=int, default=800_000, help="records per epoch, both topics together")
    parser.add_argument("--skip-spark", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with KafkaBroker() as broker, tempfile.TemporaryDirectory() as work:
        for topic in ("orders", "payments", "exactly-once", "at-least-once"):
            broker.create_topic(topic, partitions=arguments.partitions)
        produce(broker.bootstrap, Workload(arguments.records, arguments.partitions))
        everything = [(topic, list(range(arguments.partitions)), arguments.records) for topic in ("orders", "payments")]
        results = {"raw": run_raw(broker.bootstrap, everything)}
        for sink in sinks(broker.bootstrap, Path(work)):
            results[sink.name] = run_joinery(broker.bootstrap, sink, arguments, Path(work))
        if not arguments.skip_spark:
            results["spark"] = run_spark("spark_join.py", broker.bootstrap, UPPER_MS)
    print_and_write(results, arguments)


if __name__ == "__main__":
    main()
