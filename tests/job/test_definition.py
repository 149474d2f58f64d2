"""What is stored of a job with its plans: enough to replay them after an edit, and no secrets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from job import chains
from joinery_runtime.errors import IncompatibleState
from joinery_runtime.job import definition, parse_job, same_rows, under_definition

JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {name: edited}
spec:
  inputs:
    - name: orders
      kafka: {bootstrapServers: "a:1", topic: orders, stopAt: {timestamp: 5}, properties: {sasl.password: one}}
      format: json
      schema: [{name: id, type: string}, {name: paid, type: "decimal(12,2)"}, {name: ts, type: timestamp}]
      eventTime: ts
      watermark: {delay: 1m30s}
    - name: payments
      file: {path: /data/payments.jsonl}
      format: json
      schema: [{name: id, type: string}, {name: ts, type: timestamp}]
      eventTime: ts
  joins:
    - right: payments
      keys: {orders.id: payments.id}
      interval: {of: orders, lower: -1m, upper: 24h}
      where: "orders.paid > 10"
  select: [{column: orders.id, as: order}]
  output: {kafka: {bootstrapServers: "a:1", topic: joined, key: [order], properties: {sasl.password: two}}}
  deadLetter: {kafka: {topic: dead, bootstrapServers: "a:1", properties: {sasl.password: three}}}
  stateStore: {postgres: {dsn: "postgresql://u:four@db/x"}}
  delivery: atLeastOnce
  shards: 3
"""


def job(*edits: tuple[str, str]):
    text = JOB
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return parse_job(text, "edited.yaml")


def test_it_holds_no_secret_and_survives_json() -> None:
    text = json.dumps(definition(job()))
    assert not [secret for secret in ("one", "two", "three", "four") if f'"{secret}' in text or f":{secret}" in text]
    assert json.loads(text) == definition(job())


@pytest.mark.parametrize(
    "edit",
    [
        ("orders.paid > 10", "orders.paid > 11"), ("topic: joined", "topic: other"),
        ("upper: 24h", "upper: 12h"),
        ("as: order}", "as: renamed}, {column: payments.ts}"), ("topic: dead", "topic: deader"),
        ("delay: 1m30s", "delay: 2m"),
    ],
)  # fmt: skip
def test_an_edit_that_changes_rows_or_where_they_go_is_another_definition(edit: tuple[str, str]) -> None:
    edits = [edit, ("key: [order]", "key: [renamed]")] if "renamed" in edit[1] else [edit]
    assert not same_rows(definition(job(*edits)), definition(job()))


@pytest.mark.parametrize(
    "edit",
    [
        ("sasl.password: one", "sasl.password: new"),
        ("shards: 3", "shards: 4"),
        ("four@db", "five@elsewhere"),
        ("a:1", "b:2,a:1"),
    ],
)
def test_an_edit_that_only_says_how_is_the_same_definition(edit: tuple[str, str]) -> None:
    assert same_rows(definition(job(edit)), definition(job()))


def test_a_plan_is_replayed_under_its_own_definition_with_the_newest_settings() -> None:
    before = job()
    now = job(
        ("orders.paid > 10", "orders.paid > 11"),
        ("key: [order]", "key: []"),
        ("sasl.password: one", "sasl.password: rotated"),
        ("sasl.password: two", "sasl.password: rotated too"),
        ("shards: 3", "shards: 7"),
        ("a:1", "moved:1"),
    )
    replayed = under_definition(now, definition(before))
    assert same_rows(definition(replayed), definition(before))
    assert replayed.joins[0].where == "orders.paid > 10"
    output, orders, dead = replayed.spec.output.kafka, replayed.input("orders").kafka, replayed.spec.dead_letter
    assert output is not None
    assert (output.topic, output.key, output.properties) == ("joined", ("order",), {"sasl.password": "rotated too"})
    assert output.bootstrap_servers == "moved:1"
    assert orders is not None
    assert orders.properties == {"sasl.password": "rotated"}
    assert dead is not None
    assert dead.kafka is not None
    assert dead.kafka.properties == {"sasl.password": "three"}
    assert replayed.spec.state_store.postgres is not None
    assert (replayed.spec.shards, replayed.name) == (7, "edited")


def test_another_topic_may_be_another_cluster_s() -> None:
    now = job(("topic: joined", "topic: other"), ("a:1", "elsewhere:1"))
    replayed = under_definition(now, definition(job()))
    assert replayed.spec.output.kafka is not None
    assert (replayed.spec.output.kafka.topic, replayed.spec.output.kafka.bootstrap_servers) == ("joined", "a:1")
    assert replayed.input("orders").kafka is not None
    assert replayed.input("orders").kafka.bootstrap_servers == "elsewhere:1"


def test_a_place_that_the_job_has_no_more_is_reached_as_before() -> None:
    now = job(
        (
            'output: {kafka: {bootstrapServers: "a:1", topic: joined, key: [order], properties: {sasl.password: two}}}',
            "output: {file: {path: /out}}",
        )
    )
    output = under_definition(now, definition(job())).spec.output
    assert output.kafka is not None
    assert (output.kafka.bootstrap_servers, output.file) == ("a:1", None)


def test_what_a_failing_epoch_asks_for_is_no_other_definition() -> None:
    dead = '  deadLetter: {kafka: {topic: dead, bootstrapServers: "a:1", properties: {sasl.password: three}}}\n'
    without = job((dead, ""))
    assert same_rows(definition(without), definition(job()))
    assert not same_rows(definition(job()), definition(without))
    lenient = job(("topic: orders,", "topic: orders, onDataLoss: continue,"))
    assert same_rows(definition(job()), definition(lenient))
    both = job(("topic: orders,", "topic: orders, onDataLoss: continue,"), ("orders.paid > 10", "orders.paid > 11"))
    replayed = under_definition(both, definition(without))
    assert replayed.input("orders").kafka is not None
    assert replayed.input("orders").kafka.on_data_loss == "continue"
    assert replayed.spec.dead_letter is not None
    strict = under_definition(job(), definition(lenient)).input("orders").kafka
    assert strict is not None
    assert strict.on_data_loss == "fail"


def test_a_dead_letter_output_that_was_removed_is_as_it_was() -> None:
    dead = '  deadLetter: {kafka: {topic: dead, bootstrapServers: "a:1", properties: {sasl.password: three}}}\n'
    without = job((dead, ""))
    assert under_definition(without, definition(job())).spec.dead_letter is not None


def test_a_limit_that_stops_a_plan_can_be_raised_to_end_it() -> None:
    where = '      where: "orders.paid > 10"\n'
    low, high = (job((where, f"{where}      limits: {{maxRecords: {count}}}\n")) for count in (5, 9))
    assert same_rows(definition(low), definition(high))
    assert same_rows(definition(low), definition(job()))
    for now, limit in ((high, 9), (job(), None)):
        limits = under_definition(now, definition(low)).joins[0].limits
        assert (limits.max_records if limits is not None else None) == limit


@pytest.mark.parametrize(
    ("steps", "more"),
    [
        ([chains.step(type="full"), chains.step("items", where="items.n > 1")], {}),
        ([chains.window(tumbling="1h")], {}),
        ([chains.window(hopping={"size": "1h", "slide": "5m"})], {"select": [{"expression": "1", "as": "one"}]}),
        ([{**chains.window(session={"gap": "1h"}), "allowedLateness": "5ms"}], {}),
        ([chains.as_of(asOf={"historyRetention": "1h", "grace": "7ms"})], {}),
        ([chains.time_only()], {}),
    ],
)
def test_every_form_of_step_is_replayed_as_it_was(steps: Any, more: Any) -> None:
    before = chains.load(*steps, **more)
    stored = json.loads(json.dumps(definition(before)))
    now = chains.load(chains.step(), shards=3)
    again = under_definition(now, stored)
    assert (again.joins, again.select, again.output_columns) == (before.joins, before.select, before.output_columns)
    assert again.spec.inputs == before.spec.inputs
    assert (definition(again), again.spec.shards) == (stored, 3)
    assert not same_rows(stored, definition(now))


def test_a_definition_that_this_release_does_not_take_is_refused() -> None:
    stored = definition(job()) | {"joins": [{"right": "payments", "keys": {}, "interval": {}}]}
    with pytest.raises(IncompatibleState, match="made by a job that this release does not take"):
        under_definition(job(), stored)


@pytest.mark.parametrize("pattern", ["%H:%M:%S", "%C%y-%m-%d", "%Y-%m-%d %q %H:%M", "%Y-%m-%d %H:%M %k", "%Y % %m"])
def test_a_plan_by_a_pattern_that_is_rejected_now_can_end(pattern: str) -> None:
    """A release before patterns were tried took times without a day, and all directives that Polars has."""
    stored = definition(job())
    stored["inputs"][0]["schema"][2] |= {"format": pattern, "zone": "UTC"}
    replayed = under_definition(job(), stored)
    assert replayed.input("orders").columns[2].format == pattern
