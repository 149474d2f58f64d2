"""The health that ArgoCD shows of what the operator's reconcile writes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from charts.health import health
from joinery_operator.decision import Children, Create, Observed
from joinery_operator.manifests import MAIN_CONTAINER
from joinery_operator.reconcile import reconcile
from joinery_operator.settings import Settings
from joinery_runtime.job.crd import KINDS, Ending, ResourceKind, StateCheck, Status
from simulated_cluster.resources import resource_of

BEGIN = datetime(2026, 11, 21, 10, tzinfo=UTC)
SETTINGS = Settings(runtime_image="joinery-runtime:1")


@dataclass
class World:
    """A job and its pods; `step` is one reconcile whose status and new pods are kept."""

    kind: ResourceKind
    resource: dict[str, Any] = field(default_factory=dict)
    pods: dict[str, Any] = field(default_factory=dict)
    config_maps: dict[str, Any] = field(default_factory=dict)
    now: datetime = BEGIN
    name_conflicts: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        self.resource = resource_of(self.kind, namespace="jobs")
        self.resource["metadata"] |= {"uid": "u", "generation": 1, "resourceVersion": "1"}

    def edit(self, **spec: Any) -> None:
        self.resource["spec"] |= spec
        self.resource["metadata"]["generation"] += 1

    def step(self) -> str:
        self.now += timedelta(seconds=1)
        children = Children(deepcopy(self.pods), deepcopy(self.config_maps), {})
        facts = (self.kind, deepcopy(self.resource), children, {}, None, self.now, SETTINGS)
        decision = reconcile(Observed(*facts, name_conflicts=self.name_conflicts))
        if decision.status is not None:
            self.resource["status"] = decision.status.model_dump(mode="json", by_alias=True, exclude_none=True)
        for action in decision.actions:
            if isinstance(action, Create):
                self._create(dict(deepcopy(action.manifest)))
        return health(self.resource)["status"]

    @property
    def status(self) -> Status:
        return Status.model_validate(self.resource["status"])

    def pod(self, part: str) -> dict[str, Any]:
        (pod,) = [pod for name, pod in self.pods.items() if part in name]
        return pod

    def ready(self, part: str) -> None:
        running = {"name": MAIN_CONTAINER, "state": {"running": {"startedAt": self._time()}}}
        condition = {"type": "Ready", "status": "True", "lastTransitionTime": self._time()}
        self.pod(part)["status"] = {"phase": "Running", "conditions": [condition], "containerStatuses": [running]}

    def ended(self, part: str, message: Ending | StateCheck, code: int) -> None:
        over = {"exitCode": code, "finishedAt": self._time(), "message": message.model_dump_json(by_alias=True)}
        container = {"name": MAIN_CONTAINER, "state": {"terminated": over}}
        phase = "Failed" if code else "Succeeded"
        self.pod(part)["status"] = {"phase": phase, "containerStatuses": [container]}

    def _create(self, manifest: dict[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        manifest["metadata"] |= {"uid": f"uid-{name}", "creationTimestamp": self._time()}
        objects_of_kind = {"Pod": self.pods, "ConfigMap": self.config_maps}.get(manifest["kind"], {})
        objects_of_kind[name] = manifest

    def _time(self) -> str:
        return self.now.isoformat()


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def world(request: pytest.FixtureRequest) -> World:
    """A new job."""
    return World(request.param)


@pytest.fixture
def running(world: World) -> World:
    world.step()
    world.step()
    world.ready("-driver-1")
    world.step()
    return world


def test_from_the_first_look_to_running(world: World) -> None:
    assert health(world.resource)["status"] == "Progressing"
    assert world.step() == "Progressing"
    world.ready("-driver-1")
    assert world.step() == "Healthy"
    assert world.status.phase == "Running"


def test_an_edit_is_progressing_from_the_start_and_degraded_when_it_is_refused(running: World) -> None:
    running.edit(trigger={"maxRecordsPerEpoch": 16})
    assert health(running.resource)["status"] == "Progressing"
    assert running.step() == "Progressing"
    refused = StateCheck(fits=False, refused=("keys differ",), target_version=1)
    running.ended("-check-", refused, 1)
    assert running.step() == "Degraded"
    assert running.status.phase == "Running"
    assert health(running.resource)["message"] == "IncompatibleState: keys differ"


def test_an_invalid_edit_is_degraded_though_the_driver_runs(running: World) -> None:
    running.edit(trigger={"maxRecordsPerEpoch": "many"})
    assert running.step() == "Degraded"
    assert health(running.resource)["message"].startswith("Invalid: ")
    assert running.status.phase == "Running"


def test_a_driver_that_fails_is_degraded(running: World) -> None:
    running.ended("-driver-1", Ending(outcome="failed", error="no broker", kind="SourceError"), 1)
    assert running.step() == "Degraded"


def test_a_driver_that_has_finished_is_healthy(running: World) -> None:
    running.ended("-driver-1", Ending(outcome="finished"), 0)
    assert running.step() == "Healthy"
    assert running.status.phase == "Finished"


def test_suspension(running: World) -> None:
    running.edit(suspend=True)
    assert running.step() == "Progressing"
    running.pods.clear()
    assert running.step() == "Suspended"
    running.edit(suspend=False)
    assert running.step() == "Progressing"


def test_a_job_whose_state_is_another_kinds_is_degraded(running: World) -> None:
    """The older one of two that share a name is not."""
    (other,) = [kind for kind in KINDS if kind != running.kind]
    second = World(other)
    second.resource["metadata"]["creationTimestamp"] = BEGIN.isoformat()
    second.name_conflicts = (running.resource,)
    assert second.step() == "Degraded"
    assert health(second.resource)["message"].startswith("StateTaken: ")
    assert running.step() == "Healthy"
