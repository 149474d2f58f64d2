"""A quota of a real broker slows a job's output and does not end it."""

from __future__ import annotations

import random
import time

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from connectors.kafka.kafka_bench import eventually
from connectors.rows import attempt
from joinery_devkit.kafka_admin import limit_producers
from joinery_runtime.connectors.kafka.producers import Producers
from joinery_runtime.connectors.kafka.target import KafkaTarget
from joinery_runtime.connectors.kafka.transactions import PartNames, PartWrite

pytestmark = [pytest.mark.services, pytest.mark.slow]

BYTES_PER_S = 20_000
ROWS, ROW_BYTES = 400, 1_000
DELIVERY_MS = 4_000


def test_a_quota_slows_the_job_instead_of_ending_it(kafka_broker) -> None:
    """The rows of one transaction take several times as long as `delivery.timeout.ms`. Kafka lets ten seconds' worth of
    bytes through before it throttles."""
    kafka_broker.create_topic("throttled")
    limit_producers(kafka_broker.bootstrap, "throttled", BYTES_PER_S)
    # Small requests: the broker makes a producer wait for as long as its last one was too large.
    properties = {"client.id": "throttled", "delivery.timeout.ms": str(DELIVERY_MS), "batch.size": "10000"}
    target = KafkaTarget("throttled", kafka_broker.bootstrap, properties=properties)
    rows = pa.table({"raw": [random.Random(row).randbytes(ROW_BYTES * 3 // 4) for row in range(ROWS)]})
    began = time.monotonic()
    receipt = PartWrite(target, PartNames("throttled"), attempt(), rows, Producers()).run()
    assert time.monotonic() - began > 2 * DELIVERY_MS / 1000, "the broker did not throttle"
    assert receipt["rows"] == ROWS
    assert "repeated" not in receipt
    consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap, "group.id": "quota"})
    end = (0, ROWS + 1)  # with the commit's mark, which the broker writes some time after it has answered
    eventually(lambda: consumer.get_watermark_offsets(TopicPartition("throttled", 0), 30) == end)
    consumer.close()
