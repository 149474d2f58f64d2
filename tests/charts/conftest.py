"""The chart as Helm renders it; Helm is built once where the machine has none."""

from __future__ import annotations

import pytest

from charts.rendering import Chart
from joinery_devkit.kubernetes.binaries import program


@pytest.fixture(scope="session")
def chart() -> Chart:
    return Chart(program("helm"))
