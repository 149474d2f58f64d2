"""A row on which an expression fails has a reason, and its neighbours have their values; what is guarded is computed
for the rows that need it."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from joinery_runtime.core.pipeline.expression import Evaluated, check_predicate, parse_expression
from joinery_runtime.errors import ExpressionError

SCHEMA = pa.schema([("i", pa.int64()), ("s", pa.string()), ("b", pa.bool_())])
LARGEST = 2**63 - 1
Row = dict[str, Any]


def evaluated(text: str, *rows: Row) -> Evaluated:
    batch = pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=SCHEMA)
    return parse_expression(text).evaluate(lambda ref: batch.column(ref.column), len(rows))


def test_a_row_that_fails_is_named_with_the_expression_and_the_cause() -> None:
    result = evaluated("CAST(o.s AS BIGINT) + o.i", {"s": "1", "i": 1}, {"s": "x", "i": 1}, {"s": "2", "i": LARGEST})
    assert result.values.to_pylist() == [2, None, None]
    assert result.failed == {
        1: "cannot evaluate 'CAST(o.s AS BIGINT) + o.i': 'x' is not a valid int64",
        2: "cannot evaluate 'CAST(o.s AS BIGINT) + o.i': overflow",
    }


def test_few_bad_rows_of_many_are_found() -> None:
    bad = {0, 1, 4_095, 4_096, 9_999}
    result = evaluated("o.i + 1", *({"i": LARGEST if n in bad else n} for n in range(10_000)))
    assert set(result.failed) == bad
    assert result.values.to_pylist() == [None if n in bad else n + 1 for n in range(10_000)]


NO_DECIMALS = ["1e-999999999", "-1E-99", "1e-77", "1e-76", "1e-39", "1e-3", "1e-x", "nan", "1_0e-2", " 1e-2 ", "1e-2\n",
               "\u0661e-1", f"1e-{'9' * 30}", f"0.{'0' * 45}1", f"0.{'0' * 76}1", f"0.{'0' * 5_000_000}1"]  # fmt: skip
DECIMALS = {
    "0e-999999999": "0.00",
    "125e-2": "1.25",
    "-1.50E-0": "-1.50",
    f"0.{'0' * 100}": "0.00",
    f"1.{'0' * 100}": "1.00",
    f"-.5{'0' * 50}": "-0.50",
}


def test_a_number_with_too_many_digits_behind_the_point_is_no_decimal() -> None:
    """Arrow's cast ends the process at the first one and at the last one, and reads `1e-77` as 0."""
    texts = [*NO_DECIMALS, *DECIMALS, None]
    for function in ("CAST", "TRY_CAST"):
        result = evaluated(f"{function}(o.s AS DECIMAL(10, 2))", *({"s": text} for text in texts))
        assert result.values.to_pylist() == [*[None] * len(NO_DECIMALS), *map(Decimal, DECIMALS.values()), None]
        assert set(result.failed) == (set(range(len(NO_DECIMALS))) if function == "CAST" else set())
    (reason,) = evaluated("CAST(o.s AS DECIMAL(10, 2))", {"s": texts[0]}).failed.values()
    assert reason.endswith("'1e-999999999' is not a valid decimal(10,2)")
    with pytest.raises(ExpressionError, match="1e-999999999"):
        evaluated("CAST('1e-999999999' AS DECIMAL(10, 2))", {})


TEXTS = [
    *(
        "",
        " ",
        "7",
        "-7",
        "+7",
        " 7",
        "7 ",
        "7\n",
        "0x1f",
        "-0x1f",
        "1_0",
        "\u0661",
        "0",
        "1",
        "2",
        "9999999999999999999999",
    ),
    *("1.5", ".5", "5.", "-.5e3", "1e400", "e5", "inf", "-Infinity", "nan", "NaN"),
    *("true", "False", "TRUE", "t", "x", "abc", "N/A"),
]


@pytest.mark.parametrize("kind", ["INT", "BIGINT", "REAL", "DOUBLE", "DECIMAL(20, 5)", "BOOLEAN"])
def test_many_texts_are_cast_as_one_is(kind: str) -> None:
    """The patterns that tell the many unreadable ones at once refuse nothing that the cast takes."""
    together = evaluated(f"TRY_CAST(o.s AS {kind})", *({"s": text} for text in TEXTS))
    arrow = together.values.type
    for text, scalar in zip(TEXTS, together.values, strict=True):
        try:
            expected = pa.array([text]).cast(arrow)[0]
        except pa.ArrowInvalid:
            expected = pa.scalar(None, arrow)
        assert str(scalar) == str(expected), text


def test_a_long_text_is_cut_in_the_reason() -> None:
    (reason,) = evaluated("CAST(o.s AS INT)", {"s": "x" * 10_000}).failed.values()
    assert len(reason) < 200


def test_a_row_that_fails_is_not_in_the_mask() -> None:
    batch = pa.RecordBatch.from_pylist([{"i": LARGEST}, {"i": 1}], schema=SCHEMA)
    mask = parse_expression("(o.i + 1 > 0) IS NOT TRUE OR TRUE").mask(lambda ref: batch.column(ref.column), 2)
    assert mask.values.to_pylist() == [False, True]
    assert list(mask.failed) == [0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("o.b AND CAST(o.s AS INT) = 7", False),
        ("NOT o.b OR CAST(o.s AS INT) = 7", True),
        ("CASE WHEN o.b THEN CAST(o.s AS INT) ELSE 0 END", 0),
        ("CASE WHEN o.b THEN CAST(o.s AS INT) END", None),
        ("CASE WHEN NOT o.b THEN 1 WHEN CAST(o.s AS INT) = 7 THEN 2 END", 1),
        ("CASE o.s WHEN 'x' THEN 1 WHEN CAST(CAST(o.s AS INT) AS VARCHAR) THEN 2 END", 1),
        ("COALESCE(o.i, CAST(o.s AS INT))", 5),
        ("TRY_CAST(o.s AS INT)", None),
        ("COALESCE(TRY_CAST(o.s AS INT), -1)", -1),
        ("o.b AND (o.i > 0 OR CAST(o.s AS INT) = 7)", False),
    ],
)
def test_what_is_guarded_does_not_fail(text: str, expected: Any) -> None:
    """Beside a row that needs it, and so computes it."""
    result = evaluated(text, {"i": 5, "s": "x", "b": False}, {"i": None, "s": "7", "b": True})
    assert result.failed == {}
    assert result.values[0].as_py() == expected
    assert result.values[1].as_py() in {True, 7, 2}


@pytest.mark.parametrize(
    "text",
    [
        "CAST(o.s AS INT) = 7 AND o.b",
        "CAST(o.s AS INT) = 7 OR NOT o.b",
        "CASE WHEN CAST(o.s AS INT) = 7 THEN 1 ELSE 0 END",
        "COALESCE(CAST(o.s AS INT), o.i)",
        "o.i IN (5, CAST(o.s AS INT))",
    ],
)
def test_what_comes_first_is_guarded_by_nothing(text: str) -> None:
    assert list(evaluated(text, {"i": 5, "s": "x", "b": False}, {"i": 7, "s": "7", "b": True}).failed) == [0]


@pytest.mark.parametrize(
    "text", ["CAST('x' AS INT) = o.i", "9223372036854775807 + 1 = o.i", "o.b AND CAST('x' AS INT) = 1"]
)
def test_a_constant_that_fails_is_refused_before_any_row_is_read(text: str) -> None:
    with pytest.raises(ExpressionError, match="cannot evaluate"):
        check_predicate(parse_expression(text), {"o": SCHEMA})


def test_a_constant_that_try_cast_cannot_read_is_null() -> None:
    assert evaluated("TRY_CAST('x' AS INT)", {}, {}).values.to_pylist() == [None, None]


# --- against a reference that takes one row at a time -----------------------------------------------------------------


class Failed(Exception):
    pass


Node = tuple[str, Callable[[Row], Any]]  # SQL, and what it is on a row


def in_range(value: int | None) -> int | None:
    if value is not None and not -(2**63) <= value <= LARGEST:
        raise Failed
    return value


def cast(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.removeprefix("-").isdigit():
        raise Failed
    return in_range(int(text))


def try_cast(text: str | None) -> int | None:
    try:
        return cast(text)
    except Failed:
        return None


def arithmetic(operator: str, left: Node, right: Node) -> Node:
    def value(row: Row) -> int | None:
        a, b = left[1](row), right[1](row)
        return None if a is None or b is None else in_range(a + b if operator == "+" else a * b)

    return f"({left[0]} {operator} {right[0]})", value


def comparison(left: Node, right: Node) -> Node:
    def value(row: Row) -> bool | None:
        a, b = left[1](row), right[1](row)
        return None if a is None or b is None else a < b

    return f"({left[0]} < {right[0]})", value


def logic(operator: str, left: Node, right: Node) -> Node:
    decides = operator == "OR"

    def value(row: Row) -> bool | None:
        a = left[1](row)
        if a is decides:
            return a
        b = right[1](row)
        return b if b is decides or a is not None else None

    return f"({left[0]} {operator} {right[0]})", value


def case(condition: Node, then: Node, other: Node) -> Node:
    def value(row: Row) -> int | None:
        chosen = then if condition[1](row) else other
        result: int | None = chosen[1](row)
        return result

    return f"CASE WHEN {condition[0]} THEN {then[0]} ELSE {other[0]} END", value


def coalesce(first: Node, second: Node) -> Node:
    def value(row: Row) -> int | None:
        first_value: int | None = first[1](row)
        return second[1](row) if first_value is None else first_value

    return f"COALESCE({first[0]}, {second[0]})", value


LEAVES: list[Node] = [
    ("o.i", lambda row: row["i"]),
    ("3", lambda _: 3),
    ("9223372036854775807", lambda _: LARGEST),
    ("CAST(o.s AS BIGINT)", lambda row: cast(row["s"])),
    ("TRY_CAST(o.s AS BIGINT)", lambda row: try_cast(row["s"])),
]


@st.composite
def numbers(draw: st.DrawFn, depth: int = 3) -> Node:
    shape = draw(st.sampled_from(["leaf", "+", "*", "case", "coalesce"])) if depth else "leaf"
    if shape == "leaf":
        return draw(st.sampled_from(LEAVES))
    first, second = draw(numbers(depth - 1)), draw(numbers(depth - 1))
    if shape == "case":
        return case(draw(conditions(depth - 1)), first, second)
    return coalesce(first, second) if shape == "coalesce" else arithmetic(shape, first, second)


@st.composite
def conditions(draw: st.DrawFn, depth: int) -> Node:
    shape = draw(st.sampled_from(["column", "<", "AND", "OR"])) if depth else "column"
    if shape == "column":
        return "o.b", lambda row: row["b"]
    if shape == "<":
        return comparison(draw(numbers(depth - 1)), draw(numbers(depth - 1)))
    return logic(shape, draw(conditions(depth - 1)), draw(conditions(depth - 1)))


table = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.none() | st.sampled_from([0, 1, -2, LARGEST, -LARGEST - 1]),
            "s": st.none() | st.sampled_from(["7", "-1", "x", "", str(2**63), "1.5"]),
            "b": st.none() | st.booleans(),
        }
    ),
    min_size=1,
    max_size=40,
)


def alone(node: Node, row: Row) -> Any:
    try:
        return node[1](row)
    except Failed:
        return Failed


@settings(max_examples=examples(600), deadline=None)
@given(numbers(), table)
def test_every_row_has_the_value_or_the_failure_that_it_has_alone(node: Node, rows: list[Row]) -> None:
    try:
        check_predicate(parse_expression(f"({node[0]}) IS NULL"), {"o": SCHEMA})
    except ExpressionError:
        return  # a constant that always fails
    result = evaluated(node[0], *rows)
    values = [Failed if n in result.failed else value for n, value in enumerate(result.values.to_pylist())]
    assert values == [alone(node, row) for row in rows]
