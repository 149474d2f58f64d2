"""The benchmark's data: two topics of orders and payments, the same bytes for every engine.

Event time advances RECORDS_PER_SECOND per topic; three quarters of the orders are paid within PAY_WITHIN_MS, records
are up to DISORDER_MS out of order. A record is about 100 bytes of JSON.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from confluent_kafka import Producer

START_MS = 1_760_000_000_000
RECORDS_PER_SECOND = 1_000
PAY_WITHIN_MS = 600_000
DISORDER_MS = 2_000
PAID = 0.75
HOT_EVERY = 10


@dataclass(frozen=True, slots=True)
class Workload:
    """`records` per topic, spread evenly over `partitions`."""

    records: int
    partitions: int


def produce(bootstrap: str, workload: Workload, topics: Sequence[str] = ("orders", "payments")) -> None:
    """Fills these topics of `TOPICS`, which must exist and be empty."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        pool.starmap(_produce_topic, [(bootstrap, workload, topic) for topic in topics])


def produce_records(bootstrap: str, topic: str, partitions: Sequence[Sequence[bytes]]) -> None:
    """Fills a topic that exists: partition number n with the nth list of records."""
    producer = _producer(bootstrap)
    for number, records in enumerate(partitions):
        _send(producer, topic, ((record, number) for record in records))


def _produce_topic(bootstrap: str, workload: Workload, topic: str) -> None:
    records = enumerate(TOPICS[topic](workload))
    _send(_producer(bootstrap), topic, ((record, number % workload.partitions) for number, record in records))


def _producer(bootstrap: str) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.size": 1 << 20,
                     "queue.buffering.max.messages": 1_000_000, "compression.type": "lz4"})  # fmt: skip


def _send(producer: Producer, topic: str, records: Iterable[tuple[bytes, int]]) -> None:
    """Records and their partitions."""
    for number, (record, partition) in enumerate(records):
        while True:
            try:
                producer.produce(topic, record, partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


def _orders(workload: Workload) -> Iterator[bytes]:
    random = np.random.default_rng(1)
    times = _times(workload, random)
    amounts = random.integers(100, 100_000, workload.records)
    for number, ts, amount in zip(range(workload.records), times.tolist(), amounts.tolist(), strict=True):
        yield (
            b'{"order_id":"o%09d","customer":"c%05d","amount":%d.%02d,"currency":"EUR","ts":%d}'
            % (number, number * 7919 % 50_000, amount // 100, amount % 100, ts)
        )


def _payments(workload: Workload) -> Iterator[bytes]:
    """Payment n at time t belongs to an order placed up to PAY_WITHIN_MS before t, or to none."""
    random = np.random.default_rng(2)
    times = _times(workload, random)
    back = random.integers(0, PAY_WITHIN_MS * RECORDS_PER_SECOND // 1000, workload.records)
    orders = np.arange(workload.records) - back
    orders[(random.random(workload.records) > PAID) | (orders < 0)] += 500_000_000
    for number, ts, order in zip(range(workload.records), times.tolist(), orders.tolist(), strict=True):
        yield b'{"payment_id":"p%09d","order_id":"o%09d","method":"card","paid":true,"ts":%d}' % (number, order, ts)


def _shipments(workload: Workload) -> Iterator[bytes]:
    """Payment n is shipped within PAY_WITHIN_MS: shipment n is of one up to that long before."""
    random = np.random.default_rng(3)
    times = _times(workload, random)
    paid = np.arange(workload.records) - random.integers(
        0, PAY_WITHIN_MS * RECORDS_PER_SECOND // 1000, workload.records
    )
    for number, ts, payment in zip(range(workload.records), times.tolist(), paid.tolist(), strict=True):
        yield b'{"shipment_id":"s%09d","payment_id":"p%09d","carrier":"post","ts":%d}' % (number, payment % 10**9, ts)


def _hot(records: Iterator[bytes]) -> Iterator[bytes]:
    """Every tenth record has the same order."""
    for number, record in enumerate(records):
        at = record.index(b'"order_id":"o') + 12
        yield record if number % HOT_EVERY else record[:at] + b"o000000000" + record[at + 10 :]


TOPICS: dict[str, Callable[[Workload], Iterator[bytes]]] = {
    "orders": _orders,
    "payments": _payments,
    "shipments": _shipments,
    "hot_orders": lambda workload: _hot(_orders(workload)),
    "hot_payments": lambda workload: _hot(_payments(workload)),
}


def _times(workload: Workload, random: np.random.Generator) -> np.ndarray:
    steady = START_MS + np.arange(workload.records) * 1000 // RECORDS_PER_SECOND
    return steady - random.integers(0, DISORDER_MS, workload.records)
