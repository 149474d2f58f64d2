"""Sessions of N clicks of 100,000 users (count and first page, 60 s gap): this engine, Spark's own `session_window` and
the raw read, on the same topic in one run. Prints rows per second, ratios and peak memory, and writes them as JSON.

Clicks are of any user at any time, 1,000 a second, so that there are very many short sessions; with `--visits` users
come for about six clicks five seconds apart.

    python bench/sessions.py --records 3000000 --out build/sessions.json
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measure import run_job, run_raw, run_spark
from report import print_and_write
from topics import produce_records

from joinery_devkit import clicks
from joinery_devkit.kafka import KafkaBroker

GAP_S = 60

JOB = """
apiVersion: joinery.dev/v1alpha1
kind: SessionWindow
metadata: {{name: sessions}}
spec:
  input:
    name: clicks
    kafka: {{bootstrapServers: "{bootstrap}", topic: clicks, stopAt: latest}}
    format: json
    schema:
      - {{name: user_id, type: string}}
      - {{name: page, type: string}}
      - {{name: ts, type: timestamp}}
    eventTime: ts
    watermark: {{delay: 10s}}
  groupBy: [user_id]
  gap: {gap}s
  maxDuration: 24h
  aggregates:
    - {{function: count, as: events}}
    - {{function: first, column: page, as: first_page}}
  output: {{file: {{path: "{output}"}}}}
  deadLetter: {{file: {{path: "{output}.dead"}}}}
  shards: {shards}
  trigger: {{maxRecordsPerEpoch: {epoch}}}
"""


def run_joinery(bootstrap: str, arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    job = work / "sessions.yaml"
    filled = {"bootstrap": bootstrap, "gap": GAP_S, "output": work / "sessions"}
    job.write_text(JOB.format(**filled, shards=arguments.shards, epoch=arguments.epoch))
    return run_job(job, work)


def scattered(load: clicks.Load) -> clicks.Clicks:
    chance = np.random.default_rng(load.seed)
    users, pages = (chance.integers(0, most, load.clicks) for most in (load.users, clicks.PAGES))
    sent = clicks.FIRST_CLICK_MS + np.arange(load.clicks) * 1000 // load.per_second
    return clicks.Clicks(users, pages, sent - chance.integers(0, load.disorder_ms, load.clicks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--epoch", type=int, default=1_000_000, help="records per epoch")
    parser.add_argument("--visits", action="store_true")
    parser.add_argument("--skip-spark", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with KafkaBroker() as broker, tempfile.TemporaryDirectory() as work:
        broker.create_topic("clicks", partitions=arguments.partitions)
        load = clicks.Load(arguments.records, arguments.users, arguments.partitions)
        drawn = clicks.draw(load) if arguments.visits else scattered(load)
        parts = clicks.by_partition(drawn, arguments.partitions)
        produce_records(broker.bootstrap, "clicks", [clicks.records(part) for part in parts])
        results = {
            "raw": run_raw(broker.bootstrap, [("clicks", [p], len(part)) for p, part in enumerate(parts)]),
            "joinery": run_joinery(broker.bootstrap, arguments, Path(work)),
        }
        if not arguments.skip_spark:
            results["spark"] = run_spark("spark_sessions.py", broker.bootstrap, GAP_S)
    print_and_write(results, arguments)


if __name__ == "__main__":
    main()
