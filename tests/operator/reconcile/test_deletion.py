"""The end of a resource, and its finalizer."""

from __future__ import annotations

import pytest

from joinery_operator.decision import SetFinalizers
from joinery_operator.reconcile import FINALIZER
from simulated_cluster.simulation import SimulatedCluster, resource

DRIVER, DELETE = "orders-driver-1", "orders-delete-state"
REFUSED = {"outcome": "failed", "kind": "StoreUnavailable", "error": "connection refused", "retry": True}


@pytest.fixture
def cluster() -> SimulatedCluster:
    """A job that runs, and whose state is to go with it."""
    cluster = SimulatedCluster(resource(cleanup="deleteState"))
    cluster.commit(cluster.started(1))
    return cluster


def finalizers(cluster: SimulatedCluster) -> list[str]:
    assert cluster.resource is not None
    found: list[str] = cluster.resource["metadata"].get("finalizers", [])
    return found


def test_state_that_is_retained_needs_no_finalizer() -> None:
    cluster = SimulatedCluster(resource())
    cluster.started(1)
    assert finalizers(cluster) == []
    cluster.edit(cleanup="deleteState")
    cluster.step()
    assert finalizers(cluster) == [FINALIZER]
    cluster.edit(cleanup="retainState")
    cluster.step()
    assert finalizers(cluster) == []


def test_finalizers_of_others_stay() -> None:
    made = resource(cleanup="deleteState")
    made["metadata"]["finalizers"] = ["other/one"]
    cluster = SimulatedCluster(made)
    cluster.step()
    assert finalizers(cluster) == ["other/one", FINALIZER]
    cluster.edit(cleanup="nonsense")
    assert not [action for action in cluster.step().actions if isinstance(action, SetFinalizers)]


def test_the_driver_stops_then_the_state_goes_then_the_resource(cluster: SimulatedCluster) -> None:
    cluster.delete()
    cluster.step()
    assert cluster.status.phase == "Deleting"
    assert cluster.condition("Progressing")[0] == "True"
    assert DELETE not in cluster.pods
    cluster.stopped(DRIVER)
    cluster.step()
    assert list(cluster.pods) == [DELETE]
    cluster.run(DELETE)
    cluster.step()
    assert cluster.resource is not None
    cluster.state_is_deleted(DELETE)
    cluster.step()
    assert cluster.resource is None
    assert not cluster.pods


def test_a_job_that_never_started_goes_at_once() -> None:
    cluster = SimulatedCluster(resource(cleanup="deleteState", trigger={"maxRecordsPerEpoch": "many"}))
    cluster.step()
    cluster.delete()
    cluster.step()
    assert cluster.resource is None


def test_a_database_that_is_gone_is_told_with_the_way_out(cluster: SimulatedCluster) -> None:
    cluster.delete()
    cluster.step()
    cluster.stopped(DRIVER)
    waits = []
    for _ in range(4):
        cluster.step()
        cluster.run(DELETE)
        cluster.end(DELETE, REFUSED)
        again_after = cluster.step().again_after
        assert again_after is not None
        waits.append(again_after)
        assert cluster.condition("Degraded") == ("True", "DeleteStateFailed")
        message = cluster.status.conditions[0].message
        assert "connection refused" in message
        assert "set spec.cleanup to retainState" in message
        cluster.pass_time(again_after)
        cluster.step()  # the failed pod goes
    assert waits == [10, 20, 40, 80]
    cluster.edit(cleanup="retainState")
    cluster.step()
    assert cluster.resource is None
    assert not cluster.database.deleted


def test_a_dead_node_does_not_keep_the_resource(cluster: SimulatedCluster) -> None:
    cluster.delete()
    cluster.step()
    cluster.stopped(DRIVER)
    cluster.step()
    cluster.run(DELETE)
    cluster.dead.add(DELETE)
    cluster.delete_child("Pod", DELETE)
    for _ in range(2):  # until it should have gone, and until it is stuck
        again_after = cluster.step().again_after
        assert again_after is not None
        cluster.pass_time(again_after)
    cluster.step()
    assert DELETE not in cluster.pods
    cluster.step()
    assert DELETE in cluster.pods


def test_what_kubernetes_deletes_in_the_foreground_is_left_to_it(cluster: SimulatedCluster) -> None:
    assert cluster.resource is not None
    cluster.resource["metadata"]["finalizers"].append("foregroundDeletion")
    cluster.delete()
    cluster.step()
    cluster.stopped(DRIVER)
    cluster.config_maps.clear()
    cluster.services.clear()
    assert not cluster.step().actions
    cluster.resource["metadata"]["finalizers"].remove("foregroundDeletion")
    cluster.step()
    assert DELETE in cluster.pods
    assert len(cluster.config_maps) == 1


def test_an_invalid_resource_is_deleted_by_the_revision_in_force(cluster: SimulatedCluster) -> None:
    cluster.edit(trigger={"maxRecordsPerEpoch": "many"})
    cluster.step()
    cluster.delete()
    cluster.step()
    cluster.stopped(DRIVER)
    cluster.step()
    assert cluster.revision_of(DELETE) == cluster.status.revision


def test_a_resource_without_our_finalizer_is_not_touched() -> None:
    cluster = SimulatedCluster(resource())
    cluster.started(1)
    assert cluster.resource is not None
    cluster.resource["metadata"]["finalizers"] = ["other/one"]
    cluster.delete()
    decision = cluster.step()
    assert (decision.status, decision.actions) == (None, ())
