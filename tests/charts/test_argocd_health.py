"""integrations/argocd/health.lua, run by Lua 5.1 (ArgoCD's is an implementation of the same) over its fixtures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from lupa.lua51 import LuaRuntime

from charts.rendering import ROOT
from joinery_runtime.job.crd import Status
from joinery_runtime.job.crd.status import Phase

FOLDER = ROOT / "integrations" / "argocd"
CASES = yaml.safe_load((FOLDER / "health_test.yaml").read_text())["tests"]


def _health(resource: dict[str, Any]) -> dict[str, str]:
    lua = LuaRuntime(register_eval=False, register_builtins=False)
    # ArgoCD gives scripts no library that reaches out; this one needs ipairs only.
    lua.execute("for name in pairs(_G) do if name ~= 'ipairs' and name ~= '_G' then _G[name] = nil end end")
    lua.globals().obj = lua.table_from(resource, recursive=True)
    return dict(lua.execute((FOLDER / "health.lua").read_text()))


@pytest.mark.parametrize("case", CASES, ids=[Path(each["inputPath"]).stem for each in CASES])
def test_health(case: dict[str, Any]) -> None:
    resource = yaml.safe_load((FOLDER / case["inputPath"]).read_text())
    assert _health(resource) == case["healthStatus"]


def test_every_fixture_is_used_and_is_a_status_that_the_operator_may_write() -> None:
    assert {FOLDER / each["inputPath"] for each in CASES} == set((FOLDER / "testdata").iterdir())
    for each in CASES:
        Status.model_validate(yaml.safe_load((FOLDER / each["inputPath"]).read_text()).get("status") or {})


def test_all_verdicts_occur() -> None:
    assert {each["healthStatus"]["status"] for each in CASES} == {"Healthy", "Progressing", "Degraded", "Suspended"}


@pytest.mark.parametrize("phase", Phase.__args__)
def test_no_phase_alone_is_healthy_but_finished(phase: str) -> None:
    resource = {"metadata": {"generation": 1}, "spec": {}, "status": {"phase": phase, "observedGeneration": 1}}
    expected = {"Finished": "Healthy", "Failed": "Degraded"}.get(phase, "Progressing")
    assert _health(resource)["status"] == expected
