"""The end of a resource, and its finalizer."""

from __future__ import annotations

from typing import Any

import pytest

from joinery_operator.decision import ObservedEnd, SetFinalizers
from joinery_operator.reconcile import FINALIZER, reconcile
from simulated_cluster.simulation import SimulatedCluster, resource
from simulated_cluster.trouble import TEMPLATE

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
    names: list[str] = cluster.resource["metadata"].get("finalizers", [])
    return names


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
    manifest = resource(cleanup="deleteState")
    manifest["metadata"]["finalizers"] = ["other/one"]
    cluster = SimulatedCluster(manifest)
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


def test_a_pod_that_the_api_server_refuses_is_told_with_the_way_out(cluster: SimulatedCluster) -> None:
    """As in a namespace that is being deleted, whose end this resource then keeps up."""
    cluster.delete()
    cluster.step()
    cluster.stopped(DRIVER)
    cluster.create_refused = "403 Forbidden: namespace shop is being terminated"
    cluster.step()
    assert cluster.condition("Degraded") == ("True", "CreateRefused")
    message = cluster.status.conditions[0].message
    assert all(word in message for word in (cluster.create_refused, "set spec.cleanup to retainState"))


def left_behind(cluster: SimulatedCluster) -> list[str]:
    return [event for event in cluster.events if event.startswith("Warning StateLeftBehind")]


def test_a_namespace_that_is_being_deleted_is_not_kept_up(cluster: SimulatedCluster) -> None:
    cluster.delete()
    cluster.namespace_ends = True
    cluster.step()
    assert cluster.resource is not None, "the driver ends first"
    cluster.stopped(DRIVER)
    decision = cluster.step()
    assert cluster.resource is None
    assert not cluster.database.deleted
    (message,) = left_behind(cluster)
    assert "is being deleted, so no pod can delete it" in message
    assert "`joinery state orphans`" in message
    assert [event.outlives_namespace for event in decision.events if event.reason == "StateLeftBehind"] == [True]


def test_nor_is_one_whose_config_maps_went_first(cluster: SimulatedCluster) -> None:
    """Nothing is to be created then, which the API server could refuse."""
    cluster.edit(stateStore={"postgres": {"dsn": "postgresql://elsewhere/db"}})
    cluster.delete()
    cluster.config_maps.clear()
    cluster.step()
    cluster.stopped(DRIVER)
    cluster.step()
    assert cluster.condition("Degraded") == ("True", "StateElsewhere")
    assert cluster.step().again_after == 60, "no watch reports the end of a namespace"
    cluster.namespace_ends = True
    cluster.step()
    assert cluster.resource is None
    assert len(left_behind(cluster)) == 1


def test_a_pod_that_was_there_before_its_namespace_ended_may_finish(cluster: SimulatedCluster) -> None:
    cluster.delete()
    cluster.step()
    cluster.stopped(DRIVER)
    cluster.step()
    cluster.run(DELETE)
    cluster.namespace_ends = True
    cluster.step()
    assert cluster.resource is not None
    cluster.state_is_deleted(DELETE)
    cluster.step()
    assert cluster.resource is None
    assert left_behind(cluster) == []


def test_one_that_fails_then_is_not_made_again(cluster: SimulatedCluster) -> None:
    cluster.delete()
    cluster.step()
    cluster.stopped(DRIVER)
    cluster.step()
    cluster.run(DELETE)
    cluster.end(DELETE, REFUSED)
    cluster.namespace_ends = True
    cluster.step()
    assert cluster.resource is None
    assert len(left_behind(cluster)) == 1


def test_a_job_goes_before_the_permissions_of_its_namespace(cluster: SimulatedCluster) -> None:
    """Its driver runs until Kubernetes deletes the pod."""
    cluster.permissions_end = True
    copy = cluster.resource
    assert copy is not None
    decision = cluster.step()
    assert finalizers(cluster) == []
    (message,) = left_behind(cluster)
    assert "is being deleted, so no pod can delete it" in message
    assert [event.outlives_namespace for event in decision.events] == [True]
    assert (cluster.status.phase, cluster.status.conditions[0].reason) == ("Deleting", "Deleting")
    assert "the state, which stays" in cluster.status.conditions[0].message
    assert cluster.step().actions == (), "it gets no finalizer again"
    assert reconcile(ObservedEnd(copy)).events == (), "it is not told twice"
    cluster.delete()
    assert cluster.resource is None


def test_so_does_one_whose_driver_is_ending(cluster: SimulatedCluster) -> None:
    cluster.delete()
    cluster.step()
    cluster.permissions_end = True
    cluster.step()
    assert cluster.resource is None
    assert len(left_behind(cluster)) == 1


def test_an_image_that_is_gone_is_told_with_the_way_out(cluster: SimulatedCluster) -> None:
    cluster.delete()
    cluster.step()
    cluster.stopped(DRIVER)
    cluster.step()
    cluster.wait(DELETE, "ImagePullBackOff", "not found")
    cluster.step()
    assert cluster.condition("Degraded") == ("True", "ImagePullFailed")
    message = cluster.status.conditions[0].message
    assert all(word in message for word in ("not found", "set spec.cleanup to retainState"))
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


def test_a_pod_that_does_not_start_is_told_with_the_way_out(cluster: SimulatedCluster) -> None:
    """Its Secret went with the job's chart, say."""
    cluster.delete()
    cluster.step()
    cluster.stopped(DRIVER)
    cluster.step()
    cluster.wait(DELETE, "ContainerCreating")
    again_after = cluster.step().again_after
    assert again_after is not None
    assert cluster.condition("Degraded")[0] == "False"
    cluster.pass_time(again_after)
    cluster.step()
    assert cluster.condition("Degraded") == ("True", "NotReady")
    message = cluster.status.conditions[0].message
    assert all(words in message for words in (f"kubectl describe pod {DELETE}", "a Secret", "retainState"))
    cluster.run(DELETE)
    cluster.step()
    assert cluster.condition("Degraded")[0] == "False"


MINE = {"podTemplate": {"name": "mine"}}


@pytest.mark.parametrize("foreground", [False, True])
def test_a_pod_template_that_went_with_the_job_does_not_keep_it(foreground: bool) -> None:
    """Both are of one chart."""
    cluster = SimulatedCluster(resource(cleanup="deleteState", spark={"driver": MINE, "executor": MINE}))
    cluster.templates = {"mine": TEMPLATE}
    cluster.commit(cluster.started(1))
    cluster.step()
    cluster.templates = {"mine": None}
    if foreground:
        begin_in_the_foreground(cluster)
        cluster.config_maps.clear()
        cluster.resource["metadata"]["finalizers"].remove("foregroundDeletion")
    else:
        cluster.delete()
        cluster.step()
        cluster.stopped(DRIVER)
    cluster.step()
    assert DELETE in cluster.pods


def begin_in_the_foreground(cluster: SimulatedCluster) -> None:
    """Until the driver has stopped. Kubernetes deletes the children first."""
    assert cluster.resource is not None
    cluster.resource["metadata"]["finalizers"].append("foregroundDeletion")
    cluster.delete()
    cluster.step()
    cluster.stopped(DRIVER)


def test_what_kubernetes_deletes_in_the_foreground_is_left_to_it(cluster: SimulatedCluster) -> None:
    begin_in_the_foreground(cluster)
    cluster.config_maps.clear()
    cluster.services.clear()
    assert not cluster.step().actions
    cluster.resource["metadata"]["finalizers"].remove("foregroundDeletion")
    cluster.step()
    assert DELETE in cluster.pods
    assert len(cluster.config_maps) == 1


ELSEWHERE = {"postgres": {"dsn": "postgresql://other/db"}}


def deleted_in_the_foreground(cluster: SimulatedCluster, **edit: Any) -> str:
    """Right after an edit. Returns what Ready says then."""
    cluster.edit(**edit)
    cluster.step()
    begin_in_the_foreground(cluster)
    cluster.pods.clear()
    cluster.config_maps.clear()
    cluster.step()
    cluster.resource["metadata"]["finalizers"].remove("foregroundDeletion")
    cluster.step()
    return cluster.status.conditions[0].message


@pytest.mark.parametrize(
    "before", [{}, {"stateStore": {"postgres": {"dsn": "postgresql://joinery:secret@db/joinery"}}}]
)
def test_no_state_is_deleted_where_the_revision_in_force_has_none(before: dict[str, Any]) -> None:
    """An edit that has not taken over may name the state of another job."""
    cluster = SimulatedCluster(resource(cleanup="deleteState", **before))
    cluster.commit(cluster.started(1))
    cluster.step()
    message = deleted_in_the_foreground(cluster, stateStore=ELSEWHERE)
    assert not cluster.pods
    assert cluster.condition("Degraded") == ("True", "StateElsewhere")
    location = "schema joinery of " + ("postgresql://db/joinery" if before else "dsnSecretRef state-db/dsn")
    for words in (location, "schema joinery of postgresql://other/db", "Set spec.stateStore back", "retainState"):
        assert words in message
    assert "secret@" not in cluster.status.model_dump_json()
    cluster.edit(**(before or {"stateStore": resource()["spec"]["stateStore"]}))
    cluster.step()
    assert DELETE in cluster.pods


def test_an_edit_that_leaves_the_state_where_it_is_does_not_keep_a_resource(cluster: SimulatedCluster) -> None:
    first = cluster.status.revision
    deleted_in_the_foreground(cluster, trigger={"maxRecordsPerEpoch": 5})
    assert cluster.revision_of(DELETE) != first


def test_a_job_that_kept_its_state_in_memory_deletes_none_elsewhere() -> None:
    kafka = {"kafka": {"bootstrapServers": "kafka:9092", "topic": "out"}}
    cluster = SimulatedCluster(resource(cleanup="deleteState", stateStore={"memory": {}}, output=kafka))
    cluster.commit(cluster.started(1))
    cluster.step()
    assert cluster.resource is not None
    cluster.resource["spec"]["stateStore"] = ELSEWHERE
    cluster.resource["metadata"]["finalizers"].append("foregroundDeletion")
    cluster.delete()
    cluster.config_maps.clear()
    cluster.pods.clear()
    cluster.resource["metadata"]["finalizers"].remove("foregroundDeletion")
    cluster.step()
    assert cluster.resource is None
    assert not cluster.created[1:]


def test_an_invalid_edit_is_told_with_what_to_do(cluster: SimulatedCluster) -> None:
    message = deleted_in_the_foreground(cluster, trigger={"maxRecordsPerEpoch": "many"})
    assert not cluster.pods
    assert cluster.condition("Degraded") == ("True", "RevisionLost")
    assert "restartedAt" not in message
    for words in (
        "spec.trigger.maxRecordsPerEpoch",
        "Correct the resource",
        "dsnSecretRef state-db/dsn",
        "retainState",
    ):
        assert words in message
    cluster.edit(trigger={"maxRecordsPerEpoch": 5})
    cluster.step()
    assert DELETE in cluster.pods


def test_a_status_of_an_earlier_release_deletes_no_state_that_may_be_elsewhere(cluster: SimulatedCluster) -> None:
    cluster.step()
    cluster.edit(stateStore=ELSEWHERE)
    assert cluster.resource is not None
    cluster.delete()
    cluster.step()
    cluster.stopped(DRIVER)
    cluster.config_maps.clear()
    cluster.resource["status"].pop("statePlace", None)
    cluster.step()
    assert not cluster.pods
    assert cluster.condition("Degraded") == ("True", "RevisionLost")
    assert "Set the resource back to what ran" in cluster.status.conditions[0].message


def test_an_invalid_resource_is_deleted_by_the_revision_in_force(cluster: SimulatedCluster) -> None:
    cluster.edit(trigger={"maxRecordsPerEpoch": "many"})
    cluster.step()
    cluster.delete()
    cluster.step()
    cluster.stopped(DRIVER)
    cluster.step()
    assert cluster.revision_of(DELETE) == cluster.status.revision


def told_of_the_end(last: Any) -> list[str]:
    decision = reconcile(ObservedEnd(last))
    assert (decision.status, decision.actions) == (None, ())
    return [f"{event.type} {event.reason}: {event.message}" for event in decision.events]


def running_with_retained_state() -> SimulatedCluster:
    cluster = SimulatedCluster(resource())
    cluster.commit(cluster.started(1))
    cluster.step()
    return cluster


def test_state_that_an_edit_asked_to_delete_and_that_stays_is_told() -> None:
    """The job is deleted before the operator has seen the edit, and so without its finalizer."""
    cluster = running_with_retained_state()
    cluster.edit(cleanup="deleteState")
    (message,) = told_of_the_end(cluster.resource)
    for words in (
        "Warning StateLeftBehind: the state of StreamJoin shop/orders stays in schema joinery of dsnSecretRef "
        "state-db/dsn",
        FINALIZER,
        "`joinery state delete JOB.yaml --yes`",
        "metadata.namespace: shop",
    ):
        assert words in message
    assert len(message) < 1024


def test_a_deletion_in_the_foreground_without_the_finalizer_is_told_when_it_ends() -> None:
    cluster = running_with_retained_state()
    cluster.edit(cleanup="deleteState")
    assert cluster.resource is not None
    cluster.resource["metadata"]["finalizers"] = ["foregroundDeletion"]
    cluster.delete()
    cluster.step()
    assert len(told_of_the_end({**cluster.resource})) == 1


def test_an_end_that_leaves_what_it_should_is_not_told(cluster: SimulatedCluster) -> None:
    retained = running_with_retained_state().resource
    assert told_of_the_end(retained) == []
    never_started = resource(cleanup="deleteState")
    assert told_of_the_end(never_started) == []
    kafka = {"kafka": {"bootstrapServers": "kafka:9092", "topic": "out"}}
    in_memory = SimulatedCluster(resource(cleanup="deleteState", stateStore={"memory": {}}, output=kafka))
    in_memory.started(1)
    assert told_of_the_end(in_memory.resource) == []
    cluster.delete()
    cluster.step()
    cluster.stopped(DRIVER)
    cluster.step()
    cluster.state_is_deleted(DELETE)
    last = cluster.resource
    cluster.step()
    assert cluster.resource is None
    assert told_of_the_end(last) == []


@pytest.mark.parametrize("last", [{}, {"spec": None, "status": {"driver": "x"}}, {"spec": {"cleanup": "deleteState"}}])
def test_a_last_copy_of_any_form_is_read(last: dict[str, Any]) -> None:
    assert told_of_the_end({"kind": "StreamJoin", "metadata": {"name": "orders", "namespace": "shop"}, **last}) == []


def test_a_resource_without_our_finalizer_is_not_touched() -> None:
    cluster = SimulatedCluster(resource())
    cluster.started(1)
    assert cluster.resource is not None
    cluster.resource["metadata"]["finalizers"] = ["other/one"]
    cluster.delete()
    decision = cluster.step()
    assert (decision.status, decision.actions) == (None, ())
