"""Reads what a pod's manifest says about the pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from joinery_operator.decision import Manifest
from joinery_operator.manifests import MAIN_CONTAINER
from joinery_operator.reconcile.reasons import (
    IMAGE_PULL,
    NODE_UNREACHABLE,
    NOT_CREATED,
    UNSCHEDULABLE,
    Fault,
    cut,
    sentence,
)
from joinery_runtime.job.crd import Ending, SavepointResult, StateCheck

_PULLING = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
_NORMAL_WAITS = {"ContainerCreating", "PodInitializing", ""}
# The values of `status.reason` that a kubelet or the control plane sets when it evicts or ends a pod.
_DISRUPTIONS = {"Evicted", "NodeShutdown", "Terminated", "Shutdown", "NodeLost", "Preempting", "NodeAffinity"}
_BY_TAINT = "DeletionByTaintManager"


@dataclass(frozen=True, slots=True)
class PodObservation:
    """What `reconcile` reads of a pod."""

    name: str
    uid: str
    created_at: datetime
    deletion_time: datetime | None
    """When Kubernetes expects the pod to be gone (`deletionTimestamp`)."""
    ended_at: datetime | None
    """When the main container ended for good, by the clock of its node: no container of ours runs any more."""
    ready: bool
    not_ready_since: datetime
    """By the clock of the pod's node. Meaningful only if the pod is not ready."""
    waiting_for: str
    """What the pod does while it is not ready, in words."""
    started: bool
    """The main container runs, or has run."""
    initialized: bool
    """The init containers have succeeded."""
    steps: int
    """How far the pod got, to compare with its own earlier value: on a node, containers started, containers succeeded,
    ready."""
    disruption: Fault | None
    """Why others ended or delete the pod, if Kubernetes says so: an eviction, a preemption, a taint."""
    ending: Ending | None
    check_result: StateCheck | None
    savepoint: SavepointResult | None
    succeeded: bool
    end_reason: str
    end_message: str
    fault: Fault | None

    def is_stuck(self, now: datetime, seconds: float) -> bool:
        """Return whether the pod is being deleted and nothing ends it: its node does not answer, or the pod should have
        been deleted for this long already."""
        if self.deletion_time is None:
            return False
        is_unreachable = self.disruption is not None and self.disruption.reason == NODE_UNREACHABLE
        return is_unreachable or (now - self.deletion_time).total_seconds() >= seconds


def observe_pod(pod: Manifest) -> PodObservation:
    metadata, status = pod["metadata"], pod.get("status") or {}
    main_status = _main_status(status)
    main = _termination_of(main_status)
    terminations = _explaining_terminations(status, main)
    reported = next((text for termination in terminations if (text := (termination.get("message") or "").strip())), "")
    ending = _parse_model(Ending, reported)
    created = _parse_time(metadata["creationTimestamp"])
    return PodObservation(
        name=metadata["name"],
        uid=metadata["uid"],
        created_at=created,
        deletion_time=_parse_time(metadata["deletionTimestamp"]) if metadata.get("deletionTimestamp") else None,
        ended_at=_ended_at(status, main, created),
        ready=_condition_of(status, "Ready") is not None,
        not_ready_since=_condition_time(status, "Ready", "False") or created,
        waiting_for=_waiting_for(status),
        started=main is not None or _is_running(main_status),
        initialized=main is not None or _condition_time(status, "Initialized") is not None or _is_running(main_status),
        steps=_count_steps(status),
        disruption=_disruption_fault(status),
        ending=ending,
        check_result=_parse_model(StateCheck, reported),
        savepoint=_parse_model(SavepointResult, reported),
        succeeded=status.get("phase") == "Succeeded" or (main is not None and main.get("exitCode") == 0),
        end_reason=_end_reason(status, terminations, ending),
        end_message=_end_message(status, terminations, ending, reported),
        fault=_find_fault(status),
    )


def _parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _parse_model(model: Any, text: str) -> Any:
    try:
        return model.model_validate_json(text)
    except ValidationError:
        return None


def _container_statuses(status: Manifest) -> Iterator[Manifest]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _main_status(status: Manifest) -> Manifest:
    main_containers = (
        container for container in status.get("containerStatuses") or () if container.get("name") == MAIN_CONTAINER
    )
    return next(main_containers, {})


def _count_steps(status: Manifest) -> int:
    """Count the pod's steps. Each counts once, because a restart is no progress."""
    steps = sum(
        _condition_time(status, condition) is not None for condition in ("PodScheduled", "Initialized", "Ready")
    )
    for container in _container_statuses(status):
        ended = _termination_of(container)
        steps += (ended is not None or _is_running(container)) + (ended is not None and ended.get("exitCode") == 0)
    return steps


def _termination_of(container: Manifest) -> Mapping[str, Any] | None:
    return (container.get("state") or {}).get("terminated")


def _is_running(container: Manifest) -> bool:
    return (container.get("state") or {}).get("running") is not None


def _explaining_terminations(status: Manifest, main: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the ends of containers that explain the pod's end. Containers beside ours do not matter."""
    if main is not None:
        return [main]
    first = [_termination_of(container) for container in status.get("initContainerStatuses") or ()]
    return [termination for termination in first if termination is not None and termination.get("exitCode") != 0]


def _ended_at(status: Manifest, main: Mapping[str, Any] | None, created: datetime) -> datetime | None:
    """Return when the pod ended. Only the driver counts: containers beside it (a service mesh's, say) may run for
    ever."""
    phase_over = status.get("phase") in {"Succeeded", "Failed"}
    if main is None and not phase_over:
        return None
    times = [
        termination["finishedAt"]
        for termination in map(_termination_of, _container_statuses(status))
        if termination and termination.get("finishedAt")
    ]
    if main is not None and main.get("finishedAt"):
        times = [main["finishedAt"]]
    return max((_parse_time(text) for text in times), default=created)


def _condition_of(status: Manifest, condition: str, value: str = "True") -> Manifest | None:
    for pod_condition in status.get("conditions") or ():
        if pod_condition.get("type") == condition and pod_condition.get("status") == value:
            return pod_condition  # type: ignore[no-any-return]
    return None


def _condition_time(status: Manifest, condition: str, value: str = "True") -> datetime | None:
    since = (_condition_of(status, condition, value) or {}).get("lastTransitionTime")
    return _parse_time(since) if since else None


def _disruption_fault(status: Manifest) -> Fault | None:
    if status.get("reason") in _DISRUPTIONS:
        return Fault(status["reason"], cut(status.get("message") or ""))
    condition = _condition_of(status, "DisruptionTarget")
    if condition is None:
        return None
    reason, message = condition.get("reason") or "DisruptionTarget", cut(condition.get("message") or "")
    # If its kubelet stopped answering, the control plane changes only the status of a ready pod's condition, which has
    # no reason; a kubelet that says that a pod is not ready writes one (`ContainersNotReady`, say).
    not_ready = _condition_of(status, "Ready", "False") or {}
    marked = None if not_ready.get("reason") else _condition_time(status, "Ready", "False")
    deleted = _condition_time(status, "DisruptionTarget")
    if reason == _BY_TAINT and marked is not None and deleted is not None and marked < deleted:
        return Fault(NODE_UNREACHABLE, f"the node has not answered since {marked:%H:%M:%S} UTC")
    return Fault(reason, message)


def _end_reason(status: Manifest, terminations: list[Mapping[str, Any]], ending: Ending | None) -> str:
    if ending is not None and ending.kind:
        return ending.kind
    reasons = [termination.get("reason") or "" for termination in terminations]
    return next((reason for reason in [*reasons, status.get("reason") or ""] if reason), "Error")


def _end_message(status: Manifest, terminations: list[Mapping[str, Any]], ending: Ending | None, reported: str) -> str:
    if ending is not None and ending.error:
        return cut(ending.error)
    exits = [
        f"exit code {termination['exitCode']} ({termination.get('reason') or 'no reason'})"
        for termination in terminations
        if "exitCode" in termination
    ]
    return cut(sentence(*exits[:1], status.get("reason") or "", status.get("message") or "", reported))


def _find_fault(status: Manifest) -> Fault | None:
    for container in _container_statuses(status):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason, message = waiting.get("reason") or "", waiting.get("message") or ""
        if reason in _PULLING:
            return Fault(IMAGE_PULL, cut(sentence(reason, f"image {container.get('image', '?')}", message)))
        if reason not in _NORMAL_WAITS:
            return Fault(NOT_CREATED, cut(sentence(reason, message)))
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return Fault(UNSCHEDULABLE, cut(sentence(condition.get("reason") or "", condition.get("message") or "")))
    return None


def _waiting_for(status: Manifest) -> str:
    """Return what the pod waits for: the first container that waits, else the init container that runs, else the
    driver."""
    for container in _container_statuses(status):
        waiting = (container.get("state") or {}).get("waiting")
        if waiting is not None:
            words = sentence(waiting.get("reason") or "", waiting.get("message") or "")
            return cut(f"container {container.get('name', '?')} waits: {words or 'no reason is told'}")
    for container in status.get("initContainerStatuses") or ():
        if _is_running(container):
            return f"container {container.get('name', '?')} runs first"
    return "the driver runs and is not ready" if _is_running(_main_status(status)) else "no container of it was started"
