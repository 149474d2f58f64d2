"""The life of a Savepoint, step by step against the simulated cluster of its job."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from joinery_operator.decision import ObservedEnd, ObservedSavepoint
from joinery_operator.manifests import MAIN_CONTAINER
from joinery_operator.reconcile import reconcile
from joinery_operator.reconcile.savepoint import FINALIZER
from joinery_runtime.job.crd import SavepointState, Status
from joinery_runtime.job.model.resource import API_VERSION
from simulated_cluster.simulation import Killed, SimulatedCluster, resource

RESULT = {"epoch": 7, "time": "2026-01-15T12:00:00Z", "rows": 1200, "bytes": 34567}
IN_KAFKA = {"kafka": {"bootstrapServers": "kafka:9092", "topic": "out"}}
AWAY = {"outcome": "failed", "kind": "StoreUnavailable", "error": "connection refused", "retry": True}


@dataclass
class SavepointCluster(SimulatedCluster):
    """The objects of one Savepoint; those of its job are another cluster's."""

    job: SimulatedCluster = field(default_factory=lambda: SimulatedCluster(resource()))
    job_is_anothers: bool = False

    def observed(self) -> Any:
        assert self.resource is not None
        self.config_maps = self.job.config_maps
        return ObservedSavepoint(
            resource=self.resource,
            pods=self.pods,
            job=self.job.observed() if self.job.resource and not self.job_is_anothers else None,
            now=self.now,
            settings=self.settings,
            create_refused=self.create_refused,
            delete_refused=self.delete_refused,
            namespace_ends=self.namespace_ends,
            permissions_end=self.permissions_end,
            job_is_anothers=self.job_is_anothers,
        )

    def _write_status(self, status: Status | SavepointState | None) -> None:
        assert isinstance(status, SavepointState)
        assert self.resource is not None
        self.resource["status"] = status.model_dump(mode="json", by_alias=True, exclude_none=True)

    @property
    def state(self) -> SavepointState:
        assert self.resource is not None
        return SavepointState.model_validate(self.resource.get("status") or {})

    def ready(self) -> tuple[str, str]:
        condition = next(condition for condition in self.state.conditions if condition.type == "Ready")
        return condition.status, condition.reason

    def pod(self) -> str:
        (name,) = self.pods
        return name

    def command(self) -> list[str]:
        container = self.pods[self.pod()]["spec"]["containers"][0]
        assert container["name"] == MAIN_CONTAINER
        arguments: list[str] = container["args"]
        return arguments

    def finalizers(self) -> list[str]:
        names: list[str] = self.resource["metadata"].get("finalizers", []) if self.resource else []
        return names

    def completed(self) -> None:
        self.step()
        self.run(self.pod())
        self.end(self.pod(), RESULT, code=0, reason="Completed")
        self.step()


def savepoint(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "Savepoint",
        "metadata": {"name": "noon", "namespace": "shop", "uid": "s-1", "generation": 1},
        "spec": {"job": {"kind": "StreamJoin", "name": "orders"}, "cleanup": "delete", **spec},
    }


@pytest.fixture
def cluster() -> SavepointCluster:
    """Beside a job that runs."""
    new_cluster = SavepointCluster(savepoint())
    new_cluster.job.commit(new_cluster.job.started(1))
    new_cluster.job.step()
    return new_cluster


def test_it_is_pinned_beside_the_driver_with_the_jobs_own_image_and_secrets(cluster: SavepointCluster) -> None:
    cluster.step()
    assert cluster.command()[1:] == ["state", "savepoint", "/etc/joinery/job.yaml", "noon", "--idempotent"]
    pod, driver = cluster.pods[cluster.pod()], cluster.job.pods[cluster.job.driver(1)]
    for volume in ("job", "secret-"):
        theirs = [entry for entry in driver["spec"]["volumes"] if entry["name"].startswith(volume)]
        assert [entry for entry in pod["spec"]["volumes"] if entry["name"].startswith(volume)] == theirs != []
    assert pod["spec"]["containers"][0]["image"] == driver["spec"]["containers"][0]["image"]
    assert [owner["kind"] for owner in pod["metadata"]["ownerReferences"]] == ["Savepoint"]
    assert cluster.ready() == ("False", "Running")
    cluster.completed()
    assert cluster.ready() == ("True", "Completed")
    assert (cluster.state.phase, cluster.state.epoch, cluster.state.rows, cluster.state.bytes) == (
        "Completed", 7, 1200, 34567,
    )  # fmt: skip
    assert not cluster.pods
    assert cluster.job.alive()
    decision = cluster.step()
    assert (decision.status, decision.actions, decision.again_after) == (None, (), None)


def test_what_a_newer_operator_wrote_into_the_status_does_not_hide_what_is_pinned(cluster: SavepointCluster) -> None:
    cluster.completed()
    assert cluster.resource is not None
    cluster.resource["status"] |= {"later": {"field": 1}, "rows": "many"}
    assert cluster.step().actions == ()
    assert cluster.ready() == ("True", "Completed")
    cluster.resource["status"]["later"] = 1
    cluster.resource["metadata"]["generation"] = 2
    cluster.step()
    assert not cluster.pods
    assert (cluster.state.phase, cluster.state.epoch) == ("Completed", 7)


def test_the_finalizer_is_there_before_anything_is_pinned(cluster: SavepointCluster) -> None:
    for writes in range(4):
        with suppress(Killed):
            cluster.step(killed_after=writes)
        assert not cluster.pods or FINALIZER in cluster.finalizers()
    assert cluster.pods


def test_a_suspended_job_has_savepoints_too(cluster: SavepointCluster) -> None:
    cluster.job.edit(suspend=True)
    cluster.job.step()
    cluster.job.stopped(cluster.job.driver(1))
    cluster.job.step()
    cluster.completed()
    assert cluster.state.phase == "Completed"


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (None, "JobMissing"),
        (resource(), "JobNotStarted"),
        (
            resource(stateStore={"memory": {}}, output={"kafka": {"bootstrapServers": "kafka:9092", "topic": "out"}}),
            "StateInMemory",
        ),
    ],
)
def test_what_keeps_it_from_a_state_is_told_and_waited_for(job: dict[str, Any] | None, reason: str) -> None:
    cluster = SavepointCluster(savepoint(), job=SimulatedCluster(job))
    if reason == "StateInMemory":
        cluster.job.started(1)
        cluster.job.step()
    decision = cluster.step()
    assert cluster.ready() == ("False", reason)
    assert decision.again_after is not None
    assert not cluster.pods
    assert not cluster.finalizers()
    cluster.job.resource = cluster.job.resource or resource()
    if reason != "StateInMemory":
        cluster.job.started(1)
        cluster.completed()
        assert cluster.state.phase == "Completed"


def test_a_pod_that_has_not_started_goes_with_its_job(cluster: SavepointCluster) -> None:
    """It would wait for ever for the job's ConfigMap."""
    cluster.step()
    pod = cluster.pod()
    cluster.job.resource = None
    cluster.step()
    assert cluster.ready() == ("False", "JobMissing")
    assert pod not in cluster.pods or "deletionTimestamp" in cluster.pods[pod]["metadata"]


def test_what_fails_is_told_and_tried_again_later(cluster: SavepointCluster) -> None:
    cluster.step()
    for failures, pause in ((1, 10.0), (2, 20.0)):
        cluster.run(cluster.pod())
        cluster.end(cluster.pod(), AWAY)
        decision = cluster.step()
        assert decision.again_after == pause
        assert (cluster.state.phase, cluster.state.failures) == ("Failed", failures)
        assert "connection refused" in (cluster.state.last_error or "")
        failed = cluster.pods[cluster.pod()]["metadata"]["uid"]
        cluster.step()
        assert cluster.pods[cluster.pod()]["metadata"]["uid"] == failed
        cluster.pass_time(pause)
        cluster.step()
        cluster.step()
        assert cluster.pods[cluster.pod()]["metadata"]["uid"] != failed
    assert len([event for event in cluster.events if event.startswith("Warning Failed")]) == 2
    cluster.completed()
    assert (cluster.state.phase, cluster.state.failures, cluster.state.last_error) == ("Completed", 0, None)


def test_tries_are_as_far_apart_where_the_clock_of_a_node_is_behind(cluster: SavepointCluster) -> None:
    """By an hour: each pod ends before it was made."""
    waits = []
    for _ in range(4):
        while not cluster.pods:
            cluster.step()
        cluster.run(cluster.pod())
        cluster.now -= timedelta(hours=1)
        cluster.end(cluster.pod(), AWAY)
        cluster.now += timedelta(hours=1)
        waits.append(cluster.step().again_after)
        cluster.pass_time(waits[-1] or 0)
        cluster.step()
    assert waits == [10, 20, 40, 80]


def test_an_image_that_cannot_be_pulled_is_told(cluster: SavepointCluster) -> None:
    cluster.step()
    cluster.wait(cluster.pod(), "ImagePullBackOff", "not found")
    cluster.step()
    assert cluster.ready() == ("False", "ImagePullFailed")


def test_it_is_unpinned_before_the_resource_goes(cluster: SavepointCluster) -> None:
    cluster.completed()
    cluster.delete()
    cluster.step()
    assert cluster.pod().endswith("-delete")
    assert cluster.command()[1:] == ["state", "savepoint", "/etc/joinery/job.yaml", "noon", "--idempotent", "--delete"]
    assert cluster.state.phase == "Deleting"
    cluster.run(cluster.pod())
    cluster.end(cluster.pod(), {"outcome": "finished"}, code=0, reason="Completed")
    cluster.step()
    assert cluster.resource is None


def test_a_database_that_is_gone_is_told_with_the_way_out(cluster: SavepointCluster) -> None:
    cluster.completed()
    cluster.delete()
    cluster.step()
    cluster.run(cluster.pod())
    cluster.end(cluster.pod(), AWAY)
    cluster.step()
    ready = next(condition for condition in cluster.state.conditions if condition.type == "Ready")
    assert "connection refused" in ready.message
    assert "spec.cleanup to retain" in ready.message
    cluster.edit(cleanup="retain")
    cluster.step()
    assert cluster.resource is None


def test_what_pins_ends_before_it_is_unpinned(cluster: SavepointCluster) -> None:
    cluster.step()
    cluster.run(cluster.pod())
    cluster.delete()
    cluster.step()
    assert "deletionTimestamp" in cluster.pods[cluster.pod()]["metadata"]
    assert cluster.pod().endswith("-create")
    cluster.gone(cluster.pod())
    cluster.step()
    assert cluster.pod().endswith("-delete")


def test_a_dead_node_does_not_keep_the_resource(cluster: SavepointCluster) -> None:
    cluster.step()
    cluster.run(cluster.pod())
    cluster.dead.add(cluster.pod())
    cluster.delete()
    waited = 0.0
    while not (cluster.pods and cluster.pod().endswith("-delete")):
        again_after = cluster.step().again_after or 1
        waited += again_after
        cluster.pass_time(again_after)
        assert waited < 1000


@pytest.mark.parametrize("cleanup", ["delete", "retain"])
def test_what_becomes_of_it_may_be_decided_once_it_is_pinned(cleanup: str) -> None:
    cluster = SavepointCluster(savepoint(cleanup={"delete": "retain", "retain": "delete"}[cleanup]))
    cluster.job.started(1)
    cluster.completed()
    cluster.edit(cleanup=cleanup)
    cluster.step()
    assert cluster.finalizers() == ([FINALIZER] if cleanup == "delete" else [])
    seen = {
        cluster.state.observed_generation,
        *(condition.observed_generation for condition in cluster.state.conditions),
    }
    assert (cluster.ready(), seen) == (("True", "Completed"), {2}), "or tools wait for it for ever"
    assert cluster.step().status is None


def test_it_goes_with_a_job_that_is_gone_and_says_so(cluster: SavepointCluster) -> None:
    cluster.completed()
    cluster.job.resource = None
    cluster.delete()
    cluster.step()
    assert cluster.resource is None
    assert any("SavepointRetained" in event for event in cluster.events)


def test_one_that_is_deleted_while_its_job_changes_hands_keeps_its_finalizer(cluster: SavepointCluster) -> None:
    """Its job has the labels of another operator by now, and its own labels may follow: only then is it unpinned."""
    cluster.completed()
    cluster.job_is_anothers = True
    cluster.delete()
    decision = cluster.step()
    assert cluster.finalizers() == [FINALIZER]
    assert (cluster.ready(), cluster.pods) == (("False", "JobOfAnotherOperator"), {})
    assert decision.again_after == cluster.settings.poll_seconds
    message = next(condition.message for condition in cluster.state.conditions if condition.type == "Ready")
    assert "another operator works on StreamJoin orders" in message
    assert "set spec.cleanup to retain" in message
    cluster.job_is_anothers = False
    cluster.step()
    assert cluster.command()[1:] == ["state", "savepoint", "/etc/joinery/job.yaml", "noon", "--idempotent", "--delete"]


def test_a_namespace_that_ends_does_not_wait_for_the_operator_of_the_job(cluster: SavepointCluster) -> None:
    cluster.completed()
    cluster.job_is_anothers = cluster.namespace_ends = True
    cluster.delete()
    cluster.step()
    assert cluster.resource is None
    assert any("SavepointLeftBehind" in event for event in cluster.events)


def test_one_that_is_retained_goes_at_once() -> None:
    cluster = SavepointCluster(savepoint(cleanup="retain"))
    cluster.job.started(1)
    cluster.completed()
    assert not cluster.finalizers()
    cluster.delete()
    assert cluster.resource is None


def told_of_the_end(last: dict[str, Any] | None) -> list[str]:
    assert last is not None
    decision = reconcile(ObservedEnd(last))
    assert (decision.status, decision.actions) == (None, ())
    return [f"{event.type} {event.reason}: {event.message}" for event in decision.events]


def test_one_that_an_edit_asked_to_delete_and_that_stays_is_told() -> None:
    """The resource is deleted before the operator has seen the edit, and so without its finalizer."""
    cluster = SavepointCluster(savepoint(cleanup="retain"))
    cluster.job.started(1)
    cluster.completed()
    assert told_of_the_end(cluster.resource) == []
    cluster.edit(cleanup="delete")
    (message,) = told_of_the_end(cluster.resource)
    for words in (
        "Warning SavepointLeftBehind: savepoint noon of StreamJoin shop/orders stays in the state store",
        FINALIZER,
        "`kubectl joinery state orders savepoint noon --delete`",
        "`joinery state savepoint JOB.yaml noon --delete`",
        "metadata.namespace: shop",
    ):
        assert words in message
    assert len(message) < 1024


def test_one_that_may_have_been_pinned_is_told_as_such() -> None:
    cluster = SavepointCluster(savepoint(cleanup="retain"))
    cluster.job.started(1)
    cluster.step()
    cluster.run(cluster.pod())
    cluster.edit(cleanup="delete")
    (message,) = told_of_the_end(cluster.resource)
    assert "stays, if its pod has made it," in message


def test_an_end_that_leaves_nothing_behind_is_not_told(cluster: SavepointCluster, going: SavepointCluster) -> None:
    cluster.completed()
    cluster.delete()
    cluster.step()
    cluster.run(cluster.pod())
    cluster.end(cluster.pod(), None, code=0, reason="Completed")
    last = cluster.resource
    cluster.step()
    assert cluster.resource is None
    assert told_of_the_end(last) == []
    assert told_of_the_end(savepoint()) == []
    waits = SavepointCluster(savepoint(), job=SimulatedCluster(None))
    waits.step()
    assert told_of_the_end(waits.resource) == []
    assert told_of_the_end(going.resource) == []


def test_one_that_goes_without_its_job_is_told_once(cluster: SavepointCluster) -> None:
    """As `SavepointRetained`, by the reconcile that lets it go."""
    cluster.completed()
    cluster.job.resource = None
    cluster.delete()
    last = cluster.resource
    cluster.step()
    assert cluster.resource is None
    assert told_of_the_end(last) == []


@pytest.fixture
def going() -> SavepointCluster:
    """Beside a job that is being deleted with its state."""
    new_cluster = SavepointCluster(savepoint(), job=SimulatedCluster(resource(cleanup="deleteState")))
    new_cluster.job.commit(new_cluster.job.started(1))
    new_cluster.job.step()
    new_cluster.completed()
    new_cluster.job.delete()
    new_cluster.step()
    return new_cluster


def conditions(cluster: SavepointCluster) -> dict[str, str]:
    return {condition.type: condition.status for condition in cluster.state.conditions}


def test_one_whose_state_goes_with_its_job_is_not_ready(going: SavepointCluster) -> None:
    assert going.ready() == ("False", "StateBeingDeleted")
    going.job.resource = None
    going.step()
    assert going.ready() == ("False", "StateDeleted")
    assert conditions(going) == {"Ready": "False", "Reconciling": "False", "Stalled": "True"}
    message = next(condition.message for condition in going.state.conditions if condition.type == "Ready")
    assert all(words in message for words in ("StreamJoin orders", "epoch 7", "Delete this Savepoint"))
    assert any(event.startswith("Warning StateDeleted") for event in going.events)
    assert going.step().status is None
    going.job.resource = resource()
    going.job.started(1)
    going.step()
    assert going.ready() == ("False", "StateDeleted"), "the state of another job of this name does not hold it"
    assert not going.pods
    going.job.delete()
    going.step()
    assert going.ready() == ("False", "StateDeleted")


def test_one_whose_job_gives_its_state_up_at_last_is_ready_again(going: SavepointCluster) -> None:
    going.job.edit(cleanup="retainState")
    going.step()
    assert going.ready() == ("True", "Completed")
    going.job.resource = None
    going.step()
    assert going.ready() == ("True", "Completed")


@pytest.mark.parametrize("config_map", [True, False])
def test_a_namespace_that_is_being_deleted_is_not_kept_up(cluster: SavepointCluster, config_map: bool) -> None:
    cluster.completed()
    cluster.step()
    if not config_map:
        cluster.job.config_maps.clear()
    cluster.delete()
    cluster.namespace_ends = True
    copy = cluster.resource
    assert copy is not None
    decision = cluster.step()
    assert cluster.resource is None
    (event,) = decision.events
    assert (event.type, event.reason, event.outlives_namespace) == ("Warning", "SavepointLeftBehind", True)
    assert "so no pod can delete it" in event.message
    assert reconcile(ObservedEnd(copy)).events == (), "it is not told twice"


@pytest.mark.parametrize("is_being_deleted", [True, False])
def test_one_goes_before_the_permissions_of_its_namespace(cluster: SavepointCluster, is_being_deleted: bool) -> None:
    """The job may be gone by then, and its Savepoint is not deleted yet."""
    cluster.completed()
    assert cluster.finalizers() == [FINALIZER]
    if is_being_deleted:
        cluster.delete()
    cluster.permissions_end = True
    copy = cluster.resource
    assert copy is not None
    (event,) = cluster.step().events
    assert (event.type, event.reason, event.outlives_namespace) == ("Warning", "SavepointLeftBehind", True)
    assert cluster.finalizers() == []
    if not is_being_deleted:
        assert cluster.step().actions == (), "it gets no finalizer again"
    assert reconcile(ObservedEnd(copy)).events == (), "it is not told twice"


def test_one_that_pinned_nothing_leaves_nothing_behind_with_its_namespace(cluster: SavepointCluster) -> None:
    cluster.job.resource = None
    cluster.step()
    assert cluster.resource is not None
    cluster.resource["metadata"]["finalizers"] = [FINALIZER]
    cluster.permissions_end = True
    assert cluster.step().events == ()
    assert cluster.finalizers() == []
