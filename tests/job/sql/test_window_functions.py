"""Windows as Flink's table functions and as Spark write them: the same job as the functions of GROUP BY."""

from __future__ import annotations

import pytest

from job.chains import ORDERS, load, stream
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.job.sql import SqlInput, Translation, translate

INPUTS = (SqlInput("orders", ("id", "country", "amount", "ts"), "ts"),)
BOTH = (*INPUTS, SqlInput("payments", ("order_id", "method", "ts"), "ts"))
HOUR, QUARTER = "INTERVAL '1' HOUR", "INTERVAL '15' MINUTE"
JOIN = (
    "SELECT o.country, p.ts AS paid FROM orders o JOIN payments p ON o.id = p.order_id "
    "AND p.ts BETWEEN o.ts AND o.ts + INTERVAL '1' DAY"
)
CAP = "WITH ('aggregate.max_duration' = '6h')"


def counted(source: str, groups: str, more: str = "") -> str:
    return f"SELECT country, window_start, COUNT(*) AS n FROM {source} GROUP BY {groups} {more}"


def of_flink(function: str, more: str = "") -> str:
    return counted(f"TABLE({function})", "country, window_start, window_end", more)


def translated(sql: str, inputs: tuple[SqlInput, ...] = INPUTS) -> Translation:
    translation = translate(sql, inputs)
    assert translation.problems == ()
    return translation


SAME = [
    # Flink
    (of_flink(f"TUMBLE(TABLE orders, DESCRIPTOR(ts), {HOUR})"), f"TUMBLE(ts, {HOUR})"),
    (of_flink(f"HOP(TABLE orders, DESCRIPTOR(ts), {QUARTER}, {HOUR})"), f"HOP(ts, {QUARTER}, {HOUR})"),
    (of_flink(f"CUMULATE(TABLE orders, DESCRIPTOR(ts), {QUARTER}, {HOUR})"), f"CUMULATE(ts, {QUARTER}, {HOUR})"),
    (of_flink(f"SESSION(TABLE orders, DESCRIPTOR(ts), {HOUR})", CAP), f"SESSION(ts, {HOUR})"),
    (of_flink(f"TUMBLE(TABLE orders, DESCRIPTOR(ts), {HOUR}, {QUARTER})"), f"TUMBLE(ts, {HOUR}, {QUARTER})"),
    (
        "SELECT w.country, w.window_start, COUNT(*) AS n "
        f"FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(ts), {HOUR})) AS w "
        "GROUP BY w.country, w.window_start, w.window_end, w.window_time",
        f"TUMBLE(ts, {HOUR})",
    ),
    (
        "SELECT country, window_start, COUNT(*) AS n "
        f"FROM (SELECT * FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(ts), {HOUR}))) "
        "GROUP BY country, window_start, window_end",
        f"TUMBLE(ts, {HOUR})",
    ),
    (
        f"WITH all_rows AS (SELECT * FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(ts), {HOUR}))), "
        "w AS (SELECT country, amount, window_start, window_end FROM all_rows) "
        "SELECT w.country, w.window_start, COUNT(*) AS n FROM w GROUP BY w.country, w.window_start, w.window_end",
        f"TUMBLE(ts, {HOUR})",
    ),
    (
        f"WITH orders AS (SELECT country, ts AS t, window_start, window_end FROM TABLE(HOP(TABLE orders, "
        f"DESCRIPTOR(ts), {QUARTER}, {HOUR}))) "
        "SELECT country, window_start, COUNT(*) AS n FROM orders GROUP BY country, window_start, window_end",
        f"HOP(ts, {QUARTER}, {HOUR})",
    ),
    (of_flink(f"TUMBLE(TABLE (SELECT * FROM orders), DESCRIPTOR(ts), {HOUR})"), f"TUMBLE(ts, {HOUR})"),
    (of_flink(f"TUMBLE(DATA => TABLE orders, TIMECOL => DESCRIPTOR(ts), SIZE => {HOUR})"), f"TUMBLE(ts, {HOUR})"),
    (
        of_flink(f"HOP(SIZE => {HOUR}, DATA => TABLE orders, TIMECOL => DESCRIPTOR(ts), slide => {QUARTER})"),
        f"HOP(ts, {QUARTER}, {HOUR})",
    ),
    (
        of_flink(f"SESSION(DATA => TABLE orders PARTITION BY country, TIMECOL => DESCRIPTOR(ts), GAP => {HOUR})", CAP),
        f"SESSION(ts, {HOUR})",
    ),
    # Spark
    (counted("orders", "country, window(ts, '1 hour')"), f"TUMBLE(ts, {HOUR})"),
    (counted("orders", "country, WINDOW(ts, '1 hour', '15 minutes')"), f"HOP(ts, {QUARTER}, {HOUR})"),
    (counted("orders", "country, window(ts, '1 hour', '1 hour', '15 minutes')"), f"TUMBLE(ts, {HOUR}, {QUARTER})"),
    (counted("orders", "country, session_window(ts, '1 hours')", CAP), f"SESSION(ts, {HOUR})"),
    (
        "SELECT country, window.start AS window_start, COUNT(*) AS n FROM orders "
        "GROUP BY window(ts, '1 hour'), country",
        f"TUMBLE(ts, {HOUR})",
    ),
    (
        "SELECT country, window(ts, '1 hour').start AS window_start, COUNT(*) AS n FROM orders "
        "GROUP BY window(ts, '1 hour'), country",
        f"TUMBLE(ts, {HOUR})",
    ),
]


@pytest.mark.parametrize(
    ("clause", "function"),
    [
        (f"TUMBLING({HOUR})", f"TUMBLE(ts, {HOUR})"),
        (f"HOPPING(SIZE {HOUR}, SLIDE {QUARTER})", f"HOP(ts, {QUARTER}, {HOUR})"),
        ("HOPPING (SIZE 1 HOUR, ADVANCE BY 15 MINUTES)", f"HOP(ts, {QUARTER}, {HOUR})"),
        (f"SESSION({HOUR})", f"SESSION(ts, {HOUR})"),
    ],
)
def test_a_window_clause_without_a_join_is_that_of_group_by(clause: str, function: str) -> None:
    more = CAP if "SESSION" in function else ""
    translation = translated(counted("orders", "country", f"WINDOW {clause} {more}"))
    same = translated(counted("orders", f"country, {function}", more)).aggregate or {}
    window = {name: value for name, value in same["window"].items() if name != "of"}
    assert translation.aggregate == {**same, "window": window}


@pytest.mark.parametrize("emit", ["CHANGES", "FINAL"])
def test_ksqldbs_order_of_clauses(emit: str) -> None:
    ksql = (
        "SELECT country, WINDOWSTART AS starts, COUNT(*) AS n FROM orders "
        "WINDOW TUMBLING (SIZE 1 HOUR, GRACE PERIOD 5 MINUTES) WHERE amount > 3 GROUP BY country HAVING COUNT(*) > 1 "
        f"EMIT {emit};"
    )
    ours = (
        "SELECT country, window_start AS starts, COUNT(*) AS n FROM orders WHERE amount > 3 GROUP BY country "
        "HAVING COUNT(*) > 1 WINDOW TUMBLING(INTERVAL '1' HOUR) WITH ('aggregate.allowed_lateness' = '5m')"
    )
    assert translated(ksql) == translated(ours)


@pytest.mark.parametrize("option", ["'aggregate.emit_every' = '10s'", "'aggregate.late_data' = 'reopen'"])
def test_final_groups_are_not_emitted_again(option: str) -> None:
    sql = counted("orders WINDOW TUMBLING (SIZE 1 HOUR)", "country", f"EMIT FINAL WITH ({option})")
    (problem,) = translate(sql, INPUTS).problems
    assert "each group is emitted once, and the options say that it is emitted again; leave one out" in problem


@pytest.mark.parametrize(("sql", "function"), SAME)
def test_the_window_is_that_of_the_function_of_group_by(sql: str, function: str) -> None:
    more = CAP if "SESSION" in function else ""
    assert translated(sql) == translated(counted("orders", f"country, {function}", more))


TUMBLED = f"TABLE(TUMBLE(TABLE orders, DESCRIPTOR(ts), {HOUR}))"
GROUPED = "GROUP BY country, window_start, window_end"
NUMBERED = "SELECT id, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY amount) AS n"


@pytest.mark.parametrize(
    ("nested", "flat"),
    [
        (
            f"SELECT country, COUNT(*) AS n FROM (SELECT * FROM {TUMBLED} w WHERE w.amount > 5) {GROUPED}",
            f"SELECT country, COUNT(*) AS n FROM {TUMBLED} WHERE amount > 5 {GROUPED}",
        ),
        (
            f"WITH w AS (SELECT country, amount * 2 AS a, window_start, window_end FROM {TUMBLED} WHERE amount > 5) "
            f"SELECT country, SUM(w.a) AS n FROM w WHERE a < 9 {GROUPED}",
            f"SELECT country, SUM(amount * 2) AS n FROM {TUMBLED} WHERE amount > 5 AND (amount * 2) < 9 {GROUPED}",
        ),
        (
            f"SELECT id, n FROM ({NUMBERED} FROM (SELECT * FROM {TUMBLED} WHERE amount > 5)) WHERE n <= 2",
            f"SELECT id, n FROM ({NUMBERED} FROM {TUMBLED} WHERE amount > 5) WHERE n <= 2",
        ),
    ],
)
def test_a_table_function_in_a_sub_query_that_filters_is_that_of_the_select_around_it(nested: str, flat: str) -> None:
    jobs = [load(inputs=[stream("orders", "id", "country", "amount:double")], sql=sql) for sql in (nested, flat)]
    assert compile_job(jobs[0]) == compile_job(jobs[1])


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT country, amount AS ts, window_start, window_end FROM {TUMBLED}",
        f"SELECT * FROM {TUMBLED} WHERE window_start > 3",
        f"SELECT country, window_end FROM {TUMBLED}",
        f"SELECT country, window_end AS window_start, window_start AS window_end FROM {TUMBLED}",
        f"SELECT * FROM TABLE(SESSION(TABLE orders, DESCRIPTOR(ts), {HOUR})) WHERE amount > 5",
    ],
)
def test_a_sub_query_whose_windows_are_others_outside_is_rejected(query: str) -> None:
    """A condition on rows would change sessions if it came before them; the other columns are not the windows' own."""
    (problem, *_) = translate(f"SELECT country, COUNT(*) AS n FROM ({query}) {GROUPED}", INPUTS).problems
    assert "write the function into the FROM of the SELECT that groups or numbers its rows" in problem


def test_a_table_function_reads_a_query_of_with_that_joins() -> None:
    nested = (
        f"WITH paid AS ({JOIN}) SELECT country, window_end, COUNT(*) AS n "
        f"FROM TABLE(TUMBLE(TABLE paid, DESCRIPTOR(paid), {HOUR})) GROUP BY country, window_start, window_end"
    )
    flat = JOIN.replace("o.country, p.ts AS paid", "o.country, window_end, COUNT(*) AS n")
    assert translated(nested, BOTH) == translated(f"{flat} GROUP BY o.country, TUMBLE(p.ts, {HOUR})", BOTH)


@pytest.mark.parametrize(
    ("function", "offset"),
    [
        (f"TUMBLE(ts, {HOUR}, {QUARTER})", 900_000),
        (f"TUMBLE(ts, {HOUR}, INTERVAL '-15' MINUTE)", 2_700_000),
        (f"TUMBLE(ts, {HOUR}, INTERVAL '5' HOUR)", None),
        (f"HOP(ts, {QUARTER}, {HOUR}, INTERVAL '20' MINUTE)", 300_000),
        (f"CUMULATE(ts, {QUARTER}, {HOUR}, INTERVAL '70' MINUTE)", 600_000),
    ],
)
def test_an_offset_is_at_most_that_of_the_next_window(function: str, offset: int | None) -> None:
    aggregate = translated(counted("orders", f"country, {function}")).aggregate
    assert aggregate is not None
    ((_, lengths),) = [item for item in aggregate["window"].items() if item[0] != "of"]
    assert lengths.get("offset") == offset


def test_the_job_is_that_of_the_fields() -> None:
    sql = (
        "SELECT currency, window_start, window_end, COUNT(*) AS n "
        f"FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(ts), {HOUR}, {QUARTER})) "
        "GROUP BY currency, window_start, window_end"
    )
    aggregate = {
        "groupBy": ["orders.currency"],
        "window": {"of": "orders", "tumbling": {"size": "1h", "offset": "15m"}},
        "aggregates": [{"function": "count", "as": "n"}],
    }
    assert compile_job(load(inputs=[ORDERS], aggregate=aggregate)) == compile_job(load(inputs=[ORDERS], sql=sql))


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        (
            f"SELECT id FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(ts), {HOUR}))",
            "write GROUP BY <columns>, window_start",
        ),
        (
            f"SELECT COUNT(*) AS n FROM TABLE(CUMULATE(TABLE orders, DESCRIPTOR(ts), {QUARTER}, {HOUR})) "
            "GROUP BY window_start",
            "write GROUP BY <columns>, window_start, window_end",
        ),
        (of_flink(f"TUMBLE(TABLE orders, {HOUR})"), "a table function is written TABLE(TUMBLE("),
        (of_flink(f"TUMBLE(TABLE orders, DESCRIPTOR(amount), {HOUR})"), "the eventTime of 'orders' is ts"),
        (of_flink("TUMBLE(TABLE orders, DESCRIPTOR(ts))"), "takes the event time and an INTERVAL"),
        (of_flink(f"TUMBLE(TABLE order, DESCRIPTOR(ts), {HOUR})"), "did you mean 'orders'?"),
        (
            of_flink(f"TUMBLE(DATA => TABLE orders, TIMECOL => DESCRIPTOR(ts), OFFSET => {HOUR})"),
            "the arguments of TUMBLE are DATA, TIMECOL, SIZE, OFFSET, and here it has DATA, TIMECOL, OFFSET",
        ),
        (of_flink(f"TUMBLE(TABLE orders, DESCRIPTOR(ts), SIZE => {HOUR})"), "name each of them, or none"),
        (
            "SELECT window, COUNT(*) AS n FROM orders GROUP BY window(ts, '1 hour')",
            "a window is two columns; write window.start and window.end",
        ),
        (counted("orders", "country, window(ts, 'often')"), "INTERVAL"),
        (
            counted("orders", "country, DATE_TRUNC('month', ts)"),
            "or DATE_TRUNC of the event time in a unit of one length",
        ),
        (
            "SELECT DATE_TRUNC('hour', ts) AS ts, COUNT(*) AS n FROM orders GROUP BY ts",
            "in GROUP BY is the column, before DATE_TRUNC('hour', ts) AS ts; write GROUP BY DATE_TRUNC('hour', ts)",
        ),
        (
            "SELECT DATE_TRUNC('hour', ts) AS country, COUNT(*) AS n FROM orders GROUP BY country",
            "or another alias",
        ),
        (
            "SELECT DATE_TRUNC('hour', ts) AS country, COUNT(*) AS n FROM (SELECT * FROM orders) q GROUP BY country",
            "or another alias",
        ),
        (
            "WITH q AS (SELECT * FROM orders) SELECT DATE_TRUNC('hour', ts) AS ts, COUNT(*) AS n FROM q GROUP BY ts",
            "or another alias",
        ),
        (
            "WITH orders AS (SELECT ts, ts AS h FROM orders) "
            "SELECT DATE_TRUNC('hour', ts) AS h, COUNT(*) AS n FROM orders GROUP BY h",
            "or another alias",
        ),
    ],
)
def test_rejected_with_what_to_write(sql: str, words: str) -> None:
    assert any(words in problem for problem in translate(sql, INPUTS).problems)


DISTINCT = [
    (f"SELECT DISTINCT country, window_start FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(ts), {HOUR}))",
     f"SELECT country, window_start FROM orders GROUP BY country, TUMBLE(ts, {HOUR})"),
    ("SELECT DISTINCT w.window_end AS until, UPPER(w.country) AS c FROM TABLE(HOP(TABLE orders, DESCRIPTOR(ts), "
     f"{QUARTER}, {HOUR})) w WHERE w.amount > 5",
     f"SELECT window_end AS until, UPPER(country) AS c FROM orders WHERE amount > 5 GROUP BY UPPER(country), "
     f"HOP(ts, {QUARTER}, {HOUR})"),
    (f"SELECT DISTINCT window_start, window_end FROM TABLE(CUMULATE(TABLE orders, DESCRIPTOR(ts), {QUARTER}, {HOUR}))",
     f"SELECT window_start, window_end FROM orders GROUP BY CUMULATE(ts, {QUARTER}, {HOUR})"),
]  # fmt: skip


@pytest.mark.parametrize(("distinct", "groups"), DISTINCT)
def test_distinct_with_a_time_of_the_windows_is_group_by(distinct: str, groups: str) -> None:
    assert translated(distinct) == translated(groups)
    inputs = [stream("orders", "id", "country", "amount:double")]
    compile_job(load(inputs=inputs, sql=distinct))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT DISTINCT country FROM orders",
        f"SELECT DISTINCT country FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(ts), {HOUR}))",
        f"SELECT DISTINCT window_start FROM TABLE(CUMULATE(TABLE orders, DESCRIPTOR(ts), {QUARTER}, {HOUR}))",
        "SELECT DISTINCT * FROM orders",
        "SELECT DISTINCT window_start FROM orders",
        "SELECT DISTINCT ON (country) country, ts FROM orders",
    ],
)
def test_distinct_without_an_end_is_rejected_with_what_to_write(sql: str) -> None:
    problems = translate(sql, INPUTS).problems
    assert any(
        "select window_start and window_end of" in text and "deduplicate: {within: 1h}" in text for text in problems
    )
