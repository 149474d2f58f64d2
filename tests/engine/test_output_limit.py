"""Output rows that are too large for their target, in one process and after a replay (rule T8)."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource

from joinery_runtime.connectors.kafka.target import KafkaTarget, RecordLimit
from joinery_runtime.connectors.outputs import Outputs
from joinery_runtime.job import parse_job

ROWS = pa.record_batch({"id": ["a", "b", "c"], "text": ["x", "é" * 600, '"' * 600]})


def excess(rows: pa.RecordBatch, limit: int, **how: Any) -> list[int] | None:
    target = KafkaTarget("out", "here:1", properties={"message.max.bytes": str(limit + 128)}, **how)
    sizes = RecordLimit(target, "output").excess(rows)
    return None if sizes is None else sizes.tolist()


def test_a_size_is_that_of_the_record_as_it_is_written() -> None:
    assert excess(ROWS, 1_300) is None
    assert excess(ROWS, 1_200) == [0, 1_220, 1_220]
    assert excess(ROWS, 1_220) is None
    assert excess(ROWS, 1_220, key=("id",)) == [0, 1_221, 1_221]
    assert excess(ROWS, 1_220, headers={"h": "id"}) == [0, 1_222, 1_222]
    assert excess(ROWS.slice(0, 1), 1_221) is None


def test_a_topic_that_takes_less_than_the_client_decides() -> None:
    limit = RecordLimit(KafkaTarget("out", "here:1"), "large")
    assert limit.excess(ROWS) is None
    assert limit.at_most({"small": 100}) == limit.at_most({"large": 2_000_000}) == limit
    lower = limit.at_most({"large": 1_219, "small": 100})
    sizes = lower.excess(ROWS)
    assert sizes is not None
    assert sizes.tolist() == [0, 1_220, 1_220]
    assert lower.words == "topic out takes 1,219 (its max.message.bytes)"


def test_rows_that_cannot_be_too_large_are_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaTarget, "records", lambda *_: pytest.fail("encoded"))
    assert excess(ROWS.slice(0, 1), 10_000) is None
    numbers = pa.record_batch({"n": np.arange(10), "at": pa.array([0] * 10, pa.timestamp("ms", tz="UTC"))})
    assert excess(numbers, 10_000) is None


SEVERAL = """outputs:
    - {name: low, kafka: {bootstrapServers: "here:1", topic: low}}
    - {name: denied, kafka: {bootstrapServers: "here:1", topic: denied}}
    - {name: silent, kafka: {bootstrapServers: "here:1", topic: silent}}
    - {name: high, kafka: {bootstrapServers: "here:1", topic: high}}
    - {name: packed, kafka: {bootstrapServers: "here:1", topic: low-too, properties: {compression.type: zstd}}}
    - {name: rows, file: {path: out}}
  deadLetter: {file: {path: dead}}"""


def test_a_plan_has_the_limits_that_this_user_may_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the ACL DescribeConfigs a topic has no limit in the plan, and its brokers reject what is too large."""
    limits = {"low": 2_000, "low-too": 2_000, "high": 5_000_000}

    class Admin:
        def describe_configs(
            self, resources: list[ConfigResource], request_timeout: float
        ) -> dict[object, Future[Any]]:
            (resource,) = resources
            answer: Future[Any] = Future()
            if resource.name == "denied":
                answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
            elif resource.name == "silent":
                answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
            else:
                answer.set_result({"max.message.bytes": SimpleNamespace(value=str(limits[resource.name]))})
            return {resource: answer}

    monkeypatch.setattr(KafkaTarget, "admin", lambda *_: Admin())
    text = (Path(__file__).parents[2] / "examples" / "first.yaml").read_text().replace("output: {console: {}}", SEVERAL)
    outputs = Outputs.of(parse_job(text.replace("stateStore: {memory: {}}", "shards: 1"), "job.yaml"))
    assert outputs.topic_row_limits() == {"low": 1_872}


@pytest.mark.parametrize("output", ["file: {path: out}", "console: {}", "postgres: {table: t}"])
def test_other_outputs_take_any_row(output: str) -> None:
    text = (Path(__file__).parents[2] / "examples" / "first.yaml").read_text().replace("console: {}", output)
    job = parse_job(text.replace("stateStore: {memory: {}}", "shards: 1"), "job.yaml")
    assert Outputs.of(job).row_limit() is None
