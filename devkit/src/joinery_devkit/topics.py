"""Reads whole topics, from the first record to the last stable one, with a plain consumer of its own, and makes
producers for topics whose records must stay in order."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from joinery_devkit.processes import deadline_after
from joinery_runtime.errors import SourceError
from joinery_runtime.job import Input

_PATIENCE_SECONDS = 60.0
_BATCH, _BATCH_SECONDS = 10_000, 0.2
_EPOCH = datetime.fromtimestamp(0, UTC)
_YEAR_1_MS, _YEAR_9999_END_MS = -62_135_596_800_000, 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a topic."""

    topic: str
    partition: int
    offset: int
    value: bytes | None
    headers: Mapping[str, str] = field(default_factory=dict)
    key: bytes | None = None


def ordered_producer(bootstrap: str, settings: Mapping[str, Any] = MappingProxyType({})) -> Producer:
    """Return a producer with these settings of librdkafka. It is idempotent: after a request that failed and was
    retried, as for a topic that was made a moment ago, another producer's records are in another order."""
    return Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **settings})


def read_topic(bootstrap: str, topic: str) -> list[Record]:
    """Every committed record of a topic, in offset order per partition."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": f"reader-{uuid4()}",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    consumer: Any = Consumer(settings)
    try:
        partitions = consumer.list_topics(topic, timeout=_PATIENCE_SECONDS).topics[topic].partitions
        return [record for number in sorted(partitions) for record in _read_partition(consumer, topic, number)]
    finally:
        consumer.close()


def read_dead_letters(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """Every committed dead letter of a topic: its facts, the `value`, and the same as `text`."""
    return [
        {
            **{name.removeprefix("joinery."): content for name, content in record.headers.items()},
            **{name: int(record.headers[f"joinery.{name}"]) for name in ("partition", "offset")},
            "value": record.value,
            "text": None if record.value is None else record.value.decode(errors="replace"),
        }
        for record in read_topic(bootstrap, topic)
    ]


def _read_partition(consumer: Any, topic: str, number: int) -> list[Record]:
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
    records: list[Record] = []
    deadline = deadline_after(_PATIENCE_SECONDS)
    while monotonic() < deadline:
        # Waits for a full batch, or until the time is up.
        for message in consumer.consume(_BATCH, _BATCH_SECONDS):
            if message.error() is None:
                headers = {name: content.decode() for name, content in message.headers() or ()}
                records.append(Record(topic, number, message.offset(), message.value(), headers, message.key()))
                deadline = deadline_after(_PATIENCE_SECONDS)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return records
            else:
                raise SourceError(f"{topic}-{number} cannot be read again", facts=message.error().str())
    raise SourceError(f"{topic}-{number} cannot be read again", facts=f"{len(records)} records came, then nothing")


def readable(side: Input, value: bytes | None) -> dict[str, Any] | None:
    """Return the record's columns; None if it belongs to the dead letters (T8). Timestamps become epoch milliseconds.

    Reads JSON only, and only the column types in `_READERS`.
    """
    try:
        row = json.loads(value or b"", parse_constant=_reject_constant)
        if not isinstance(row, dict):
            return None
        columns: dict[str, Any] = {}
        for name, kind in side.types.items():
            if kind.name not in _READERS:
                raise NotImplementedError(f"columns of type {kind.name}")
            content = row.get(name)
            columns[name] = None if content is None else _READERS[kind.name](content)
    except (ValueError, OverflowError):
        return None
    time = columns[side.event_time]
    return columns if time is not None and _YEAR_1_MS <= time <= _YEAR_9999_END_MS else None


def _reject_constant(constant: str) -> None:
    raise ValueError(constant)


def _integer_reader(bits: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise ValueError(value)
        return value

    return read


def _read_double(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(value)
    return float(value)


def _read_boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(value)
    return value


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise NotImplementedError(f"a text column that holds {value!r}: the product keeps its JSON text")
    return value


def milliseconds(value: Any) -> int:
    """Epoch milliseconds of a timestamp from a topic, a table or a file: a datetime, RFC 3339 text or milliseconds."""
    if type(value) is int:
        return value
    if isinstance(value, str) and value.removeprefix("-").isdecimal():
        return int(value)
    time = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    if time.tzinfo is None:
        raise ValueError(f"{value} has no offset")
    return (time - _EPOCH) // timedelta(milliseconds=1)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "boolean": _read_boolean,
    "int32": _integer_reader(32),
    "int64": _integer_reader(64),
    "double": _read_double,
    "string": _read_text,
    "timestamp": milliseconds,
}
