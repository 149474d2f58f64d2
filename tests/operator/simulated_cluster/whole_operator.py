"""The whole operator but for its watches' connections: the real reconcile, with queue, client and cache, on an API
server in memory. Pods and time are the simulation's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from joinery_operator.decision import Manifest
from joinery_operator.kube.apply import complete_manifest
from joinery_operator.kube.cache import owner_uid
from joinery_operator.kube.controller import Controller
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.resources import BY_KIND, OWNER_KINDS, PAGE_KINDS, WATCHED, ApiResource, ObjectKey
from joinery_operator.reconcile import reconcile
from joinery_runtime.errors import JoineryError
from joinery_runtime.job.crd import DriverStatus
from simulated_cluster.memory_server import Id, MemoryApi, MemoryServer
from simulated_cluster.resources import copied
from simulated_cluster.simulation import SimulatedCluster, stamp

FATAL = {"outcome": "failed", "kind": "SourceError", "error": "no such topic", "retry": False}
BROKEN_TRIGGER = 17
"""A job with it has a driver that never starts."""
SAVEPOINT_RESULT = {"epoch": 7, "time": "2026-01-15T12:00:00Z", "rows": 1200, "bytes": 34567}
_ENOUGH = 2_000
_BY_PLURAL = {resource.plural: resource for resource in BY_KIND.values()}


@dataclass
class Trouble:
    """The write of this number, and `times` requests in all that ask for the same, get that answer (code 0: none) in
    place of their own. With `takes_effect` the server has done what was asked."""

    write: int
    code: int
    times: int = 1
    takes_effect: bool = False
    call: str = ""

    def hits(self, number: int, call: str) -> bool:
        if number == self.write:
            self.call = call
        if call != self.call or self.times == 0:
            return False
        self.times -= 1
        return True


class ServerWithPods(MemoryServer):
    """Pods end as pods do: those that run are being deleted for a while. `writes` are the requests that change
    something."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__()
        self._now = now
        self.writes: list[str] = []
        self.created_pods: list[str] = []
        self.trouble: Trouble | None = None

    def serve(self, method: str, address: str, body: Manifest | None) -> tuple[int, Any]:
        if method == "GET" or "dryRun" in address:
            return super().serve(method, address, body)
        name = (body or {})["metadata"]["name"] if method == "POST" else ""
        # The name of an Event holds the time.
        call = f"{method} {address}/{name}" if "/events" not in address else f"{method} events"
        self.writes.append(call)
        trouble = self.trouble
        if trouble is None or not trouble.hits(len(self.writes) - 1, call):
            return super().serve(method, address, body)
        if trouble.takes_effect:
            super().serve(method, address, body)
        return trouble.code, {"reason": "Trouble", "message": "as the test wants it"}

    def _create(self, resource: ApiResource, namespace: str, body: Manifest) -> tuple[int, Any]:
        code, created = super()._create(resource, namespace, body)
        if code == 201:
            stored = self.objects[resource.plural, namespace, created["metadata"]["name"]]
            stored["metadata"]["creationTimestamp"] = stamp(self._now())
            if resource.kind == "Pod":
                self.created_pods.append(stored["metadata"]["name"])
                stored["status"] = {"phase": "Pending"}
            created = copied(stored)
        return code, created

    def _delete(self, key: Id, stored: dict[str, Any], body: Manifest) -> tuple[int, Any]:
        code, answer = super()._delete(key, stored, body)
        if (answer.get("metadata") or {}).get("deletionTimestamp"):
            grace = stored["spec"].get("terminationGracePeriodSeconds", 30)
            stored["metadata"]["deletionTimestamp"] = stamp(self._now() + timedelta(seconds=grace))
            answer = copied(stored)
        return code, answer


@dataclass
class WholeOperator(SimulatedCluster):
    """`settle` lets all go well until nothing is left to do. `resource` is the job; what a test changes of the objects
    in place is as a person's or a kubelet's write."""

    seconds: float = 0.0
    savepoint: Manifest | None = None

    def __post_init__(self) -> None:
        self.server = ServerWithPods(lambda: self.now)
        self.api = MemoryApi(self.server)
        self.controller = Controller(
            self.settings,
            self.api,
            reconcile,
            Metrics(),
            clock=lambda: self.seconds,
            now=lambda: self.now,
            watched=(*WATCHED, *PAGE_KINDS),
        )
        self.controller.poller.last_status = lambda _: self._said()  # type: ignore[method-assign]
        self._told: dict[Id, tuple[str, str]] = {}
        if self.resource is not None:
            self.resource = self.apply(self.resource)

    def apply(self, manifest: Manifest) -> dict[str, Any]:
        added = self.server.add(manifest)
        return self.server.objects[BY_KIND[added["kind"]].plural, "shop", added["metadata"]["name"]]

    def pass_time(self, seconds: float) -> None:
        super().pass_time(seconds)
        self.seconds += seconds

    def delete_owner(self, kind: str, name: str) -> None:
        """As `kubectl delete` does."""
        owner = self.server.objects[BY_KIND[kind].plural, "shop", name]
        owner["metadata"]["deletionTimestamp"] = stamp(self.now)
        if not owner["metadata"].get("finalizers"):
            del self.server.objects[BY_KIND[kind].plural, "shop", name]
        self._pull()

    async def settle(self, until: Callable[[], bool] = lambda: False) -> None:
        """Until nothing is left to do, or what is given holds."""
        queue = self.controller.feed.queue
        for _ in range(_ENOUGH):
            await self._watch()
            if until():
                return
            if (key := queue.take(self.seconds)) is not None:
                await self._reconcile(key)
            elif self._pods_go_on():
                continue
            elif (due := queue.next_due()) is None:
                return
            else:
                self.pass_time(due - self.seconds)
        raise AssertionError(f"does not settle: {json.dumps((self.resource or {}).get('status'), indent=1)}")

    async def _reconcile(self, key: ObjectKey) -> None:
        queue = self.controller.feed.queue
        try:
            result = await self.controller._reconciler.run(key)
        except JoineryError:
            queue.retry(key, self.seconds)
        else:
            end = queue.retry if result.failed else queue.finish
            end(key, self.seconds, result.again_after)
        self._pull()

    async def _watch(self) -> None:
        """Reports every object that is new, changed or gone."""
        self._collect_garbage()
        vanished = {
            key: reported for key, reported in self._told.items() if _uid(self.server.objects.get(key)) != reported[0]
        }
        for key, (_, text) in vanished.items():
            del self._told[key]
            last = json.loads(text)
            last["metadata"]["resourceVersion"] = str(next(self.server._versions))
            await self._tell(key, last, deleted=True)
        for key, stored in list(self.server.objects.items()):
            reported = self._told.get(key)
            if key[0] == "events" or (reported is not None and reported[1] == json.dumps(stored)):
                continue
            if (
                reported is not None
                and json.loads(reported[1])["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]
            ):
                self.server._touched(stored)
            self._told[key] = (stored["metadata"]["uid"], json.dumps(stored))
            await self._tell(key, copied(stored), deleted=False)
        self._pull()

    async def _tell(self, key: Id, manifest: Manifest, *, deleted: bool) -> None:
        resource = _BY_PLURAL[key[0]]
        await self.controller.on_watch_event(resource, complete_manifest(manifest, resource), deleted)

    def _collect_garbage(self) -> None:
        uids = {
            manifest["metadata"]["uid"] for manifest in self.server.objects.values() if manifest["kind"] in OWNER_KINDS
        }
        for key, stored in list(self.server.objects.items()):
            owner = owner_uid(stored)
            if owner is None or owner in uids:
                continue
            running = (stored.get("status") or {}).get("phase") == "Running"
            if running:
                stored["metadata"].setdefault("deletionTimestamp", stamp(self.now + timedelta(seconds=30)))
            else:
                del self.server.objects[key]

    def _pull(self) -> None:
        """What the simulation works on are the server's objects themselves."""
        by_kind: dict[str, dict[str, Any]] = {}
        for (plural, _, name), stored in self.server.objects.items():
            by_kind.setdefault(_BY_PLURAL[plural].kind, {})[name] = stored
        self.pods = by_kind.get("Pod", {})
        self.config_maps = by_kind.get("ConfigMap", {})
        self.services = by_kind.get("Service", {})
        self.resource = next(iter(by_kind.get("StreamJoin", {}).values()), None)
        self.savepoint = next(iter(by_kind.get("Savepoint", {}).values()), None)

    def gone(self, name: str) -> None:
        super().gone(name)
        self.server.objects.pop(("pods", "shop", name), None)

    def _pods_go_on(self) -> bool:
        before = json.dumps([self.pods, self.database.epoch > 0, sorted(self.driver_statuses)], sort_keys=True)
        for name, pod in list(self.pods.items()):
            phase = pod["status"]["phase"]
            if "deletionTimestamp" in pod["metadata"]:
                self.gone(name)
            elif phase == "Pending":
                self.run(name)
            elif phase == "Running":
                self._works(name)
        return before != json.dumps([self.pods, self.database.epoch > 0, sorted(self.driver_statuses)], sort_keys=True)

    def _works(self, name: str) -> None:
        uid = self.pods[name]["metadata"]["uid"]
        if "-check-" in name:
            self.check_result(name, fits=True)
        elif name.endswith("delete-state"):
            self.state_is_deleted(name)
        elif "-driver-" not in name:
            self.end(name, SAVEPOINT_RESULT, code=0, reason="Completed")
        elif f"maxRecordsPerEpoch: {BROKEN_TRIGGER}" in self._job_of(name):
            self.end(name, FATAL)
        else:
            self.get_ready(name)
            if not self.committed.get(uid):
                self.commit(name)
            self._reports(name, uid)

    def _reports(self, name: str, uid: str) -> None:
        """What the poller hears of a driver that is new to it makes its job due."""
        before: DriverStatus | None = self.driver_statuses.get(uid)
        self.tell(name)
        if before != self.driver_statuses[uid] and self.resource is not None:
            self.controller.feed.queue.add(ObjectKey(self.resource["kind"], "shop", self.resource["metadata"]["name"]))

    def _job_of(self, name: str) -> str:
        volume = next(volume for volume in self.pods[name]["spec"]["volumes"] if volume["name"] == "job")
        text: str = self.config_maps[volume["configMap"]["name"]]["data"]["job.yaml"]
        return text


def _uid(manifest: Manifest | None) -> str | None:
    return None if manifest is None else manifest["metadata"]["uid"]
