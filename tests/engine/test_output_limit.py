"""Output rows that are too large for their target, in one process and after a replay (rule T8)."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource

from connectors.rows import attempt
from joinery_runtime.connectors.kafka.target import KafkaTarget, RecordLimit
from joinery_runtime.connectors.outputs import Outputs
from joinery_runtime.connectors.sink import Attempt, AttemptRows, Receipt
from joinery_runtime.engine.output_limit import OutputLimit, ReplayableBatches
from joinery_runtime.errors import RecordTooLarge, WrittenWithOtherLimit
from joinery_runtime.job import parse_job
from joinery_runtime.job.model.outputs import ONLY_OUTPUT

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


class Brokers:
    """Writes the rows of a shard and epoch in one transaction, as `connectors.kafka.transactions` does. The brokers
    reject rows over `takes`; another attempt has written the rows with the limit `marker`, if that is a tuple."""

    def __init__(self, takes: int, marker: tuple[int | None] | None = None) -> None:
        self._takes, self._marker, self.writes = takes, marker, 0

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        self.writes += 1
        assert self.writes < 10, "writes for ever"
        sizes = [size for batch in rows.to_batches() for size in excess(batch, 0) or []]
        assert attempt.row_limits is not None
        limit = attempt.row_limits.get(ONLY_OUTPUT)
        if self._marker is not None and self._marker != (limit,):
            raise WrittenWithOtherLimit("written", row_limit=self._marker[0])
        if self._marker is None and max(sizes, default=0) > self._takes:
            raise RecordTooLarge("rejected", row_limit=self._takes)
        return {"rows": sum(batch.num_rows for batch in rows.to_batches())}


@pytest.mark.parametrize(
    ("marker", "known_limit", "written", "writes"),
    [
        (None, None, 1, 2),
        (None, 50_000, 1, 2),
        ((1_219,), None, 1, 2),
        ((1_219,), 10, 1, 2),
        ((5_000,), 10, 3, 2),
        ((None,), 10, 3, 2),
        ((None,), None, 3, 1),
    ],
)
def test_a_limit_is_that_of_the_attempt_whose_rows_are_in_the_topic(
    marker: tuple[int | None] | None, known_limit: int | None, written: int, writes: int
) -> None:
    """The brokers take 1,219 bytes now, which may be less or more than they took for the attempt before."""
    step: Any = None  # only dead letters need it
    planned = RecordLimit(KafkaTarget("out", "here:1"), ONLY_OUTPUT)
    limit = OutputLimit(planned, step, {} if known_limit is None else {ONLY_OUTPUT: known_limit})

    def passed() -> Generator[pa.RecordBatch, None, None]:
        yield ROWS

    rows = ReplayableBatches(lambda: limit.within(passed()))
    brokers = Brokers(1_219, marker)
    assert limit.write(brokers, attempt(), rows) == {"rows": written}
    assert brokers.writes == writes
