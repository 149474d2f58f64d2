"""Every form of the seeds, and of what the steps of a job can say: the SQL beside the joins and select that it is."""

import re
from pathlib import Path

import pytest

from job.sql_jobs import RATES, SEED_001, SEED_004, Inputs
from joinery_runtime.core.compile.jobs import compile_join
from joinery_runtime.job import definition, parse_job
from joinery_runtime.job.sql import SqlInput, translate

O_S = "keys: {orders.order_id: shipments.order_id}"
DAY = "interval: {of: orders, lower: 0s, upper: 24h}"
WITHIN = "s.event_time BETWEEN o.event_time AND o.event_time + INTERVAL '24' HOUR"
ON = f"ON o.order_id = s.order_id AND {WITHIN}"
OUT = "{column: orders.order_id}, {column: shipments.shipment_id}"
SELECT = "SELECT o.order_id, s.shipment_id"
O_STAR = (
    "{column: orders.order_id, as: orders_order_id}, {column: orders.customer_id}, {column: orders.amount}, "
    "{column: orders.event_time, as: orders_event_time}"
)
S_STAR = (
    "{column: shipments.shipment_id}, {column: shipments.order_id, as: shipments_order_id}, "
    "{column: shipments.carrier}, {column: shipments.event_time, as: shipments_event_time}"
)
BARE = f"{SELECT} FROM orders o JOIN shipments s ON o.order_id = s.order_id"


def one(rule, *more):
    return f"{{right: shipments, {', '.join([O_S, rule, *more])}}}"


SEED_001_FORMS = {
    "between in ON": (
        f"SELECT o.order_id, o.customer_id, s.shipment_id, s.carrier FROM orders o JOIN shipments s {ON} EMIT CHANGES;",
        one(DAY),
        "{column: orders.order_id}, {column: orders.customer_id}, {column: shipments.shipment_id}, "
        "{column: shipments.carrier}",
    ),
    "between in WHERE": (f"{BARE} WHERE {WITHIN}", one(DAY), OUT),
    "bounds as options": (
        f"{BARE} EMIT CHANGES WITH ('join.type' = 'interval', 'join.lower_bound' = '0s', 'join.upper_bound' = '24h', "
        "'join.retention' = '48h')",
        one(DAY, "allowedLateness: 24h"),
        OUT,
    ),
    "tumbling": (f"{BARE} WINDOW TUMBLING(INTERVAL '1' HOUR) EMIT CHANGES;", one("window: {tumbling: 1h}"), OUT),
    "tumbling by its size": (
        f"{BARE} WINDOW TUMBLING(SIZE INTERVAL '90' MINUTES)",
        one("window: {tumbling: 90m}"),
        OUT,
    ),
    "sliding": (
        f"{BARE} WINDOW SLIDING(SIZE INTERVAL '1' HOUR, SLIDE INTERVAL '10' MINUTE) EMIT CHANGES;",
        one("window: {hopping: {size: 1h, slide: 10m}}"),
        OUT,
    ),
    "hopping": (
        f"{BARE} WINDOW HOPPING(INTERVAL '1' HOUR, INTERVAL '10' MINUTE) WITH ('join.type' = 'sliding')",
        one("window: {hopping: {size: 1h, slide: 10m}}"),
        OUT,
    ),
    "session": (f"{BARE} WINDOW SESSION(INTERVAL '30' SECOND)", one("window: {session: {gap: 30s}}"), OUT),
    "session by its gap": (
        f"{BARE} WITH ('join.type' = 'session') WINDOW SESSION(GAP INTERVAL '30' SECOND) EMIT CHANGES",
        one("window: {session: {gap: 30s}}"),
        OUT,
    ),
    "outer window": (
        f"{BARE.replace('JOIN', 'FULL OUTER JOIN')} AND o.amount > 3 WINDOW TUMBLING(INTERVAL '1' HOUR) "
        "WITH ('join.allowed_lateness' = '5m')",
        one("type: full, window: {tumbling: 1h}", "where: orders.amount > 3, allowedLateness: 5m"),
        OUT,
    ),
    "times are compared in a window": (
        f"{BARE} AND o.event_time < s.event_time WINDOW TUMBLING(INTERVAL '1' HOUR)",
        one("window: {tumbling: 1h}", "where: orders.event_time < shipments.event_time"),
        OUT,
    ),
    "the window's own columns": (
        f"{BARE.replace('SELECT', 'SELECT window_start, window_end,')} WINDOW TUMBLING(INTERVAL '1' HOUR)",
        one("window: {tumbling: 1h}"),
        f"{{column: window_start}}, {{column: window_end}}, {OUT}",
    ),
    "left": (f"{SELECT} FROM orders o LEFT JOIN shipments s {ON}", one(f"type: left, {DAY}"), OUT),
    "right": (f"{SELECT} FROM orders o RIGHT JOIN shipments s {ON}", one(f"type: right, {DAY}"), OUT),
    "full": (f"{SELECT} FROM orders o FULL OUTER JOIN shipments s {ON}", one(f"type: full, {DAY}"), OUT),
    "left from the other side": (
        f"{SELECT} FROM shipments s LEFT OUTER JOIN orders o {ON}",
        one(f"type: right, {DAY}"),
        OUT,
    ),
    "options from the other side": (
        f"{SELECT} FROM shipments s RIGHT JOIN orders o ON s.order_id = o.order_id "
        "WITH ('join.lower_bound' = '-24h', 'join.upper_bound' = '0s')",
        one(f"type: left, {DAY}"),
        OUT,
    ),
    "what ON says of one side": (
        f"{SELECT} FROM orders o LEFT JOIN shipments s {ON} AND o.amount > 10 AND s.carrier IS NULL",
        one(f"type: left, {DAY}", 'where: "orders.amount > 10 AND shipments.carrier IS NULL"'),
        OUT,
    ),
    "late data": (
        f"{SELECT} FROM orders o JOIN shipments s {ON} "
        "WITH ('join.late_data' = 'reopen', 'join.allowed_lateness' = '1h')",
        one(DAY, "lateData: reopen, allowedLateness: 1h"),
        OUT,
    ),
    "expressions": (
        f"SELECT o.order_id AS id, o.amount * 2 AS twice, COALESCE(s.carrier, 'none') AS carrier /* x */, (o.amount) "
        f"FROM orders o LEFT JOIN shipments s {ON}",
        one(f"type: left, {DAY}"),
        "{column: orders.order_id, as: id}, {expression: orders.amount * 2, as: twice}, "
        "{expression: \"COALESCE(shipments.carrier, 'none')\", as: carrier}, {column: orders.amount}",
    ),
    "stars": (f"SELECT o.*, s.* FROM orders o JOIN shipments s {ON}", one(DAY), f"{O_STAR}, {S_STAR}"),
    "stars the other way round": (
        f"SELECT s.*, (o.*), o.amount * 2 AS twice FROM shipments s JOIN orders o {ON}",
        one(DAY),
        f"{S_STAR}, {O_STAR}, {{expression: orders.amount * 2, as: twice}}",
    ),
    "one star for all": (f"SELECT * FROM orders o JOIN shipments s {ON}", one(DAY), f"{O_STAR}, {S_STAR}"),
    "the star of one": (
        f"SELECT s.*, o.amount AS a FROM orders o JOIN shipments s {ON}",
        one(DAY),
        "{column: shipments.shipment_id}, {column: shipments.order_id}, {column: shipments.carrier}, "
        "{column: shipments.event_time}, {column: orders.amount, as: a}",
    ),
    "WITHIN": (
        f"{SELECT} FROM orders o JOIN shipments s WITHIN 2 HOURS ON o.order_id = s.order_id EMIT CHANGES;",
        one("interval: {of: orders, lower: -2h, upper: 2h}"),
        OUT,
    ),
    "WITHIN behind a comma": (
        f"{SELECT} FROM orders o, shipments s WITHIN 2 HOURS WHERE o.order_id = s.order_id;",
        one("interval: {of: orders, lower: -2h, upper: 2h}"),
        OUT,
    ),
    "WITHIN before and after, with grace": (
        f"{SELECT} FROM orders o LEFT JOIN shipments s WITHIN (0 SECONDS, 1 DAY) GRACE PERIOD 5 MINUTES "
        "ON o.order_id = s.order_id EMIT CHANGES",
        one(f"type: left, {DAY}", "allowedLateness: 5m"),
        OUT,
    ),
    "WITHIN from the other side, of a sub-query": (
        f"{SELECT} FROM shipments s JOIN (SELECT * FROM orders) o WITHIN (INTERVAL '24' HOUR, 0 HOURS) "
        "ON o.order_id = s.order_id",
        one(DAY),
        OUT,
    ),
    "a window behind FROM, with grace": (
        f"{BARE} WINDOW HOPPING (SIZE 1 HOUR, ADVANCE BY 10 MINUTES, GRACE PERIOD 5 MINUTES) WHERE o.amount > 3",
        one("window: {hopping: {size: 1h, slide: 10m}}", "where: orders.amount > 3, allowedLateness: 5m"),
        OUT,
    ),
    "star and more": (
        f"SELECT o.*, s.shipment_id, s.event_time AS shipped_at FROM orders o JOIN shipments s {ON}",
        one(DAY),
        "{column: orders.order_id}, {column: orders.customer_id}, {column: orders.amount}, "
        "{column: orders.event_time}, {column: shipments.shipment_id}, {column: shipments.event_time, as: shipped_at}",
    ),
}  # fmt: skip

D = "d.time BETWEEN o.time - 1 AND o.time + 3"
R = "r.time BETWEEN d.time - 1 AND d.time + 4"
D_STEP = "interval: {of: orders, lower: -1ms, upper: 3ms}"
R_STEP = "interval: {of: deliveries, lower: -1ms, upper: 4ms}"
D_KEYS, R_KEYS = "keys: {orders.id: deliveries.order_id}", "keys: {deliveries.id: returns.delivery_id}"
O_D = "FROM orders o JOIN deliveries d ON d.order_id = o.id"
BOTH = f"{{right: deliveries, {D_KEYS}, {D_STEP}}}, {{right: returns, {R_KEYS}, {R_STEP}}}"
IDS = "{column: orders.id, as: o}, {column: returns.id, as: r}"


def chain(middle, last, more=""):
    return f"SELECT o.id AS o, r.id AS r {O_D} AND {middle} JOIN returns r ON r.delivery_id = d.id AND {last} {more}"


def steps(first, second):
    return f"{{right: deliveries, {D_KEYS}, {first}}}, {{right: returns, {R_KEYS}, {second}}}"


SEED_004_FORMS = {
    "stars": (
        f"SELECT o.*, d.status, r.* {O_D} AND {D} JOIN returns r ON r.delivery_id = d.id AND {R}",
        BOTH,
        "{column: orders.id, as: orders_id}, {column: orders.region}, {column: orders.time, as: orders_time}, "
        "{column: deliveries.status}, {column: returns.id, as: returns_id}, {column: returns.delivery_id}, "
        "{column: returns.order_id}, {column: returns.time, as: returns_time}",
    ),
    "time only": (
        f"SELECT o.id AS o, r.id AS r FROM orders o join deliveries d ON {D} join returns r ON {R} "
        "WITH ('join.broadcast' = 'd, returns')",
        f"{{right: deliveries, keys: {{}}, broadcast: deliveries, {D_STEP}}}, "
        f"{{right: returns, keys: {{}}, broadcast: returns, {R_STEP}}}",
        IDS,
    ),
    "chain": (chain(D, R), BOTH, IDS),
    "the first two the other way round": (
        f"SELECT o.id AS o, r.id AS r FROM deliveries d LEFT JOIN orders o ON o.id = d.order_id AND {D} "
        f"JOIN returns r ON r.delivery_id = d.id AND {R}",
        steps(f"type: right, {D_STEP}", R_STEP),
        IDS,
    ),
    "sides of the bounds the other way round": (
        chain("o.time >= d.time - 3 AND o.time - 1 <= d.time", "d.time BETWEEN r.time - 4 AND r.time + 1"), BOTH, IDS,
    ),
    "all in WHERE": (
        "SELECT o.id AS o, r.id AS r FROM orders o, deliveries d, returns r "
        f"WHERE {R} AND d.order_id = o.id AND {D} AND r.delivery_id = d.id",
        BOTH,
        IDS,
    ),
    "all in WHERE of cross joins": (
        "SELECT o.id AS o, r.id AS r FROM orders o CROSS JOIN deliveries d CROSS JOIN returns r "
        f"WHERE {R} AND d.order_id = o.id AND {D} AND r.delivery_id = d.id",
        BOTH,
        IDS,
    ),
    "a bound stands at a later join": (
        f"SELECT o.id AS o, r.id AS r {O_D} JOIN returns r ON r.delivery_id = d.id AND {R} AND {D}", BOTH, IDS,
    ),
    "the tightest": (
        chain(f"{D} AND d.time > o.time - 1", f"{R} AND r.time <= d.time + 2 AND r.time < d.time + 9"),
        steps("interval: {of: orders, lower: 0, upper: 3ms}", "interval: {of: deliveries, lower: -1ms, upper: 2ms}"),
        IDS,
    ),
    "WITHIN counts from the latest row before": (
        "SELECT o.id AS o, r.id AS r FROM orders o JOIN deliveries d WITHIN (1 MILLISECOND, 3 MILLISECONDS) "
        "ON d.order_id = o.id LEFT JOIN returns r WITHIN (2 MILLISECONDS, 4 MILLISECONDS) GRACE PERIOD 1 SECOND "
        "ON r.delivery_id = d.id",
        steps(
            D_STEP,
            "type: left, interval: {of: orders, lower: -2ms, upper: 7ms}, allowedLateness: 1s, where: \"returns.time "
            "BETWEEN GREATEST(orders.time, deliveries.time) - 2 AND GREATEST(orders.time, deliveries.time) + 4\"",
        ),
        IDS,
    ),
    "a bound from the first input": (
        chain(D, "r.time BETWEEN o.time AND o.time + 9"),
        steps(D_STEP, "interval: {of: orders, lower: 0, upper: 9ms}"),
        IDS,
    ),
    # d is in [o - 1, o + 3]: r <= d + 4 is r <= o + 7 at most
    "a bound from either of two inputs": (
        chain(D, "r.time >= o.time AND r.time <= d.time + 4"),
        steps(D_STEP, "interval: {of: orders, lower: 0, upper: 7ms}, where: returns.time <= deliveries.time + 4"),
        IDS,
    ),
    "a bound of integers that is written as an interval": (
        chain(D, "r.time >= o.time AND d.time + INTERVAL '1' SECOND >= r.time"),
        steps(D_STEP, "interval: {of: orders, lower: 0, upper: 1003ms}, where: deliveries.time + 1000 >= returns.time"),
        IDS,
    ),
    # r >= o - 2 is r >= d - 5 at least, less tight than r >= d - 1; r <= o + 2 is r <= d + 3 at most, tighter
    "a second input makes the bound tighter": (
        chain(D, f"{R} AND r.time BETWEEN o.time - 2 AND o.time + 2"),
        steps(
            D_STEP,
            'interval: {of: deliveries, lower: -1ms, upper: 3ms}, '
            'where: "returns.time BETWEEN orders.time - 2 AND orders.time + 2"',
        ),
        IDS,
    ),
    "keys of two inputs": (
        chain(D, f"{R} AND o.id = r.order_id"),
        f"{{right: deliveries, {D_KEYS}, {D_STEP}}}, {{right: returns, {R_STEP}, "
        "keys: {deliveries.id: returns.delivery_id, orders.id: returns.order_id}}",
        IDS,
    ),
    "conditions go where all they read is known": (
        chain(D, f"{R} AND o.region = 'EU'", "WHERE d.status = 'x' AND r.id <> o.id"),
        steps(f"{D_STEP}, where: \"orders.region = 'EU' AND deliveries.status = 'x'\"",
              f"{R_STEP}, where: returns.id <> orders.id"),
        IDS,
    ),
    "WHERE before an outer join": (
        f"SELECT o.id AS o, r.id AS r {O_D} AND {D} LEFT JOIN returns r ON r.delivery_id = d.id AND {R} "
        "AND d.status = 'y' WHERE o.region = 'EU'",
        steps(f"{D_STEP}, where: orders.region = 'EU'", f"type: left, {R_STEP}, where: deliveries.status = 'y'"),
        IDS,
    ),
    "WHERE behind an outer join": (
        f"SELECT o.id AS o, r.id AS r {O_D.replace('JOIN', 'LEFT JOIN')} AND {D} JOIN returns r "
        f"ON r.delivery_id = d.id AND {R} WHERE d.status = 'y' AND o.region = 'EU'",
        steps(f"type: left, {D_STEP}", f"{R_STEP}, where: \"deliveries.status = 'y' AND orders.region = 'EU'\""),
        IDS,
    ),
    "ON of a right join may drop rows of the left": (
        f"SELECT o.id AS o, r.id AS r {O_D} AND {D} RIGHT JOIN returns r ON r.delivery_id = d.id AND {R} "
        "AND d.status = 'y'",
        steps(f"{D_STEP}, where: deliveries.status = 'y'", f"type: right, {R_STEP}"),
        IDS,
    ),
    "ON of a full join may not": (
        f"SELECT o.id AS o, r.id AS r {O_D} AND {D} FULL JOIN returns r ON r.delivery_id = d.id AND {R} "
        "AND d.status = 'y'",
        steps(D_STEP, f"type: full, {R_STEP}, where: deliveries.status = 'y'"),
        IDS,
    ),
    "retention holds for every step": (
        chain(D, R, "WITH ('join.retention' = '10ms', 'join.late_data' = 'reopen')"),
        steps(f"{D_STEP}, allowedLateness: 7ms, lateData: reopen", f"{R_STEP}, allowedLateness: 6ms, lateData: reopen"),
        IDS,
    ),
}  # fmt: skip

AS_OF = "FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON o.currency = r.currency"
AS_OF_KEYS = "right: rates, keys: {orders.currency: rates.currency}"
EUROS = "SELECT o.id, o.amount * r.rate AS euros"
EUROS_SELECT = "{column: orders.id}, {expression: orders.amount * rates.rate, as: euros}"

ASOF_ON = "o.currency = r.currency AND r.ts <= o.ts"
AS_OF_FORMS = {
    "as of": (
        f"{EUROS} {AS_OF} WITH ('join.history_retention' = '1h', 'join.grace' = '10m')",
        f"{{{AS_OF_KEYS}, asOf: {{historyRetention: 1h, grace: 10m}}}}",
        EUROS_SELECT,
    ),
    **{
        f"ASOF JOIN ... ON {brackets}": (
            f"{EUROS} FROM orders o ASOF JOIN rates r ON {brackets.format(ASOF_ON)} "
            "WITH ('join.history_retention' = '1h')",
            f"{{{AS_OF_KEYS}, asOf: {{historyRetention: 1h}}}}",
            EUROS_SELECT,
        )
        for brackets in ("{}", "({})", "(({}))")
    },
    "as of, left": (
        f"{EUROS} {AS_OF.replace('JOIN', 'LEFT JOIN')} AND r.rate > 0 "
        "WITH ('join.type' = 'asof', 'join.history_retention' = '1h')",
        f"{{{AS_OF_KEYS}, type: left, asOf: {{historyRetention: 1h}}, where: rates.rate > 0}}",
        EUROS_SELECT,
    ),
}

PAID = Inputs(
    {"rates": "currency", "fees": "method"}, orders="id int64, currency string, amount double, ts timestamp",
    payments="id int64, method string, ts timestamp", rates="currency string, rate double, ts timestamp",
    fees="method string, fee double, ts timestamp",
)  # fmt: skip
PAID_STEP = (
    "{right: payments, keys: {orders.id: payments.id}, interval: {of: orders, lower: 0s, upper: 1h}, lateData: reopen}"
)
AT_PAYMENTS = "asOf: {of: payments, historyRetention: 1h}"
FEES_STEP = f"{{right: fees, type: left, keys: {{payments.method: fees.method}}, {AT_PAYMENTS}}}"

MIXED_FORMS = {
    "a join, then a lookup at each input's time": (
        "SELECT o.id, f.fee FROM orders o JOIN payments p ON p.id = o.id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL '1' "
        "HOUR JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON o.currency = r.currency LEFT JOIN fees FOR SYSTEM_TIME AS "
        "OF p.ts AS f ON p.method = f.method WITH ('join.history_retention' = '1h', 'join.late_data' = 'reopen')",
        f"{PAID_STEP}, {{{AS_OF_KEYS}, asOf: {{historyRetention: 1h}}}}, {FEES_STEP}",
        "{column: orders.id}, {column: fees.fee}",
    ),
}

FORMS = [
    pytest.param(inputs, *form, id=name)
    for inputs, forms in (
        *((SEED_001, SEED_001_FORMS), (SEED_004, SEED_004_FORMS)),
        *((RATES, AS_OF_FORMS), (PAID, MIXED_FORMS)),
    )
    for name, form in forms.items()
]


@pytest.mark.parametrize(("inputs", "sql", "joins", "select"), FORMS)
def test_sql_is_the_same_job_as_its_joins_and_select(inputs, sql, joins, select):
    job, same = (parse_job(text, "job.yaml") for text in (inputs.sql(sql), inputs.yaml(joins, select)))
    assert job.joins == same.joins
    assert job.select == same.select
    assert job.output_columns == same.output_columns
    assert definition(job) == definition(same)
    assert compile_join(job) == compile_join(same)


PAGE = {
    "orders": ("order_id", "customer", "amount", "currency", "region", "ts"),
    "payments": ("order_id", "method", "ts"),
    "deliveries": ("id", "order_id", "driver", "ts"),
    "returns": ("delivery_id", "reason", "ts"),
    "shipments": ("order_id", "shipment_id", "ts"),
    "rates": ("currency", "rate", "ts"),
}


def test_the_examples_of_the_page_are_understood():
    page = (Path(__file__).parents[3] / "docs" / "sql.md").read_text(encoding="utf-8")
    blocks = [block.removeprefix("sql\n") for block in page.split("```")[1::2] if "SELECT" in block]
    examples = [block if block.startswith("WITH") else block[block.index("SELECT") :] for block in blocks]
    assert len(examples) == 12
    for sql in examples:
        tables = tuple(
            SqlInput(name, columns, "ts") for name, columns in PAGE.items() if re.search(rf"[ (]{name}[ ,]", sql)
        )
        assert translate(sql, tables).problems == ()
