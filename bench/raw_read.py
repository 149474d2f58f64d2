"""The limit: reads topics with confluent-kafka alone, two processes at once, and does nothing with the records."""

from __future__ import annotations

import gc
import json
import multiprocessing
import sys
import time

from confluent_kafka import Consumer, TopicPartition

Read = tuple[str, list[int], int]  # a topic, partitions of it, and how many records are in them


def read_topic(bootstrap: str, topic: str, partitions: list[int], records: int) -> float:
    """Seconds from the first call to the last record."""
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
        seconds = pool.starmap(read_topic, [(bootstrap, *read) for read in reads])
    print(json.dumps({"seconds": max(seconds), "rows": sum(records for _, _, records in reads)}))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
