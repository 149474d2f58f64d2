"""A StreamJoin on a cluster while records arrive, and the check of all that came out of it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from ruamel.yaml import YAML

from cluster.kubectl import Kubectl
from e2e.kill_harness import INPUTS, Feeder, Job, Log, judge, topic_rows
from joinery_devkit.verify import Verdict
from joinery_runtime.engine.plan import InputState, input_offsets
from joinery_runtime.job import load_job

PATIENCE_S = 240
_LOOK_S = 0.5
SPARK = {
    "driver": {"memory": "512m", "coreRequest": "200m"},
    "executor": {"memory": "512m", "coreRequest": "100m", "instances": 2},
    "imagePullPolicy": "IfNotPresent",
}

Manifest = dict[str, Any]


@dataclass
class ClusterJob:
    """`job` says topics, store and outputs; `image` runs it. Records come from `feeder` while it is entered."""

    job: Job
    namespace: str
    kubectl: Kubectl
    image: str
    folder: Path
    manifest: Manifest = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.feeder = Feeder(self.job.bootstrap, self.job.name, seed=5)
        self.log = Log(f"{self.namespace}/{self.job.name}", self.job.dsn, self.job.schema)
        text = self.job.write(self.folder / f"{self.job.name}.yaml").read_text()
        self.manifest = YAML(typ="safe").load(text)
        self.manifest["metadata"]["namespace"] = self.namespace
        spec = self.manifest["spec"]
        spec["stateStore"]["postgres"] = {
            "dsnSecretRef": {"name": "state-db", "key": "dsn"},
            "schema": self.job.schema,
        }
        spec["spark"] = {**SPARK, "image": self.image}

    # --- what is done to it -----------------------------------------------------------------------------------------

    def apply(self, **changes: Any) -> None:
        """As kubectl apply does; `changes` are fields of the spec that stay changed."""
        self.manifest["spec"].update(copy.deepcopy(changes))
        self.kubectl.apply(self.manifest, self.namespace)

    def apply_spark(self, **changes: Any) -> None:
        self.apply(spark={**self.manifest["spec"]["spark"], **changes})

    def delete(self) -> None:
        name = f"streamjoin/{self.job.name}"
        self.kubectl("delete", name, "-n", self.namespace, timeout_seconds=PATIENCE_S)

    # --- what is seen of it -----------------------------------------------------------------------------------------

    @property
    def resource(self) -> Manifest:
        return self.kubectl.get("streamjoin", self.job.name, self.namespace) or {}

    @property
    def status(self) -> Manifest:
        return self.resource.get("status", {})

    def condition(self, kind: str) -> Mapping[str, Any]:
        found = [each for each in self.status.get("conditions", ()) if each["type"] == kind]
        return found[0] if found else {}

    def pods(self, role: str) -> list[Manifest]:
        """Pods of the job that are not being deleted."""
        found = self.kubectl.list("pods", self.namespace, f"joinery.dev/job={self.job.name},joinery.dev/role={role}")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def running(self, role: str) -> list[Manifest]:
        return [pod for pod in self.pods(role) if pod["status"].get("phase") == "Running"]

    def driver(self) -> Manifest:
        (pod,) = self.running("driver")
        return pod

    # --- waiting ----------------------------------------------------------------------------------------------------

    def wait(self, what: str, met: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + seconds
        while not met():
            assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s\n{self.told()}"
            time.sleep(_LOOK_S)

    def wait_until_running(self) -> None:
        """The driver of the resource as it is now, with its executors, and epochs that it commits."""
        generation = self.resource["metadata"]["generation"]
        instances = self.manifest["spec"]["spark"]["executor"]["instances"]
        self.wait("the driver is up", lambda: _is_running(self.status, generation))
        self.wait("executors are up", lambda: len(self.running("executor")) == instances)
        self.wait_for_more_epochs(3)

    def wait_for_more_epochs(self, number: int) -> None:
        wanted = self.log.committed() + number
        self.wait(f"{number} more epochs", lambda: self.log.committed() >= wanted)

    def wait_until_read(self) -> None:
        """Nothing may be arriving any more."""
        ends = _ends(self.job)
        self.wait("all records are read", lambda: self._positions() == ends)

    def _positions(self) -> dict[tuple[str, int], int]:
        record = self.log.record()
        states = [InputState.from_bytes(name, data) for name, data in input_offsets(record).items()] if record else []
        return {(ref.topic, ref.partition): at for state in states for ref, at in state.positions.items()}

    # --- the check --------------------------------------------------------------------------------------------------

    def judge(self) -> Verdict:
        """Every pair exactly once, of all records so far: reads everything there is."""
        self.wait_until_read()
        path = self.folder / f"{self.job.name}-now.yaml"
        text = StringIO()
        YAML().dump({**self.manifest, "metadata": {"name": self.job.name}}, text)
        path.write_text(text.getvalue())
        out, dead = (topic_rows(self.job.bootstrap, f"{self.job.name}.{name}") for name in ("out", "dead"))
        return judge(load_job(path), self.job.bootstrap, self.log.entries(), out, dead)

    def told(self) -> str:
        """What a person would look at first."""
        listed = self.kubectl("get", "pods", "-n", self.namespace, "-o", "wide")
        described = self.kubectl("get", "streamjoins", "-n", self.namespace, "-o", "yaml")
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
        and any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))
    )


def _ends(job: Job) -> dict[tuple[str, int], int]:
    """Last stable offsets of the inputs' partitions."""
    settings = {"bootstrap.servers": job.bootstrap, "group.id": "ends", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    try:
        return {
            (f"{job.name}.{name}", number): consumer.get_watermark_offsets(
                TopicPartition(f"{job.name}.{name}", number), 10
            )[1]
            for name, partitions in INPUTS.items()
            for number in range(partitions)
        }
    finally:
        consumer.close()
