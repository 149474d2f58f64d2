"""QUALIFY in the SQL of a StreamJoin: the first or the last row of a key, as `deduplicate` says it (rule D1)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from job.chains import ORDERS, PAYMENTS, load, messages_of
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.job import StreamJoin, definition, parse_job

WITHIN = {"within": "1h"}
FIRST = "ROW_NUMBER() OVER (PARTITION BY orders.id ORDER BY orders.ts) = 1"


def document_of(sql: str, deduplicate: Any = WITHIN) -> dict[str, Any]:
    named = {} if deduplicate is None else {"deduplicate": deduplicate}
    spec = {"inputs": [ORDERS], "sql": sql, "output": {"file": {"path": "out"}}, **named}
    return {"apiVersion": "joinery.dev/v1alpha1", "kind": "StreamJoin", "metadata": {"name": "q"}, "spec": spec}


def job_of(sql: str, *inputs: Any) -> StreamJoin:
    return load(inputs=list(inputs), sql=sql, deduplicate=WITHIN)


SAME: list[tuple[str, dict[str, Any]]] = [
    (FIRST, {"by": ["orders.id"]}),
    ("1 = row_number() OVER (PARTITION BY id ORDER BY ts ASC)", {"by": ["orders.id"]}),
    ("ROW_NUMBER() OVER (PARTITION BY id, currency ORDER BY ts DESC) = 1",
     {"by": ["orders.id", "orders.currency"], "keep": "last"}),
]  # fmt: skip


@pytest.mark.parametrize(("condition", "rule"), SAME)
def test_qualify_is_the_rule_that_yaml_writes(condition: str, rule: dict[str, Any]) -> None:
    sql = job_of(f"SELECT id, ts FROM orders WHERE amount > 1 QUALIFY {condition}", ORDERS)
    select = [{"column": "orders.id"}, {"column": "orders.ts"}]
    yaml = load(inputs=[{**ORDERS, "where": "orders.amount > 1"}], deduplicate={**WITHIN, **rule}, select=select)
    assert compile_job(sql) == compile_job(yaml)
    assert definition(sql)["deduplicate"].items() >= rule.items()


def test_qualify_behind_a_join_names_the_input_whose_time_counts() -> None:
    sql = (
        "SELECT o.id, p.method FROM orders o JOIN payments p ON o.id = p.order_id "
        "AND p.ts BETWEEN o.ts AND o.ts + INTERVAL '24' HOUR "
        "QUALIFY ROW_NUMBER() OVER (PARTITION BY o.id ORDER BY p.ts) = 1"
    )
    job = job_of(sql, ORDERS, PAYMENTS)
    (ranking,) = job.rankings
    assert (ranking.keys, job.ranked_time(ranking)) == (("orders.id",), "payments")
    assert [step.sides[0].part for step in compile_job(job).steps] == ["left", "deduplicate.2"]


NUMBERED = f"SELECT currency, amount, ts, {FIRST.removesuffix(' = 1')} AS rn FROM orders WHERE amount > 1"
PER_CURRENCY = "SELECT currency, SUM(amount) AS total FROM"


@pytest.mark.parametrize(
    "rows",
    [
        f"({NUMBERED}) WHERE rn = 1",
        f"(SELECT currency, amount, ts FROM orders WHERE amount > 1 QUALIFY {FIRST})",
        f"(SELECT * FROM ({NUMBERED})) WHERE rn = 1",
    ],
)
def test_groups_of_the_first_rows_are_an_aggregate_behind_deduplicate(rows: str) -> None:
    sql = job_of(
        f"{PER_CURRENCY} {rows} GROUP BY currency, TUMBLE(ts, INTERVAL '1' HOUR) HAVING SUM(amount) > 5", ORDERS
    )
    yaml = load(
        inputs=[{**ORDERS, "where": "orders.amount > 1"}],
        deduplicate={**WITHIN, "by": ["orders.id"]},
        aggregate={
            "groupBy": ["orders.currency"],
            "window": {"of": "orders", "tumbling": {"size": "1h"}},
            "aggregates": [{"function": "sum", "column": "orders.amount", "as": "total"}],
            "having": "total > 5",
        },
        select=[{"column": "orders.currency"}, {"column": "total"}],
    )
    assert compile_job(sql) == compile_job(yaml)


def test_groups_of_the_first_rows_behind_a_join_and_a_query_of_with() -> None:
    sql = (
        "WITH first AS (SELECT o.currency, p.method, o.ts, ROW_NUMBER() OVER (PARTITION BY o.id ORDER BY p.ts) AS rn "
        "FROM orders o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL '24' HOUR) "
        "SELECT currency, method, COUNT(*) AS n FROM first WHERE rn = 1 "
        "GROUP BY currency, method, TUMBLE(ts, INTERVAL '1' HOUR)"
    )
    job = job_of(sql, ORDERS, PAYMENTS)
    assert ([*map(job.ranked_time, job.rankings)], job.aggregated_time) == (["payments"], "orders")
    parts = [step.sides[0].part for step in compile_job(job).steps]
    assert parts == ["left", "deduplicate.2", "aggregate.3"]


@pytest.mark.parametrize(
    ("setting", "field"),
    [("'aggregate.late_data' = 'reopen'", "lateData"), ("'aggregate.allowed_lateness' = '1m'", "allowedLateness")],
)
def test_a_setting_for_late_rows_that_deduplicate_lets_through_to_no_aggregate_is_rejected(
    setting: str, field: str
) -> None:
    sql = f"{PER_CURRENCY} ({NUMBERED}) WHERE rn = 1 GROUP BY currency, TUMBLE(ts, INTERVAL '1' HOUR) WITH ({setting})"
    messages = messages_of(document_of(sql))
    assert f"{field} of the aggregate has no effect: deduplicate lets no late row through" in messages["spec.sql"]
    name, value = ("lateData", "reopen") if field == "lateData" else ("allowedLateness", "1m")
    aggregate = {"groupBy": ["orders.currency"], "window": {"tumbling": {"size": "1h"}}, name: value}
    fields = {"deduplicate": {**WITHIN, "by": ["orders.id"]}, "aggregate": aggregate}
    document = document_of("", None)
    document["spec"].pop("sql")
    aggregate["aggregates"] = [{"function": "count", "as": "n"}]
    document["spec"].update(fields)
    assert "write allowedLateness into deduplicate" in messages_of(document)[f"spec.aggregate.{field}"]
    stored = parse_job(json.dumps(document), "job.yaml", as_stored=True)
    assert isinstance(stored, StreamJoin)


BAD: list[tuple[str, Any, str, str]] = [
    (FIRST, None, "spec.deduplicate", "write deduplicate: {within: 1h} beside sql"),
    (FIRST, {**WITHIN, "by": ["orders.id"]}, "spec.deduplicate.by", "by and ROW_NUMBER both say it; drop by"),
    (FIRST, {**WITHIN, "keep": "first"}, "spec.deduplicate.keep", "keep and ROW_NUMBER both say it; drop keep"),
    (FIRST.replace("= 1", "<= 3"), WITHIN, "spec.sql", "emits the first or the last row of a key by event time; write"),
    (FIRST.replace("= 1", "<= 3"), WITHIN, "spec.sql", "or for the first rows of a window topN beside sql"),
    (FIRST.replace("ROW_NUMBER()", "ROW_NUMBER(amount)"), WITHIN, "spec.sql", "takes no argument"),
    (FIRST.replace("orders.ts", "orders.amount"), WITHIN, "spec.sql", "by event time; write ORDER BY orders.ts, or"),
    (FIRST.replace("PARTITION BY orders.id ", ""), WITHIN, "spec.sql", "name the key in PARTITION BY"),
    (FIRST.replace(" ORDER BY orders.ts", ""), WITHIN, "spec.sql", "nothing says which row comes first"),
    (FIRST.replace("BY orders.id", "BY id, TUMBLE(ts, INTERVAL '1' HOUR)"), WITHIN, "spec.sql", "leave the window out"),
    (FIRST.replace("orders.id", "orders.di"), WITHIN, "spec.sql", "'orders' has no column 'di'"),
    ("amount > 1", WITHIN, "spec.sql", "by its number and the columns of PARTITION BY"),
]


@pytest.mark.parametrize(("condition", "deduplicate", "path", "words"), BAD)
def test_another_qualify_is_rejected_with_what_to_write(
    condition: str, deduplicate: Any, path: str, words: str
) -> None:
    messages = messages_of(document_of(f"SELECT id FROM orders QUALIFY {condition}", deduplicate))
    assert words in messages.pop(path, ""), messages
    assert messages == {}


AROUND: list[tuple[str, str]] = [
    (f"SELECT id FROM (SELECT id, ts FROM orders QUALIFY {FIRST}) AS o", f"SELECT id FROM orders QUALIFY {FIRST}"),
    ("SELECT x FROM (SELECT id AS x, ts FROM orders) AS o QUALIFY ROW_NUMBER() OVER (PARTITION BY x ORDER BY ts) = 1",
     f"SELECT id AS x FROM orders QUALIFY {FIRST}"),
    # Flink's deduplication; the number of a row that is emitted is 1
    ("SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY ts ASC) AS rownum FROM orders) "
     "WHERE rownum = 1 AND id <> 'x'",
     f"SELECT *, 1 AS rownum FROM orders WHERE id <> 'x' QUALIFY {FIRST}"),
    ("WITH n AS (SELECT id, amount, ROW_NUMBER() OVER (PARTITION BY id ORDER BY ts) AS rownum FROM orders) "
     "SELECT amount FROM n WHERE n.rownum < 2",
     f"SELECT amount FROM orders QUALIFY {FIRST}"),
]  # fmt: skip


@pytest.mark.parametrize(("around", "plain"), AROUND)
def test_a_condition_around_numbered_rows_is_qualify(around: str, plain: str) -> None:
    assert compile_job(job_of(around, ORDERS)) == compile_job(job_of(plain, ORDERS))


def test_groups_are_no_repeats() -> None:
    sql = (
        "SELECT id, COUNT(*) AS n FROM orders GROUP BY id, TUMBLE(ts, INTERVAL '1' HOUR) "
        "QUALIFY ROW_NUMBER() OVER (PARTITION BY id ORDER BY ts) = 1"
    )
    message = messages_of(document_of(sql))["spec.sql"]
    assert "write window_start, window_end into PARTITION BY" in message
    assert "`ts`: is not in GROUP BY" in message
    function = "TABLE(TUMBLE(TABLE orders, DESCRIPTOR(ts), INTERVAL '1' HOUR))"
    sql = f"SELECT DISTINCT id, window_start, window_end FROM {function} QUALIFY {FIRST}"
    assert "write window_start, window_end into PARTITION BY" in messages_of(document_of(sql))["spec.sql"]
