"""ROW_NUMBER in the SQL of a StreamJoin: the first rows of each key and window, as `topN` says it (rule R1)."""

from __future__ import annotations

from typing import Any

import pytest

from job.chains import ORDERS, PAYMENTS, load, mistakes, step
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.job import definition

HOUR = {"tumbling": {"size": "1h"}}
HIGHEST = [{"expression": "orders.amount", "direction": "desc"}]
PER_HOUR = "TUMBLE(ts, INTERVAL '1' HOUR)"
TRUNCATED = "DATE_TRUNC('hour', ts)"
PER_LOCAL_DAY = "TUMBLE(ts, INTERVAL '1' DAY, 'Europe/Zurich')"
FLINK = "TABLE(TUMBLE(TABLE orders, DESCRIPTOR(ts), INTERVAL '1' HOUR))"
OVER = f"ROW_NUMBER() OVER (PARTITION BY currency, {PER_HOUR} ORDER BY amount DESC)"
ALL = [{"column": f"orders.{name}"} for name in ("id", "currency", "amount", "ts")]
TIMES = [{"column": "window_start"}, {"column": "window_end"}]
ID = [{"column": "orders.id"}]
NUMBER = {"column": "row_number", "as": "rn"}

SAME: list[tuple[str, dict[str, Any], list[dict[str, str]]]] = [
    (f"SELECT id FROM orders QUALIFY {OVER} <= 3", {}, ID),
    (f"SELECT id FROM orders QUALIFY {OVER} < 4", {}, ID),
    (f"SELECT id FROM orders QUALIFY 3 >= {OVER}", {}, ID),
    (f"SELECT id, {OVER} AS rn, window_end AS until FROM orders QUALIFY rn BETWEEN 1 AND 3",
     {}, [*ID, NUMBER, {"column": "window_end", "as": "until"}]),
    (f"SELECT id FROM orders QUALIFY {OVER} = 1", {"rows": 1}, ID),
    (f"SELECT id FROM orders QUALIFY {OVER.replace('currency, ', '')} <= 3", {"by": None}, ID),
    (f"SELECT id FROM orders o QUALIFY {OVER.replace('amount', 'o.amount * 2')} <= 3",
     {"orderBy": [{"expression": "orders.amount * 2", "direction": "desc"}]}, ID),
    (f"SELECT id FROM orders QUALIFY {OVER.replace('DESC', 'DESC NULLS FIRST, id NULLS LAST')} <= 3",
     {"orderBy": [{**HIGHEST[0], "nulls": "first"}, {"expression": "orders.id", "nulls": "last"}]}, ID),
    (f"SELECT id FROM orders QUALIFY {OVER.replace('TUMBLE(ts', 'HOP(ts, INTERVAL 10 MINUTES')} <= 3",
     {"window": {"hopping": {"slide": "10m", "size": "1h"}}}, ID),
    (f"SELECT id FROM orders QUALIFY {OVER.replace('TUMBLE(ts', 'CUMULATE(ts, INTERVAL 10 MINUTES')} <= 3",
     {"window": {"cumulative": {"step": "10m", "size": "1h"}}}, ID),
    (f"SELECT id FROM orders QUALIFY {OVER.replace(PER_HOUR, TRUNCATED)} <= 3", {}, ID),
    (f"SELECT id FROM orders QUALIFY {OVER.replace(PER_HOUR, 'CAST(ts AS DATE)')} <= 3",
     {"window": {"tumbling": {"size": "24h"}}}, ID),
    (f"SELECT id FROM orders QUALIFY {OVER.replace(PER_HOUR, PER_LOCAL_DAY)} <= 3",
     {"window": {"tumbling": {"size": "24h", "timeZone": "Europe/Zurich"}}}, ID),
    # the first row of each window by event time is no repeat of a row, which the window bounds
    (f"SELECT id FROM orders QUALIFY {OVER.replace('amount DESC', 'ts')} = 1",
     {"rows": 1, "orderBy": [{"expression": "orders.ts"}]}, ID),
    # Flink's form
    (f"SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end, currency ORDER BY amount "
     f"DESC) AS rn FROM {FLINK}) WHERE rn <= 3",
     {}, [*ALL, *TIMES, NUMBER]),
    ("SELECT k, place, started FROM (SELECT o.currency AS k, o.window_start AS started, ROW_NUMBER() OVER (PARTITION "
     "BY o.currency, o.window_start, o.window_end ORDER BY o.amount DESC) AS place "
     f"FROM {FLINK} AS o) AS r WHERE r.place <= 3 AND 0 < place",
     {}, [{"column": "orders.currency", "as": "k"}, {"column": "row_number", "as": "place"},
          {"column": "window_start", "as": "started"}]),
    (f"SELECT id FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY w.window_start, w.window_end, currency ORDER BY "
     f"amount DESC) AS rn FROM (SELECT * FROM {FLINK}) w) WHERE rn <= 3",
     {}, ID),
    (f"WITH o AS (SELECT currency AS k, amount, ts FROM orders), r AS (SELECT k, amount, ROW_NUMBER() OVER "
     f"(PARTITION BY k, {PER_HOUR} ORDER BY amount DESC) AS rn FROM o) SELECT k, rn FROM r WHERE rn <= 3",
     {}, [{"column": "orders.currency", "as": "k"}, NUMBER]),
]  # fmt: skip


def top_n(**more: Any) -> dict[str, Any]:
    fields = {"by": ["orders.currency"], "orderBy": HIGHEST, "rows": 3, "of": "orders", "window": HOUR, **more}
    return {name: value for name, value in fields.items() if value is not None}


@pytest.mark.parametrize(("sql", "rule", "select"), SAME)
def test_row_number_is_the_rule_that_yaml_writes(sql: str, rule: dict[str, Any], select: list[dict[str, str]]) -> None:
    job, yaml = load(inputs=[ORDERS], sql=sql), load(inputs=[ORDERS], topN=top_n(**rule), select=select)
    assert compile_job(job) == compile_job(yaml)
    assert definition(job) == definition(yaml)


def test_a_condition_on_the_key_leaves_rows_out_before_they_are_numbered() -> None:
    sql = f"SELECT * FROM (SELECT id, currency, {OVER} AS rn FROM orders) o WHERE o.rn <= 3 AND o.currency <> 'x'"
    select = [*ID, {"column": "orders.currency"}, NUMBER]
    yaml = load(inputs=[{**ORDERS, "where": "orders.currency <> 'x'"}], topN=top_n(), select=select)
    assert compile_job(load(inputs=[ORDERS], sql=sql)) == compile_job(yaml)


def test_the_rows_of_joins_are_ranked_by_the_columns_of_several_inputs() -> None:
    sql = (
        "SELECT m, rn FROM (SELECT p.method AS m, ROW_NUMBER() OVER (PARTITION BY p.method, TUMBLE(p.ts, INTERVAL '1' "
        "HOUR) ORDER BY o.amount DESC, p.ts) AS rn FROM orders o JOIN payments p ON o.id = p.order_id "
        "AND p.ts BETWEEN o.ts AND o.ts + INTERVAL '24' HOUR) WHERE rn <= 3"
    )
    order = [*HIGHEST, {"expression": "payments.ts"}]
    rule = top_n(by=["payments.method"], of="payments", orderBy=order)
    select = [{"column": "payments.method", "as": "m"}, NUMBER]
    job, yaml = load(inputs=[ORDERS, PAYMENTS], sql=sql), load(step(), topN=rule, select=select)
    assert compile_job(job) == compile_job(yaml)
    assert definition(job) == definition(yaml)


def test_top_n_beside_sql_says_the_window_and_what_sql_has_no_words_for() -> None:
    sql = "SELECT id, ROW_NUMBER() OVER (PARTITION BY currency ORDER BY amount DESC) AS rn FROM orders QUALIFY rn <= 3"
    beside = {"of": "orders", "window": HOUR, "allowedLateness": "1m", "limits": {"maxRecords": 10_000}}
    yaml = load(inputs=[ORDERS], topN=top_n(**beside), select=[*ID, NUMBER])
    assert compile_job(load(inputs=[ORDERS], sql=sql, topN=beside)) == compile_job(yaml)


def test_sql_selects_the_columns_of_a_top_n_beside_it() -> None:
    sql = "SELECT id, window_start, row_number AS rn FROM orders"
    yaml = load(inputs=[ORDERS], topN=top_n(), select=[*ID, TIMES[0], NUMBER])
    assert compile_job(load(inputs=[ORDERS], sql=sql, topN=top_n())) == compile_job(yaml)


GROUPS = f"GROUP BY currency, {PER_HOUR}"
SUMS = f"SELECT currency, window_start, window_end, SUM(amount) AS revenue FROM orders {GROUPS}"
OF_GROUPS = {"orderBy": [{"expression": "revenue", "direction": "desc"}], "rows": 3}
OWN = [{"column": "orders.currency"}, *TIMES, {"column": "revenue"}]


def over(order: str, partition: str = "window_start, window_end") -> str:
    return f"ROW_NUMBER() OVER (PARTITION BY {partition} ORDER BY {order})"


def sums_and(number: str) -> str:
    return SUMS.replace(" FROM", f", {number} AS rn FROM", 1)


BY_REVENUE = over("revenue DESC")
WINDOW = "OVER (PARTITION BY window_start, window_end)"
SUM_OF_AMOUNT = {"function": "sum", "column": "orders.amount", "as": "SUM(amount)"}
TOTAL = {"function": "sum", "column": "SUM(amount)", "as": f"SUM(SUM(amount)) {WINDOW}"}
SHARE = {"expression": f'"SUM(amount)" / "{TOTAL["as"]}"', "as": "share"}
HIGHEST_TOTAL = {"function": "max", "column": "revenue", "as": f"MAX(SUM(amount)) {WINDOW}"}
NO_ORDER = {"orderBy": None, "rows": None}
RANK_BY_REVENUE = {"orderBy": [{"expression": "revenue", "direction": "desc"}]}
BY_SUM = "PARTITION BY window_end ORDER BY revenue"
RANK_BY_SUM = {"orderBy": [{"expression": '"SUM(amount)"'}]}
RUNNING = {**RANK_BY_SUM, "function": "sum", "column": "SUM(amount)"}
ALL_ROWS = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
FIRST_SUM = f"FIRST_VALUE(SUM(amount)) OVER (PARTITION BY window_end ORDER BY SUM(amount) {ALL_ROWS})"
SAME_GROUPS: list[tuple[str, dict[str, Any], list[dict[str, str]]]] = [
    (f"{SUMS} QUALIFY {BY_REVENUE} <= 3", {}, OWN),
    (f"{sums_and(BY_REVENUE)} QUALIFY rn <= 3", {}, [*OWN, NUMBER]),
    (f"SELECT * FROM ({sums_and(BY_REVENUE)}) WHERE rn <= 3", {}, [*OWN, NUMBER]),
    (f"SELECT * FROM ({sums_and(over('SUM(amount) DESC'))}) AS r WHERE r.rn < 4", {}, [*OWN, NUMBER]),
    (f"SELECT * FROM (SELECT *, {BY_REVENUE} AS rn FROM ({SUMS})) WHERE rn BETWEEN 1 AND 3", {}, [*OWN, NUMBER]),
    (f"WITH s AS ({SUMS}), r AS (SELECT s.currency AS k, {BY_REVENUE} AS rn FROM s) SELECT k, rn FROM r WHERE rn <= 3",
     {"aggregates": [{"function": "sum", "column": "orders.amount", "as": "SUM(amount)"}],
      "orderBy": [{"expression": '"SUM(amount)"', "direction": "desc"}]},
     [{"column": "orders.currency", "as": "k"}, NUMBER]),
    (f"SELECT currency, window_end, revenue FROM (SELECT *, {BY_REVENUE} AS rn FROM ({SUMS}) s WHERE revenue > 2) "
     "WHERE rn <= 3 AND window_start > 0",
     {"having": "revenue > 2 AND window_start > 0"}, [OWN[0], OWN[2], OWN[3]]),
    (f"SELECT currency, SUM(amount) / COUNT(*) AS mean, {over('mean, MAX(amount) DESC')} AS rn FROM orders "
     f"{GROUPS} QUALIFY rn = 1",
     {"aggregates": [{"function": "sum", "column": "orders.amount", "as": "SUM(amount)"},
                     {"function": "count", "as": "COUNT(*)"},
                     {"function": "max", "column": "orders.amount", "as": "MAX(amount)"}],
      "orderBy": [{"expression": '("SUM(amount)" / "COUNT(*)")'},
                  {"expression": '"MAX(amount)"', "direction": "desc"}], "rows": 1},
     [OWN[0], {"expression": '"SUM(amount)" / "COUNT(*)"', "as": "mean"}, NUMBER]),
    (f"SELECT currency, revenue, {over('revenue DESC', 'currency, window_end')} * 2 AS twice FROM ({SUMS}) "
     f"QUALIFY {over('revenue DESC', 'currency, window_end')} <= 3",
     {"by": ["currency"]}, [OWN[0], OWN[3], {"expression": "row_number * 2", "as": "twice"}]),
    (f"{SUMS} QUALIFY {BY_REVENUE} <= 3 AND revenue > 5", {"having_ranked": "revenue > 5"}, OWN),
    # totals
    (f"SELECT currency, revenue / SUM(revenue) {WINDOW} AS share, SUM(revenue) {WINDOW} AS total FROM ({SUMS})",
     {**NO_ORDER, "aggregates": [SUM_OF_AMOUNT], "totals": [TOTAL]},
     [OWN[0], SHARE, {"column": TOTAL["as"], "as": "total"}]),
    (f"SELECT currency, COUNT(*) OVER (PARTITION BY currency, window_end) AS n, revenue FROM ({SUMS})",
     {**NO_ORDER, "by": ["currency"], "totals": [{"function": "count", "as": "n"}]}, [OWN[0], {"column": "n"}, OWN[3]]),
    (f"SELECT currency, revenue FROM ({SUMS}) QUALIFY revenue = MAX(revenue) {WINDOW} AND currency <> 'x'",
     {**NO_ORDER, "totals": [HIGHEST_TOTAL],
      "having_ranked": f"(revenue = \"{HIGHEST_TOTAL['as']}\") AND (currency <> 'x')"},
     [OWN[0], OWN[3]]),
    (f"SELECT currency, share FROM (SELECT currency, revenue / SUM(revenue) {WINDOW} AS share, {BY_REVENUE} AS rn FROM "
     f"({SUMS})) WHERE rn <= 3 AND share > 0.1",
     {"aggregates": [SUM_OF_AMOUNT], "orderBy": [{"expression": '"SUM(amount)"', "direction": "desc"}],
      "totals": [TOTAL], "having_ranked": f"({SHARE['expression']}) > 0.1"},
     [OWN[0], SHARE]),
    # ranks
    (f"SELECT currency, RANK() OVER (PARTITION BY window_end ORDER BY SUM(amount) DESC) AS r, {BY_REVENUE} AS rn, "
     f"SUM(amount) AS revenue FROM orders {GROUPS} QUALIFY r <= 3",
     {**NO_ORDER, "totals": [{**RANK_BY_REVENUE, "function": "rank", "as": "r"},
                             {**RANK_BY_REVENUE, "function": "row_number", "as": "rn"}],
      "having_ranked": "r <= 3"},
     [OWN[0], {"column": "r"}, {"column": "rn"}, OWN[3]]),
    (f"SELECT * FROM (SELECT currency, revenue, {BY_REVENUE} AS rn, DENSE_RANK() OVER (PARTITION BY window_end ORDER "
     f"BY currency) AS d FROM ({SUMS})) WHERE rn BETWEEN 1 AND 3 AND rn >= 2 AND d * 2 > rn",
     {"totals": [{"function": "dense_rank", "orderBy": [{"expression": "currency"}], "as": "d"}],
      "having_ranked": "(row_number >= 2) AND (d * 2 > row_number)"},
     [OWN[0], OWN[3], NUMBER, {"column": "d"}]),
    (f"SELECT currency, PERCENT_RANK() OVER ({BY_SUM}) AS p, CUME_DIST() OVER ({BY_SUM}) AS c, NTILE(4) OVER "
     f"({BY_SUM}) AS q FROM ({SUMS}) QUALIFY q < 3",
     {**NO_ORDER, "aggregates": [SUM_OF_AMOUNT],
      "totals": [{**RANK_BY_SUM, "function": "percent_rank", "as": "p"},
                 {**RANK_BY_SUM, "function": "cume_dist", "as": "c"},
                 {**RANK_BY_SUM, "function": "ntile", "buckets": 4, "as": "q"}],
      "having_ranked": "q < 3"},
     [OWN[0], {"column": "p"}, {"column": "c"}, {"column": "q"}]),
    (f"SELECT currency, SUM(revenue * 2) {WINDOW} AS t, MAX(revenue) OVER w AS m, RANK() OVER (w ORDER BY revenue) "
     f"AS r FROM ({SUMS}) WINDOW w AS (PARTITION BY window_start, window_end)",
     {**NO_ORDER, "aggregates": [SUM_OF_AMOUNT],
      "totals": [{"function": "sum", "expression": '"SUM(amount)" * 2', "as": "t"},
                 {"function": "max", "column": "SUM(amount)", "as": "m"},
                 {**RANK_BY_SUM, "function": "rank", "as": "r"}]},
     [OWN[0], {"column": "t"}, {"column": "m"}, {"column": "r"}]),
    # running totals and values of other rows
    (f"SELECT currency, SUM(revenue) OVER ({BY_SUM}) AS a, SUM(revenue) OVER ({BY_SUM} ROWS UNBOUNDED PRECEDING) AS b, "
     f"SUM(revenue) OVER ({BY_SUM} RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS c, COUNT(*) OVER ({BY_SUM} "
     f"{ALL_ROWS}) AS n FROM ({SUMS})",
     {**NO_ORDER, "aggregates": [SUM_OF_AMOUNT],
      "totals": [{**RUNNING, "as": "a"}, {**RUNNING, "frame": "rows", "as": "b"}, {"function": "count", "as": "n"}]},
     [OWN[0], {"column": "a"}, {"column": "b"}, {"column": "a", "as": "c"}, {"column": "n"}]),
    (f"SELECT currency, LAG(revenue) OVER ({BY_SUM}) AS a, LEAD(currency, 2) OVER ({BY_SUM}) AS b, "
     f"FIRST_VALUE(revenue) OVER ({BY_SUM} {ALL_ROWS}) - revenue AS c FROM ({SUMS})",
     {**NO_ORDER, "aggregates": [SUM_OF_AMOUNT],
      "totals": [{**RANK_BY_SUM, "function": "lag", "column": "SUM(amount)", "as": "a"},
                 {**RANK_BY_SUM, "function": "lead", "column": "currency", "offset": 2, "as": "b"},
                 {**RANK_BY_SUM, "function": "first_value", "column": "SUM(amount)", "as": FIRST_SUM}]},
     [OWN[0], {"column": "a"}, {"column": "b"}, {"expression": f'"{FIRST_SUM}" - "SUM(amount)"', "as": "c"}]),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "fields", "select"), SAME_GROUPS)
def test_groups_are_ranked_as_top_n_beside_aggregate(
    sql: str, fields: dict[str, Any], select: list[dict[str, str]]
) -> None:
    aggregate = {
        "groupBy": ["orders.currency"],
        "window": {"of": "orders", **HOUR},
        "aggregates": [{"function": "sum", "column": "orders.amount", "as": "revenue"}],
        **{name: value for name, value in fields.items() if name in {"aggregates", "having"}},
    }
    rule = OF_GROUPS | {name: value for name, value in fields.items() if name not in {*aggregate, "having_ranked"}}
    rule |= {"having": fields["having_ranked"]} if "having_ranked" in fields else {}
    rule = {name: value for name, value in rule.items() if value is not None}
    job, yaml = load(inputs=[ORDERS], sql=sql), load(inputs=[ORDERS], aggregate=aggregate, topN=rule, select=select)
    assert compile_job(job) == compile_job(yaml)
    assert definition(job) == definition(yaml)


def test_the_groups_of_groups_are_ranked() -> None:
    sql = (
        f"SELECT * FROM (SELECT window_start, k, MAX(revenue) AS most, {over('MAX(revenue) DESC, k')} AS rn FROM "
        f"(SELECT UPPER(currency) AS k, revenue, window_start, window_end FROM ({SUMS})) "
        "GROUP BY window_start, window_end, k) WHERE rn <= 3"
    )
    aggregate = {
        "groupBy": ["orders.currency"],
        "window": {"of": "orders", **HOUR},
        "aggregates": [{"function": "sum", "column": "orders.amount", "as": "revenue"}],
        "then": {
            "compute": [{"expression": "UPPER(currency)", "as": "k"}],
            "groupBy": ["k"],
            "aggregates": [{"function": "max", "column": "revenue", "as": "most"}],
        },
    }
    rule = {"orderBy": [{"expression": "most", "direction": "desc"}, {"expression": "k"}], "rows": 3}
    select = [TIMES[0], {"column": "k"}, {"column": "most"}, NUMBER]
    yaml = load(inputs=[ORDERS], aggregate=aggregate, topN=rule, select=select)
    assert compile_job(load(inputs=[ORDERS], sql=sql)) == compile_job(yaml)


def test_sql_selects_the_number_of_groups_that_a_top_n_beside_it_ranks() -> None:
    sql = f"SELECT currency, row_number AS rn, SUM(amount) AS revenue FROM orders {GROUPS}"
    aggregate = {
        "groupBy": ["orders.currency"],
        "window": {"of": "orders", **HOUR},
        "aggregates": [{"function": "sum", "column": "orders.amount", "as": "revenue"}],
    }
    yaml = load(inputs=[ORDERS], aggregate=aggregate, topN=OF_GROUPS, select=[OWN[0], NUMBER, OWN[3]])
    assert compile_job(load(inputs=[ORDERS], sql=sql, topN=OF_GROUPS)) == compile_job(yaml)


def test_groups_of_rows_that_deduplicate_emits_are_ranked() -> None:
    deduplicate = {"by": ["orders.id"], "within": "1h"}
    aggregate = {
        "groupBy": ["orders.currency"],
        "window": {"of": "orders", **HOUR},
        "aggregates": [{"function": "sum", "column": "orders.amount", "as": "revenue"}],
    }
    yaml = load(inputs=[ORDERS], deduplicate=deduplicate, aggregate=aggregate, topN=OF_GROUPS, select=OWN)
    job = load(inputs=[ORDERS], sql=f"{SUMS} QUALIFY {BY_REVENUE} <= 3", deduplicate=deduplicate)
    assert compile_job(job) == compile_job(yaml)


FIRST_OF_ID = "ROW_NUMBER() OVER (PARTITION BY id ORDER BY ts) = 1"
BAD_GROUPS: list[tuple[str, str]] = [
    (f"{SUMS} QUALIFY ROW_NUMBER() OVER (ORDER BY revenue) <= 3", "write window_start, window_end into PARTITION BY"),
    (f"{SUMS} QUALIFY ROW_NUMBER() OVER (PARTITION BY window_end) <= 3", "nothing says which row comes first"),
    (f"{SUMS} QUALIFY {over('amount')} <= 3", "`amount`: is not in GROUP BY, and a group holds many rows"),
    (f"{SUMS} QUALIFY {over('revnue')} <= 3", "no input has a column 'revnue'"),
    (f"{SUMS} QUALIFY RANK() OVER (PARTITION BY window_end) <= 3", "nothing says which row comes first"),
    (f"{SUMS} QUALIFY RANK() OVER (ORDER BY revenue) <= 3", "write window_start, window_end into PARTITION BY"),
    (f"{SUMS} QUALIFY ROW_NUMBER(1) OVER (PARTITION BY window_end ORDER BY revenue) > 3", "takes no argument here"),
    (f"{SUMS} QUALIFY RANK() OVER (PARTITION BY window_end ORDER BY revenue ROWS 1 PRECEDING) > 3", "has no frame"),
    (f"{SUMS} QUALIFY {over('revenue', 'window_end, UPPER(currency)')} <= 3",
     "write it into GROUP BY as well, or leave it out"),
    (f"SELECT currency, SUM(revenue) OVER (PARTITION BY currency) AS t FROM ({SUMS})",
     "a total over all windows would never be complete (rule R9); write window_start, window_end into PARTITION BY"),
    (f"SELECT currency, SUM(revenue) OVER (PARTITION BY window_end ORDER BY revenue ROWS 2 PRECEDING) AS t FROM "
     f"({SUMS})", "write ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW, or LAG and LEAD"),
    (f"SELECT currency, SUM(revenue) OVER (PARTITION BY window_end ROWS UNBOUNDED PRECEDING) AS t FROM ({SUMS})",
     "write SUM(SUM(amount)) OVER (PARTITION BY window_start, window_end ORDER BY ...)"),
    (f"SELECT currency, LAG(revenue, 1, 0) OVER ({BY_SUM}) AS t FROM ({SUMS})",
     "write COALESCE(LAG(SUM(amount)) OVER (...), 0)"),
    (f"SELECT currency, LAG(revenue, revenue) OVER ({BY_SUM}) AS t FROM ({SUMS})", "as a whole number from 1 on"),
    (f"SELECT currency, NTILE(revenue) OVER ({BY_SUM}) AS t FROM ({SUMS})", "write for example NTILE(4)"),
    (f"SELECT currency, LAST_VALUE(revenue) OVER ({BY_SUM}) AS t FROM ({SUMS})", "write FIRST_VALUE with the reverse"),
    (f"SELECT currency, LAG(revenue) IGNORE NULLS OVER ({BY_SUM}) AS t FROM ({SUMS})", "leave NULLS out"),
    (f"SELECT currency, LAG(revenue) OVER ({BY_SUM} ROWS 1 PRECEDING) AS t FROM ({SUMS})", "has no frame"),
    (f"SELECT currency, SUM(revenue) OVER (PARTITION BY window_end, UPPER(currency)) AS t FROM ({SUMS})",
     "write it into GROUP BY as well"),
    (f"SELECT currency, SUM(revenue) OVER (PARTITION BY currency ORDER BY window_start) AS t FROM ({SUMS})",
     "write GROUP BY with CUMULATE(...) for one since the begin of a day, or HOP(...)"),
    (f"SELECT currency, LAG(revenue) OVER (PARTITION BY currency ORDER BY window_start) AS t FROM ({SUMS})",
     "let a second job read the groups, and LEFT JOIN each with the one before"),
    (f"SELECT currency, MAX(window_end - ts) AS t FROM orders {GROUPS}", "write GROUP BY with shorter windows"),
    (f"SELECT currency, COUNT(revenue) {WINDOW} AS t FROM ({SUMS})", "write COUNT(*) OVER (...)"),
    (f"SELECT currency, LAG(revenue) {WINDOW} AS t FROM ({SUMS})", "nothing says which row comes first"),
    (f"SELECT currency, STDDEV(revenue) {WINDOW} AS t FROM ({SUMS})", "LAG, LEAD and FIRST_VALUE alone"),
    (f"SELECT currency, SUM(revenue) {WINDOW} AS t, MAX(revenue) OVER (PARTITION BY window_end, currency) AS m FROM "
     f"({SUMS})", "the totals are of different groups"),
    (f"SELECT currency, SUM(revenue) OVER (PARTITION BY window_end, currency) AS t FROM ({SUMS}) "
     f"QUALIFY {BY_REVENUE} <= 3", "write the same PARTITION BY, or let a second job number them"),
    (f"SELECT currency, SUM(revenue) {WINDOW} FROM ({SUMS})", "write <expression> AS <name>"),
    (f"SELECT currency, RANK() OVER (PARTITION BY window_end ORDER BY COUNT(*)) AS r FROM "
     f"(SELECT * FROM orders QUALIFY {FIRST_OF_ID}) {GROUPS}", "write deduplicate: {by: [...], within: 1h} beside sql"),
    (f"SELECT currency, row_number AS rn FROM orders {GROUPS}", "no input has a column 'row_number'"),
    (f"SELECT MAX(revenue) AS most FROM ({SUMS} QUALIFY {BY_REVENUE} <= 3) GROUP BY window_start, window_end",
     "groups that are numbered are not grouped again"),
    (f"SELECT *, {BY_REVENUE} AS rn FROM ({SUMS.replace('orders', f'(SELECT * FROM orders QUALIFY {FIRST_OF_ID})')}) "
     "QUALIFY rn <= 3", "write deduplicate: {by: [...], within: 1h} beside sql"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "words"), BAD_GROUPS)
def test_other_numbers_of_groups_are_rejected_with_what_to_write(sql: str, words: str) -> None:
    messages = mistakes(inputs=[ORDERS], sql=sql)
    assert words in messages["spec.sql"], messages


def numbered(*, over: str = f"currency, {PER_HOUR} ORDER BY amount", where: str = "rn <= 3", select: str = "id") -> str:
    return f"SELECT {select} FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY {over}) AS rn FROM orders) WHERE {where}"


WINDOWS = "WINDOW TUMBLING(INTERVAL '1' HOUR)"
JOINED = "FROM orders o JOIN payments p ON o.id = p.order_id"
NUMBERED = "ROW_NUMBER() OVER (PARTITION BY o.currency, {0}window_start, {0}window_end ORDER BY o.amount DESC) AS rn"
SIDE = "(SELECT * FROM TABLE(TUMBLE(TABLE {}, DESCRIPTOR(ts), INTERVAL '1' HOUR)))"


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT o.id, p.method, window_start, {NUMBERED.format('')} {JOINED} QUALIFY rn <= 3 {WINDOWS}",
        f"SELECT id, method, window_start, rn FROM (SELECT o.id, p.method, o.window_start, {NUMBERED.format('o.')} "
        f"FROM {SIDE.format('orders')} o JOIN {SIDE.format('payments')} p ON o.id = p.order_id AND "
        "o.window_start = p.window_start AND o.window_end = p.window_end) WHERE rn <= 3",
    ],
)
def test_pairs_are_numbered_in_the_windows_in_which_they_were_joined(sql: str) -> None:
    inputs = [ORDERS, PAYMENTS]
    joined = {"right": "payments", "keys": {"orders.id": "payments.order_id"}, "window": {"tumbling": "1h"}}
    top_n = {"by": ["orders.currency"], "of": "orders", "orderBy": HIGHEST, "rows": 3, "window": HOUR}
    select = [*ID, {"column": "payments.method"}, {"column": "window_start"}, NUMBER]
    yaml = load(joined, inputs=inputs, topN=top_n, select=select)
    assert compile_job(load(inputs=inputs, sql=sql)) == compile_job(yaml)


BAD: list[tuple[str, str]] = [
    (numbered(over="currency ORDER BY amount"), "into PARTITION BY write TUMBLE(<event time>, INTERVAL '1' HOUR)"),
    (numbered(over="currency, window_start, window_end ORDER BY amount"), "nothing says which windows these are"),
    (numbered(over="currency, SESSION(ts, INTERVAL '1' HOUR) ORDER BY amount"), "write TUMBLE, HOP or CUMULATE"),
    (numbered(over=f"{PER_HOUR}, {PER_HOUR} ORDER BY amount"), "there are two windows; keep one"),
    (numbered(over=f"UPPER(currency), {PER_HOUR} ORDER BY amount"), "write columns of the inputs into PARTITION BY"),
    (numbered(over=f"currency, {PER_HOUR}"), "nothing says which row comes first"),
    (numbered(over=f"currency, {PER_HOUR} ORDER BY SUM(amount)"), "by columns and expressions of each row alone"),
    (numbered(over=f"currency, {PER_HOUR} ORDER BY UPER(id)"), "UPPER"),
    (numbered(over=f"{PER_HOUR} ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW"), "leave ROWS or RANGE out"),
    (numbered(over="currency, TUMBLE(amount, INTERVAL '1' HOUR) ORDER BY amount"), "'orders' is ts; write TUMBLE(ts,"),
    (numbered(where="rn <= 3 AND amount > 5"), "into the WHERE of the rows that are numbered"),
    (f"SELECT id FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY id) AS rn FROM "
     f"{FLINK}) WHERE rn <= 3 AND window_start > 5", "write one on the event time into the WHERE of the rows that are"),
    (numbered(where="rn > 1"), "write <= 10, select the number, and leave them out where the rows are read"),
    (numbered(where="rn BETWEEN 2 AND 3"), "rows before number 2 have to be emitted too; write <= 3"),
    (numbered(where="rn < 1"), "no row has such a number"),
    ("SELECT id FROM (SELECT id, LAG(amount) OVER (PARTITION BY currency ORDER BY ts) AS b FROM orders) WHERE b < 1",
     "for the nearest other row of the key, or NULL, write FROM orders a LEFT JOIN orders b"),
    (numbered(where="rn <= 20000"), "at most 10,000 rows of each key and window"),
    (numbered(where="rn <= amount"), "is compared with whole numbers alone"),
    (numbered(where="rn <= 3", select="rn * 2 AS r"), "write ROW_NUMBER() OVER (...) AS y and QUALIFY y <= 10"),
    (f"SELECT id, window_end + 1 AS x FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER "
     f"BY id) AS rn FROM {FLINK}) WHERE rn <= 3", "select it as it is, with AS"),
    (numbered(where="currency = 'x'", select="id, rn"), "write ROW_NUMBER() OVER (...) AS y and QUALIFY y <= 10"),
    (numbered(select="id, COUNT(*) AS n") + f" GROUP BY id, {PER_HOUR}", "or let a second job group these"),
    (numbered().replace("ROW_NUMBER", "RANK"), "RANK gives equal rows one number"),
    (numbered().replace("ROW_NUMBER", "DENSE_RANK"), "DENSE_RANK gives equal rows one number"),
    (numbered().replace("ROW_NUMBER()", "SUM(amount)"), "a job numbers rows with ROW_NUMBER alone"),
    (f"SELECT id, {OVER} AS amount FROM orders QUALIFY amount <= 3", "give the number a name of its own, such as rn"),
    (f"SELECT id, {OVER} FROM orders QUALIFY {OVER} <= 3", "write ROW_NUMBER() OVER (...) AS <name>"),
    (f"SELECT id FROM orders QUALIFY {OVER} <= 3 AND {OVER.replace('DESC', 'ASC')} <= 3", "numbers its rows once"),
    (f"SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_end ORDER BY id) AS rn FROM {FLINK}) "
     "WHERE rn <= 3", "write OVER (PARTITION BY <columns>, window_start, window_end ORDER BY ...)"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "words"), BAD)
def test_what_cannot_be_ranked_is_rejected_with_what_to_write(sql: str, words: str) -> None:
    messages = mistakes(inputs=[ORDERS], sql=sql)
    assert [*messages] == ["spec.topN.window" if "into PARTITION BY write" in words else "spec.sql"]
    assert words in "".join(messages.values())


def test_what_both_say_is_rejected() -> None:
    sql = f"SELECT id FROM orders QUALIFY {OVER} <= 3"
    messages = mistakes(inputs=[ORDERS], sql=sql, topN={"rows": 3, "window": HOUR})
    assert {path: messages[path].partition(" and")[0] for path in messages} == {
        "spec.topN.rows": "rows", "spec.topN.window": "window",
    }  # fmt: skip
