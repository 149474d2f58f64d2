from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from joinery_runtime.core.pipeline import evaluation
from joinery_runtime.core.pipeline.expression import (
    ColumnRef,
    check_predicate,
    conjunction,
    conjuncts,
    parse_expression,
)
from joinery_runtime.errors import ExpressionError

DOCUMENT = Path(__file__).parents[3] / "docs" / "expressions.md"
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("j", pa.int32()),
        ("d", pa.float64()),
        ("m", pa.decimal128(5, 2)),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("ts", pa.timestamp("ms", "UTC")),
        ("day", pa.date32()),
    ]
)
ROW = {
    "i": 7, "j": 3, "d": 1.5, "m": Decimal("5.50"), "s": "abc", "b": True,
    "ts": datetime(2024, 1, 1, tzinfo=UTC), "day": date(2024, 1, 1),
}  # fmt: skip
NOTHING: dict[str, Any] = dict.fromkeys(ROW)


def value(text: str, **changed: Any) -> Any:
    """The expression's value on one row, as Python."""
    return values(text, [{**ROW, **changed}])[0]


def values(text: str, rows: list[dict[str, Any]]) -> list[Any]:
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    result = parse_expression(text).evaluate(lambda ref: batch.column(ref.column), len(rows))
    if result.failed:
        raise ExpressionError(result.failed[min(result.failed)])
    python_values: list[Any] = result.values.to_pylist()
    return python_values


def refused(text: str, **changed: Any) -> str:
    with pytest.raises(ExpressionError) as caught:
        value(text, **changed)
    return str(caught.value)


# --- three-valued logic ---------------------------------------------------------------------------------------------

TRUTH = [
    # a      b      AND    OR
    (True, True, True, True),
    (True, False, False, True),
    (True, None, None, True),
    (False, True, False, True),
    (False, False, False, False),
    (False, None, False, None),
    (None, True, None, True),
    (None, False, False, None),
    (None, None, None, None),
]
SQL = {True: "TRUE", False: "FALSE", None: "NULL"}


@pytest.mark.parametrize(("a", "b", "both", "either"), TRUTH)
def test_and_or(a: bool | None, b: bool | None, both: bool | None, either: bool | None) -> None:
    assert value(f"{SQL[a]} AND {SQL[b]}") is both
    assert value(f"{SQL[a]} OR {SQL[b]}") is either
    assert value("o.b AND " + SQL[b], b=a) is both
    assert value("o.b OR " + SQL[b], b=a) is either


@pytest.mark.parametrize(("a", "expected"), [(True, False), (False, True), (None, None)])
def test_not(a: bool | None, expected: bool | None) -> None:
    assert value("NOT o.b", b=a) is expected
    assert value(f"NOT {SQL[a]}") is expected


@pytest.mark.parametrize(
    ("a", "is_null", "is_true", "is_false"),
    [(True, False, True, False), (False, False, False, True), (None, True, False, False)],
)
def test_is(a: bool | None, is_null: bool, is_true: bool, is_false: bool) -> None:
    for name, expected in (("NULL", is_null), ("TRUE", is_true), ("FALSE", is_false)):
        assert value(f"o.b IS {name}", b=a) is expected
        assert value(f"o.b IS NOT {name}", b=a) is not expected


@pytest.mark.parametrize("operator", ["=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%"])
def test_null_on_either_side_gives_null(operator: str) -> None:
    assert value(f"o.i {operator} 1", i=None) is None
    assert value(f"1 {operator} o.i", i=None) is None
    assert value(f"o.i {operator} NULL") is None


# --- operators ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("o.i = 7", True), ("o.i == 8", False), ("o.i <> 7", False), ("o.i != 8", True),
        ("o.i < 7", False), ("o.i <= 7", True), ("o.i > 7", False), ("o.i >= 7", True),
        ("o.i > o.j", True), ("o.i > o.d", True), ("o.m = 5.5", True), ("o.m > o.i", False), ("o.d = 1.5", True),
        ("'B' < 'a'", True), ("'\u00e9' > 'z'", True), ("o.b = TRUE", True), ("o.i > 99999999999999999999", False),
        ("o.i + o.j", 10), ("o.i - 10", -3), ("o.i * 2", 14), ("-o.i", -7), ("o.i / 2", 3.5), ("o.m / 2", 2.75),
        ("o.i % 4", 3), ("-o.i % 4", -3), ("o.i % -4", 3), ("MOD(o.i, 4)", 3), ("o.d % 1", 0.5),
        ("o.i % 2.5e0", 2.0), ("(-9223372036854775807 - 1) % -1", 0),
        ("o.i / 0", None), ("o.d / 0", None), ("o.m / 0", None), ("o.i % 0", None), ("o.d % 0", None),
        ("o.m + 1", Decimal("6.50")), ("o.m * 1.10", Decimal("6.05")), ("0.1 + 0.2 = 0.3", True),
        ("0.1e0 + 0.2e0 = 0.3e0", False), ("1.5", Decimal("1.5")), (".5", Decimal("0.5")), ("1e3", 1000.0),
        ("o.i BETWEEN 7 AND 9", True), ("o.i BETWEEN 5 AND 7", True), ("o.i BETWEEN 8 AND 9", False),
        ("o.i NOT BETWEEN 8 AND 9", True), ("o.i BETWEEN NULL AND 6", False), ("o.i BETWEEN NULL AND 8", None),
        ("o.i IN (1, 7)", True), ("o.i IN (1, 2)", False), ("o.i IN (1, NULL)", None), ("o.i IN (7, NULL)", True),
        ("o.i NOT IN (1, 2)", True), ("o.i NOT IN (1, NULL)", None), ("o.i NOT IN (7, NULL)", False),
        ("o.i IN (o.j, 7)", True), ("NULL IN (1)", None),
        ("o.i IS DISTINCT FROM o.i", False), ("o.i IS DISTINCT FROM NULL", True),
        ("o.i IS NOT DISTINCT FROM 7.0", True),
        ("NULL IS NOT DISTINCT FROM NULL", True), ("NULL IS DISTINCT FROM o.i", True),
        ("o.s LIKE 'a%'", True), ("o.s LIKE 'b%'", False), ("o.s LIKE 'a_c'", True), ("o.s LIKE 'a.c'", False),
        ("o.s LIKE 'A%'", False), ("o.s ILIKE 'A%'", True), ("o.s NOT LIKE 'b%'", True), ("o.s NOT LIKE 'a%'", False),
        ("o.s NOT ILIKE 'A%'", False), ("NOT o.s LIKE 'b%'", True),
        ("o.s LIKE o.s", True), ("o.s LIKE LEFT(o.s, 1) || '%'", True), ("o.s NOT LIKE UPPER(o.s)", True),
        ("o.s ILIKE UPPER(o.s)", True), ("o.s LIKE NULL", None), ("'a%' LIKE 'a!%' ESCAPE '!'", True),
        ("o.s LIKE 'a!%' ESCAPE '!'", False), ("o.s NOT LIKE 'a!%' ESCAPE '!'", True),
        ("o.s ILIKE 'A%' ESCAPE ''", True), ("'a%' LIKE 'a\\%'", True),
        ("o.s || '-' || o.s", "abc-abc"), ("LOWER('AbC')", "abc"), ("UPPER(o.s)", "ABC"), ("TRIM('  a ')", "a"),
        ("LENGTH('\u00e9a')", 2), ("SUBSTRING(o.s, 2)", "bc"), ("SUBSTRING(o.s, 2, 1)", "b"),
        ("SUBSTRING(o.s FROM 1 FOR 2)", "ab"), ("SUBSTRING(o.s, 9)", ""), ("ABS(-o.i)", 7),
        ("CASE WHEN o.i > 9 THEN 'big' WHEN o.i > 5 THEN 'middle' ELSE 'small' END", "middle"),
        ("CASE WHEN o.i > 9 THEN 1 END", None), ("CASE o.s WHEN 'abc' THEN 1 ELSE 2 END", 1),
        ("CASE WHEN NULL THEN 1 ELSE 2 END", 2),
        ("CASE WHEN o.b THEN 1 ELSE 2.5 END", Decimal("1.0")),
        ("COALESCE(NULL, o.i)", 7), ("COALESCE(o.j, o.i)", 3), ("IFNULL(NULL, 4)", 4), ("COALESCE(NULL, NULL)", None),
        ("CAST('12' AS INT)", 12), ("o.i::double", 7.0), ("CAST(o.i AS VARCHAR)", "7"), ("CAST(o.b AS INT)", 1),
        ("CAST(o.i AS DECIMAL(10, 2))", Decimal("7.00")), ("CAST(o.m AS DOUBLE)", 5.5),
        ("CAST(o.j AS DECIMAL)", Decimal(3)), ("CAST('1.5' AS DECIMAL(3, 1))", Decimal("1.5")),
        ("CAST('true' AS BOOLEAN)", True),
        ("CAST(o.ts AS DATE)", date(2024, 1, 1)), ("o.ts::date = o.day", True),
        ("CAST(o.day AS TIMESTAMP) = o.ts", True),
        ("CAST('2024-02-' || '29' AS DATE)", date(2024, 2, 29)), ("TRY_CAST('2024-02-' || '30' AS DATE)", None),
        ("CAST(o.ts - INTERVAL '1' MILLISECOND AS DATE)", date(2023, 12, 31)),
        ("o.day = DATE '2024-01-01'", True), ("o.ts = TIMESTAMP '2024-01-01 00:00:00'", True),
        ("o.ts = TIMESTAMP '2024-01-01T01:00:00+01:00'", True),
        ("o.ts + INTERVAL '1' HOUR = TIMESTAMP '2024-01-01 01:00:00'", True),
        ("o.ts - INTERVAL '1' DAY = TIMESTAMP '2023-12-31'", True),
        ("o.ts - TIMESTAMP '2023-12-31'", timedelta(days=1)),
        ("INTERVAL '1.5' SECOND", timedelta(milliseconds=1500)), ("INTERVAL '2 minutes'", timedelta(minutes=2)),
        ("INTERVAL -1 DAY", timedelta(days=-1)), ("INTERVAL '250' MILLISECONDS", timedelta(milliseconds=250)),
        ("o.ts BETWEEN o.ts - INTERVAL '1' SECOND AND o.ts", True),
    ],
)  # fmt: skip
def test_values(text: str, expected: Any) -> None:
    result = value(text)
    assert result == expected
    assert type(result) is type(expected)


def test_case_and_coalesce_choose_per_row() -> None:
    rows = [{**ROW, "b": b, "i": i} for b, i in ((True, 1), (False, 2), (None, None))]
    assert values("CASE WHEN o.b THEN 'yes' ELSE 'no' END", rows) == ["yes", "no", "no"]
    assert values("COALESCE(o.i, 0)", rows) == [1, 2, 0]


def test_nan_compares_as_in_ieee_754() -> None:
    nan = math.nan
    assert [value(f"o.d {op} o.d", d=nan) for op in ("=", "<", ">", "<=", ">=", "<>")] == [False] * 5 + [True]
    assert value("o.d IN (o.d)", d=nan) is False
    assert value("o.d IS NULL", d=nan) is False


def test_like_takes_line_breaks_as_characters() -> None:
    assert value("o.s LIKE 'a%c'", s="a\nc") is True


@pytest.mark.parametrize(
    "text",
    ["o.i + 9223372036854775807", "o.i * 9223372036854775807", "-o.i - 9223372036854775807", "o.j + o.j",
     "ABS(-9223372036854775807 - 1)", "-(-9223372036854775807 - 1)"],
)  # fmt: skip
def test_overflow_is_an_error_that_names_the_expression(text: str) -> None:
    message = refused(text, j=2**31 - 1)
    assert repr(text) in message
    assert "overflow" in message


@pytest.mark.parametrize(
    "text", ["CAST(o.d AS INT)", "CAST(o.s AS INT)", "CAST(99999999999 AS INT)", "CAST(o.i AS DECIMAL(2, 2))"]
)
def test_a_value_that_does_not_fit_its_cast_is_an_error(text: str) -> None:
    assert repr(text) in refused(text)


def test_digits_of_another_script_are_no_time() -> None:
    assert "the text is no date or time" in refused("TO_TIMESTAMP(o.s)", s="2024-07-01 \u0661\u0662:30")


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "No expression"),
        ("o.i +", "Line 1, Col: 5"),
        ("o.i = 1; o.i = 2", "not supported"),
        ("SELECT 1", "found Select"),
        ("o.i = (SELECT 1)", "found Subquery"),
        ("o.i IN (SELECT 1)", "not supported"),
        ("foo(o.i)", "'FOO(o.i)': there is no function FOO"),
        ("UPER(o.s)", "there is no function UPER (did you mean 'UPPER'?); docs/functions.md lists all"),
        ("LEFT(o.s)", "found 1 argument, and the function is LEFT(text string, length integer)"),
        ("LEFT(o.i, 1)", "its text must be string, found int64; the function is LEFT(text string, length integer)"),
        ("ROUND(o.d, o.i)", "its digits must be a constant, no column and not NULL"),
        ("LOG(o.d)", "the function is LOG(base double, x double)"),
        ("REGEXP_LIKE(o.s, '(')", "its pattern is none that RE2 understands"),
        ("REGEXP_LIKE(o.s, 'a', 'x')", "its flags are i (any case)"),
        ("REGEXP_EXTRACT(o.s, 'a', 1)", "its pattern has 0 groups, and its group is 1"),
        ("SHA2(o.s, 1)", "its bits must be 224, 256, 384 or 512, found 1"),
        ("NORMALIZE(o.s, NFX)", "its form must be NFC, NFD, NFKC or NFKD"),
        ("RANDOM() > o.d", "gives other values in a replay, which must give the same rows"),
        ("now() > o.ts", "NOW reads the clock, and a replay must give the same rows"),
        ("CURRENT_USER = o.s", "depends on who runs the job"),
        ("NVL2(o.i, 1, 2)", "NVL2 is CASE WHEN x IS NOT NULL THEN a ELSE b END here"),
        ("CEIL(o.ts TO DAY)", "found Ceil"),
        ("COUNT(o.i) > 1", "found Count"),
        ("CURRENT_TIMESTAMP > o.ts", "CURRENT_TIMESTAMP reads the clock"),
        ("o.i IS NOT DISTINCT FROM 'a'", "do not go together"),
        ("o.i BETWEEN SYMMETRIC 9 AND 1", "Between with symmetric"),
        ("o.s LIKE 'a#%' ESCAPE '##'", "ESCAPE names one character"),
        ("o.s LIKE o.i", "expected string"),
        ("o.s SIMILAR TO 'a|b'", "Write REGEXP_LIKE"),
        ("o.s LIKE ANY ('a%', 'b%')", "with OR between them"),
        ("x.o.i = 1", "'x.o.i' is not supported"),
        ("o.* = 1", "found Star"),
        ("SUBSTRING(o.s)", "found 1 argument, and the function is SUBSTRING(text string, start integer"),
        ("SUBSTRING(o.s, 0)", "counts from 1"),
        ("SUBSTRING(o.s, 1, -1)", "the length of SUBSTRING is negative"),
        ("INTERVAL 'x' HOUR", "must be a number"),
        ("INTERVAL o.i HOUR", "must be a number"),
        ("INTERVAL '1' MONTH", "the unit must be one of MILLISECOND"),
        ("INTERVAL '5'", "the unit must be one of"),
        ("CAST(o.i AS VARCHAR(3))", "cannot cast to VARCHAR(3)"),
        ("CAST(o.i AS SMALLINT)", "cannot cast to SMALLINT"),
        ("CAST(o.i AS DATE)", "cannot cast int64 to date"),
        ("CAST(o.s AS TIMESTAMP)", "write TO_TIMESTAMP(text, 'yyyy-MM-dd HH:mm:ss')"),
        ("CAST(o.s AS DATE)", "'abc' is not a valid date"),
        ("JSON_VALUE(o.s, 'a')", "its path is like $.name"),
        ("JSON_VALUE(o.s, '$.a[*]')", "its path is like $.name"),
        ("YEAR(o.s)", "its time must be timestamp, found string"),
        (
            "DATE_FORMAT(o.i, 'yyyy')",
            "its time must be timestamp, found int64; the time of a number of milliseconds is ",
        ),
        ("DATE_TRUNC('fortnight', o.ts)", "its unit must be one of MILLISECOND, SECOND"),
        ("DATE_TRUNC('day', o.ts, 'Europe/Atlantis')", "'Europe/Atlantis' is no time zone"),
        ("DATE_FORMAT(o.ts, 'YYYY')", "its pattern has 'YYYY', known are yyyy"),
        ("STRFTIME(o.ts, '%f')", "its pattern has '%f', known are %Y"),
        ("TO_TIMESTAMP(o.s, 'HH:mm')", "its pattern must name the year and the day"),
        ("TO_CHAR(o.ts, 'YYYY')", "is DATE_FORMAT(time, 'yyyy-MM-dd')"),
        ("DATE '2024-13-01'", "expected ISO 8601"),
        ("o.m % 2", "not decimals"),
        ("o.s / 2", "expected a number, found string"),
        ("o.s + 1", "string and int64 do not go together"),
        ("o.i = 'x'", "int64 and string do not go together"),
        ("NOT o.i", "expected boolean, found int64"),
        ("o.i AND o.b", "expected boolean, found int64"),
    ],
)
def test_refusals_name_the_text_and_the_reason(text: str, reason: str) -> None:
    assert reason in refused(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("o.i", "'o.i' is not a condition: it gives int64, not boolean"),
        ("o.nope = 1", "'o.nope = 1' uses unknown column 'o.nope': o has i, j, d, m, s, b, ts, day"),
        ("p.i = 1", "'p.i = 1' uses 'p.i': the inputs are o. Write a column as <input>.<column>"),
        ("i = 1", "'i = 1' uses 'i': the inputs are o. Write a column as <input>.<column>"),
    ],
)
def test_predicates_are_checked_against_the_inputs(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        check_predicate(parse_expression(text), {"o": SCHEMA})
    assert str(caught.value) == message


def test_type_errors_show_before_any_row_is_read() -> None:
    with pytest.raises(ExpressionError, match="cannot evaluate"):
        check_predicate(parse_expression("o.i > 'a'"), {"o": SCHEMA})


# --- predicates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"), [("o.b", [True, False, False]), ("NULL", [False] * 3), ("TRUE", [True] * 3)]
)
def test_a_mask_keeps_only_what_is_true(text: str, expected: list[bool]) -> None:
    expression = parse_expression(text)
    check_predicate(expression, {"o": SCHEMA})
    mask = expression.mask(lambda ref: pa.array([True, False, None]), 3)
    assert mask.values.to_pylist() == expected


def test_conjuncts_take_an_and_apart_and_conjunction_puts_it_back() -> None:
    condition = parse_expression("(o.i > 1 AND (o.j = 2 OR p.k = 3)) AND p.k < 4")
    parts = conjuncts(condition)
    assert [part.text for part in parts] == ["o.i > 1", "o.j = 2 OR p.k = 3", "p.k < 4"]
    assert [sorted(map(str, part.columns)) for part in parts] == [["o.i"], ["o.j", "p.k"], ["p.k"]]
    again = conjunction(parts)
    assert again is not None
    assert again.columns == condition.columns == {ColumnRef("o", "i"), ColumnRef("o", "j"), ColumnRef("p", "k")}
    for i, j, k in ((2, 0, 3), (2, 2, 3), (0, 2, 3), (2, 0, 0), (2, 2, 4)):
        columns = {"i": pa.array([i]), "j": pa.array([j]), "k": pa.array([k])}
        both = [e.mask(lambda ref, c=columns: c[ref.column], 1).values.to_pylist() for e in (condition, again)]
        assert both[0] == both[1]
    assert conjunction([]) is None


# --- the document ---------------------------------------------------------------------------------------------------


def documented() -> list[tuple[str, str]]:
    text = DOCUMENT.read_text().partition("## What is supported")[2].partition("Types of CAST and")[0]
    cells = [
        [cell.strip().replace("\0", "|") for cell in line.replace("\\|", "\0").split("|")[1:-1]]
        for line in text.splitlines()
        if line.startswith("| ")
    ]
    return [(example.strip("`"), gives.strip("`")) for _, example, gives in cells if example.startswith("`")]


@pytest.mark.parametrize(("example", "gives"), documented())
def test_documented_examples(example: str, gives: str) -> None:
    same = f"({example}) IS NULL" if gives == "NULL" else f"({example}) = ({gives})"
    assert value(same) is True


def test_every_supported_node_is_documented() -> None:
    """The words under which the document lists them; a new node must be added here and there."""
    words = {
        "And": "AND", "Or": "OR", "Not": "NOT", "EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">=",
        "Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "Mod": "%", "DPipe": "\\|\\|", "Literal": "literals",
        "Boolean": "`TRUE`", "Null": "`NULL`", "Paren": "example", "Neg": "unary", "Is": "IS [NOT] NULL",
        "In": "[NOT] IN", "Between": "BETWEEN", "Like": "[NOT] LIKE", "ILike": "[NOT] ILIKE", "Escape": "ESCAPE",
        "Case": "CASE WHEN", "Coalesce": "COALESCE", "Cast": "CAST(", "TryCast": "TRY_CAST(",
        "Interval": "INTERVAL 'n' unit",
        "NullSafeEQ": "IS [NOT] DISTINCT FROM", "NullSafeNEQ": "IS [NOT] DISTINCT FROM",
    }  # fmt: skip
    supported = {kind.__name__ for kind in (*evaluation._BINARY, *evaluation._UNARY, *evaluation._SPECIAL)}
    assert supported == set(words)
    table = DOCUMENT.read_text().partition("## What is supported")[2].partition("Types of CAST and")[0]
    assert [word for word in words.values() if word not in table] == []
