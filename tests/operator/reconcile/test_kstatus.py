"""What tools that know no Joinery make of a job and of a savepoint: Flux, `kubectl wait`, and all else that goes by
kstatus (sigs.k8s.io/cli-utils/pkg/kstatus)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from joinery_operator.decision import ObservedSavepoint
from joinery_operator.reconcile import reconcile
from joinery_runtime.job.crd import RESOURCE_KINDS, custom_resource_definition
from joinery_runtime.job.model.resource import API_VERSION
from simulated_cluster.simulation import SimulatedCluster, resource

OLD, NEW = "orders-driver-1", "orders-driver-2"
FATAL = {"outcome": "failed", "kind": "SourceError", "error": "no topic orders", "retry": False}
TRANSIENT = {"outcome": "failed", "kind": "StoreUnavailable", "error": "connection refused", "retry": True}


def kstatus(manifest: Any) -> str:
    """By the rules of kstatus, in their order."""
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    if status.get("observedGeneration", metadata["generation"]) != metadata["generation"]:
        return "InProgress"
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", ())}
    for type_, verdict in (("Reconciling", "InProgress"), ("Stalled", "Failed")):
        if conditions.get(type_) == "True":
            return verdict
    return "Current" if conditions.get("Ready", "True") == "True" else "InProgress"


def runs(cluster: SimulatedCluster) -> None:
    cluster.started(1)
    cluster.commit(OLD)
    cluster.tell(OLD)
    cluster.step()


def after(*acts: Callable[[SimulatedCluster], object]) -> Callable[[SimulatedCluster], None]:
    def happens(cluster: SimulatedCluster) -> None:
        runs(cluster)
        for act in acts:
            act(cluster)

    return happens


def edit(cluster: SimulatedCluster) -> None:
    cluster.edit(trigger={"maxRecordsPerEpoch": 8})


def step(cluster: SimulatedCluster) -> None:
    cluster.step()


def refuse(cluster: SimulatedCluster) -> None:
    cluster.run(cluster.check())
    cluster.check_result(cluster.check(), fits=False)
    cluster.step()


def roll_out(cluster: SimulatedCluster) -> None:
    cluster.passes()
    cluster.run(NEW)
    cluster.get_ready(NEW)
    cluster.step()


def is_proved(cluster: SimulatedCluster) -> None:
    cluster.commit(NEW)
    cluster.tell(NEW)
    cluster.step()


def suspend(cluster: SimulatedCluster) -> None:
    cluster.edit(suspend=True)
    cluster.step()


def stops(cluster: SimulatedCluster) -> None:
    cluster.stopped(OLD)
    cluster.step()


CASES: dict[str, tuple[Callable[[SimulatedCluster], None], str]] = {
    "starts": (step, "InProgress"),
    "runs": (runs, "Current"),
    "an edit that was not seen": (after(edit), "InProgress"),
    "an edit that is checked": (after(edit, step), "InProgress"),
    "an edit that was refused": (after(edit, step, refuse), "Failed"),
    "an edit that takes over": (after(edit, step, roll_out), "InProgress"),
    "an edit that is in force": (after(edit, step, roll_out, is_proved), "Current"),
    "an edit that is no job": (after(lambda c: c.edit(trigger={"maxRecordsPerEpoch": "many"}), step), "Failed"),
    "is being suspended": (after(suspend), "InProgress"),
    "is suspended": (after(suspend, stops), "Current"),
    "is resumed": (after(suspend, stops, lambda c: c.edit(suspend=False), step), "InProgress"),
    "has finished": (after(lambda c: c.end(OLD, {"outcome": "finished"}, 0), step), "Current"),
    "failed for good": (after(lambda c: c.end(OLD, FATAL), step), "Failed"),
    "starts again": (after(lambda c: c.end(OLD, TRANSIENT), step), "InProgress"),
}


@pytest.mark.parametrize("name", CASES)
def test_how_a_job_looks(name: str) -> None:
    happens, expected = CASES[name]
    cluster = SimulatedCluster(resource())
    happens(cluster)
    assert kstatus(cluster.resource) == expected


@pytest.mark.parametrize("name", [name for name in CASES if name != "an edit that was not seen"])
def test_every_condition_is_about_the_newest_generation(name: str) -> None:
    cluster = SimulatedCluster(resource())
    CASES[name][0](cluster)
    assert cluster.resource is not None
    generation, status = cluster.resource["metadata"]["generation"], cluster.resource["status"]
    assert status["observedGeneration"] == generation
    assert {condition["observedGeneration"] for condition in status["conditions"]} == {generation}
    assert len(status["conditions"]) == 9


@pytest.mark.parametrize("kind", RESOURCE_KINDS, ids=lambda kind: kind.name)
def test_a_new_resource_is_in_progress_before_the_operator_has_seen_it(kind: Any) -> None:
    (version,) = custom_resource_definition(kind)["spec"]["versions"]
    filled_in = version["schema"]["openAPIV3Schema"]["properties"]["status"]["default"]
    assert kstatus({"metadata": {"generation": 1}, "status": filled_in}) == "InProgress"


@pytest.mark.parametrize("status", [{"observedGeneration": -1}, {"observedGeneration": "?"}, {}, None], ids=str)
def test_a_status_that_says_of_no_generation_is_taken_for_a_new_one(status: Any) -> None:
    cluster = SimulatedCluster(resource())
    assert cluster.resource is not None
    cluster.resource["status"] = status
    runs(cluster)
    assert kstatus(cluster.resource) == "Current"


def test_a_savepoint_tells_its_generation_too() -> None:
    metadata = {"name": "noon", "namespace": "shop", "uid": "uid-savepoint", "generation": 3}
    savepoint = {"apiVersion": API_VERSION, "kind": "Savepoint", "metadata": metadata}
    savepoint |= {"spec": {"job": {"kind": "StreamJoin", "name": "orders"}}, "status": {"observedGeneration": -1}}
    job = SimulatedCluster(resource())
    status = reconcile(ObservedSavepoint(savepoint, {}, None, job.now, job.settings)).status
    assert status is not None
    written = {**savepoint, "status": status.model_dump(mode="json", by_alias=True, exclude_none=True)}
    assert {condition["observedGeneration"] for condition in written["status"]["conditions"]} == {3}
    assert kstatus(written) == "InProgress"
