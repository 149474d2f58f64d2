"""A job on a cluster while records arrive, and the check of all that came out of it."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.kill_harness import Log
from e2e.node.works import STORE_SCHEMA, Manifest, Work
from joinery_devkit.kubernetes.binaries import program
from joinery_devkit.kubernetes.kubectl import Kubectl, wait_until
from joinery_runtime.engine.job_state import input_offsets
from joinery_runtime.engine.plan import InputState

PATIENCE_S = 480
_LOOK_S = 0.5
SPARK = {
    "driver": {"memory": "512m", "coreRequest": "200m"},
    "executor": {"memory": "512m", "coreRequest": "100m", "instances": 2},
    "imagePullPolicy": "IfNotPresent",
}


@dataclass
class ClusterJob:
    """`work` says what it is about; `image` runs it. Records come from `feeder` while it is entered."""

    work: Work
    namespace: str
    kubectl: Kubectl
    image: str
    folder: Path
    manifest: Manifest = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = self.work.name
        self.feeder = self.work.feeder()
        self.log = Log(f"{self.namespace}/{self.name}", self.work.dsn, STORE_SCHEMA)
        self.manifest = self.work.manifest(self.folder)
        self.manifest["metadata"]["namespace"] = self.namespace
        spec = self.manifest["spec"]
        spec["stateStore"]["postgres"] = {
            "dsnSecretRef": {"name": "state-db", "key": "dsn"},
            "schema": STORE_SCHEMA,
        }
        spec["spark"] = {**SPARK, "image": self.image}

    def renamed(self, name: str) -> ClusterJob:
        """The job of this name with the spec of now, which the operator makes: it has a state of its own, and the same
        records arrive."""
        job = copy.copy(self)
        job.name, job.manifest = name, copy.deepcopy(self.manifest)
        job.log = Log(f"{self.namespace}/{name}", self.work.dsn, STORE_SCHEMA)
        return job

    @property
    def kind(self) -> str:
        """As kubectl takes it."""
        return str(self.manifest["kind"]).lower()

    @property
    def labels(self) -> str:
        """A selector of all that the job has."""
        return f"joinery.dev/job={self.name},joinery.dev/kind={self.manifest['kind']}"

    # --- what is done to it -----------------------------------------------------------------------------------------

    def apply(self, **changes: Any) -> None:
        """As kubectl apply does; `changes` are fields of the spec that stay changed."""
        self.manifest["spec"].update(copy.deepcopy(changes))
        self.kubectl.apply(self.manifest, self.namespace)

    def apply_spark(self, **changes: Any) -> None:
        self.apply(spark={**self.manifest["spec"]["spark"], **changes})

    def delete(self) -> None:
        self.kubectl("delete", f"{self.kind}/{self.name}", "-n", self.namespace, timeout_seconds=PATIENCE_S)

    def joinery(self, *arguments: str) -> str:
        """What `kubectl joinery` prints."""
        program_path = Path(sys.executable).with_name("kubectl-joinery")
        words = 2 if arguments[0] == "rollout" else 1  # what follows may be for a command in the pod
        where = [f"--kubeconfig={self.kubectl.kubeconfig}", f"--namespace={self.namespace}"]
        command = [program_path, *arguments[:words], *where, *arguments[words:]]
        environment = {**os.environ, "PATH": f"{program('kubectl').parent}:{os.environ['PATH']}"}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    # --- what is seen of it -----------------------------------------------------------------------------------------

    @property
    def resource(self) -> Manifest:
        return self.kubectl.get(self.kind, self.name, self.namespace) or {}

    @property
    def status(self) -> Manifest:
        return self.resource.get("status", {})

    def condition(self, kind: str) -> Mapping[str, Any]:
        conditions = [condition for condition in self.status.get("conditions", ()) if condition["type"] == kind]
        return conditions[0] if conditions else {}

    def pods(self, role: str) -> list[Manifest]:
        """Pods of the job that are not being deleted."""
        pods = self.kubectl.list("pods", self.namespace, f"{self.labels},joinery.dev/role={role}")
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def running(self, role: str) -> list[Manifest]:
        return [pod for pod in self.pods(role) if pod["status"].get("phase") == "Running"]

    def driver(self) -> Manifest:
        (pod,) = self.running("driver")
        return pod

    def images(self) -> list[str]:
        return [pod["spec"]["containers"][0]["image"] for pod in self.running("driver")]

    def state_versions(self) -> set[int]:
        record = self.log.record()
        assert record is not None
        return {segment.state_version for segment in record.segments}

    def events(self, reason: str) -> list[str]:
        """What the Events of that reason say about it."""
        chosen = f"--field-selector=reason={reason},involvedObject.uid={self.resource['metadata']['uid']}"
        events = json.loads(self.kubectl("get", "events", "-n", self.namespace, chosen, "-o", "json"))["items"]
        return [event["message"] for event in events]

    def children(self) -> list[str]:
        """Of every kind that the operator or Spark makes in a namespace, executors included."""
        return self.kubectl.names("pods,services,configmaps,persistentvolumeclaims", self.namespace, self.labels)

    # --- waiting ----------------------------------------------------------------------------------------------------

    def wait(self, what: str, met: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
        """Waits as `wait_until` does, and fails with what the cluster says of the job."""
        try:
            wait_until(what, met, seconds, poll_seconds=_LOOK_S)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.description()}") from error

    def wait_until_running(self) -> None:
        """The driver of the resource as it is now, with its executors, and epochs that it commits."""
        generation = self.resource["metadata"]["generation"]
        instances = self.manifest["spec"]["spark"]["executor"]["instances"]
        self.wait("the driver is up", lambda: _is_running(self.status, generation))
        self.wait("executors are up", lambda: len(self._executors_of_its_driver()) == instances)
        self.wait_for_more_epochs(3)

    def _executors_of_its_driver(self) -> list[Manifest]:
        """Those of a driver that has gone run on for a moment, while the next one works by itself."""
        drivers = {pod["metadata"]["uid"] for pod in self.running("driver")}
        executors = self.running("executor")
        return [pod for pod in executors if {owner["uid"] for owner in pod["metadata"]["ownerReferences"]} & drivers]

    def wait_for_more_epochs(self, number: int) -> None:
        target = self.log.committed() + number
        self.wait(f"{number} more epochs", lambda: self.log.committed() >= target)

    def wait_until_read(self) -> None:
        """Nothing may be arriving any more."""
        ends = self.work.ends()
        self.wait("all records are read", lambda: self._positions() == ends)

    def behind(self) -> int:
        """Records that are there and not read."""
        return sum(self.work.ends().values()) - sum(self._positions().values())

    def _positions(self) -> dict[tuple[str, int], int]:
        record = self.log.record()
        states = [InputState.from_bytes(name, data) for name, data in input_offsets(record).items()] if record else []
        return {(ref.topic, ref.partition): at for state in states for ref, at in state.positions.items()}

    # --- the check --------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        """What came out of all records so far: reads everything there is."""
        self.wait_until_read()
        self.work.judge(self.manifest, self.log.entries(), self.folder)

    def description(self) -> str:
        """What a person would read first."""
        listed = self.kubectl("get", "pods", "-n", self.namespace, "-o", "wide")
        described = self.kubectl("get", "joinery", "-n", self.namespace, "-o", "yaml")
        logs = [self._tail(pod) for pod in self.kubectl.names("pods", self.namespace, "joinery.dev/role=driver")]
        return "\n".join([listed, described, *logs])

    def _tail(self, pod: str) -> str:
        try:
            return f"--- {pod}\n" + self.kubectl("logs", pod, "-n", self.namespace, "--tail=15", "--all-containers")
        except AssertionError as error:
            return f"--- {pod}: {error}"


def _is_running(status: Mapping[str, Any], generation: int) -> bool:
    return (
        status.get("phase") == "Running"
        and status.get("observedGeneration") == generation
        and "rollout" not in status
        and any(
            condition["type"] == "Ready" and condition["status"] == "True" for condition in status.get("conditions", ())
        )
    )
