"""Which sink a job gets, and what a job cannot have."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.rows import INCARNATION, attempt
from joinery_runtime.connectors.files.sink import FileSink
from joinery_runtime.connectors.kafka.sink import KafkaSink, KafkaWriter
from joinery_runtime.connectors.kafka.transactions import KafkaTransactionsSink, KafkaTransactionsWriter
from joinery_runtime.connectors.outputs import Outputs, forget_output
from joinery_runtime.connectors.postgres.external import ExternalPostgresSink
from joinery_runtime.connectors.postgres.sink import PostgresSink
from joinery_runtime.connectors.postgres.table import TargetTable
from joinery_runtime.connectors.sink import short_incarnation
from joinery_runtime.errors import SinkError
from joinery_runtime.formats.avro.encode import AvroOutput
from joinery_runtime.formats.protobuf.encode import ProtobufOutput
from joinery_runtime.job import SessionWindow, StreamJoin
from joinery_runtime.job.model.outputs import DeadLetter, Output


@dataclass(frozen=True)
class Store:
    dsn: str = "dbname=x"
    schema: str = "joinery"


def job(**spec: Any) -> StreamJoin:
    side = {
        "kafka": {"bootstrapServers": "here:1", "topic": "t"},
        "format": "json",
        "schema": [{"name": "k", "type": "string"}, {"name": "ts", "type": "timestamp"}],
        "eventTime": "ts",
    }
    join = {"right": "b", "type": "inner", "keys": {"a.k": "b.k"}, "interval": {"of": "a", "lower": 0, "upper": "1ms"}}
    complete_spec = {"inputs": [{"name": "a", **side}, {"name": "b", **side}], "joins": [join], **spec}
    return StreamJoin.model_validate(
        {"apiVersion": "joinery.dev/v1alpha1", "kind": "StreamJoin", "metadata": {"name": "j"}, "spec": complete_spec}
    )


def sessions(**spec: Any) -> SessionWindow:
    side = {
        "name": "a",
        "file": {"path": "in.jsonl"},
        "format": "json",
        "schema": [{"name": "k", "type": "string"}, {"name": "ts", "type": "timestamp"}],
        "eventTime": "ts",
    }
    complete_spec = {"input": side, "groupBy": ["k"], "gap": "30s", "maxDuration": "2h", **spec}
    return SessionWindow.model_validate({"metadata": {"name": "j"}, "spec": complete_spec})


def test_rows_in_avro_are_for_the_registry_that_the_output_names() -> None:
    named = {"url": "http://r", "properties": {"basic.auth.user.info": "me:secret"}}
    output = {"kafka": {"bootstrapServers": "here:1", "topic": "out"}, "format": "avro", "schemaRegistry": named}
    for delivery in ("exactlyOnce", "atLeastOnce"):
        writer = Outputs.of(job(output=output, delivery=delivery)).sink(None).writer()
        assert isinstance(writer, KafkaWriter | KafkaTransactionsWriter)
        avro = writer.target.schema_output
        assert isinstance(avro, AvroOutput)
        assert (avro.topic, avro.url, avro.properties) == ("out", "http://r", named["properties"])
        assert {field["name"] for field in json.loads(avro.schema())["fields"]} >= {"a_k", "b_ts"}
        assert "secret" not in repr(writer)


def test_rows_in_protobuf_are_for_it_too() -> None:
    output = {"kafka": {"bootstrapServers": "here:1", "topic": "out"}, "format": "protobuf"}
    writer = Outputs.of(job(output={**output, "schemaRegistry": {"url": "http://r"}})).sink(None).writer()
    assert isinstance(writer, KafkaTransactionsWriter)
    protobuf = writer.target.schema_output
    assert isinstance(protobuf, ProtobufOutput)
    assert "  optional string a_k = 1;" in protobuf.schema({}, 0)


def forget(job: StreamJoin | SessionWindow, store: Store, incarnation: str | None) -> str | None:
    return forget_output(job.name, job.outputs, job.spec.dead_letter, store, incarnation)


def table_of(job: StreamJoin | SessionWindow) -> TargetTable:
    sink = Outputs.of(job).sink(Store())
    assert isinstance(sink, PostgresSink)
    return sink.target


@pytest.mark.parametrize("target", ["kafka", "file", "console"])
def test_the_jobs_form_of_timestamps_reaches_what_writes_them(target: str) -> None:
    outputs: dict[str, Any] = {
        "kafka": {"bootstrapServers": "127.0.0.1:1", "topic": "out"}, "file": {"path": "out"}, "console": {}
    }  # fmt: skip
    writer: Any = Outputs.of(job(output={target: outputs[target], "timestamps": "rfc3339"})).sink(None).writer()
    assert (writer.target if target == "kafka" else writer).style.timestamps == "rfc3339"


def test_one_sink_per_kind_of_output() -> None:
    kafka = {"kafka": {"bootstrapServers": "here:1", "topic": "out"}}
    assert isinstance(Outputs.of(job(output=kafka, delivery="atLeastOnce")).sink(None), KafkaSink)
    assert isinstance(Outputs.of(job(output=kafka)).sink(None), KafkaTransactionsSink)
    assert isinstance(Outputs.of(job(output={"file": {"path": "out"}})).sink(None), FileSink)
    assert isinstance(Outputs.of(job(output={"postgres": {"table": "out"}})).sink(Store()), PostgresSink)


def test_claims_and_marks_name_job_and_shard() -> None:
    named = job(output={"kafka": {"bootstrapServers": "here:1", "topic": "out"}}, deadLetter={"kafka": {"topic": "d"}})
    assert Outputs.of(named).sink(None).writer().names.of(3, "1f-2e") == "j-1f2e-3"
    assert Outputs.of(named).dead_letter_sink().writer().names.of(3, "1f-2e") == "j-1f2e-dead"


def test_a_table_needs_the_state_beside_it() -> None:
    with pytest.raises(SinkError, match="output table out needs the state in Postgres too"):
        Outputs.of(job(output={"postgres": {"table": "out"}})).sink(None)


def test_dead_letters() -> None:
    output = {"file": {"path": "out"}}
    assert Outputs.of(job(output=output)).dead_letter_sink() is None
    assert isinstance(
        Outputs.of(job(output=output, deadLetter={"file": {"path": "dead"}})).dead_letter_sink(), FileSink
    )
    dead = {"kafka": {"topic": "dead"}}
    assert isinstance(Outputs.of(job(output=output, deadLetter=dead)).dead_letter_sink(), KafkaTransactionsSink)
    assert isinstance(
        Outputs.of(job(output=output, deadLetter=dead, delivery="atLeastOnce")).dead_letter_sink(), KafkaSink
    )


class QueueOutput(Output):
    """A kind of output that the models have and no sink was written for."""

    queue: str | None = None


class QueueDeadLetter(DeadLetter):
    queue: str | None = None


def test_an_output_that_no_sink_writes_to_is_an_error_and_never_a_file() -> None:
    valid = job(output={"file": {"path": "out"}})
    spec = valid.spec.model_copy(update={"output": QueueOutput(queue="q"), "dead_letter": QueueDeadLetter(queue="d")})
    unknown = valid.model_copy(update={"spec": spec})
    with pytest.raises(SinkError, match="No sink writes to output: queue"):
        Outputs.of(unknown).sink(Store())
    with pytest.raises(SinkError, match="No sink writes to deadLetter: queue"):
        Outputs.of(unknown).dead_letter_sink()


def test_a_table_of_joined_rows_is_appended_to_unless_a_key_is_named() -> None:
    assert table_of(job(output={"postgres": {"table": "t"}})) == TargetTable("t")
    assert table_of(job(output={"postgres": {"table": "t", "upsertKey": ["a_k"]}})) == TargetTable(
        "t", ("a_k",), ordered=True
    )


def test_sessions_replace_each_other_in_a_table() -> None:
    output = {"postgres": {"table": "t"}}
    assert table_of(sessions(output=output)) == TargetTable("t", ("k", "session_id"))
    assert table_of(sessions(output=output, emitRetractions=True)) == TargetTable("t", ("k", "session_id"), "retracted")
    named = {"postgres": {"table": "t", "upsertKey": ["k", "window_start"]}}
    assert table_of(sessions(output=named)) == TargetTable("t", ("k", "window_start"), ordered=True)


@pytest.mark.parametrize(
    ("dsn", "kind"), [(None, PostgresSink), ("dbname=x", PostgresSink), ("dbname=y", ExternalPostgresSink)]
)
def test_a_table_in_another_database_than_the_state_s(dsn: str | None, kind: type) -> None:
    spec = {"postgres": {"dsn": "dbname=x"}}
    sink = Outputs.of(job(output={"postgres": {"table": "t", "dsn": dsn}}, stateStore=spec)).sink(Store())
    assert type(sink) is kind


@pytest.mark.services
def test_a_database_that_has_gone_keeps_no_job_from_being_deleted(postgres_dsn: str) -> None:
    unreachable = job(output={"postgres": {"table": "t", "dsn": "host=127.0.0.1 port=1"}})
    left = forget(unreachable, Store(postgres_dsn), None)
    assert left is not None
    assert "are left in the database of output.postgres: " in left
    assert forget(job(output={"postgres": {"table": "t", "dsn": postgres_dsn}}), Store(postgres_dsn), None) is None


@pytest.mark.services
def test_rows_that_were_held_are_named_when_the_job_is_deleted(postgres_dsn: str, tmp_path: Path) -> None:
    rolled_job = job(output={"file": {"path": str(tmp_path), "rollInterval": "1m"}})
    assert forget(rolled_job, Store(postgres_dsn), INCARNATION) is None
    sink = Outputs.of(rolled_job).sink(None, INCARNATION)
    sink.prepare(pa.schema({"a": pa.int64()}))
    sink.publish(1, [sink.writer().write(attempt(), pa.table({"a": [1, 2]}))])
    left = forget(rolled_job, Store(postgres_dsn), INCARNATION)
    assert left == (
        f"2 rows are left that nobody has seen yet: remove {tmp_path / '.held'}/*-of-{short_incarnation(INCARNATION)}.*"
    )
    assert forget(rolled_job, Store(postgres_dsn), "another-life") is None, "rows of a job that lives"
    external = {"postgres": {"table": "t", "dsn": "host=127.0.0.1 port=1"}}
    both = forget(job(output=external, deadLetter={"file": {"path": str(tmp_path)}}), Store(postgres_dsn), INCARNATION)
    assert both is not None
    assert both.startswith(f"{left}; Staging tables of job j are left in the database of output.postgres: ")
