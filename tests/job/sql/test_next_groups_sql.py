"""GROUP BY over GROUP BY in the SQL of a StreamJoin: the same job as `aggregate.then` in YAML (rule G10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from job.chains import ORDERS, PAYMENTS, load, messages_of, mistakes, parsed, step
from job.sessions import document as session
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.job import definition

NEXMARK = Path(__file__).parents[3] / "examples" / "nexmark"
TIMES = [{"column": "window_start"}, {"column": "window_end"}]
FLINK = "TABLE(TUMBLE(TABLE orders, DESCRIPTOR(ts), INTERVAL '1' HOUR))"
COUNTS = (
    f"SELECT currency, window_start, window_end, COUNT(*) AS n FROM {FLINK} GROUP BY currency, window_start, window_end"
)
SUMS = (
    "SELECT currency AS k, UPPER(id) AS u, SUM(amount) AS spent, window_time AS rowtime FROM orders o "
    "GROUP BY currency, UPPER(id), HOP(ts, INTERVAL '10' MINUTE, INTERVAL '1' HOUR)"
)
HOPPING = {"of": "orders", "hopping": {"size": "1h", "slide": "10m"}}
COUNTED = {
    "groupBy": ["orders.currency"],
    "window": {"of": "orders", "tumbling": {"size": "1h"}},
    "aggregates": [{"function": "count", "as": "n"}],
}
SUMMED = {
    "groupBy": ["orders.currency", "u"],
    "compute": [{"expression": "UPPER(orders.id)", "as": "u"}],
    "window": HOPPING,
    "aggregates": [{"function": "sum", "column": "orders.amount", "as": "spent"}],
}
HIGHEST = {"aggregates": [{"function": "max", "column": "n", "as": "most"}]}

SAME: list[tuple[str, dict[str, Any], list[dict[str, str]]]] = [
    (f"SELECT window_start, window_end, MAX(n) AS most FROM ({COUNTS}) GROUP BY window_start, window_end",
     {**COUNTED, "then": HIGHEST}, [*TIMES, {"column": "most"}]),
    (f"WITH c AS ({COUNTS} HAVING SUM(amount) > 1), d AS (SELECT MAX(c.n) AS most, MAX_BY(c.currency, c.n) AS best, "
     "c.window_end AS until FROM c WHERE c.n > 2 AND c.currency <> 'x' GROUP BY c.window_start, c.window_end "
     "HAVING COUNT(*) > 1) SELECT until, most, best FROM d WHERE d.most < 9",
     {**COUNTED, "aggregates": [*COUNTED["aggregates"], {"function": "sum", "column": "orders.amount",
                                                         "as": "SUM(amount)"}],
      "having": "\"SUM(amount)\" > 1 AND (n > 2 AND orders.currency <> 'x')",
      "then": {"aggregates": [*HIGHEST["aggregates"], {"function": "max_by", "column": "currency", "by": "n",
                                                       "as": "best"}, {"function": "count", "as": "COUNT(*)"}],
               "having": '"COUNT(*)" > 1 AND most < 9'}},
     [{"column": "window_end", "as": "until"}, {"column": "most"}, {"column": "best"}]),
    (f"SELECT k, u, window_end, AVG(spent) AS mean FROM ({SUMS}) GROUP BY k, u, TUMBLE(rowtime, INTERVAL '1' DAY)",
     {**SUMMED, "then": {"groupBy": ["currency", "u"], "window": {"tumbling": {"size": "24h"}},
                         "aggregates": [{"function": "avg", "column": "spent", "as": "mean"}]}},
     [{"column": "currency", "as": "k"}, {"column": "u"}, TIMES[1], {"column": "mean"}]),
    (f"WITH q AS ({SUMS}) SELECT window_start, COUNT(*) AS n FROM TABLE(HOP(TABLE q, DESCRIPTOR(rowtime), INTERVAL '1' "
     "HOUR, INTERVAL '2' HOUR)) GROUP BY window_start, window_end",
     {**SUMMED, "then": {"window": {"hopping": {"size": "2h", "slide": "1h"}},
                         "aggregates": [{"function": "count", "as": "n"}]}},
     [TIMES[0], {"column": "n"}]),
    ("SELECT m, UPPER(c.currency) AS u, MAX(c.n * 2) AS most, SUM(m) / COUNT(*) AS mean FROM (SELECT currency, n, "
     f"n % 10 AS m, window_start, window_end FROM ({COUNTS})) c GROUP BY m, u, window_start, window_end",
     {**COUNTED, "then": {
         "groupBy": ["m", "u"],
         "compute": [{"expression": "n % 10", "as": "m"}, {"expression": "UPPER(currency)", "as": "u"},
                     {"expression": "n * 2", "as": "n * 2"}],
         "aggregates": [{"function": "max", "column": "n * 2", "as": "most"}, {"function": "sum", "column": "m",
                        "as": "SUM(m)"}, {"function": "count", "as": "COUNT(*)"}]}},
     [{"column": "m"}, {"column": "u"}, {"column": "most"}, {"expression": '"SUM(m)" / "COUNT(*)"', "as": "mean"}]),
    # the time of rows needs no place in the select list, which Flink wants
    ("SELECT MAX(q.n) AS most FROM (SELECT currency, COUNT(*) AS n FROM orders GROUP BY currency, TUMBLE(ts, INTERVAL "
     "'1' HOUR)) q GROUP BY TUMBLE(q.window_time, INTERVAL '1' DAY, INTERVAL '6' HOUR)",
     {**COUNTED, "then": {**HIGHEST, "window": {"tumbling": {"size": "24h", "offset": "6h"}}}}, [{"column": "most"}]),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "aggregate", "select"), SAME)
def test_groups_of_groups_are_then(sql: str, aggregate: dict[str, Any], select: list[dict[str, str]]) -> None:
    job, same = load(inputs=[ORDERS], sql=sql), load(inputs=[ORDERS], aggregate=aggregate, select=select)
    assert compile_job(job) == compile_job(same)
    assert definition(job) == definition(same)


def test_the_groups_of_joined_rows_are_grouped_again() -> None:
    sql = (
        "SELECT m, MAX(spent) AS most FROM (SELECT p.method AS m, o.id, SUM(o.amount) AS spent, window_start, "
        "window_end FROM orders o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL '24' "
        "HOUR GROUP BY p.method, o.id, TUMBLE(p.ts, INTERVAL '1' HOUR)) GROUP BY m, window_start, window_end"
    )
    aggregate = {
        "groupBy": ["payments.method", "orders.id"],
        "window": {"of": "payments", "tumbling": {"size": "1h"}},
        "aggregates": SUMMED["aggregates"],
        "then": {"groupBy": ["method"], "aggregates": [{"function": "max", "column": "spent", "as": "most"}]},
    }
    same = load(step(), aggregate=aggregate, select=[{"column": "method", "as": "m"}, {"column": "most"}])
    assert compile_job(load(inputs=[ORDERS, PAYMENTS], sql=sql)) == compile_job(same)


NEXMARK_SQL = {
    "q4": ("category", "AVG(Q.price) AS final", "Q.category AS id"),
    "q6": ("seller", "AVG(Q.price) AS avg_price", "Q.seller"),
}


@pytest.mark.parametrize("query", NEXMARK_SQL)
def test_a_nexmark_query_in_sql_is_the_job_of_its_yaml(query: str) -> None:
    column, average, group = NEXMARK_SQL[query]
    document = yaml.safe_load((NEXMARK / f"{query}.yaml").read_text())
    same = parsed(document)
    del document["spec"]["joins"], document["spec"]["aggregate"], document["spec"]["select"]
    document["spec"]["sql"] = f"""
        SELECT {group}, {average}
        FROM (
            SELECT MAX(B.price) AS price, A.{column}
            FROM auction A JOIN bid B ON A.id = B.auction
                AND B.dateTime BETWEEN A.dateTime AND A.dateTime + INTERVAL '10' MINUTE AND B.dateTime <= A.expires
            GROUP BY A.id, A.{column}, TUMBLE(A.dateTime, INTERVAL '1' SECOND)
        ) Q
        GROUP BY Q.{column}, TUMBLE(Q.window_time, INTERVAL '1' DAY)"""
    assert compile_job(parsed(document)) == compile_job(same)


def again(select: str, group: str, more: str = "") -> str:
    return f"SELECT {select} FROM ({COUNTS}) c {more} GROUP BY {group}"


BOTH = "window_start, window_end"
BAD: list[tuple[str, str]] = [
    (again("MAX(n) AS m", "currency"), "TUMBLE(window_time, INTERVAL '1' DAY) into this GROUP BY"),
    (
        again("MAX(n) AS m", "window_start")
        .replace("TUMBLE(", "CUMULATE(")
        .replace("DESCRIPTOR(ts), ", "DESCRIPTOR(ts), INTERVAL '10' MINUTE, "),
        "without a window no group of groups would ever end",
    ),
    (again("MAX(n) AS m", BOTH).replace("INTERVAL '1' HOUR", "3600"), "takes the event time and an INTERVAL"),
    (again("MAX(n) FILTER (WHERE n > 1) AS m", BOTH), "write the condition into WHERE"),
    (again("MAX(amount) AS m", BOTH), "the sub-query has no column 'amount'"),
    (again("MAX(m) AS m", BOTH, "WHERE curency = 'x'"), "(did you mean 'currency'?)"),
    (again("currency, MAX(n) AS m", BOTH), "is not in GROUP BY"),
    (again("MAX(n)", BOTH), "write <aggregate> AS <name>"),
    (again("MAX(n) AS m", f"{BOTH}, TUMBLE(window_time, INTERVAL '1' DAY)"), "there are two windows"),
    (again("MAX(n) AS m", "TUMBLE(window_end, INTERVAL '1' DAY)"), "write window_time in place of window_end"),
    (again("MAX(n) AS m", "SESSION(window_time, INTERVAL '1' DAY)"), "write TUMBLE, HOP or CUMULATE"),
    (again("MAX(n) AS m", f"{BOTH} WITH ('aggregate.emit_every' = '1m')"), "then aggregates rows that stay"),
    (f"SELECT MAX(m) AS x FROM ({again(f'MAX(n) AS m, {BOTH}', BOTH)}) GROUP BY {BOTH}", "aggregates twice at most"),
    (f"SELECT c.n FROM ({COUNTS}) c JOIN payments p ON c.currency = p.method", "groups that are joined are a job"),
]  # fmt: skip

LISTS = COUNTS.replace("COUNT(*)", "ARRAY_AGG(id)")


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        (f"SELECT MAX(n) AS m FROM ({LISTS}) GROUP BY {BOTH}", "line 1, column 12, `n`: 'n' is a list"),
        (f"SELECT MAX_BY(currency, n) AS m FROM ({LISTS}) GROUP BY {BOTH}", "`n`: 'n' is a list"),
        (f"SELECT COUNT(*) AS m FROM ({LISTS}) WHERE n > '[2]' GROUP BY {BOTH}", "'n' is a list"),
        (f"{LISTS} HAVING ARRAY_AGG(id) > '[2]'", "write CAST("),
    ],
)
def test_a_list_is_not_ordered(sql: str, words: str) -> None:
    messages = mistakes(inputs=[ORDERS], sql=sql)
    assert words in messages.pop("spec.sql", ""), messages
    assert messages == {}


@pytest.mark.parametrize(("sql", "words"), BAD)
def test_what_cannot_be_grouped_again_is_rejected_with_what_to_write(sql: str, words: str) -> None:
    messages = mistakes(inputs=[ORDERS, PAYMENTS] if "payments" in sql else [ORDERS], sql=sql)
    assert words in messages.pop("spec.sql", ""), messages
    assert messages == {}


def test_a_session_window_does_not_group_again() -> None:
    sql = (
        "SELECT MAX(n) AS m FROM (SELECT user_id, COUNT(*) AS n FROM clicks GROUP BY user_id, SESSION(ts, "
        "INTERVAL '30' SECOND)) GROUP BY window_start, window_end"
    )
    messages = messages_of(session(sql=sql, groupBy=None, gap=None, aggregates=None))
    assert "a job of sessions aggregates once" in messages["spec.sql"]
