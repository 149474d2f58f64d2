"""What a pod's manifest says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from joinery_operator.children import MAIN_CONTAINER
from joinery_operator.observed import Manifest
from joinery_operator.reconcile.text import cut, sentence
from joinery_runtime.job.crd import Ending, StateCheck

IMAGE_PULL = "ImagePullFailed"
NOT_READY = "NotReady"
CREATE_REFUSED = "CreateRefused"
UNSCHEDULABLE = "Unschedulable"
NOT_CREATED = "ContainerNotCreated"

_PULLING = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
_WAITS_ANYWAY = {"ContainerCreating", "PodInitializing", ""}
# What a kubelet or the control plane writes into `status.reason` when it takes a pod away.
_TAKEN_AWAY = {"Evicted", "NodeShutdown", "Terminated", "Shutdown", "NodeLost", "Preempting", "NodeAffinity"}


@dataclass(frozen=True, slots=True)
class Trouble:
    """What keeps a pod from running, in Kubernetes' own words."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PodFacts:
    """`ended`: when its main container ended for good (no container of ours runs any more), `deleted`: when Kubernetes
    expects it to be gone, `ready`: since when. `failure` is what is known of how it ended, in words, `cause` in one
    word. `taken_away`: others ended it, as by eviction. `initialized`: its first containers ended well. `unready`:
    since when it is not ready, where `ready` is None; `waits`: what it is at then, in words."""

    name: str
    uid: str
    created: datetime
    deleted: datetime | None
    ended: datetime | None
    ready: datetime | None
    initialized: bool
    taken_away: bool
    ending: Ending | None
    check: StateCheck | None
    succeeded: bool
    cause: str
    failure: str
    trouble: Trouble | None
    unready: datetime
    waits: str

    def stuck(self, now: datetime, seconds: float) -> bool:
        """Whether it should have been gone for that long: its node is dead, as far as one can tell."""
        return self.deleted is not None and (now - self.deleted).total_seconds() >= seconds

    def quiet(self, now: datetime, seconds: float) -> bool:
        """Whether another pod may do its work now."""
        return self.ended is not None or self.stuck(now, seconds)


def pod_facts(pod: Manifest) -> PodFacts:
    metadata, status = pod["metadata"], pod.get("status") or {}
    over = _over(status)
    main = _terminated(_main(status))
    told = next((text for each in over if (text := (each.get("message") or "").strip())), "")
    ending = _parsed(Ending, told)
    created = _time(metadata["creationTimestamp"])
    return PodFacts(
        name=metadata["name"],
        uid=metadata["uid"],
        created=created,
        deleted=_time(metadata["deletionTimestamp"]) if metadata.get("deletionTimestamp") else None,
        ended=_ended(status, main, created),
        ready=_since(status, "Ready"),
        initialized=main is not None or _since(status, "Initialized") is not None or _runs(_main(status)),
        taken_away=status.get("reason") in _TAKEN_AWAY or _since(status, "DisruptionTarget") is not None,
        ending=ending,
        check=_parsed(StateCheck, told),
        succeeded=status.get("phase") == "Succeeded" or (main is not None and main.get("exitCode") == 0),
        cause=_cause(status, over, ending),
        failure=_failure(status, over, ending, told),
        trouble=_trouble(status),
        unready=_since(status, "Ready", "False") or created,
        waits=_waits(status),
    )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _parsed(model: Any, text: str) -> Any:
    try:
        return model.model_validate_json(text)
    except ValidationError:
        return None


def _containers(status: Manifest) -> Iterator[Manifest]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _main(status: Manifest) -> Manifest:
    ours = (each for each in status.get("containerStatuses") or () if each.get("name") == MAIN_CONTAINER)
    return next(ours, {})


def _terminated(container: Manifest) -> Mapping[str, Any] | None:
    return (container.get("state") or {}).get("terminated")


def _runs(container: Manifest) -> bool:
    return (container.get("state") or {}).get("running") is not None


def _over(status: Manifest) -> list[Mapping[str, Any]]:
    """How the container ended that tells why the pod did. Containers beside ours may end as they like."""
    main = _terminated(_main(status))
    if main is not None:
        return [main]
    first = [_terminated(each) for each in status.get("initContainerStatuses") or ()]
    return [each for each in first if each is not None and each.get("exitCode") != 0]


def _ended(status: Manifest, main: Mapping[str, Any] | None, created: datetime) -> datetime | None:
    """Containers beside ours (a service mesh's, say) may go on for ever: the driver is what counts."""
    phase_over = status.get("phase") in {"Succeeded", "Failed"}
    if main is None and not phase_over:
        return None
    times = [each["finishedAt"] for each in map(_terminated, _containers(status)) if each and each.get("finishedAt")]
    if main is not None and main.get("finishedAt"):
        times = [main["finishedAt"]]
    return max((_time(text) for text in times), default=created)


def _since(status: Manifest, condition: str, value: str = "True") -> datetime | None:
    for each in status.get("conditions") or ():
        if each.get("type") == condition and each.get("status") == value:
            return _time(each["lastTransitionTime"]) if each.get("lastTransitionTime") else None
    return None


def _cause(status: Manifest, over: list[Mapping[str, Any]], ending: Ending | None) -> str:
    if ending is not None and ending.kind:
        return ending.kind
    reasons = [each.get("reason") or "" for each in over]
    return next((reason for reason in [*reasons, status.get("reason") or ""] if reason), "Error")


def _failure(status: Manifest, over: list[Mapping[str, Any]], ending: Ending | None, told: str) -> str:
    if ending is not None and ending.error:
        return cut(ending.error)
    exits = [
        f"exit code {each['exitCode']} ({each.get('reason') or 'no reason'})" for each in over if "exitCode" in each
    ]
    return cut(sentence(*exits[:1], status.get("reason") or "", status.get("message") or "", told))


def _trouble(status: Manifest) -> Trouble | None:
    for each in _containers(status):
        waiting = (each.get("state") or {}).get("waiting") or {}
        reason, message = waiting.get("reason") or "", waiting.get("message") or ""
        if reason in _PULLING:
            return Trouble(IMAGE_PULL, cut(sentence(reason, f"image {each.get('image', '?')}", message)))
        if reason not in _WAITS_ANYWAY:
            return Trouble(NOT_CREATED, cut(sentence(reason, message)))
    for each in status.get("conditions") or ():
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return Trouble(UNSCHEDULABLE, cut(sentence(each.get("reason") or "", each.get("message") or "")))
    return None


def _waits(status: Manifest) -> str:
    """The first container that does not run, else that ours runs and is not ready."""
    for each in _containers(status):
        waiting = (each.get("state") or {}).get("waiting")
        if waiting is not None:
            words = sentence(waiting.get("reason") or "", waiting.get("message") or "")
            return cut(f"container {each.get('name', '?')} waits: {words or 'no reason is told'}")
    for each in status.get("initContainerStatuses") or ():
        if _runs(each):
            return f"container {each.get('name', '?')} runs first"
    return "the driver runs and is not ready" if _runs(_main(status)) else "no container of it was started"
