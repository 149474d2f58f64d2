"""Another value of an installation's defaults restarts no job, and counts from the job's next revision on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from joinery_operator.manifests.yaml import from_yaml
from simulated_cluster.simulation import SimulatedCluster, resource

FIRST, SECOND = "orders-driver-1", "orders-driver-2"


@pytest.fixture
def cluster() -> SimulatedCluster:
    cluster = SimulatedCluster(resource())
    cluster.started(1)
    return cluster


def set_group(cluster: SimulatedCluster, group: int) -> None:
    defaults = json.dumps({"podSecurity": {"fsGroup": group}})
    cluster.settings = replace(cluster.settings, pod_defaults=defaults)


def groups(cluster: SimulatedCluster, driver: str) -> tuple[int, int]:
    """The groups of a driver's pod and of its executors."""
    pod = cluster.pods[driver]
    (config,) = (volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume)
    executor = from_yaml(cluster.config_maps[config]["data"]["executor.yaml"])
    return pod["spec"]["securityContext"]["fsGroup"], executor["spec"]["securityContext"]["fsGroup"]  # type: ignore[index]


def fail(cluster: SimulatedCluster, name: str) -> None:
    cluster.end(name, None, 1)
    cluster.step()
    cluster.pass_time(60)
    cluster.step()


def test_another_default_rolls_no_job_and_the_revision_keeps_its_own(cluster: SimulatedCluster) -> None:
    revision = cluster.status.revision
    set_group(cluster, 2000)
    decision = cluster.step()
    assert (decision.status, decision.actions) == (None, ())
    fail(cluster, FIRST)
    assert groups(cluster, SECOND) == (185, 185), "a driver and its executors are of one revision"
    assert (cluster.status.revision, cluster.status.rollout) == (revision, None)


def test_the_next_revision_takes_the_default(cluster: SimulatedCluster) -> None:
    set_group(cluster, 2000)
    cluster.edit(trigger={"interval": "7s"})
    cluster.step()
    cluster.passes()
    cluster.started(2)
    assert groups(cluster, SECOND) == (2000, 2000)


def test_a_rollback_keeps_the_defaults_of_the_revision_it_returns_to(cluster: SimulatedCluster) -> None:
    set_group(cluster, 2000)
    cluster.edit(trigger={"interval": "7s"})
    cluster.step()
    check = next(pod for name, pod in cluster.pods.items() if "-check-" in name)
    assert check["spec"]["securityContext"]["fsGroup"] == 2000
    fail(cluster, FIRST)
    assert groups(cluster, SECOND) == (185, 185)


def test_a_revision_of_an_earlier_release_has_the_images_user(cluster: SimulatedCluster) -> None:
    """It has no defaults stored."""
    (stored,) = cluster.config_maps.values()
    del stored["data"]["pod-defaults.yaml"]
    set_group(cluster, 2000)
    assert cluster.step().actions == ()
    fail(cluster, FIRST)
    assert groups(cluster, SECOND) == (185, 185)
