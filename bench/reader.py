"""What reading Kafka costs the processes that read, in CPU microseconds per record: the engine's reader alone.

Two readers stand for two Python workers. An epoch is two tasks of half of the partitions each; `--swaps` gives the
share of epochs in which each task runs in the other worker, as Spark may have it. `--pace` is how long a worker is busy
with a record, in microseconds: it sleeps that long, and the client reads ahead meanwhile.

    python bench/reader.py localhost:9092 orders --epoch 200000 --swaps 0.5 --property queued.min.messages=200000
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import time
from random import Random

from confluent_kafka import Consumer, TopicPartition

from joinery_runtime.connectors.inputs import reader_for
from joinery_runtime.connectors.kafka import record_clients as kafka_record_clients
from joinery_runtime.connectors.source import Range
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.job import Input


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--epoch", type=int, default=200_000, help="records of the topic per epoch")
    parser.add_argument("--swaps", type=float, default=0.0)
    parser.add_argument("--pace", type=float, default=1.0)
    parser.add_argument("--by-record", action="store_true", help="with Python's client, which is there for need")
    parser.add_argument("--property", action="append", default=[], help="librdkafka's name=value")
    return parser.parse_args()


def extent(bootstrap: str, topic: str) -> tuple[int, int]:
    """How many partitions there are, and the lowest of their ends."""
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
    partitions = len(client.list_topics(topic).topics[topic].partitions)
    ends = [client.get_watermark_offsets(TopicPartition(topic, number))[1] for number in range(partitions)]
    client.close()
    return partitions, int(min(ends))


def main() -> None:
    options, random = arguments(), Random(5)
    kafka = {"bootstrapServers": options.bootstrap, "topic": options.topic,
             "properties": dict(setting.split("=", 1) for setting in options.property)}  # fmt: skip
    schema = [{"name": "ts", "type": "timestamp"}]
    model = Input.model_validate({"name": "in", "kafka": kafka, "format": "json", "schema": schema, "eventTime": "ts"})
    partitions, end = extent(options.bootstrap, options.topic)
    step = options.epoch // partitions
    tasks = [range(partitions // 2), range(partitions // 2, partitions)]
    if options.by_record:
        kafka_record_clients.kernels = lambda _: None
    kafka_record_clients.kernels("messages")  # once per process
    gc.set_threshold(200_000)  # as in this engine's tasks
    readers = [reader_for(model) for _ in tasks]
    # Counted from the first record on: what a client has fetched before would be read for nothing.
    rows, swapped, began = 0, 0, (time.process_time(), time.thread_time(), time.monotonic())
    for start in range(0, end - step, step):
        swapped ^= random.random() < options.swaps
        for number, task in enumerate(tasks):
            reader = readers[number ^ swapped]
            ranges = [Range(PartitionRef("in", options.topic, partition), start, start + step) for partition in task]
            for batch in reader.read(*ranges):
                rows += len(batch.offsets)
                time.sleep(len(batch.offsets) * options.pace / 1e6)
    process, own = time.process_time() - began[0], time.thread_time() - began[1]
    figures = {"rows": rows, "us_of_tasks": own / rows * 1e6, "us_of_client_threads": (process - own) / rows * 1e6,
             "seconds": time.monotonic() - began[2],
             "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}  # fmt: skip
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}), flush=True)
    for reader in readers:
        reader.close()


if __name__ == "__main__":
    main()
