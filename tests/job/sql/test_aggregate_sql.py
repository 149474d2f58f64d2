"""GROUP BY in the SQL of a StreamJoin: the same pipeline as the fields, and what is rejected."""

from __future__ import annotations

from typing import Any

import pytest

from job.chains import ITEMS, ORDERS, PAYMENTS, document, load, messages_of, step
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.job import StreamJoin, definition
from joinery_runtime.job.kinds.session.sessions import OPTIONS
from joinery_runtime.job.sql.aggregates import KEEPING_VALUES

JOIN = "FROM orders o JOIN payments p ON o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL '24' HOUR"
SESSION = "SESSION(p.ts, INTERVAL '30' SECOND)"
LIMIT = "WITH ('aggregate.limit'"
CAP = "WITH ('aggregate.max_duration' = '1h')"
GAP_AND_CAP = {"gap": "30s", "maxDuration": "1h"}
FIELDS = {
    "groupBy": ["orders.currency"],
    "window": {"of": "payments", "session": GAP_AND_CAP},
    "aggregates": [{"function": "count", "as": "n"}],
}
OWN = [{"column": "orders.currency"}, {"column": "session_id"}, {"column": "n"}]


def in_sql(sql: str, **more: Any) -> dict[str, Any]:
    resource = document(inputs=[ORDERS, PAYMENTS], sql=sql, **more)
    del resource["spec"]["joins"]
    return resource


def job_in_sql(sql: str, inputs: Any = (ORDERS, PAYMENTS)) -> StreamJoin:
    return load(inputs=list(inputs), sql=sql)


SAME: list[tuple[str, dict[str, Any]]] = [
    (f"SELECT o.currency, session_id, COUNT(*) AS n {JOIN} GROUP BY o.currency, {SESSION} {CAP}", {}),
    (f"SELECT currency, session_id, COUNT(*) AS n {JOIN} GROUP BY currency, {SESSION} {CAP} EMIT CHANGES", {}),
    (
        f"SELECT o.currency AS money, session_id, COUNT(*) AS n {JOIN} GROUP BY o.currency, {SESSION} {CAP}",
        {"select": [{"column": "orders.currency", "as": "money"}, *OWN[1:]]},
    ),
    (
        f"SELECT LOWER(p.method) AS how, SUM(o.amount * 2) AS twice {JOIN} GROUP BY LOWER(p.method), {SESSION} {CAP}",
        {
            "groupBy": ["how"],
            "compute": [
                {"expression": "LOWER(payments.method)", "as": "how"},
                {"expression": "orders.amount * 2", "as": "orders.amount * 2"},
            ],
            "aggregates": [{"function": "sum", "column": "orders.amount * 2", "as": "twice"}],
            "select": [{"column": "how"}, {"column": "twice"}],
        },
    ),
    (
        f"SELECT o.currency, COUNT(*) AS n, COUNT(DISTINCT p.method) AS methods {JOIN} "
        "GROUP BY o.currency, TUMBLE(o.ts, INTERVAL '1' HOUR) WITH ('aggregate.limit' = '50000')",
        {
            "window": {"of": "orders", "tumbling": {"size": "1h"}},
            "aggregates": [
                {"function": "count", "as": "n"},
                {"function": "count_distinct", "column": "payments.method", "limit": 50000, "as": "methods"},
            ],
            "select": [{"column": "orders.currency"}, {"column": "n"}, {"column": "methods"}],
        },
    ),
    (
        f"SELECT o.currency || p.method AS k, SUM(o.amount) / COUNT(*) AS mean, COUNT(*) AS n {JOIN} "
        f"GROUP BY o.currency, p.method, {SESSION} HAVING mean > 2 {CAP}",
        {
            "groupBy": ["orders.currency", "payments.method"],
            "aggregates": [
                {"function": "count", "as": "n"},
                {"function": "sum", "column": "orders.amount", "as": "SUM(o.amount)"},
            ],
            "having": '("SUM(o.amount)" / n) > 2',
            "select": [
                {"expression": "orders.currency || payments.method", "as": "k"},
                {"expression": '"SUM(o.amount)" / n', "as": "mean"},
                {"column": "n"},
            ],
        },
    ),
    (
        f"SELECT window_end, COUNT(*) AS n {JOIN} GROUP BY TUMBLE(o.ts, INTERVAL '1' HOUR)",
        {
            "groupBy": [],
            "window": {"of": "orders", "tumbling": {"size": "1h"}},
            "select": [{"column": "window_end"}, {"column": "n"}],
        },
    ),
    (
        f"SELECT o.currency, session_id, COUNT(*) AS n {JOIN} WHERE p.method = 'card' GROUP BY o.currency, {SESSION} "
        "WITH ('aggregate.max_duration' = '1h', 'aggregate.late_data' = 'reopen', 'join.late_data' = 'reopen', "
        "'aggregate.allowed_lateness' = '1m', 'aggregate.emit_retractions' = 'true', "
        "'aggregate.emit_every' = '10s')",
        {
            "joins": {"where": "payments.method = 'card'", "lateData": "reopen"},
            "lateData": "reopen",
            "allowedLateness": "1m",
            "emitRetractions": True,
            "emit": {"every": "10s"},
        },
    ),
]


def test_a_limit_goes_to_every_aggregate_that_keeps_values() -> None:
    assert {*KEEPING_VALUES} == {*OPTIONS["limit"]}


@pytest.mark.parametrize(("sql", "fields"), SAME)
def test_the_pipeline_is_that_of_the_fields(sql: str, fields: dict[str, Any]) -> None:
    select, of_join = fields.get("select", OWN), fields.get("joins", {})
    own = {name: value for name, value in fields.items() if name not in {"select", "joins"}}
    written = load(step(**of_join), aggregate=FIELDS | own, select=select)
    job = job_in_sql(sql)
    assert compile_job(job) == compile_job(written)
    assert definition(job)["aggregate"] == definition(written)["aggregate"]
    assert job.output_columns == written.output_columns


DAY = {"size": "24h", "timeZone": "Europe/Zurich"}


def test_one_input_needs_no_join() -> None:
    sql = (
        "SELECT currency, session_id, COUNT(*) AS n FROM orders WHERE amount > 1 "
        f"GROUP BY currency, SESSION(ts, INTERVAL '30' SECOND) {CAP}"
    )
    fields = FIELDS | {"window": {"session": GAP_AND_CAP}}
    written = load(inputs=[{**ORDERS, "where": "orders.amount > 1"}], aggregate=fields, select=OWN)
    assert compile_job(job_in_sql(sql, [ORDERS])) == compile_job(written)


@pytest.mark.parametrize(
    ("function", "window"),
    [
        ("TUMBLE(o.ts, INTERVAL '1' HOUR)", {"tumbling": {"size": "1h"}}),
        ("HOP(o.ts, INTERVAL '10' MINUTE, INTERVAL '1' HOUR)", {"hopping": {"size": "1h", "slide": "10m"}}),
        ("CUMULATE(o.ts, INTERVAL '1' HOUR, INTERVAL '1' DAY)", {"cumulative": {"size": "24h", "step": "1h"}}),
        # from 2000-01-03, which is 15,780,960 minutes from 1970: 6 more than a multiple of 7
        ("TIME_BUCKET(INTERVAL '7' MINUTE, o.ts)", {"tumbling": {"size": "7m", "offset": "6m"}}),
        ("TIME_BUCKET(INTERVAL '15' MINUTE, o.ts)", {"tumbling": {"size": "15m"}}),
        ("DATE_BIN(INTERVAL '7' MINUTE, o.ts)", {"tumbling": {"size": "7m"}}),
        ("TUMBLE(o.ts, INTERVAL '1' DAY, 'Europe/Zurich')", {"tumbling": DAY}),
        ("TUMBLE(o.ts, INTERVAL '1' DAY, INTERVAL '5' HOUR, 'Europe/Zurich')", {"tumbling": {**DAY, "offset": "5h"}}),
        (
            "HOP(o.ts, INTERVAL '1' DAY, INTERVAL '7' DAY, 'Europe/Zurich')",
            {"hopping": {**DAY, "size": "168h", "slide": "24h"}},
        ),
        (
            "CUMULATE(o.ts, INTERVAL '1' HOUR, INTERVAL '1' DAY, 'Europe/Zurich')",
            {"cumulative": {**DAY, "step": "1h"}},
        ),
        ("DATE_TRUNC('day', o.ts, 'Europe/Zurich')", {"tumbling": DAY}),
        ("DATE_TRUNC('week', o.ts, 'Europe/Zurich')", {"tumbling": {**DAY, "size": "168h", "offset": "96h"}}),
        ("DATE_TRUNC('day', o.ts AT TIME ZONE 'Europe/Zurich')", {"tumbling": DAY}),
        ("DATE_TRUNC('day', o.ts AT TIME ZONE 'Europe/Zurich') AT TIME ZONE 'Europe/Zurich'", {"tumbling": DAY}),
        ("DATE_TRUNC('day', o.ts AT TIME ZONE 'UTC' AT TIME ZONE 'Europe/Zurich')", {"tumbling": DAY}),
        ("DATE_TRUNC('day', FROM_UTC_TIMESTAMP(o.ts, 'Europe/Zurich'))", {"tumbling": DAY}),
        ("CAST(o.ts AT TIME ZONE 'Europe/Zurich' AS DATE)", {"tumbling": DAY}),
        ("(o.ts AT TIME ZONE 'Europe/Zurich')::date", {"tumbling": DAY}),
        ("DATE(o.ts AT TIME ZONE 'Europe/Zurich')", {"tumbling": DAY}),
        ("DATE_TRUNC('hour', o.ts AT TIME ZONE 'Europe/Zurich')", {"tumbling": {**DAY, "size": "1h"}}),
        ("TIMESTAMP_TRUNC(o.ts, DAY, 'Europe/Zurich')", {"tumbling": DAY}),
        ("TIME_BUCKET(INTERVAL '1 day', o.ts, 'Europe/Zurich')", {"tumbling": DAY}),
        # Monday, 2000-01-03, is a Monday of 1970 plus weeks
        ("TIME_BUCKET('7 days', o.ts, 'Europe/Zurich')", {"tumbling": {**DAY, "size": "168h", "offset": "96h"}}),
    ],
)
def test_windows_of_one_width_are_those_of_the_fields(function: str, window: dict[str, Any]) -> None:
    select = [{"column": "orders.currency"}, {"column": "window_start"}, {"column": "n"}]
    of_join = FIELDS | {"window": {"of": "orders", **window}}
    sql = f"SELECT o.currency, window_start, COUNT(*) AS n {JOIN} GROUP BY o.currency, {function}"
    assert compile_job(job_in_sql(sql)) == compile_job(load(step(), aggregate=of_join, select=select))
    sql = f"SELECT o.currency, window_start, COUNT(*) AS n FROM orders o GROUP BY {function}, o.currency"
    written = load(inputs=[ORDERS], aggregate=of_join, select=select)
    assert compile_job(job_in_sql(sql, [ORDERS])) == compile_job(written)


def test_a_truncated_local_time_is_selected_as_sql_has_it() -> None:
    """A date without a time of day, and midnight of days that begin later."""
    day, date = "DATE_TRUNC('day', ts AT TIME ZONE 'Europe/Zurich')", "CAST(ts AT TIME ZONE 'Europe/Zurich' AS DATE)"
    moment = "FROM_UTC_TIMESTAMP(TIMESTAMP_MILLIS(CAST(window_start AS BIGINT)), 'Europe/Zurich')"
    in_postgres, local_date = "(ts AT TIME ZONE 'Europe/Zurich')::date", f"CAST({moment} AS DATE)"
    for text, expression in (
        (day, f"DATE_TRUNC('day', {moment})"),
        (date, local_date),
        (in_postgres, local_date),
    ):
        job = job_in_sql(f"SELECT {text} AS d, COUNT(*) AS n FROM orders GROUP BY 1", [ORDERS])
        aggregate = {"groupBy": [], "window": {"of": "orders", "tumbling": DAY}, "aggregates": FIELDS["aggregates"]}
        select = [{"expression": expression, "as": "d"}, {"column": "n"}]
        assert compile_job(job) == compile_job(load(inputs=[ORDERS], aggregate=aggregate, select=select))


def grouped(select: str, by: str, join: str = JOIN, end: str = CAP) -> str:
    return f"SELECT {select} {join} GROUP BY {by} {end}"


REJECTED: list[tuple[str, str]] = [
    (
        grouped(
            "o.currency, COUNT(*) AS n",
            "o.currency, TUMBLE(o.ts, INTERVAL '1' HOUR)",
            end="WITH ('aggregate.emit_every' = '0s')",
        ),
        "must be more than 0",
    ),
    (
        grouped("o.currency, COUNT(*) AS n", f"o.currency, {SESSION}", end=""),
        "write WITH ('aggregate.max_duration' = '12h')",
    ),
    (grouped("o.currency, COUNT(*) AS n", "o.currency"), "without a window no group would ever end"),
    (grouped("o.currency, COUNT(*) AS n", "o.currency"), "or HOP, CUMULATE or SESSION"),
    *(
        (grouped("COUNT(*) AS n", day, end=""), "or, for windows of days, CAST(ts AS DATE)")
        for day in (
            "TO_DATE(o.ts)",
            "DATE_FORMAT(o.ts, 'yyyy-MM-dd')",
            "o.currency, YEAR(o.ts), MONTH(o.ts), DAY(o.ts)",
        )
    ),
    (
        grouped("COUNT(*) AS n", "TUMBLE(o.ts, INTERVAL '1' DAY, 'Europe/Atlantis')", end=""),
        "'Europe/Atlantis' is no time zone; write a name such as Europe/Berlin or UTC",
    ),
    (
        grouped("COUNT(*) AS n", "TUMBLE(o.ts, INTERVAL '5' HOUR, 'Europe/Zurich')", end=""),
        "is 5h, and with a timeZone, windows begin at the same local times each day",
    ),
    (
        grouped("COUNT(*) AS n", "DATE_TRUNC('month', o.ts, 'Europe/Zurich')", end=""),
        "months differ in length: group by days, and add these up where rows are read",
    ),
    (
        grouped("COUNT(*) AS n", "DATE_TRUNC('hour', o.ts, 'Europe/Zurich')", end=""),
        "or DATE_TRUNC of the event time in a unit of one length, up to WEEK (of a zone's clocks DAY and WEEK, "
        "and TUMBLE(ts, INTERVAL '1' HOUR, '<zone>') for hours",
    ),
    (
        grouped("o.currency, COUNT(*) AS n", "o.currency, TUMBLE(o.ts)", end=""),
        "takes the event time and an INTERVAL; write TUMBLE(ts, INTERVAL '1' HOUR) into GROUP BY",
    ),
    (
        grouped("o.currency, COUNT(*) AS n", "o.currency, HOP(o.ts, INTERVAL '1' HOUR)", end=""),
        "takes the event time and 2 INTERVALs",
    ),
    (
        grouped("o.currency, COUNT(*) AS n", "o.currency, CUMULATE(o.ts, INTERVAL '7' HOUR, INTERVAL '1' DAY)", end=""),
        "step (7h) does not divide size (24h)",
    ),
    (
        grouped("o.currency, COUNT(*) AS n", "o.currency, TUMBLE(o.amount, INTERVAL '1' HOUR)", end=""),
        "windows are of event times, and the eventTime of 'orders' is ts; write TUMBLE(ts, INTERVAL '1' HOUR)",
    ),
    (
        grouped("o.currency, COUNT(*) AS n", "o.currency, TUMBLE(o.ts, INTERVAL '1' MONTH)", end=""),
        "INTERVAL '1' MONTH",
    ),
    (
        grouped("o.currency, COUNT(*) AS n", "o.currency, TUMBLING(o.ts, INTERVAL '1' HOUR)", end=""),
        "this is called TUMBLE here",
    ),
    (
        grouped("o.currency, COUNT(*) AS n", f"o.currency, {SESSION}, TUMBLE(o.ts, INTERVAL '1' HOUR)"),
        "there are two windows; keep one",
    ),
    (
        grouped("o.currency, COUNT(*) AS n", "o.currency, TUMBLE(o.ts, INTERVAL '1' HOUR)"),
        "is for sessions, and the windows are tumbling; leave it out",
    ),
    (
        grouped("o.currency, session_id, COUNT(*) AS n", "o.currency, TUMBLE(o.ts, INTERVAL '1' HOUR)", end=""),
        "session_id",
    ),
    (grouped("o.id, COUNT(*) AS n", f"o.currency, {SESSION}"), "is not in GROUP BY"),
    (grouped("o.currency, COUNT(*)", f"o.currency, {SESSION}"), "write <aggregate> AS <name>"),
    (grouped("o.currency, COUNT(*) AS n", "TUMBLE(o.ts, INTERVAL '1' HOUR)"), "is not in GROUP BY"),
    (grouped("COUNT(*) AS n", SESSION), "there is no group column"),
    (
        grouped("o.currency, COUNT(*) AS n", "o.currency, TUMBLE(o.ts, INTERVAL '1' HOUR)", end=f"{LIMIT} = '5')"),
        "is for count_distinct, array_agg, string_agg, percentile_cont, percentile_disc and median, and there is none",
    ),
    (
        grouped(
            "o.currency, COUNT(DISTINCT o.id) AS n",
            "o.currency, TUMBLE(o.ts, INTERVAL '1' HOUR)",
            end=f"{LIMIT} = '0')",
        ),
        "is a number of values, 1 or more",
    ),
    (
        grouped("o.currency, COUNT(*) AS n", "o.currency, SESSION(o.amount, INTERVAL '1' HOUR)"),
        "the eventTime of 'orders' is ts",
    ),
    (grouped("o.currency, SUM(o.id) AS n", f"o.currency, {SESSION}"), "sum takes numbers"),
    (
        grouped("o.currency, COUNT(*) AS n", f"o.currency, {SESSION} HAVING o.id = 'x'"),
        "`o.id`: is not in GROUP BY, and a group holds many rows of it",
    ),
    (grouped("o.currency, COUNT(*) AS n", f"o.currency, {SESSION} HAVING m > 1"), "no input has a column 'm'"),
    (grouped("o.currency, COUNT(*) AS n", f"o.currency, {SESSION} HAVING SUM(o.id) > 1"), "sum takes numbers"),
    (grouped("o.currency, COUNT(*) AS n", f"o.currency, {SESSION} HAVING foo(n) > 1"), "there is no function FOO"),
    (
        grouped("o.currency, COUNT(*) AS n", f"o.currency, {SESSION} HAVING COUNT(*) OVER () > 1"),
        "a job computes SUM, AVG, MIN, MAX, COUNT(*), ROW_NUMBER, RANK, DENSE_RANK",
    ),
    (
        grouped("o.currency, COUNT(*) AS n", f"o.currency, {SESSION} HAVING n > (SELECT 1)"),
        "a sub-query is not supported",
    ),
    (f"SELECT o.id {JOIN} HAVING o.id > 'x'", "HAVING is about groups, and there is no GROUP BY"),
    (f"SELECT o.id, p.method {JOIN} {CAP}", "is an option of GROUP BY, and there is none"),
    (
        grouped("o.currency, COUNT(*) AS n", f"o.currency, {SESSION}", JOIN.replace("JOIN", "LEFT JOIN")),
        "rows of 'payments' may be missing",
    ),
    (
        grouped("o.currency, COUNT(*) AS n", f"o.currency, {SESSION}", end=CAP.replace("1h", "1s")),
        "a maxDuration of 1s is not longer than the gap",
    ),
]


HAVING: list[tuple[str, str, list[str]]] = [
    ("COUNT(*) > 1", "n > 1", []),
    ("n > 1 AND money <> 'EUR'", "n > 1 AND orders.currency <> 'EUR'", []),
    ("o.currency IN ('EUR', 'CHF')", "orders.currency IN ('EUR', 'CHF')", []),
    ("window_end > 5 OR SESSION_START(p.ts) IS NULL", "window_end > 5 OR window_start IS NULL", []),
    ("SUM(o.amount) > 2 * COUNT(*)", '"SUM(o.amount)" > 2 * n', ["SUM(o.amount)"]),
    (
        "SUM(amount + 1) > 2 AND MAX(o.amount) FILTER (WHERE o.amount < 9) > ABS(n)",
        '"SUM(amount + 1)" > 2 AND "MAX(o.amount) FILTER(WHERE o.amount < 9)" > ABS(n)',
        ["SUM(amount + 1)", "MAX(o.amount) FILTER(WHERE o.amount < 9)"],
    ),
]


@pytest.mark.parametrize(("condition", "field", "added"), HAVING)
def test_having_is_the_field(condition: str, field: str, added: list[str]) -> None:
    """An aggregate that is not selected is computed beside the others, and not emitted."""
    select = "o.currency AS money, session_id, COUNT(*) AS n"
    job = job_in_sql(grouped(select, f"o.currency, {SESSION} HAVING {condition}"))
    assert job.aggregation is not None
    assert job.aggregation.having == field
    assert [call.as_ for call in job.aggregation.aggregates] == ["n", *added]
    assert compile_job(job).output_schema().names == ["money", "session_id", "n"]


def test_having_gives_the_pipeline_of_the_fields() -> None:
    sql = grouped("o.currency, session_id, COUNT(*) AS n", f"o.currency, {SESSION} HAVING COUNT(*) > 1")
    written = load(step(), aggregate=FIELDS | {"having": "n > 1"}, select=OWN)
    assert compile_job(job_in_sql(sql)) == compile_job(written)
    assert definition(job_in_sql(sql)) == definition(written)


@pytest.mark.parametrize(("sql", "words"), REJECTED)
def test_what_is_wrong_is_said_at_the_sql(sql: str, words: str) -> None:
    mistakes = messages_of(in_sql(sql))
    assert set(mistakes) == {"spec.sql"}
    assert words in mistakes["spec.sql"]


def test_a_wrong_window_of_one_input_does_not_ask_for_a_second_input() -> None:
    resource = in_sql("SELECT currency, COUNT(*) AS n FROM orders GROUP BY currency, TUMBLE(ts)")
    resource["spec"]["inputs"] = [ORDERS]
    assert set(messages_of(resource)) == {"spec.sql"}


def test_the_fields_and_sql_do_not_go_together() -> None:
    sql = grouped("o.currency, COUNT(*) AS n", f"o.currency, {SESSION}")
    assert "aggregate and sql are both named" in messages_of(in_sql(sql, aggregate=FIELDS))["spec.sql"]


def test_an_input_that_the_sql_does_not_name_is_rejected() -> None:
    sql = f"SELECT currency, COUNT(*) AS n FROM orders GROUP BY currency, SESSION(ts, INTERVAL '30' SECOND) {CAP}"
    resource = in_sql(sql)
    resource["spec"]["inputs"] = [ORDERS, ITEMS]
    assert "of the job's inputs, items are not joined" in messages_of(resource)["spec.sql"]


@pytest.mark.parametrize(("test", "kind"), [("EXISTS", "semi"), ("NOT EXISTS", "anti")])
def test_groups_of_rows_that_have_or_lack_a_partner(test: str, kind: str) -> None:
    exists = (
        f"{test} (SELECT 1 FROM payments p WHERE p.order_id = o.id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL '24' HOUR)"
    )
    sql = (
        f"SELECT o.currency, session_id, COUNT(*) AS n FROM orders o WHERE {exists} "
        f"GROUP BY o.currency, SESSION(o.ts, INTERVAL '30' SECOND) {CAP}"
    )
    fields = FIELDS | {"window": {"of": "orders", "session": GAP_AND_CAP}}
    assert compile_job(job_in_sql(sql)) == compile_job(load(step(type=kind), aggregate=fields, select=OWN))
