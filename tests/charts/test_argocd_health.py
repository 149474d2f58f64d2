"""integrations/argocd/health.lua over its fixtures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.health import FOLDER, health
from joinery_runtime.job.crd import BlueGreenState, Status
from joinery_runtime.job.crd.status import Phase

CASES = yaml.safe_load((FOLDER / "health_test.yaml").read_text())["tests"]


@pytest.mark.parametrize("case", CASES, ids=[Path(case["inputPath"]).stem for case in CASES])
def testhealth(case: dict[str, Any]) -> None:
    resource = yaml.safe_load((FOLDER / case["inputPath"]).read_text())
    assert health(resource) == case["healthStatus"]


def test_every_fixture_is_used_and_is_a_status_that_the_operator_may_write() -> None:
    assert {FOLDER / case["inputPath"] for case in CASES} == set((FOLDER / "testdata").iterdir())
    for case in CASES:
        resource = yaml.safe_load((FOLDER / case["inputPath"]).read_text())
        model = BlueGreenState if resource["kind"] == "BlueGreenJob" else Status
        model.model_validate(resource.get("status") or {})


def test_all_verdicts_occur() -> None:
    assert {case["healthStatus"]["status"] for case in CASES} == {"Healthy", "Progressing", "Degraded", "Suspended"}


@pytest.mark.parametrize("phase", Phase.__args__)
def test_no_phase_alone_is_healthy_but_finished(phase: str) -> None:
    resource = {"metadata": {"generation": 1}, "spec": {}, "status": {"phase": phase, "observedGeneration": 1}}
    expected = {"Finished": "Healthy", "Failed": "Degraded"}.get(phase, "Progressing")
    assert health(resource)["status"] == expected
