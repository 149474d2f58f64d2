"""Runs kubectl as a subprocess to find a job and its driver pod."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from joinery_operator.names import ChildNames
from joinery_runtime.errors import EnvironmentProblem, JoineryError
from joinery_runtime.job.crd import BLUE_GREEN, KINDS, ResourceKind
from joinery_runtime.job.model.resource import API_VERSION
from joinery_runtime.job.model.wording import listed


class KubectlError(JoineryError):
    """kubectl ended with an error of its own."""

    def __init__(self, summary: str, message: str, code: int) -> None:
        self.message, self.code = message, code
        super().__init__(summary, facts=message)

    def __reduce__(self) -> tuple[object, ...]:
        return (KubectlError, (self.summary, self.message, self.code))


class NoSuchJob(JoineryError):
    """No job of these kinds has the name."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class KubectlTarget:
    """Which cluster and namespace; without them, as kubectl is set up.

    Parameters
    ----------
    namespace
        The job's namespace.
    context
        A context of the kubeconfig.
    kubeconfig
        The kubeconfig.
    """

    namespace: Annotated[str | None, Parameter(name=["--namespace", "-n"])] = None
    context: str | None = None
    kubeconfig: str | None = None

    def read(self, *arguments: str, stdin: str | None = None) -> Any:
        """Run kubectl and parse its JSON answer. Raises KubectlError."""
        return json.loads(self.do(*arguments, "--output=json", stdin=stdin))

    def do(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return what it prints. Raises KubectlError."""
        done = subprocess.run(
            [*self._kubectl_command(), *arguments], input=stdin, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise KubectlError(f"kubectl {arguments[0]} failed", done.stderr.strip(), done.returncode)
        return done.stdout

    def run(self, *arguments: str) -> int:
        """Run kubectl on the user's terminal, and return its exit code."""
        return subprocess.run([*self._kubectl_command(), *arguments], check=False).returncode

    def _kubectl_command(self) -> list[str]:
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            raise EnvironmentProblem("There is no kubectl on PATH", todo="Install it; this command is a plugin of it")
        options = {"namespace": self.namespace, "context": self.context, "kubeconfig": self.kubeconfig}
        return [kubectl, *(f"--{name}={value}" for name, value in options.items() if value is not None)]


_GROUP = API_VERSION.partition("/")[0]


@dataclass(frozen=True, slots=True)
class JobResource:
    """A resource as the API server has it."""

    resource: dict[str, Any]

    @property
    def name(self) -> str:
        """The name in messages: `namespace/name`."""
        return f"{self.namespace}/{self.resource['metadata']['name']}"

    @property
    def namespace(self) -> str:
        return str(self.resource["metadata"]["namespace"])

    @property
    def status(self) -> dict[str, Any]:
        return self.resource.get("status") or {}

    @property
    def reference(self) -> str:
        """The name for kubectl: `streamjoin.joinery.dev/name`."""
        return _reference(self.resource["kind"], self.resource["metadata"]["name"])

    @property
    def running_jobs(self) -> list[str]:
        """The names for kubectl of the jobs of a BlueGreenJob that run, the one that readers use first. Raises
        JoineryError if there is none yet."""
        status, name = self.status, self.resource["metadata"]["name"]
        roles = [
            status.get("active"),
            *(role["name"] for role in (status.get("candidate"), *status.get("old", ())) if role),
        ]
        kinds = {listed["name"]: listed["kind"] for listed in status.get("jobs", ())}
        running = [_reference(kinds[job], job) for job in roles if job in kinds]
        if not running:
            raise JoineryError(
                f"BlueGreenJob {self.name} has no job yet", todo=f"`kubectl joinery status {name}` says why"
            )
        return running

    @property
    def blue_green(self) -> str | None:
        """The name of the BlueGreenJob whose job this is."""
        owners = self.resource["metadata"].get("ownerReferences") or ()
        return next((owner["name"] for owner in owners if owner["kind"] == BLUE_GREEN.name), None)

    def check_spec_is_its_own(self, todo: str) -> None:
        """Raise JoineryError for a job whose spec a BlueGreenJob has. `todo` is the command for that one."""
        if self.blue_green is not None:
            raise JoineryError(
                f"Job {self.name} is one of BlueGreenJob {self.blue_green}",
                facts="the operator sets its spec back to what that resource's template says",
                todo=f"`kubectl joinery {todo} bgj/{self.blue_green}`",
            )

    @property
    def driver(self) -> str | None:
        """The name of the newest driver pod that was asked for."""
        attempt = self.status.get("driver")
        return ChildNames(self.resource).driver(attempt["number"]) if attempt else None


def _reference(kind: str, name: str) -> str:
    return f"{kind.lower()}.{_GROUP}/{name}"


def find_job(target: KubectlTarget, name: str, kinds: Sequence[ResourceKind] = KINDS) -> JobResource:
    """Return the job called `name`: `orders` or, if jobs of several kinds have that name, `sj/orders`. Also accepts
    what kubectl prints (`streamjoin.joinery.dev/orders`).

    Raises JoineryError if there is no such job, or more than one.
    """
    kind, slash, job = name.rpartition("/")
    called = kind.lower().removesuffix(f".{_GROUP}")
    plurals = [
        job_kind.plural
        for job_kind in kinds
        if not slash or called in {job_kind.short, job_kind.plural, job_kind.name.lower()}
    ]
    if not plurals:
        kind_names = ", ".join(job_kind.short for job_kind in kinds)
        raise JoineryError(
            f"{kind!r} is no kind of job", facts=f"there are {kind_names}", todo=f"Write as in {KINDS[0].short}/NAME"
        )
    resource_types = ",".join(f"{plural}.{_GROUP}" for plural in plurals)
    matches = target.read("get", resource_types, f"--field-selector=metadata.name={job}")["items"]
    if not matches:
        raise NoSuchJob(f"There is no job {job!r}", todo="`kubectl joinery ls -A` lists all; name another -n NAMESPACE")
    if len(matches) > 1:
        matched = {match["kind"] for match in matches}
        names = " or ".join(f"{job_kind.short}/{job}" for job_kind in kinds if job_kind.name in matched)
        raise JoineryError(f"Several jobs are called {job!r}", facts=listed(sorted(matched)), todo=f"Write {names}")
    return JobResource(matches[0])


def find_job_or_blue_green(target: KubectlTarget, name: str) -> JobResource:
    """Return the job called `name`, else the BlueGreenJob, which `bgj/NAME` names alone: a cluster may not know that
    kind. Raises JoineryError."""
    kind = name.rpartition("/")[0].lower().removesuffix(f".{_GROUP}")
    if kind in {BLUE_GREEN.short, BLUE_GREEN.plural, BLUE_GREEN.name.lower()}:
        return find_job(target, name, (BLUE_GREEN,))
    try:
        return find_job(target, name)
    except NoSuchJob as missing:
        if kind:
            raise
        try:
            return find_job(target, name, (BLUE_GREEN,))
        except KubectlError:
            raise missing from None


def find_job_with_driver(target: KubectlTarget, name: str) -> JobResource:
    """Return the job called `name`, or that of the BlueGreenJob which readers use. Raises JoineryError."""
    job = find_job_or_blue_green(target, name)
    return find_job(target, job.running_jobs[0]) if job.resource["kind"] == BLUE_GREEN.name else job


def read_config_map(target: KubectlTarget, job: JobResource, name: str) -> dict[str, Any] | None:
    """Return a ConfigMap of the job's namespace; None if there is none of that name."""
    query = ("get", "configmaps", f"--namespace={job.namespace}", f"--field-selector=metadata.name={name}")
    return next(iter(target.read(*query)["items"]), None)


@dataclass(frozen=True, slots=True)
class NoDriver:
    """No driver runs, and why."""

    reason: str


def running_driver(target: KubectlTarget, job: JobResource) -> str | NoDriver:
    """Return the name of the driver pod if commands can run in it; else why there is none."""
    pod = _find_pod(target, job)
    if pod is None:
        return NoDriver(_no_driver_text(job))
    phase = pod.get("status", {}).get("phase", "Unknown")
    if phase != "Running" or "deletionTimestamp" in pod["metadata"]:
        state = "is being stopped" if "deletionTimestamp" in pod["metadata"] else f"is {phase}"
        return NoDriver(f"{_no_driver_text(job)}: driver pod {pod['metadata']['name']} {state}")
    return str(pod["metadata"]["name"])


def newest_driver(target: KubectlTarget, job: JobResource) -> str:
    """Return the name of the newest driver pod, which may have ended: its log exists as long as the pod. Raises
    JoineryError."""
    pod = _find_pod(target, job)
    if pod is None:
        todo = f"`kubectl joinery status {job.resource['metadata']['name']}` says why"
        raise JoineryError(_no_driver_text(job), facts="it has no driver pod", todo=todo)
    return str(pod["metadata"]["name"])


def _find_pod(target: KubectlTarget, job: JobResource) -> dict[str, Any] | None:
    if job.driver is None:
        return None
    pods = target.read("get", "pods", f"--namespace={job.namespace}", f"--field-selector=metadata.name={job.driver}")
    return next(iter(pods["items"]), None)


def _no_driver_text(job: JobResource) -> str:
    return f"No driver of job {job.name} runs (phase {job.status.get('phase', 'unknown')})"
