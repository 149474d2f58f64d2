"""Every scalar function: its example, its values beside DuckDB's or Python's, and what it says of itself."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from time import process_time as time_spent
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.pipeline.functions.cases import CASES, VALUES, Case
from joinery_devkit.functions import page, signatures
from joinery_runtime.core.pipeline.expression import ColumnRef, parse_expression
from joinery_runtime.core.pipeline.functions import FAMILIES, FUNCTIONS
from joinery_runtime.job.model import function_signatures

ALL = [function for family in FAMILIES for function in family.functions]
TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "part": pa.string(),
    "count": pa.int64(),
    "small": pa.int64(),
    "integer": pa.int64(),
    "double": pa.float64(),
    "decimal": pa.decimal128(11, 3),
    "timestamp": pa.timestamp("ms", "UTC"),
    "inside": pa.timestamp("ms", "UTC"),
    "month": pa.int64(),
    "day": pa.int64(),
    "year": pa.int64(),
    "clock": pa.string(),
    "json": pa.string(),
}
RANDOM: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
    "part": st.text("ab-ñ語.", max_size=2),
    "count": st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 20),
    "small": st.integers(-3, 20),
    "integer": st.integers(-(2**63), 2**63 - 1) | st.integers(-20, 100),
    "double": st.floats(allow_nan=True, allow_infinity=True),
    "timestamp": st.datetimes().map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)),
    "inside": st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31)).map(
        lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    ),
    "month": st.integers(-1, 14),
    "day": st.integers(-1, 33),
    "year": st.integers(-1, 10_001),
    "json": st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text('aé"\\ ', max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        max_leaves=6,
    ).map(json.dumps),
    "clock": st.datetimes().map(lambda moment: moment.strftime("%Y-%m-%d %H:%M")) | st.text("0123-: ", max_size=16),
    "decimal": st.decimals(-99999999, 99999999, places=3),
}
PAIRS = [(name, case) for name, cases in CASES.items() for case in cases]
MOST_ROWS = 1_500


def ours(text: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> tuple[list[Any], set[int]]:
    """The values, and the numbers of the rows that fail."""
    expression = parse_expression(text, "t")
    arrays = {
        letter: pa.array([row[i] for row in rows], TYPES[kind])
        for i, (letter, kind) in enumerate(zip("abcd", columns, strict=False))
    }
    evaluated = expression.evaluate(lambda ref: arrays[ref.column], len(rows))
    return evaluated.values.to_pylist(), set(evaluated.failed)


def theirs(text: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    names = [*"abcd"[: len(columns)]]
    drawn_rows = pa.table(  # noqa: F841  # DuckDB reads the variable
        {
            "n": pa.array(range(len(rows)), pa.int64()),
            **{
                name: pa.array(
                    [row[i] for row in rows], pa.timestamp("ms") if kind in {"timestamp", "inside"} else TYPES[kind]
                )
                for i, (name, kind) in enumerate(zip(names, columns, strict=True))
            },
        }
    )
    rows_of_duckdb = database().execute(f"SELECT TRY({text}) FROM drawn_rows ORDER BY n").fetchall()
    return [row[0] for row in rows_of_duckdb]


@cache
def database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})


def same(one: Any, other: Any) -> bool:
    if isinstance(one, datetime):
        one = one.replace(tzinfo=None)
    if isinstance(other, datetime) and type(one) is date and other.time() == time():
        other = other.date()
    if isinstance(one, datetime) and type(other) is date:
        other = datetime.combine(other, time())
    if isinstance(one, float) and isinstance(other, (int, float)):
        return (
            (math.isnan(one) and math.isnan(other))
            or one == other
            or math.isclose(one, other, rel_tol=1e-11, abs_tol=1e-300)
        )
    if isinstance(other, Decimal) or isinstance(one, Decimal):
        return one is not None and other is not None and Decimal(one) == Decimal(other)
    return bool(one == other) and (one is None) == (other is None)


def compare(case: Case, rows: Sequence[tuple[Any, ...]]) -> set[int]:
    """Compare all rows, and return the numbers of those that fail."""
    values, failed = ours(case.ours, case.columns, rows)
    if case.theirs is not None:
        expected = theirs(case.theirs, case.columns, rows)
    else:
        assert case.expected is not None
        expected = []
        for row in rows:
            try:
                expected.append(None if None in row else case.expected(*row))
            except ValueError:
                expected.append(None)
                assert len(expected) - 1 in failed, f"{case.ours} of {row!r} does not fail"
    different = [
        (row, value, other) for row, value, other in zip(rows, values, expected, strict=True) if not same(value, other)
    ]
    assert not different, f"{case.ours} and {case.theirs}: (row, ours, theirs): {different[:5]}"
    return failed


def nasty_rows(case: Case) -> list[tuple[Any, ...]]:
    rows = list(itertools.product(*(VALUES[kind] for kind in case.columns)))
    return rows if len(rows) <= MOST_ROWS else random.Random(7).sample(rows, MOST_ROWS)


@pytest.mark.parametrize("name", CASES)
def test_nasty_values(name: str) -> None:
    for case in CASES[name]:
        failed = compare(case, nasty_rows(case))
        assert not failed or FUNCTIONS[name].fails, f"{case.ours} fails, and its entry does not say so"


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_random_values(data: st.DataObject) -> None:
    name, case = data.draw(st.sampled_from(PAIRS))
    rows = data.draw(st.lists(st.tuples(*(st.none() | RANDOM[kind] for kind in case.columns)), min_size=1, max_size=20))
    failed = compare(case, rows)
    assert not failed or FUNCTIONS[name].fails


def test_every_function_is_compared() -> None:
    assert set(CASES) == {function.name for function in ALL}
    assert len(FUNCTIONS) == sum(1 + len(function.synonyms) for function in ALL), "a name means two functions"


def test_every_example_has_its_value_and_type() -> None:
    texts = [
        f"({function.example}) IS NULL" if function.result == "NULL" else f"({function.example}) = ({function.result})"
        for function in ALL
    ]
    values = {text: parse_expression(text).evaluate(lambda ref: None, 1).values.to_pylist() for text in texts}
    assert not {text: value for text, value in values.items() if value != [True]}


def test_no_type_depends_on_the_rows() -> None:
    for name, case in PAIRS:
        expression = parse_expression(case.ours, "t")
        types = dict(zip("abcd", (TYPES[kind] for kind in case.columns), strict=False))

        def column(rows: int, ref: ColumnRef, types: Mapping[str, pa.DataType] = types) -> pa.Array:
            return pa.nulls(rows, types[ref.column])

        empty, nulls = (expression.evaluate(partial(column, rows), rows).values for rows in (0, 3))
        assert empty.type == nulls.type, case.ours
        assert FUNCTIONS[name].nulls or nulls.null_count == 3, case.ours


def test_the_generated_files_are_current() -> None:
    root = Path(__file__).parents[4]
    assert (root / "docs/functions.md").read_text() == page() + "\n", "run `make crds`"
    assert Path(function_signatures.__file__).read_text() == signatures() + "\n", "run `make crds`"


def number(text: str, column: pa.Array) -> list[object]:
    values = parse_expression(text, "r").evaluate(lambda _: column, len(column))
    assert not values.failed
    return list(values.values.to_pylist())


@pytest.mark.parametrize("digits", [2, 11, 12, 15])
@pytest.mark.parametrize("function", ["ROUND", "BROUND", "TRUNC"])
def test_a_number_that_has_no_more_digits_is_not_rounded(function: str, digits: int) -> None:
    """Arrow's own rounding gives 0.099999999998 for 0.1, and fails for 1e307."""
    numbers = [0.1, 0.29, -1.07, 1e307, -1.7e308, float("inf"), 0.0, None, 2.0**60]
    assert number(f"{function}(r.x, {digits})", pa.array(numbers)) == numbers


def test_numbers_are_rounded_before_the_point_too() -> None:
    numbers = pa.array([1e308, 149.0, 150.0, -250.0, 0.4])
    assert number("ROUND(r.x, -308)", numbers) == [1e308, 0, 0, 0, 0]
    assert number("ROUND(r.x, -400)", numbers) == [0, 0, 0, 0, 0]
    assert number("ROUND(r.x, -2)", numbers)[1:] == [100, 200, -300, 0]
    assert number("BROUND(r.x, -2)", numbers)[1:] == [100, 200, -200, 0]
    assert number("ROUND(r.x, -10)", pa.array([5, 2**31 - 1, None], pa.int32())) == [0, 0, None]
    assert number("ROUND(r.x, -9)", pa.array([5, 2**31 - 1, None], pa.int32())) == [0, 2_000_000_000, None]


def test_a_shift_by_63_bits_leaves_the_sign() -> None:
    numbers = pa.array([5, -7, 2**63 - 1, -(2**63), None], pa.int64())
    assert number("SHIFTRIGHT(r.x, 63)", numbers) == [0, -1, 0, -1, None]
    assert number("SHIFTLEFT(r.x, 63)", numbers) == [-(2**63), -(2**63), -(2**63), 0, None]
    assert number("SHIFTRIGHT(r.x, 62)", numbers) == [0, -1, 1, -2, None]


def evaluated_texts(expression: str, *rows: tuple[str, str]) -> tuple[list[Any], Mapping[int, str]]:
    batch = pa.RecordBatch.from_pylist([{"s": text, "p": part} for text, part in rows])
    result = parse_expression(expression).evaluate(lambda ref: batch.column(ref.column), len(rows))
    return result.values.to_pylist(), result.failed


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("STRPOS(t.s, t.p)", 0),
        ("POSITION(t.p IN t.s)", 0),
        ("CONTAINS(t.s, t.p)", False),
        ("SPLIT_PART(t.s, t.p, 2)", ""),
    ],
)
def test_a_long_part_is_looked_for_in_little_time(expression: str, value: object) -> None:
    """A record has both. Of a single row, Polars would compile the part as a pattern."""
    began = time_spent()
    assert evaluated_texts(expression, ("a" * 300_000, "a" * 150_000 + "b")) == ([value], {})
    assert time_spent() - began < 5


def test_a_replacement_from_a_column_does_not_grow_without_bound() -> None:
    """A record of 1 MB would become a text of 250 GB."""
    rows = [
        ("a" * 30_000, "b" * 30_000),
        ("a" * 100_000, ""),
        ("a" * 100_000, "c"),
        ("a" * 3, "b" * 21_845),
        ("x", "y" * 70_000),
    ]
    values, failed = evaluated_texts("REPLACE(t.s, 'a', t.p)", *rows)
    assert values == [None, "", "c" * 100_000, "b" * 65_535, "x"]
    assert list(failed) == [0]
    assert "longer than 65,535 characters" in failed[0]


def test_a_panic_of_polars_fails_its_rows_and_not_the_task() -> None:
    """A panic is a BaseException, which would end each attempt at the epoch."""
    values, failed = ours("SPLIT_PART(a, '-', -9223372036854775807 - 1)", ["string"], [("a-b",), ("c",)])
    assert values == [None, None]
    assert failed == {0, 1}
