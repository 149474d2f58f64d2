"""QUALIFY in the SQL of a StreamJoin: the first or the last row of a key, as `deduplicate` says it (rule D1)."""

from __future__ import annotations

from typing import Any

import pytest

from job.chains import ORDERS, PAYMENTS, load, said_of
from joinery_runtime.core.compile import compile_job
from joinery_runtime.job import StreamJoin, definition

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
    assert job.ranking is not None
    assert (job.ranking.keys, job.ranked_time) == (("orders.id",), "payments")
    assert [step.sides[0].part for step in compile_job(job).steps] == ["left", "deduplicate.2"]


BAD: list[tuple[str, Any, str, str]] = [
    (FIRST, None, "spec.deduplicate", "write deduplicate: {within: 1h} beside sql"),
    (FIRST, {**WITHIN, "by": ["orders.id"]}, "spec.deduplicate.by", "by and QUALIFY both say it; drop by"),
    (FIRST.replace("= 1", "<= 3"), WITHIN, "spec.sql", "is the first or the last one of its key"),
    (FIRST.replace("= 1", "<= 3"), WITHIN, "spec.sql", "or for the first rows of a window `topN` beside sql"),
    (FIRST.replace("ROW_NUMBER()", "ROW_NUMBER(amount)"), WITHIN, "spec.sql", "takes no argument"),
    (FIRST.replace("ROW_NUMBER", "RANK"), WITHIN, "spec.sql", "write QUALIFY ROW_NUMBER() OVER (PARTITION BY"),
    (FIRST.replace("orders.ts", "orders.amount"), WITHIN, "spec.sql", "go by event time, and that of 'orders' is ts"),
    (FIRST.replace("PARTITION BY orders.id ", ""), WITHIN, "spec.sql", "needs columns in PARTITION BY"),
    (FIRST.replace("orders.id", "orders.di"), WITHIN, "spec.sql", "'orders' has no column 'di'"),
    ("amount > 1", WITHIN, "spec.sql", "of QUALIFY, a job knows"),
]


@pytest.mark.parametrize(("condition", "deduplicate", "path", "words"), BAD)
def test_another_qualify_is_rejected_with_what_to_write(
    condition: str, deduplicate: Any, path: str, words: str
) -> None:
    said = said_of(document_of(f"SELECT id FROM orders QUALIFY {condition}", deduplicate))
    assert words in said.pop(path, ""), said
    assert said == {}


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT id FROM (SELECT id, ts FROM orders QUALIFY {FIRST}) AS orders",
        f"SELECT id FROM (SELECT currency AS id, ts FROM orders) AS orders QUALIFY {FIRST}",
    ],
)
def test_no_sub_query_is_beside_qualify(sql: str) -> None:
    assert "a sub-query is not supported beside QUALIFY" in said_of(document_of(sql))["spec.sql"]


def test_groups_have_no_qualify() -> None:
    sql = (
        "SELECT id, COUNT(*) AS n FROM orders GROUP BY id, TUMBLE(ts, INTERVAL '1' HOUR) "
        "QUALIFY ROW_NUMBER() OVER (PARTITION BY id ORDER BY ts) = 1"
    )
    assert "leave QUALIFY out" in said_of(document_of(sql))["spec.sql"]
