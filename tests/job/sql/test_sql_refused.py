"""SQL that is no job: the place in the text, the reason and what to do."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from job.resources import problems
from job.sql_jobs import HEAD, HOUR, KEY, joined, resource
from joinery_runtime.core.compile.jobs import compile_join
from joinery_runtime.errors import JobError
from joinery_runtime.job import parse_job

START = len("SELECT o.order_id FROM orders o JOIN ") + 1
ON = len(joined("")) + 2
BEHIND = len(joined(f"{KEY} AND {HOUR}")) + 2
GOOD = joined(f"{KEY} AND {HOUR}")
PAID, TESTED = "SELECT o.order_id FROM orders o WHERE o.amount > 1", f"SELECT 1 FROM payments p WHERE {KEY} AND {HOUR}"
UNITED = "SELECT order_id FROM orders UNION ALL SELECT order_id FROM payments"
CROSS = "SELECT o.order_id FROM orders o CROSS JOIN payments p"
FROM = "FROM orders o JOIN payments p ON"

GROUPED = (
    f"SELECT o.country, window_start, window_end, COUNT(*) AS n {FROM} {KEY} AND {HOUR} "
    "GROUP BY o.country, TUMBLE(o.ts, INTERVAL '1' HOUR)"
)
FIRST_GROUPS = "QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY <aggregate> DESC) <= 10"
LATERAL = "SELECT o.order_id FROM orders o CROSS JOIN LATERAL"

REFUSED = [
    # J8, J9
    (joined(KEY), (1, START), "no bound on o.ts and p.ts", "write p.ts BETWEEN o.ts AND"),
    (joined(f"{KEY} AND p.ts > o.ts"), (1, START), "one side only", "INTERVAL '1' HOUR"),
    (f"{joined(KEY)} WITH ('join.upper_bound' = '1h')", (1, START), "one side only", "write p.ts BETWEEN"),
    (joined(f"p.ts <= o.ts + o.country AND {KEY}"), (1, ON), "cannot depend on a column", "write an INTERVAL"),
    (joined(f"p.ts BETWEEN o.ts AND o.ts + o.country AND {KEY}"), (1, ON), "cannot depend on a column", "INTERVAL"),
    (joined(f"(p.ts > o.ts OR o.amount > 3) AND {KEY} AND {HOUR}"), (1, ON + 1), "an OR around a bound", "outside"),
    (joined(f"p.ts > o.ts + 5 AND {KEY} AND {HOUR}"), (1, ON), "5 has no unit", "INTERVAL '5' SECOND"),
    (joined(f"p.ts > o.ts + INTERVAL '1' MONTH AND {KEY}"), (1, ON), "INTERVAL '1' MONTH", "the unit is"),
    (joined(f"p.ts > o.ts + INTERVAL 'x' DAY AND {KEY}"), (1, ON), "must be a number", "INTERVAL"),
    (joined(f"p.ts > o.ts + INTERVAL '0.5' MILLISECOND AND {KEY}"), (1, ON), "whole milliseconds", "must"),
    (joined(f"p.ts > ABS(o.ts) AND {KEY}"), (1, ON), "ABS(orders.ts) is no event time", "write only sums"),
    (joined(f"p.ts < TIMESTAMPADD(MONTH, 1, o.ts) AND {KEY}"), (1, ON), "INTERVAL '1' MONTH", "the unit is"),
    (joined(f"p.ts < TIMESTAMPADD(MINUTE, o.ts) AND {KEY}"), (1, ON), "has other", "(<unit>, <number>, <time>)"),
    (joined(f"TIMESTAMPDIFF(o.ts, p.ts) < 1 AND {KEY}"), (1, ON), "has other arguments", "(<unit>, <start>, <stop>)"),
    (joined(f"ABS(o.ts, p.ts) < 1 AND {KEY}"), (1, ON), "ABS has other arguments", "write ABS(<distance>)"),
    (joined(f"TIMESTAMPDIFF(o.country, o.ts, p.ts) < 1 AND {KEY}"), (1, ON), "is no unit of time", "write MINUTE"),
    (joined(f"TIMESTAMPDIFF(DAY, o.ts, p.ts) < 1.5 AND {KEY}"), (1, ON), "1.5 is no whole number", "number of units"),
    (joined(f"TIMESTAMPDIFF(DAY, o.ts, o.ts - p.ts) < 1 AND {KEY}"), (1, ON), "does not compare", "each other"),
    (joined(f"ABS(o.ts - p.ts) = INTERVAL '1' DAY AND {KEY}"), (1, ON), "are no range", "write ABS(...) <="),
    (joined(f"ABS(o.ts - p.ts) > INTERVAL '1' DAY AND {KEY}"), (1, START), "no bound on o.ts and p.ts", "BETWEEN"),
    (joined(f"p.ts + o.ts > INTERVAL '1' DAY AND {KEY}"), (1, ON), "does not compare the two", "each other"),
    (joined(f"{KEY} AND p.ts BETWEEN o.ts AND o.ts - INTERVAL '1' HOUR"), (1, START), "nothing can match", "signs"),
    (joined(HOUR), (1, START), "no equality of columns", "(rule J9); write ON o.<column> = p.<column>"),
    # names
    (f"SELECT o.order_id FROM order o JOIN payments p ON {KEY}", (1, 24), "not an input", "did you mean 'orders'?"),
    (f"SELECT order_id {FROM} {KEY} AND {HOUR}", (1, 8), "is ambiguous", "write o.order_id or p.order_id"),
    (f"SELECT amont {FROM} {KEY} AND {HOUR}", (1, 8), "no input has a column", "did you mean 'amount'?"),
    (f"SELECT o.amont {FROM} {KEY} AND {HOUR}", (1, 8), "'orders' has no column 'amont'", "its columns are"),
    (f"SELECT q.amount {FROM} {KEY} AND {HOUR}", (1, 8), "'q' is not an alias here", "aliases are o and p"),
    (f"SELECT q.* {FROM} {KEY} AND {HOUR}", (1, 8), "'q' is not an alias here", "aliases are o and p"),
    (joined(f"o.id = p.order_id AND {HOUR}"), (1, ON), "'orders' has no column 'id'", "its columns are"),
    # never
    (f"{CROSS} WHERE {HOUR}", (1, START + 6), "no equality of columns", "write ON o.<column> = p.<column>"),
    (f"{CROSS} WHERE {KEY}", (1, START + 6), "no bound on o.ts and p.ts", "write p.ts BETWEEN o.ts AND"),
    (GOOD.replace("JOIN", "RIGHT SEMI JOIN"), (1, START + 11), "a RIGHT SEMI join is not supported", "LEFT SEMI JOIN"),
    (f"{PAID} OR EXISTS (SELECT 1 FROM payments p)", None, "is not supported here", "with AND, into the WHERE"),
    (f"{PAID} AND EXISTS (SELECT 1 FROM payments p LIMIT 1)", None, "reads one input", "(SELECT 1 FROM <input>"),
    (f"{PAID} AND EXISTS (SELECT COUNT(*) FROM payments p)", None, "has a row in any case", "(SELECT 1 FROM <input>"),
    (f"{PAID} AND EXISTS (SELECT 1 FROM payments p WHERE {KEY})", None, "no bound on o.ts and p.ts", "p.ts BETWEEN"),
    (f"{PAID} AND p.ts > o.ts AND EXISTS ({TESTED})", None, "'p' is only tested for a match", "or JOIN it"),
    (f"{PAID} AND (order_id, 1) IN (SELECT order_id, 1 FROM payments)", None, "IN compares one value", "write EXISTS"),
    (
        f"{PAID} AND o.order_id NOT IN (SELECT order_id FROM payments p WHERE {HOUR})",
        None,
        "NOT IN emits nothing while the sub-query has a NULL, and no row whose o.order_id is NULL",
        "write NOT EXISTS (SELECT 1 FROM payments p WHERE p.order_id = o.order_id AND ...)",
    ),
    (
        f"{PAID} AND o.order_id IS NOT NULL AND o.order_id NOT IN (SELECT order_id FROM payments p WHERE {HOUR})",
        None,
        "NOT IN emits nothing while the sub-query has a NULL",
        "add `p.order_id IS NOT NULL` to the sub-query",
    ),
    (
        f"{PAID} AND order_id NOT IN (SELECT order_id FROM payments WHERE payments.ts BETWEEN o.ts AND o.ts)",
        None,
        "NOT IN emits nothing while the sub-query has a NULL",
        "write NOT EXISTS (SELECT 1 FROM payments WHERE payments.order_id = order_id",
    ),
    (f"{GOOD} AND o.amount IN (SELECT 1)", None, "a sub-query is not supported", "into the WHERE of the job"),
    (
        f"SELECT (SELECT MAX(amount) FROM payments) AS x {FROM} {KEY} AND {HOUR}",
        (1, 16),
        "payments has no end after which it would be known",
        "write JOIN payments <alias> ON <keys and a bound on time>, and GROUP BY with a window",
    ),
    (
        f"{GOOD} WHERE o.amount = (SELECT amount FROM payments)",
        None,
        "a sub-query gives no value here",
        "write JOIN payments <alias> ON <keys and a bound on time>, and select its column",
    ),
    (f"SELECT (SELECT 1) AS x {FROM} {KEY} AND {HOUR}", None, "a sub-query is not supported", "columns of the inputs"),
    (f"{GOOD} ORDER BY o.order_id", (1, BEHIND), "emitted as they are found, in no order", "leave it out, or for"),
    (f"{GOOD} LIMIT 5", (1, BEHIND), "`LIMIT`: is not supported", "leave it out"),
    (f"{GOOD} OFFSET 5", (1, BEHIND), "rows have no end", "QUALIFY ROW_NUMBER() OVER (PARTITION BY TUMBLE("),
    (f"{GROUPED} ORDER BY n DESC", None, "the groups of a window are emitted when it closes", FIRST_GROUPS),
    (f"{GROUPED} LIMIT 5", None, "`LIMIT`: is not supported: windows have no end", FIRST_GROUPS),
    (f"{GROUPED} OFFSET 2", None, "`OFFSET`: is not supported: windows have no end", FIRST_GROUPS),
    (f"{LATERAL} (SELECT method FROM payments p WHERE {KEY}) x", None, "no query for each row", "write JOIN payments"),
    (f"{LATERAL} (SELECT method FROM payments p LIMIT 1) x", None, "no query for each row", "read payments alone, and"),
    (f"{LATERAL} (SELECT COUNT(*) AS n FROM payments) x", None, "no query for each row", "GROUP BY columns of the row"),
    (f"{LATERAL} (SELECT o.amount + 1 AS n) x", None, "no query for each row", "its expressions into the select list"),
    (f"{GOOD.replace('JOIN', 'LATERAL VIEW explode(t) x AS v JOIN')}", None, "element of a list", "let the producer"),
    (GOOD.replace("SELECT", "SELECT DISTINCT"), (1, 8), "may come at any time", "GROUP BY <columns> with a window"),
    (f"{GOOD} EMIT FINAL", (1, BEHIND), "EMIT FINAL is not supported", "EMIT CHANGES"),
    (f"SELECT 1 AS x JOIN orders o JOIN payments p ON {KEY}", (1, 1), "no input is named", "FROM <input>"),
    (f"SELECT {FROM} {KEY} AND {HOUR}", (1, 1), "`SELECT`: selects nothing", "or *"),
    (f"{GOOD}; WITH ('join.type' = 'interval')", (1, BEHIND - 1), "a second statement", "one SELECT"),
    ("SELECT o.order_id FROM orders o", (1, 24), "payments are not joined", "JOIN them"),
    (f"{PAID} UNION {PAID}", None, "UNION drops equal rows", "write UNION ALL"),
    (f"SELECT order_id FROM ({UNITED}) o", (1, 30), "lacks 'ts', the event time of 'orders'", "select it too"),
    (f"WITH o AS ({UNITED}) SELECT order_id FROM o", (1, 19), "lacks 'ts', the event time of", "select it too"),
    (f"{GOOD}; SELECT 1", (1, BEHIND + 1), "a second statement", "one SELECT"),
    ("INSERT INTO x SELECT 1", (1, 1), "spec.output says where its rows go", "write SELECT"),
    (f"CREATE STREAM x AS {GOOD}", (1, 1), "spec.output says where its rows go", "write SELECT"),
    ("DELETE FROM orders", (1, 1), "is one SELECT", "one SELECT; write SELECT"),
    (f"SELECT o.order_id\n{FROM} {KEY} foo bar", (2, len(f"{FROM} {KEY} ") + 1), "`foo`: is not SQL", "docs/sql.md"),
    ("SELECT 'x", (1, 1), "is not SQL", "check quotes"),
    ("WITH ('join.type' = 'interval')", (1, 1), "there is no SELECT before", "or WITH <name> AS (SELECT ...)"),
    # options
    (f"{GOOD} WITH ('join.retention' = '30m')", None, "shorter than the wider bound, 1h", "at least as long"),
    (f"{GOOD} WITH ('join.retain' = '3h')", None, "is not an option (did you mean 'join.retention'?)", "options are"),
    (f"{GOOD} WITH ('join.upper_bound' = '2d')", None, "'2d' has the unit 'd'", "write hours: 48h"),
    (f"{GOOD} WITH ('join.type' = 'tumbling')", None, "the SQL says interval", "write WINDOW TUMBLING("),
    (f"{GOOD} WITH ('join.type' = 'hash')", None, "is not a kind of join", "write 'interval', 'tumbling'"),
    (f"{GOOD} WITH ('join.type' = 'interval', 'join.type' = 'interval')", None, "is given twice", "keep one"),
    (f"{GOOD} WITH (join.type = 'interval')", None, "options are written", "'name' = 'value'"),
    (f"{GOOD} WITH ('join.type')", None, "is not complete", "'name' = 'value'"),
    (f"{GOOD} WITH (", (1, BEHIND + 5), "this bracket is not closed", "write WITH ('name' = 'value', ...)"),
    (f"{GOOD} WITH ('join.type' = 'interval' EMIT CHANGES", (1, BEHIND + 5), "is not closed", "'name' = 'value'"),
    (f"{joined(KEY)} WINDOW TUMBLING(INTERVAL '1' HOUR", None, "its bracket is not closed", "write WINDOW TUMBLING("),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "position", "why", "todo"), REFUSED, ids=[sql[-60:] for sql, *_ in REFUSED])
def test_refused_once_with_place_reason_and_what_to_do(sql, position, why, todo):
    (problem,) = problems(resource(sql))
    assert (problem.path, problem.line) == ("spec.sql", 29)
    assert why in problem.message
    assert todo in problem.message
    if position is not None:
        assert problem.message.startswith(f"line {position[0]}, column {position[1]}, `")


def test_no_beginning_of_a_text_with_an_open_bracket_or_without_a_select_is_a_job():
    """A text that ends too early was read as the options of no SELECT, which emits every record."""
    options = "WITH ('join.type' = 'interval', 'join.late_data' = 'drop')"
    ends = [match.end() for match in re.finditer(r"'.*?'|[\w.]+|\S", options)]
    assert all(problems(resource(options[:end])) for end in ends)
    sql = f"WITH o AS (SELECT order_id, ts FROM orders WHERE amount > (1 + 2)) {GOOD} WITH ('join.type' = 'interval')"
    texts = [sql[: match.end()] for match in re.finditer(r"'.*?'|[\w.]+|\S", sql)]
    good = [text for text in texts if not problems(resource(text))]
    assert sql in good
    assert all(text.count("(") == text.count(")") for text in good)
    assert {text.count("SELECT") for text in good} == {2}


def test_all_problems_are_reported_at_once_with_those_of_the_rest():
    sql = "SELECT o.x, COUNT(*)\nFROM orders o RIGHT SEMI JOIN payments p ON q.a = o.order_id\nLIMIT 3 EMIT FINAL"
    reported = problems(resource(sql).replace("postgres: {table: joined}", "kafka: {topic: a b}\n    mode: x"))
    positions = [problem.message[:18] for problem in reported if problem.path == "spec.sql"]
    assert positions == [
        *("line 1, column 8, ", "line 1, column 13,", "line 2, column 31,"),
        *("line 2, column 45,", "line 3, column 1, ", "line 3, column 9, "),
    ]
    assert {problem.path for problem in reported} > {"spec.sql", "spec.output.kafka.topic"}


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        (joined(f"{KEY} AND {HOUR}", "o.ts, p.ts"), "two output columns are named 'ts' (rule J10)"),
        (joined(f"o.amount = p.country AND {HOUR}"), "key types differ"),
    ],
)
def test_the_rules_of_joins_and_select_stand_at_the_sql(sql, words):
    reported = problems(resource(sql))
    assert reported
    assert {(problem.path, problem.line) for problem in reported} == {("spec.sql", 29)}
    assert words in reported[0].message


def test_sql_and_joins_or_select_are_refused():
    text = resource(GOOD).replace(
        "  output:", "  joins: [{right: payments}]\n  select: [{column: orders.ts}]\n  output:"
    )
    messages = [problem.message for problem in problems(text) if problem.path == "spec.sql"]
    assert messages == ["joins and sql are both named; keep one", "select and sql are both named; keep one"]


@pytest.mark.parametrize("sql", ['""', "[a]", "5"])
def test_sql_is_text(sql):
    reported = problems(f"{HEAD}  sql: {sql}\n  output: {{file: {{path: x}}}}\n")
    assert [problem.path for problem in reported] == ["spec.sql"]


def test_with_broken_inputs_the_form_of_the_sql_is_judged_all_the_same():
    text = resource(joined(KEY, "COUNT(o.x)", "LIMIT 3")).replace("eventTime: ts", "eventTime: when", 1)
    messages = [(problem.path, problem.message) for problem in problems(text)]
    assert [path for path, _ in messages] == ["spec.inputs[0].eventTime", "spec.sql"]
    assert "`LIMIT`" in messages[1][1]


def test_a_condition_that_does_not_fit_the_inputs_is_refused_at_the_sql():
    job = parse_job(resource(joined(f"{KEY} AND {HOUR} AND o.amount > 'x'")), "job.yaml")
    with pytest.raises(JobError) as caught:
        compile_join(job)
    assert [problem.path for problem in caught.value.problems] == ["spec.sql"]


@pytest.mark.parametrize("more", ["(" * 5000 + "1 = 1" + ")" * 5000, " AND ".join(["o.amount > 1"] * 4000)])
def test_sql_that_is_too_deep_is_refused(more):
    (problem,) = problems(resource(joined(f"{KEY} AND {HOUR} AND {more}")))
    assert "nested too deep" in problem.message


WORDS = """SELECT FROM JOIN LEFT ON AND OR NOT WHERE BETWEEN INTERVAL '1' HOUR DAY AS NULL IN IS CASE WHEN THEN END
    o p orders payments o.ts p.ts o.order_id p.order_id x . , ( ) * = < >= + - 5 'a' EMIT CHANGES WITH WINDOW TUMBLING
    RIGHT FULL OUTER SLIDING SESSION SIZE SLIDE GAP FOR SYSTEM_TIME OF window_start window_end COUNT
    'join.type' 'join.lower_bound' 'join.broadcast' 'join.grace' 'p' 'interval' '1h' GROUP BY ; UNION USING
    " ` -- /* $1 :a ? [ ] { } @ # CAST LATERAL PIVOT""".split()  # noqa: SIM905 - a list would take a line a word


def test_what_the_message_about_limit_says_to_write_is_a_job() -> None:
    assert problems(resource(GROUPED + " " + FIRST_GROUPS.replace("<aggregate>", "n"))) == []


def test_lateral_has_one_message() -> None:
    messages = problems(resource(f"{LATERAL} (SELECT method FROM payments p WHERE {KEY}) x"))
    assert len(messages) == 1, messages


@settings(max_examples=examples(300))
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=12), st.sampled_from(["", joined(KEY), f"{GOOD} "]))
def test_any_words_are_a_job_or_refused_at_the_sql(words, before):
    assert {problem.path for problem in problems(resource(f"{before} {' '.join(words)}"))} <= {"spec.sql"}
