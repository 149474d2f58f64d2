"""Dead letters in a topic, exactly once and at least once: the record's bytes and the facts; records of any size."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from connectors.rows import attempt
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_devkit.topics import read_dead_letters, read_topic
from joinery_runtime.connectors.kafka.sink import KafkaSink, KafkaWriter
from joinery_runtime.connectors.kafka.target import DeadLetterTarget, KafkaTarget
from joinery_runtime.connectors.kafka.transactions import KafkaTransactionsWriter, PartNames
from joinery_runtime.connectors.sink import DEAD_LETTER_SCHEMA, dead_letter_rows
from joinery_runtime.errors import SinkError

pytestmark = pytest.mark.services
_names = (f"dead-{number}" for number in count())


def letters(*values: bytes | None, reason: str = "not JSON") -> pa.Table:
    offsets = list(range(len(values)))
    rows = dead_letter_rows(
        input_name="orders", topic="shop.orders", partition=3, offsets=offsets, reasons=[reason] * len(values),
        values=pa.array(values, pa.binary()),
    )  # fmt: skip
    return pa.Table.from_batches([rows])


def exactly_once(target: KafkaTarget) -> Any:
    return KafkaTransactionsWriter(target, PartNames(f"job-{target.topic}", dead_letters=True))


Writer = Callable[[KafkaTarget], Any]
both = pytest.mark.parametrize("writer", [exactly_once, KafkaWriter])


def write(broker: KafkaAdmin, writer: Writer, rows: pa.Table, **limits: Any) -> list[dict[str, Any]]:
    topic = next(_names)
    broker.create_topic(topic, config=limits.get("topic"))
    writer(DeadLetterTarget.of(topic, broker.bootstrap, limits.get("client", {}))).write(attempt(), rows)
    return read_dead_letters(broker.bootstrap, topic)


@both
def test_a_value_is_the_records_bytes_and_the_headers_are_the_facts(kafka_broker, writer: Writer) -> None:
    values = (b"\xff\x00torn{", b"", None, "é".encode())
    assert write(kafka_broker, writer, letters(*values)) == [
        {
            "input": "orders", "topic": "shop.orders", "partition": 3, "offset": offset, "reason": "not JSON",
            "value": value, "text": None if value is None else value.decode(errors="replace"),
        }
        for offset, value in enumerate(values)
    ]  # fmt: skip


@both
@pytest.mark.parametrize(
    ("size", "limits"),
    [
        (990_000, {}),
        (990_000, {"topic": {"max.message.bytes": "20000"}}),
        (2_000_000, {}),
        (2_000_000, {"client": {"message.max.bytes": "3000000"}}),
        (2_000_000, {"client": {"message.max.bytes": "3000000", "compression.type": "gzip"}}),
        (2_000_000, {"topic": {"max.message.bytes": "2000"}}),
    ],
    ids=["fits", "small topic", "large", "large for the topic alone", "compressed", "large, for a tiny topic"],
)
def test_a_record_of_any_size_fits(kafka_broker, writer: Writer, size: int, limits: dict[str, Any]) -> None:
    small, large = b"{", bytes(number * 7919 % 251 for number in range(size))
    rows = letters(small, large, small, reason="r" * 3_000)
    written = write(kafka_broker, writer, rows, **limits)
    first, second, third = written[-3:]
    assert len(written) == 3 or writer is KafkaWriter  # at least once: a refused batch does not take back the others
    assert (first["value"], third["value"]) == (small, small)
    assert [row["offset"] for row in (first, second, third)] == [0, 1, 2]
    assert large.startswith(second["value"])
    if second["value"] != large:
        assert second["size"] == str(size)
        assert second["sha256"] == hashlib.sha256(large).hexdigest()
    limit = int(limits.get("topic", {}).get("max.message.bytes", 1_000_000))
    assert len(second["value"]) >= min(size, limit - 2_200)
    assert (second["value"] == large) == (size < limit or "compression.type" in limits.get("client", {}))


@both
def test_small_rows_for_a_topic_with_a_small_limit(kafka_broker, writer: Writer) -> None:
    """The broker compares the limit with the batch, whatever the size of its records."""
    topic = next(_names)
    kafka_broker.create_topic(topic, config={"max.message.bytes": "20000"})
    rows = pa.table({"text": ["x" * 100] * 5_000})
    assert writer(KafkaTarget(topic, kafka_broker.bootstrap)).write(attempt(), rows)["rows"] == 5_000
    assert len(read_topic(kafka_broker.bootstrap, topic)) == 5_000


@both
def test_a_row_that_does_not_fit_is_shown(kafka_broker, writer: Writer) -> None:
    topic = next(_names)
    kafka_broker.create_topic(topic)
    rows = pa.table({"id": ["a", "b", "c"], "text": ["x", "y" * 2_000_000, "z"]})
    shown = r'the largest row has 2,000,020 bytes and begins {"id":"b","text":"yyy'
    with pytest.raises(SinkError, match=rf"^Output topic {topic}: .*{shown}"):
        writer(KafkaTarget(topic, kafka_broker.bootstrap)).write(attempt(), rows)


@both
def test_a_topic_that_takes_no_facts_is_told_from_an_output(kafka_broker, writer: Writer) -> None:
    with pytest.raises(SinkError, match=r"^Dead-letter topic .*Raise max\.message\.bytes of the topic, to") as refusal:
        write(kafka_broker, writer, letters(b"{"), topic={"max.message.bytes": "100"})
    assert "go to spec.deadLetter" not in str(refusal.value)


def test_a_topic_that_takes_no_facts_is_rejected_at_the_start(kafka_broker) -> None:
    small, least = next(_names), next(_names)
    kafka_broker.create_topic(small, config={"max.message.bytes": "1023"})
    kafka_broker.create_topic(least, config={"max.message.bytes": "1024"})
    says = (
        rf"^Dead-letter topic {small}: its max\.message\.bytes is 1023: .*Set max\.message\.bytes of the topic to 10000"
    )
    with pytest.raises(SinkError, match=says):
        KafkaSink(DeadLetterTarget.of(small, kafka_broker.bootstrap, {})).prepare(DEAD_LETTER_SCHEMA)
    target = DeadLetterTarget.of(least, kafka_broker.bootstrap, {})
    KafkaSink(target).prepare(DEAD_LETTER_SCHEMA)
    longest = dead_letter_rows(
        input_name="i" * 253, topic="t" * 249, partition=99_999, offsets=[2**62], reasons=["r" * 3_000],
        values=pa.array([b"v" * 3_000], pa.binary()),
    )  # fmt: skip
    KafkaWriter(target).write(attempt(), pa.Table.from_batches([longest]))
    (written,) = read_dead_letters(kafka_broker.bootstrap, least)
    assert (written["topic"], written["offset"], written["size"]) == ("t" * 249, 2**62, "3000")


def test_an_error_names_its_topic(kafka_broker) -> None:
    """Both topics share producers if the job's settings do."""
    topics = [next(_names), next(_names)]
    for topic in topics:
        kafka_broker.create_topic(topic, config={"max.message.bytes": "20000"})
    for topic in topics:
        writer = KafkaTransactionsWriter(KafkaTarget(topic, kafka_broker.bootstrap), PartNames("job-names"))
        writer.write(attempt(), pa.table({"text": ["x"]}))
        with pytest.raises(SinkError, match=f"^Output topic {topic}: rows were not written: .*too large"):
            writer.write(attempt(epoch=2), pa.table({"text": ["x" * 30_000]}))
