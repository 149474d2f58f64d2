"""Table inputs against a real broker: upserts, tombstones by their keys, and tombstones that name no key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from connectors.kafka.kafka_bench import ref, unique
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.topics import ordered_producer
from joinery_runtime.connectors.inputs import decoder_for, reader_for
from joinery_runtime.connectors.source import Range
from joinery_runtime.engine.read_report import DeadLetters
from joinery_runtime.formats.batch import RawBatch
from joinery_runtime.formats.records import Decoded
from joinery_runtime.job import Input

pytestmark = pytest.mark.services

Record = tuple[bytes | None, bytes | None, int]  # key, value, timestamp
T = 1_700_000_000_000  # the topics keep it, however old it is


def table_input(broker: KafkaAdmin, topic: str, **table: Any) -> Input:
    return Input.model_validate(
        {
            "name": "in",
            "kafka": {"bootstrapServers": broker.bootstrap, "topic": topic},
            "format": "json",
            "schema": [
                {"name": "id", "type": "int64"},
                {"name": "rate", "type": "double"},
                {"name": "ts", "type": "int64"},
            ],
            "eventTime": "ts",
            "table": {"key": ["id"], **table},
        }
    )


@pytest.fixture
def topic(broker: KafkaAdmin) -> str:
    name: str = unique("table")
    broker.create_topic(name, config={"retention.ms": "-1"})
    return name


def send(broker: KafkaAdmin, topic: str, records: Sequence[Record]) -> None:
    client = ordered_producer(broker.bootstrap, {"linger.ms": 0})
    for key, value, timestamp in records:
        client.produce(topic, value, key=key, partition=0, timestamp=timestamp)
    assert client.flush(30) == 0


def decoded_batches(model: Input, topic: str, *ranges: tuple[int, int]) -> list[tuple[RawBatch, Decoded]]:
    decoder = decoder_for(model)
    with closing(reader_for(model)) as reader:
        raws = [raw for start, end in ranges for raw in reader.read(Range(ref(topic), start, end))]
    return [(raw, decoder.decode_batch(raw)) for raw in raws]


def rows(batches: Sequence[tuple[RawBatch, Decoded]]) -> list[tuple[int, int, float | None, int, bool]]:
    """(offset, id, rate, ts, deleted) of every row."""
    decoded_rows = []
    for raw, decoded in batches:
        assert decoded.deleted is not None
        offsets, deleted = raw.offsets[decoded.index].tolist(), decoded.deleted.tolist()
        for offset, row, is_deleted in zip(offsets, decoded.rows.to_pylist(), deleted, strict=True):
            decoded_rows.append((offset, row["id"], row["rate"], row["ts"], is_deleted))
    return decoded_rows


def upsert(number: int, rate: float, ts: int) -> bytes:
    return json.dumps({"id": number, "rate": rate, "ts": ts}).encode()


@pytest.mark.parametrize(("key_format", "key"), [("json", b'{"id": 7}'), ("string", b"7")])
def test_upserts_and_tombstones(broker: KafkaAdmin, topic: str, key_format: str, key: bytes) -> None:
    send(
        broker,
        topic,
        [(key, upsert(7, 1.5, 10), T), (key, None, T + 1), (None, upsert(7, 2.5, 20), T + 2), (key, None, T + 3)],
    )
    batches = decoded_batches(table_input(broker, topic, keyFormat=key_format), topic, (0, 4))
    assert rows(batches) == [
        (0, 7, 1.5, 10, False),
        (1, 7, None, T + 1, True),
        (2, 7, 2.5, 20, False),
        (3, 7, None, T + 3, True),
    ]
    assert not any(decoded.bad for _, decoded in batches)


def test_change_events_of_debezium_with_their_tombstones(broker: KafkaAdmin, topic: str, way: str) -> None:
    def change(op: str, row: dict[str, Any], ts: int) -> bytes:
        sides = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
        return json.dumps({"schema": {}, "payload": {**sides, "op": op, "source": {"ts_ms": ts}}}).encode()

    key = b'{"schema": {}, "payload": {"id": 7}}'
    created, deleted = change("c", {"id": 7, "rate": 1.5}, 10), change("d", {"id": 7}, 20)
    send(broker, topic, [(key, created, T), (key, deleted, T + 1), (key, None, T + 1)])
    side = table_input(broker, topic).model_dump(by_alias=True, exclude_none=True) | {"format": "debezium-json"}
    side["schema"][2].update({"from": "envelope", "path": "source.ts_ms"})
    batches = decoded_batches(Input.model_validate(side), topic, (0, 3))
    assert rows(batches) == [(0, 7, 1.5, 10, False), (1, 7, None, 20, True)]
    assert [(decoded.bad, decoded.dropped) for _, decoded in batches] == [([], {"tombstone": 1})]


def test_tombstones_that_name_no_key_go_to_the_dead_letters(broker: KafkaAdmin, topic: str, way: str) -> None:
    send(
        broker, topic, [(b"7", None, T), (b'{"id": 7}', None, T + 1), (None, None, T + 2), (b'{"ID": 7}', None, T + 3)]
    )
    ((raw, decoded),) = decoded_batches(table_input(broker, topic), topic, (0, 4))
    assert rows([(raw, decoded)]) == [(1, 7, None, T + 1, True)]
    dead = DeadLetters.of(raw, decoded.bad).rows.to_pylist()
    assert [(row["offset"], row["value"], row["reason"]) for row in dead] == [
        (0, None, "deletion (null value) by record key '7': not a JSON object but a number (keyFormat json)"),
        (2, None, "deletion (null value) without a record key"),
        (3, None, "deletion (null value) by record key '{\"ID\": 7}': column id is missing or null (keyFormat json)"),
    ]


def test_keys_and_timestamps_stay_with_their_records_across_ranges(broker: KafkaAdmin, topic: str, way: str) -> None:
    """A range may end within what the client has fetched; the rest waits for the next one."""
    total = 3_000
    send(broker, topic, [(b"%d" % number, None, T + number) for number in range(total)])
    cuts = [0, 1, 999, 1_000, 2_500, total]
    model = table_input(broker, topic, keyFormat="string")
    batches = decoded_batches(model, topic, *pairwise(cuts))
    assert rows(batches) == [(number, number, None, T + number, True) for number in range(total)]


def test_a_plain_input_reads_no_keys(broker: KafkaAdmin, topic: str, way: str) -> None:
    send(broker, topic, [(b"7", upsert(7, 1.5, 10), T)])
    plain = table_input(broker, topic).model_copy(update={"table": None})
    ((raw, decoded),) = decoded_batches(plain, topic, (0, 1))
    assert raw.keys is None
    assert decoded.deleted is None


def test_timestamps_of_chosen_records(broker: KafkaAdmin, topic: str, way: str) -> None:
    send(broker, topic, [(None, upsert(n, 1.5, 10), T + n) for n in range(6)])
    plain = table_input(broker, topic).model_copy(update={"table": None})
    for raw, _ in decoded_batches(plain, topic, (0, 2), (2, 6)):
        assert raw.timestamps is not None
        chosen = np.arange(len(raw.offsets))[::-1]
        assert raw.timestamps(chosen).tolist() == (T + raw.offsets[chosen]).tolist()
