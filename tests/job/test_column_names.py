"""The names of columns that no `select` names (J10): those that are stored with a job's state stay."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from joinery_runtime.errors import IncompatibleState, JobError
from joinery_runtime.job import (
    Job,
    StreamJoin,
    definition,
    definition_hash,
    job_from,
    same_rows,
    under_definition,
    with_stored_names,
)
from joinery_runtime.job.explain import explain

ALWAYS = ["left_id", "left_item", "left_ts", "right_id", "right_method", "right_ts"]
BY_INPUT = ["orders_id", "item", "orders_ts", "payments_id", "method", "payments_ts"]
BY_SIDE = ["left_id", "item", "left_ts", "right_id", "method", "right_ts"]
ORDERS = ("orders", "id", "item", "ts")
PAYMENTS = ("payments", "id", "method", "ts")
WHEN_NEEDED = {"prefixes": "whenNeeded"}


def job(*sides: tuple[str, ...], **spec: Any) -> Job:
    """A chain of inputs, each a name and its columns."""
    first, *rest = sides or (ORDERS, PAYMENTS)
    inputs = [
        {
            "name": name,
            "file": {"path": f"/data/{name}"},
            "format": "json",
            "schema": [{"name": column, "type": "timestamp" if column == "ts" else "string"} for column in columns],
            "eventTime": "ts",
        }
        for name, *columns in (first, *rest)
    ]
    interval = {"of": first[0], "lower": "0s", "upper": "1h"}
    joins = [{"right": name, "keys": {f"{first[0]}.id": f"{name}.id"}, "interval": interval} for name, *_ in rest]
    complete_spec = {"inputs": inputs, "joins": joins, "output": {"file": {"path": "/data/out"}}, **spec}
    document = {"apiVersion": "joinery.dev/v1alpha1", "kind": "StreamJoin", "metadata": {"name": "named"}}
    return job_from({**document, "spec": complete_spec})


def names(named: Job) -> list[str]:
    return [column.name for column in named.output_columns]


def of_earlier_release(loaded: Job, **overrides: Any) -> dict[str, Any]:
    """The definition that a release before this one has stored of the job: it said nothing of `always`."""
    return {**{key: value for key, value in definition(loaded).items() if key != "prefixes"}, **overrides}


EARLIER = of_earlier_release(job())


@pytest.mark.parametrize(
    ("stored", "spec", "expected"),
    [
        (None, {}, BY_INPUT),
        (None, WHEN_NEEDED, BY_INPUT),
        (None, {"prefixes": "always"}, ALWAYS),
        (EARLIER, {}, ALWAYS),
        (EARLIER, {"prefixes": "always"}, ALWAYS),
        (EARLIER, WHEN_NEEDED, BY_INPUT),
        ({**EARLIER, **WHEN_NEEDED}, {}, BY_SIDE),
        ({**EARLIER, **WHEN_NEEDED}, WHEN_NEEDED, BY_SIDE),
        ({**EARLIER, **WHEN_NEEDED}, {"prefixes": "always"}, ALWAYS),
        (definition(job()), {}, BY_INPUT),
        (definition(job()), {"prefixes": "always"}, ALWAYS),
        (definition(job(select=[{"column": "orders.id"}])), {}, BY_INPUT),
    ],
)
def test_a_job_keeps_its_stored_names_unless_it_says_otherwise(
    stored: Mapping[str, Any] | None, spec: dict[str, Any], expected: list[str]
) -> None:
    named = with_stored_names(job(**spec), stored)
    assert names(named) == expected
    again = json.loads(json.dumps(definition(named)))
    assert names(with_stored_names(job(**spec), again)) == names(under_definition(job(), again)) == expected


def test_a_definition_of_an_earlier_release_is_the_one_that_goes_on() -> None:
    """Otherwise each plan of it would count as one from before an edit."""
    for settings in ({}, WHEN_NEEDED):
        stored = {**EARLIER, **settings}
        assert definition(with_stored_names(job(), stored)) == stored
    assert definition(job(prefixes="always")) == EARLIER
    assert definition_hash(definition(job())) != definition_hash(EARLIER)
    assert same_rows(definition(job()), definition(job(**WHEN_NEEDED)))


@pytest.mark.parametrize(
    ("stored", "before"), [(definition(job()), BY_INPUT), (EARLIER, ALWAYS), ({**EARLIER, **WHEN_NEEDED}, BY_SIDE)]
)
def test_a_third_input_renames_nothing(stored: Mapping[str, Any], before: list[str]) -> None:
    sides = (ORDERS, PAYMENTS, ("refunds", "id", "method", "ts"))
    named = with_stored_names(job(*sides), stored)
    added = ["refunds_id", "refunds_method", "refunds_ts"]
    assert names(named) == [*before, *added]
    later = json.loads(json.dumps(definition(named)))
    assert names(with_stored_names(job(*sides), later)) == names(under_definition(job(), later)) == [*before, *added]
    assert definition(with_stored_names(job(*sides), later)) == later
    assert names(pickle.loads(pickle.dumps(named))) == [*before, *added], "of the job that workers get"


def test_a_column_that_comes_to_an_input_renames_nothing() -> None:
    sides = (ORDERS, ("payments", "id", "method", "item", "ts"))
    named = with_stored_names(job(*sides), definition(job()))
    expected = ["orders_id", "item", "orders_ts", "payments_id", "method", "payments_item", "payments_ts"]
    assert names(named) == expected
    assert names(with_stored_names(job(*sides), definition(named))) == expected
    assert names(job(*sides))[1] == "orders_item", "of a job without state"


def test_a_name_that_is_stored_and_another_column_s_by_the_rule() -> None:
    sides = (ORDERS, ("payments", "id", "method", "orders_id", "ts"))
    named = with_stored_names(job(*sides), definition(job()))
    expected = ["orders_id", "item", "orders_ts", "payments_id", "method", "payments_orders_id", "payments_ts"]
    assert names(named) == expected
    assert names(with_stored_names(job(*sides), definition(named))) == expected


def kafka(*key: str, **more: Any) -> dict[str, Any]:
    return {"kafka": {"bootstrapServers": "b:1", "topic": "t", "key": list(key), **more}}


def test_a_job_of_an_earlier_release_with_keys_of_its_time_is_valid_and_goes_on() -> None:
    for output in (kafka("left_id"), kafka(headers={"of": "right_method"})):
        loaded = job(output=output)
        assert names(loaded) == names(with_stored_names(loaded, of_earlier_release(loaded))) == ALWAYS
    with pytest.raises(JobError, match="'lleft_id' is not an output column"):
        job(output=kafka("lleft_id"))


def test_a_key_that_the_stored_names_do_not_have_is_refused() -> None:
    with pytest.raises(IncompatibleState, match=r"keep the names .* orders_id is no name of one column") as refused:
        with_stored_names(job(output=kafka("orders_id")), EARLIER)
    assert "output columns are left_id, left_item" in str(refused.value)


def test_names_of_a_later_release_are_refused() -> None:
    for act in (with_stored_names, under_definition):
        with pytest.raises(IncompatibleState, match="named in a way that this release does not know"):
            act(job(), {**EARLIER, "prefixes": "byMoon"})


SQL_JOIN = (
    "FROM orders JOIN payments ON orders.id = payments.id "
    "AND payments.ts BETWEEN orders.ts AND orders.ts + INTERVAL '1' HOUR"
)
STARS = f"SELECT * {SQL_JOIN}"


def sql_job(text: str = STARS, *sides: tuple[str, ...], **spec: Any) -> StreamJoin:
    named = job(*sides, joins=[], sql=text, **spec)
    assert isinstance(named, StreamJoin)
    return named


def with_select(*names: str) -> dict[str, Any]:
    """The definition of a job that selects both inputs' columns under these names."""
    columns = [f"{side}.{column}" for side, *columns in (ORDERS, PAYMENTS) for column in columns]
    pairs = zip(columns, names, strict=True)
    select = [{"column": column, **({} if column.endswith(f".{name}") else {"as": name})} for column, name in pairs]
    return {**definition(sql_job()), "select": select}


def test_stars_of_sql_name_columns_by_input_and_a_third_one_renames_none() -> None:
    assert names(sql_job()) == names(sql_job(f"SELECT orders.*, payments.* {SQL_JOIN}")) == BY_INPUT
    assert not {"prefixes", "names"} & definition(sql_job()).keys()
    third = ("refunds", "id", "reason", "ts")
    more = " JOIN refunds ON orders.id = refunds.id AND refunds.ts BETWEEN orders.ts AND orders.ts + INTERVAL '1' HOUR"
    assert names(sql_job(STARS + more, ORDERS, PAYMENTS, third)) == [*BY_INPUT, "refunds_id", "reason", "refunds_ts"]


def test_stars_of_sql_keep_the_names_that_are_stored() -> None:
    earlier = with_select(*BY_SIDE)
    restored = with_stored_names(sql_job(), earlier)
    assert names(restored) == BY_SIDE
    assert definition(restored) == earlier, "an upgrade edits nothing"
    assert definition_hash(definition(restored)) == definition_hash(earlier)
    assert names(pickle.loads(pickle.dumps(restored))) == BY_SIDE
    assert names(with_stored_names(sql_job(), with_select(*BY_INPUT))) == BY_INPUT
    keyed = {"output": {"kafka": {"bootstrapServers": "k:1", "topic": "t", "key": ["orders_id"]}}}
    assert names(with_stored_names(sql_job(**keyed), with_select(*BY_INPUT))) == BY_INPUT
    with pytest.raises(IncompatibleState, match="orders_id is no name of one column"):
        with_stored_names(sql_job(**keyed), earlier)
    assert names(with_stored_names(sql_job(f"SELECT orders.* {SQL_JOIN}"), earlier)) == ["id", "item", "ts"]


def test_stars_of_sql_have_the_names_that_outputs_mention() -> None:
    kafka = {"bootstrapServers": "k:1", "topic": "t"}
    file = {"file": {"path": "/data/paid"}}
    for output in ({"kafka": {**kafka, "key": ["left_id"]}}, {"kafka": {**kafka, "headers": {"at": "right_ts"}}}):
        assert names(sql_job(output=output)) == BY_SIDE
    table = {"postgres": {"dsn": "postgresql://x", "table": "t", "upsertKey": ["right_id"]}}
    assert names(sql_job(output=table)) == BY_SIDE
    for output in ({"when": "left_ts > 0"}, {"select": [{"column": "left_id"}]}):
        outputs = [{"name": "paid", **file, **output}]
        assert names(sql_job(output=None, outputs=outputs)) == BY_SIDE
    with pytest.raises(JobError, match="'lleft_id' is not an output column"):
        sql_job(output={"kafka": {**kafka, "key": ["lleft_id"]}})
    assert names(sql_job(f"SELECT *, 1 AS orders_id {SQL_JOIN}"))[:6] == BY_SIDE, "no name comes twice"
    with pytest.raises(JobError, match="two output columns are named 'method'"):
        sql_job(f"SELECT *, 1 AS method {SQL_JOIN}")


def test_a_name_that_postgres_would_cut_is_not_given_to_a_star() -> None:
    column = "c" * 50
    sides = (("the_orders_of_the_shop", "id", column, "ts"), ("payments", "id", column, "ts"))
    text = STARS.replace("orders", "the_orders_of_the_shop")
    table = {"postgres": {"dsn": "postgresql://x", "table": "t"}}
    assert names(sql_job(text, *sides, output=table))[1] == f"left_{column}"
    assert names(sql_job(text, *sides))[1] == f"the_orders_of_the_shop_{column}"


def test_explain_says_how_columns_of_stars_are_named() -> None:
    assert sql_job(f"SELECT item, method {SQL_JOIN}").star_naming is None
    by_input = sql_job().star_naming
    assert by_input == (
        "the stars of sql, with orders_ and payments_, which a job without state has; one with state keeps its names"
    )
    (output,) = (plan.text for plan in explain(sql_job()).outputs)
    assert f"columns {', '.join(BY_INPUT)} (named by {by_input})" in output
    restored = with_stored_names(sql_job(), with_select(*BY_SIDE))
    assert isinstance(restored, StreamJoin)
    assert restored.star_naming == "the stars of sql, with left_ and right_, as stored with the state"
    mentioned = sql_job(output={"kafka": {"bootstrapServers": "k:1", "topic": "t", "key": ["left_id"]}})
    assert "with left_ and right_, because an output mentions such a name" in (mentioned.star_naming or "")


def test_too_long_a_name_of_a_stored_job_in_postgres_is_its_own() -> None:
    column = "c" * 50
    sides = (("the_orders_of_the_shop", "id", column, "ts"), ("payments", "id", column, "ts"))
    loaded = job(*sides, output={"postgres": {"table": "t"}}, stateStore={"postgres": {"dsn": "postgresql://x"}})
    assert isinstance(loaded, StreamJoin)
    assert loaded.naming == "always"
    assert names(with_stored_names(loaded, of_earlier_release(loaded)))[1] == f"left_{column}"
