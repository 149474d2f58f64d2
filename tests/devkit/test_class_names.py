"""One name, one meaning: a public class has its name to itself in the runtime, the operator and the devkit together."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from joinery_devkit.release import ROOT


def shared_names(files: Iterable[Path]) -> dict[str, list[str]]:
    """Public classes, of modules and inside of classes, whose name occurs more than once: where."""
    sites_by_name: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            if opened := re.match(r"\s*class ([A-Za-z]\w*)\s*[(:\[]", line):
                sites_by_name[opened[1]].append(f"{file.name}:{number}")
    return {name: sites for name, sites in sites_by_name.items() if len(sites) > 1}


def test_no_two_public_classes_have_one_name() -> None:
    files = sorted(ROOT.glob("*/src/**/*.py"))
    assert len(files) > 300, "the check reads the wrong folder"
    assert shared_names(files) == {}


def test_a_name_that_occurs_twice_is_found(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text("class Row: ...\nclass _Row: ...\n")
    (tmp_path / "plan.py").write_text("class Plan:\n    class Row: ...\nclass _Row: ...\n")
    assert shared_names(sorted(tmp_path.iterdir())) == {"Row": ["loop.py:1", "plan.py:2"]}
