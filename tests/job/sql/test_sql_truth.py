"""What the SQL of a job says and what its steps say give the same rows: DuckDB runs both on small tables."""

import re
from functools import cache

import duckdb
from hypothesis import assume, event, example, given
from hypothesis import strategies as st

from joinery_runtime.job.sql import SqlInput, translate

INPUTS = ("a", "b", "c")
TABLES = tuple(SqlInput(name, ("id", "x", "time"), "time", integer_time=True) for name in INPUTS)
SELECT = "SELECT a.id AS a, b.id AS b, c.id AS c"
ROWID = "/* rowid */ "  # DuckDB's, which a sub-query has only if it names it
KEYS = ("{0}.id = {1}.id", "{0}.id = {1}.id", "{1}.id % 2 = {0}.id % 2", "{0}.id = {1}.id + 1", "ABS({0}.x) = {1}.id")
MIRRORED = {"LEFT": "RIGHT", "RIGHT": "LEFT"}
COMPUTED = "COALESCE(x, 0) AS y, 1 AS one, CASE WHEN x = 1 THEN 2 ELSE 0 END AS v, x + 1 AS s"
"""Columns of a sub-query, of which only the last one is NULL for NULLs."""

row = st.tuples(st.integers(0, 2), st.one_of(st.none(), st.integers(0, 1)), st.integers(0, 5))
rows = st.fixed_dictionaries({name: st.lists(row, max_size=5) for name in INPUTS})


@st.composite
def bounds(draw, right, earlier):
    """A lower and an upper bound of the right input's time, each counted from any of the earlier ones."""
    ms = draw(st.integers(-2, 1))
    low, high = draw(st.sampled_from(earlier)), draw(st.sampled_from(earlier))
    upper = f"{right}.time <= {high}.time + {ms + draw(st.integers(0, 4))}"
    lower = draw(st.sampled_from([f"{right}.time >= {low}.time + {ms}", f"NOT {low}.time + {ms} > {right}.time"]))
    return [upper, lower]


@st.composite
def condition(draw, input_names, computed=()):
    """A condition on inputs, or on a column that one of the sub-queries `computed` computes."""
    one, other = draw(st.sampled_from(input_names)), draw(st.sampled_from(input_names))
    named = [name for name in input_names if name in computed]
    if named and draw(st.booleans()):
        texts = ["{0}.y = 0", "{0}.one IS NULL", "{0}.one = 1", "{0}.v = {1}.x", "{0}.v <> 2", "{0}.s IS NULL"]
        return draw(st.sampled_from(texts)).format(draw(st.sampled_from(named)), other)
    texts = ["{0}.x = 1", "{0}.x IS NULL", "{0}.x = {1}.id", "{0}.x <> {1}.x", "COALESCE({0}.x, {1}.x) = 1"]
    texts += ["{0}.time <= {1}.time", "{0}.time < 4"]
    return draw(st.sampled_from(texts)).format(one, other)


@st.composite
def key(draw, right, earlier, computed):
    """An equality of the right input and an earlier one, on a computed column where there is one."""
    other = draw(st.sampled_from(earlier))
    if other in computed and draw(st.booleans()):
        return f"{other}.{draw(st.sampled_from(['y', 'one', 'v', 's']))} = {right}.id"
    if right in computed and draw(st.booleans()):
        return f"{right}.{draw(st.sampled_from(['y', 'one', 'v', 's']))} = {other}.id"
    return draw(st.sampled_from(KEYS)).format(right, other)


@st.composite
def queries(draw, computed=()):
    first, second = draw(st.permutations(["a", "b"]))
    on, where = [], []
    for i, right in enumerate((second, "c")):
        earlier = [first, second][: i + 1]
        parts = [draw(key(right, earlier, computed)), *draw(bounds(right, earlier))]
        parts += draw(st.lists(condition([*earlier, right], computed), max_size=2))
        on.append(draw(st.permutations(parts)))
    where += draw(st.lists(condition(list(INPUTS), computed), max_size=1))
    joins = [draw(st.sampled_from(["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])) for _ in on]
    for i in range(len(on)):
        if joins[i:] == ["JOIN"] * len(joins[i:]) and draw(st.booleans()):
            moved = draw(st.integers(0, len(on[i])))
            where, on[i] = where + on[i][moved:], on[i][:moved]
    text = " ".join(f"{joins[i]} {name} ON {' AND '.join(on[i]) or 'TRUE'}" for i, name in enumerate((second, "c")))
    columns = [f"{name}.{column} AS {name}_{column}" for name in computed for column in ("y", "one", "v", "s")]
    return f"{', '.join([SELECT, *columns])} FROM {first} {text}{' WHERE ' if where else ''}{' AND '.join(where)}"


@st.composite
def nested_queries(draw):
    """A SELECT whose inputs may be sub-queries or queries of WITH, each with conditions and computed columns of its
    own."""
    ways = {name: draw(st.sampled_from(["input", "sub-query", "WITH"])) for name in INPUTS}
    text, named = draw(queries([name for name, way in ways.items() if way != "input"])), []
    for name, way in ways.items():
        parts = [part.replace(f"{name}.", "") for part in draw(st.lists(condition([name]), min_size=1, max_size=2))]
        query = f"SELECT {ROWID}*, {COMPUTED} FROM {name} WHERE {' AND '.join(parts)}"
        if way == "sub-query":
            text = re.sub(rf"(FROM|JOIN) {name}\b", rf"\1 ({query}) {name}", text, count=1)
        elif way == "WITH":
            text = re.sub(rf"(FROM|JOIN) {name}\b", rf"\1 some_{name} {name}", text, count=1)
            named.append(f"some_{name} AS ({query})")
    return f"WITH {', '.join(named)} {text}" if named else text


def as_sql(translation):
    """The steps as they read: everything a step says is its condition of a match, except the filter behind the last
    step; a filter of the translation is about an input. The select list begins with the columns
    of `SELECT`."""
    filters = translation.filters.items()
    sources = {name: name for name in (*INPUTS, "d")} | {
        name: f"(SELECT rowid, * FROM {name} WHERE {text}) {name}" for name, text in filters
    }
    columns = [item.get("column") or item["expression"] for item in translation.select[len(INPUTS) :]]
    text = f"{', '.join([SELECT, *columns])} FROM {sources[INPUTS[0]]}"
    for step in translation.steps:
        right, interval = step["right"], step["interval"]
        distance = f"{right}.time - {interval['of']}.time"
        parts = [f"{left} = {key}" for left, key in step["keys"].items()]
        parts += [f"{distance} BETWEEN {interval['lower']} AND {interval['upper']}"]
        parts += [f"({step['where']})"] if "where" in step else []
        text += f" {step.get('type', 'inner')} JOIN {sources[right]} ON {' AND '.join(parts)}"
    *earlier, last = translation.steps
    assert all("filter" not in step for step in earlier)
    return f"{text} WHERE {last['filter']}" if "filter" in last else text


def result(database, sql):
    text = sql.replace(SELECT, "SELECT a.rowid, b.rowid, c.rowid").replace(ROWID, "rowid, ")
    return rows_of(database, text)


def rows_of(database, sql):
    return sorted(database.execute(sql).fetchall(), key=str)


@cache
def connection():
    return duckdb.connect(config={"threads": 1})


def filled(data):
    """The database with these tables in place of those of the example before."""
    database = connection()
    for name, content in data.items():
        database.execute(f"CREATE OR REPLACE TABLE {name} (id BIGINT, x BIGINT, time BIGINT)")
        if content:
            values = ", ".join(
                f"({', '.join('NULL' if value is None else str(value) for value in row)})" for row in content
            )
            database.execute(f"INSERT INTO {name} VALUES {values}")
    return database


@st.composite
def match_queries(draw):
    """A SELECT with one of the ways to say that a row of `b` matches, or that none does."""
    parts = [*draw(bounds("b", ["a"])), *draw(st.lists(condition(["a", "b"]), max_size=2))]
    where = draw(st.lists(condition(["a"]), max_size=2))
    negated = draw(st.sampled_from(["", "NOT "]))
    way = draw(st.sampled_from(["EXISTS", "IN", "IS NULL"]))
    if way == "IS NULL":
        where.append(f"b.{draw(st.sampled_from(['id', 'time']))} IS NULL")
        return f"SELECT a.id FROM a LEFT JOIN b ON b.id = a.id AND {' AND '.join(parts)} WHERE {' AND '.join(where)}"
    if way == "EXISTS":
        where.append(f"{negated}EXISTS (SELECT 1 FROM b WHERE b.id = a.id AND {' AND '.join(parts)})")
    else:
        parts += ["b.x IS NOT NULL"] if negated else []
        where += ["a.x IS NOT NULL"] if negated else []
        where.append(f"a.x {negated}IN (SELECT x FROM b WHERE {' AND '.join(parts)})")
    return f"SELECT a.id FROM a WHERE {' AND '.join(where)}"


@given(match_queries(), rows)
def test_a_semi_or_anti_step_gives_the_rows_of_the_sql(sql, data):
    translation = translate(sql, TABLES[:2])
    assert all("nothing can match" in problem for problem in translation.problems)
    assume(not translation.problems)
    (step,) = translation.steps
    filters = {name: translation.filters.get(name, "TRUE") for name in "ab"}
    a, b = (f"(SELECT rowid, * FROM {name} WHERE {text}) {name}" for name, text in filters.items())
    parts = [f"{left} = {key}" for left, key in step["keys"].items()]
    parts += [
        "b.time - a.time BETWEEN {lower} AND {upper}".format(**step["interval"]),
        f"({step.get('where', 'TRUE')})",
    ]
    exists = f"{'NOT ' if step['type'] == 'anti' else ''}EXISTS (SELECT 1 FROM {b} WHERE {' AND '.join(parts)})"
    database = filled(data)
    by_sql, by_step = (
        rows_of(database, text.replace("SELECT a.id", "SELECT a.rowid"))
        for text in (sql, f"SELECT a.id FROM {a} WHERE {exists}")
    )
    assert by_step == by_sql


def check_steps(sql, data):
    """The steps of the SQL give its rows; SQL that is rejected is another test's."""
    translation = translate(sql, TABLES)
    event("translated" if not translation.problems else "refused")
    assume(not translation.problems)
    database = filled(data)
    assert result(database, as_sql(translation)) == result(database, sql)


@given(queries(), rows)
@example(
    f"{SELECT} FROM a JOIN b ON a.id = b.id AND b.time >= a.time AND b.time <= a.time + 1 "
    "RIGHT JOIN c ON c.id = b.id AND c.time >= b.time AND c.time <= b.time + 1 WHERE c.x = 1",
    {"a": [], "b": [], "c": [(0, None, 0), (0, 1, 0)]},
)
def test_the_steps_give_the_rows_of_the_sql(sql, data):
    check_steps(sql, data)


@given(nested_queries(), rows)
def test_sub_queries_give_the_rows_of_the_sql(sql, data):
    check_steps(sql, data)


@given(nested_queries(), st.sampled_from(["RIGHT JOIN", "FULL JOIN", "LEFT JOIN", "JOIN"]), rows)
def test_a_joined_sub_query_gives_the_rows_of_the_sql(inner, join, data):
    """Columns that a sub-query computes of a join are NULL where a join behind it finds no row of the sub-query."""
    data = {**data, "d": data["a"]}
    columns = "a.time AS t, COALESCE(b.time, a.time, c.time) AS u, 1 AS one, COALESCE(a.x, b.x, 0) AS y"
    inner = inner.replace(SELECT, f"{SELECT}, {columns}", 1)
    outer = f"FROM ({inner}) j {join} d ON d.id = j.a AND d.time BETWEEN j.t AND j.t + 2 AND j.one = 1"
    names = ["j.a", "j.b", "j.c", "j.u", "j.one", "j.y", "d.id AS d"]
    sql = f"SELECT {', '.join(names)} {outer}"
    translation = translate(sql, (*TABLES, SqlInput("d", ("id", "x", "time"), "time", integer_time=True)))
    event("translated" if not translation.problems else "refused")
    assume(not translation.problems)
    database = filled(data)
    assert rows_of(database, as_sql(translation)) == rows_of(database, sql)


@given(st.sampled_from(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]), rows)
def test_using_gives_the_rows_of_the_sql(kind, data):
    """A column of USING is that of the side that is there."""
    sql = f"SELECT id, a.x AS ax, b.x AS bx FROM a {kind} b USING (id)"
    options = " WITH ('join.lower_bound' = '-9ms', 'join.upper_bound' = '9ms')"
    translation = translate(sql + options, TABLES[:2])
    assert not translation.problems
    (step,) = translation.steps
    columns = ", ".join(item.get("column") or item["expression"] for item in translation.select)
    parts = " AND ".join(f"{left} = {key}" for left, key in step["keys"].items())
    by_step = f"SELECT {columns} FROM a {step.get('type', 'inner')} JOIN b ON {parts}"
    database = filled(data)
    assert rows_of(database, by_step) == rows_of(database, sql)
