"""Unions of inputs: what a job may say, as fields and in SQL, its explanation, its definition and its signature."""

from __future__ import annotations

import json
from typing import Any

import pytest

from job.chains import DEAD, PAYMENTS, RATES, document, mistakes, stream
from joinery_runtime.core.compile.jobs import compile_job, stored_columns
from joinery_runtime.errors import JobError
from joinery_runtime.job import Job, compare, definition, explain, parse_job, signature, under_definition
from joinery_runtime.job.explain import flowchart
from joinery_runtime.job.model.unions import UnionInput

EU = stream("eu", "id", "total:double", "created:timestamp", eventTime="created", where="total < 100")
US = stream("us", "order_id", "amount:double")
COLUMNS = ["order_id", "amount", "ts", "region"]
EU_BRANCH = {
    "input": "eu",
    "select": [
        {"column": "id", "as": "order_id"},
        {"column": "total", "as": "amount"},
        {"column": "created", "as": "ts"},
        {"expression": "'eu'", "as": "region"},
    ],
    "where": "total > 0",
}
US_BRANCH = {
    "input": "us",
    "select": [{"column": "order_id"}, {"column": "amount"}, {"column": "ts"}, {"expression": "'us'", "as": "region"}],
}
ORDERS = {"name": "orders", "branches": [EU_BRANCH, US_BRANCH]}
STEP = {
    "right": "payments",
    "keys": {"orders.order_id": "payments.order_id"},
    "interval": {"of": "orders", "lower": "0s", "upper": "1h"},
}
SQL = """
WITH orders AS (
  SELECT id AS order_id, total AS amount, created AS ts, 'eu' AS region FROM eu WHERE total > 0
  UNION ALL SELECT u.order_id, u.amount, u.ts, 'us' FROM us u)
"""

FROM_US = "SELECT * FROM (SELECT * FROM us"
US_AND = f"{FROM_US} UNION ALL"
BOTH = "(SELECT * FROM us UNION ALL SELECT * FROM us2)"


def job(*steps: Any, inputs: Any = (EU, US, PAYMENTS), **more: Any) -> Job:
    written = document(*steps, inputs=list(inputs), **more)
    return parse_job(json.dumps(written), "job.json")


def united(**more: Any) -> Job:
    return job(STEP, **{"unions": [ORDERS], **more})


def branch(*columns: Any, **more: Any) -> dict[str, Any]:
    return {"input": "us", "select": list(columns), **more}


ALL = [{"column": "order_id"}, {"column": "amount"}, {"column": "ts"}]
LIKE_US = {"input": "us", "select": ALL}


def union_with(**us: Any) -> dict[str, Any]:
    """A union whose second branch says this."""
    return {"inputs": [EU, US, PAYMENTS], "unions": [{"name": "orders", "branches": [EU_BRANCH, {**US_BRANCH, **us}]}]}


def test_a_union_stands_in_the_place_of_its_first_branch() -> None:
    loaded = united()
    assert [side.name for side in loaded.inputs] == ["orders", "payments"]
    assert [source.name for source in loaded.read_inputs] == ["eu", "us", "payments"]
    (side, _) = loaded.inputs
    assert isinstance(side, UnionInput)
    assert {name: str(kind) for name, kind in side.types.items()} == {
        "order_id": "string",
        "amount": "double",
        "ts": "timestamp",
        "region": "string",
    }
    assert side.event_time == "ts"


def test_sql_and_fields_are_the_same_job() -> None:
    text = f"""{SQL} SELECT o.order_id, o.region, p.method FROM orders o JOIN payments p
        ON o.order_id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL '1' HOUR"""
    select = [{"column": "orders.order_id"}, {"column": "orders.region"}, {"column": "payments.method"}]
    written = document(inputs=[EU, US, PAYMENTS], sql=text)
    in_sql = parse_job(json.dumps({**written, "spec": {**written["spec"], "sql": text}}), "job.json")
    fields = united(select=select)
    assert compile_job(in_sql) == compile_job(fields)
    assert isinstance(side := in_sql.inputs[0], UnionInput)
    assert side.branches[1].columns[3] == (
        "region",
        "'us'",
    )
    assert definition(in_sql)["unions"][0]["branches"][0] == {
        **definition(fields)["unions"][0]["branches"][0],
        "select": [
            {"column": "id", "as": "order_id"},
            {"column": "total", "as": "amount"},
            {"column": "created", "as": "ts"},
            {"expression": "'eu'", "as": "region"},
        ],
    }


AGAIN = "SELECT who, ts FROM (SELECT order_id AS who, ts FROM us UNION ALL SELECT upper(order_id), ts FROM us {0}) x"


def test_a_further_alias_in_sql_is_an_input_that_is_declared_twice() -> None:
    written = document(inputs=[US])
    text = AGAIN.format("second").replace("upper(order_id)", "CAST(upper(order_id) AS VARCHAR)")
    in_sql = parse_job(json.dumps({**written, "spec": {**written["spec"], "sql": text}}), "job.json")
    upper = {"expression": "CAST(upper(order_id) AS VARCHAR)", "as": "who"}
    branches = [
        {"input": "us", "select": [{"column": "order_id", "as": "who"}, {"column": "ts"}]},
        {"input": "second", "select": [upper, {"column": "ts"}]},
    ]
    select = [{"column": "x.who"}, {"column": "x.ts"}]
    twice = [US, {**US, "name": "second"}]
    fields = job(inputs=twice, unions=[{"name": "x", "branches": branches}], select=select)
    assert [source.name for source in in_sql.read_inputs] == ["us", "second"]
    assert in_sql.repeats == {"second": "us"}
    assert compile_job(in_sql) == compile_job(fields)
    stored = stored_columns(compile_job(fields))
    of_aliases = {"branches": {"us": {"second": "second"}}}
    assert signature(in_sql, stored) == signature(fields, stored) | of_aliases
    assert compare(signature(fields, stored), signature(in_sql, stored)).refused == ()


@pytest.mark.parametrize(
    ("alias", "words"),
    [
        ("", "give it an alias here, FROM us <alias>, and it is read again for this SELECT"),
        ("us2", "'us' is read again as 'us2', which is the name of another input; write another alias"),
        ('"s-2"', "which is then the name of an input; write an alias of letters, digits and underscores"),
    ],
)
def test_an_alias_of_a_branch_that_is_read_again(alias: str, words: str) -> None:
    messages = mistakes(inputs=[US, {**US, "name": "us2"}], sql=AGAIN.format(alias))
    assert words in messages["spec.sql"], messages


def reading(*aliases: str) -> Job:
    """A job whose SQL is a UNION ALL of `eu`, and of `us` under each of these aliases."""
    selects = " UNION ALL ".join(f"SELECT order_id, ts FROM us {alias}" for alias in aliases)
    written = document(inputs=[EU, US])
    sql = f"SELECT order_id, ts FROM (SELECT id AS order_id, created AS ts FROM eu UNION ALL {selects}) u"
    return parse_job(json.dumps({**written, "spec": {**written["spec"], "sql": sql}}), "job.json")


@pytest.mark.parametrize(
    ("aliases", "again"),
    [(("x", "y"), ["y"]), (("y", "x"), ["y"]), (("z", "y", "x"), ["y", "z"]), (("x", ""), ["x"]), (("", "x"), ["x"])],
)
def test_the_order_of_selects_does_not_decide_which_one_reads_the_input_itself(
    aliases: tuple[str, ...], again: list[str]
) -> None:
    assert sorted(reading(*aliases).repeats) == again


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("x", "y"), ("y", "x")),
        (("x", "y"), ("y", "x", "z")),
        (("x", "y"), ("", "y")),
        (("x",), ("w",)),
        (("x",), ("",)),
        (("",), ("", "x")),
        (("", "x"), ("",)),
        (("", "x"), ("x", "", "y")),
    ],
)
def test_an_edit_after_which_each_select_reads_what_it_read(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    first, second = (signed(reading(*aliases)) for aliases in (before, after))
    assert compare(first, second).refused == ()


@pytest.mark.parametrize(
    ("before", "after", "alias", "was", "now"),
    [
        (("x", "y"), ("x", ""), "x", "us", "x"),
        (("x", "y"), ("a", "x", "y"), "x", "us", "x"),
        (("x", "y"), ("y",), "y", "y", "us"),
        (("x",), ("a", "x"), "x", "us", "x"),
        (("", "x"), ("x",), "x", "x", "us"),
    ],
)
def test_an_edit_after_which_a_select_reads_another_input(
    before: tuple[str, ...], after: tuple[str, ...], alias: str, was: str, now: str
) -> None:
    first, second = (signed(reading(*aliases)) for aliases in (before, after))
    (reason,) = compare(first, second).refused
    assert reason.startswith(f"FROM us {alias} in a union was input {was}, it is now {now}: records would come twice")
    older = without(first, "branches")
    assert compare(older, second).refused == (), "a state without aliases continues"


def test_an_alias_of_a_branch_is_none_of_a_self_join() -> None:
    hour = "ts BETWEEN u.ts AND u.ts + INTERVAL '1' HOUR"
    sql = (
        "SELECT u.order_id, a.method, y.method AS other FROM "
        "(SELECT order_id, ts FROM us UNION ALL SELECT order_id, ts FROM us y) u "
        f"JOIN payments a ON u.order_id = a.order_id AND a.{hour} "
        f"JOIN payments y ON u.order_id = y.order_id AND y.{hour}"
    )
    messages = mistakes(inputs=[US, PAYMENTS], sql=sql)
    words = "`payments AS y`: 'payments' is read again as 'y', which is the name of a branch of a union; write another"
    assert words in messages["spec.sql"], messages


def test_an_input_that_is_not_declared_keeps_its_name_in_a_message() -> None:
    selects = (f"SELECT order_id, ts FROM {name}" for name in ("uss x", "uss y", "us", "us z"))
    messages = mistakes(
        inputs=[{**US, "eventTime": "nope"}], sql=f"SELECT order_id FROM ({' UNION ALL '.join(selects)}) u"
    )
    assert "`SELECT order_id, ts FROM uss AS y`: 'uss' is not an input (did you mean 'us'?)" in messages["spec.sql"], (
        messages
    )
    assert "'nope'" in messages["spec.inputs[0].eventTime"]


def test_the_event_time_of_a_union_is_the_name_that_all_branches_have_for_it() -> None:
    times = [{"column": "ts", "as": "seen"}, {"column": "ts", "as": "at"}]
    branches = [
        {"input": "us", "select": times},
        {"input": "eu", "select": [{"column": "created", "as": "at"}, {"expression": "created", "as": "seen"}]},
    ]
    loaded = job(inputs=[EU, US], unions=[{"name": "x", "branches": branches}])
    assert loaded.inputs[0].event_time == "at"


@pytest.mark.parametrize(
    ("field", "one", "other"),
    [("idleTimeout", "60s", None), ("idleTimeout", "1m", "60s"), ("maxFuture", "24h", None), ("onIdle", "hold", None)],
)
def test_branches_may_write_one_watermark_in_two_ways(field: str, one: str, other: str | None) -> None:
    written = {**US, "watermark": {field: one}}
    plain = {**US, "name": "us2", **({"watermark": {field: other}} if other is not None else {})}
    union = {"name": "x", "branches": [{"input": "us"}, {"input": "us2"}]}
    assert [side.name for side in job(inputs=[written, plain], unions=[union]).inputs] == ["x"]


@pytest.mark.parametrize(
    ("more", "path", "words"),
    [
        (union_with(input="uss"), "unions[0].branches[1].input", "'uss' is not an input (did you mean 'us'?)"),
        (union_with(input="eu", select=EU_BRANCH["select"]), "unions[0].branches[1].input", "'eu' is a branch already"),
        (
            union_with(select=[*US_BRANCH["select"], {"column": "order_id"}]),
            "unions[0].branches[1].select[4]",
            "two columns",
        ),
        (union_with(select=ALL), "unions[0].branches[1]", "against those of 'eu', here region missing"),
        (
            union_with(select=[*US_BRANCH["select"], {"column": "order_id", "as": "more"}]),
            "unions[0].branches[1]",
            "here more more",
        ),
        (
            union_with(select=[{"column": "us.order_id"}, *US_BRANCH["select"][1:]]),
            "unions[0].branches[1].select[0].column",
            "write 'order_id' without its name",
        ),
        (
            union_with(select=[{"column": "order"}, *US_BRANCH["select"][1:]]),
            "unions[0].branches[1].select[0].column",
            "did you mean 'order_id'?",
        ),
        (
            union_with(select=[{"expression": "CAST(order_id AS INT)", "as": "order_id"}, *US_BRANCH["select"][1:]]),
            "unions[0].branches[1]",
            "'order_id' is int32 here, and string in 'eu'; write CAST(... AS <type>) as order_id",
        ),
        (
            union_with(select=[{"expression": "upper(idd)", "as": "order_id"}, *US_BRANCH["select"][1:]]),
            "unions[0].branches[1].select[0].expression",
            "'us' has no column 'idd'",
        ),
        (union_with(where="eu.total > 0"), "unions[0].branches[1].where", "the branch has the columns of 'us' alone"),
        (union_with(where="amount >"), "unions[0].branches[1].where", "is not an SQL condition"),
        (
            {**union_with(), "inputs": [EU, {**US, "watermark": {"idleTimeout": "5m"}}, PAYMENTS]},
            "unions[0].branches",
            "watermark.idleTimeout is of the union as a whole, and its branches have 5m and none",
        ),
        (
            {"inputs": [EU, {**US, "table": {"key": ["order_id"]}}, PAYMENTS], "unions": [ORDERS]},
            "unions[0].branches[1].input",
            "'us' is a table, whose rows replace each other",
        ),
        ({**union_with(), "unions": [{**ORDERS, "name": "payments"}]}, "unions[0].name", "called 'payments' too"),
    ],
)
def test_what_a_union_must_not_say(more: Any, path: str, words: str) -> None:
    step = {**STEP, "right": "payments"}
    assert words in mistakes(step, **more).get(f"spec.{path}", ""), mistakes(step, **more)


def test_a_branch_is_no_side() -> None:
    steps = [{**STEP, "right": "us", "keys": {"orders.order_id": "us.order_id"}}]
    assert (
        "'us' is a branch of the union 'orders', whose rows are joined; name the union"
        in mistakes(*steps, inputs=[EU, US, PAYMENTS], unions=[ORDERS])["spec.joins[0].right"]
    )


def test_a_type_that_only_the_core_knows() -> None:
    select = [{"expression": "upper(order_id)", "as": "order_id"}, *US_BRANCH["select"][1:]]
    assert mistakes(STEP, **union_with(select=select)) == {}
    wrong = [{"expression": "length(order_id)", "as": "order_id"}, *US_BRANCH["select"][1:]]
    written = document(STEP, **union_with(select=wrong))
    assert "spec.unions[0].branches[1]: 'length(order_id)' gives" in (text := mistakes_of(written)), text
    assert "column 'order_id' of the union is string" in text
    assert "CAST(length(order_id) AS string), or in each other branch CAST(... AS int32) as order_id" in text
    both = {
        "name": "orders",
        "branches": [
            {**EU_BRANCH, "select": [{"expression": "upper(id)", "as": "order_id"}, *EU_BRANCH["select"][1:]]},
            {**US_BRANCH, "select": select},
        ],
    }
    assert (
        "the type of 'order_id' does not show in any branch; write CAST(<expression> AS <type>)"
        in mistakes(STEP, inputs=[EU, US, PAYMENTS], unions=[both])["spec.unions[0].branches[0]"]
    )


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        (
            f"{FROM_US} UNION SELECT * FROM us2) o",
            "UNION drops equal rows, which may come at any time; write UNION ALL",
        ),
        (
            "SELECT order_id FROM us UNION ALL SELECT order_id FROM us2",
            "the branch lacks 'ts', the event time of 'us'; select it too",
        ),
        ("SELECT ts, order_id FROM us UNION ALL SELECT ts FROM us2", "selects 1 column, and the first SELECT 2"),
        ("SELECT ts, 1 + 1 FROM us UNION ALL SELECT ts, 2 FROM us2", "an expression of the first SELECT has no name"),
        (
            "SELECT ts, amount FROM us UNION ALL SELECT ts, order_id FROM us2",
            "line 1, column 44, `SELECT ts, order_id FROM us2`: 'amount' is string here, and double in 'us'",
        ),
        (f"{US_AND} SELECT * FROM nope) o", "'nope' is not an input"),
        (f"{US_AND} SELECT ts, order_id, count(*) FROM us2 GROUP BY ts) o", "a SELECT of a union reads one input"),
        (f"{US_AND} SELECT us2.* FROM us2 JOIN us ON us.ts = us2.ts) o", "with JOINS"),
        (f"{US_AND} SELECT x.ts, x.order_id, y.amount FROM us2 x) o", "'y' is not an alias here"),
        (
            f"WITH o AS {BOTH} SELECT a.ts FROM o a JOIN o b ON a.order_id = b.order_id AND b.ts = a.ts",
            "'o' is a union, which a job reads once",
        ),
        (
            f"WITH o AS {BOTH} SELECT a.ts FROM o a WHERE NOT EXISTS "
            "(SELECT 1 FROM o b WHERE a.order_id = b.order_id AND b.ts = a.ts)",
            "'o' is a union, which a job reads once (rule U3)",
        ),
        (
            f"SELECT a.ts FROM {BOTH} a JOIN us ON a.order_id = us.order_id AND us.ts = a.ts",
            "`us`: 'us' is a branch of the union 'a', and each record counts once (rule U3); read 'a', or declare a",
        ),
        (
            f"WITH o AS {BOTH}, u AS (SELECT * FROM us2) "
            "SELECT o.ts FROM o JOIN u ON o.order_id = u.order_id AND u.ts = o.ts",
            "`us2 AS u`: 'us2' is a branch of the union 'o', and each record counts once",
        ),
        (f"{US_AND} SELECT * FROM us2) us", "another input or union is called 'us' too"),
        ("SELECT * FROM us UNION ALL SELECT * FROM us2 LIMIT 5", "line 1, column 52, `LIMIT 5`: a union has every row"),
        (f"{US_AND} SELECT * FROM us2 LIMIT 5) o", "column 67, `LIMIT 5`: a union has every row"),
        (f"{US_AND} SELECT * FROM us2 ORDER BY ts) o", "`ORDER BY ts`: a union has every row"),
        (f"{US_AND} SELECT * FROM us2 OFFSET 2) o", "`OFFSET 2`: a union has every row"),
        (f"{US_AND} SELECT * FROM us2 FETCH FIRST 5 ROWS ONLY) o", "`FETCH FIRST 5 ROWS ONLY`: a union has every row"),
        (f"{US_AND} ((SELECT * FROM us2) LIMIT 3)) o", "`LIMIT 3`: a union has every row"),
        (f"WITH o AS {BOTH[:-1]} LIMIT 5) SELECT * FROM o", "`LIMIT 5`: a union has every row"),
        (f"SELECT * FROM {BOTH} o TABLESAMPLE (10 PERCENT)", "`TABLESAMPLE (10 PERCENT)`: a union has every row"),
        (f"SELECT * FROM {BOTH} o PIVOT (SUM(amount) FOR order_id IN ('a'))", "a union has every row"),
        (
            f"{US_AND} BY NAME SELECT ts, amount, order_id FROM us2) o",
            "`SELECT ts, amount, order_id FROM us2`: columns of a union go by their places, not by their names; write",
        ),
        (f"{FROM_US} LEFT UNION ALL SELECT * FROM us2) o", "columns of a union go by their places"),
        (
            "WITH a AS (SELECT * FROM us WHERE amount > 1) SELECT * FROM a UNION ALL SELECT * FROM us2",
            "`WITH a AS (SELECT * FROM us WHERE amount > 1)`: a SELECT of a union reads an input, not a query of WITH",
        ),
        *(
            (
                f"SELECT * FROM (SELECT {star} FROM us UNION ALL SELECT {star} FROM us2) o",
                f"column 23, `{star}`: a star with more is not supported; write the columns one by one",
            )
            for star in (
                "* EXCEPT (amount)",
                "* REPLACE (amount + 1 AS amount)",
                "* RENAME (amount AS sum)",
                "* ILIKE 'a'",
            )
        ),
        (
            "SELECT * FROM (SELECT us.* EXCLUDE (amount) FROM us UNION ALL SELECT * FROM us2) o",
            "`us.* EXCEPT (amount)`",
        ),
        ("SELECT * FROM (SELECT * AS a FROM us UNION ALL SELECT * FROM us2) o", "`*`: a star with more"),
        (
            "SELECT amount, order_id, ts FROM us AS u (amount, order_id, ts) UNION ALL SELECT * FROM us2",
            "a SELECT of a union reads one input, row by row",
        ),
        (f"{US_AND} SELECT * FROM us2) o (a, b, c)", "name the columns with AS in the first SELECT"),
    ],
)
def test_what_sql_must_not_say(sql: str, words: str) -> None:
    inputs = [US, {**US, "name": "us2"}]
    written = document(inputs=inputs)
    text = mistakes_of({**written, "spec": {**without(written["spec"], "joins"), "sql": sql}})
    assert words in text, text


def without(spec: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key not in names}


def mistakes_of(written: dict[str, Any]) -> str:
    with pytest.raises(JobError) as raised:
        compile_job(parse_job(json.dumps(written), "job.json"))
    return str(raised.value)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT order_id, amount, ts FROM us UNION ALL SELECT order_id, amount, ts FROM us2",
        f"{US_AND} SELECT * FROM us2) o WHERE o.amount > 1",
        "WITH o AS (SELECT * FROM us UNION ALL (SELECT * FROM us2 WHERE amount > 1)), "
        "p AS (SELECT order_id FROM o) SELECT * FROM p",
        f"SELECT order_id, COUNT(*) AS n FROM {BOTH} o GROUP BY order_id, TUMBLE(ts, INTERVAL '1' HOUR)",
        f"SELECT order_id, COUNT(*) AS n FROM {BOTH} GROUP BY order_id, TUMBLE(ts, INTERVAL '1' HOUR)",
        f"SELECT order_id FROM (SELECT order_id, ts FROM {BOTH} WHERE amount > 1)",
        f"SELECT o.* FROM {BOTH} o QUALIFY ROW_NUMBER() OVER "
        "(PARTITION BY order_id, TUMBLE(ts, INTERVAL '1' HOUR) ORDER BY amount DESC) <= 3",
    ],
)
def test_every_shape_of_union_in_sql_is_a_job(sql: str) -> None:
    written = document(inputs=[US, {**US, "name": "us2"}])
    loaded = parse_job(json.dumps({**written, "spec": {**without(written["spec"], "joins"), "sql": sql}}), "job.json")
    assert len(compile_job(loaded).inputs) == 1


def test_a_text_that_is_a_union_may_read_an_input_of_any_name() -> None:
    written = document(inputs=[{**US, "name": "united"}, {**US, "name": "united_"}])
    sql = "SELECT * FROM united UNION ALL SELECT * FROM united_"
    loaded = parse_job(json.dumps({**written, "spec": {**without(written["spec"], "joins"), "sql": sql}}), "job.json")
    assert [side.name for side in compile_job(loaded).inputs] == ["united__"]


def test_a_union_in_from_without_a_name_is_the_same_as_with_its_name() -> None:
    written = document(inputs=[US, {**US, "name": "us2"}])

    def compiled(sql: str) -> object:
        spec = {**without(written["spec"], "joins"), "sql": sql}
        return compile_job(parse_job(json.dumps({**written, "spec": spec}), "job.json"))

    assert compiled(f"SELECT order_id FROM {BOTH}") == compiled(f"SELECT order_id FROM {BOTH} united")
    free = compiled(f"WITH united AS {BOTH} SELECT order_id FROM united")
    assert free == compiled(f"SELECT order_id FROM {BOTH}")


@pytest.mark.parametrize("alias", ["us2", "united"])
def test_an_alias_of_a_branch_does_not_change_the_name_of_the_union(alias: str) -> None:
    written = document(inputs=[US, {**US, "name": "us2"}])
    sql = f"SELECT * FROM us UNION ALL SELECT * FROM us2 AS {alias}"
    loaded = parse_job(json.dumps({**written, "spec": {**without(written["spec"], "joins"), "sql": sql}}), "job.json")
    assert [side.name for side in compile_job(loaded).inputs] == ["united"]


def test_a_second_union_needs_a_name() -> None:
    inputs = [US, *({**US, "name": name} for name in ("us2", "us3", "us4"))]
    other = "(SELECT * FROM us3 UNION ALL SELECT * FROM us4)"
    written = document(inputs=inputs)
    condition = "a.order_id = united.order_id AND a.ts = united.ts"

    def spec(sql: str) -> dict[str, Any]:
        return {**written, "spec": {**without(written["spec"], "joins"), "sql": sql}}

    named = spec(f"SELECT a.order_id FROM {BOTH} JOIN {other} a ON {condition}")
    assert [side.name for side in compile_job(parse_job(json.dumps(named), "job.json")).inputs] == ["united", "a"]
    unnamed = spec(f"SELECT a.order_id FROM {BOTH} JOIN {other} ON {condition}")
    assert "a second union without a name; write (SELECT ... UNION ALL SELECT ...) <name>" in mistakes_of(unnamed)


def test_explain_and_the_picture_show_each_branch() -> None:
    text = str(explain(united(**DEAD)))
    assert "input orders: union of eu and us" in text
    assert "branch eu: file eu.jsonl" in text
    assert (
        "only rows with total < 100 and total > 0; id as order_id, total as amount, created as ts, 'eu' as region"
        in text
    )
    drawn = flowchart(united(**DEAD))
    assert "branch_eu --> input_orders" in drawn
    assert "input_orders --> step_1" in drawn


def test_the_definition_gives_the_same_job() -> None:
    loaded = united()
    again = under_definition(loaded, definition(loaded))
    assert compile_job(again) == compile_job(loaded)
    assert definition(again) == definition(loaded)


def of_kafka(branch: dict[str, Any], **kafka: Any) -> dict[str, Any]:
    topic = {"topic": branch["name"], "bootstrapServers": "old:9092", **kafka}
    return {**without(branch, "file"), "kafka": topic}


@pytest.mark.parametrize("in_sql", [False, True], ids=["fields", "sql"])
def test_a_plan_is_replayed_with_the_newest_settings_of_each_branch(*, in_sql: bool) -> None:
    def with_branches(**kafka: Any) -> Job:
        secrets = ({**kafka, "propertiesSecretRef": {"name": f"{name}-secret"}} for name in ("eu", "us"))
        inputs = [*(of_kafka(source, **named) for source, named in zip((EU, US), secrets, strict=True)), PAYMENTS]
        if not in_sql:
            return job(STEP, inputs=inputs, unions=[ORDERS])
        written = document(inputs=inputs[:2])
        sql = f"{SQL} SELECT order_id, region FROM orders"
        return parse_job(json.dumps({**written, "spec": {**without(written["spec"], "joins"), "sql": sql}}), "job.json")

    before = with_branches()
    now = with_branches(bootstrapServers="new:9092", onDataLoss="continue")
    replayed = under_definition(now, definition(before))
    assert definition(replayed)["unions"] == definition(before)["unions"]
    branches = replayed.read_inputs[:2]
    assert [source.name for source in branches] == ["eu", "us"]
    for source in branches:
        assert source.kafka is not None
        assert source.kafka.bootstrap_servers == "new:9092"
        assert source.kafka.on_data_loss == "continue"
        assert source.kafka.properties_secret_ref is not None
        assert source.kafka.properties_secret_ref.name == f"{source.name}-secret"


def test_a_job_without_unions_has_no_word_of_them() -> None:
    plain = job(
        {**STEP, "keys": {"us.order_id": "payments.order_id"}, "interval": {**STEP["interval"], "of": "us"}},
        inputs=[US, PAYMENTS],
    )
    assert "union" not in json.dumps([definition(plain), signature(plain, stored_columns(compile_job(plain)))])


def signed(loaded: Job) -> dict[str, Any]:
    return signature(loaded, stored_columns(compile_job(loaded)))


def test_branches_may_come_and_go_and_an_input_becomes_no_union() -> None:
    third = {**US, "name": "asia"}
    more = job(
        STEP,
        inputs=[EU, US, third, PAYMENTS],
        unions=[{**ORDERS, "branches": [*ORDERS["branches"], {**US_BRANCH, "input": "asia"}]}],
    )
    assert not compare(signed(united()), signed(more)).refused
    assert not compare(signed(more), signed(united())).refused
    plain = {**US, "name": "orders", "schema": [*US["schema"], {"name": "region", "type": "string"}]}
    before = job(STEP, inputs=[plain, PAYMENTS])
    (reason,) = compare(signed(before), signed(united())).refused
    assert reason.startswith("orders was one input, it is now a union: records that were read would come twice")


def test_a_table_joins_a_union() -> None:
    step = {"right": "rates", "keys": {"orders.region": "rates.currency"}, "asOf": {"historyRetention": "1h"}}
    assert mistakes(step, inputs=[EU, US, RATES], unions=[ORDERS]) == {}
