"""A BlueGreenJob and its jobs. Each job is a simulated cluster of its own, on which the operator's other `reconcile`
runs; a state in the database belongs to a job's name, and outlives its resource."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from joinery_operator.decision import Action, Create, Decision, Delete, ObservedBlueGreen, Patch, SharedPlace
from joinery_operator.names import PAUSE_ANNOTATION, SWITCH_ANNOTATION
from joinery_operator.reconcile import reconcile
from joinery_operator.settings import Settings
from joinery_runtime.job.crd import KINDS, BlueGreenState, DriverStatus, InputStatus, ResourceKind
from joinery_runtime.job.model.resource import API_VERSION
from simulated_cluster.resources import copied, resource_of
from simulated_cluster.simulation import IMAGE, START, Database, Killed, Manifest, SimulatedCluster, stamp


def topic(name: str) -> Manifest:
    return {"output": {"kafka": {"bootstrapServers": "kafka:9092", "topic": name}}}


def blue_green(kind: ResourceKind = KINDS[0], output: str = "blue", **spec: Any) -> Manifest:
    template = {"kind": kind.name, "spec": resource_of(kind, **topic(output))["spec"]}
    return {
        "apiVersion": API_VERSION,
        "kind": "BlueGreenJob",
        "metadata": {"name": "orders", "namespace": "shop", "uid": "uid-blue-green", "generation": 1},
        "spec": {"template": template, "stableFor": "10m", "keepOld": "1h", **spec},
    }


@dataclass
class BlueGreenWorld:
    """`lag` and `behind` are what a job's driver reports of each input, by the topic that the job writes. `written` are
    the topics with rows, and `strangers` are jobs by name that claim to be the resource's."""

    resource: Manifest = field(default_factory=blue_green)
    settings: Settings = field(default_factory=lambda: Settings(runtime_image=IMAGE))
    now: datetime = START
    clusters: dict[str, SimulatedCluster] = field(default_factory=dict)
    databases: dict[str, Database] = field(default_factory=dict)
    lag: dict[str, int] = field(default_factory=dict)
    behind: dict[str, timedelta] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    strangers: dict[str, Manifest] = field(default_factory=dict)
    shared_places: tuple[SharedPlace, ...] = ()
    create_refused: str = ""
    patch_refused: dict[str, str] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    writes: int = 0
    uids: int = 0

    # What a person does

    def edit(self, **spec: Any) -> None:
        self._changed()["template"]["spec"].update(spec)

    def set(self, **fields: Any) -> None:
        self._changed().update(fields)

    def _changed(self) -> Manifest:
        self.resource["metadata"]["generation"] += 1
        spec: Manifest = self.resource["spec"]
        return spec

    def annotate(self, **values: str) -> None:
        names = {"switch": SWITCH_ANNOTATION, "pause": PAUSE_ANNOTATION}
        annotations = self.resource["metadata"].setdefault("annotations", {})
        annotations.update({names[name]: value for name, value in values.items()})

    def switch(self) -> None:
        assert self.state.candidate is not None
        self.annotate(switch=self.state.candidate.name)

    # What is seen

    @property
    def state(self) -> BlueGreenState:
        return BlueGreenState.model_validate(self.resource.get("status") or {})

    def condition(self, type_: str) -> tuple[str, str]:
        condition = next(condition for condition in self.state.conditions if condition.type == type_)
        return condition.status, condition.reason

    def message(self, type_: str) -> str:
        return next(condition.message for condition in self.state.conditions if condition.type == type_)

    def jobs(self) -> dict[str, Manifest]:
        resources = {name: cluster.resource for name, cluster in self.clusters.items()}
        return {name: resource for name, resource in resources.items() if resource is not None}

    def read(self) -> list[str | None]:
        """What readers read."""
        return [output.target for output in self.state.outputs]

    def by_topic(self) -> dict[str, str]:
        """The names of the jobs, by the topic that each writes."""
        return {job["spec"]["output"]["kafka"]["topic"]: name for name, job in self.jobs().items()}

    def working(self) -> list[str]:
        """The topics to which a driver writes now."""
        return sorted(topic for topic, name in self.by_topic().items() if self.clusters[name].alive())

    # Time

    def settle(self, seconds: float = 0) -> None:
        """Let everybody do what they do until nothing changes, now and after some time."""
        self._settle()
        if seconds:
            self.now += timedelta(seconds=seconds)
            self._settle()

    def _settle(self) -> None:
        for _ in range(100):
            before = copied((self.resource, self.jobs(), {n: c.pods for n, c in self.clusters.items()}))
            self.step()
            self.work()
            self.check()
            if before == (self.resource, self.jobs(), {n: c.pods for n, c in self.clusters.items()}):
                return
        raise AssertionError(f"does not settle: {self.resource['status']}")

    def step(self, killed_after: int | None = None) -> Decision:
        """Reconcile the BlueGreenJob once. With `killed_after` the operator dies after that many writes."""
        decision = reconcile(
            ObservedBlueGreen(
                resource=copied(self.resource),
                jobs=copied({**self.jobs(), **self.strangers}),
                now=self.now,
                settings=self.settings,
                create_refused=self.create_refused,
                patch_refused=self.patch_refused,
                shared_places=self.shared_places,
            )
        )
        for number, write in enumerate(self._writes(decision)):
            if number == killed_after:
                raise Killed
            self.writes += 1
            write()
        self.events += [f"{event.type} {event.reason}: {event.message}" for event in decision.events]
        return decision

    def _writes(self, decision: Decision) -> Iterator[Callable[[], None]]:
        if decision.status is not None:
            body = decision.status.model_dump(mode="json", by_alias=True, exclude_none=True)
            BlueGreenState.model_validate(body)
            yield lambda: self.resource.update(status=body)
        for action in decision.actions:
            yield lambda action=action: self._act(action)  # type: ignore[misc]

    def _act(self, action: Action) -> None:
        match action:
            case Create(manifest):
                self._create(copied(dict(manifest)))
            case Patch(_, name, body):
                if name in self.patch_refused:
                    return
                job = self.jobs()[name]
                assert body["metadata"]["uid"] == job["metadata"]["uid"]
                before = copied(job["spec"])
                _merge(job, copied(body))
                job["metadata"]["generation"] += before != job["spec"]
            case Delete(_, name, uid):
                cluster = self.clusters[name]
                if cluster.resource is not None and cluster.resource["metadata"]["uid"] == uid:
                    cluster.now = self.now
                    cluster.delete()

    def _create(self, manifest: Manifest) -> None:
        name = manifest["metadata"]["name"]
        if self.create_refused or name in self.jobs():
            return
        self.uids += 1
        manifest["metadata"] |= {
            "uid": f"uid-{self.uids}",
            "generation": 1,
            "creationTimestamp": stamp(self.now + timedelta(seconds=self.uids)),
        }
        if name in self.databases and self.databases[name].deleted:
            del self.databases[name]
        database = self.databases.setdefault(name, Database())
        self.clusters[name] = SimulatedCluster(manifest, self.settings, self.now, database=database)

    def work(self) -> None:
        """The rest of the operator, the kubelets and the drivers take a step."""
        for cluster in self.clusters.values():
            cluster.now = self.now
            if cluster.resource is not None:
                cluster.step()
            for pod in list(cluster.pods):
                self._pod_works(cluster, pod)

    def _pod_works(self, cluster: SimulatedCluster, name: str) -> None:
        pod = cluster.pods[name]
        if "deletionTimestamp" in pod["metadata"]:
            cluster.gone(name)
        elif pod["status"]["phase"] == "Pending":
            cluster.run(name)
        elif pod["status"]["phase"] != "Running" or cluster.resource is None:
            return
        elif "-check-" in name:
            cluster.check_result(name, fits=True)
        elif name.endswith("delete-state"):
            cluster.state_is_deleted(name)
        elif (output := cluster.resource["spec"]["output"]["kafka"]["topic"]) in self.broken:
            fatal = {"outcome": "failed", "kind": "SourceError", "error": "no topic orders", "retry": False}
            cluster.end(name, fatal)
        else:
            self._driver_works(cluster, name, output)

    def _driver_works(self, cluster: SimulatedCluster, name: str, output: str) -> None:
        cluster.get_ready(name)
        uid = cluster.pods[name]["metadata"]["uid"]
        if not cluster.committed.get(uid):
            is_first = cluster.database.epoch == 0
            assert not (is_first and output in self.written), f"{name} writes the rows of {output} again"
            self.written.add(output)
            assert cluster.commit(name), f"{name} is fenced: two drivers work on one state"
        watermark = self.now - self.behind.get(output, timedelta())
        inputs = [InputStatus(name=side, lag=self.lag.get(output, 0), watermark=watermark) for side in ("l", "r")]
        cluster.driver_statuses[uid] = DriverStatus(
            revision=cluster.revision_of(name), ready=True, epoch=1, committed=1, inputs=tuple(inputs)
        )

    def check(self) -> None:
        """What holds at every moment: a driver each at most, all of them on states and places of their own. A job works
        once the status lists it, and only one without a role goes on to lose its state."""
        listed = {job.name for job in self.state.jobs}
        assert listed >= {name for name, cluster in self.clusters.items() if cluster.alive()}
        topics = [job["spec"]["output"]["kafka"]["topic"] for job in self.jobs().values()]
        assert len(topics) == len(set(topics)), f"two jobs write to one topic: {topics}"
        for name, cluster in self.clusters.items():
            assert len(cluster.alive()) <= 1, f"two drivers of {name}"


def _merge(target: Manifest, patch: Any) -> None:
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict) and isinstance(target.get(name), dict):
            _merge(target[name], value)
        else:
            target[name] = value
