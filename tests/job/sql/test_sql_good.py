"""The SQL of a job in other ways of writing it: names, places, bounds, options. test_sql_forms.py has every join."""

import json
import math
import operator
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from job.chains import document, stream
from job.resources import problems
from job.sql_jobs import HOUR, KEY, joined, load, resource, twin
from joinery_runtime.core.compile.jobs import compile_join
from joinery_runtime.core.pipeline.expression import parse_expression
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.job import Interval, StreamJoin, definition, load_job, parse_job, under_definition
from joinery_runtime.job.join import pipeline
from joinery_runtime.state.memory import MemoryStore

KEYS = "keys: {orders.order_id: payments.order_id}"
ORDER = "[{column: orders.order_id}]"
SEED = (
    "WITH ('join.type' = 'interval', 'join.lower_bound' = '0s', 'join.upper_bound' = '24h', 'join.retention' = '48h')"
)


def interval(lower, upper):
    return f"interval: {{of: orders, lower: {lower}, upper: {upper}}}"


UNPAID = f"type: anti, {KEYS}, {interval(0, '1h')}"
PAID = f"type: semi, {KEYS}, {interval(0, '1h')}"
TESTED = f"SELECT 1 FROM payments p WHERE {KEY} AND {HOUR}"
UNMATCHED = f"SELECT o.order_id FROM orders o LEFT JOIN payments p ON {KEY} AND {HOUR} WHERE"
SAME = [
    # equalities of expressions are keys where there is no other one (J12)
    (
        f"SELECT o.order_id FROM orders o JOIN payments p ON LOWER(p.order_id) = lower(o.order_id) AND {HOUR}",
        f"keys: {{LOWER(orders.order_id): LOWER(payments.order_id)}}, {interval(0, '1h')}",
        ORDER,
    ),
    (
        f"SELECT o.order_id FROM orders o JOIN payments p ON {KEY} "
        f"AND UPPER(p.order_id) = UPPER(o.order_id) AND {HOUR}",
        f"{KEYS}, {interval(0, '1h')}, where: UPPER(payments.order_id) = UPPER(orders.order_id)",
        ORDER,
    ),
    (
        f"SELECT o.order_id FROM orders o JOIN payments p ON UPPER(p.order_id) = UPPER(o.order_id) AND {HOUR} "
        "WITH ('join.broadcast' = 'p')",
        f"keys: {{}}, broadcast: payments, {interval(0, '1h')}, "
        "where: UPPER(payments.order_id) = UPPER(orders.order_id)",
        ORDER,
    ),
    # semi and anti joins: each way of writing them is the same step
    (f"SELECT o.order_id FROM orders o LEFT ANTI JOIN payments p ON {KEY} AND {HOUR}", UNPAID, ORDER),
    (f"SELECT order_id FROM orders o WHERE NOT EXISTS ({TESTED})", UNPAID, ORDER),
    (f"{UNMATCHED} p.order_id IS NULL", UNPAID, ORDER),
    (f"{UNMATCHED} p.ts IS NULL AND p.order_id IS NULL", UNPAID, ORDER),
    (f"SELECT o.order_id FROM orders o SEMI JOIN payments p ON {KEY} AND {HOUR}", PAID, ORDER),
    (f"SELECT order_id FROM orders o WHERE EXISTS ({TESTED})", PAID, ORDER),
    (f"SELECT order_id FROM orders o WHERE order_id IN (SELECT order_id FROM payments p WHERE {HOUR})", PAID, ORDER),
    (
        f"SELECT * FROM orders o WHERE EXISTS ({TESTED} AND country > 5) AND country < 3",
        f'{PAID}, where: "payments.country > 5 AND orders.country < 3"',
        "[{column: orders.order_id}, {column: orders.country}, {column: orders.amount}, {column: orders.ts}]",
    ),
    (
        f"SELECT order_id FROM orders o WHERE NOT EXISTS (SELECT 1 FROM payments p WHERE {KEY}) "
        "WINDOW TUMBLING(INTERVAL '1' HOUR)",
        f"type: anti, {KEYS}, window: {{tumbling: 1h}}",
        ORDER,
    ),
    # WHERE behind outer joins: the filter of the last step, where no earlier place gives the same rows
    (
        f"{UNMATCHED} p.country = 5",
        f'type: left, {KEYS}, {interval(0, "1h")}, filter: "payments.country = 5"',
        ORDER,
    ),
    (
        f"{UNMATCHED} (p.country IS NULL OR o.country > 2) AND 1 < 2 AND p.country IS NULL",
        f"type: left, {KEYS}, {interval(0, '1h')}, "
        'filter: "(payments.country IS NULL OR orders.country > 2) AND 1 < 2 AND payments.country IS NULL"',
        ORDER,
    ),
    *(
        (
            f"{UNMATCHED} o.country > 5".replace("LEFT", kind),
            f'type: {kind.lower()}, {KEYS}, {interval(0, "1h")}, filter: "orders.country > 5"',
            ORDER,
        )
        for kind in ("RIGHT", "FULL")
    ),
    (
        f"SELECT o.order_id FROM orders o RIGHT JOIN payments p ON {KEY} WHERE p.country = 5 "
        "WINDOW SESSION(INTERVAL '1' HOUR)",
        f'type: right, {KEYS}, window: {{session: {{gap: 1h}}}}, filter: "payments.country = 5"',
        ORDER,
    ),
    (joined(f"{KEY} AND {HOUR}"), f"{KEYS}, {interval(0, '1h')}", ORDER),
    (joined(f"p.order_id = o.order_id AND {HOUR}", more="EMIT CHANGES;"), f"{KEYS}, {interval(0, '1h')}", ORDER),
    (joined(KEY, more=f"WHERE {HOUR}"), f"{KEYS}, {interval(0, '1h')}", ORDER),
    (joined(KEY, more=f"EMIT CHANGES {SEED}"), f"{KEYS}, {interval(0, '24h')}, allowedLateness: 24h", ORDER),
    (joined(KEY, more=f"{SEED} EMIT CHANGES"), f"{KEYS}, {interval(0, '24h')}, allowedLateness: 24h", ORDER),
    (
        joined(f"{KEY} AND {HOUR}", more="WITH ('join.upper_bound' = '30m')"),
        f"{KEYS}, {interval(0, '30m')}",
        ORDER,
    ),
    (
        "SELECT o.order_id FROM payments p INNER JOIN orders AS o ON o.order_id = p.order_id "
        "WITH ('join.lower_bound' = '-1m', 'join.upper_bound' = '1h')",
        f"{KEYS}, {interval('-1h', '1m')}",
        ORDER,
    ),
    (f"SELECT o.order_id FROM orders o, payments p WHERE {KEY} AND {HOUR}", f"{KEYS}, {interval(0, '1h')}", ORDER),
    (
        "SELECT orders.order_id, amount, payments.ts AS paid FROM orders JOIN payments ON "
        "orders.order_id = payments.order_id AND orders.ts = payments.ts",
        f"{KEYS}, {interval(0, 0)}",
        "[{column: orders.order_id}, {column: orders.amount}, {column: payments.ts, as: paid}]",
    ),
    (
        joined(f"{KEY} AND p.country = o.country AND {HOUR}", "o.*, p.ts AS paid, p.order_id AS order_id_2"),
        f"keys: {{orders.order_id: payments.order_id, orders.country: payments.country}}, {interval(0, '1h')}",
        "[{column: orders.order_id}, {column: orders.country}, {column: orders.amount}, {column: orders.ts}, "
        "{column: payments.ts, as: paid}, {column: payments.order_id, as: order_id_2}]",
    ),
    (
        joined(f"{KEY} AND {HOUR} AND (o.amount > 3 OR p.country IS NULL)", more="WHERE o.country <> p.country"),
        f"{KEYS}, {interval(0, '1h')}, "
        'where: "(orders.amount > 3 OR payments.country IS NULL) AND orders.country <> payments.country"',
        ORDER,
    ),
    (
        joined(f"{KEY} AND {HOUR} AND p.ts <> o.country"),
        f'{KEYS}, {interval(0, "1h")}, where: "payments.ts <> orders.country"',
        ORDER,
    ),
    (
        joined(f"{KEY} AND o.order_id = p.order_id AND {HOUR}"),
        f"{KEYS}, {interval(0, '1h')}",
        ORDER,
    ),
    ("-- a comment\n" + joined(f"{KEY}\n AND {HOUR} /* and more */"), f"{KEYS}, {interval(0, '1h')}", ORDER),
]


@pytest.mark.parametrize(("sql", "step", "select"), SAME, ids=range(len(SAME)))
def test_sql_is_the_same_job_as_its_joins_and_select(sql, step, select):
    job, same = load(sql), twin(step, select)
    assert job.joins == same.joins
    assert job.select == same.select
    assert job.output_columns == same.output_columns
    assert definition(job) == definition(same)
    assert compile_join(job) == compile_join(same)


BOUNDS = [
    ("p.ts BETWEEN o.ts AND o.ts + INTERVAL '24' HOUR", 0, 86_400_000),
    ("o.ts BETWEEN p.ts - INTERVAL '24 hours' AND p.ts", 0, 86_400_000),
    ("p.ts - o.ts BETWEEN INTERVAL '-5' SECOND AND INTERVAL 2 MINUTES", -5_000, 120_000),
    ("p.ts >= o.ts AND p.ts < o.ts + INTERVAL '1' DAY", 0, 86_399_999),
    ("o.ts < p.ts AND o.ts > p.ts - INTERVAL '1 day'", 1, 86_399_999),
    ("p.ts - INTERVAL '1' MINUTE <= o.ts AND INTERVAL '1.5' SECOND + p.ts >= o.ts", -1_500, 60_000),
    ("INTERVAL '250' MILLISECONDS >= p.ts - o.ts AND (p.ts >= o.ts)", 0, 250),
    (
        "-o.ts + p.ts <= INTERVAL '1' SECOND AND p.ts + -INTERVAL '1' SECOND >= o.ts - INTERVAL '3' SECOND",
        -2_000,
        1_000,
    ),
    ("NOT p.ts < o.ts AND NOT (p.ts > o.ts + INTERVAL '1' hour)", 0, 3_600_000),
    ("p.ts = o.ts + INTERVAL '1' MINUTE", 60_000, 60_000),
    (
        "p.ts >= o.ts - INTERVAL '1' HOUR AND p.ts >= o.ts - INTERVAL '1' MINUTE AND "
        "p.ts <= o.ts + INTERVAL '1' MINUTE AND p.ts <= o.ts + INTERVAL '1' HOUR",
        -60_000,
        60_000,
    ),
    ("p.ts BETWEEN o.ts AND TIMESTAMPADD(MINUTE, 10, o.ts)", 0, 600_000),
    ("o.ts >= DATEADD(HOUR, -1, p.ts) AND p.ts >= o.ts", 0, 3_600_000),
    ("TIMESTAMPDIFF(MINUTE, o.ts, p.ts) BETWEEN 0 AND 60", -59_999, 3_659_999),
    ("p.ts >= o.ts AND 60 > TIMESTAMPDIFF(MINUTE, o.ts, p.ts)", 0, 3_599_999),
    ("ABS(TIMESTAMPDIFF(SECOND, p.ts, o.ts)) <= 10", -10_999, 10_999),
    ("ABS(p.ts - o.ts) < INTERVAL '10' SECOND", -9_999, 9_999),
    ("p.ts BETWEEN o.ts AND TIMESTAMPADD(MINUTE, 1, TIMESTAMPADD(MINUTE, 2, o.ts))", 0, 180_000),
    ("INTERVAL '10' SECOND >= ABS(o.ts - p.ts)", -10_000, 10_000),
]


@pytest.mark.parametrize(("text", "lower", "upper"), BOUNDS, ids=[text for text, _, _ in BOUNDS])
@pytest.mark.parametrize("clause", ["ON", "WHERE"])
def test_bounds(text, lower, upper, clause):
    sql = joined(f"{KEY} AND {text}") if clause == "ON" else joined(KEY, more=f"WHERE {text}")
    (step,) = load(sql).joins
    assert step.interval == Interval(of="orders", lower=f"{lower}ms", upper=f"{upper}ms")
    assert step.where is None


WHOLE_SECONDS = {
    "TIMESTAMPDIFF(SECOND, o.ts, p.ts)": lambda ms: math.trunc(ms / 1000),
    "TIMESTAMPDIFF(SECOND, p.ts, o.ts)": lambda ms: math.trunc(-ms / 1000),
    "ABS(TIMESTAMPDIFF(SECOND, o.ts, p.ts))": lambda ms: abs(math.trunc(ms / 1000)),
}
SIGNS = {"<": operator.lt, "<=": operator.le, "=": operator.eq, ">": operator.gt, ">=": operator.ge}


@pytest.mark.parametrize("call", WHOLE_SECONDS)
@pytest.mark.parametrize("number", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("sign", SIGNS)
def test_a_bound_on_whole_units_holds_for_the_times_for_which_the_comparison_is_true(call, number, sign):
    """Of all milliseconds around the ends; beyond them is the other bound."""
    wide = "p.ts BETWEEN o.ts - INTERVAL '4' SECOND AND o.ts + INTERVAL '4' SECOND"
    text = resource(joined(f"{KEY} AND {wide} AND {call} {sign} ({number})"))
    true = [ms for ms in range(-4_000, 4_001) if SIGNS[sign](WHOLE_SECONDS[call](ms), number)]
    if call.startswith("ABS") and sign == "=":
        assert "times that are exactly so far apart are no range" in str(problems(text))
    elif call.startswith("ABS") and sign.startswith(">"):
        (step,) = parse_job(text, "job.yaml").joins
        assert step.interval == Interval(of="orders", lower="-4000ms", upper="4000ms")
        times = {
            "orders": pa.array([0] * 8_001, pa.timestamp("ms", "UTC")),
            "payments": pa.array(range(-4_000, 4_001), pa.int64()),
        }
        evaluated = parse_expression(step.where).evaluate(lambda ref: times[ref.input], 8_001)
        assert [ms for ms, holds in enumerate(evaluated.values.to_pylist(), -4_000) if holds] == true
    elif not true:
        assert "nothing can match" in str(problems(text))
    else:
        assert true == [*range(true[0], true[-1] + 1)]
        (step,) = parse_job(text, "job.yaml").joins
        assert step.interval == Interval(of="orders", lower=f"{true[0]}ms", upper=f"{true[-1]}ms")


INT64 = [("type: timestamp}\n      eventTime", "type: int64}\n      eventTime")]


ZONE = "'Europe/Zurich'"
LOCAL = f"{{}}.ts AT TIME ZONE {ZONE}"
LOCAL_DAYS = [
    f"DATE_TRUNC('day', {{}}.ts, {ZONE})",
    f"DATE_TRUNC('day', {LOCAL})",
    f"DATE_TRUNC('day', {LOCAL}) AT TIME ZONE {ZONE}",
    f"DATE_TRUNC('day', FROM_UTC_TIMESTAMP({{}}.ts, {ZONE}))",
    f"CAST({LOCAL} AS DATE)",
]
LOCAL_BUCKETS = [f"TIME_BUCKET(INTERVAL '1 day', {{}}.ts, {ZONE})", f"TIME_BUCKET('1 day', {LOCAL})"]
UTC_DAYS = [
    "DATE_TRUNC('day', {}.ts)",
    "DATE_BIN('1 day', {}.ts)",
    "TIMESTAMP_TRUNC({}.ts, DAY)",
    "CAST({}.ts AS DATE)",
    "DATE({}.ts)",
]


@pytest.mark.parametrize(
    ("left", "right", "of_day"),
    [
        *((left, right, "1 2 3") for left, right in product(LOCAL_DAYS, LOCAL_DAYS)),
        *((left, right, "1 2 3") for left, right in product(LOCAL_BUCKETS, LOCAL_BUCKETS)),
        *((left, right, "2 3 4") for left, right in product(UTC_DAYS, UTC_DAYS)),
    ],
)
def test_two_ways_of_writing_one_range_of_time_are_equal(left, right, of_day):
    times = ["2024-06-01T21:59:59Z", "2024-06-01T22:00:00Z", "2024-06-02T00:00:00Z", "2024-06-02T21:59:59Z"]
    times.append("2024-06-02T23:59:59Z")
    sql = f"SELECT p.id FROM o JOIN p ON o.k = p.k AND {left.format('o')} = {right.format('p')}"
    written = document(inputs=[stream(name, "k", "id:int64") for name in "op"], sql=sql)
    steps = [
        {"input": "o", "rows": [{"k": "a", "id": 0, "ts": "2024-06-02T12:00:00Z"}]},
        {"input": "p", "rows": [{"k": "a", "id": id_, "ts": time} for id_, time in enumerate(times)]},
    ]
    lines = run_trace(parse_job(json.dumps(written), "job.json"), [*steps, {"end": True}], MemoryStore(), 1)
    assert " ".join(str(row["id"]) for line in lines for row in line["output"]) == of_day


def test_plain_numbers_are_milliseconds_where_both_event_times_are_int64():
    text = resource(joined(f"{KEY} AND p.ts BETWEEN o.ts - 1 AND o.ts + 3"))
    for old, new in INT64:
        assert old in text
        text = text.replace(old, new)
    (step,) = parse_job(text, "job.yaml").joins
    assert step.interval == Interval(of="orders", lower="-1ms", upper="3ms")


def event_times(*types):
    """Inputs a, b and c with these types of event times."""
    return [
        {
            "name": name,
            "file": {"path": name},
            "format": "json",
            "schema": [{"name": "k", "type": "string"}, {"name": "ts", "type": kind}],
            "eventTime": "ts",
        }
        for name, kind in zip("abc", types, strict=True)
    ]


@pytest.mark.parametrize("types", list(product(["int64", "timestamp"], repeat=3)), ids="-".join)
@pytest.mark.parametrize(
    "bounds",
    [
        "c.ts >= a.ts AND c.ts <= b.ts + INTERVAL '10' SECOND",
        "ABS(TIMESTAMPDIFF(SECOND, a.ts, c.ts)) < 2 AND ABS(c.ts - b.ts) <= INTERVAL '1' SECOND",
        "c.ts >= a.ts AND TIMESTAMPADD(SECOND, -10, c.ts) <= b.ts",
        "ABS(c.ts - a.ts) BETWEEN INTERVAL '2' SECOND AND INTERVAL '9' SECOND AND ABS(c.ts - b.ts) > INTERVAL '1' DAY",
        "c.ts BETWEEN b.ts AND b.ts + INTERVAL '1' SECOND AND c.ts BETWEEN a.ts AND a.ts + INTERVAL '2' SECOND",
        "c.ts - b.ts BETWEEN INTERVAL '0' SECOND AND INTERVAL '1' SECOND AND NOT c.ts - INTERVAL '1' SECOND > a.ts",
    ],
)
def test_bounds_of_two_inputs_go_with_event_times_of_any_types(types, bounds):
    sql = f"SELECT a.k FROM a JOIN b ON a.k = b.k AND a.ts = b.ts JOIN c ON b.k = c.k AND {bounds}"
    spec = {"inputs": event_times(*types), "sql": sql, "output": {"file": {"path": "out.jsonl"}}}
    pipeline = compile_join(StreamJoin.model_validate({"metadata": {"name": "job"}, "spec": spec}))
    assert pipeline.last.residual is not None


MIRRORED = {"<=": ">=", ">=": "<="}


@st.composite
def arrangements(draw):
    """SQL of `lower <= p.ts - o.ts <= upper`, and more bounds that are wider."""
    lower = draw(st.integers(-(10**9), 10**9))
    upper = lower + draw(st.integers(0, 10**9))
    wider = st.integers(0, 10**6)
    limits = [(">=", lower), ("<=", upper)]
    limits += [(">=", lower - draw(wider)) for _ in range(draw(st.integers(0, 2)))]
    limits += [("<=", upper + draw(wider)) for _ in range(draw(st.integers(0, 2)))]
    parts = draw(st.permutations([draw(comparison(sign, ms)) for sign, ms in limits]))
    split = draw(st.integers(0, len(parts)))
    on, where = parts[:split], parts[split:]
    return joined(" AND ".join([KEY, *on]), more=f"WHERE {' AND '.join(where)}" if where else ""), lower, upper


@st.composite
def comparison(draw, sign, ms):
    """`p.ts - o.ts <sign> ms`, each term on either side of the sign, either side first, strict or not."""
    strict = draw(st.booleans())
    if strict:
        ms += -1 if sign == ">=" else 1
    terms = [("p.ts", 1), ("o.ts", -1), (f"INTERVAL '{abs(ms)}' MILLISECOND", -1 if ms >= 0 else 1)]
    left, right = [], []
    for text, factor in draw(st.permutations(terms)):
        side, positive = draw(st.sampled_from([(left, factor > 0), (right, factor < 0)]))
        side.append(f"{'+' if positive else '-'} {text}")
    zero = "+ INTERVAL '0' SECOND"
    first, second = (" ".join(side or [zero]).removeprefix("+ ") for side in (left, right))
    if draw(st.booleans()):
        first, second, sign = second, first, MIRRORED[sign]
    return f"{first} {sign.rstrip('=') if strict else sign} {second}"


@given(arrangements())
def test_every_arrangement_of_the_same_bounds_is_the_same_interval(case):
    sql, lower, upper = case
    (step,) = load(sql).joins
    assert step.interval == Interval(of="orders", lower=f"{lower}ms", upper=f"{upper}ms")


@pytest.mark.parametrize("options", [{"exclude_unset": True}, {"exclude_defaults": True}, {}])
def test_a_job_that_is_written_out_again_is_still_sql(options):
    job = load(joined(f"{KEY} AND {HOUR}"))
    again = StreamJoin.model_validate(job.model_dump(mode="json", by_alias=True, exclude_none=True, **options))
    assert again.spec.sql == job.spec.sql
    assert again.joins == job.joins


def test_a_plan_of_the_job_is_replayed_after_the_sql_was_edited():
    old, new = load(joined(f"{KEY} AND {HOUR}")), load(joined(f"{KEY} AND p.ts = o.ts", "o.amount"))
    replayed = under_definition(new, definition(old))
    assert replayed.joins == old.joins
    assert definition(replayed) == definition(old)


def test_the_example_is_the_join_of_its_twin():
    folder = Path(__file__).parents[3] / "examples"
    sql, yaml = (load_job(folder / f"{name}.yaml") for name in ("orders-payments-sql", "orders-payments"))
    assert sql.joins == yaml.joins
    assert sql.select == yaml.select


def test_what_expressions_take_is_the_same_after_the_sql_was_written_anew():
    docs = Path(__file__).parents[3] / "docs"
    table = (docs / "expressions.md").read_text(encoding="utf-8").partition("|---|---|---|")[2].partition("\n\n")[0]
    functions = (docs / "functions.md").read_text(encoding="utf-8")
    lines = [line for line in (table + functions).splitlines() if line.startswith("| ") and "| example |" not in line]
    examples = [line.split(" | ")[-2].strip("`").replace("\\|", "|") for line in lines]
    assert len(examples) >= 125
    for text in examples:
        job = load(joined(f"{KEY} AND {HOUR} AND ({text}) IS NULL", f"({text}) IS NULL AS x"))
        (step,), (item,) = job.joins, job.select or ()
        assert step.where is not None
        assert step.where == item.expression
        assert parse_expression(step.where).node == parse_expression(f"({text}) IS NULL").node


def test_a_copy_of_a_job_reads_its_own_sql():
    """A job keeps what it has read off its SQL; two jobs are equal whether they have read it or not."""
    job = load(joined(f"{KEY} AND {HOUR}", "o.order_id AS number"))
    assert [column.name for column in job.output_columns] == ["number"]
    other_sql = load(joined(f"{KEY} AND {HOUR}", "o.amount AS total")).spec
    copy = job.model_copy(update={"spec": other_sql})
    assert [column.name for column in copy.output_columns] == ["total"]
    assert [column.name for column in job.output_columns] == ["number"]
    unread = load(joined(f"{KEY} AND {HOUR}", "o.order_id AS number"))
    assert job == unread


def test_the_sql_of_a_job_is_read_once(monkeypatch):
    job = load(joined(f"{KEY} AND {HOUR}", "o.order_id AS number"))
    joins = job.joins
    monkeypatch.setattr(pipeline, "translate", lambda *_: pytest.fail("it is translated again"))
    assert job.joins is joins
    assert job.select is not None
