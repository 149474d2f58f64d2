"""SQL of sessions: what it means, and each refusal at its line and column."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from job.chains import messages_of
from job.sessions import document, in_sql, load, parsed
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.job import Sessions, definition, explain, parse_job

SESSION = "SESSION(ts, INTERVAL '30' SECOND)"
GROUPED = f"GROUP BY user_id, {SESSION}"


COMPUTED = (
    "SELECT LOWER ( page ) AS p , SUM ( price * qty ) AS n , window_start FROM clicks c WHERE c.qty > 1 "
    "GROUP BY LOWER ( page ) , SESSION ( ts , INTERVAL '30' SECOND )"
)
KSQL = "SELECT user_id , COUNT( * ) AS n FROM clicks WINDOW SESSION ( 30 SECONDS ) GROUP BY user_id EMIT CHANGES"


def counted(group_by: str, select: str = "user_id, COUNT(*) AS n", rest: str = "") -> str:
    return f"SELECT {select} FROM clicks GROUP BY {group_by} {rest}".rstrip()


def selected(items: str) -> str:
    return f"SELECT user_id, {items} FROM clicks {GROUPED}"


def aggregate(function: str, column: str | None = None, **more: Any) -> dict[str, Any]:
    return {"function": function, "as": "x", **({"column": column} if column else {}), **more}


def test_a_job_in_sql_is_the_job_of_its_fields() -> None:
    sql = """
        SELECT user_id, LOWER(page) AS low, COUNT(*) AS events, SUM(price * qty) AS total, FIRST(page) AS first_page,
               COUNT(DISTINCT page) AS pages, window_start AS began, session_id
        FROM clicks AS c
        WHERE price > 1 AND c.page <> 'x'
        GROUP BY user_id, LOWER(c.page), SESSION(c.ts, INTERVAL '90' SECOND)
        EMIT CHANGES
    """
    same = document(
        {"function": "count", "as": "events"},
        {"function": "sum", "column": "price * qty", "as": "total"},
        {"function": "first", "column": "page", "as": "first_page"},
        {"function": "count_distinct", "column": "page", "as": "pages"},
        groupBy=["user_id", "low"],
        gap="90s",
        where="clicks.price > 1 AND clicks.page <> 'x'",
        compute=[
            {"expression": "LOWER(clicks.page)", "as": "low"},
            {"expression": "clicks.price * clicks.qty", "as": "price * qty"},
        ],
        select=[
            *({"column": name} for name in ("user_id", "low", "events", "total", "first_page", "pages")),
            {"column": "window_start", "as": "began"},
            {"column": "session_id"},
        ],
    )
    job, twin = parsed(in_sql(sql)), parsed(same)
    assert job.sessions == twin.sessions
    assert definition(job) == definition(twin)
    assert job.output_columns == twin.output_columns
    assert job.has_expressions
    assert explain(job).steps == explain(twin).steps
    assert compile_job(job) == compile_job(twin)


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        ("COUNT(*)", aggregate("count")),
        ("COUNT(1)", aggregate("count")),
        ("COUNT(page)", aggregate("count_col", "page")),
        ("COUNT(DISTINCT page)", aggregate("count_distinct", "page")),
        ("APPROX_COUNT_DISTINCT(page)", aggregate("count_distinct", "page", method="hll")),
        ("sum((price))", aggregate("sum", "price")),
        ("AVG(clicks.qty)", aggregate("avg", "qty")),
        ("MIN(day)", aggregate("min", "day")),
        ("MAX(ts)", aggregate("max", "ts")),
        ("FIRST(page)", aggregate("first", "page")),
        ("FIRST_VALUE(page)", aggregate("first", "page")),
        ("LAST(page) IGNORE NULLS", aggregate("last", "page")),
        ("LAST_VALUE(page IGNORE NULLS)", aggregate("last", "page")),
        ("STDDEV(price)", aggregate("stddev_samp", "price")),
        ("STDDEV_SAMP(price)", aggregate("stddev_samp", "price")),
        ("STDDEV_POP(price)", aggregate("stddev_pop", "price")),
        ("VARIANCE(qty)", aggregate("var_samp", "qty")),
        ("VAR_SAMP(qty)", aggregate("var_samp", "qty")),
        ("VAR_POP(cents)", aggregate("var_pop", "cents")),
        ("BOOL_AND(seen)", aggregate("bool_and", "seen")),
        ("EVERY(seen)", aggregate("bool_and", "seen")),
        ("BOOL_OR(seen)", aggregate("bool_or", "seen")),
        ("COUNT_IF(seen)", aggregate("count_if", "seen")),
        ("MIN_BY(page, price)", aggregate("min_by", "page", by="price")),
        ("ARG_MAX(page, price)", aggregate("max_by", "page", by="price")),
        ("ARRAY_AGG(page)", aggregate("array_agg", "page")),
        ("COLLECT_LIST(page)", aggregate("array_agg", "page")),
        ("STRING_AGG(page, '; ')", aggregate("string_agg", "page", separator="; ")),
        ("LISTAGG(page)", aggregate("string_agg", "page")),
        ("MEDIAN(price)", aggregate("median", "price")),
        ("APPROX_PERCENTILE(price, 0.95)", aggregate("approx_percentile", "price", percentile=0.95)),
        ("PERCENTILE_APPROX(price, 0.95)", aggregate("approx_percentile", "price", percentile=0.95)),
        ("APPROX_QUANTILE(price, 1)", aggregate("approx_percentile", "price", percentile=1)),
        (
            "PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY price)",
            aggregate("percentile_cont", "price", percentile=0.5),
        ),
        (
            "PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY price)",
            aggregate("percentile_disc", "price", percentile=0.5),
        ),
        ("COUNT(*) FILTER (WHERE qty > 1)", aggregate("count", where="clicks.qty > 1")),
        ("SUM(price) FILTER (WHERE qty > 1)", aggregate("sum", "price", where="clicks.qty > 1")),
        ("EVERY(seen) FILTER (WHERE qty > 1)", aggregate("bool_and", "seen", where="clicks.qty > 1")),
    ],
)
def test_aggregates(call: str, meant: dict[str, Any]) -> None:
    (parsed_aggregate,) = parsed(in_sql(selected(f"{call} AS x"))).sessions.aggregates
    assert (
        parsed_aggregate == Sessions.model_validate({"groupBy": [], "gap": "1ms", "aggregates": [meant]}).aggregates[0]
    )


def test_arguments_that_are_expressions_are_computed_once() -> None:
    sessions = parsed(in_sql(selected("SUM(qty*2) AS a, AVG(clicks.qty * 2) AS b, MAX(qty + 1) AS c"))).sessions
    assert [(column.expression, column.as_) for column in sessions.compute] == [
        ("clicks.qty * 2", "qty * 2"),
        ("clicks.qty + 1", "qty + 1"),
    ]
    assert [parsed_aggregate.column for parsed_aggregate in sessions.aggregates] == ["qty * 2", "qty * 2", "qty + 1"]


@pytest.mark.parametrize(
    ("sql", "group_by", "computed"),
    [
        (counted(f"user_id, {SESSION}"), ("user_id",), {}),
        (counted(f"{SESSION}, (clicks.user_id)", "COUNT(*) AS n"), ("user_id",), {}),
        (counted(f"user_id, {SESSION}", "user_id AS u, COUNT(*) AS n"), ("u",), {"u": "clicks.user_id"}),
        (counted(f"UPPER(page), {SESSION}", "upper(page) AS p"), ("p",), {"p": "UPPER(clicks.page)"}),
        (counted(f"p, qty, {SESSION}", "upper(page) AS p"), ("p", "qty"), {"p": "UPPER(clicks.page)"}),
        (counted(f"page, {SESSION}", "page, UPPER(page) AS page_"), ("page",), {}),
    ],
)
def test_groups(sql: str, group_by: tuple[str, ...], computed: dict[str, str]) -> None:
    sessions = parsed(in_sql(sql)).sessions
    assert sessions.group_by == group_by
    assert {column.as_: column.expression for column in sessions.compute} == computed


@pytest.mark.parametrize(
    "sql",
    [
        counted(f"user_id, {SESSION}"),
        counted(f"user_id, {SESSION}", rest="EMIT CHANGES;"),
        counted("user_id, session(ts, INTERVAL 30 SECONDS)"),
        counted("user_id, SESSION(clicks.ts, INTERVAL '0.5' MINUTE)"),
        counted("user_id", rest="WINDOW SESSION(INTERVAL '30' SECOND)"),
        "SELECT user_id, COUNT(*) AS n FROM clicks WINDOW SESSION (30 SECONDS) GROUP BY user_id EMIT CHANGES",
        "SELECT user_id, COUNT(*) AS n FROM clicks WINDOW SESSION (GAP 30 SECONDS) WHERE qty > 1 GROUP BY user_id",
    ],
)
def test_the_gap(sql: str) -> None:
    assert parsed(in_sql(sql)).sessions.gap == 30_000


OVER_GROUPS: list[tuple[str, list[dict[str, str]], list[str]]] = [
    (
        "SUM(price) / COUNT(*) AS mean",
        [{"as": "mean", "expression": '"SUM(price)" / "COUNT(*)"'}],
        ["SUM(price)", "COUNT(*)"],
    ),
    (
        "ROUND(total, 1) AS r, SUM(price) AS total, r * 2 AS twice",
        [
            {"as": "r", "expression": "ROUND(total, 1)"},
            {"column": "total"},
            {"as": "twice", "expression": "(ROUND(total, 1)) * 2"},
        ],
        ["total"],
    ),
    (
        "CASE WHEN COUNT(*) FILTER (WHERE qty > 1) > 3 THEN UPPER(user_id) END AS u, "
        "window_end - SESSION_START(ts) AS ms",
        [
            {"as": "u", "expression": 'CASE WHEN "COUNT(*) FILTER(WHERE qty > 1)" > 3 THEN UPPER(user_id) END'},
            {"as": "ms", "expression": "window_end - window_start"},
        ],
        ["COUNT(*) FILTER(WHERE qty > 1)"],
    ),
    ("1 AS one", [{"as": "one", "expression": "1"}], []),
]


@pytest.mark.parametrize(("items", "select", "aggregates"), OVER_GROUPS)
def test_the_select_list_computes_with_groups_and_aggregates(
    items: str, select: list[dict[str, str]], aggregates: list[str]
) -> None:
    sessions = parsed(in_sql(f"SELECT {items} FROM clicks {GROUPED}")).sessions
    assert [item.model_dump(by_alias=True, exclude_none=True) for item in sessions.select or ()] == select
    assert [parsed_aggregate.as_ for parsed_aggregate in sessions.aggregates] == aggregates


REFUSED = [
    ("SELECT user_id FROM clicks", "1, column 1, `SELECT`: there is no GROUP BY; write SELECT <groups"),
    ("SELECT 1 AS x", "1, column 1, `SELECT`: no input is named; write SELECT <groups and aggregates> FROM <input>"),
    ("INSERT INTO a VALUES (1)", "1, column 1, `INSERT`: the SQL of a job is one SELECT, and spec.output says where"),
    (counted("user_id"), "1, column 43, `GROUP BY`: nothing says which rows are of one session (rule S1)"),
    (counted(SESSION, "COUNT(*) AS n"), "1, column 34, `GROUP BY`: there is no group column"),
    (
        counted("user_id, SESSION(day, INTERVAL '30' SECOND)"),
        "1, column 69, `day`: gaps are between event times, and the eventTime of 'clicks' is ts",
    ),
    (counted("user_id, SESSION(ts + qty, INTERVAL '1' SECOND)"), "are between event times, this is an expression"),
    (counted("user_id, SESSION(ts, 30)"), "takes the event time and an INTERVAL; write SESSION(ts, INTERVAL"),
    (counted("user_id, SESSION(ts)"), "takes the event time and an INTERVAL"),
    (counted("user_id, SESSION(tz, INTERVAL '1' SECOND)"), "no input has a column 'tz'"),
    (counted("user_id, SESSION(ts, INTERVAL '1' MONTH)"), "the unit is MILLISECOND, SECOND, MINUTE, HOUR or DAY"),
    (counted("user_id, SESSION(ts, INTERVAL '0' SECOND)"), "must be whole milliseconds, more than none"),
    (counted("user_id, SESSION(ts, INTERVAL '99999999999999' DAY)"), "the gap must be at most 292 years"),
    (counted(f"user_id, {SESSION}, {SESSION}"), "the gap is said twice; keep one SESSION"),
    (counted(f"user_id, {SESSION}", rest="WINDOW SESSION(INTERVAL '1' SECOND)"), "the gap is said twice"),
    (counted("user_id", rest="WINDOW TUMBLING(INTERVAL '1' HOUR)"), "`TUMBLING`: a session has no width; write WINDOW"),
    (counted("user_id, TUMBLE(ts, INTERVAL '1' HOUR)"), "a session has no width; write SESSION(ts, INTERVAL"),
    (counted(f"3, {SESSION}"), "`3`: is a constant, or the number of an aggregate or of no entry of the select list"),
    (counted(f"user_id, user_id, {SESSION}"), "is grouped by twice; keep one"),
    (counted(f"user_id, SUM(qty), {SESSION}"), "`SUM(qty)`: is computed over many rows, and a group is known of each"),
    (counted(f"CUBE(user_id), {SESSION}"), "`GROUP BY`: a job has one set of groups"),
    (counted("ALL"), "`GROUP BY`: nothing says which rows are of one session"),
    (counted(f"usr, {SESSION}"), "no input has a column 'usr' (did you mean 'user_id'?)"),
    (f"SELECT user_id FROM clicks {GROUPED} HAVING page = 'x'", "`page`: is not in GROUP BY, and a group holds many"),
    (f"SELECT user_id FROM clicks {GROUPED} ORDER BY user_id", "`ORDER BY`: is not supported: sessions are emitted"),
    (f"SELECT user_id FROM clicks {GROUPED} LIMIT 5", "`LIMIT`: is not supported"),
    (f"SELECT DISTINCT user_id FROM clicks {GROUPED}", "`DISTINCT`: is not supported: sessions differ in any case"),
    (f"SELECT user_id FROM clicks c JOIN clicks d ON c.ts = d.ts {GROUPED}", "sessions are of one input; join in a"),
    (f"SELECT user_id FROM klicks {GROUPED}", "'klicks' is not an input of the job (did you mean 'clicks'?)"),
    (f"SELECT user_id FROM (SELECT 1) {GROUPED}", "a sub-query without FROM is not supported"),
    (f"SELECT user_id FROM clicks FOR SYSTEM_TIME AS OF ts {GROUPED}", "is for a table that is joined; leave it out"),
    (f"SELECT user_id FROM clicks {GROUPED} EMIT FINAL", "EMIT FINAL is not supported: lateData says when sessions"),
    (f"SELECT user_id FROM clicks {GROUPED} WITH ('a' = 'b')", "`a`: options are of joins; write lateData"),
    (f"SELECT user_id FROM clicks WHERE COUNT(*) > 1 {GROUPED}", "WHERE is about rows before they are aggregated"),
    (f"SELECT user_id FROM clicks WHERE foo(page) {GROUPED}", "there is no function FOO"),
    (f"SELECT user_id FROM clicks WHERE page IN (SELECT 1) {GROUPED}", "a sub-query is not supported; use columns"),
    (f"SELECT user_id FROM clicks WHERE prize > 1 {GROUPED}", "no input has a column 'prize' (did you mean 'price'?)"),
    (f"SELECT * FROM clicks {GROUPED}", "`*`: a star is not supported: a group holds many rows"),
    (f"SELECT clicks.* FROM clicks {GROUPED}", "a star is not supported"),
    (
        selected("page"),
        "1, column 17, `page`: is not in GROUP BY, and a group holds many rows of it; group by it, or",
    ),
    (selected("user_id AS again"), "this group is selected twice; keep one"),
    (selected("UPPER(page) AS p"), "column 23, `page`: is not in GROUP BY, and a group holds many rows of it"),
    (selected("SUM(price) / COUNT(*)"), "`SUM(price) / COUNT(*)`: an expression has no name of its own"),
    (selected("SUM(price) / FOO(user_id) AS x"), "there is no function FOO"),
    (
        selected("COUNT(*)"),
        "1, column 17, `COUNT(*)`: an aggregate has no name of its own; write <aggregate> AS <name>",
    ),
    (selected("MODE(price) AS x"), "is not an aggregate; these are COUNT(*), COUNT(x)"),
    (selected("FOO(price) AS x"), "is not an aggregate; these are COUNT(*)"),
    (selected("SUM(foo(price)) AS x"), "there is no function FOO (did you mean 'FLOOR'?); docs/functions.md lists all"),
    (selected("SUM(COUNT(*)) AS x"), "an aggregate of an aggregate has no meaning in one group"),
    (selected("SUM(DISTINCT price) AS x"), "DISTINCT is for COUNT; leave it out"),
    (selected("COUNT(DISTINCT page, price) AS x"), "COUNT(DISTINCT ...) takes one value"),
    (selected("COUNT(page, price) AS x"), "takes one value; write an expression"),
    (selected("MIN(price, qty) AS x"), "takes one value; write an expression"),
    (selected("APPROX_COUNT_DISTINCT(page, 0.1) AS x"), "takes one value; write an expression"),
    (selected("SUM(*) AS x"), "takes a value, not a star; name a column"),
    (selected("COUNT() AS x"), "is of nothing; write COUNT(*), or name a column"),
    (selected("SUM(prize) AS x"), "no input has a column 'prize' (did you mean 'price'?)"),
    (selected("SUM(qty) FILTER (WHERE SUM(qty) > 1) AS x"), "FILTER is about rows before they are aggregated"),
    (selected("SUM(qty) FILTER (WHERE nope > 1) AS x"), "no input has a column 'nope'"),
    (selected("FOO(qty) FILTER (WHERE qty > 1) AS x"), "is not an aggregate; these are COUNT(*)"),
    (selected("MIN_BY(page) AS x"), "takes two values: MIN_BY(value, by)"),
    (selected("APPROX_PERCENTILE(price) AS x"), "takes a value and a share: APPROX_PERCENTILE(x, 0.95)"),
    (selected("APPROX_PERCENTILE(price, 0.5, 100) AS x"), "takes a value and a share: APPROX_PERCENTILE(x, 0.95)"),
    (selected("APPROX_QUANTILE(price, 95) AS x"), "the percentile has to be one number from 0 to 1, such as 0.95"),
    (selected("PERCENTILE_CONT(0.5) AS x"), "is not an aggregate"),
    (selected("PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY qty DESC) AS x"), "WITHIN GROUP takes one ascending value"),
    (selected("LISTAGG(page, ',') WITHIN GROUP (ORDER BY qty) AS x"), "WITHIN GROUP is for percentiles"),
    (selected("ARRAY_AGG(page ORDER BY price) AS x"), "values are in order of event time; leave it out"),
    (selected("STRING_AGG(page, user_id) AS x"), "the separator has to be a text in quotes"),
    (selected("BOOL_AND(price) AS x"), "bool_and takes boolean, and column 'price' is double"),
    (selected("MAX_BY(page, seen) AS x"), "takes all types but boolean and binary, and column 'seen' is boolean"),
    (selected("SUM(qty) OVER (PARTITION BY page) AS x"), "OVER is not supported: the group is what is aggregated"),
    (selected("FIRST(page) RESPECT NULLS AS x"), "RESPECT NULLS is not supported: aggregates skip NULLs (rule S7)"),
    (
        selected("TUMBLE_START(ts, INTERVAL '1' HOUR)"),
        "is called window_start here (rule S6); write window_start, or give it a name with AS",
    ),
    (selected("SESSION_END(ts, INTERVAL '30' SECOND)"), "is called window_end here (rule S6)"),
    (selected("window_end AS user_id"), "two output columns are named 'user_id'"),
    (selected("(SELECT 1) AS x"), "a sub-query is not supported; use columns of the inputs"),
    (selected("SUM(page) AS x"), "sum takes numbers, and column 'page' is string"),
    (selected("COUNT(*) AS session_id"), "sessions have a column 'session_id' of their own"),
    (selected("COUNT(*) AS user_id"), "'user_id' is the name of a group column"),
    (selected("COUNT(*) AS x, SUM(qty) AS x"), "two aggregates are named 'x'"),
]


@pytest.mark.parametrize(("sql", "words"), REFUSED, ids=lambda value: str(value)[-70:])
def test_refused_with_the_reason(sql: str, words: str) -> None:
    messages = messages_of(in_sql(sql))
    assert list(messages) == ["spec.sql"]
    assert words in messages["spec.sql"]


def test_every_problem_is_told_with_its_place_in_the_text() -> None:
    sql = "SELECT page,\n  SUM(prize) AS x\nFROM clicks\nGROUP BY user_id, SESSION(ts, INTERVAL '1' YEAR)"
    message = messages_of(in_sql(sql))["spec.sql"]
    assert [position in message for position in ("line 1, column 8", "line 2, column 7", "line 4, column 19")] == [
        True
    ] * 3


def names_of(sql: str) -> list[str]:
    return [column.name for column in parsed(in_sql(sql)).output_columns]


def test_the_select_list_is_what_goes_out() -> None:
    assert names_of(selected("COUNT(*) AS n")) == ["user_id", "n"]
    assert names_of(counted(f"user_id, {SESSION}", "SUM(qty) AS total, WINDOWEND AS last")) == ["total", "last"]
    assert names_of(counted(f"user_id, {SESSION}", "session_id AS id, user_id AS u")) == ["id", "u"]


def test_having_is_the_field_of_sessions() -> None:
    job = parsed(in_sql(f"SELECT user_id, COUNT(*) AS n FROM clicks {GROUPED} HAVING n > 1 AND SUM(qty) > 2"))
    written = load(
        {"function": "count", "as": "n"},
        {"function": "sum", "column": "qty", "as": "SUM(qty)"},
        having='n > 1 AND "SUM(qty)" > 2',
        select=[{"column": "user_id"}, {"column": "n"}],
    )
    assert compile_job(job) == compile_job(written)


def test_a_group_that_is_an_expression_needs_no_name() -> None:
    sql = counted(f"LOWER(clicks.page), qty % 2, {SESSION}", "COUNT(DISTINCT LOWER(page)) AS n, qty % 2")
    sessions = parsed(in_sql(sql)).sessions
    assert sessions.group_by == ("LOWER(page)", "qty % 2")
    assert [(column.expression, column.as_) for column in sessions.compute] == [
        ("LOWER(clicks.page)", "LOWER(page)"),
        ("clicks.qty % 2", "qty % 2"),
    ]
    assert names_of(sql) == ["n", "qty % 2"]


def test_a_group_can_go_out_under_the_name_of_a_column_of_the_input() -> None:
    sql = counted(f"LOWER(page), {SESSION}", "LOWER(page) AS page, FIRST(page) AS first_page")
    assert parsed(in_sql(sql)).sessions.group_by == ("LOWER(page)",)
    assert names_of(sql) == ["page", "first_page"]


def test_without_a_known_input_the_shape_is_still_checked() -> None:
    resource = in_sql(f"SELECT user_id FROM clicks {GROUPED} LIMIT 1")
    resource["spec"]["input"] = {**resource["spec"]["input"], "eventTime": "tz"}
    messages = messages_of(resource)
    assert set(messages) == {"spec.sql", "spec.input.eventTime"}
    assert "LIMIT" in messages["spec.sql"]
    assert "groupBy" not in messages["spec.sql"]


def test_sql_nested_too_deep_is_no_crash() -> None:
    deep = "(" * 3_000 + "page" + ")" * 3_000
    assert list(messages_of(in_sql(selected(f"FIRST({deep}) AS x")))) == ["spec.sql"]


WORDS = [
    *("SELECT", "user_id", "price", ",", "(", ")", "*", "+", ".", "1", "'x'", "AS", "x", "COUNT", "SUM", "DISTINCT"),
    *("FROM", "clicks", "c", "WHERE", "GROUP BY", "SESSION", "ts", "INTERVAL", "'30'", "SECOND", "WINDOW", "EMIT"),
    *("CHANGES", "HAVING", "NULL", "CASE", "END", "WITH", "JOIN", "LOWER", "BY", ";", "$", "ROLLUP", "OVER", "FILTER"),
]


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_no_text_gives_anything_but_sessions_or_reasons(data: st.DataObject) -> None:
    words = data.draw(st.sampled_from([selected("COUNT(*) AS n"), COMPUTED, KSQL])).split(" ")
    for _ in range(data.draw(st.integers(1, 4))):
        i = data.draw(st.integers(0, len(words)))
        words[i : i + data.draw(st.integers(0, 2))] = data.draw(st.lists(st.sampled_from(WORDS), max_size=2))
    assert set(messages_of(in_sql(" ".join(words) or "SELECT"))) <= {"spec.sql"}


def test_output_keys_of_sql_are_known() -> None:
    output = {"kafka": {"bootstrapServers": "k:9092", "topic": "t", "key": ["u", "n", "user_id"]}}
    sql = counted(f"user_id, {SESSION}", "user_id AS u, COUNT(*) AS n")
    assert list(messages_of(in_sql(sql, output=output))) == ["spec.output.kafka.key[2]"]


def test_sql_as_yaml_writes_it() -> None:
    text = f"""
apiVersion: joinery.dev/v1alpha1
kind: SessionWindow
metadata: {{name: clicks}}
spec:
  input:
    name: clicks
    file: {{path: clicks.jsonl}}
    format: json
    schema: [{{name: user_id, type: string}}, {{name: ts, type: timestamp}}]
    eventTime: ts
  sql: |
    SELECT user_id, COUNT(*) AS n
    FROM clicks
    {GROUPED}
  maxDuration: 2h
  output: {{file: {{path: out.jsonl}}}}
"""
    assert [column.name for column in parse_job(text, "job.yaml").output_columns][-1] == "n"
