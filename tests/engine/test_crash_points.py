"""The points of an epoch at which a test may kill a driver: `JOINERY_FAULT` takes these names and no other, and each of
them is reached."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

import joinery_runtime
from joinery_runtime.engine.messages import CRASH_POINTS, FaultPoint
from joinery_runtime.errors import EnvironmentProblem


def test_every_crash_point_is_reached_and_no_other() -> None:
    reached = {
        argument.value
        for path in Path(joinery_runtime.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "failpoint"
        for argument in node.args
        if isinstance(argument, ast.Constant)
    }
    assert reached == set(CRASH_POINTS)
    assert len(CRASH_POINTS) == len(set(CRASH_POINTS))


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_the_environment_names_a_point_and_an_epoch(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    monkeypatch.setenv("JOINERY_FAULT", f"{point}@7")
    assert FaultPoint.from_environment() == FaultPoint(point, 7, os.getpid())


@pytest.mark.parametrize("text", ["stagd@3", "staged", "staged@", "staged@-1", "staged@three", "@3"])
def test_what_would_never_fire_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("JOINERY_FAULT", text)
    with pytest.raises(EnvironmentProblem) as refused:
        FaultPoint.from_environment()
    assert f"JOINERY_FAULT names no crash point of an epoch: {text}. Write <point>@<epoch>" in str(refused.value)
    assert "planned, reading, staged, transaction-begun" in str(refused.value)
