"""Which sink a job gets, and what a job cannot have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from joinery_runtime.errors import SinkError
from joinery_runtime.job import StreamJoin
from joinery_runtime.sinks import dead_letter_sink, sink_for
from joinery_runtime.sinks.files import FileSink
from joinery_runtime.sinks.kafka import KafkaSink
from joinery_runtime.sinks.kafka_transactions import KafkaTransactionsSink
from joinery_runtime.sinks.postgres import PostgresSink


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
    join = {"right": "b", "type": "inner", "keys": {"a.k": "b.k"}, "interval": {"of": "a", "lower": 0, "upper": 1}}
    whole = {"inputs": [{"name": "a", **side}, {"name": "b", **side}], "joins": [join], **spec}
    return StreamJoin.model_validate(
        {"apiVersion": "joinery.dev/v1alpha1", "kind": "StreamJoin", "metadata": {"name": "j"}, "spec": whole}
    )


def test_one_sink_per_kind_of_output() -> None:
    kafka = {"kafka": {"bootstrapServers": "here:1", "topic": "out"}}
    assert isinstance(sink_for(job(output=kafka, delivery="atLeastOnce"), None), KafkaSink)
    assert isinstance(sink_for(job(output=kafka), None), KafkaTransactionsSink)
    assert isinstance(sink_for(job(output={"file": {"path": "out"}}), None), FileSink)
    assert isinstance(sink_for(job(output={"postgres": {"table": "out"}}), Store()), PostgresSink)


def test_claims_and_marks_name_job_and_shard() -> None:
    named = job(output={"kafka": {"bootstrapServers": "here:1", "topic": "out"}}, deadLetter={"kafka": {"topic": "d"}})
    assert sink_for(named, None).writer().names.of(3) == "j-3"
    assert dead_letter_sink(named).writer().names.of(3) == "j-dead"


def test_a_table_needs_the_state_beside_it() -> None:
    with pytest.raises(SinkError, match="output table out needs the state in Postgres too"):
        sink_for(job(output={"postgres": {"table": "out"}}), None)


def test_dead_letters() -> None:
    output = {"file": {"path": "out"}}
    assert dead_letter_sink(job(output=output)) is None
    assert isinstance(dead_letter_sink(job(output=output, deadLetter={"file": {"path": "dead"}})), FileSink)
    dead = {"kafka": {"topic": "dead"}}
    assert isinstance(dead_letter_sink(job(output=output, deadLetter=dead)), KafkaTransactionsSink)
    assert isinstance(dead_letter_sink(job(output=output, deadLetter=dead, delivery="atLeastOnce")), KafkaSink)
