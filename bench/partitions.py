"""What many partitions cost: the same interval join over topics of 1, 8, 100 and 500 partitions, in small epochs and in
large ones. Prints, for each, how long an epoch takes once workers and consumers are warm.

With `--steady`, records come at a steady rate for so many seconds while the job runs, into a topic and exactly once.
Prints how many records waited in the middle of that time and at its end, and how long epochs took.

    python -m bench.partitions --partitions 1,8,100,500 --out build/partitions.json
    python -m bench.partitions --partitions 500 --steady 120 --out build/steady.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench import joinery_jobs, latency
from bench.peer import running
from bench.topics import Workload, produce
from joinery_devkit.kafka import KafkaBroker

JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: partitions}}
spec:
  inputs:
    - name: orders
      kafka: {{bootstrapServers: "{bootstrap}", topic: orders, stopAt: latest}}
      format: json
      schema: [{{name: order_id, type: string}}, {{name: amount, type: double}}, {{name: ts, type: timestamp}}]
      eventTime: ts
      watermark: {{delay: 10s}}
    - name: payments
      kafka: {{bootstrapServers: "{bootstrap}", topic: payments, stopAt: latest}}
      format: json
      schema: [{{name: payment_id, type: string}}, {{name: order_id, type: string}}, {{name: ts, type: timestamp}}]
      eventTime: ts
      watermark: {{delay: 10s}}
  joins:
    - right: payments
      keys: {{orders.order_id: payments.order_id}}
      interval: {{of: orders, lower: 0s, upper: 10s}}
  output: {{file: {{path: "{out}"}}}}
  delivery: atLeastOnce
  stateStore: {{memory: {{}}}}
  trigger: {{maxRecordsPerEpoch: {epoch}}}
"""

# Records per epoch and, so that there are some warm epochs, per topic.
EPOCHS = {1_000: 12_500, 500_000: 1_500_000}
COLD = 5  # epochs in which workers start and consumers connect, at most a third of all


def measure(partitions: int, epoch: int) -> dict[str, Any]:
    with KafkaBroker() as broker, tempfile.TemporaryDirectory() as folder:
        for topic in ("orders", "payments"):
            broker.create_topic(topic, partitions)
        produce(broker.bootstrap, Workload(EPOCHS[epoch], partitions))
        job = Path(folder, "job.yaml")
        job.write_text(JOB.format(bootstrap=broker.bootstrap, out=Path(folder, "out"), epoch=epoch))
        command = [str(Path(sys.executable).with_name("joinery")), "run", str(job), "--master", "local[2,4]"]
        environment = os.environ | {"JOINERY_HOME": str(Path(folder, "home"))}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    seconds = [line["seconds"] for line in lines if line["event"] == "epoch" and sum(line["rows_in"].values())]
    warm = seconds[min(COLD, len(seconds) // 3) :]
    return {
        "partitions": partitions,
        "records_per_epoch": epoch,
        "epochs": len(seconds),
        "median_seconds": round(median(warm), 3),
        "highest_seconds": round(max(warm), 3),
    }


def measure_steady(partitions: int, seconds: float) -> dict[str, Any]:
    """Return records of both topics that were sent and not committed, looked at once a second: medians of the third
    fifth of the time and of the last one."""
    with KafkaBroker() as broker, tempfile.TemporaryDirectory() as folder:
        for topic in ("orders", "payments"):
            broker.create_topic(topic, partitions)
        broker.create_topic("joined", 2)
        job = joinery_jobs.document("StreamJoin", "steady", latency.spec(broker.bootstrap, "joined", "earliest"))
        peer = joinery_jobs.peer("steady", "", job, Path(folder))
        backlogs: list[int] = []
        with running(peer) as ended:
            while not joinery_jobs.epochs_in(peer.log) and ended() is None:
                time.sleep(0.5)
            # One batch for each partition and tick would be the broker's limit, not ours.
            with latency.Sender(broker.bootstrap, partitions, linger_ms=1_000) as sender:
                until = time.monotonic() + seconds
                while time.monotonic() < until and ended() is None:
                    time.sleep(1)
                    backlogs.append(sender.sent - sum(map(joinery_jobs.rows_in, joinery_jobs.epochs_in(peer.log))))
            ending = ended()
        if ending is not None:
            raise SystemExit(f"{ending}\n{(peer.folder / 'log').read_text()[-2000:]}")
        epoch_seconds = [epoch["seconds"] for epoch in joinery_jobs.epochs_in(peer.log) if joinery_jobs.rows_in(epoch)]
    fifth = len(backlogs) // 5
    return {
        "partitions": partitions,
        "records_per_second": round(sender.sent / seconds),
        "seconds": seconds,
        "sender_slips": sender.slips,
        "backlog_middle": median(backlogs[2 * fifth : 3 * fifth]),
        "backlog_end": median(backlogs[-fifth:]),
        "epochs": len(epoch_seconds),
        "median_seconds": round(median(epoch_seconds[COLD:]), 3),
        "highest_seconds": round(max(epoch_seconds[COLD:]), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steady", type=float, help="seconds")
    parser.add_argument("--partitions", default="1,8,100,500")
    parser.add_argument("--epochs", default=",".join(map(str, EPOCHS)), help="records per epoch")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    results = []
    for partitions in map(int, arguments.partitions.split(",")):
        if arguments.steady:
            results.append(measure_steady(partitions, arguments.steady))
            print(json.dumps(results[-1]), flush=True)
            continue
        for epoch in map(int, arguments.epochs.split(",")):
            results.append(measure(partitions, epoch))
            print(json.dumps(results[-1]), flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
