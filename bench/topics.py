"""The benchmark's data: topics of orders, payments and shipments, the same bytes for every engine.

Event time advances RECORDS_PER_SECOND per topic; three quarters of the payments are of an order, records are up to
DISORDER_MS out of order. A record is about 100 bytes of JSON. As engines that do not shuffle need it, topics are keyed
by what they are joined by, and records of one key are in the partition of the same number in both.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from confluent_kafka import Producer

from joinery_devkit.topics import ordered_producer

START_MS = 1_760_000_000_000
RECORDS_PER_SECOND = 1_000
DISORDER_MS = 2_000
PAID = 0.75
HOT_EVERY = 10
_BY_PARTITIONER = -1  # the number of a partition that librdkafka's partitioner chooses
_NOBODY = 500_000_000  # added to the number of an order that was never placed

Keyed = tuple[int, bytes, bytes]  # number of the key, the key, the record


@dataclass(frozen=True, slots=True)
class Workload:
    """`records` per topic in `partitions`. A payment comes up to `paid_within_ms` after its order, a shipment up to
    that long after its payment; the first ones often have none. `partitioner`: librdkafka's name of what maps keys to
    partitions; None: the number of the key does."""

    records: int
    partitions: int
    paid_within_ms: int = 600_000
    partitioner: str | None = None

    @property
    def paid_within(self) -> int:
        """In records."""
        return self.paid_within_ms * RECORDS_PER_SECOND // 1000


def produce(bootstrap: str, workload: Workload, topics: Sequence[str] = ("orders", "payments")) -> None:
    """Fill these topics of `TOPICS`, which must exist and be empty."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        pool.starmap(_produce_topic, [(bootstrap, workload, topic) for topic in topics])


def produce_records(bootstrap: str, topic: str, partitions: Sequence[Iterable[tuple[bytes, bytes]]]) -> None:
    """Fill a topic that exists: partition number n with the nth list of keys and records."""
    producer = _open_producer(bootstrap)
    for number, records in enumerate(partitions):
        _send_records(producer, topic, ((number, key, record) for key, record in records))


def _produce_topic(bootstrap: str, workload: Workload, topic: str) -> None:
    keyed = TOPICS[topic](workload)
    if workload.partitioner is not None:
        producer = _open_producer(bootstrap, partitioner=workload.partitioner)
        _send_records(producer, topic, ((_BY_PARTITIONER, key, record) for _, key, record in keyed))
        return
    _send_records(
        _open_producer(bootstrap), topic, ((number % workload.partitions, key, record) for number, key, record in keyed)
    )


def _open_producer(bootstrap: str, **properties: str) -> Producer:
    batches = {"linger.ms": 50, "batch.size": 1 << 20, "compression.type": "lz4"}
    return ordered_producer(bootstrap, {**batches, "queue.buffering.max.messages": 1_000_000, **properties})


def _send_records(producer: Producer, topic: str, records: Iterable[Keyed]) -> None:
    """Each to the partition that it names; to that of the partitioner if it names _BY_PARTITIONER."""
    for number, (partition, key, record) in enumerate(records):
        while True:
            try:
                producer.produce(topic, record, key, partition)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


def _draw_orders(workload: Workload) -> Iterator[Keyed]:
    amounts, times = _order_values(workload)
    for number, ts, amount in zip(range(workload.records), times.tolist(), amounts.tolist(), strict=True):
        key = b"o%09d" % number
        value = b'{"order_id":"%b","customer":"c%05d","amount":%d.%02d,"currency":"EUR","ts":%d}'
        yield number, key, value % (key, number * 7919 % 50_000, amount // 100, amount % 100, ts)


def _order_values(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Return amounts in cents, and event times."""
    random = np.random.default_rng(1)
    times = _draw_times(workload, random)
    return random.integers(100, 100_000, workload.records), times


def _draw_payments(workload: Workload) -> Iterator[Keyed]:
    orders, times = _payment_values(workload)
    for number, ts, order in zip(range(workload.records), times.tolist(), orders.tolist(), strict=True):
        key = b"o%09d" % order
        value = b'{"payment_id":"p%09d","order_id":"%b","method":"card","paid":true,"ts":%d}'
        yield order, key, value % (number, key, ts)


def _payment_values(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of the orders that are paid, and event times."""
    random = np.random.default_rng(2)
    times = _draw_times(workload, random)
    orders = np.arange(workload.records) - random.integers(0, workload.paid_within, workload.records)
    orders[(random.random(workload.records) > PAID) | (orders < 0)] += _NOBODY
    return orders, times


def expected_pairs(workload: Workload, window_ms: int) -> pl.DataFrame:
    """Return what an inner join of orders and payments on the order with event times within `window_ms` puts out:
    order_id, customer, amount, payment_id, method. Computed from what the topics were made of."""
    (cents, ordered_at), (orders, paid_at) = _order_values(workload), _payment_values(workload)
    payments = np.flatnonzero((orders >= 0) & (orders < workload.records))
    payments = payments[np.abs(paid_at[payments] - ordered_at[orders[payments]]) <= window_ms]
    order = pl.Series("order", orders[payments])
    digits = pl.col("order").cast(pl.String).str.zfill(9)
    amounts = cents[orders[payments]] / 100  # by NumPy: Polars multiplies, which is not always the nearest double
    return pl.DataFrame({"order": order, "payment": payments, "amount": amounts}).select(
        order_id="o" + digits,
        customer="c" + (pl.col("order") * 7919 % 50_000).cast(pl.String).str.zfill(5),
        amount=pl.col("amount"),
        payment_id="p" + pl.col("payment").cast(pl.String).str.zfill(9),
        method=pl.lit("card"),
    )


def _draw_shipments(workload: Workload) -> Iterator[Keyed]:
    """Shipment n is of a payment up to `paid_within` before."""
    random = np.random.default_rng(3)
    times = _draw_times(workload, random)
    paid = np.arange(workload.records) - random.integers(0, workload.paid_within, workload.records)
    for number, ts, payment in zip(range(workload.records), times.tolist(), (paid % 10**9).tolist(), strict=True):
        key = b"p%09d" % payment
        yield payment, key, b'{"shipment_id":"s%09d","payment_id":"%b","carrier":"post","ts":%d}' % (number, key, ts)


def _with_hot_key(records: Iterator[Keyed]) -> Iterator[Keyed]:
    """Every tenth record has the same order."""
    for number, (order, key, record) in enumerate(records):
        at = record.index(b'"order_id":"') + len(b'"order_id":"')
        if number % HOT_EVERY:
            yield order, key, record
        else:
            yield 0, b"o000000000", record[:at] + b"o000000000" + record[at + 10 :]


TOPICS: dict[str, Callable[[Workload], Iterator[Keyed]]] = {
    "orders": _draw_orders,
    "payments": _draw_payments,
    "shipments": _draw_shipments,
    "hot_orders": lambda workload: _with_hot_key(_draw_orders(workload)),
    "hot_payments": lambda workload: _with_hot_key(_draw_payments(workload)),
}


def _draw_times(workload: Workload, random: np.random.Generator) -> np.ndarray:
    steady = START_MS + np.arange(workload.records) * 1000 // RECORDS_PER_SECOND
    return steady - random.integers(0, DISORDER_MS, workload.records)
