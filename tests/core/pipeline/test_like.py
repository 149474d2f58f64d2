"""LIKE with one pattern for all rows, and with a pattern of each row: the same, and as in DuckDB."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples
from joinery_runtime.core.pipeline.expression import parse_expression
from joinery_runtime.core.pipeline.functions.patterns import match_like

characters = st.text("aAb%_!\\.(\n\u00e9", max_size=5)
pairs = st.lists(st.tuples(characters, characters), min_size=1, max_size=8)


def by_row(rows: list[tuple[str, str]], escape: str, *, any_case: bool = False) -> list[bool]:
    texts, patterns = (pa.array(column, pa.string()) for column in zip(*rows, strict=True))
    return match_like(texts, patterns, escape, any_case=any_case).to_pylist()


@settings(max_examples=examples(200), deadline=None)
@given(pairs, st.sampled_from(["!", "\\", ""]), st.booleans())
def test_a_pattern_of_each_row_matches_as_one_of_all_rows(
    rows: list[tuple[str, str]], escape: str, any_case: bool
) -> None:
    single = [
        match_like(pa.array([text]), pa.scalar(pattern), escape, any_case=any_case)[0].as_py() for text, pattern in rows
    ]
    assert by_row(rows, escape, any_case=any_case) == single


@settings(max_examples=examples(100), deadline=None)
@given(pairs, st.sampled_from(["!", "\\"]))
def test_patterns_match_as_in_duckdb(rows: list[tuple[str, str]], escape: str) -> None:
    # DuckDB rejects a pattern that ends with its escape character.
    complete = [(text, pattern) for text, pattern in rows if not pattern.replace(escape * 2, "").endswith(escape)]
    if not complete:
        return
    with duckdb.connect() as connection:
        query = f"SELECT text LIKE pattern ESCAPE '{escape}' FROM (SELECT unnest(?) AS text, unnest(?) AS pattern)"
        expected = connection.execute(query, [list(column) for column in zip(*complete, strict=True)]).fetchall()
    assert by_row(complete, escape) == [matches for (matches,) in expected]


@pytest.mark.parametrize(
    ("text", "pattern", "escape", "matches"),
    [
        ("50%", "50!%", "!", True),
        ("500", "50!%", "!", False),
        ("a_b", "a\\_b", "\\", True),
        ("a!", "a!", "!", True),  # at the end it stands for itself
        ("a\\", "a\\", "", True),
        ("a\\b", "a\\_", "", True),
    ],
)
def test_the_escape_character_takes_the_meaning_off(text: str, pattern: str, escape: str, matches: bool) -> None:
    assert by_row([(text, pattern)], escape) == [matches]
    assert match_like(pa.scalar(text), pa.scalar(pattern), escape, any_case=False).as_py() is matches


def test_null_matches_nothing() -> None:
    texts, nulls = pa.array(["a", None, "a"]), pa.array(["a", "a", None])
    assert match_like(texts, nulls, "\\", any_case=False).to_pylist() == [True, None, None]
    assert match_like(texts, pa.scalar(None, pa.string()), "\\", any_case=False).as_py() is None
    assert match_like(pa.scalar("a"), nulls, "\\", any_case=False).to_pylist() == [True, True, None]


@pytest.mark.parametrize(("like", "pattern"), [("LIKE", "_" * 10_001), ("ILIKE", "k" * 200_000)])
def test_a_pattern_that_is_too_long_fails_its_row_alone(like: str, pattern: str) -> None:
    """The data of a producer decide it, so it must not end the job."""
    columns = {"x": pa.array(["ab", "b"]), "p": pa.array([pattern, "%"])}
    result = parse_expression(f"x {like} p", "i").evaluate(lambda ref: columns[ref.column], 2)
    assert result.values.to_pylist() == [None, True]
    assert list(result.failed) == [0]
    assert f"a LIKE pattern has at most 10,000 characters, and this one {len(pattern):,}" in result.failed[0]


def test_a_pattern_of_the_longest_length_matches() -> None:
    assert by_row([("a" * 10_000, "a" * 9_999 + "_")], "\\", any_case=False) == [True]
