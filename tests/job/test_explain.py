import dataclasses

import pytest

from job import chains
from job.resources import edited, job, problems
from joinery_runtime.job import explain
from joinery_runtime.job.explain import LARGE_STATE_BYTES

OUTPUT = "    postgres: {table: joined}"
TOPIC = "topic: orders\n"


def sides(*edits):
    return {side.rows_of: side for side in explain(job(*edits)).sides}


def test_each_side_is_kept_by_rule_j3():
    # orders: upper 1h, no delay on payments; payments: -lower 1m, and 10s of delay on orders.
    side_plans = sides()
    assert side_plans["orders"].kept_for_ms == 3_600_000
    assert side_plans["payments"].kept_for_ms == 60_000 + 10_000
    assert side_plans["orders"].kept_until == "wm(payments) > ts + 1h [upper] + 0s [allowedLateness]"
    assert side_plans["payments"].kept_until == "wm(orders) > ts + 1m [-lower] + 0s [allowedLateness]"


def test_allowed_lateness_keeps_both_sides_longer():
    side_plans = sides(("lateData: drop", "lateData: drop\n      allowedLateness: 5s"))
    assert side_plans["orders"].kept_for_ms == 3_605_000
    assert side_plans["payments"].kept_for_ms == 75_000


def test_bounds_of_one_sign_never_give_a_negative_time():
    side_plans = sides(("lower: -1m, upper: 1h", "lower: -2h, upper: -1h"))
    assert side_plans["orders"].kept_for_ms == 0
    assert side_plans["orders"].kept_until.startswith("wm(payments) > ts - 1h")
    assert side_plans["payments"].kept_for_ms == 7_210_000


def test_state_estimate_counts_rows_and_widths():
    side_plans = sides()
    # Engine columns 28; order_id 20, country 4, amount 16; event time is one of the engine's.
    assert (side_plans["orders"].rows, side_plans["orders"].row_bytes) == (3_600_000, 68)
    assert (side_plans["payments"].rows, side_plans["payments"].row_bytes) == (70_000, 28 + 20 + 8)
    assert explain(job()).state_bytes == 3_600_000 * 68 + 70_000 * 56


def test_only_stored_columns_count():
    select = (OUTPUT, OUTPUT + "\n  select: [{column: payments.country}]")
    assert sides(select)["orders"].row_bytes == 28 + 20
    where = ("lateData: drop", 'where: "orders.amount > 1"')
    assert sides(select, where)["orders"].row_bytes == 68
    side_plans = explain(job(select, where), {"left": ["amount"], "right": []}).sides
    assert [side.row_bytes for side in side_plans] == [28 + 16, 28]


@pytest.mark.parametrize(
    ("watch", "source", "ends"),
    [
        ("", "file /in", "; bounded"),
        (", watch: true", "files of /in and those that appear there, in order of their paths", "; unbounded"),
    ],
)
def test_input_files_are_named_and_whether_they_are_watched(watch, source, ends):
    of_topic = "kafka:\n        bootstrapServers: kafka:9092\n        topic: orders\n"
    input_plan = explain(job((of_topic, f"file: {{path: /in{watch}}}\n"))).inputs[0]
    assert input_plan.source == source
    assert input_plan.decoding.endswith(ends)


def test_a_history_comes_before_its_topic():
    history = "topic: orders\n      history: {path: /in, format: parquet, until: 2026-01-15T10:00:00Z}\n"
    input_plan = explain(job(("topic: orders\n", history))).inputs[0]
    assert input_plan.source == (
        "first parquet rows of /in with event times before 2026-01-15T10:00:00.000Z, then Kafka topic orders at "
        "kafka:9092, starts at earliest where no offset is stored, without rows from before that time"
    )
    assert input_plan.decoding.endswith("unbounded")


def test_output_files_are_named_with_their_format():
    files = "    file: {path: /out}"
    assert explain(job((OUTPUT, files))).output.startswith("JSON lines under /out, exactly once; columns ")
    plan = explain(job((OUTPUT, files.replace("/out", "/out, rollSize: 64Mi"))))
    assert "/out, exactly once, held back until there are 64Mi or for 1m; columns " in plan.output
    plan = explain(job((OUTPUT, files.replace("/out", "/out, rollInterval: 10m"))))
    assert "held back until there are 128Mi or for 10m" in plan.output
    assert explain(job((OUTPUT, files + "\n    format: parquet"))).output.startswith("Parquet under /out, exactly once")


IN_ORDER = ("      eventTime: ts\n  joins", "      eventTime: ts\n      watermark: {delay: 0s}\n  joins")


def test_large_state_is_warned_of_loudly():
    limit = LARGE_STATE_BYTES // 68 // 1000  # seconds of orders at 1,000 rows/s
    below, above = (("upper: 1h", f"upper: {limit + seconds}s") for seconds in (-300, 300))
    assert explain(job(below, IN_ORDER)).warnings == ()
    (warning,) = explain(job(above, IN_ORDER)).warnings
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
    (warning,) = explain(job(edit, IN_ORDER)).warnings
    assert warning.startswith(words)


def test_a_file_is_never_idle():
    edits = [
        ("kafka:\n        bootstrapServers: kafka:9092\n        topic: orders\n", "file: {path: in.jsonl}\n"),
        ("delay: 10s", "idleTimeout: 0"),
        IN_ORDER,
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
    assert "  state: embedded Postgres on this machine; up to 8 shards; compacted every 1m" in lines


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ((TOPIC, TOPIC + "        startFrom: latest\n        stopAt: {timestamp: 5}\n"), "stops at timestamp 5 ms"),
        ((TOPIC, TOPIC + "        startFrom: {offsets: {'0': 1}}\n"), "starts at the given offsets"),
        (("delay: 10s", "idleTimeout: 0"), "never idle"),
        (("delay: 10s", "maxFuture: 6h"), "hold; at most 6h ahead of the clock (maxFuture)"),
        (("delay: 10s", 'maxFuture: "off"'), "hold; any event time is taken"),
        (("delay: 10s", "explicit: true"), "raised only by the steps of `joinery trace`"),
        (("lateData: drop", "lateData: reopen"), "never dropped (lateData: reopen)"),
        ((OUTPUT, "    file: {path: x}"), "JSON lines under x, exactly once; columns orders_order_id"),
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
        ((OUTPUT, OUTPUT + "\n  stateStore: {startFrom: {job: a, savepoint: b}}"), "begins with savepoint b of a"),
        ((OUTPUT, OUTPUT + "\n  stateStore: {postgres: {dsn: password=hush}}"), "state: Postgres, schema joinery"),
    ],
)
def test_render_says_each_choice(edit, words):
    text = explain(job(edit)).render()
    assert words in text
    assert "hush" not in text


def test_explanation_is_plain_data():
    (step,) = dataclasses.asdict(explain(job()))["steps"]
    assert (step["title"], step["sides"][0]["rows_of"]) == ("inner interval join", "orders")


# --- every form of step -------------------------------------------------------------------------------------------


def late_orders(*steps, delay, **more):
    """The steps' job with a watermark delay of the orders."""
    named = {step["right"] for step in steps}
    inputs = [{**chains.ORDERS, "watermark": {"delay": delay}}]
    inputs += [
        input_spec for input_spec in (chains.PAYMENTS, chains.ITEMS, chains.RATES) if input_spec["name"] in named
    ]
    return chains.load(*steps, inputs=inputs, **more)


BY_PAYMENT = {"of": "payments", "lower": "-1m", "upper": "1h"}


def test_a_chain_tells_each_step_and_all_parts():
    chain = late_orders(
        chains.step(type="left", allowedLateness="5m"), chains.step("items", interval=BY_PAYMENT), delay="10s"
    )
    plan = explain(chain)
    assert [(side.part, side.rows_of, side.kept_for_ms) for side in plan.sides] == [
        ("left", "orders", 86_400_000 + 300_000),
        ("right", "payments", 300_000 + 10_000),
        ("left.2", "orders + payments", 3_600_000),
        # Payments wait for late orders in the first step, so their time trails by as much in the second.
        ("right.2", "items", 60_000 + 310_000),
    ]
    assert plan.sides[1].kept_until == "wm(orders) > ts + 0s [-lower] + 5m [allowedLateness]"
    assert plan.sides[3].kept_until == "wm(payments after step 1) > ts + 1m [-lower]"
    lines = plan.render().splitlines()
    assert lines[0] == "chain: a chain of 2 joins"
    assert "  step 2: inner interval join of orders + payments with items" in lines
    assert "    unmatched: orders rows are emitted padded with nulls, each once, when evicted without a match" in lines
    assert "    bound: items.ts in [payments.ts - 1m, payments.ts + 1h], both ends included" in lines
    late = "dropped and counted when ts < the input's own watermark - 5m [allowedLateness]"
    assert f"    late rows: of orders and payments, {late}" in lines
    assert any(line.startswith("    late rows: of items, dropped") for line in lines)


def test_a_time_that_the_chain_joined_before_trails_by_the_bounds_between():
    """An order waits 24h for its payment, which is up to 24h younger: so it is 24h back when the pair goes out."""
    of_orders = {**chains.DAY, "lower": "0s", "upper": "0s"}
    of_payments = {"of": "payments", "lower": 0, "upper": 0}
    for interval, kept_ms in ((of_orders, 86_400_000), (of_payments, 0)):
        plan = explain(chains.load(chains.step(), chains.step("items", interval=interval)))
        assert plan.sides[3].kept_for_ms == kept_ms
    after_payments = chains.step("rates", keys={"orders.currency": "rates.currency"}, interval=of_orders)
    rates = {key: value for key, value in chains.RATES.items() if key != "table"}
    chain = (chains.step(), chains.step("items", interval={**of_payments, "upper": "1h"}), after_payments)
    long = explain(chains.load(*chain, inputs=[chains.ORDERS, chains.PAYMENTS, chains.ITEMS, rates]))
    assert long.sides[5].kept_for_ms == 86_400_000 + 3_600_000


@pytest.mark.parametrize(
    ("step", "kept_ms", "words"),
    [
        (chains.window(tumbling="1h"), (3_610_000,) * 2, "window: 1h long, one after the other"),
        (
            chains.window(tumbling="1h", offset="10m", timeZone="Europe/Zurich"),
            (3_610_000,) * 2,
            "window: 1h long, one after the other, aligned to local midnight in Europe/Zurich, 10m [offset] after",
        ),
        (
            {**chains.window(hopping={"size": "1h", "slide": "10m"}), "allowedLateness": "1s", "type": "full"},
            (3_611_000,) * 2,
            "window: 1h long, one starts every 10m; a pair is emitted once per window that holds both",
        ),
        (
            {**chains.window(tumbling="1h"), "type": "full"},
            (3_610_000,) * 2,
            "unmatched: orders and payments rows are emitted padded with nulls, once per window without a partner",
        ),
        (
            {**chains.window(tumbling="1h"), "type": "left", "filter": "payments.method IS NULL"},
            (3_610_000,) * 2,
            "filter: payments.method IS NULL; rows for which it is not true are not emitted, and counted",
        ),
        (
            {**chains.window(tumbling="1h"), "type": "anti"},
            (3_610_000,) * 2,
            "emits: orders rows alone: those without a match, once per window without a partner",
        ),
        (
            {**chains.window(tumbling="1h"), "type": "semi"},
            (3_610_000,) * 2,
            "emits: orders rows alone: those with a match, once per window with a partner",
        ),
        (
            {**chains.window(session={"gap": "30s"}), "allowedLateness": "5s"},
            (45_000,) * 2,
            "until min(wm(orders), wm(payments)) > their session's last row + gap + 5s [allowedLateness]",
        ),
        (
            chains.window(tumbling="1h"),
            (3_610_000,) * 2,
            "dropped and counted when the end of their last window + 0s [allowedLateness] <= min(wm(orders), wm",
        ),
        (
            chains.window(session={"gap": "30s"}),
            (40_000,) * 2,
            "dropped and counted when ts + gap + 0s [allowedLateness] < min(wm(orders), wm(payments))",
        ),
        (
            chains.as_of(asOf={"historyRetention": "1h", "grace": "10m"}, type="left"),
            (600_000, 3_600_000),
            "orders rows are kept until the highest event time of orders >= ts + 10m [grace]",
        ),
        (chains.as_of(), (0, 3_600_000), "table: the version of rates that is valid at orders.ts"),
        (chains.as_of(), (0, 3_600_000), "a table: each row is a version of its currency"),
        (
            chains.as_of(),
            (0, 3_600_000),
            "older than the highest event time of rates - 1h [historyRetention]; the newest of every key stays",
        ),
        (
            chains.time_only(),
            (86_400_000, 10_000),
            "keys: none, a join on time only; every shard gets all rows of payments (broadcast)",
        ),
        (
            chains.step(limits={"maxStateBytes": "10Gi", "maxRecords": 5000000, "onLimit": "pause"}),
            (86_400_000, 10_000),
            "limits: a side holds at most 10Gi and 5,000,000 rows, else no more of that side is read until it has",
        ),
        (
            chains.step(limits={"hotKeyWarning": 7}),
            (86_400_000, 10_000),
            "  limits: a key with more than 7 rows is warned about",
        ),
        (chains.step(type="right"), (86_400_000, 10_000), "late rows: of orders and payments, dropped and counted"),
    ],
)
def test_every_form_is_told(step, kept_ms, words):
    plan = explain(late_orders(step, delay="10s"))
    assert tuple(side.kept_for_ms for side in plan.sides) == kept_ms
    assert words in plan.render()


def test_stored_columns_of_chained_rows_are_named_by_their_inputs():
    steps = chains.step(), chains.step("items")
    chain = chains.load(*steps, select=[{"column": "payments.method"}, {"column": "items.n"}])
    text, time, number = 20, 8, 8
    # Orders' id, the key of both steps, and their time, which the bound of the second step counts from.
    assert [side.row_bytes - 28 for side in explain(chain).sides] == [
        *(text, 2 * text, 2 * text + text + time, text + number)
    ]
    stored = {"left": [], "right": ["method"], "left.2": ["orders.amount", "payments.ts"], "right.2": ["n"]}
    assert [side.row_bytes - 28 for side in explain(chain, stored).sides] == [0, text, 8 + time, number]


@pytest.mark.parametrize(
    ("step", "todo"),
    [
        (chains.step(interval={**chains.DAY, "upper": "2400h"}), "narrow the interval"),
        (chains.window(tumbling="2400h"), "make the windows shorter"),
        (chains.as_of(asOf={"historyRetention": "2400h"}), "shorten historyRetention and grace"),
    ],
)
def test_what_makes_the_state_smaller(step, todo):
    (warning,) = explain(chains.load(step)).warnings
    assert f"To have less, {todo}, shorten" in warning


@pytest.mark.parametrize(
    ("text", "share"), [("1%", 0.01), ("0.5%", 0.005), ("0%", 0), ("100%", 1), ('"off"', None), ("off", None)]
)
def test_the_share_of_late_rows_that_is_warned_about(text, share):
    watermark = job(("delay: 10s", f"delay: 10s, lateWarning: {text}")).inputs[0].watermark
    assert watermark.late_share == pytest.approx(share) if share else watermark.late_share == share


@pytest.mark.parametrize("text", ["1", "0.01", "101%", "-1%", "1 %", "on"])
def test_what_is_no_share(text):
    (problem,) = problems(edited(("delay: 10s", f"delay: 10s, lateWarning: {text}")))
    assert problem.path == "spec.inputs[0].watermark.lateWarning"
    assert "must be a share in percent, for example 1% or 0.5%, or off" in problem.message


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        ((), "with orders_ and payments_, which a job without state has; one with state keeps its names)"),
        (
            (OUTPUT, "    postgres: {table: t, upsertKey: [left_ts]}"),
            "always, with left_ and right_, because with whenN",
        ),
        ((OUTPUT, OUTPUT + "\n  prefixes: always"), "(named by prefixes: always, with left_ and right_; with a third"),
        ((OUTPUT, OUTPUT + "\n  prefixes: whenNeeded"), "(named by prefixes: whenNeeded, with orders_ and payments_)"),
        ((OUTPUT, OUTPUT + "\n  select: [{column: orders.ts}]"), None),
    ],
)
def test_it_names_how_columns_get_their_names(edits: tuple[str, str] | tuple[()], says: str | None) -> None:
    output = explain(job(edits) if edits else job()).output
    assert ("named by" in output) == (says is not None)
    assert says is None or says in output


STORE = ("  output:\n", "  stateStore: {postgres: {dsn: postgresql://db/state}}\n  output:\n")


@pytest.mark.parametrize(
    ("spark", "edits", "connections"),
    [
        ("executor: {instances: 47}", (), None),
        ("executor: {instances: 48}", (), 98),
        ("executor: {instances: 50}", (), 102),
        ("executor: {instances: 12, cores: 4}", (), 98),
        ("executor: {instances: 2, maxInstances: 50}", (), 102),
        ("executor: {instances: 96}", (("{table: joined}", "{table: joined, dsn: postgresql://db/other}"),), None),
        ("executor: {instances: 97}", (("{table: joined}", "{table: joined, dsn: postgresql://db/other}"),), 98),
        ("executor: {instances: 97}", (("postgres: {table: joined}", "file: {path: /out}"),), 98),
    ],
)
def test_more_connections_than_a_postgres_takes_by_default_deserve_a_warning(spark, edits, connections):
    spark_edit = ("  output:\n", f"  spark: {{{spark}}}\n  output:\n")
    warnings = [text for text in explain(job(STORE, spark_edit, *edits)).warnings if "MANY CONNECTIONS" in text]
    assert [f"up to {connections} connections" in text for text in warnings] == [True] * (connections is not None)


def test_an_autoscaled_job_counts_the_most_executors_it_may_have():
    edit = ("  output:\n", "  autoscale: {minInstances: 1, maxInstances: 50}\n  output:\n")
    assert any("50 executors of 1 core open up to 102" in text for text in explain(job(STORE, edit)).warnings)
