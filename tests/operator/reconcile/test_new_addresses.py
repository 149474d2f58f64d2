"""A driver waits for whatever is away; a rollout waits with it, unless only its edit names what is away."""

from __future__ import annotations

from typing import Any

import pytest

from joinery_operator.reconcile.places import names_new_system
from joinery_runtime.job.crd import KINDS, DriverStatus, Waiting
from simulated_cluster.simulation import SimulatedCluster, resource

NEW = "orders-driver-2"
NOWHERE = "nowhere:9092: Name or service not known"
MISSPELT = {"kafka": {"bootstrapServers": "nowhere:9092", "topic": "out"}, "format": "json"}


def waits_for(system: str, **edit: Any) -> SimulatedCluster:
    """A job that ran, and was edited: its new driver got no further within the deadline."""
    cluster = SimulatedCluster(resource())
    cluster.commit(cluster.started(1))
    cluster.step()
    cluster.edit(**edit)
    cluster.step()
    cluster.passes()
    cluster.run(NEW)
    waiting = Waiting(system=system, since=cluster.now, reason=NOWHERE)
    cluster.driver_statuses[cluster.pods[NEW]["metadata"]["uid"]] = DriverStatus(
        revision=cluster.revision_of(NEW), waiting=waiting
    )
    for _ in range(2):
        cluster.step()
        cluster.pass_time(601)
    cluster.step()
    return cluster


def test_an_address_that_only_the_edit_names_is_taken_back() -> None:
    """It is more likely wrong than away."""
    cluster = waits_for("output", output=MISSPELT)
    status = cluster.status
    assert (status.rollout and status.rollout.stage, status.refused and status.refused.reason) == (
        "RollingBack", "DeadlineExceeded",
    )  # fmt: skip
    assert NOWHERE in (status.refused.message if status.refused else "")
    for _ in range(8):
        cluster.goes_well()
    assert (cluster.status.phase, cluster.status.rollout) == ("Running", None)


@pytest.mark.parametrize(
    ("system", "edit"),
    [("input", {"output": MISSPELT}), ("output", {"spark": {"image": "joinery:2"}})],
    ids=["another system is away", "another image"],
)
def test_what_the_job_named_before_is_waited_for(system: str, edit: dict[str, Any]) -> None:
    cluster = waits_for(system, **edit)
    assert cluster.status.rollout is not None
    assert cluster.status.rollout.stage == "Starting"
    assert cluster.condition("Ready")[1] == {"input": "WaitingForInput", "output": "WaitingForOutput"}[system]


INPUT = resource()["spec"]["inputs"][0]
EDITS = {
    "input": {"inputs": [INPUT, {**INPUT, "name": "r", "kafka": {"bootstrapServers": "nowhere:9092", "topic": "r"}}]},
    "output": {"output": {"postgres": {"table": "out", "dsn": "postgresql://nowhere/shop"}}},
    "dead letters": {"deadLetter": {"kafka": {"bootstrapServers": "nowhere:9092", "topic": "bad"}}},
    "store": {"stateStore": {"postgres": {"dsnSecretRef": {"name": "other-db", "key": "dsn"}}}},
}


@pytest.mark.parametrize("edited", EDITS)
def test_which_system_an_edit_names(edited: str) -> None:
    def job(**spec: Any) -> Any:
        return KINDS[0].model.model_validate(resource(**spec), by_alias=True, by_name=False)

    named = {system: names_new_system(job(**EDITS[edited]), job(), system) for system in ("input", "output", "store")}
    assert [system for system, another in named.items() if another] == [
        "output" if edited == "dead letters" else edited
    ]
    assert not any(names_new_system(job(), job(), system) for system in named)
