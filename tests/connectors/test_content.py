"""What is read back from an output is what was written, of every type."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition

from connectors.lake.test_lake import Lake, written
from connectors.postgres.committed import commit
from connectors.rows import EVERY_TYPE, INCARNATION, ROWS, attempt
from formats.registry import registry
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_runtime.connectors import content as content_of_outputs
from joinery_runtime.connectors.content import SEPARATOR, Content, KafkaContent, KafkaRecords
from joinery_runtime.connectors.kafka import errors as kafka_errors
from joinery_runtime.connectors.kafka.target import KafkaTarget
from joinery_runtime.connectors.postgres.sink import PostgresSink
from joinery_runtime.connectors.postgres.table import TargetTable
from joinery_runtime.connectors.table_content import LakeContent, PostgresContent
from joinery_runtime.errors import SinkError
from joinery_runtime.formats.avro.encode import AvroOutput
from joinery_runtime.formats.json.encode import rows_to_json
from joinery_runtime.formats.protobuf.encode import ProtobufOutput
from joinery_runtime.formats.registry.output import SchemaOutput, schema_frame


def texts(content: Content) -> list[bytes]:
    return [text for piece in content.pieces() for text in piece.texts]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_every_type_in_a_lake(kind: str, tmp_path: Path) -> None:
    lake = Lake(kind, tmp_path)
    sink = lake.sink(EVERY_TYPE)
    sink.prepare(EVERY_TYPE)
    content = LakeContent(sink.table, "job", INCARNATION, EVERY_TYPE, 0)
    assert (content.complete_to, texts(content)) == (0, [])
    sink.publish(7, [written(sink, ROWS, epoch=7)])
    opened = lake.sink(EVERY_TYPE).table  # a table tells the mark that it had when it was read last
    content = LakeContent(opened, "job", INCARNATION, EVERY_TYPE, 3)
    assert content.complete_to == 7
    assert [piece.is_own for piece in content.pieces()] == [True]
    assert texts(content) == content.texts(ROWS)
    assert LakeContent(opened, "job", "another-life", EVERY_TYPE, 3).complete_to == 3
    assert len(set(texts(content))) == 2


@pytest.mark.parametrize("kind", [AvroOutput, ProtobufOutput])
def test_every_type_in_a_format_with_a_registry(kind: type[SchemaOutput]) -> None:
    """Also twice from the same schema; what has no schema of the registry, or is cut off, is shown as it is."""
    with registry() as served:
        output = kind("joined", EVERY_TYPE, served.url, {"max.retries": "0"})
        records = output.register_once().encode(ROWS)
        strange = [b"", b"{}", b"\0\0\0\7\7" + records[0][5:], records[0][:-3]]
        lines = rows_to_json(ROWS)
        assert output.lines([*records, *strange, *records]) == [*lines, *strange, *lines]


@pytest.mark.parametrize("kind", [AvroOutput, ProtobufOutput])
def test_a_record_from_before_a_column_was_added_has_null_there(kind: type[SchemaOutput]) -> None:
    newer = pa.schema({"day": pa.timestamp("ms"), "a": pa.string(), "n": pa.int64()})
    older, row = pa.schema([newer.field("a"), newer.field("n")]), {"a": "x", "n": 7}
    with registry() as served:
        records = [
            record
            for schema in (older, newer)
            for record in kind("joined", schema, served.url, {"max.retries": "0"})
            .register_once()
            .encode(pa.Table.from_pylist([row], schema))
        ]
        assert records[0] != records[1]
        output = kind("joined", newer, served.url, {"max.retries": "0"})
        assert output.lines(records) == [b'{"day":null,"a":"x","n":7}'] * 2


@pytest.mark.parametrize("fields", ["optional string other = 1;", "optional string a = 1; int64 day = 2;"])
def test_a_message_that_is_none_of_the_rows_is_shown_as_it_is(fields: str) -> None:
    schema = pa.schema({"day": pa.timestamp("ms"), "a": pa.string()})
    with registry() as served:
        number = served.add(f'syntax = "proto3"; message Y {{ {fields} }}', "PROTOBUF")
        record = schema_frame(number) + b"\0\x0a\1x\x10\5"
        assert ProtobufOutput("joined", schema, served.url, {"max.retries": "0"}).lines([record] * 2) == [record] * 2


def test_a_null_reads_as_the_default_where_a_field_has_no_presence(monkeypatch: pytest.MonkeyPatch) -> None:
    """So what is expected there is the default; a key says whether the value was null. A price or a day is no empty
    text, so these stay apart."""
    schema = pa.schema(
        {"a": pa.string(), "n": pa.int64(), "b": pa.string(), "price": pa.decimal128(9, 2), "raw": pa.binary()}
    )
    text = """syntax = "proto3"; message X {
        string a = 1; int64 n = 2; optional string b = 3; string price = 4; bytes raw = 5; }"""
    rows = pa.Table.from_pylist([dict.fromkeys(schema.names), {"a": "x", "n": 7, "b": ""}, {"a": "", "n": 0}], schema)
    with registry() as served:
        output = ProtobufOutput("joined", schema, served.url, {"max.retries": "0"})
        served.subjects["joined-value", 1] = served.add(text, "PROTOBUF")
        served.subjects["joined-value", 2] = served.add(text.replace("string a", "optional string a"), "PROTOBUF")
        assert output.defaults() == {"a": "", "n": 0, "raw": b""}
        monkeypatch.setattr(KafkaContent, "_reject_compacted", lambda self: None)
        monkeypatch.setattr(KafkaRecords, "_asked_ranges", lambda self: {})
        target = KafkaTarget("joined", "nowhere:1", key=("a",), headers={}, schema_output=output)
        content = KafkaContent(target, 0)
        records = output.register_once().encode(rows)
        values = [value.split(SEPARATOR)[0] for value in content.texts(rows)]
        assert output.lines(records, output.defaults()) == values
        assert [json.loads(value)["b"] for value in values] == [None, "", None]
        assert [value.split(SEPARATOR)[1] for value in content.texts(rows)] == [b"\\N", b"x", b""]
        content.close()


class Starting:
    """A consumer of a topic with one partition, whose broker gives these answers."""

    def __init__(self, *answers: tuple[int, int]) -> None:
        self.answers = list(answers)

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=[0])})

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float, *, cached: bool) -> tuple[int, int]:
        return self.answers.pop(0)

    def close(self) -> None:
        """There is no connection."""


def test_a_topic_whose_broker_is_starting_is_not_taken_for_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_errors, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(KafkaContent, "_reject_compacted", lambda self: None)
    monkeypatch.setattr(KafkaTarget, "connect", lambda *_: Starting((-1001, -1001), (0, -1001), (0, 7)))
    assert KafkaContent(KafkaTarget("joined", "nowhere:1"), 0)._records.ranges == {0: (0, 7)}


def test_a_transaction_that_is_about_to_end_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker answers a commit before the records can be seen, and rows of a committed epoch would seem to be lost."""
    monkeypatch.setattr(kafka_errors, "RETRY_SECONDS", 0.0)

    def connect(_: object, __: object, settings: Mapping[str, Any], ___: object) -> Starting:
        return (
            Starting((0, 7)) if settings["isolation.level"] == "read_uncommitted" else Starting((0, 5), (0, 5), (0, 8))
        )

    monkeypatch.setattr(KafkaTarget, "connect", connect)
    records = KafkaRecords(KafkaTarget("joined", "nowhere:1"), "group")
    assert (records.ranges, records.notes) == ({0: (0, 8)}, [])


@pytest.mark.services
def test_a_transaction_that_stays_open_is_named(kafka_broker: KafkaAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_of_outputs, "_END_SECONDS", 0.0)
    topic = "open-transaction"
    kafka_broker.create_topic(topic)
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"row")
    producer.flush(60)
    with closing(KafkaRecords(KafkaTarget(topic, kafka_broker.bootstrap), "group")) as records:
        assert records.ranges == {0: (0, 0)}
    assert records.notes == [
        f"a transaction has been open in {topic}-0 for 0 s or longer: records from offset 0 on cannot be seen until it "
        "has ended"
    ]
    producer.abort_transaction(60)


@pytest.mark.services
@pytest.mark.parametrize("external", [False], indirect=True)
def test_every_type_in_postgres(
    dsn: str, table: str, connection: psycopg.Connection, make: Callable[..., PostgresSink]
) -> None:
    sink = make(EVERY_TYPE)
    receipt = sink.writer().write(attempt(), ROWS)
    commit(connection, sink, 1, receipt)
    content = PostgresContent(dsn, TargetTable(table), EVERY_TYPE, lambda: 1, None)
    assert sorted(texts(content)) == sorted(content.texts(ROWS))
    content.close()
    # A value that the column may hold and the output's type may not.
    connection.execute(f"ALTER TABLE {table} ALTER session TYPE numeric")
    connection.execute(f"UPDATE {table} SET session = -1")
    content = PostgresContent(dsn, TargetTable(table), EVERY_TYPE, lambda: 1, None)
    with pytest.raises(SinkError, match="it has a value that its job cannot have written"):
        texts(content)
    content.close()


@pytest.mark.services
@pytest.mark.parametrize("external", [False, True], indirect=True)
def test_json_is_jsonb_in_postgres(
    dsn: str, table: str, connection: psycopg.Connection, make: Callable[..., PostgresSink]
) -> None:
    schema = pa.schema({"k": pa.int64(), "doc": pa.string()})
    sink = make(schema, "k", nested=frozenset({"doc"}))
    docs = ['{"b": 1.10, "a": [1e2, -0.0, "\\u00e9"], "a": {"x": null}}', "null", None, "[-0, 12e-1]"]
    rows = pa.table({"k": range(4), "doc": docs}, schema=schema)
    commit(connection, sink, 1, sink.writer().write(attempt(), rows))
    stored = connection.execute(f"SELECT pg_typeof(doc)::text, doc->>'b' FROM {table} ORDER BY k").fetchall()
    assert stored == [("jsonb", "1.10"), *[("jsonb", None)] * 3]
    content = PostgresContent(dsn, TargetTable(table, nested=frozenset({"doc"})), schema, lambda: 1, None)
    assert sorted(texts(content)) == sorted(content.texts(rows))
    content.close()


@pytest.mark.services
@pytest.mark.parametrize("external", [False], indirect=True)
def test_a_table_is_read_between_two_commits(dsn: str, table: str, make: Callable[..., PostgresSink]) -> None:
    make(EVERY_TYPE)
    epochs = iter([3, 4, 5, 6, 7, 7])
    content = PostgresContent(dsn, TargetTable(table), EVERY_TYPE, lambda: next(epochs), None)
    assert content.complete_to == 7
    content.close()
    endless = iter(range(10_000))
    with pytest.raises(SinkError, match="cannot be read between two commits"):
        PostgresContent(dsn, TargetTable(table), EVERY_TYPE, lambda: next(endless), None)
