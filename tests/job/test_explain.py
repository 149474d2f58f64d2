import dataclasses

import pytest

from job.resources import job
from joinery_runtime.job import explain
from joinery_runtime.job.explain import LARGE_STATE_BYTES

OUTPUT = "    postgres: {table: joined}"
TOPIC = "topic: orders\n"


def sides(*edits):
    return {side.input: side for side in explain(job(*edits)).sides}


def test_each_side_is_kept_by_rule_j3():
    # orders: upper 1h, no delay on payments; payments: -lower 1m, and 10s of delay on orders.
    found = sides()
    assert found["orders"].kept_for_ms == 3_600_000
    assert found["payments"].kept_for_ms == 60_000 + 10_000
    assert found["orders"].kept_until == "wm(payments) > ts + 1h [upper] + 0s [allowedLateness]"
    assert found["payments"].kept_until == "wm(orders) > ts + 1m [-lower] + 0s [allowedLateness]"


def test_allowed_lateness_keeps_both_sides_longer():
    found = sides(("lateData: drop", "lateData: drop\n      allowedLateness: 5s"))
    assert found["orders"].kept_for_ms == 3_605_000
    assert found["payments"].kept_for_ms == 75_000


def test_bounds_of_one_sign_never_give_a_negative_time():
    found = sides(("lower: -1m, upper: 1h", "lower: -2h, upper: -1h"))
    assert found["orders"].kept_for_ms == 0
    assert found["orders"].kept_until.startswith("wm(payments) > ts - 1h")
    assert found["payments"].kept_for_ms == 7_210_000


def test_state_estimate_counts_rows_and_widths():
    found = sides()
    # Engine columns 28; order_id 20, country 4, amount 16; event time is one of the engine's.
    assert (found["orders"].rows, found["orders"].row_bytes) == (3_600_000, 68)
    assert (found["payments"].rows, found["payments"].row_bytes) == (70_000, 28 + 20 + 8)
    assert explain(job()).state_bytes == 3_600_000 * 68 + 70_000 * 56


def test_only_stored_columns_count():
    select = (OUTPUT, OUTPUT + "\n  select: [{column: payments.country}]")
    assert sides(select)["orders"].row_bytes == 28 + 20
    where = ("lateData: drop", 'where: "orders.amount > 1"')
    assert sides(select, where)["orders"].row_bytes == 68
    given = explain(job(select, where), {"orders": ["amount"], "payments": []}).sides
    assert [side.row_bytes for side in given] == [28 + 16, 28]


def test_large_state_is_warned_of_loudly():
    limit = LARGE_STATE_BYTES // 68 // 1000  # seconds of orders at 1,000 rows/s
    below, above = (("upper: 1h", f"upper: {limit + seconds}s") for seconds in (-300, 300))
    assert explain(job(below)).warnings == ()
    (warning,) = explain(job(above)).warnings
    assert warning.startswith("LARGE STATE: about 2")
    assert f"WARNING: {warning}" in explain(job(above)).render().splitlines()


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ((OUTPUT, "    file: {path: x}\n  stateStore: {memory: {}}"), "MEMORY STORE: state and offsets are LOST"),
        (("delay: 10s", "delay: 10s, idleTimeout: 0"), "IDLENESS IS OFF on orders"),
        (("delay: 10s", "explicit: true, idleTimeout: 0"), "EXPLICIT WATERMARK on orders"),
    ],
)
def test_warns_of_what_hurts_later(edit, words):
    (warning,) = explain(job(edit)).warnings
    assert warning.startswith(words)


def test_a_file_is_never_idle():
    edits = [
        ("kafka:\n        bootstrapServers: kafka:9092\n        topic: orders\n", "file: {path: in.jsonl}\n"),
        ("delay: 10s", "idleTimeout: 0"),
    ]
    assert explain(job(*edits)).warnings == ()


def test_render_tells_the_plan():
    lines = explain(job(("lateData: drop", 'where: "orders.amount > 1"'))).render().splitlines()
    assert lines[0] == "orders-payments: inner interval join"
    assert "  keys: orders.order_id = payments.order_id" in lines
    assert "  bound: payments.ts in [orders.ts - 1m, orders.ts + 1h], both ends included" in lines
    assert "  where: orders.amount > 1" in lines
    assert "    in steady flow for 1m10s of event time after their own" in lines
    late = "dropped and counted when ts + 1h [the wider bound] + 0s [allowedLateness] < min(wm(orders), wm(payments))"
    assert f"  late rows: {late}" in lines
    assert "  state: embedded Postgres on this machine; 8 shards; compacted every 1m" in lines


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ((TOPIC, TOPIC + "        startFrom: latest\n        stopAt: {timestamp: 5}\n"), "stops at timestamp 5 ms"),
        ((TOPIC, TOPIC + "        startFrom: {offsets: {'0': 1}}\n"), "starts at the given offsets"),
        (("delay: 10s", "idleTimeout: 0"), "never idle"),
        (("delay: 10s", "explicit: true"), "raised only by the steps of `joinery trace`"),
        (("lateData: drop", "lateData: reopen"), "never dropped (lateData: reopen)"),
        ((OUTPUT, "    file: {path: x}"), "JSON lines under x, exactly once; columns left_order_id"),
        (
            (OUTPUT, "    kafka: {bootstrapServers: k, topic: t}\n  delivery: atLeastOnce"),
            "Kafka topic t, at least once",
        ),
        (
            (OUTPUT, OUTPUT + "\n  deadLetter: {kafka: {topic: d}}"),
            "go to Kafka topic d, exactly once for readers with",
        ),
        ((TOPIC, TOPIC.replace("topic:", "topicPattern:")), "Kafka topics like 'orders' at"),
        ((OUTPUT, "    kafka: {bootstrapServers: k, topic: t}"), "Kafka topic t, exactly once for readers with"),
        ((OUTPUT, OUTPUT + "\n  deadLetter: {file: {path: d}}"), "records that cannot be used: go to d"),
        ((OUTPUT, OUTPUT + "\n  stateStore: {postgres: {dsn: password=hush}}"), "state: Postgres, schema joinery"),
    ],
)
def test_render_says_each_choice(edit, words):
    text = explain(job(edit)).render()
    assert words in text
    assert "hush" not in text


def test_explanation_is_plain_data():
    assert dataclasses.asdict(explain(job()))["sides"][0]["input"] == "orders"
