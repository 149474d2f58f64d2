"""Only its own modules name a kind of join: that the check sees what it is there for, and that the product passes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from joinery_devkit.kind_names import KINDS as PACKAGES
from joinery_devkit.kind_names import RUNTIME, TOLD_APART, kind_names, problems

KINDS = {"IntervalJoin", "WindowJoin", "SessionWindowJoin", "AsOfJoin", "SessionAggregation"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kinds, and a folder for what names them."""
    root = tmp_path_factory.mktemp("sources")
    for package in PACKAGES:
        shutil.copytree(RUNTIME / package, root / package)
    (root / "engine").mkdir()
    return root


def test_it_knows_the_kinds_of_both_packages() -> None:
    assert kind_names(RUNTIME) >= KINDS | {"Interval", "Tumbling", "Hopping", "Session", "AsOf", "SessionWindow"}


def test_the_product_names_no_kind_elsewhere() -> None:
    assert list(problems(RUNTIME)) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("from joinery_runtime.core.kinds.window import WindowJoin", "names WindowJoin"),
        ("from joinery_runtime.job import SessionWindow as Job", "names SessionWindow"),
        ("from joinery_runtime.core.kinds import as_of\nas_of.AsOfJoin", "names AsOfJoin"),
        ("def late(step): return step.as_of is None", "asks a step for its as_of"),
        ('def late(step): return step.data.get("asOf")', "asks a step for its asOf"),
        ('def bound(step): return step["interval"]', "asks a step for its interval"),
        ("def joins(job): return isinstance(job, StreamJoin)", "tells StreamJoin apart"),
        ("def joins(job): return isinstance(job, (str, job.StreamJoin))", "tells StreamJoin apart"),
        ("match job:\n    case StreamJoin(): print(1)", "tells StreamJoin apart"),
        ('def sessions(new): return new["kind"] == "SessionWindow"', "tells SessionWindow apart"),
        ('def sessions(new): return new["kind"] in ("SessionWindow",)', "tells SessionWindow apart"),
    ],
)
def test_it_finds_one_that_is_named(sources: Path, line: str, message: str) -> None:
    (sources / "engine" / "planted.py").write_text(f"{line}\n")

    (problem,) = problems(sources)

    assert problem.startswith("engine/planted.py:")
    assert problem.endswith(message)


def test_every_place_that_may_tell_resources_apart_does_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joinery_devkit.kind_names.TOLD_APART", {})
    lines = list(problems(RUNTIME))
    assert all(line.endswith(" apart") for line in lines)
    assert {line.partition(":")[0] for line in lines} == set(map(str, TOLD_APART))


def test_a_tree_without_kinds_is_an_error(tmp_path: Path) -> None:
    (only,) = problems(tmp_path)
    assert "reads the wrong folder" in only
