"""CONTRIBUTING.md's recipe of a kind of join names what a kind has to write, and nothing that a kind cannot write."""

from __future__ import annotations

import re
from pathlib import Path

from joinery_runtime.core.kinds.base import Join
from joinery_runtime.inspect.kinds.base import JoinDescription

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
RECIPE = PAGE.partition("### Add a kind of join")[2].partition("\n### ")[0]
HAS_TO, _, MAY = RECIPE.partition("File 3 may write these")
OF_CORE, _, OF_INSPECT = HAS_TO.partition("File 4 has to write these")


def members(text: str) -> set[str]:
    """The names in the first column of the tables of members."""
    rows = re.findall(r"^\| (`\w+`[^|]*) \|", text.partition("| member | meaning |")[2], re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_it_names_all_that_a_kind_has_to_write() -> None:
    declared = {name for name in Join.__annotations__ if not hasattr(Join, name)}
    assert declared
    assert members(OF_CORE) == declared | Join.__abstractmethods__


def test_it_names_all_that_a_description_has_to_write() -> None:
    assert members(OF_INSPECT) == {"describes", "matches_by", "padded_by"} | JoinDescription.__abstractmethods__


def test_what_a_kind_may_write_has_a_default() -> None:
    assert members(MAY)
    assert members(MAY) <= set(dir(Join)) - Join.__abstractmethods__
