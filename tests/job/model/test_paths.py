"""Paths into nested records."""

from __future__ import annotations

import pytest

from joinery_runtime.job.model.references import parse_path


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("id", ("id",)),
        ("payload.after.id", ("payload", "after", "id")),
        ("items[0].sku", ("items", 0, "sku")),
        ("matrix[1][2]", ("matrix", 1, 2)),
        ('"a.b".c', ("a.b", "c")),
        (r'x."say \"hi\""', ("x", 'say "hi"')),
        ("order id.é", ("order id", "é")),
    ],
)
def test_a_path_is_names_and_positions(text: str, steps: tuple[str | int, ...]) -> None:
    assert parse_path(text) == steps


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "character 1"),
        (".a", "character 1"),
        ("a..b", "character 2"),
        ("a.", "character 2"),
        ("a[x]", "character 2"),
        ("a[0]b", "character 5"),
        ('a["b"]', "character 2"),
        ("[0].a", "begins with a position"),
        ("$.a", "leave it out"),
        (r'"\q".a', "not a name in quotes"),
    ],
)
def test_what_is_no_path_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_path(text)
