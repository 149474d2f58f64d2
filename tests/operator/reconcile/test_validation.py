"""A job is validated once, until something that it depends on changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from joinery_operator.reconcile import desired
from joinery_operator.reconcile.context import read_status
from simulated_cluster.simulation import IMAGE, SimulatedCluster, resource

FIRST = "orders-driver-1"
TEMPLATE = {"data": {"pod.yaml": "kind: Pod\nspec: {priorityClassName: high}\n"}}
OTHER_TEMPLATE = {"data": {"pod.yaml": "kind: Pod\nspec: {priorityClassName: low}\n"}}


@pytest.fixture
def cluster() -> SimulatedCluster:
    cluster = SimulatedCluster(resource(spark={"driver": {"podTemplate": {"name": "mine"}}}))
    cluster.templates = {"mine": TEMPLATE}
    cluster.settings = replace(cluster.settings, jobs_allow='{"podTemplate": ["*"]}')
    cluster.started(1)
    cluster.step()
    return cluster


@pytest.fixture
def validations(cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each validation."""
    calls: list[int] = []
    validate = desired.validated_job

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return validate(*arguments)

    monkeypatch.setattr(desired, "validated_job", counted)
    return calls


def test_a_job_that_runs_is_not_validated_again(cluster: SimulatedCluster, validations: list[int]) -> None:
    for _ in range(20):
        cluster.commit(FIRST)
        cluster.tell(FIRST)
        cluster.pass_time(60)
        assert cluster.resource is not None
        cluster.resource["metadata"]["resourceVersion"] = str(cluster.now)
        cluster.step()
    cluster.evict(FIRST)
    cluster.step()
    cluster.started(2)
    assert validations == []


def annotated(cluster: SimulatedCluster) -> None:
    assert cluster.resource is not None
    cluster.resource["metadata"]["annotations"] = {"joinery.dev/restartedAt": "2026-11-21T10:00:00Z"}


def claimed(cluster: SimulatedCluster) -> None:
    other = resource()
    other["metadata"] |= {"uid": "uid-other", "creationTimestamp": "2020-01-01T00:00:00Z"}
    cluster.name_conflicts = [{**other, "kind": "SessionWindow"}]


CHANGES: dict[str, Callable[[SimulatedCluster], object]] = {
    "an edit": lambda cluster: cluster.edit(trigger={"maxRecordsPerEpoch": 9}),
    "a restart": annotated,
    "another image of the installation": lambda cluster: setattr(
        cluster, "settings", replace(cluster.settings, runtime_image=f"{IMAGE}.1")
    ),
    "what the installation allows": lambda cluster: setattr(
        cluster, "settings", replace(cluster.settings, jobs_allow="")
    ),
    "a template": lambda cluster: cluster.templates.update(mine=OTHER_TEMPLATE),
    "a template that was deleted": lambda cluster: cluster.templates.update(mine=None),
    "another job of its name": claimed,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_whatever_a_job_depends_on_has_it_validated(
    cluster: SimulatedCluster, validations: list[int], change: Callable[[SimulatedCluster], object]
) -> None:
    change(cluster)
    cluster.step()
    assert validations
    validated = len(validations)
    observed = cluster.observed()
    assert observed.resource is not None
    assert desired.desired_job(observed, read_status(observed.resource)) == desired.validated_job(
        observed, read_status(observed.resource)
    )
    assert len(validations) <= validated + 2


def test_manifests_are_built_from_the_resource_as_it_is(cluster: SimulatedCluster) -> None:
    assert cluster.resource is not None
    cluster.resource["metadata"]["resourceVersion"] = "77"
    cluster.now += timedelta(seconds=1)
    observed = cluster.observed()
    job = desired.desired_job(observed, read_status(observed.resource)).job
    assert job is not None
    assert job.resource is observed.resource
