"""The events that Spark gets of a job's epochs, without Spark. With it: tests/hosts/test_spark_ui.py."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hosts.test_status_board import report
from joinery_runtime.core.pipeline.watermark import END_OF_TIME
from joinery_runtime.engine.loop import CommittedEpoch, JobListener
from joinery_runtime.hosts import spark_internals
from joinery_runtime.hosts.spark_progress import QueryEvents, QueryNames, spark_listener
from joinery_runtime.job import job_from

_SCHEMA = [{"name": name, "type": "string"} for name in ("k", "v")] + [{"name": "ts", "type": "timestamp"}]
JOB: dict[str, Any] = {
    "apiVersion": "joinery.dev/v1alpha1",
    "kind": "StreamJoin",
    "metadata": {"name": "orders-payments"},
    "spec": {
        "inputs": [
            {"name": name, "file": {"path": f"{name}.jsonl"}, "format": "json", "schema": _SCHEMA, "eventTime": "ts"}
            for name in ("orders", "payments")
        ],
        "joins": [
            {
                "right": "payments",
                "keys": {"orders.k": "payments.k"},
                "interval": {"of": "orders", "lower": "-10ms", "upper": "10ms"},
            }
        ],
        "select": [{"column": "orders.v", "as": "order"}, {"column": "payments.v", "as": "payment"}],
        "output": {"file": {"path": "out"}},
        "stateStore": {"memory": {}},
    },
}
EPOCH = CommittedEpoch(report(bytes_in={"orders": 9_000}), seconds=2.0, ran=1.5, committing=0.25)
NOW = 1_800_000_000.0
NONE_YET = {"watermark": "1970-01-01T00:00:00.000Z"}  # as Structured Streaming writes it


def events() -> QueryEvents:
    return QueryEvents(QueryNames.of(job_from(JOB)), "a store", uuid.UUID(int=7))


def progress(epoch: CommittedEpoch = EPOCH) -> dict[str, Any]:
    document = json.loads(events().progress_event(epoch, NOW))
    assert document["Event"] == "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent"
    return dict(document["progress"])


def test_an_epoch_is_a_batch_with_the_figures_of_each_input() -> None:
    batch = progress()
    assert (batch["batchId"], batch["batchDuration"], batch["timestamp"]) == (7, 2_000, "2027-01-15T07:59:58.000Z")
    assert batch["durationMs"] == {
        "triggerExecution": 2_000,
        "queryPlanning": 250,
        "addBatch": 1_500,
        "commitOffsets": 250,
    }
    orders, payments = batch["sources"]
    assert orders["description"].startswith("orders: file ")
    assert (orders["numInputRows"], orders["processedRowsPerSecond"], payments["numInputRows"]) == (300, 150.0, 150)
    assert orders["metrics"] == {"bytesRead": "9000", "recordsBehind": "12", "lateRows": "0", "deadLetters": "0"}
    assert batch["sink"]["numOutputRows"] == 40


def test_the_input_rate_counts_the_time_between_epochs_too() -> None:
    written = events()
    written.progress_event(EPOCH, NOW)
    later = json.loads(written.progress_event(EPOCH, NOW + 10))["progress"]["sources"][0]
    assert (later["inputRowsPerSecond"], later["processedRowsPerSecond"]) == (30.0, 150.0)


def test_late_rows_and_what_the_state_holds_are_of_the_state_operator() -> None:
    late = replace(EPOCH, report=report(dropped={"orders": {"late": 3, "bad": 1}, "payments": {"late": 2}}))
    (state,) = progress(late)["stateOperators"]
    assert (state["numRowsTotal"], state["memoryUsedBytes"], state["numRowsDroppedByWatermark"]) == (20, 2_000, 5)
    assert state["customMetrics"] == {"rows of left": 13, "rows of right": 7}


@pytest.mark.parametrize(
    ("watermarks", "shown"),
    [
        ({"orders": 5_000, "payments": 2_000}, {"watermark": "1970-01-01T00:00:02.000Z"}),
        ({"orders": 5_000, "payments": END_OF_TIME}, {"watermark": "1970-01-01T00:00:05.000Z"}),
        ({"orders": END_OF_TIME, "payments": END_OF_TIME}, NONE_YET),
        ({"orders": 5_000, "payments": None}, NONE_YET),
        ({"orders": 10**17, "payments": 10**17}, {"watermark": "9999-12-31T23:59:59.999Z"}),
        ({"orders": -5, "payments": 0}, NONE_YET),
    ],
)
def test_the_watermark_is_the_lowest_one(watermarks: dict[str, int | None], shown: dict[str, str]) -> None:
    assert progress(replace(EPOCH, report=report(watermarks=watermarks)))["eventTime"] == shown


def test_a_query_keeps_its_id_over_starts_and_another_store_has_another_one() -> None:
    ids = [
        json.loads(QueryEvents(QueryNames.of(job_from(JOB)), store).started_event(NOW))
        for store in ("a store", "a store", "another store")
    ]
    assert ids[0]["id"] == ids[1]["id"] != ids[2]["id"]
    assert ids[0]["runId"] != ids[1]["runId"]


# --- posting ----------------------------------------------------------------------------------------------------------


class Spark:
    """Takes what is posted."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, fail: Exception | None = None, *, listeners: bool = True
    ) -> None:
        self.posted: list[str] = []
        self.warned: list[str] = []
        self.passed_on: list[CommittedEpoch] = []
        self._fail = fail
        monkeypatch.setattr(spark_internals, "has_listeners", lambda _: listeners)
        monkeypatch.setattr(spark_internals, "add_streaming_page", lambda _: self.posted.append("the page"))
        monkeypatch.setattr(spark_internals, "post_event", self.post)

    def post(self, _: object, document: str) -> None:
        if self._fail is not None:
            raise self._fail
        event = json.loads(document)
        self.posted.append(
            event["Event"].rpartition("$")[2] + (f" {event['exception']}" if "exception" in event else "")
        )

    def run(self, epochs: Callable[[JobListener], None], context: object = "a context") -> None:
        listener = JobListener(lambda _: None, self.passed_on.append, lambda *_: None)
        with spark_listener(
            QueryNames.of(job_from(JOB)), "a store", lambda: context, listener, self.warned.append, lambda: NOW
        ) as posting:
            epochs(posting)


def two(listener: JobListener) -> None:
    listener.committed(EPOCH)
    listener.committed(EPOCH)


def test_a_query_starts_with_the_first_epoch_and_ends_with_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Spark(monkeypatch)
    spark.run(two)
    assert spark.posted == [
        "the page",
        "QueryStartedEvent",
        "QueryProgressEvent",
        "QueryProgressEvent",
        "QueryTerminatedEvent None",
    ]
    assert spark.passed_on == [EPOCH, EPOCH]


def test_where_nobody_listens_nothing_is_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java without a UI loads no classes for one."""
    spark = Spark(monkeypatch, listeners=False)
    spark.run(two)
    assert (spark.posted, spark.passed_on) == ([], [EPOCH, EPOCH])


def test_without_spark_nothing_is_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Spark(monkeypatch)
    spark.run(two, context=None)
    assert (spark.posted, spark.passed_on) == ([], [EPOCH, EPOCH])


def test_a_job_that_fails_is_a_query_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Spark(monkeypatch)

    def fails(listener: JobListener) -> None:
        listener.committed(EPOCH)
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        spark.run(fails)
    assert spark.posted[-1] == "QueryTerminatedEvent no such thing"


def test_a_spark_that_takes_no_events_is_told_once_and_the_job_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Spark(monkeypatch, fail=TypeError("'JavaPackage' object is not callable"))
    spark.run(two)
    assert len(spark.warned) == 1
    assert "no rates of epochs: TypeError: 'JavaPackage' object is not callable" in spark.warned[0]
    assert spark.passed_on == [EPOCH, EPOCH]


def test_a_java_that_is_gone_is_reported_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Spark(monkeypatch, fail=ConnectionRefusedError(111, "Connection refused"))
    spark.run(two)
    assert (spark.warned, spark.passed_on) == ([], [EPOCH, EPOCH])
