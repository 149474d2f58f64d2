"""What a changed job may do with the state of sessions (rule M2)."""

from __future__ import annotations

from typing import Any

import pytest

from job import chains
from job.sessions import CLICKS, COUNT, aggregate_call, in_sql, load, parsed
from joinery_runtime.core.compile.jobs import compile_job, stored_columns
from joinery_runtime.job import Comparison, Job, compare, signature

SUM, FIRST = aggregate_call("sum", "price"), aggregate_call("first", "page")
LOWER = [{"expression": "LOWER(page)", "as": "low"}]
BY_LOWER: dict[str, Any] = {"groupBy": ["low"], "compute": LOWER}


def signed(job: Job) -> dict[str, Any]:
    return signature(job, stored_columns(compile_job(job)))


def changed(before: Job, after: Job) -> Comparison:
    return compare(signed(before), signed(after))


def retyped(column: str, kind: str) -> dict[str, Any]:
    schema = [{**field, "type": kind} if field["name"] == column else field for field in CLICKS["schema"]]
    return {**CLICKS, "schema": schema}


TIMED = {**CLICKS, "eventTime": "at", "schema": [*CLICKS["schema"], {"name": "at", "type": "timestamp"}]}

PART = aggregate_call("sum", "price", where="qty > 1")

GOES_ON: list[tuple[Job, Job]] = [
    (load(PART), load({**PART, "where": "clicks.qty>1", "as": "renamed"})),
    (
        load(PART),
        parsed(
            in_sql(
                "SELECT user_id, SUM(price) FILTER (WHERE qty > 1) AS x FROM clicks "
                "GROUP BY user_id, SESSION(ts, INTERVAL '30' SECOND)"
            )
        ),
    ),
    (load(aggregate_call("var_pop", "price")), load(aggregate_call("stddev_samp", "price"))),
    (
        load(aggregate_call("median", "price")),
        load(aggregate_call("percentile_disc", "price", percentile=0.9, limit=5)),
    ),
    (load(aggregate_call("array_agg", "page")), load(aggregate_call("string_agg", "page", separator="; "))),
    (
        load(aggregate_call("max_by", "page", by="price")),
        load(aggregate_call("max_by", "page", by="price", **{"as": "again"})),
    ),
    (load(COUNT, SUM, FIRST), load(FIRST, COUNT)),
    (load(SUM), load({**SUM, "as": "renamed"})),
    (load(aggregate_call("count_distinct", "page", limit=5)), load(aggregate_call("count_distinct", "page", limit=9))),
    (load(), load(shards=3, where="qty > 1")),
    (load(), load(input={**CLICKS, "watermark": {"delay": "1h", "idleTimeout": "5s"}})),
    (load(allowedLateness="1m"), load(allowedLateness="1s")),
    (load(), load(lateData="reopen", emitRetractions=True)),
    (load(), load(compute=[{"expression": "qty", "as": "q"}])),
    (load(SUM), load(SUM, input=retyped("page", "int64"))),
    (load(**BY_LOWER), load(groupBy=["low"], compute=[{"expression": "lower( clicks.page )", "as": "low"}])),
    (
        load(**BY_LOWER),
        parsed(
            in_sql(
                "SELECT LOWER(page) AS low, COUNT(*) AS n FROM clicks GROUP BY low, SESSION(ts, INTERVAL '30' SECOND)"
            )
        ),
    ),
    (
        load(aggregate_call("sum", "qty")),
        parsed(in_sql("SELECT user_id, SUM(qty) AS x FROM clicks GROUP BY user_id, SESSION(ts, INTERVAL '30' SECOND)")),
    ),
]
WARNS: list[tuple[Job, Job, str]] = [
    (load(), load(gap="1m"), "gap went from 30s to 1m: sessions that were formed before stay as they are"),
    (load(), load(gap="1s"), "gap went from 30s to 1s: sessions that were formed before"),
    (
        load(),
        load(maxDuration="1h"),
        "maxDuration went from 2h to 1h: sessions that were formed before stay as they are",
    ),
    (load(), load(allowedLateness="1m"), "allowedLateness went from 0s to 1m: sessions that were evicted before stay"),
    (load(lateData="reopen"), load(), "lateData went from reopen to drop: what was emitted is emitted again only with"),
]
REFUSED: list[tuple[Job, Job, str]] = [
    (load(), load(groupBy=["page"]), "groupBy was user_id (string), it is now page (string)"),
    (load(), load(groupBy=["user_id", "page"]), "it is now user_id (string) and page (string)"),
    (load(groupBy=["qty"]), load(groupBy=["qty"], input=retyped("qty", "int64")), "groupBy was qty (int32), it is now"),
    (
        load(**BY_LOWER),
        load(groupBy=["low"], compute=[{"expression": "UPPER(page)", "as": "low"}]),
        "groupBy was low (LOWER(page) of page string), it is now low (UPPER(page) of page string)",
    ),
    (
        load(groupBy=["g"], compute=[{"expression": "qty + 1", "as": "g"}]),
        load(groupBy=["g"], compute=[{"expression": "qty + 1", "as": "g"}], input=retyped("qty", "int64")),
        "groupBy was g (qty + 1 of qty int32), it is now g (qty + 1 of qty int64)",
    ),
    (load(), load(COUNT, SUM), "sum(price) is not in the stored sessions, and the job now needs it"),
    (load(SUM), load(aggregate_call("avg", "price")), "avg(price).sum is not in the stored sessions"),
    (
        load(aggregate_call("count_distinct", "page")),
        load(aggregate_call("count_distinct", "page", method="hll")),
        "count_distinct(page).sketch is not in the stored sessions",
    ),
    (
        load(PART),
        load({**PART, "where": "qty > 2"}),
        "sum(price FILTER (WHERE qty > 2)) is not in the stored sessions, and the job now needs it",
    ),
    (load(PART), load(PART, input=retyped("qty", "int64")), "sum(price FILTER (WHERE qty > 1)) is stored over"),
    (
        load(aggregate_call("max_by", "page", by="price")),
        load(aggregate_call("max_by", "page", by="price"), input=retyped("price", "float")),
        "max_by(page, price) is stored over",
    ),
    (load(FIRST), load(FIRST, input=retyped("page", "int64")), "first(page) is stored over string, the job now makes"),
    (
        load(aggregate_call("sum", "x"), compute=[{"expression": "qty * 2", "as": "x"}]),
        load(aggregate_call("sum", "x"), compute=[{"expression": "qty * 3", "as": "x"}]),
        "sum(x) is stored over qty * 2 of qty int32, the job now makes it of qty * 3 of qty int32",
    ),
    (load(), load(input={**CLICKS, "name": "hits"}), "the inputs were clicks, they are now hits"),
    (load(), load(input=TIMED), "the event time of clicks was ts, it is now at"),
    (load(), chains.load(chains.step()), "the kind of job was SessionWindow, it is now StreamJoin"),
    (chains.load(chains.step()), load(), "the kind of job was StreamJoin, it is now SessionWindow"),
]


@pytest.mark.parametrize(("before", "after"), GOES_ON)
def test_goes_on_in_silence(before: Job, after: Job) -> None:
    assert changed(before, after) == Comparison((), ())


@pytest.mark.parametrize(("before", "after", "words"), WARNS)
def test_goes_on_with_a_warning(before: Job, after: Job, words: str) -> None:
    verdict = changed(before, after)
    assert verdict.refused == ()
    assert len(verdict.warnings) == 1
    assert words in verdict.warnings[0]


@pytest.mark.parametrize(("before", "after", "words"), REFUSED, ids=lambda value: str(value)[:60])
def test_is_refused_with_the_difference(before: Job, after: Job, words: str) -> None:
    verdict = changed(before, after)
    assert any(words in text for text in verdict.refused), verdict
    assert verdict.warnings == ()


def test_the_signature_says_what_is_stored() -> None:
    job = load(COUNT, SUM, **{**BY_LOWER, "allowedLateness": "1m"})
    assert signed(job) == {
        "version": 2,
        "kind": "SessionWindow",
        "inputs": [{"name": "clicks", "eventTime": "ts", "table": None}],
        "groups": [["low", {"expression": "LOWER(page)", "reads": {"page": "string"}}]],
        "gap": 30_000,
        "maxDuration": 7_200_000,
        "allowedLateness": 60_000,
        "lateData": "drop",
        "stored": {"$count()": "", "$sum(price)": "double", "$sum(price).rest": "double"},
    }


def test_a_column_whose_name_has_brackets() -> None:
    """As SQL makes them."""
    grouped = "FROM clicks GROUP BY user_id, SESSION(ts, INTERVAL '30' SECOND)"
    job = parsed(in_sql(f"SELECT user_id, FIRST(TRIM(LOWER(page))) AS x {grouped}"))
    computed = {"expression": "TRIM(LOWER(clicks.page))", "reads": {"page": "string"}}
    assert signed(job)["stored"] == {f"$first(TRIM(LOWER(page))){end}": computed for end in ("", ".time")}
