"""A small cluster to reconcile against: an API server's objects, a kubelet, drivers, and the state in the database.

Nothing happens by itself: tests say what pods do, when time passes, and where the operator is killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from joinery_operator.decision import Action, Children, Create, Decision, Delete, Observed, Patch, SetFinalizers
from joinery_operator.names import ChildNames
from joinery_operator.reconcile import FINALIZER, reconcile
from joinery_operator.reconcile.context import read_status
from joinery_operator.settings import Settings
from joinery_runtime.job.crd import KINDS, DriverStatus, ResourceKind, Status
from simulated_cluster.resources import BY_NAME, copied, resource_of

Manifest = dict[str, Any]
START = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
IMAGE = "joinery:1"
SOON = 1  # seconds
NODE_MONITOR_GRACE_SECONDS = 50
"""As --node-monitor-grace-period of Kubernetes 1.34 by default."""
DEFAULT_TOLERATION_SECONDS = 300
"""What the API server gives a pod that tolerates no such taint."""


def resource(kind: ResourceKind = KINDS[0], **spec: Any) -> Manifest:
    """A job that is as small as a job can be, with its state in Postgres."""
    manifest = resource_of(kind, **spec)
    manifest["metadata"] |= {"uid": "uid-job", "generation": 1}
    return manifest


def stamp(moment: datetime) -> str:
    """As Kubernetes writes times: whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Database:
    """What the runtime's commands do to a job's state (`joinery state migrate | restore | delete`, and drivers).

    `migrated_for` is the revision whose migration last changed it; `misread` tells of drivers that another's migration
    was not undone for."""

    epoch: int = 0
    migrated_for: str | None = None
    misread: list[str] = field(default_factory=list)
    committed_by: str = ""
    generation: int = 0
    pins: dict[str, int] = field(default_factory=dict)
    rolled_back: set[str] = field(default_factory=set)
    dropped: list[str] = field(default_factory=list)
    deleted: bool = False

    def fence(self) -> int:
        self.generation += 1
        return self.generation

    def start(self, revision: str) -> int:
        if self.migrated_for not in {None, revision}:
            self.misread.append(f"{revision} runs on what was migrated for {self.migrated_for}")
        return self.fence()

    def migrate(self, name: str, revision: str, *, anew: bool) -> None:
        self.migrated_for = revision
        if name not in self.pins:
            self.pins[name] = self.epoch
            if anew:
                self.dropped.append(name)

    def restore(self, name: str) -> bool:
        """False: refused, because an epoch was committed since."""
        if name in self.pins and name not in self.rolled_back:
            if self.pins[name] != self.epoch:
                return False
            self.rolled_back.add(name)
            self.migrated_for = None
        return True

    def commit(self, generation: int, revision: str) -> bool:
        if generation != self.generation or self.deleted:
            return False
        self.epoch, self.committed_by = self.epoch + 1, revision
        return True


class Killed(Exception):
    """The operator died."""


@dataclass
class SimulatedCluster:
    """The objects, pods and drivers of one job, which `reconcile` is run against step by step."""

    resource: Manifest | None
    settings: Settings = field(default_factory=lambda: Settings(runtime_image=IMAGE))
    now: datetime = START
    pods: dict[str, Manifest] = field(default_factory=dict)
    config_maps: dict[str, Manifest] = field(default_factory=dict)
    services: dict[str, Manifest] = field(default_factory=dict)
    network_policies: dict[str, Manifest] = field(default_factory=dict)
    ingresses: dict[str, Manifest] = field(default_factory=dict)
    http_routes: dict[str, Manifest] = field(default_factory=dict)
    create_refused: str = ""
    namespace_ends: bool = False
    permissions_end: bool = False
    delete_refused: dict[str, str] = field(default_factory=dict)
    orphaned_drivers: dict[str, Manifest] = field(default_factory=dict)
    name_conflicts: list[Manifest] = field(default_factory=list)
    page_conflicts: list[Manifest] = field(default_factory=list)
    templates: dict[str, Manifest | None] = field(default_factory=dict)
    executors: dict[str, Manifest] = field(default_factory=dict)
    database: Database = field(default_factory=Database)
    driver_statuses: dict[str, DriverStatus] = field(default_factory=dict)
    committed: dict[str, int] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    missing_images: set[str] = field(default_factory=set)
    created: list[Manifest] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    uids: int = 0
    node_ahead: timedelta = timedelta()
    """How far the clocks of nodes are ahead of the control plane's."""

    # What a person does

    def edit(self, **spec: Any) -> None:
        assert self.resource is not None
        changed = {**self.resource["spec"], **spec}
        if changed != self.resource["spec"]:
            self.resource["spec"] = changed
            self.resource["metadata"]["generation"] += 1

    def delete(self) -> None:
        assert self.resource is not None
        self.resource["metadata"].setdefault("deletionTimestamp", stamp(self.now))
        self._collect()

    # The operator

    @property
    def status(self) -> Status:
        assert self.resource is not None
        return Status.model_validate(self.resource.get("status") or {})

    def condition(self, type_: str) -> tuple[str, str]:
        condition = next(condition for condition in self.status.conditions if condition.type == type_)
        return condition.status, condition.reason

    def observed(self) -> Observed:
        assert self.resource is not None
        return Observed(
            kind=BY_NAME[self.resource["kind"]],
            resource=copied(self.resource),
            children=copied(
                Children(
                    self.pods, self.config_maps, self.services, self.network_policies, self.ingresses, self.http_routes
                )
            ),
            templates=self.templates,
            driver=self._said(),
            now=self.now,
            settings=self.settings,
            executors=copied(self.executors),
            orphaned_drivers=copied(self.orphaned_drivers),
            create_refused=self.create_refused,
            delete_refused=self.delete_refused,
            name_conflicts=copied(self.name_conflicts),
            page_conflicts=copied(self.page_conflicts),
            namespace_ends=self.namespace_ends,
            permissions_end=self.permissions_end,
        )

    def _said(self) -> DriverStatus | None:
        assert self.resource is not None
        driver = read_status(self.resource).driver
        pod = self.pods.get(ChildNames(self.resource).driver(driver.number)) if driver else None
        return self.driver_statuses.get(pod["metadata"]["uid"]) if pod else None

    def step(self, killed_after: int | None = None) -> Decision:
        """Reconciles once. With `killed_after` the operator dies after that many writes."""
        decision = reconcile(self.observed())
        for i, write in enumerate(self._writes(decision)):
            if i == killed_after:
                raise Killed
            write()
        self.events += [f"{event.type} {event.reason}: {event.message}" for event in decision.events]
        self._does_the_rest_soon(decision)
        return decision

    def _does_the_rest_soon(self, decision: Decision) -> None:
        """Without another event: no watch reports the operator's own writes to it."""
        if decision.status is None or self.resource is None or any(_is_of_a_pod(action) for action in decision.actions):
            return
        if left := reconcile(self.observed()).actions:
            assert decision.again_after is not None, f"what is left is never done: {left}"
            assert decision.again_after <= SOON, f"what is left is done after {decision.again_after:g} s: {left}"

    def _writes(self, decision: Decision) -> Iterator[Callable[[], None]]:
        if decision.status is not None:
            yield lambda: self._write_status(decision.status)
        for action in decision.actions:
            yield lambda action=action: self._act(action)  # type: ignore[misc]

    def _write_status(self, status: Status | None) -> None:
        assert status is not None
        assert self.resource is not None
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        Status.model_validate(body)
        self.resource["status"] = body

    def _act(self, action: Action) -> None:
        match action:
            case Create(manifest):
                self._create(json.loads(json.dumps(manifest)))
            case Patch(kind, name, body):
                target = self._of(kind)[name]
                for key, value in body["metadata"].items():
                    if isinstance(value, dict):
                        target["metadata"].setdefault(key, {}).update(value)
                    else:
                        target["metadata"][key] = value
            case Delete(kind, name, uid, grace_seconds):
                child = self._of(kind).get(name)
                if child is not None and child["metadata"]["uid"] == uid:
                    self.delete_child(kind, name)
                    if grace_seconds == 0 and name in self.pods:
                        self.gone(name)
            case SetFinalizers(finalizers):
                if self.resource is not None:
                    self.resource["metadata"]["finalizers"] = list(finalizers)
                    self._collect()

    def _of(self, kind: str) -> dict[str, Manifest]:
        return {
            "Pod": self.pods,
            "ConfigMap": self.config_maps,
            "Service": self.services,
            "NetworkPolicy": self.network_policies,
            "Ingress": self.ingresses,
            "HTTPRoute": self.http_routes,
        }[kind]

    def _create(self, manifest: Manifest) -> None:
        existing = self._of(manifest["kind"])
        name = manifest["metadata"]["name"]
        if name in existing:
            return
        self.uids += 1
        manifest["metadata"] |= {"uid": f"uid-{self.uids}", "creationTimestamp": stamp(self.now)}
        if manifest["kind"] == "Pod":
            manifest["status"] = {"phase": "Pending"}
            self.created.append(manifest)
        existing[name] = manifest

    def _collect(self) -> None:
        metadata = self.resource["metadata"] if self.resource else {}
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            self.resource = None
            for name in list(self.pods):
                self.delete_child("Pod", name)

    # The kubelet, and what happens to pods

    def delete_child(self, kind: str, name: str) -> None:
        child = self._of(kind)[name]
        if kind != "Pod":
            del self._of(kind)[name]
            return
        over = child["status"]["phase"] in {"Succeeded", "Failed"}
        if over or (child["status"]["phase"] == "Pending" and name not in self.dead):
            self.gone(name)
        elif "deletionTimestamp" not in child["metadata"]:
            grace = child["spec"].get("terminationGracePeriodSeconds", 30)
            child["metadata"]["deletionTimestamp"] = stamp(self.now + timedelta(seconds=grace))

    def gone(self, name: str) -> None:
        self.pods.pop(name)
        self.dead.discard(name)

    def alive(self, role: str = "driver") -> list[Manifest]:
        return [
            pod
            for name, pod in sorted(self.pods.items())
            if f"-{role}" in name and pod["status"]["phase"] in {"Pending", "Running"}
        ]

    def main(self, name: str, state: Manifest) -> None:
        """The kubelet's word on the main container; containers before it have ended well."""
        status = self.pods[name]["status"]
        status["containerStatuses"] = [{"name": "joinery", "image": IMAGE, "state": state}]
        self._since(name, "Initialized")

    def wait(self, name: str, reason: str, message: str = "") -> None:
        container = {"name": "joinery", "image": IMAGE, "state": {"waiting": {"reason": reason, "message": message}}}
        self.pods[name]["status"]["containerStatuses"] = [container]

    def unschedulable(self, name: str) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
        self.pods[name]["status"]["conditions"] = [condition]

    def run(self, name: str) -> None:
        """First containers do their work, then the main one starts; if its image and files are there."""
        pod = self.pods[name]
        if pod["spec"]["containers"][0]["image"] in self.missing_images:
            self.wait(name, "ImagePullBackOff", "not found")
            return
        if not {volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume} <= {
            *self.config_maps
        }:
            self.wait(name, "ContainerCreating")
            return
        arguments = pod["spec"]["containers"][0]["args"]
        if "restore" in arguments:
            self._restore(name, arguments[arguments.index("--savepoint") + 1])
            return
        for first in pod["spec"].get("initContainers", ()):
            arguments = first["args"]
            self.database.fence()
            savepoint = arguments[arguments.index("--savepoint") + 1]
            self.database.migrate(savepoint, self.revision_of(name), anew="--anew" in arguments)
        pod["status"].pop("conditions", None)
        pod["status"]["phase"] = "Running"
        self.main(name, {"running": {"startedAt": self.node_stamp()}})
        if "-driver-" in name:
            self.generations[pod["metadata"]["uid"]] = self.database.start(self.revision_of(name))

    def _restore(self, name: str, savepoint: str) -> None:
        self.database.fence()
        if self.database.restore(savepoint):
            self.end(name, {"outcome": "finished"}, code=0, reason="Completed")
        else:
            refused = {"outcome": "failed", "kind": "CommittedSince", "error": "epoch committed", "retry": False}
            self.end(name, refused)

    def migrates(self, name: str, segments: int) -> None:
        """The container before the driver runs, and tells the operator how many segments it has migrated."""
        pod = self.pods[name]
        pod["status"]["phase"] = "Pending"
        running = {"running": {"startedAt": stamp(self.now)}}
        pod["status"]["initContainerStatuses"] = [{"name": "migrate", "state": running}]
        self.driver_statuses[pod["metadata"]["uid"]] = DriverStatus(revision=self.revision_of(name), migrated=segments)

    def fail_first(self, name: str, ending: Manifest | None) -> None:
        status = self.pods[name]["status"]
        status["phase"] = "Failed"
        status["initContainerStatuses"] = [{"name": "migrate", "state": self._terminated(1, ending)}]
        status["containerStatuses"] = [
            {"name": "joinery", "image": IMAGE, "state": {"waiting": {"reason": "PodInitializing"}}}
        ]

    def get_ready(self, name: str) -> None:
        self._since(name, "Ready")

    def end(self, name: str, ending: Manifest | None, code: int = 1, reason: str = "Error") -> None:
        """The main container ends with that message."""
        pod = self.pods[name]
        pod["status"]["phase"] = "Failed" if code else "Succeeded"
        self.main(name, self._terminated(code, ending, reason))
        pod["status"]["conditions"] = [
            condition for condition in pod["status"].get("conditions", ()) if condition["type"] != "Ready"
        ]

    def evict(self, name: str) -> None:
        message = "The node was low on resource: memory."
        self.pods[name]["status"] = {"phase": "Failed", "reason": "Evicted", "message": message}

    def lose_node(self, name: str) -> None:
        """The pod's node dies: Kubernetes marks its pods after 50 s, and deletes them after what they tolerate."""
        pod = self.pods[name]
        self.dead.add(name)
        self.pass_time(NODE_MONITOR_GRACE_SECONDS)
        conditions = pod["status"].setdefault("conditions", [])
        ready = next((condition for condition in conditions if condition["type"] == "Ready"), None)
        if ready is not None and ready["status"] == "True":
            ready |= {"status": "False", "lastTransitionTime": stamp(self.now)}
        self.pass_time(_tolerated_seconds(pod, "node.kubernetes.io/unreachable"))
        self._taint_manager_deletes(name)

    def taint_node(self, name: str) -> None:
        """Someone taints the pod's node, whose kubelet is alive."""
        self._taint_manager_deletes(name)

    def _taint_manager_deletes(self, name: str) -> None:
        message = "Taint manager: deleting due to NoExecute taint"
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
        condition |= {"message": message, "lastTransitionTime": stamp(self.now)}
        self.pods[name]["status"].setdefault("conditions", []).append(condition)
        self.delete_child("Pod", name)

    def commit(self, name: str) -> bool:
        uid = self.pods[name]["metadata"]["uid"]
        done = self.database.commit(self.generations[uid], self.revision_of(name))
        self.committed[uid] = self.committed.get(uid, 0) + done
        return done

    def tell(self, name: str) -> None:
        """The operator polls the driver."""
        uid = self.pods[name]["metadata"]["uid"]
        self.driver_statuses[uid] = DriverStatus(
            revision=self.revision_of(name), ready=True, epoch=self.database.epoch, committed=self.committed.get(uid, 0)
        )

    def revision_of(self, name: str) -> str:
        revision: str = self.pods[name]["metadata"]["labels"]["joinery.dev/revision"]
        return revision

    def check_result(
        self,
        name: str,
        *,
        fits: bool,
        warnings: tuple[str, ...] = (),
        there_is_state: bool = True,
        rows_differ: bool = False,
    ) -> None:
        refused = [] if fits else ["the keys of step 1 differ"]
        result = {"fits": fits, "refused": refused, "warnings": list(warnings), "targetVersion": 1}
        result |= {"rowsDiffer": True, "refused": ["shadow: epochs 5 to 7 differ"]} if rows_differ else {}
        result |= {"epoch": self.database.epoch} if there_is_state else {}
        self.end(name, result, code=0 if fits else 1)

    def state_is_deleted(self, name: str) -> None:
        self.database.deleted = True
        self.end(name, None, code=0, reason="Completed")

    def node_stamp(self) -> str:
        return stamp(self.now + self.node_ahead)

    def _terminated(self, code: int, ending: Manifest | None, reason: str = "Error") -> Manifest:
        details = {"message": json.dumps(ending)} if ending is not None else {}
        return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": self.node_stamp(), **details}}

    def _since(self, name: str, condition: str) -> None:
        conditions = self.pods[name]["status"].setdefault("conditions", [])
        if not any(entry["type"] == condition for entry in conditions):
            conditions.append({"type": condition, "status": "True", "lastTransitionTime": self.node_stamp()})

    # Usual courses

    def driver(self, number: int) -> str:
        """The name of that attempt's pod."""
        assert self.resource is not None
        return ChildNames(self.resource).driver(number)

    def goes_well(self) -> None:
        """A reconcile; then every pod does what it is for, as far as it can; then time passes as the operator asks."""
        decision = self.step()
        if self.resource is None:
            return
        for name, pod in list(self.pods.items()):
            phase = pod["status"]["phase"]
            if "deletionTimestamp" in pod["metadata"]:
                self.gone(name)
            elif phase == "Pending":
                self.run(name)
            elif phase == "Running" and "-check-" in name:
                self.check_result(name, fits=True)
            elif phase == "Running":
                self.get_ready(name)
                self.commit(name)
                self.tell(name)
        if decision.status is None and not decision.actions and decision.again_after:
            self.pass_time(decision.again_after)

    def check(self) -> str:
        """The name of the check pod."""
        return next(name for name in self.pods if "-check-" in name)

    def passes(self) -> None:
        """The check passes, and the driver that runs ends."""
        self.run(self.check())
        self.check_result(self.check(), fits=True)
        self.step()
        for pod in self.alive():
            self.stopped(pod["metadata"]["name"])
        self.step()

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def started(self, number: int) -> str:
        """Brings the driver of that attempt to run and be ready, and reconciles. Returns its pod's name."""
        name = self.driver(number)
        self.step()
        self.run(name)
        self.get_ready(name)
        self.step()
        return name

    def stopped(self, name: str) -> None:
        """A driver that is being deleted ends as it should."""
        assert "deletionTimestamp" in self.pods[name]["metadata"], f"nobody deleted {name}"
        self.end(name, {"outcome": "stopped"}, code=0, reason="Completed")
        self.gone(name)


def _tolerated_seconds(pod: Manifest, taint: str) -> float:
    tolerations = [toleration for toleration in pod["spec"].get("tolerations", ()) if toleration.get("key") == taint]
    return min((toleration["tolerationSeconds"] for toleration in tolerations), default=DEFAULT_TOLERATION_SECONDS)


def _is_of_a_pod(action: Action) -> bool:
    """Its kubelet, or the watch of its end, brings another reconcile."""
    kind = action.manifest["kind"] if isinstance(action, Create) else getattr(action, "kind", "")
    return bool(kind == "Pod")


def has_finalizer(resource: Manifest) -> bool:
    return FINALIZER in resource["metadata"].get("finalizers", ())
