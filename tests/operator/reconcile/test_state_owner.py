"""Whose the state is: what a pod is told about its resource, and a job whose state belongs to another resource."""

from __future__ import annotations

import pytest

from joinery_operator.settings import Settings
from joinery_runtime.job.model.owner import REPLACES_OWNER, STATE_OWNER, OwnerCandidate, StateOwner
from simulated_cluster.simulation import IMAGE, SimulatedCluster, resource

FIRST, SECOND, DELETE = "orders-driver-1", "orders-driver-2", "orders-delete-state"
TAKEN = {"outcome": "failed", "kind": "StateTaken", "error": "it belongs to west/jobs/orders/u-9", "retry": False}


@pytest.fixture
def cluster() -> SimulatedCluster:
    settings = Settings(runtime_image=IMAGE, cluster="east")
    return SimulatedCluster(resource(cleanup="deleteState"), settings=settings)


def annotate(cluster: SimulatedCluster, value: str) -> None:
    """Changes no generation, as in Kubernetes."""
    assert cluster.resource is not None
    cluster.resource["metadata"].setdefault("annotations", {})[REPLACES_OWNER] = value


def candidate(cluster: SimulatedCluster, pod: str, container: str = "containers") -> OwnerCandidate:
    (main, *_) = cluster.pods[pod]["spec"][container]
    (text,) = [variable["value"] for variable in main["env"] if variable["name"] == STATE_OWNER]
    return OwnerCandidate.model_validate_json(text)


def test_each_pod_that_works_on_the_state_is_told_for_whom(cluster: SimulatedCluster) -> None:
    cluster.commit(cluster.started(1))
    assert cluster.resource is not None
    metadata = cluster.resource["metadata"]
    owner = StateOwner(
        cluster="east", kind="StreamJoin", namespace=metadata["namespace"], name="orders", uid=metadata["uid"]
    )
    claim = candidate(cluster, FIRST)
    assert (claim.owner, claim.replaces) == (owner, "")
    annotate(cluster, "west/jobs/orders/u-9@4")
    cluster.edit(delivery="atLeastOnce")
    cluster.step()
    (check,) = [name for name in cluster.pods if "-check-" in name]
    assert candidate(cluster, check).replaces == "west/jobs/orders/u-9@4"
    cluster.run(check)
    cluster.check_result(check, fits=True)
    cluster.step()
    cluster.stopped(FIRST)
    cluster.step()
    cluster.step()
    assert candidate(cluster, SECOND, "initContainers").owner == owner
    cluster.delete()
    cluster.step()  # the pod, which nobody ran, goes at once
    cluster.step()
    assert candidate(cluster, DELETE).owner == owner


def test_a_state_that_belongs_to_another_cluster_is_left_to_it(cluster: SimulatedCluster) -> None:
    cluster.step()
    cluster.run(FIRST)
    cluster.end(FIRST, TAKEN)
    cluster.step()
    assert cluster.status.phase == "Failed"
    assert cluster.condition("Ready") == ("False", "StateTaken")
    assert cluster.condition("Degraded") == ("True", "StateTaken")
    assert "it belongs to west/jobs/orders/u-9" in cluster.status.conditions[0].message
    cluster.pass_time(86_400)
    cluster.step()
    assert [pod["metadata"]["name"] for pod in cluster.created] == [FIRST], "no second takeover, for ever"


def test_the_annotation_that_names_the_owner_starts_one_more_attempt(cluster: SimulatedCluster) -> None:
    cluster.step()
    cluster.run(FIRST)
    cluster.end(FIRST, TAKEN)
    cluster.step()
    annotate(cluster, "misspelled")
    cluster.step()
    assert candidate(cluster, SECOND).replaces == "misspelled"
    cluster.run(SECOND)
    cluster.end(SECOND, TAKEN)
    cluster.step()
    cluster.pass_time(86_400)
    cluster.step()
    assert cluster.condition("Ready") == ("False", "StateTaken"), "what was tried is not tried again"
    annotate(cluster, "west/jobs/orders/u-9@4")
    cluster.step()
    third = cluster.driver(3)
    assert candidate(cluster, third).replaces == "west/jobs/orders/u-9@4"
    cluster.run(third)
    cluster.get_ready(third)
    cluster.step()
    assert cluster.status.phase == "Running"


def test_an_edit_that_the_check_rejects_for_its_owner_is_tried_with_the_annotation(cluster: SimulatedCluster) -> None:
    cluster.commit(cluster.started(1))
    cluster.edit(delivery="atLeastOnce")
    cluster.step()
    (check,) = [name for name in cluster.pods if "-check-" in name]
    cluster.run(check)
    cluster.end(check, TAKEN)
    cluster.step()
    assert cluster.status.refused is not None
    assert "it belongs to west/jobs/orders/u-9" in cluster.status.refused.message
    cluster.step()
    assert cluster.status.rollout is None
    annotate(cluster, "west/jobs/orders/u-9@4")
    cluster.step()
    assert cluster.status.refused is None
    assert cluster.status.rollout is not None


def test_an_annotation_longer_than_the_status_has_room_for_is_cut(cluster: SimulatedCluster) -> None:
    annotate(cluster, "x" * 10_000)
    cluster.step()
    assert cluster.status.driver is not None
    assert cluster.status.driver.replaces == candidate(cluster, FIRST).replaces == "x" * 4096


def prune(cluster: SimulatedCluster, field: str) -> None:
    """What the API server does while it has the definitions of an earlier release."""
    assert cluster.resource is not None
    cluster.resource["status"].get(field, {}).pop("replaces", None)


def test_with_earlier_definitions_the_attempts_with_an_annotation_back_off(cluster: SimulatedCluster) -> None:
    annotate(cluster, "misspelled")
    cluster.step()
    for number in range(1, 8):
        name = cluster.driver(number)
        cluster.run(name)
        cluster.end(name, TAKEN)
        cluster.step()
        prune(cluster, "driver")
        cluster.step()
        attempt = cluster.status.driver
        assert attempt is not None
        assert (attempt.number, attempt.failures) == (number, number), "it waits"
        assert attempt.not_before is not None
        pause = (attempt.not_before - cluster.now).total_seconds()
        assert pause == min(10 * 2 ** (number - 1), 300)
        cluster.pass_time(pause)
        cluster.step()
        assert cluster.driver(number + 1) in cluster.pods
        prune(cluster, "driver")


def test_with_earlier_definitions_a_rejected_edit_is_not_checked_for_ever(cluster: SimulatedCluster) -> None:
    cluster.commit(cluster.started(1))
    annotate(cluster, "misspelled")
    cluster.edit(delivery="atLeastOnce")
    cluster.step()
    (check,) = [name for name in cluster.pods if "-check-" in name]
    cluster.run(check)
    cluster.end(check, TAKEN)
    cluster.step()
    prune(cluster, "refused")
    cluster.step()
    assert (cluster.status.rollout, cluster.status.refused is None) == (None, False)


def test_a_deletion_leaves_the_state_of_another_resource(cluster: SimulatedCluster) -> None:
    cluster.commit(cluster.started(1))
    cluster.delete()
    cluster.step()
    cluster.stopped(FIRST)
    cluster.step()
    cluster.run(DELETE)
    cluster.end(DELETE, TAKEN)
    cluster.step()
    assert cluster.resource is None
    assert not cluster.database.deleted
    assert [event for event in cluster.events if event.startswith("Warning StateTaken: nothing was deleted")]
