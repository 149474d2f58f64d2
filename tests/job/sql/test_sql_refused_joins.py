"""SQL of every kind of join that is no job: the place in the text, the reason and what to do."""

import pytest

from job.resources import problems
from job.sql_jobs import RATES, SEED_001, SEED_004

D = "d.time BETWEEN o.time AND o.time + 9"
R = "r.time BETWEEN d.time AND d.time + 9"
CHAIN = (
    f"SELECT r.id FROM orders o JOIN deliveries d ON d.order_id = o.id AND {D} JOIN returns r ON r.delivery_id = d.id"
)
SHIPPED = "SELECT o.order_id FROM orders o JOIN shipments s ON o.order_id = s.order_id"
DAY = "s.event_time = o.event_time"
WITHIN = "SELECT o.order_id FROM orders o JOIN shipments s WITHIN {} ON o.order_id = s.order_id"
SESSION = "WINDOW SESSION(INTERVAL '1' HOUR)"
RATED = "SELECT o.id FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.ts AS r ON o.currency = r.currency"
ORDERS_AS_OF = "orders FOR SYSTEM_TIME AS OF r.ts AS o"
LEFT = f"{SHIPPED.replace('JOIN', 'LEFT JOIN')} AND {DAY}"
HISTORY = "WITH ('join.history_retention' = '1h')"
ASOF = "SELECT o.id FROM orders o ASOF JOIN rates AS r"
WRITE_ASOF = "write ASOF JOIN rates ON <key> = r.<key> AND r.ts <= <event time>"

# Inputs, SQL, what stands at the place that is named (for the last time in the SQL), the reason, what to do.
AT = [
    # clauses of other systems
    (SEED_001, WITHIN.format("2 FURLONGS"), "WITHIN", "the unit is MILLISECOND", "JOIN b WITHIN 1 HOUR ON"),
    (SEED_001, WITHIN.format("(1 HOUR, 1 HOUR, 1 HOUR)"), "WITHIN", "hold one length, or two", "(1 HOUR, 2 HOURS)"),
    (SEED_001, WITHIN.format("()"), "WITHIN", "hold one length, or two", "(1 HOUR, 2 HOURS)"),
    (SEED_001, f"{WITHIN.format('1 HOUR')} WITHIN 2 HOURS", "WITHIN", "a second WITHIN of one join", "keep one"),
    (SEED_001, f"{WITHIN.format('1 HOUR')} EMIT CHANGES EMIT FINAL", "EMIT", "a second EMIT", "keep one"),
    (SEED_001, f"{WITHIN.format('1 HOUR')} WINDOW TUMBLING (SIZE 1 HOUR) GROUP BY o.order_id", "TUMBLING",
     "says which rows match, as WITHIN does", "GROUP BY ..., TUMBLE(<event time>, <length>) in its place"),
    (SEED_001, WITHIN.format("("), "WITHIN", "its bracket is not closed", "(1 HOUR, 2 HOURS)"),
    (SEED_001, WITHIN.format("(1 HOUR"), "WITHIN", "its bracket is not closed", "(1 HOUR, 2 HOURS)"),
    (SEED_001, WITHIN.format("(1 HOUR, soon)"), "WITHIN", "no INTERVAL and no number with a unit", "WITHIN (1 HOUR,"),
    (SEED_001, f"{WITHIN.format('1 HOUR')} WINDOW TUMBLING (SIZE 1 HOUR)", "WITHIN", "rows of one window", "leave it"),
    (SEED_001, f"{WITHIN.format('1 HOUR GRACE PERIOD 1 HOUR')} WITH ('join.allowed_lateness' = '1h')", "GRACE",
     "'join.allowed_lateness' says the same", "keep one of the two"),
    (SEED_001, f"{WITHIN.format('1 HOUR')} PARTITION BY o.order_id EMIT CHANGES", "PARTITION BY",
     "does not say the key of the output's records", "output.kafka.key"),
    (SEED_001, f"{SHIPPED} WINDOW TUMBLING (SIZE 1 HOUR, RETENTION 7 DAYS)", "RETENTION", "pull queries", "leave it"),
    (SEED_001, f"{SHIPPED} WINDOW TUMBLING (SIZE 1 HOUR, GRACE PERIOD 5 HOURS) "
     "WITH ('join.allowed_lateness' = '1h')", "GRACE", "says the same as GRACE PERIOD", "keep one"),
    (SEED_004, "SELECT o.id FROM orders o RIGHT JOIN deliveries d WITHIN 1 HOUR ON d.order_id = o.id "
     "JOIN returns r WITHIN 2 HOURS ON r.delivery_id = d.id", "WITHIN", "the latest row that is joined before",
     "r.time BETWEEN o.time - INTERVAL"),
    (SEED_001, "SELECT o.order_id FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(event_time), INTERVAL '1' HOUR)) o "
     "JOIN shipments s USING (order_id, window_start, window_end)",
     "shipments", "in no windows, and another side is", "TABLE(TUMBLE(TABLE shipments, DESCRIPTOR(<event time>)"),
    (SEED_001, "SELECT o.order_id FROM orders o "
     "JOIN HOP(orders, INTERVAL '1' HOUR, INTERVAL '2' HOUR) s ON o.order_id = s.order_id",
     "HOP", "a table function is written", "DESCRIPTOR(<event time>)"),
    (SEED_001, f"SELECT o.order_id FROM orders o JOIN shipments s ON o.order_id || s.order_id = s.order_id AND {DAY}",
     "shipments", "is no key: each side of one is computed of one input, and one side of s (rule J12)", "compare such"),
    # ASOF JOIN that is not understood is one fault
    (RATES, f"{ASOF} ON o.currency = r.currency AND o.ts > r.ts {HISTORY}", "o.ts > r.ts",
     "the last one before or at a time", WRITE_ASOF),
    (RATES, f"{ASOF} USING (currency, ts) {HISTORY}", "rates", "compares the times of its rows once", WRITE_ASOF),
    (RATES, f"{ASOF} ON o.currency = r.currency AND o.ts >= r.ts AND r.rate > 5 {HISTORY}", "rates",
     "compares the times of its rows once", WRITE_ASOF),
    (RATES, f"{ASOF.replace('rates', '(SELECT * FROM rates WHERE rate > 5)')} ON o.currency = r.currency AND "
     f"o.ts >= r.ts {HISTORY}", None, "an ASOF JOIN is an input, not a sub-query", "write its name"),
    # outer joins: a bound in WHERE is no bound of the join
    (SEED_001, f"{SHIPPED.replace('JOIN', 'LEFT JOIN')} WHERE {DAY}",
     "shipments", "no bound on o.event_time and s.event_time", "BETWEEN"),
    (SEED_001, SHIPPED.replace("JOIN", "LEFT JOIN"),
     "shipments", "no bound on o.event_time and s.event_time", "BETWEEN"),
    # windows
    (SEED_001, f"{SHIPPED} WINDOW TUMBLING", "TUMBLING", "needs SIZE", "write WINDOW TUMBLING(INTERVAL '1' HOUR)"),
    (SEED_001, f"{SHIPPED} WINDOW SLIDING(INTERVAL '1' HOUR)", "SLIDING", "needs SIZE and SLIDE", "SLIDE INTERVAL"),
    (SEED_001, f"{SHIPPED} WINDOW SLIDING(SIZE INTERVAL '1' HOUR, SLIDE INTERVAL '1' DAY)",
     "SLIDING", "longer", "SLIDE"),
    (SEED_001, f"{SHIPPED} WINDOW SESSION(5)", "5", "the length is no INTERVAL and no number", "WINDOW SESSION("),
    (SEED_001, f"{SHIPPED} WINDOW SESSION(GAP 1)",
     "GAP", "the length is no INTERVAL and no number", "WINDOW SESSION("),
    (SEED_001, f"{SHIPPED} WINDOW TUMBLING(INTERVAL '0' DAY)",
     "INTERVAL", "more than none", "WINDOW TUMBLING(INTERVAL"),
    (SEED_001, f"{SHIPPED} WINDOW TUMBLING(INTERVAL '99999999999999' DAY)",
     "INTERVAL", "at most 292 years", "WINDOW TUMBLING(INTERVAL"),
    (SEED_001, f"{SHIPPED} WINDOW TUMBLING(INTERVAL '1' YEAR)", "INTERVAL", "the unit is", "WINDOW TUMBLING(INTERVAL"),
    (SEED_001, f"{SHIPPED} WINDOW TUMBLING(GAP INTERVAL '1' DAY)", "GAP", "is not expected here", "WINDOW TUMBLING("),
    (SEED_001, f"{SHIPPED} WINDOW SESSION(INTERVAL '1' DAY) WINDOW SESSION(INTERVAL '1' DAY)",
     None, "a second", "keep one"),
    (SEED_001, f"{SHIPPED} WINDOW SESSION(INTERVAL '1' DAY) WITH ('join.retention' = '1h')", "'join.retention'",
     "is not an option of this kind of join (session)",
     "its options are join.type, join.allowed_lateness and join.late_data"),
    (SEED_001, f"{SHIPPED.replace('FROM', ', window_end AS order_id FROM')} WINDOW SESSION(INTERVAL '1' DAY)",
     "window_end", "two output columns are named 'order_id'", "name one with AS"),
    (SEED_001, f"SELECT window_start FROM orders o JOIN shipments s ON o.order_id = s.order_id AND {DAY}",
     "window_start", "no input has a column 'window_start'", ""),
    (SEED_001, "SELECT o.order_id FROM orders o JOIN shipments s ON s.carrier = 'x' WINDOW SESSION(INTERVAL '1' DAY)",
     "shipments", "is no key: a constant says nothing", "write CASE WHEN o.event_time IS NOT NULL THEN 'x' END"),
    (SEED_004, f"{CHAIN} WINDOW SESSION(INTERVAL '1' DAY)",
     None, "no step can follow, because a session may begin any time before it ends", "make it the last step"),
    # chains
    (SEED_004, CHAIN, "returns", "the join has no bound on d.time and r.time", "write r.time BETWEEN d.time AND"),
    (SEED_004, f"{CHAIN} AND r.time > o.time", "returns", "one side only", "write r.time BETWEEN d.time"),
    (SEED_004, f"{CHAIN} AND r.time < d.time AND r.time > d.time + 1", "returns", "nothing can match", "the signs"),
    (SEED_004, f"{CHAIN} AND r.time < o.time AND r.time > d.time", "returns", "nothing can match", "the signs"),
    (SEED_004, f"{CHAIN} AND r.time = d.time + o.id",
     "r.time", "it cannot depend on a column (rule J8)", "an INTERVAL"),
    (SEED_004, f"{CHAIN} AND r.time - d.time = d.time - o.time", "r.time", "cannot depend on a column", "INTERVAL"),
    (SEED_004, f"{CHAIN} AND {R} AND (r.time > o.time OR o.id = 1)",
     "r.time > o.time", "an OR around a bound", "outside"),
    (SEED_004, CHAIN.replace("r.delivery_id = d.id", R), "returns", "no equality of columns", "'join.broadcast' = 'r'"),
    (SEED_004, CHAIN.replace(f"AND {D}", f"AND {D} AND r.id = 1") + f" AND {R}", "r.id = 1", "is joined further down",
     "write it into the ON of that JOIN"),
    (SEED_004, f"SELECT d.id FROM orders o JOIN deliveries d ON d.order_id = o.id AND {D}",
     "orders", "returns are not joined",
     "take them out of spec.inputs"),
    (SEED_004, f"SELECT d.id FROM returns r JOIN deliveries d ON r.delivery_id = d.id AND {R} JOIN orders o "
     f"ON d.order_id = o.id AND {D}", "returns", "the first input of the job, which is 'orders'", "write FROM orders"),
    (SEED_004, f"{CHAIN} AND {R} WITH ('join.lower_bound' = '0s')",
     "'0s'", "does not say which JOIN is meant", "each ON"),
    (SEED_004, f"{CHAIN} AND {R} WITH ('join.retention' = '5ms')",
     "'5ms'", "shorter than the wider bound, 9ms", "as long"),
    (SEED_004, f"{CHAIN} AND {R} WITH ('join.broadcast' = 'r')",
     None, "'r' is no input that is joined without", "leave it"),
    (SEED_001, f"SELECT o.amount FROM orders o LEFT JOIN shipments s ON {DAY} WITH ('join.broadcast' = 'orders')",
     "'orders')", "every row of 'o' is emitted", "name the other side"),
    # options
    (SEED_001, f"{LEFT} WITH ('join.allowed_lateness' = '-5s')", "'-5s'", "must not be negative", "length of time"),
    (SEED_001, f"{LEFT} WITH ('join.late_data' = 'keep')", "'keep'", "is drop, reopen or dlq", "drop"),
    (SEED_001, f"{LEFT} WITH ('join.allowed_lateness' = '5s', 'join.retention' = '9s')",
     "'5s'", "says the same", "keep one"),
    (SEED_001, f"{LEFT} WITH ('join.grace' = '5s')",
     "'join.grace'", "is not an option of this kind of join", "join.type"),
    # select list
    (SEED_001, SHIPPED.replace("o.order_id FROM", "o.amount * 2 FROM") + f" AND {DAY}",
     "o.amount", "no name of its own",
     "write <expression> AS <name>"),
    (SEED_001, SHIPPED.replace("o.order_id FROM", "COUNT(s.carrier) AS n FROM") + f" AND {DAY}", None,
     "is computed over many rows", "write GROUP BY with a window"),
    (SEED_001, SHIPPED.replace("o.order_id FROM", "o.order_id, s.carrier AS order_id FROM") + f" AND {DAY}",
     "s.carrier",
     "two output columns are named 'order_id' (rule J10)", "name one with AS"),
    (SEED_001, SHIPPED.replace("o.order_id FROM", "o.amount, o.* FROM") + f" AND {DAY}", "o.* FROM",
     "two output columns are named 'amount' (rule J10)", "one by one"),
    (SEED_001, SHIPPED.replace("o.order_id FROM", "o.* EXCEPT (amount) FROM") + f" AND {DAY}",
     "o.*", "a star with more", "a.*"),
    # as of
    (RATES, f"{RATED} {HISTORY.replace('1h', '0s')}", "'0s'", "must be more than 0", "0"),
    (RATES, RATED, "rates", "does not say how long old versions are kept", "WITH ('join.history_retention' = '1h')"),
    (RATES, f"{RATED.replace('o.ts', 'o.id')} {HISTORY}", "rates", "the event time of the other input", "AS OF o.ts"),
    (RATES, f"{RATED.replace('JOIN', 'RIGHT JOIN')} {HISTORY}",
     "rates", "JOIN and LEFT JOIN only (rule A4)", "write one"),
    (RATES, f"SELECT r.rate FROM rates r JOIN {ORDERS_AS_OF} ON o.currency = r.currency {HISTORY}",
     "orders FOR", "a table is not the first input of a job", "list 'orders' behind 'rates'"),
    (RATES, "SELECT r.rate FROM rates FOR SYSTEM_TIME AS OF o.ts AS r JOIN orders o ON o.currency = r.currency "
     f"AND o.ts = r.ts {HISTORY}", "rates", "FOR SYSTEM_TIME belongs to the table", "write FROM <stream>"),
    (SEED_004, f"{CHAIN.replace('returns r', 'returns FOR SYSTEM_TIME AS OF d.id AS r')} {HISTORY}", "returns",
     "the event time of an input that is joined before", "AS OF o.time or d.time"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("inputs", "sql", "at", "why", "todo"), AT, ids=[f"{why}: {sql[-40:]}" for _, sql, _, why, _ in AT]
)
def test_refused_at_its_place(inputs, sql, at, why, todo):
    (problem,) = problems(inputs.sql(sql))
    assert problem.path == "spec.sql"
    assert why in problem.message
    assert todo in problem.message
    if at is not None:
        assert problem.message.startswith(f"line 1, column {sql.rindex(at) + 1}, `")
