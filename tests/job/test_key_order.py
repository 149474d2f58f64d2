"""`output.kafka.keyOrder`: which jobs take it, which shard writes a row, and whom a warning tells of missing order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from joinery_runtime.connectors.outputs import Outputs
from joinery_runtime.connectors.sink import RowRouting
from joinery_runtime.errors import JobError
from joinery_runtime.job import Job, definition, explain, parse_job, same_rows
from joinery_runtime.job.key_order import order_warnings

JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {name: ordered}
spec:
  inputs:
    - {name: l, file: {path: l}, format: json, eventTime: ts,
       schema: [{name: id, type: string}, {name: cust, type: string}, {name: n, type: int64}, {name: ts, type: timestamp}]}
    - {name: r, file: {path: r}, format: json, eventTime: ts,
       schema: [{name: id, type: string}, {name: ts, type: timestamp}]}
  JOINS
  OUTPUTS
"""  # noqa: E501
JOINS = """joins: [{right: r, keys: {l.id: r.id}, interval: {of: l, lower: 0s, upper: 1h}}]
  select: [{column: l.id}, {column: l.cust}, {column: l.n}]"""
PROJECTION = "select: [{column: l.id}, {column: l.cust}, {column: l.n}]"


def topic(number: int, key: Sequence[str], **more: Any) -> dict[str, Any]:
    return {"kafka": {"bootstrapServers": "k:9", "topic": f"t{number}", "key": list(key), **more}}


def load(*outputs: dict[str, Any], joins: str = JOINS) -> Job:
    if len(outputs) == 1:
        written = f"output: {outputs[0]}"
    else:
        named = [{"name": f"o{number}", **output} for number, output in enumerate(outputs)]
        written = f"outputs: {named}"
    text = JOB.replace("JOINS", joins).replace("OUTPUTS", written.replace("True", "true"))
    if joins == PROJECTION:
        lines = text.splitlines()
        text = "\n".join(line for number, line in enumerate(lines) if number not in (8, 9))
    return parse_job(text, "job.yaml")


def warned_topics(job: Job) -> list[str]:
    return [words.partition(": ")[0].rpartition(" ")[2] for words in order_warnings(job)]


@pytest.mark.parametrize(
    ("outputs", "joins", "routing", "ordered", "warned"),
    [
        ([topic(0, ["id"])], JOINS, None, [True], []),
        ([topic(0, ["id"], keyOrder=True)], JOINS, None, [True], []),
        ([topic(0, ["cust"])], JOINS, None, [False], ["t0"]),
        ([topic(0, ["cust"], keyOrder=True)], JOINS, RowRouting(("cust",), spreads_nulls=True), [True], []),
        ([topic(0, ["n"], keyOrder=True)], JOINS, RowRouting(("n",)), [True], []),
        ([topic(0, ["cust", "n"], keyOrder=True)], JOINS, RowRouting(("cust", "n")), [True], []),
        ([topic(0, [])], JOINS, None, [False], []),
        ([topic(0, ["cust"])], PROJECTION, None, [False], []),
        ([topic(0, ["cust"], keyOrder=True)], PROJECTION, RowRouting(("cust",), spreads_nulls=True), [True], []),
        (
            [topic(0, ["cust"], keyOrder=True), topic(1, ["n", "cust"], keyOrder=True), topic(2, ["id"])],
            JOINS,
            RowRouting(("cust",)),
            [True, True, False],
            ["t2"],
        ),
        (
            [
                {**topic(0, ["c"], keyOrder=True), "select": [{"column": "cust", "as": "c"}]},
                {**topic(1, ["cust"]), "select": [{"column": "id", "as": "cust"}]},
            ],
            JOINS,
            RowRouting(("cust",)),
            [True, False],
            ["t1"],
        ),
    ],
)  # fmt: skip
def test_where_rows_are_written_and_in_which_order(
    outputs: list[dict[str, Any]], joins: str, routing: RowRouting | None, ordered: list[bool], warned: list[str]
) -> None:
    job = load(*outputs, joins=joins)
    job_outputs = Outputs.of(job)
    assert (job_outputs.routing, [bool(target.topic().order) for target in job_outputs.targets]) == (routing, ordered)
    assert job_outputs.need_order == any(ordered)
    assert warned_topics(job) == warned
    in_plan = any("by the shard of its" in output.text for output in explain(job).outputs)
    assert in_plan == (routing is not None)


@pytest.mark.parametrize(
    ("outputs", "path", "words"),
    [
        ([topic(0, [], keyOrder=True)], "spec.output.kafka.keyOrder", "there is none; name `key`"),
        (
            [topic(0, ["cust"], keyOrder=True), topic(1, ["n"], keyOrder=True)],
            "spec.outputs[1].kafka.keyOrder",
            "'o1' has no column of its key in common",
        ),
        (
            [
                topic(0, ["cust"], keyOrder=True),
                {**topic(1, ["cust"], keyOrder=True), "select": [{"column": "id", "as": "cust"}]},
            ],
            "spec.outputs[1].kafka.keyOrder",
            "'o1' has no column of its key in common",
        ),
    ],
)
def test_an_order_that_cannot_be(outputs: list[dict[str, Any]], path: str, words: str) -> None:
    with pytest.raises(JobError) as raised:
        load(*outputs)
    (problem,) = raised.value.problems
    assert problem.path == path
    assert words in problem.message


def test_a_condition_of_a_left_join_in_sql() -> None:
    """Rows that fail it are emitted by any shard (rule J4), with the keys of others."""
    sql = """sql: |
    SELECT l.id, l.n FROM l LEFT JOIN r
    ON l.id = r.id AND r.ts BETWEEN l.ts AND l.ts + INTERVAL '1' HOUR AND l.n > 5"""
    plain, ordered = load(topic(0, ["id"]), joins=sql), load(topic(0, ["id"], keyOrder=True), joins=sql)
    (words,) = order_warnings(plain)
    assert "the last join emits rows of l also if l.n > 5 is not true, in any shard" in words
    assert list(order_warnings(ordered)) == []
    assert Outputs.of(ordered).routing == RowRouting(("id",), spreads_nulls=True)


def test_an_epoch_ends_in_the_order_that_its_plan_was_made_for() -> None:
    """The definition that a plan is stored with has the field, so a pending epoch keeps the rule of its own."""
    before, after = (definition(load(topic(0, ["cust"], **more))) for more in ({}, {"keyOrder": True}))
    assert not same_rows(before, after)
    assert same_rows(before, definition(load(topic(0, ["cust"], keyOrder=False))))


SESSIONS = """
apiVersion: joinery.dev/v1alpha1
kind: SessionWindow
metadata: {name: sessions}
spec:
  input: {name: l, file: {path: l}, format: json, eventTime: ts,
          schema: [{name: id, type: string}, {name: cust, type: string}, {name: ts, type: timestamp}]}
  groupBy: [id, cust]
  gap: 1m
  maxDuration: 1h
  allowedLateness: 1h
  lateData: reopen
  emitRetractions: true
  output: {kafka: {bootstrapServers: "k:9", topic: t, key: [KEY]MORE}}
"""


@pytest.mark.parametrize(
    ("key", "more", "routing"),
    [
        ("id, cust, session_id", "", None),
        ("cust", ", keyOrder: true", RowRouting(("cust",), spreads_nulls=True)),
    ],
)
def test_sessions_that_are_taken_back_come_before_those_that_replace_them(
    key: str, more: str, routing: RowRouting | None
) -> None:
    job_outputs = Outputs.of(parse_job(SESSIONS.replace("KEY", key).replace("MORE", more), "job.yaml"))
    assert job_outputs.routing == routing
    assert job_outputs.targets[0].topic().order[:3] == ("$phase", "$partner_partition", "$order_ts")


LEFT = """joins: [{right: r, type: left, keys: {l.id: r.id}, interval: {of: l, lower: 0s, upper: 1h}}]
  select: [{column: l.id}, {column: l.cust}, {column: l.n}]"""


@pytest.mark.parametrize(
    ("outputs", "joins", "expected"),
    [
        ([topic(0, ["id", "cust"])], LEFT, [True]),
        ([topic(0, ["id"])], LEFT, [False]),  # without its only text, a record has no key
        ([topic(0, ["id", "cust"])], JOINS, [False]),
        ([topic(0, ["id", "cust"], keyOrder=True)], LEFT, [False]),
        ([topic(0, ["id", "cust"]), topic(1, ["cust"], keyOrder=True)], LEFT, [False, False]),
        ([topic(0, ["cust"])], LEFT, [False]),  # a warning says that nothing is in order
        ([topic(0, ["id", "n"]), topic(1, ["id"])], LEFT.replace("left", "anti"), [True, False]),
    ],
)
def test_explain_says_that_rows_without_a_join_key_have_no_order(
    outputs: list[dict[str, Any]], joins: str, expected: list[bool]
) -> None:
    plans = [plan.text for plan in explain(load(*outputs, joins=joins)).outputs if "Kafka topic" in plan.text]
    words = "records of one key in order unless their join key has a NULL (rule O2)"
    assert [words in text for text in plans] == expected
