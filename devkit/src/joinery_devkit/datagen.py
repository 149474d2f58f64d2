"""Generates orders and payments as in a shop's topics: mostly in order, with every problem that real topics have.

The same seed gives the same records, in sending order. Event times cover an hour that starts at `FIRST_ORDER_MS`; the
caller decides how fast to send the records.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from joinery_runtime.job import parse_duration

Kind = Literal[
    "usual",  # arrives within seconds of its event time, more or less in order
    "slow",  # arrives minutes late: after the watermark has passed it, still in time to be joined
    "late",  # arrives so late that the job drops it (J6)
    "repeated",  # the same key once more
    "unmatched",  # a payment of an order that does not exist
    "outside",  # a payment after the interval
    "null_key",
    "cut_off",  # not JSON
    "no_object",  # JSON, but no object
    "wrong_type",
    "null_time",
    "no_time",
    "unreadable_time",
    "no_value",  # a tombstone
]
MALFORMED: tuple[Kind, ...] = (
    "cut_off",
    "no_object",
    "wrong_type",
    "null_time",
    "no_time",
    "unreadable_time",
    "no_value",
)

FIRST_ORDER_MS = int(datetime(2026, 3, 2, 9, tzinfo=UTC).timestamp() * 1000)
SPAN_MS = parse_duration("1h")
# The values in the demo's job, to which the kinds above refer.
INTERVAL_MS = (parse_duration("-5s"), parse_duration("5m"))
DELAY_MS = parse_duration("10s")
LATENESS_MS = parse_duration("30s")

_CURRENCIES = ("EUR",) * 6 + ("USD",) * 3 + ("GBP",)
_METHODS = ("card",) * 5 + ("transfer", "wallet", "wallet", "invoice")
_MINUTE = 60_000


ANY = -1


@dataclass(frozen=True, slots=True)
class GeneratedRecord:
    """One record to send. `arrival_ms` is the sending time on the event-time clock, by which records are sorted. With
    `partition` ANY, the producer chooses the partition by the key."""

    topic: str
    key: bytes
    value: bytes | None
    kind: Kind
    arrival_ms: int
    partition: int = ANY


def make(seed: int, orders: int) -> list[GeneratedRecord]:
    """`orders` orders and about 0.84 times as many payments, for topics `orders` and `payments`, in sending order."""
    chance = random.Random(seed)
    records = [record for number in range(orders) for record in _draw_order(chance, number, number * SPAN_MS // orders)]
    return sorted(records, key=lambda record: record.arrival_ms)


def kinds(records: Iterable[GeneratedRecord]) -> Mapping[Kind, int]:
    return Counter(record.kind for record in records)


def _draw_order(chance: random.Random, number: int, after_ms: int) -> list[GeneratedRecord]:
    """Return an order, perhaps twice, and its payments, perhaps none."""
    order_id, ts = f"O-{number:06d}", FIRST_ORDER_MS + after_ms
    order = {
        "order_id": order_id,
        "customer": f"C-{int(chance.paretovariate(0.8)) % 5000:04d}",
        "amount": round(chance.lognormvariate(3.5, 0.9), 2),
        "currency": chance.choice(_CURRENCIES),
        "ts": ts,
    }
    records = [_make_record(chance, "orders", order, ts, "usual")]
    if chance.random() < 0.01:
        records.append(_make_record(chance, "orders", order, ts, "repeated"))
    draw = chance.random()
    if draw < 0.18:
        return records
    parts = 2 if draw > 0.97 else 1
    kind: Kind = "outside" if draw < 0.21 else "unmatched" if draw < 0.22 else "usual"
    return [*records, *(_draw_payment(chance, order, ts, part, parts, kind) for part in range(parts))]


def _draw_payment(
    chance: random.Random, order: Mapping[str, Any], ordered_at: int, part: int, parts: int, kind: Kind
) -> GeneratedRecord:
    # Clocks differ: some payments seem to precede their order.
    wait = int(min(chance.expovariate(1 / 45_000), INTERVAL_MS[1])) - chance.choice((0, 0, 0, 1_500))
    if kind == "outside":
        wait = INTERVAL_MS[1] + chance.randrange(1, 10 * _MINUTE)
    ts = ordered_at + wait
    number = order["order_id"].removeprefix("O-")
    payment = {
        "payment_id": f"P-{number}-{part}",
        "order_id": f"O-X{number}" if kind == "unmatched" else order["order_id"],
        "method": chance.choice(_METHODS),
        "amount": round(order["amount"] / parts, 2),
        "ts": datetime.fromtimestamp(ts / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    payment_kind: Kind = "repeated" if part else kind
    return _make_record(chance, "payments", payment, ts, payment_kind)


def _make_record(chance: random.Random, topic: str, row: Mapping[str, Any], ts: int, kind: Kind) -> GeneratedRecord:
    """Return the row as a record, which may be damaged or delayed."""
    if kind == "usual":
        kind = _draw_accident(chance)
    value = encoded(row, kind, _CHANGES)
    if kind == "late":
        delivery_ms = INTERVAL_MS[1] + LATENESS_MS + DELAY_MS + chance.randrange(2 * _MINUTE, 15 * _MINUTE)
    elif kind == "slow":
        delivery_ms = chance.randrange(DELAY_MS, 4 * _MINUTE)
    else:
        delivery_ms = min(int(chance.expovariate(1 / 800)), DELAY_MS - 1)
    return GeneratedRecord(topic, str(row["order_id"]).encode(), value, kind, ts + delivery_ms)


def _draw_accident(chance: random.Random) -> Kind:
    luck = chance.random()
    for kind, share in _ACCIDENTS:
        luck -= share
        if luck < 0:
            return kind
    return "usual"


_ACCIDENTS: Sequence[tuple[Kind, float]] = (
    ("slow", 0.01),
    ("late", 0.003),
    ("null_key", 0.0005),
    *((kind, 0.0002) for kind in MALFORMED),
)


Changes = Mapping[Kind, Mapping[str, Any]]  # columns that replace a record's own, by kind


def encoded(row: Mapping[str, Any], kind: Kind, changes: Changes) -> bytes | None:
    """Return the value of the row's record; its event time is the column `ts`."""
    if kind == "no_value":
        return None
    content: Any = {**row, **changes.get(kind, {})}
    if kind == "no_object":
        content = list(row.values())
    elif kind == "no_time":
        del content["ts"]
    text = json.dumps(content).encode()
    return text[: len(text) * 2 // 3] if kind == "cut_off" else text


_CHANGES: Changes = {
    "null_key": {"order_id": None},
    "wrong_type": {"amount": "a lot"},
    "null_time": {"ts": None},
    "unreadable_time": {"ts": "yesterday"},
}
