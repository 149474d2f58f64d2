"""Tables can be read at a glance: every column has a noun as its header, and cells are short. Longer text is prose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from docs.blocks import PAGES, ROOT, prose

GENERATED = {ROOT / f"docs/{name}.md" for name in ("functions", "kinds", "reference", "rollout-table")}
"""Pages whose cells are rows of traces, descriptions of fields and functions, and observations of the operator."""
COMPARISONS = {ROOT / "docs/comparison.md", ROOT / "docs/operators.md"}
"""Pages whose cells are read beside each other, with their sources: prose would take the systems apart."""
READ_PAGES = [page for page in PAGES if page not in GENERATED and ROOT / "docs/decisions" not in page.parents]
"""Without the decisions, which are records."""
LONG, TOO_LONG = 12, 25
"""Words of a cell."""
LONG_CELLS, TOO_LONG_CELLS = 185, 14
"""Budgets of cells above each limit. They only fall."""
_RULE = re.compile(r"\s*\|[\s:|-]+\|$")
_FRAGMENT = re.compile(r"(?:who|what|how|also|in|to|from|left|not|says|runs|gives|tried|today|emitted|allowed)\b(?!` )")


class Table(NamedTuple):
    """A table of a page. `headers` and `cells` are as they are written."""

    page: Path
    headers: list[str]
    cells: list[str]


def cells_of(line: str) -> list[str]:
    """Split a line of a table at each `|` outside of code."""
    hidden = re.sub(r"`[^`]*`", lambda code: code[0].replace("|", "\0"), line.strip()[1:-1].replace(r"\|", "\0"))
    return [cell.strip().replace("\0", "|") for cell in hidden.split("|")]


def tables(page: Path) -> Iterator[Table]:
    lines = [*prose(page).splitlines(), ""]
    for number, line in enumerate(lines):
        if _RULE.match(line) and number:
            rows = lines[number + 1 : lines.index("", number)]
            yield Table(page, cells_of(lines[number - 1]), [cell for row in rows for cell in cells_of(row)])


def words(cell: str) -> int:
    """Count the words that a reader reads: code is one word, and the target of a link none."""
    return len(re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", cell)).split())


TABLES = [table for page in READ_PAGES for table in tables(page)]


def test_every_row_of_cells_belongs_to_a_table() -> None:
    stray = []
    for page in PAGES:
        before = ""
        for line in prose(page).splitlines():
            if line.startswith("|") and not before.startswith("|") and before.strip():
                stray.append(f"{page.relative_to(ROOT)}: {line[:60]!r} follows on {before[:60]!r}")
            before = line
    assert not stray


def test_every_column_has_a_noun_as_its_header() -> None:
    assert len(TABLES) > 100
    wrong = [
        f"{table.page.relative_to(ROOT)}: {header!r} of {table.headers}"
        for table in TABLES
        for header in table.headers
        if not header or _FRAGMENT.match(header)
    ]
    assert wrong == []


def test_cells_are_short() -> None:
    long, too_long = (
        [
            f"{table.page.relative_to(ROOT)}: {cell}"
            for table in TABLES
            for cell in table.cells
            if table.page not in COMPARISONS and words(cell) > limit
        ]
        for limit in (LONG, TOO_LONG)
    )
    assert len(too_long) <= TOO_LONG_CELLS, "\n".join(too_long)
    assert len(long) <= LONG_CELLS, "\n".join(long)


def test_a_cell_is_cut_and_counted_as_it_is_read() -> None:
    assert cells_of("| `a|b` | two [words](page.md#of-a-link) | |") == ["`a|b`", "two [words](page.md#of-a-link)", ""]
    assert [words(cell) for cell in ("`a b c`", "two [words](page.md#of-a-link)", "")] == [1, 2, 0]
