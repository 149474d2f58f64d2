"""What of a job of sessions is stored with its plans, and the job that is made of it again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from job.sessions import CLICKS, COUNT, aggregate_call, document, in_sql, load, parsed
from joinery_runtime.errors import IncompatibleState
from joinery_runtime.job import definition, same_rows, under_definition

KAFKA = {"bootstrapServers": "a:1", "topic": "clicks", "properties": {"sasl.password": "one"}}
FROM_KAFKA = {**{name: value for name, value in CLICKS.items() if name != "file"}, "kafka": KAFKA}
EXACT = aggregate_call("count_distinct", "page", limit=5)

OTHER_ROWS: list[dict[str, Any]] = [
    {"groupBy": ["page"]},
    {"gap": "31s"},
    {"maxDuration": "3h"},
    {"where": "qty > 1"},
    {"compute": [{"expression": "qty", "as": "q"}]},
    {"lateData": "reopen"},
    {"allowedLateness": "1s"},
    {"emitRetractions": True},
    {"output": {"file": {"path": "elsewhere"}}},
    {"input": {**CLICKS, "name": "other"}},
    {"input": {**CLICKS, "file": {"path": "other.jsonl"}}},
]
SAME_ROWS: list[dict[str, Any]] = [
    {"shards": 3},
    {"trigger": {"maxRecordsPerEpoch": 7}},
    {"limits": {"maxRecords": 5}},
    {"stateStore": {"memory": {}}},
    {"suspend": True},
    {"deadLetter": {"file": {"path": "dead"}}},
    {"where": None, "allowedLateness": "0s", "lateData": "drop"},
    {"gap": "30000ms"},
]


@pytest.mark.parametrize("edit", OTHER_ROWS, ids=str)
def test_what_decides_the_rows_is_part_of_it(edit: dict[str, Any]) -> None:
    assert not same_rows(definition(load()), definition(load(**edit)))


@pytest.mark.parametrize("edit", SAME_ROWS, ids=str)
def test_what_does_not_is_none(edit: dict[str, Any]) -> None:
    assert same_rows(definition(load()), definition(load(**edit)))


def test_another_aggregate_makes_other_rows() -> None:
    assert not same_rows(definition(load()), definition(load(COUNT, aggregate_call("sum", "qty"))))
    assert not same_rows(definition(load()), definition(load(aggregate_call("count", **{"as": "n"}))))


def test_it_is_json_without_secrets_and_defaults() -> None:
    stored = definition(load(input=FROM_KAFKA))
    assert json.loads(json.dumps(stored)) == stored
    assert "one" not in json.dumps(stored)
    assert not stored.keys() & {"lateData", "emitRetractions", "shards", "sql", "where"}


@pytest.mark.parametrize("edit", [*OTHER_ROWS, *SAME_ROWS], ids=str)
def test_a_job_under_its_own_definition_is_itself(edit: dict[str, Any]) -> None:
    job = load(EXACT, COUNT, **edit)
    again = under_definition(job, definition(job))
    assert definition(again) == definition(job)
    assert again.output_columns == job.output_columns
    assert (again.spec.shards, again.spec.limits) == (job.spec.shards, job.spec.limits)


@pytest.mark.parametrize("edit", OTHER_ROWS[:8], ids=str)
def test_an_edited_job_replays_under_the_definition_of_its_plan(edit: dict[str, Any]) -> None:
    before = load(EXACT)
    for old, now in ((before, load(EXACT, **edit)), (load(EXACT, **edit), before)):
        assert definition(under_definition(now, definition(old))) == definition(old)


def test_sql_counts_as_what_it_says() -> None:
    sql = "SELECT user_id, SUM(qty * 2) AS n FROM clicks GROUP BY user_id, SESSION(ts, INTERVAL '30' SECOND)"
    job = parsed(in_sql(sql))
    stored = definition(job)
    assert (stored["groupBy"], stored["gap"]) == (["user_id"], "30s")
    now = parsed(in_sql(sql.replace("30", "40"), shards=3))
    again = under_definition(now, stored)
    assert (again.spec.sql, again.spec.shards) == (None, 3)
    assert again.sessions == job.sessions


def test_settings_of_the_same_place_are_those_of_now() -> None:
    stored = definition(load(input=FROM_KAFKA))
    changed = {**KAFKA, "bootstrapServers": "b:2", "properties": {"sasl.password": "two"}}
    kafka = under_definition(load(input={**FROM_KAFKA, "kafka": changed}), stored).spec.input.kafka
    assert kafka is not None
    assert (kafka.bootstrap_servers, kafka.properties) == ("b:2", {"sasl.password": "two"})


@pytest.mark.parametrize("name", ["clicks", "other"])
def test_another_input_lends_no_settings(name: str) -> None:
    stored = definition(load(input=FROM_KAFKA))
    other = {**FROM_KAFKA, "name": name, "kafka": {**KAFKA, "topic": "other", "bootstrapServers": "b:2"}}
    kafka = under_definition(load(input=other), stored).spec.input.kafka
    assert kafka is not None
    assert (kafka.bootstrap_servers, kafka.topic) == ("a:1", "clicks")


def test_limits_that_stop_a_plan_can_be_raised_to_end_it() -> None:
    """`limits`, and that of an exact count."""
    low, high = load(EXACT, limits={"maxRecords": 5}), load({**EXACT, "limit": 9}, limits={"maxRecords": 7})
    plain = load({**EXACT, "limit": None})
    assert same_rows(definition(low), definition(high))
    for now, records, values in ((high, 7, 9), (plain, None, 10_000)):
        again = under_definition(now, definition(low))
        assert (again.spec.limits.max_records if again.spec.limits is not None else None) == records
        assert again.sessions.aggregates[0].values_limit == values


def test_a_limit_of_another_aggregate_is_none_of_it() -> None:
    now = load(aggregate_call("count_distinct", "user_id", limit=9))
    assert under_definition(now, definition(load(EXACT))).sessions.aggregates[0].values_limit == 10_000


def test_a_definition_that_this_release_does_not_take() -> None:
    stored = {**definition(load()), "sliding": True}
    with pytest.raises(IncompatibleState, match="a job that this release does not take"):
        under_definition(load(), stored)


def test_the_document_of_a_job_is_not_changed() -> None:
    job = load(EXACT)
    before = job.model_dump(mode="json")
    under_definition(job, definition(load(gap="1h")))
    assert job.model_dump(mode="json") == before
    assert document()["spec"]["gap"] == "30s"
