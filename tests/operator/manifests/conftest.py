"""A job with all that its pods depend on, and the restricted Pod Security Standard as a function."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from joinery_operator import manifests
from joinery_operator.names import ChildNames
from joinery_operator.pod_defaults import PodDefaults
from joinery_operator.revision import JobRevision, PodTemplates
from joinery_operator.settings import Settings
from joinery_runtime.job.crd import KINDS, ResourceKind
from simulated_cluster.resources import BY_NAME, resource_of

KAFKA = {"bootstrapServers": "kafka:9092", "propertiesSecretRef": {"name": "kafka-client"}}
SIDE = {
    "kafka": {**KAFKA, "topic": "t"},
    "format": "json",
    "schema": [{"name": "id", "type": "string"}, {"name": "ts", "type": "timestamp"}],
    "eventTime": "ts",
}
METADATA: dict[str, Any] = {
    "uid": "7c1e",
    "generation": 3,
    "resourceVersion": "12",
    "labels": {"argocd.argoproj.io/instance": "app", "app.kubernetes.io/instance": "app", "team": "a"},
    "annotations": {"argocd.argoproj.io/tracking-id": "x"},
    "managedFields": [{"manager": "kubectl"}],
}
OUTPUTS: dict[str, Any] = {
    "output": {"kafka": {**KAFKA, "topic": "out", "propertiesSecretRef": {"name": "kafka.writer"}}},
    "deadLetter": {"kafka": {**KAFKA, "topic": "dead", "propertiesSecretRef": {"name": "kafka-dead"}}},
}
INPUTS: dict[str, dict[str, Any]] = {
    "StreamJoin": {"inputs": [{**SIDE, "name": "l"}, {**SIDE, "name": "r"}]},
    "SessionWindow": {"input": {**SIDE, "name": "clicks"}},
}
IMAGE = "images.example/joinery:1"


@dataclass(frozen=True)
class Job:
    """One job's resource, and the children that the operator makes for it."""

    resource: dict[str, Any]
    settings: Settings = Settings(service_account="driver-account", stop_grace_seconds=77)  # noqa: RUF009 - frozen
    templates: PodTemplates | None = None
    pod_defaults: PodDefaults = PodDefaults()  # noqa: RUF009 - frozen
    image: str = IMAGE

    @property
    def names(self) -> ChildNames:
        return ChildNames(self.resource)

    @property
    def model(self) -> Any:
        return BY_NAME[self.resource["kind"]].model.model_validate(self.resource, by_alias=True, by_name=False)

    @property
    def revision(self) -> JobRevision:
        templates, defaults = self.templates or {}, self.pod_defaults
        return JobRevision(self.model, self.resource, "abc", self.image, self.settings, templates, defaults)

    def with_spec(self, **spec: Any) -> Job:
        resource = copy.deepcopy(self.resource)
        resource["spec"] |= spec
        return replace(self, resource=resource)

    def with_spark(self, **spark: Any) -> Job:
        return self.with_spec(spark=spark)

    def with_template(self, text: str, *, part: str = "driver") -> Job:
        job = self.with_spark(**{part: {"podTemplate": {"name": "extra"}}})
        return replace(job, templates={"extra": {"data": {"pod.yaml": text}}})

    def config_map(self) -> Any:
        return manifests.config_map(self.revision)

    def driver(self, attempt: int = 1, **before: Any) -> Any:
        return manifests.driver_pod(self.revision, attempt, **before)

    def restore(self) -> Any:
        return manifests.restore_pod(self.revision, 3, "rollout-abc")

    def check(self) -> Any:
        return manifests.check_pod(self.revision)

    def delete_state(self) -> Any:
        return manifests.delete_state_pod(self.revision)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> ResourceKind:
    resource_kind: ResourceKind = request.param
    return resource_kind


@pytest.fixture
def job(kind: ResourceKind) -> Job:
    resource = resource_of(kind, **OUTPUTS, **INPUTS[kind.name])
    metadata = {**METADATA, **resource["metadata"]}
    return Job(copy.deepcopy({**resource, "metadata": metadata, "status": {"phase": "Running"}}))


@pytest.fixture
def violations() -> Callable[[Any], list[str]]:
    return lambda pod: list(_violations(pod["spec"]))


# The restricted profile's volume types, and the capabilities that may be added.
_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
_ADDED = {"NET_BIND_SERVICE"}


def _violations(spec: Any) -> Iterator[str]:
    """What the Pod Security Standard `restricted` forbids (which includes `baseline`), rule by rule."""
    about = spec.get("securityContext", {})
    yield from (f"{name} is set" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name))
    for volume in spec.get("volumes", ()):
        if not volume.keys() - {"name"} <= _VOLUMES:
            yield f"volume {volume}"
    if about.get("runAsUser") == 0:
        yield "the pod runs as root"
    if about.get("sysctls"):
        yield "sysctls"
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        yield from (f"{container['name']}: {finding}" for finding in _of_container(container, about))


def _of_container(container: Any, pod: Any) -> Iterator[str]:
    own = container.get("securityContext", {})
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation must be false"
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield "runAsNonRoot must be true"
    if own.get("runAsUser") == 0:
        yield "runs as root"
    seccomp = own.get("seccompProfile", pod.get("seccompProfile", {})).get("type")
    if seccomp not in {"RuntimeDefault", "Localhost"}:
        yield f"seccomp {seccomp}"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()):
        yield "capabilities must drop ALL"
    if not set(capabilities.get("add", ())) <= _ADDED:
        yield f"adds capabilities {capabilities['add']}"
    if own.get("procMount", "Default") != "Default":
        yield "procMount"
    if any(port.get("hostPort") for port in container.get("ports", ())):
        yield "hostPort"
