"""Reads what a pod's manifest says about the pod."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
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
EVICTED_SECONDS = 30.0
"""How long after `deletionTimestamp` a pod may exist that was deleted because of a taint: a kubelet that answers has
ended its containers by then."""


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
        is_unreachable = self.disruption is not None and self.disruption.reason == NODE_UNREACHABLE
        stuck_at = self.stuck_at(seconds)
        return stuck_at is not None and (is_unreachable or now >= stuck_at)

    def stuck_at(self, seconds: float) -> datetime | None:
        """Return when the pod, if it is being deleted, counts as one that nothing ends: `seconds` after its
        `deletionTimestamp`, or EVICTED_SECONDS if its node is tainted and may be lost."""
        if self.deletion_time is None:
            return None
        is_evicted = self.disruption is not None and self.disruption.reason == _BY_TAINT
        return self.deletion_time + timedelta(seconds=min(seconds, EVICTED_SECONDS) if is_evicted else seconds)


def observe_pod(pod: Manifest) -> PodObservation:
    metadata, status = pod["metadata"], _PodStatus(pod.get("status") or {})
    main, created = status.main, _parse_time(metadata["creationTimestamp"])
    initialized_at = status.condition_time("Initialized")
    return PodObservation(
        name=metadata["name"],
        uid=metadata["uid"],
        created_at=created,
        deletion_time=_parse_time(metadata["deletionTimestamp"]) if metadata.get("deletionTimestamp") else None,
        ended_at=status.end_time(created) if status.has_ended else None,
        ready=status.condition("Ready") is not None,
        not_ready_since=status.condition_time("Ready", "False") or created,
        waiting_for=status.waiting_for,
        started=main.terminated is not None or main.is_running,
        initialized=main.terminated is not None or initialized_at is not None or main.is_running,
        steps=status.steps,
        disruption=status.disruption,
        ending=status.ending,
        check_result=_parse_model(StateCheck, status.reported),
        savepoint=_parse_model(SavepointResult, status.reported),
        succeeded=status.phase == "Succeeded" or main.has_succeeded,
        end_reason=status.end_reason,
        end_message=status.end_message,
        fault=status.fault,
    )


def _parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _parse_model(model: Any, text: str) -> Any:
    try:
        return model.model_validate_json(text)
    except ValidationError:
        return None


class _ContainerStatus:
    """One of a pod's `containerStatuses`, or of its `initContainerStatuses`."""

    def __init__(self, status: Manifest) -> None:
        state = status.get("state") or {}
        self.name, self.image = status.get("name", "?"), status.get("image", "?")
        self.waiting: Manifest | None = state.get("waiting")
        self.is_running = state.get("running") is not None
        self.terminated: Manifest | None = state.get("terminated")

    @property
    def has_succeeded(self) -> bool:
        return self.terminated is not None and self.terminated.get("exitCode") == 0


class _PodStatus:
    """A pod's `status`, as the API server has it."""

    def __init__(self, status: Manifest) -> None:
        self._conditions: Sequence[Manifest] = status.get("conditions") or ()
        self._reason, self._message = status.get("reason") or "", status.get("message") or ""
        self._init_containers = [_ContainerStatus(entry) for entry in status.get("initContainerStatuses") or ()]
        containers = [_ContainerStatus(entry) for entry in status.get("containerStatuses") or ()]
        self._containers = [*self._init_containers, *containers]
        self.phase = status.get("phase")
        self.main = next((entry for entry in containers if entry.name == MAIN_CONTAINER), _ContainerStatus({}))
        # The ends that explain the pod's end. Containers beside ours do not matter.
        self._terminations = [
            entry.terminated
            for entry in self._init_containers
            if entry.terminated is not None and not entry.has_succeeded
        ]
        if self.main.terminated is not None:
            self._terminations = [self.main.terminated]
        messages = ((termination.get("message") or "").strip() for termination in self._terminations)
        self.reported = next(filter(None, messages), "")
        """What the process of the pod has written as its last words."""
        self.ending: Ending | None = _parse_model(Ending, self.reported)

    def condition(self, kind: str, value: str = "True") -> Manifest | None:
        """Return the condition of this type, if it has this value."""
        matching = (entry for entry in self._conditions if (entry.get("type"), entry.get("status")) == (kind, value))
        return next(matching, None)

    def condition_time(self, kind: str, value: str = "True") -> datetime | None:
        since = (self.condition(kind, value) or {}).get("lastTransitionTime")
        return _parse_time(since) if since else None

    @property
    def steps(self) -> int:
        """How far the pod got. Each step counts once, because a restart is no progress."""
        conditions = ("PodScheduled", "Initialized", "Ready")
        steps = sum(self.condition_time(condition) is not None for condition in conditions)
        for container in self._containers:
            steps += (container.terminated is not None or container.is_running) + container.has_succeeded
        return steps

    @property
    def has_ended(self) -> bool:
        """Whether the pod has ended. Only the driver counts: containers beside it (a service mesh's, say) may run for
        ever."""
        return self.main.terminated is not None or self.phase in {"Succeeded", "Failed"}

    def end_time(self, default: datetime) -> datetime:
        """Return when the pod, which has ended, did so; `default` if no container says it."""
        if self.main.terminated is not None and self.main.terminated.get("finishedAt"):
            return _parse_time(self.main.terminated["finishedAt"])
        times = ((container.terminated or {}).get("finishedAt") for container in self._containers)
        return max((_parse_time(time) for time in times if time), default=default)

    @property
    def end_reason(self) -> str:
        if self.ending is not None and self.ending.kind:
            return self.ending.kind
        reasons = [termination.get("reason") or "" for termination in self._terminations]
        return next(filter(None, [*reasons, self._reason]), "Error")

    @property
    def end_message(self) -> str:
        if self.ending is not None and self.ending.error:
            return cut(self.ending.error)
        exits = [
            f"exit code {termination['exitCode']} ({termination.get('reason') or 'no reason'})"
            for termination in self._terminations
            if "exitCode" in termination
        ]
        return cut(sentence(*exits[:1], self._reason, self._message, self.reported))

    @property
    def disruption(self) -> Fault | None:
        """Why others ended or delete the pod, if Kubernetes says so."""
        if self._reason in _DISRUPTIONS:
            return Fault(self._reason, cut(self._message))
        condition = self.condition("DisruptionTarget")
        if condition is None:
            return None
        reason, message = condition.get("reason") or "DisruptionTarget", cut(condition.get("message") or "")
        # If its kubelet stopped answering, the control plane changes only the status of a ready pod's condition, which
        # has no reason; a kubelet that says that a pod is not ready writes one (`ContainersNotReady`, say).
        not_ready = self.condition("Ready", "False") or {}
        marked = None if not_ready.get("reason") else self.condition_time("Ready", "False")
        deleted = self.condition_time("DisruptionTarget")
        if reason == _BY_TAINT and marked is not None and deleted is not None and marked < deleted:
            return Fault(NODE_UNREACHABLE, f"the node has not answered since {marked:%H:%M:%S} UTC")
        return Fault(reason, message)

    @property
    def fault(self) -> Fault | None:
        """What keeps the pod from running."""
        for container in self._containers:
            waiting = container.waiting or {}
            reason, message = waiting.get("reason") or "", waiting.get("message") or ""
            if reason in _PULLING:
                return Fault(IMAGE_PULL, cut(sentence(reason, f"image {container.image}", message)))
            if reason not in _NORMAL_WAITS:
                return Fault(NOT_CREATED, cut(sentence(reason, message)))
        unscheduled = self.condition("PodScheduled", "False")
        if unscheduled is None:
            return None
        return Fault(UNSCHEDULABLE, cut(sentence(unscheduled.get("reason") or "", unscheduled.get("message") or "")))

    @property
    def waiting_for(self) -> str:
        """What the pod waits for: the first container that waits, else the init container that runs, else the
        driver."""
        for container in self._containers:
            if container.waiting is not None:
                words = sentence(container.waiting.get("reason") or "", container.waiting.get("message") or "")
                return cut(f"container {container.name} waits: {words or 'no reason is told'}")
        for container in self._init_containers:
            if container.is_running:
                return f"container {container.name} runs first"
        return "the driver runs and is not ready" if self.main.is_running else "no container of it was started"
