"""WITH, sub-queries in FROM and USING: the same job as one SELECT, and what is rejected."""

from __future__ import annotations

import pytest

from joinery_runtime.job.sql import SqlInput, Translation, check_shape, translate

ORDERS = SqlInput("orders", ("order_id", "country", "amount", "ts"), "ts")
PAYMENTS = SqlInput("payments", ("order_id", "method", "ts"), "ts")
ITEMS = SqlInput("items", ("order_id", "n", "ts"), "ts")
ONE, TWO, THREE = (ORDERS,), (ORDERS, PAYMENTS), (ORDERS, PAYMENTS, ITEMS)

KEY = "o.order_id = p.order_id"
HOUR = "p.ts BETWEEN o.ts AND o.ts + INTERVAL '1' HOUR"
JOIN = f"FROM orders o JOIN payments p ON {KEY} AND {HOUR}"
PER_HOUR = "TUMBLE(ts, INTERVAL '1' HOUR)"
PAID = "(SELECT order_id, ts, COALESCE(method, '-') AS m FROM payments)"
CASE = "CASE WHEN NOT p.ts IS NULL THEN"
LARGE = "SELECT * FROM orders WHERE amount > 5"
COUNTED = f"SELECT country AS c, COUNT(*) AS n, window_end FROM orders GROUP BY country, {PER_HOUR}"


def translated(sql: str, tables: tuple[SqlInput, ...]) -> Translation:
    translation = translate(sql, tables)
    assert translation.problems == ()
    assert check_shape(sql) == ()
    return translation


SAME = [
    # columns and conditions of one input
    ("SELECT id, a FROM (SELECT order_id AS id, amount + 1 AS a FROM orders) o",
     "SELECT order_id AS id, amount + 1 AS a FROM orders", ONE),
    ("WITH orders AS (SELECT * FROM orders WHERE amount > 3), b AS (SELECT order_id AS id FROM orders) "
     "SELECT b.id FROM b WHERE id <> 'q'",
     "SELECT order_id AS id FROM orders WHERE amount > 3 AND order_id <> 'q'", ONE),
    ("WITH unread AS (SELECT country FROM orders WHERE amount > 3) SELECT amount FROM orders",
     "SELECT amount FROM orders", ONE),
    ("SELECT * FROM (SELECT o.country, o.amount * 2 AS amount FROM orders AS o) AS o",
     "SELECT country, amount * 2 AS amount FROM orders", ONE),
    ("WITH o AS (SELECT order_id AS id, ts AS at FROM orders) SELECT id, p.method FROM o JOIN payments p "
     "ON o.id = p.order_id AND p.ts BETWEEN o.at AND o.at + INTERVAL '1' HOUR",
     f"SELECT o.order_id AS id, p.method {JOIN}", TWO),
    (f"SELECT o.order_id FROM orders o WHERE EXISTS (SELECT 1 FROM (SELECT * FROM payments WHERE method = 'a') p "
     f"WHERE {KEY} AND {HOUR})",
     f"SELECT o.order_id FROM orders o WHERE EXISTS (SELECT 1 FROM payments p WHERE p.method = 'a' AND {KEY} "
     f"AND {HOUR})", TWO),
    ("WITH x AS (SELECT order_id AS k, ts AS t FROM orders), y AS (SELECT order_id AS j, ts FROM payments) SELECT k "
     "FROM x WHERE EXISTS (SELECT 1 FROM y WHERE j = k AND y.ts BETWEEN t AND t + INTERVAL '1' HOUR)",
     f"SELECT o.order_id AS k FROM orders o WHERE EXISTS (SELECT 1 FROM payments p WHERE {KEY} AND {HOUR})", TWO),
    # a name that the sub-query hides means the outer one, also if the input has it
    ("SELECT country FROM orders WHERE EXISTS (SELECT 1 FROM (SELECT order_id AS j, ts AS at FROM payments) z "
     "WHERE z.j = order_id AND at BETWEEN ts AND ts + INTERVAL '1' HOUR)",
     f"SELECT country FROM orders o WHERE EXISTS (SELECT 1 FROM payments p WHERE {KEY} AND {HOUR})", TWO),
    ("SELECT country, COUNT(*) AS n FROM (SELECT country, ts FROM orders WHERE amount > 1) o "
     f"GROUP BY country, {PER_HOUR}",
     f"SELECT country, COUNT(*) AS n FROM orders WHERE amount > 1 GROUP BY country, {PER_HOUR}", ONE),
    # a join, followed by a condition, by a join, by groups
    (f"SELECT j.c, method FROM (SELECT o.country AS c, p.method {JOIN}) j WHERE j.c > 'A'",
     f"SELECT o.country AS c, p.method {JOIN} WHERE o.country > 'A'", TWO),
    (f"WITH j AS (SELECT o.order_id, o.ts, p.method {JOIN} WHERE p.method <> 'x') SELECT j.method, i.n FROM j "
     "LEFT JOIN items i ON j.order_id = i.order_id AND i.ts BETWEEN j.ts AND j.ts + INTERVAL '1' DAY",
     f"SELECT p.method, i.n {JOIN} LEFT JOIN items i ON o.order_id = i.order_id AND i.ts BETWEEN o.ts AND "
     "o.ts + INTERVAL '1' DAY WHERE p.method <> 'x'", THREE),
    (f"SELECT c, window_end, SUM(a) AS s FROM (SELECT o.country AS c, o.amount AS a, p.ts AS at {JOIN}) j "
     "GROUP BY c, TUMBLE(at, INTERVAL '1' HOUR)",
     f"SELECT o.country AS c, window_end, SUM(o.amount) AS s {JOIN} GROUP BY o.country, "
     "TUMBLE(p.ts, INTERVAL '1' HOUR)", TWO),
    # groups, and what is around them
    (f"SELECT c, n AS total FROM ({COUNTED}) g WHERE n > 5 AND c <> 'x'",
     f"SELECT country AS c, COUNT(*) AS total FROM orders GROUP BY country, {PER_HOUR} "
     "HAVING COUNT(*) > 5 AND country <> 'x'", ONE),
    (f"WITH g AS ({COUNTED} HAVING SUM(amount) > 1) SELECT n FROM g WHERE n > 5",
     f"SELECT COUNT(*) AS n FROM orders GROUP BY country, {PER_HOUR} HAVING SUM(amount) > 1 AND COUNT(*) > 5", ONE),
    # computed columns, which are NULL in padded rows
    (f"SELECT p.m, p.one, p.later FROM orders o LEFT JOIN (SELECT order_id, ts, COALESCE(method, '-') AS m, 1 AS one, "
     f"ts + INTERVAL '1' DAY AS later FROM payments) p ON {KEY} AND {HOUR} AND p.one = 1 WHERE p.m IS NULL",
     f"SELECT {CASE} COALESCE(p.method, '-') END AS m, {CASE} 1 END AS one, p.ts + INTERVAL '1' DAY AS later "
     f"{JOIN.replace('JOIN', 'LEFT JOIN')} AND 1 = 1 WHERE ({CASE} COALESCE(p.method, '-') END) IS NULL", TWO),
    (f"SELECT p.*, n {JOIN.replace('JOIN', 'LEFT JOIN').replace('payments', PAID)} JOIN items i ON p.m = i.order_id "
     "AND i.ts BETWEEN p.ts AND p.ts + INTERVAL '1' DAY",
     f"SELECT p.order_id, p.ts, {CASE} COALESCE(p.method, '-') END AS m, i.n "
     f"{JOIN.replace('JOIN', 'LEFT JOIN')} JOIN items i ON ({CASE} COALESCE(p.method, '-') END) = i.order_id "
     "AND i.ts BETWEEN p.ts AND p.ts + INTERVAL '1' DAY", THREE),
    (f"SELECT one, n FROM (SELECT 1 AS one, o.order_id, o.ts {JOIN.replace('JOIN', 'FULL JOIN')}) j RIGHT JOIN items i "
     "ON j.order_id = i.order_id AND i.ts BETWEEN j.ts AND j.ts + INTERVAL '1' DAY",
     "SELECT CASE WHEN NOT o.ts IS NULL OR NOT p.ts IS NULL THEN 1 END AS one, i.n "
     f"{JOIN.replace('JOIN', 'FULL JOIN')} RIGHT JOIN items i ON o.order_id = i.order_id "
     "AND i.ts BETWEEN o.ts AND o.ts + INTERVAL '1' DAY", THREE),
    (f"SELECT m, COUNT(m) AS n {JOIN.replace('JOIN', 'LEFT JOIN').replace('payments', PAID)} "
     "GROUP BY m, TUMBLE(o.ts, INTERVAL '1' HOUR)",
     f"SELECT {CASE} COALESCE(p.method, '-') END AS m, COUNT({CASE} COALESCE(p.method, '-') END) AS n "
     f"{JOIN.replace('JOIN', 'LEFT JOIN')} GROUP BY {CASE} COALESCE(p.method, '-') END, "
     "TUMBLE(o.ts, INTERVAL '1' HOUR)", TWO),
    # USING
    (f"SELECT order_id, method FROM orders o JOIN payments p USING (order_id) WHERE {HOUR}",
     f"SELECT o.order_id, p.method {JOIN}", TWO),
    ("SELECT order_id, p.method FROM orders o RIGHT JOIN payments p USING (order_id) "
     "WITH ('join.lower_bound' = '0s', 'join.upper_bound' = '1h')",
     f"SELECT p.order_id, p.method {JOIN.replace('JOIN', 'RIGHT JOIN')}", TWO),
    ("SELECT order_id, p.method FROM orders o FULL JOIN payments p USING (order_id) "
     "WITH ('join.lower_bound' = '0s', 'join.upper_bound' = '1h')",
     f"SELECT COALESCE(o.order_id, p.order_id) AS order_id, p.method {JOIN.replace('JOIN', 'FULL JOIN')}", TWO),
    (f"SELECT * FROM orders o JOIN payments p USING (order_id) WHERE {HOUR}",
     f"SELECT o.order_id, o.country, o.amount, o.ts AS orders_ts, p.method, p.ts AS payments_ts {JOIN}", TWO),
    (f"SELECT n FROM (SELECT order_id, o.ts AS at FROM orders o JOIN payments p USING (order_id) WHERE {HOUR}) j "
     "JOIN items i USING (order_id) WHERE i.ts BETWEEN at AND j.at + INTERVAL '1' DAY",
     f"SELECT i.n {JOIN} JOIN items i ON o.order_id = i.order_id AND i.ts BETWEEN o.ts AND o.ts + INTERVAL '1' DAY",
     THREE),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "flat", "tables"), SAME)
def test_a_sub_query_is_the_same_job_as_one_select(sql: str, flat: str, tables: tuple[SqlInput, ...]) -> None:
    assert translated(sql, tables) == translated(flat, tables)


def test_a_condition_of_a_joined_sub_query_filters_its_input_and_not_the_join() -> None:
    translation = translated(
        f"SELECT o.order_id FROM (SELECT * FROM orders o WHERE o.amount > 5 OR country = 'x') AS o FULL JOIN "
        f"(SELECT order_id, ts FROM payments WHERE method = 'a') AS p ON {KEY} AND {HOUR}",
        TWO,
    )
    assert translation.filters == {
        "orders": "orders.amount > 5 OR orders.country = 'x'",
        "payments": "payments.method = 'a'",
    }
    assert translation.steps[0]["type"] == "full"
    assert "where" not in translation.steps[0]


def test_a_condition_stays_with_its_input_when_aliases_are_names_of_other_inputs() -> None:
    translation = translated(
        "SELECT payments.country FROM (SELECT * FROM orders WHERE amount > 5) AS payments JOIN payments AS orders "
        "ON payments.order_id = orders.order_id AND orders.ts BETWEEN payments.ts AND payments.ts + INTERVAL '1' HOUR",
        TWO,
    )
    assert translation.filters == {"orders": "orders.amount > 5"}


def test_stars_name_shared_columns_as_those_of_inputs() -> None:
    nested = f"SELECT * FROM ({LARGE}) o JOIN (SELECT * FROM payments) p ON {KEY} AND {HOUR}"
    assert translated(nested, TWO).select == translated(f"SELECT * {JOIN}", TWO).select


REFUSED = [
    ("SELECT amount FROM (SELECT order_id FROM orders) o", (1, 8), "has no column 'amount'; its columns are order_id"),
    ("SELECT o.amunt FROM (SELECT amount FROM orders) o", (1, 8), "'o' has no column 'amunt' (did you mean 'amount'?)"),
    ("SELECT a FROM (SELECT amont AS a FROM orders) o", (1, 23), "'orders' has no column 'amont'"),
    (f"SELECT o.country FROM (SELECT o.country {JOIN}) j", (1, 8), "'o' is not an alias here; aliases are j"),
    (f"SELECT ts {JOIN.replace('orders o', f'({LARGE}) o')}", (1, 8), "is ambiguous"),
    ("SELECT order_id FROM (SELECT DISTINCT order_id FROM orders LIMIT 3) o", (1, 39), "DISTINCT and LIMIT"),
    ("SELECT n FROM (SELECT COUNT(*) AS n FROM orders) o", None, "write GROUP BY with a window"),
    (f"SELECT SUM(n) AS m FROM ({COUNTED}) g", None, "the SELECT around groups aggregates their rows, and has no"),
    (f"SELECT SUM(n) AS m FROM ({COUNTED}) g GROUP BY c", None, "without a window no group of groups would ever end"),
    (f"SELECT n FROM ({COUNTED}) g JOIN payments p ON g.c = p.method", None, "groups that are joined are a job"),
    (
        "SELECT o.amount FROM orders o JOIN (SELECT p.* FROM payments p JOIN items i ON p.order_id = i.order_id) x "
        "ON o.order_id = x.order_id",
        None,
        "write its joins one after the other",
    ),
    (
        f"SELECT n FROM (SELECT o.order_id, o.ts {JOIN} WHERE o.amount > 1) j RIGHT JOIN items i "
        "ON j.order_id = i.order_id AND i.ts BETWEEN j.ts AND j.ts + INTERVAL '1' DAY",
        None,
        "write the conditions into its ON",
    ),
    ("SELECT * FROM (SELECT * FROM orders o JOIN payments p ON o.order_id = p.order_id) j", None,
     "several inputs of the sub-query have order_id and ts"),
    ("SELECT x FROM (SELECT amount + 1 FROM orders) o", None, "a column of a sub-query needs a name"),
    ("SELECT x FROM (SELECT amount AS x, order_id AS x FROM orders) o", None, "two columns of the sub-query are named"),
    ("SELECT amount FROM (SELECT *, 1 AS amount FROM orders) o", None, "named 'amount'; name one with AS"),
    ("SELECT amount FROM (SELECT 1 AS amount, * FROM orders) o", None, "named 'amount'; name one with AS"),
    ("WITH o AS (SELECT * FROM orders), o AS (SELECT 1 AS amount FROM orders) SELECT amount FROM o", None,
     "two queries of WITH are named 'o'; give one another name"),
    ("WITH RECURSIVE o AS (SELECT * FROM orders) SELECT amount FROM o", None, "leave RECURSIVE out"),
    ("WITH o (x) AS (SELECT amount FROM orders) SELECT amount FROM o", None, "name the columns with AS"),
    ("WITH o AS (SELECT amount FROM orders UNION ALL SELECT 1 AS a) SELECT amount FROM o", (1, 55),
     "write SELECT <columns> FROM <input> WHERE <condition>"),
    ("SELECT * FROM orders NATURAL JOIN payments", (1, 35), "name the columns: JOIN ... USING (<columns>)"),
    ("SELECT method FROM orders JOIN payments USING (orderid)", None, "has no column 'orderid'"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "position", "words"), REFUSED)
def test_rejected_with_the_place_and_what_to_do(sql: str, position: tuple[int, int] | None, words: str) -> None:
    problems = translate(sql, TWO if "payments" in sql else ONE).problems
    assert any(words in problem for problem in problems), problems
    if position is not None:
        assert any(problem.startswith(f"line {position[0]}, column {position[1]}, ") for problem in problems), problems


def test_a_test_for_a_match_knows_a_column_of_the_sub_query_without_its_alias() -> None:
    tested = "SELECT 1 FROM payments p WHERE {} = p.order_id AND p.ts BETWEEN {} AND {} + INTERVAL '1' HOUR"
    nested = f"WITH o AS (SELECT order_id AS i, ts AS t FROM orders) SELECT i FROM o WHERE EXISTS ({tested})"
    flat = f"SELECT o.order_id AS i FROM orders o WHERE EXISTS ({tested})"
    assert translated(nested.format("i", "t", "o.t"), TWO) == translated(flat.format("o.order_id", *2 * ["o.ts"]), TWO)


def test_all_problems_are_told_at_once() -> None:
    sql = f"SELECT o.nope, p.method FROM (SELECT amont AS a, ts FROM orders) o JOIN payments p ON o.a = p.x AND {HOUR}"
    problems = "\n".join(translate(sql, TWO).problems)
    assert "'o' has no column 'nope'" in problems
    assert "'orders' has no column 'amont'" in problems
    assert "'payments' has no column 'x'" in problems


@pytest.mark.parametrize("source", ["o JOIN b USING (k)", "(SELECT * FROM o JOIN b ON o.k = b.k) j"])
def test_without_the_inputs_only_the_shape_is_judged(source: str) -> None:
    assert check_shape(f"WITH o AS ({LARGE}) SELECT a FROM {source}") == ()
