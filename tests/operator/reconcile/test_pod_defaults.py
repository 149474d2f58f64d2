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


def test_another_release_of_the_operator_counts_from_the_next_revision_on(
    cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it adds to a driver's pod is stored with the revision, as what it adds to executors is."""
    monkeypatch.setattr("joinery_operator.manifests.pods._DEAD_AFTER", 300)
    cluster.settings = replace(cluster.settings, stop_grace_seconds=77)
    decision = cluster.step()
    assert (decision.status, decision.actions) == (None, ())
    fail(cluster, FIRST)
    first, second = (cluster.pods[name]["spec"] for name in (FIRST, SECOND))
    assert second.keys() == first.keys()
    assert {key for key in first if first[key] != second[key]} == {"containers"}
    before, after = first["containers"][0], second["containers"][0]
    assert {key for key in before if before[key] != after[key]} == {"env"}, "the attempt's own arguments of Spark"
    cluster.edit(trigger={"interval": "7s"})
    cluster.step()
    cluster.passes()
    cluster.started(3)
    third = cluster.pods["orders-driver-3"]["spec"]
    assert third["terminationGracePeriodSeconds"] == 77
    assert third["containers"][0]["livenessProbe"]["failureThreshold"] == 30


def test_a_driver_stored_by_an_earlier_release_is_built_as_it_is_now(cluster: SimulatedCluster) -> None:
    (stored,) = cluster.config_maps.values()
    del stored["data"]["driver.yaml"]
    cluster.settings = replace(cluster.settings, stop_grace_seconds=77)
    fail(cluster, FIRST)
    assert cluster.pods[SECOND]["spec"]["terminationGracePeriodSeconds"] == 77


def test_an_account_and_an_address_that_the_installation_renames_count_at_once(cluster: SimulatedCluster) -> None:
    """Neither exists under its old name."""
    url = "https://{name}.example.com/"
    cluster.settings = replace(cluster.settings, service_account="spark", page_url=url)
    cluster.step()
    fail(cluster, FIRST)
    spec = cluster.pods[SECOND]["spec"]
    assert spec["serviceAccountName"] == "spark"
    environment = {variable["name"]: variable.get("value") for variable in spec["containers"][0]["env"]}
    assert environment["JOINERY_STATUS_NAMES"] == "orders.example.com"
