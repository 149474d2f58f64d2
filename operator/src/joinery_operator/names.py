"""Names and labels of a resource's children: deterministic, so that create-or-get finds what an earlier operator made.

A job's name may be longer than a child's name can be, hold dots, or begin with a digit; jobs of two kinds may share a
name. Then a hash of kind and name replaces what a child's name cannot hold.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Literal

from joinery_operator.decision import Manifest
from joinery_runtime.job.crd.status import Mode

Role = Literal[
    "driver",
    "check",
    "delete-state",
    "savepoint",
    "question",
    "executor",
    "config",
    "service",
    "network-policy",
    "page",
]

JOB_LABEL = "joinery.dev/job"
KIND_LABEL = "joinery.dev/kind"
ROLE_LABEL = "joinery.dev/role"
ATTEMPT_LABEL = "joinery.dev/attempt"
REVISION_LABEL = "joinery.dev/revision"
SCALE_ANNOTATION = "joinery.dev/scale"
"""The annotation of a driver's pod with the `Scale` that the resource asks for. The pod reads it as a file."""
PAUSE_ANNOTATION = "joinery.dev/pause"
"""The annotation of a job with what the operator leaves alone: `rollouts`, or with any other value everything."""
SWITCH_ANNOTATION = "joinery.dev/switch"
"""The annotation of a BlueGreenJob with the job whose outputs readers are to read from now on: its name or, so that a
later edit needs to be confirmed again, `NAME@GENERATION` with the metadata.generation of the BlueGreenJob."""
CHILD_JOB_ANNOTATION = "joinery.dev/blue-green-job"
"""The annotation of a BlueGreenJob's job with the job's own name, which the copy of a job has not."""
CHILD_PAUSE_ANNOTATION = "joinery.dev/blue-green-pause"
"""The annotation of a BlueGreenJob's job with the value of `joinery.dev/pause` at the BlueGreenJob."""
CHILD_ROLE_LABEL = "joinery.dev/blue-green-role"
"""The label of a BlueGreenJob's job with its role: active, candidate, old or retired."""
APP_LABELS = {"app.kubernetes.io/name": "joinery", "app.kubernetes.io/managed-by": "joinery-operator"}

_PLAIN_KIND = "StreamJoin"
# The name of a Service has the strictest rules: it is a DNS-1035 label.
_PLAIN_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
# With an attempt and an executor's number of ten digits, "<stem>-<attempt>-exec-<number>" is a hostname of 63, and
# "<stem>-<attempt>" is within the 47 characters that earlier releases of Spark allow for a prefix.
_STEM = 36
_HASH = 10
_LABEL = 63


class ChildNames:
    """All names of one job's children, valid as DNS labels of at most 63 characters."""

    def __init__(self, resource: Manifest) -> None:
        self.kind: str = resource["kind"]
        self.job: str = resource["metadata"]["name"]
        self._stem = _stem(self.kind, self.job)

    def driver(self, attempt: int) -> str:
        return f"{self._stem}-driver-{attempt}"

    def config_map(self, revision: str) -> str:
        return f"{self._stem}-job-{revision}"

    @property
    def service(self) -> str:
        return f"{self._stem}-driver"

    @property
    def network_policy(self) -> str:
        return f"{self._stem}-pods"

    @property
    def page(self) -> str:
        return f"{self._stem}-page"

    def check(self, revision: str, mode: Mode = "stateful") -> str:
        """Return the name of a check pod. Each mode has its own, because the result of a check in the other mode does
        not count."""
        return f"{self._stem}-check-{revision}" + ("" if mode == "stateful" else f"-{mode}")

    @property
    def delete_state(self) -> str:
        return f"{self._stem}-delete-state"

    def question(self, number: str) -> str:
        """Return the name of the pod in which `kubectl joinery` runs a command when there is no driver."""
        return f"{self._stem}-question-{number}"

    def savepoint(self, action: Literal["create", "delete"]) -> str:
        """Return the name of a Savepoint resource's pod."""
        return f"{self._stem}-{action}"

    def executor_prefix(self, attempt: int) -> str:
        """Return the prefix of executor pods, to which Spark adds `-exec-<number>`."""
        return f"{self._stem}-{attempt}"

    @property
    def label(self) -> str:
        """The value of `joinery.dev/job`: the job's name unless that is too long for a label."""
        return self.job if len(self.job) <= _LABEL else self._stem


def labels(resource: Manifest, role: Role, attempt: int | None = None, revision: str | None = None) -> dict[str, str]:
    """Return a child's own labels. The resource's labels are not handed down: a tool that tracks what it deploys by
    labels would take the children for its own, and prune them."""
    names = ChildNames(resource)
    child_labels = {**APP_LABELS, JOB_LABEL: names.label, KIND_LABEL: names.kind, ROLE_LABEL: role}
    if attempt is not None:
        child_labels[ATTEMPT_LABEL] = str(attempt)
    if revision is not None:
        child_labels[REVISION_LABEL] = revision
    return child_labels


def controls(owner: Manifest, manifest: Manifest) -> bool:
    """Return whether an object names `owner` as its controller. Whoever writes the object may claim so."""
    reference = owner_reference(owner)
    identity = {name: reference[name] for name in ("apiVersion", "kind", "name", "uid", "controller")}
    same_namespace = owner["metadata"]["namespace"] == manifest["metadata"]["namespace"]
    references = manifest["metadata"].get("ownerReferences") or ()
    return same_namespace and any(identity.items() <= dict(written).items() for written in references)


def selector(labels: Mapping[str, str]) -> str:
    """Return the selector of everything with these labels, as `kubectl get -l` takes it."""
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def owner_reference(resource: Manifest) -> dict[str, Any]:
    """Return the reference that says whose child an object is, and makes Kubernetes delete it after its job."""
    return {
        "apiVersion": resource["apiVersion"],
        "kind": resource["kind"],
        "name": resource["metadata"]["name"],
        "uid": resource["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _stem(kind: str, job: str) -> str:
    if kind == _PLAIN_KIND and len(job) <= _STEM and _PLAIN_NAME.fullmatch(job):
        return job
    readable = job.replace(".", "-")
    readable = readable if readable[0].isalpha() else f"j{readable}"
    return f"{readable[: _STEM - _HASH - 1].rstrip('-')}-{digest_of(f'{kind}/{job}')}"


def shorten_label(label: str, full_name: str) -> str:
    """Return the text as a DNS label. If it is too long for one, returns its beginning and a hash of `full_name`, for
    which the label stands."""
    if len(label) <= _LABEL:
        return label
    return f"{label[: _LABEL - _HASH - 1].rstrip('-')}-{digest_of(full_name)}"


def digest_of(text: str) -> str:
    """Ten hex digits that represent a text in a name."""
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH]
