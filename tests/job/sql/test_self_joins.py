"""An input that the SQL reads under several aliases (J13): each further alias is an input of its own."""

from __future__ import annotations

import pytest

from job.resources import problems
from job.sql_jobs import Inputs
from joinery_runtime.core.compile.jobs import compile_join
from joinery_runtime.errors import JobError
from joinery_runtime.hosts.secrets import with_clients
from joinery_runtime.job import StreamJoin, explain, parse_job
from joinery_runtime.job.definition import definition, same_rows, under_definition
from joinery_runtime.job.signature import compare, signature

COLUMNS = "order_id string, customer string, amount double, ts timestamp"
ORDERS, TWICE = Inputs(orders=COLUMNS), Inputs(orders=COLUMNS, b=COLUMNS)
RATES = {"rates": "currency string, rate double, ts timestamp"}
LATER = "b.ts > a.ts AND b.ts <= a.ts + INTERVAL '10' MINUTE"
PAIRS = f"SELECT a.order_id, b.order_id AS next FROM orders a JOIN orders b ON a.customer = b.customer AND {LATER}"
STEP = "{right: b, keys: {orders.customer: b.customer}, interval: {of: orders, lower: 1ms, upper: 10m}%s}"


def load(text: str) -> StreamJoin:
    job = parse_job(text, "job.yaml")
    assert isinstance(job, StreamJoin)
    return job


def declared_twice(step: str, select: str) -> StreamJoin:
    return load(TWICE.yaml(step, select).replace("b.jsonl", "orders.jsonl"))


@pytest.mark.parametrize(
    ("sql", "more", "select"),
    [
        (PAIRS, "", "{column: orders.order_id}, {column: b.order_id, as: next}"),
        (
            f"{PAIRS} AND a.order_id <> b.order_id",
            ", where: orders.order_id <> b.order_id",
            "{column: orders.order_id}, {column: b.order_id, as: next}",
        ),
        (
            "SELECT order_id FROM orders a WHERE EXISTS "
            f"(SELECT 1 FROM orders b WHERE b.customer = a.customer AND {LATER})",
            ", type: semi",
            "{column: orders.order_id}",
        ),
        (
            f"SELECT a.order_id FROM orders a LEFT JOIN orders b ON a.customer = b.customer AND {LATER} "
            "WHERE b.order_id IS NULL AND b.customer IS NULL",
            ", type: left, filter: b.order_id IS NULL AND b.customer IS NULL",
            "{column: orders.order_id}",
        ),
        (
            "SELECT * FROM orders JOIN orders b USING (customer) WHERE b.ts > orders.ts AND b.ts <= orders.ts + "
            "INTERVAL '10' MINUTE",
            "",
            "{column: orders.customer}, {column: orders.order_id, as: orders_order_id}, "
            "{column: orders.amount, as: orders_amount}, {column: orders.ts, as: orders_ts}, "
            "{column: b.order_id, as: b_order_id}, {column: b.amount, as: b_amount}, {column: b.ts, as: b_ts}",
        ),
    ],
)
def test_a_further_alias_is_an_input_that_is_declared_twice(sql: str, more: str, select: str) -> None:
    job, twin = load(ORDERS.sql(sql)), declared_twice(STEP % more, select)
    assert [side.name for side in job.inputs] == ["orders", "b"]
    assert job.joins == twin.joins
    assert job.output_columns == twin.output_columns
    assert compile_join(job) == compile_join(twin)
    assert definition(job) == definition(twin)


def test_a_query_of_with_is_read_twice() -> None:
    job = load(
        ORDERS.sql(f"WITH large AS (SELECT * FROM orders WHERE amount > 9) {PAIRS.replace('orders ', 'large ')}")
    )
    assert job.input_filters == {"orders": "orders.amount > 9", "b": "b.amount > 9"}


def test_a_chain_and_a_sub_query_read_one_input_four_times() -> None:
    more = "JOIN orders c ON c.customer = a.customer AND c.ts > b.ts AND c.ts <= a.ts + INTERVAL '1' HOUR"
    tested = "SELECT 1 FROM orders d WHERE d.customer = a.customer AND d.ts BETWEEN a.ts AND a.ts + INTERVAL '1' HOUR"
    job = load(ORDERS.sql(f"{PAIRS} {more} WHERE NOT EXISTS ({tested} AND d.amount > 9)"))
    assert [step.right for step in job.joins] == ["b", "c", "d"]
    assert [side.name for side in job.inputs] == ["orders", "b", "c", "d"]
    compile_join(job)


def test_a_table_is_looked_up_twice() -> None:
    inputs = Inputs({"rates": "currency"}, orders="id int64, sold string, bought string, ts timestamp", **RATES)
    job = load(
        inputs.sql(
            "SELECT o.id, s.rate / b.rate AS rate FROM orders o "
            "JOIN rates FOR SYSTEM_TIME AS OF o.ts AS s ON s.currency = o.sold "
            "JOIN rates FOR SYSTEM_TIME AS OF o.ts AS b ON b.currency = o.bought "
            "WITH ('join.history_retention' = '1h')"
        )
    )
    assert [side.name for side in job.inputs] == ["orders", "rates", "b"]
    assert job.inputs[2].table == job.inputs[1].table
    compile_join(job)


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        ("orders a JOIN orders b", ["orders", "b"]),
        ("orders b JOIN orders a", ["orders", "a"]),
        ("orders a JOIN orders", ["orders", "a"]),
        ("orders JOIN orders a", ["orders", "a"]),
        ('orders a JOIN orders "select"', ["orders", "select"]),
    ],
)
def test_the_source_without_another_alias_or_the_first_one_keeps_the_name(sources: str, names: list[str]) -> None:
    first, second = (source.split()[-1] for source in sources.split(" JOIN "))
    on = f"{first}.customer = {second}.customer AND {second}.ts BETWEEN {first}.ts AND {first}.ts + INTERVAL '1' HOUR"
    job = load(ORDERS.sql(f"SELECT {first}.order_id FROM {sources} ON {on} AND {second}.amount < {first}.amount"))
    assert [side.name for side in job.inputs] == names
    compile_join(job)


def test_where_of_the_input_counts_for_each_reading() -> None:
    text = ORDERS.sql(PAIRS).replace("eventTime: ts}", "eventTime: ts, where: orders.amount > 0 AND customer <> ''}")
    job = load(text)
    assert job.input_filters == {
        "orders": "orders.amount > 0 AND customer <> ''",
        "b": "b.amount > 0 AND customer <> ''",
    }
    compile_join(job)
    with pytest.raises(JobError, match="unknown column") as error:
        compile_join(load(text.replace("customer <> ''", "nothing <> ''")))
    assert [problem.path for problem in error.value.problems] == ["spec.inputs[0].where"]


@pytest.mark.parametrize(
    ("sql", "parts"),
    [
        (
            "SELECT a.order_id FROM orders a JOIN orders rates ON a.customer = rates.customer "
            "JOIN rates r ON r.currency = a.customer",
            ("column 38, `orders AS rates`: 'orders' is read again as 'rates', which is the name of another input",),
        ),
        (
            'SELECT a.order_id FROM orders a JOIN orders "b c" ON a.customer = "b c".customer JOIN rates r ON TRUE',
            ("'b c', which is then the name of an input; write an alias of letters, digits and underscores",),
        ),
        (
            "SELECT a.order_id FROM orders a JOIN orders a ON a.customer = a.customer JOIN rates r ON TRUE",
            ("two inputs are called 'a'; give each its own alias",),
        ),
        (
            "SELECT a.order_id FROM orders a JOIN orders b ON a.customer = b.nothing JOIN rates r ON TRUE",
            ("'b' has no column 'nothing'",),
        ),
    ],
)
def test_wrong_aliases_are_rejected(sql: str, parts: tuple[str, ...]) -> None:
    messages = [problem.message for problem in problems(Inputs(orders=COLUMNS, **RATES).sql(sql))]
    for part in parts:
        assert any(part in message for message in messages), messages


def test_a_constant_for_a_table_is_written_as_an_expression_of_the_other_input() -> None:
    inputs = Inputs({"rates": "currency"}, orders=COLUMNS, **RATES)
    sql = (
        "SELECT o.order_id, u.rate FROM orders o LEFT JOIN rates FOR SYSTEM_TIME AS OF o.ts AS u ON u.currency = {} "
        "WITH ('join.history_retention' = '1h')"
    )
    (problem,) = problems(inputs.sql(sql.format("'USD'")))
    todo = "CASE WHEN o.ts IS NOT NULL THEN 'USD' END"
    assert f"write {todo} in place of it" in problem.message
    compile_join(load(inputs.sql(sql.format(todo))))


@pytest.mark.parametrize(
    ("value", "todo"),
    [
        (
            "LAG(amount) OVER (PARTITION BY customer ORDER BY ts)",
            "write FROM orders a LEFT JOIN orders b ON a.customer = b.customer AND b.ts < a.ts AND b.ts >= a.ts - "
            "INTERVAL '1' HOUR QUALIFY ROW_NUMBER() OVER (PARTITION BY a.<id>, TUMBLE(a.ts, INTERVAL '1' MINUTE) "
            "ORDER BY b.ts DESC) = 1",
        ),
        (
            "ts - LEAD(ts) OVER (PARTITION BY customer, order_id ORDER BY ts)",
            "ON a.customer = b.customer AND a.order_id = b.order_id AND b.ts > a.ts AND b.ts <= a.ts + "
            "INTERVAL '1' HOUR QUALIFY ROW_NUMBER() OVER (PARTITION BY a.<id>, TUMBLE(a.ts, INTERVAL '1' MINUTE) "
            "ORDER BY b.ts) = 1",
        ),
        (
            "SUM(amount) OVER (ORDER BY ts)",
            "or for one of each row FROM orders a JOIN orders b ON a.<key> = b.<key> AND b.ts <= a.ts AND "
            "b.ts >= a.ts - INTERVAL '1' HOUR GROUP BY a.<id>, TUMBLE(a.ts, INTERVAL '1' MINUTE)",
        ),
        (
            "COUNT(*) OVER (PARTITION BY customer ORDER BY ts RANGE BETWEEN INTERVAL '10' MINUTE PRECEDING AND "
            "CURRENT ROW)",
            "or for one of each row FROM orders a JOIN orders b ON a.customer = b.customer AND b.ts <= a.ts AND "
            "b.ts >= a.ts - INTERVAL '10' MINUTE GROUP BY a.<id>",
        ),
        (
            "COUNT(*) OVER (PARTITION BY customer ORDER BY ts RANGE BETWEEN INTERVAL '10' MINUTE PRECEDING AND "
            "INTERVAL '1' MINUTE PRECEDING)",
            "b.ts <= a.ts AND b.ts >= a.ts - <length> GROUP BY a.<id>",
        ),
        (
            "COUNT(*) OVER (PARTITION BY customer ORDER BY ts RANGE BETWEEN INTERVAL '10' MINUTE FOLLOWING AND "
            "INTERVAL '20' MINUTE FOLLOWING)",
            "b.ts <= a.ts AND b.ts >= a.ts - <length> GROUP BY a.<id>",
        ),
        (
            "FIRST_VALUE(amount) OVER (PARTITION BY customer ORDER BY ts)",
            "for the first row of the key in the time up to each row, write FROM orders a JOIN orders b ON a.customer "
            "= b.customer AND b.ts <= a.ts AND b.ts >= a.ts - INTERVAL '1' HOUR QUALIFY ROW_NUMBER() OVER (PARTITION "
            "BY a.<id>, TUMBLE(a.ts, INTERVAL '1' MINUTE) ORDER BY b.ts) = 1",
        ),
    ],
)
def test_a_window_function_is_rejected_with_the_self_join_to_write(value: str, todo: str) -> None:
    (problem,) = problems(ORDERS.sql(f"SELECT {value} AS x FROM orders"))
    assert todo in problem.message


KAFKA = "kafka: {bootstrapServers: k, topic: orders, properties: {%s}}"


def test_two_readings_share_no_group() -> None:
    text = ORDERS.sql(PAIRS).replace("file: {path: orders.jsonl}", KAFKA % "group.id: shop")
    (problem,) = problems(text)
    assert problem.path == "spec.sql"
    assert "'b' reads 'orders' again: two inputs have group.id 'shop'" in problem.message
    assert "or leave it out" in problem.message


def test_a_mistake_of_the_input_is_reported_once() -> None:
    (problem,) = problems(ORDERS.sql(PAIRS).replace("eventTime: ts", "csv: {header: false}, eventTime: ts"))
    assert problem.path == "spec.inputs[0].csv"


def test_explain_says_which_input_is_read_again() -> None:
    lines = explain(load(ORDERS.sql(PAIRS))).render().splitlines()
    assert [line for line in lines if line.startswith("  input")] == [
        "  input orders: file orders.jsonl",
        "  input b: orders, read again: file orders.jsonl",
    ]


def test_clients_are_those_of_the_declared_input() -> None:
    job = load(ORDERS.sql(PAIRS).replace("file: {path: orders.jsonl}", KAFKA % "sasl.password: old"))

    def client(kafka, at):
        assert at == ("inputs", 0, "kafka")
        return kafka.model_copy(update={"properties": {"sasl.password": "new"}})

    filled = with_clients(job, client, lambda database, _: database)
    passwords = [side.kafka.properties["sasl.password"] for side in filled.inputs if side.kafka is not None]
    assert passwords == ["new", "new"]
    assert len(filled.spec.inputs) == 1


def test_a_plan_is_replayed_after_the_self_join_was_edited() -> None:
    text = ORDERS.sql(PAIRS).replace("file: {path: orders.jsonl}", KAFKA % "sasl.password: old")
    old = load(text)
    now = load(text.replace("sasl.password: old", "sasl.password: new").replace("10' MINUTE", "9' MINUTE"))
    replayed = under_definition(now, definition(old))
    assert replayed.joins == old.joins
    assert [side.name for side in replayed.inputs] == ["orders", "b"]
    assert [side.kafka.properties for side in replayed.inputs if side.kafka] == [{"sasl.password": "new"}] * 2
    assert same_rows(definition(old), definition(replayed))


def test_a_job_may_declare_what_its_sql_read_again_and_keep_its_state() -> None:
    job, twin = (
        load(ORDERS.sql(PAIRS)),
        declared_twice(STEP % "", "{column: orders.order_id}, {column: b.order_id, as: next}"),
    )
    stored = {"left": ["order_id"], "right": ["order_id"]}
    old, new = signature(job, stored), signature(twin, stored)
    assert old == new
    other = signature(load(ORDERS.sql(PAIRS.replace(" b", " c").replace("b.", "c."))), stored)
    assert "the inputs were orders and b, they are now orders and c" in compare(old, other).refused[0]
