"""The limit: reads topics with confluent-kafka alone, two processes at once, and does nothing with the records."""

from __future__ import annotations

import gc
import json
import multiprocessing
import subprocess
import sys
import time

from confluent_kafka import Consumer, TopicPartition

from bench.peer import Figures
from bench.usage import cpu_seconds

Read = tuple[str, list[int], int]  # a topic, partitions of it, and how many records are in them


def measure_raw(bootstrap: str, reads: list[Read]) -> Figures:
    """`warm` counts from the first call of each client: nothing was read ahead."""
    rows = sum(records for _, _, records in reads)
    before, started = cpu_seconds(), time.monotonic()
    command = [sys.executable, "-m", "bench.raw_read", bootstrap, json.dumps(reads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    seconds, cpu = time.monotonic() - started, cpu_seconds() - before
    return Figures(
        "raw read, confluent-kafka",
        "two processes that discard the records; warm from the first call on",
        rows,
        cold_rate=rows / seconds,
        warm_rate=rows / float(done.stdout),
        cold_cpu_us=1e6 * cpu / rows,
    )


def read_topic(bootstrap: str, topic: str, partitions: list[int], records: int) -> float:
    """Return seconds from the first call to the last record."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "raw", "enable.auto.commit": False,
                         "isolation.level": "read_committed", "queued.min.messages": 1_000_000,
                         "fetch.message.max.bytes": 8 << 20})  # fmt: skip
    gc.set_threshold(200_000)  # as in this engine's tasks
    started = time.monotonic()
    consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
    seen = 0
    while seen < records:
        seen += len(consumer.consume(10_000, 1.0))
    seconds = time.monotonic() - started
    consumer.close()
    return seconds


def main(bootstrap: str, reads: list[Read]) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(max(pool.starmap(read_topic, [(bootstrap, *read) for read in reads])))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
