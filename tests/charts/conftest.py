"""The chart as Helm renders it; Helm is built once where the machine has none."""

from __future__ import annotations

import pytest

from charts.rendering import Chart
from joinery_devkit.kubernetes.binaries import program

# With these, programs are compiled before the tests begin; the fast tests would wait for a compiler.
COMPILED_AHEAD = ("services", "node")


@pytest.fixture(scope="session")
def chart() -> Chart:
    return Chart(program("helm"))


@pytest.hookimpl(trylast=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    fixtures: list[str] = getattr(item, "fixturenames", [])
    if "chart" in fixtures and not any(map(item.get_closest_marker, COMPILED_AHEAD)):
        raise pytest.UsageError(f"{item.nodeid} needs Helm, which is compiled: mark it `services`")
