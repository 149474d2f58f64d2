"""A job and its driver pod, found through kubectl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from joinery_operator.names import Names
from joinery_operator.plugin.kubectl import Target
from joinery_runtime.errors import JoineryError
from joinery_runtime.job.crd import KINDS
from joinery_runtime.job.model.resource import API_VERSION
from joinery_runtime.job.model.wording import listed

_GROUP = API_VERSION.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Job:
    """A resource as the API server has it."""

    resource: dict[str, Any]

    @property
    def name(self) -> str:
        """As messages say it: `namespace/name`."""
        return f"{self.namespace}/{self.resource['metadata']['name']}"

    @property
    def namespace(self) -> str:
        return str(self.resource["metadata"]["namespace"])

    @property
    def status(self) -> dict[str, Any]:
        return self.resource.get("status") or {}

    @property
    def reference(self) -> str:
        """As kubectl takes it: `streamjoin.joinery.dev/name`."""
        return f"{self.resource['kind'].lower()}.{_GROUP}/{self.resource['metadata']['name']}"

    @property
    def driver(self) -> str | None:
        """The name of the newest driver pod that was asked for."""
        attempt = self.status.get("driver")
        return Names(self.resource).driver(attempt["number"]) if attempt else None


def find_job(target: Target, name: str) -> Job:
    """The job that `name` says, as `orders` or, where several kinds have one of that name, `sj/orders`. What kubectl
    prints (`streamjoin.joinery.dev/orders`) is taken too.

    Raises JoineryError when there is none, or more than one.
    """
    kind, slash, job = name.rpartition("/")
    called = kind.lower().removesuffix(f".{_GROUP}")
    plurals = [each.plural for each in KINDS if not slash or called in {each.short, each.plural, each.name.lower()}]
    if not plurals:
        known = ", ".join(each.short for each in KINDS)
        raise JoineryError(
            f"{kind!r} is no kind of job", facts=f"there are {known}", todo=f"Write as in {KINDS[0].short}/NAME"
        )
    asked = ",".join(f"{plural}.{_GROUP}" for plural in plurals)
    found = target.read("get", asked, f"--field-selector=metadata.name={job}")["items"]
    if not found:
        raise JoineryError(
            f"There is no job {job!r}", todo="`kubectl joinery ls -A` lists all; name another -n NAMESPACE"
        )
    if len(found) > 1:
        kinds = {each["kind"] for each in found}
        names = " or ".join(f"{each.short}/{job}" for each in KINDS if each.name in kinds)
        raise JoineryError(f"Several jobs are called {job!r}", facts=listed(sorted(kinds)), todo=f"Write {names}")
    return Job(found[0])


def running_driver(target: Target, job: Job) -> str:
    """The name of the driver pod, in which commands can be run. Raises JoineryError that says what to do."""
    pod = _pod(target, job)
    if pod is None:
        raise _no_driver(job, "it has no driver pod")
    phase = pod.get("status", {}).get("phase", "Unknown")
    if phase != "Running" or "deletionTimestamp" in pod["metadata"]:
        state = "is being stopped" if "deletionTimestamp" in pod["metadata"] else f"is {phase}"
        raise _no_driver(job, f"driver pod {pod['metadata']['name']} {state}")
    return str(pod["metadata"]["name"])


def newest_driver(target: Target, job: Job) -> str:
    """The name of the driver pod, which may have ended: its log is there as long as it is. Raises JoineryError."""
    pod = _pod(target, job)
    if pod is None:
        raise _no_driver(job, "it has no driver pod")
    return str(pod["metadata"]["name"])


def _pod(target: Target, job: Job) -> dict[str, Any] | None:
    if job.driver is None:
        return None
    found = target.read("get", "pods", f"--namespace={job.namespace}", f"--field-selector=metadata.name={job.driver}")
    return next(iter(found["items"]), None)


def _no_driver(job: Job, facts: str) -> JoineryError:
    name = job.resource["metadata"]["name"]
    if job.resource["spec"].get("suspend"):
        todo = (
            f"The job is suspended: `kubectl joinery resume {name}` starts it. To look at its state meanwhile, run "
            "`joinery state ...` with the job's file from where its Postgres can be reached"
        )
    else:
        todo = f"`kubectl joinery status {name}` says why"
    return JoineryError(f"No driver of job {job.name} runs (phase {job.status.get('phase', 'unknown')})",
                        facts=facts, todo=todo)  # fmt: skip
