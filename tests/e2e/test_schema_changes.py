"""Producers change their schema while the job runs: one driver reads old and new records, and sets aside what it
cannot read."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from google.protobuf import message_factory

from e2e.driver_process import Run
from e2e.jobs import Job, fresh_name, json_rows, order, payment, produce
from formats.registry import registry
from formats.test_avro_decoder import avro
from formats.test_protobuf_decoder import framed, message
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_runtime.formats.registry.protobuf_schemas import compile_schema

pytestmark = [pytest.mark.services, pytest.mark.slow]

FIELDS = [{"name": "id", "type": "string"}, {"name": "amount", "type": "int"}, {"name": "ts", "type": "long"}]
AVRO = [
    {"type": "record", "name": "Order", "fields": FIELDS},
    {"type": "record", "name": "Order", "fields": [{"name": "note", "type": "string"}, *FIELDS]},
    {"type": "record", "name": "Order", "fields": [FIELDS[0], {"name": "amount", "type": "string"}, FIELDS[2]]},
]
PROTOBUF = [
    f'syntax = "proto3"; message Order {{ string id = 1; {fields} int64 ts = 3; }}'
    for fields in ("int32 amount = 2;", "int32 amount = 2; string note = 4;", "string amount = 5;")
]


def encoded(kind: str, version: int, number: int, value: dict[str, Any]) -> bytes:
    if kind == "avro":
        return avro(AVRO[version], value, number)
    return framed(number, message(PROTOBUF[version], value))


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_old_and_new_records_in_one_run(kind: str, kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path) -> None:
    name, dead = fresh_name(), tmp_path / "dead"
    table = name.replace("-", "_")
    for side in ("orders", "payments"):
        kafka_broker.create_topic(f"{name}.{side}")
    output = f"{{postgres: {{table: {table}}}}}"
    extra = f'deadLetter: {{file: {{path: "{dead}"}}}}'
    store = f'{{postgres: {{dsn: "{postgres_dsn}"}}}}'
    job = Job(name, kafka_broker.bootstrap, store, output, stop_at="{}", extra=extra)

    def produced(version: int, number: int, value: dict[str, Any]) -> None:
        produce(job.bootstrap, f"{name}.orders", [encoded(kind, version, number, value)])

    def rows() -> list[tuple[Any, ...]]:
        with psycopg.connect(postgres_dsn) as connection:
            return sorted(connection.execute(f'SELECT id, amount, note, paid FROM "{table}"').fetchall())

    with registry() as served:
        numbers = [served.add(schema, kind.upper()) for schema in (AVRO if kind == "avro" else PROTOBUF)]
        path = job.write(tmp_path)
        text = path.read_text().replace(
            "format: json\n", f'format: {kind}\n      schemaRegistry: {{url: "{served.url}"}}\n', 1
        )
        text = text.replace("{name: amount, type: int64}", "{name: amount, type: int64}, {name: note, type: string}")
        path.write_text(text.replace("{column: orders.amount}", "{column: orders.amount}, {column: orders.note}"))
        produce(job.bootstrap, f"{name}.payments", [payment(n) for n in (1, 2, 4)])
        produced(0, numbers[0], {"id": "o1", "amount": 1, "ts": 1_000})
        run = Run.start(path, "local[2,4]")
        try:
            run.wait_for("the old schema's row", lambda epochs: epochs and rows() == [("o1", 1, None, 10)])
            produced(1, numbers[1], {"id": "o2", "amount": 2, "ts": 2_000, "note": "new"})
            produced(2, numbers[2], {"id": "o3", "amount": "many", "ts": 3_000})
            produced(0, numbers[0], {"id": "o4", "amount": 4, "ts": 4_000})
            run.wait_for("the rows of both schemas", lambda _: len(rows()) == 3)
            assert run.stop() == 0, run.last_words
        finally:
            run.kill()
    assert rows() == [("o1", 1, None, 10), ("o2", 2, "new", 20), ("o4", 4, None, 40)]
    (letter,) = json_rows(dead)
    assert letter["reason"] == "column amount: 'many' is not a valid int64"


def plain(kind: str, schema: str, record: bytes) -> Any:
    if kind == "avro":
        return fastavro.schemaless_reader(io.BytesIO(record), fastavro.parse_schema(json.loads(schema)), None)
    read = message_factory.GetMessageClass(compile_schema(schema, {}).message_at([0])).FromString(
        record.removeprefix(b"\0")
    )
    return {field.name: value for field, value in read.ListFields()}


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_rows_come_out_once_with_their_schema_registered(
    kind: str, kafka_broker: KafkaAdmin, postgres_dsn: str, tmp_path: Path
) -> None:
    name = fresh_name()
    for topic in ("orders", "payments", "joined"):
        kafka_broker.create_topic(f"{name}.{topic}")
    with registry() as served:
        kafka = f'kafka: {{bootstrapServers: "{kafka_broker.bootstrap}", topic: {name}.joined, key: [id]}}'
        output = f'{{{kafka}, format: {kind}, schemaRegistry: {{url: "{served.url}"}}}}'
        job = Job(name, kafka_broker.bootstrap, f'{{postgres: {{dsn: "{postgres_dsn}"}}}}', output)
        produce(job.bootstrap, f"{name}.orders", [order(1), order(2)])
        produce(job.bootstrap, f"{name}.payments", [payment(1), payment(2)])
        run = Run.start(job.write(tmp_path), "local[2,4]")
        assert run.wait() == 0, run.last_words
        assert served.subjects == {(f"{name}.joined-value", 1): 1}
        schema = served.schemas[1]["schema"]
    settings = {"bootstrap.servers": job.bootstrap, "group.id": "t", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    consumer.assign([TopicPartition(f"{name}.joined", 0, 0)])
    rows = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        value = message.value()
        assert value[:5] == b"\0\0\0\0\x01"
        rows.append(plain(kind, schema, value[5:]))
    consumer.close()
    assert sorted(rows, key=str) == [{"id": f"o{n}", "amount": n, "paid": 10 * n} for n in (1, 2)]
