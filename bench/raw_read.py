"""The limit: reads both topics with confluent-kafka alone, one process per topic, and does nothing with the records."""

from __future__ import annotations

import json
import multiprocessing
import sys
import time

from confluent_kafka import Consumer, TopicPartition


def read_topic(bootstrap: str, topic: str, partitions: int, records: int) -> float:
    """Seconds from the first call to the last record."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "raw", "enable.auto.commit": False,
                         "isolation.level": "read_committed", "queued.min.messages": 1_000_000,
                         "fetch.message.max.bytes": 8 << 20})  # fmt: skip
    started = time.monotonic()
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    seen = 0
    while seen < records:
        seen += len(consumer.consume(10_000, 1.0))
    seconds = time.monotonic() - started
    consumer.close()
    return seconds


def main(bootstrap: str, partitions: int, records: int) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        seconds = pool.starmap(read_topic, [(bootstrap, t, partitions, records) for t in ("orders", "payments")])
    print(json.dumps({"seconds": max(seconds), "rows": 2 * records}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
