"""Anything may happen at any time, the operator's death between two writes included: what must hold, holds, and when
the disturbances end, the job is where its resource wants it."""

from __future__ import annotations

import contextlib
import json
from copy import deepcopy
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from budget import examples
from joinery_operator.names import ChildNames
from joinery_operator.reconcile import desired
from joinery_runtime.job.crd import KINDS, DriverStatus, ResourceKind, Status, Waiting
from simulated_cluster.simulation import Killed, Manifest, has_finalizer, resource
from simulated_cluster.trouble import TEMPLATE, TroubledCluster, older_job_of_another_kind

INCOMPATIBLE_TRIGGER = 13  # stands for any change that does not fit the state
BROKEN_TRIGGER = 17  # and for one whose driver never starts
FATAL = {"outcome": "failed", "kind": "SourceError", "error": "no such topic", "retry": False}
TRANSIENT = {"outcome": "failed", "kind": "StoreUnavailable", "error": "connection refused", "retry": True}
FINISHED = {"outcome": "finished"}
MAX_STATUS = 64 * 1024
"""Bytes."""
ENOUGH_STEPS = 300
SCENES: list[tuple[int, Manifest, int]] = [
    (0, {}, 0),
    (20, {}, 0),
    *((20, {"trigger": {"maxRecordsPerEpoch": 8}}, steps) for steps in (2, 3, 4)),
    *(
        (20, {"trigger": {"maxRecordsPerEpoch": BROKEN_TRIGGER}}, steps)
        for steps in (5, 10, 14, 18, 20, 21, 22, 23, 24, 25, 26, 28)
    ),
]
"""How many steps all goes well, an edit, and how many more steps all goes well."""


class Simulation(RuleBasedStateMachine):
    @initialize(
        cleanup=st.sampled_from(["retainState", "deleteState"]),
        mode=st.sampled_from(["stateful", "shadow", "stateless"]),
        scene=st.sampled_from(SCENES),
        kind=st.sampled_from(KINDS),
    )
    def start(self, cleanup: str, mode: str, scene: tuple[int, Manifest, int], kind: ResourceKind) -> None:
        established, edit, more = scene
        self.cluster = TroubledCluster(resource(kind, cleanup=cleanup, upgrade={"mode": mode}))
        self.cluster.templates = {"mine": TEMPLATE}
        self.checked_pods = 0
        self.known_commits: set[str] = set()
        self.at_rest: str | None = None
        self.lost = self.disabled = False
        self.last = deepcopy(self.cluster.resource) or {}
        self._go_on(established)
        self.cluster.edit(**edit)
        self._go_on(more)

    # The operator

    @rule(steps=st.integers(1, 5))
    def things_go_well(self, steps: int) -> None:
        self._go_on(steps)

    def _go_on(self, steps: int) -> None:
        for _ in range(steps):
            self._calm_step()

    @rule(killed_after=st.none() | st.integers(0, 4), late=st.booleans())
    def reconcile_once(self, killed_after: int | None, late: bool) -> None:
        if self.cluster.resource is not None:
            self._note()
            with contextlib.suppress(Killed):
                self.cluster.step(killed_after, late=late)
            self._note_rest()

    @rule(image=st.sampled_from(["joinery:1", "joinery:9"]))
    def operator_is_of_another_release(self, image: str) -> None:
        self.cluster.settings = replace(self.cluster.settings, runtime_image=image)

    def _note_rest(self) -> None:
        """What was asked for when the job was suspended."""
        if self.cluster.resource is not None and self.cluster.resource["spec"].get("suspend") and self.at_rest is None:
            self.at_rest = self.cluster.status.target_revision

    def _note(self) -> None:
        status, driver = self.cluster._said(), self.cluster.status.driver
        if status is not None and status.committed and driver is not None and driver.migrate:
            self.known_commits.add(driver.migrate)

    @rule(seconds=st.sampled_from([-60.0, 1.0, 10.0, 60.0, 301.0, 900.0]))
    def time_passes(self, seconds: float) -> None:
        self.cluster.pass_time(seconds)
        for pod in self.cluster.alive(""):
            deleted = pod["metadata"].get("deletionTimestamp")
            if deleted and _time(deleted) <= self.cluster.now:
                self._work(pod["metadata"]["name"])  # the kubelet of a node that lives waits no longer

    # A person

    @precondition(lambda self: self.cluster.resource is not None)
    @rule(
        edit=st.sampled_from(
            [
                {"trigger": {"maxRecordsPerEpoch": 4}},
                {"trigger": {"maxRecordsPerEpoch": 8}},
                {"trigger": {"maxRecordsPerEpoch": 9}},
                {"trigger": {"maxRecordsPerEpoch": INCOMPATIBLE_TRIGGER}},
                {"trigger": {"maxRecordsPerEpoch": BROKEN_TRIGGER}},
                {"trigger": {"maxRecordsPerEpoch": "many"}},
                {"cleanup": "deleteState"},
                {"cleanup": "retainState"},
                {"upgrade": {"mode": "stateless"}},
                {"upgrade": {"mode": "stateful"}},
                {"upgrade": {"mode": "shadow"}},
                {"shards": 16},
                {"upgrade": {"rollback": "manual"}},
                {"upgrade": {"rollback": "disabled"}},
                {"spark": {"image": "joinery:2"}},
                {"spark": {"executor": {"instances": 3}}},
                {"spark": {"driver": {"podTemplate": {"name": "mine"}}}},
                {"autoscale": {"minInstances": 1, "maxInstances": 4}},
                {"output": {"postgres": {"table": "out", "dsn": "postgresql://another/db"}}},
                {"spark": {}},
            ]
        )
    )
    def edit(self, edit: Manifest) -> None:
        self.cluster.edit(**edit)
        self.disabled |= edit.get("upgrade", {}).get("rollback") == "disabled"

    @precondition(lambda self: self.cluster.resource is not None)
    @rule(suspend=st.booleans())
    def suspend(self, suspend: bool) -> None:
        self.cluster.edit(suspend=suspend)

    @precondition(lambda self: self.cluster.resource is not None)
    @rule(number=st.integers(1, 3))
    def restart(self, number: int) -> None:
        resource = self.cluster.resource
        assert resource is not None
        resource["metadata"]["annotations"] = {"joinery.dev/restartedAt": str(number)}

    @precondition(lambda self: self.cluster.resource is not None and self.cluster.uids > 8)
    @rule()
    def delete(self) -> None:
        self.cluster.delete()

    @precondition(lambda self: self.cluster.resource is not None and self.cluster.uids > 8)
    @rule()
    def delete_in_the_foreground(self) -> None:
        self.cluster.delete_in_the_foreground()

    @rule(exists=st.booleans())
    def pod_template(self, exists: bool) -> None:
        self.cluster.templates = {"mine": TEMPLATE if exists else None}

    @rule(exists=st.booleans())
    def older_job_with_this_state(self, exists: bool) -> None:
        job = self.cluster.resource
        self.cluster.name_conflicts = [older_job_of_another_kind(job)] if job is not None and exists else []

    # Pods

    @rule(refuses=st.booleans())
    def pods_are_refused(self, refuses: bool) -> None:
        self.cluster.refuses = refuses

    def _pick(self, data: Any, *, running: bool = False, role: str = "") -> str | None:
        names = [
            pod["metadata"]["name"]
            for pod in self.cluster.alive(role)
            if (pod["status"]["phase"] == "Running") == running
        ]
        return data.draw(st.sampled_from(names)) if names else None

    @rule(data=st.data())
    def pod_runs(self, data: Any) -> None:
        if name := self._pick(data):
            self.cluster.run(name)

    @rule(data=st.data())
    def pod_waits(self, data: Any) -> None:
        if name := self._pick(data):
            if data.draw(st.booleans()):
                self.cluster.unschedulable(name)
            else:
                self.cluster.wait(name, "ImagePullBackOff", "not found")

    @rule(data=st.data())
    def first_container_fails(self, data: Any) -> None:
        name = self._pick(data)
        if name and self.cluster.pods[name]["spec"].get("initContainers"):
            self.cluster.fail_first(name, data.draw(st.sampled_from([FATAL, TRANSIENT, None])))

    @rule(data=st.data())
    def driver_is_ready(self, data: Any) -> None:
        name = self._pick(data, running=True, role="driver")
        if name and not self._broken(name):
            self.cluster.get_ready(name)

    @rule(data=st.data(), reports=st.booleans())
    def driver_commits(self, data: Any, reports: bool) -> None:
        name = self._pick(data, running=True, role="driver")
        if name and not self._broken(name):
            self.cluster.commit(name)
            if reports and name not in self.cluster.dead:  # a dead node answers nobody
                self.cluster.tell(name)

    @rule(data=st.data(), system=st.sampled_from(["input", "output", "store"]))
    def driver_waits(self, data: Any, system: str) -> None:
        name = self._pick(data, running=True, role="driver")
        if name and name not in self.cluster.dead:
            waiting = Waiting(system=system, since=self.cluster.now, reason="away")
            uid = self.cluster.pods[name]["metadata"]["uid"]
            self.cluster.driver_statuses[uid] = DriverStatus(revision=self.cluster.revision_of(name), waiting=waiting)

    @rule(data=st.data(), ending=st.sampled_from([TRANSIENT, FATAL, FINISHED, None]))
    def pod_ends(self, data: Any, ending: Manifest | None) -> None:
        name = self._pick(data, running=True)
        if name and ending is FINISHED and name.endswith("delete-state"):
            self._work(name)  # it does not finish before it has done its work
        elif name and not (ending is FINISHED and self._broken(name)):
            self.cluster.end(name, ending, code=0 if ending is FINISHED else 1)

    @rule(data=st.data())
    def pod_does_its_work(self, data: Any) -> None:
        self._work(self._pick(data, running=True) or "")

    @rule(data=st.data())
    def pod_is_evicted(self, data: Any) -> None:
        if name := self._pick(data, running=data.draw(st.booleans())):
            self.cluster.evict(name)

    @rule(data=st.data())
    def others_delete(self, data: Any) -> None:
        if self.cluster.pods:
            self.cluster.delete_child("Pod", data.draw(st.sampled_from(sorted(self.cluster.pods))))

    @rule(data=st.data())
    def node_dies(self, data: Any) -> None:
        if name := self._pick(data, running=True):
            self.cluster.dead.add(name)
            self.cluster.delete_child("Pod", name)

    @rule(data=st.data())
    def node_is_lost(self, data: Any) -> None:
        if name := self._pick(data, running=True):
            self.cluster.lose_node(name)

    @rule()
    def children_are_lost(self) -> None:
        self.cluster.services.clear()

    @rule(image=st.sampled_from(["joinery:1", "joinery:2"]))
    def image_is_lost(self, image: str) -> None:
        self.lost = True
        self.cluster.missing_images.add(image)

    @rule()
    def config_maps_are_lost(self) -> None:
        self.lost = True
        self.cluster.config_maps.clear()

    def _broken(self, name: str) -> bool:
        text = self._job_text(name)
        return f"maxRecordsPerEpoch: {BROKEN_TRIGGER}" in text

    def _job_text(self, name: str) -> str:
        assert self.cluster is not None
        revision = self.cluster.revision_of(name)
        name = ChildNames(self.last).config_map(revision)
        return self.cluster.config_maps.get(name, {}).get("data", {}).get("job.yaml", "")

    def _work(self, name: str) -> None:
        """A pod that runs does what it is for; one that is being deleted ends."""
        pod = self.cluster.pods.get(name)
        if pod is None or name in self.cluster.dead:
            return
        if "deletionTimestamp" in pod["metadata"]:
            self.cluster.stopped(name)
        elif "-check-" in name:
            self.cluster.check_result(
                name, fits=f"maxRecordsPerEpoch: {INCOMPATIBLE_TRIGGER}" not in self._job_text(name)
            )
        elif name.endswith("delete-state"):
            self.cluster.state_is_deleted(name)
        elif self._broken(name):
            self.cluster.end(name, TRANSIENT)
        else:
            self.cluster.get_ready(name)
            if not self.cluster.committed.get(pod["metadata"]["uid"]):
                self.cluster.commit(name)
            self.cluster.tell(name)

    # What holds

    @invariant()
    def one_driver_at_a_time(self) -> None:
        alive = sorted(self.cluster.alive("driver"), key=lambda pod: int(pod["metadata"]["name"].rsplit("-", 1)[1]))
        for older, newer in pairwise(alive):
            deleted = older["metadata"].get("deletionTimestamp")
            assert deleted, f"{older['metadata']['name']} and {newer['metadata']['name']} run"
            if any(condition["type"] == "DisruptionTarget" for condition in older["status"].get("conditions", ())):
                continue  # its node is lost
            waited = _time(newer["metadata"]["creationTimestamp"]) - _time(deleted)
            assert waited >= timedelta(seconds=self.cluster.settings.stuck_seconds - 1)

    @invariant()
    def what_is_remembered_is_what_a_validation_gives(self) -> None:
        if self.cluster is not None and self.cluster.resource is not None:
            observed, status = self.cluster.observed(), self.cluster.status
            assert desired.desired_job(observed, status) == desired.validated_job(observed, status)

    @invariant()
    def created_pods_are_right(self) -> None:
        new, self.checked_pods = self.cluster.created[self.checked_pods :], len(self.cluster.created)
        for pod in new:
            assert self.cluster.resource is not None
            status, name = self.cluster.status, pod["metadata"]["name"]
            if "-driver-" in name:
                self._driver_is_right(pod, status)
            if name.endswith("delete-state"):
                assert self.cluster.resource["metadata"].get("deletionTimestamp")
                assert self.cluster.resource["spec"]["cleanup"] == "deleteState"
                assert not self._may_commit()

    def _may_commit(self) -> list[str]:
        """Drivers that are not on a dead node."""
        alive = [pod["metadata"]["name"] for pod in self.cluster.alive("driver")]
        return [name for name in alive if name not in self.cluster.dead]

    def _driver_is_right(self, pod: Manifest, status: Status) -> None:
        revision = pod["metadata"]["labels"]["joinery.dev/revision"]
        assert status.driver is not None
        assert pod["metadata"]["name"] == ChildNames(self.cluster.resource or {}).driver(status.driver.number)
        resource = self.cluster.resource
        assert resource is not None
        assert resource["spec"].get("suspend") is not True
        assert not resource["metadata"].get("deletionTimestamp")
        if self.at_rest not in {None, status.target_revision} and "restore" not in pod["spec"]["containers"][0]["args"]:
            assert revision == status.target_revision, "after a suspension starts what is not asked for any more"
        arguments = pod["spec"]["containers"][0]["args"]
        if "restore" in arguments:
            name = arguments[arguments.index("--savepoint") + 1]
            assert name not in self.known_commits, "rolled back after a commit"
            if self.cluster.database.pins.get(name, self.cluster.database.epoch) != self.cluster.database.epoch:
                # It will be refused: what was committed since is the new revision's, not the old one's.
                assert name in self.cluster.database.rolled_back or self.cluster.database.committed_by in name
            return
        self.at_rest = None
        assert status.refused is None or status.refused.revision != revision, "a refused revision runs"

    @invariant()
    def migrations_are_undone(self) -> None:
        assert self.disabled or not self.cluster.database.misread

    @invariant()
    def status_is_bounded(self) -> None:
        if self.cluster.resource is not None:
            assert len(json.dumps(self.cluster.resource.get("status") or {})) < MAX_STATUS

    @invariant()
    def the_state_goes_only_when_it_should(self) -> None:
        """`last` is the resource as it last was."""
        if self.cluster.resource is not None:
            self.last = deepcopy(self.cluster.resource)
            assert not self.cluster.database.deleted or self.last["metadata"].get("deletionTimestamp")
        elif has_finalizer(self.last) and self.last["spec"]["cleanup"] == "deleteState":
            assert self.cluster.database.deleted or self.cluster.database.epoch == 0

    # Calm

    def teardown(self) -> None:
        if not hasattr(self, "cluster"):
            return
        self._calm()
        if not self.lost:
            self._settled()
        resource = self.cluster.resource
        if resource is None or resource["metadata"].get("deletionTimestamp"):
            return
        # Whatever has happened: a job that fits, whose image is there, runs.
        self.cluster.edit(trigger={"maxRecordsPerEpoch": 5}, suspend=False, spark={"image": "joinery:3"})
        self._calm()
        self._settled()
        assert self.cluster.status.phase == "Running", self.cluster.status
        assert self.cluster.status.revision == self.cluster.status.target_revision

    def _calm(self) -> None:
        self.cluster.refuses, self.cluster.templates, self.cluster.name_conflicts = False, {"mine": TEMPLATE}, []
        for _ in range(ENOUGH_STEPS):
            if self._calm_step():
                return
        pytest.fail(f"does not settle: {self.cluster.status.model_dump_json(exclude_none=True, indent=1)}")

    def _calm_step(self) -> bool:
        """Pods do what they are for, and time goes on as far as the operator asks for; says whether all is done."""
        cluster = self.cluster
        for name in list(cluster.dead):
            cluster.pods[name]["metadata"].setdefault("deletionTimestamp", "2026-11-21T10:00:00Z")
        if cluster.resource is None:
            return True
        self._note()
        try:
            decision = cluster.step()
        except Killed:  # by a refusal: the operator tries again
            return False
        self._note_rest()
        self.one_driver_at_a_time()
        self.created_pods_are_right()
        self.status_is_bounded()
        if cluster.resource is None or self._gives_up():
            return True
        before = json.dumps([cluster.pods, cluster.database.epoch > 0], sort_keys=True)
        for pod in cluster.alive(""):
            name = pod["metadata"]["name"]
            if pod["status"]["phase"] == "Pending":
                if "deletionTimestamp" in pod["metadata"]:
                    cluster.gone(name)
                else:
                    cluster.run(name)
            else:
                self._work(name)
        for name, pod in list(cluster.pods.items()):
            if "deletionTimestamp" in pod["metadata"] and name not in cluster.dead:
                cluster.gone(name)
        if (
            cluster.collects()
            or decision.status is not None
            or decision.actions
            or before != json.dumps([cluster.pods, cluster.database.epoch > 0], sort_keys=True)
        ):
            return False
        if cluster.dead and cluster.is_deleted_in_the_foreground():
            # Kubernetes keeps the job as long as it has their pods, and the operator waits.
            cluster.dead_nodes_are_removed()
            return False
        # A deletion whose image was lost is looked at for ever: a person may make it possible again.
        waits_for_person = self.lost and "deletionTimestamp" in cluster.resource["metadata"]
        if decision.again_after is None or waits_for_person or (self.lost and decision.again_after > 900):
            return True
        assert decision.again_after > 0
        cluster.pass_time(decision.again_after)
        return False

    def _gives_up(self) -> bool:
        """What was broken from the first is tried for ever, and so is what nobody but a person takes back; without its
        ConfigMap a pod does not know that it is broken."""
        status, spec = self.cluster.status, (self.cluster.resource or {})["spec"]
        for_ever = status.proved is None or self.lost or spec.get("upgrade", {}).get("rollback") == "manual"
        return for_ever and status.driver is not None and status.driver.failures > 6

    def _settled(self) -> None:
        cluster = self.cluster
        if cluster.resource is None:
            return
        if cluster.resource["metadata"].get("deletionTimestamp") and cluster.condition("Valid")[0] == "False":
            # A deletion in the foreground takes the ConfigMaps first, and nothing else says where the state is.
            assert "Correct the resource" in cluster.status.conditions[0].message
            cluster.edit(trigger={"maxRecordsPerEpoch": 5})
            self._calm()
            assert cluster.resource is None
            return
        assert not cluster.resource["metadata"].get("deletionTimestamp"), cluster.status
        status, spec = cluster.status, cluster.resource["spec"]
        healthy = self._may_commit()
        if spec.get("suspend") and status.phase != "Finished":
            assert status.phase == "Suspended"
            assert not healthy
            return
        assert (spec["trigger"]["maxRecordsPerEpoch"] == "many") == (cluster.condition("Valid")[0] == "False")
        if status.phase == "Running":
            assert len(healthy) == 1
            assert status.driver is not None
            assert cluster.revision_of(healthy[0]) == status.revision == status.driver.revision
            assert status.rollout is None
            assert (
                status.revision == status.target_revision
                or status.refused
                or spec["trigger"]["maxRecordsPerEpoch"] == "many"
            )
        else:
            assert status.phase in {"Finished", "Failed"} or self._gives_up(), status
            assert not healthy
        assert len(cluster.pods) <= 2 + len(cluster.dead)
        assert len(cluster.config_maps) <= 2 + len(status.history)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("scene", SCENES)
def test_every_scene_settles(scene: tuple[int, Manifest, int], kind: ResourceKind) -> None:
    simulation = Simulation()
    simulation.start("retainState", "stateful", scene, kind)
    simulation.teardown()


Simulation.TestCase.settings = settings(
    max_examples=examples(80),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
TestSimulation = pytest.mark.search(Simulation.TestCase)


def test_a_rollout_that_committed_unseen_before_a_suspension() -> None:
    """Its way back is refused, so that it is in force; but the resource asks for another job by now."""
    simulation = Simulation()
    simulation.start("retainState", "stateful", (20, {"trigger": {"maxRecordsPerEpoch": 8}}, 4), KINDS[0])
    assert simulation.cluster.status.rollout is not None
    simulation.cluster.commit("orders-driver-2")
    simulation.cluster.edit(suspend=True)
    simulation.teardown()  # edits it, resumes it, and looks at each pod that starts


@pytest.mark.parametrize("lost_nodes", [1, 2])
@pytest.mark.parametrize("cleanup", ["retainState", "deleteState"])
def test_a_deletion_in_the_foreground_waits_for_pods_of_lost_nodes(cleanup: str, lost_nodes: int) -> None:
    """As Kubernetes does: the job ends once their nodes are removed, and the operator starts nothing meanwhile."""
    simulation = Simulation()
    simulation.start(cleanup, "stateful", (20, {}, 0), KINDS[0])
    cluster = simulation.cluster
    for _ in range(lost_nodes):
        (name,) = simulation._may_commit()
        cluster.lose_node(name)
        simulation.things_go_well(steps=5)
    simulation.delete_in_the_foreground()
    simulation.reconcile_once(killed_after=None, late=False)
    cluster.collects()
    assert len(cluster.dead) == lost_nodes
    assert cluster.resource is not None
    simulation.teardown()
    assert cluster.resource is None
    assert cluster.database.deleted is (cleanup == "deleteState")


def test_a_deletion_whose_image_was_lost_waits_for_a_person() -> None:
    simulation = Simulation()
    simulation.start("deleteState", "stateful", (20, {}, 0), KINDS[0])
    simulation.image_is_lost(image="joinery:1")
    simulation.delete()
    simulation.teardown()
    cluster = simulation.cluster
    assert cluster.condition("Degraded") == ("True", "ImagePullFailed")
    message = next(condition.message for condition in cluster.status.conditions if condition.type == "Degraded")
    assert "set spec.cleanup to retainState" in message
    cluster.edit(cleanup="retainState")
    simulation.teardown()
    assert cluster.resource is None
