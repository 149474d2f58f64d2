"""What one reconcile of a job works on: everything that was observed, parsed once for all steps."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from joinery_operator.decision import EXECUTORS, Manifest, Observed
from joinery_operator.names import CHILD_PAUSE_ANNOTATION, PAUSE_ANNOTATION, ChildNames
from joinery_operator.reconcile.desired import DesiredJob, age, desired_job, stored_revision
from joinery_operator.reconcile.pods import PodObservation, observe_pod
from joinery_operator.reconcile.reasons import sentence
from joinery_operator.revision import JobRevision, replaced_owner, scale_of
from joinery_operator.settings import Settings
from joinery_runtime.job.crd import BLUE_GREEN, DriverAttempt, DriverStatus, Rollout, Scale, Status, Waiting
from joinery_runtime.job.model.base import Model
from joinery_runtime.job.model.draft import Loc, dig
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.model.resource import Upgrade

FINALIZER = "joinery.dev/delete-state"
StatusModel = TypeVar("StatusModel", bound=Model)
PauseScope = Literal["nothing", "rollouts", "everything"]
_SCOPES: tuple[PauseScope, ...] = ("everything", "rollouts", "nothing")


@dataclass(frozen=True)
class ReconcileContext:
    """`status` is the resource's status as this reconcile found it."""

    observed: Observed
    status: Status

    @property
    def now(self) -> datetime:
        return self.observed.now

    @property
    def settings(self) -> Settings:
        return self.observed.settings

    @property
    def metadata(self) -> Manifest:
        metadata: Manifest = self.observed.resource["metadata"]
        return metadata

    @property
    def spec(self) -> Manifest:
        """The spec as written, valid or not."""
        spec = self.observed.resource.get("spec")
        return spec if isinstance(spec, Mapping) else {}

    @property
    def suspended(self) -> bool:
        return self.spec.get("suspend") is True

    @property
    def pause_scope(self) -> PauseScope:
        """What the job's author has paused, at the job or at its BlueGreenJob."""
        scopes = {pause_scope(self.observed.resource), inherited_pause_scope(self.observed.resource)}
        return next(scope for scope in _SCOPES if scope in scopes)

    @property
    def unpause_text(self) -> str:
        """What ends the pause."""
        if pause_scope(self.observed.resource) == self.pause_scope:
            return f"The annotation {PAUSE_ANNOTATION} says so: `kubectl joinery rollout resume` removes it"
        owner = next(ref["name"] for ref in self.metadata["ownerReferences"] if ref.get("kind") == BLUE_GREEN.name)
        return f"Its BlueGreenJob is paused: `kubectl joinery rollout resume bgj/{owner}` ends that"

    @cached_property
    def upgrade(self) -> Upgrade:
        """`spec.upgrade`. While the resource is not a valid job: that of the revision being rolled out, or of the
        current one."""
        rollout, status = self.status.rollout, self.status
        job = self.desired.job or (self.revision(rollout.revision, rollout.image) if rollout else None)
        job = job or self.revision(status.revision, status.image)
        return job.job.spec.upgrade if job else Upgrade()

    @property
    def deadline_seconds(self) -> float:
        """How long a pod or a stage may make no progress."""
        return self.upgrade.progress_deadline / 1000

    @property
    def deadline_text(self) -> str:
        return f"{format_duration(self.upgrade.progress_deadline)} (upgrade.progressDeadline)"

    @cached_property
    def scale(self) -> Scale | None:
        """The scale that the resource asks for, whichever revision runs; None while it is not a valid job."""
        return None if self.desired.job is None else scale_of(self.desired.job.job)

    @property
    def replaced_owner(self) -> str | None:
        return replaced_owner(self.observed.resource)

    def names_another_owner(self, tried: str | None) -> bool:
        """Return whether the resource names an owner of its state to replace, other than what was tried."""
        return self.replaced_owner not in {None, tried}

    @property
    def finalizers(self) -> tuple[str, ...]:
        return tuple(self.metadata.get("finalizers") or ())

    @cached_property
    def names(self) -> ChildNames:
        return ChildNames(self.observed.resource)

    @cached_property
    def page_owner(self) -> Manifest | None:
        """The older job that has the address of this one's page; None if the address is this job's."""
        older = [job for job in self.observed.page_conflicts if age(job) < age(self.observed.resource)]
        return min(older, key=age, default=None)

    @cached_property
    def desired(self) -> DesiredJob:
        return desired_job(self.observed, self.status)

    @cached_property
    def drivers(self) -> dict[int, PodObservation]:
        """Driver pods by attempt. Pods are told apart by name, because others may have changed the labels."""
        return self._by_attempt(self.observed.children.pods)

    @cached_property
    def orphaned_drivers(self) -> dict[int, PodObservation]:
        """Driver pods of an earlier resource of this name, which Kubernetes deletes."""
        return self._by_attempt(self.observed.orphaned_drivers)

    @cached_property
    def checks(self) -> dict[str, PodObservation]:
        """Check pods by name, which holds revision and mode."""
        return {pod.name: pod for _, pod in self._pods(self.observed.children.pods, self.names.check(""))}

    def check(self, rollout: Rollout) -> PodObservation | None:
        return self.checks.get(self.names.check(rollout.revision, rollout.mode))

    @cached_property
    def delete_state(self) -> PodObservation | None:
        return dict(self._pods(self.observed.children.pods, self.names.delete_state)).get("")

    def is_inactive(self, pod: PodObservation) -> bool:
        """Return whether another pod may take over this pod's work."""
        return pod.ended_at is not None or pod.is_stuck(self.now, self.settings.stuck_seconds)

    def all_drivers_inactive(self) -> bool:
        """Return whether no driver pod can do anything any more."""
        return all(self.is_inactive(pod) for pod in (*self.drivers.values(), *self.orphaned_drivers.values()))

    def revision(self, revision: str | None, image: str | None) -> JobRevision | None:
        """Return what the pods of a revision are built from; None if that is gone, or if no revision is given."""
        if revision is None or image is None:
            return None
        if (revision, image) not in self._revisions:
            desired = self.desired.job
            fits = desired is not None and (desired.revision, desired.image) == (revision, image)
            self._revisions[revision, image] = desired if fits else stored_revision(self.observed, revision, image)
        return self._revisions[revision, image]

    def driver_status(self, attempt: DriverAttempt) -> DriverStatus | None:
        """Return what the driver of this attempt, which must be the one in the status, last reported."""
        reported = self.observed.driver
        return reported if reported is not None and reported.revision in {"", attempt.revision} else None

    def has_committed(self, attempt: DriverAttempt) -> bool:
        """Return whether the driver of this attempt, which must be the one in the status, has committed an epoch."""
        reported = self.driver_status(attempt)
        return reported is not None and reported.committed > 0

    def waiting(self, attempt: DriverAttempt) -> Waiting | None:
        """Return the outside system that this driver waits for."""
        reported = self.driver_status(attempt)
        return None if reported is None else reported.waiting

    def executor_faults(self, waiting: Waiting) -> str:
        """Return what keeps executors from running, if the driver waits for them: each fault once, with one of its
        pods."""
        if waiting.system != EXECUTORS:
            return ""
        pods = (observe_pod(pod) for _, pod in sorted(self.observed.executors.items()))
        faults = {pod.fault: pod.name for pod in pods if pod.fault is not None}
        return "; ".join(sentence(f"pod {name}", fault.reason, fault.message) for fault, name in faults.items())

    def not_ready_since(self, pod: PodObservation) -> datetime:
        """Since when a pod is known not to be ready. The clock of its node may be behind, so the pod's own word counts
        from when the job was last ready."""
        ready = next((condition for condition in self.status.conditions if condition.type == "Ready"), None)
        if ready is None:
            return pod.not_ready_since
        return max(pod.not_ready_since, ready.last_transition_time if ready.status == "False" else self.now)

    def has_elapsed(self, since: datetime, seconds: float) -> bool:
        return self.now >= since + timedelta(seconds=seconds)

    @cached_property
    def _revisions(self) -> dict[tuple[str, str], JobRevision | None]:
        return {}

    def _by_attempt(self, pods: Mapping[str, Manifest]) -> dict[int, PodObservation]:
        return {int(end): pod for end, pod in self._pods(pods, self.names.driver(0)[:-1]) if end.isdigit()}

    def _pods(self, pods: Mapping[str, Manifest], prefix: str) -> list[tuple[str, PodObservation]]:
        """Return pods whose names begin with the prefix, each with the rest of its name."""
        return [
            (name.removeprefix(prefix), observe_pod(pods[name])) for name in sorted(pods) if name.startswith(prefix)
        ]


def pause_scope(resource: Manifest) -> PauseScope:
    """Return what the resource's author has paused. A value that is unknown pauses everything: doing nothing harms
    least."""
    return _annotated_scope(resource, PAUSE_ANNOTATION)


def inherited_pause_scope(job: Manifest) -> PauseScope:
    """Return what is paused at the BlueGreenJob of a job."""
    references = job["metadata"].get("ownerReferences") or ()
    if not any(reference.get("controller") and reference.get("kind") == BLUE_GREEN.name for reference in references):
        return "nothing"  # of none, or of none any more
    return _annotated_scope(job, CHILD_PAUSE_ANNOTATION)


def _annotated_scope(resource: Manifest, annotation: str) -> PauseScope:
    value = (resource["metadata"].get("annotations") or {}).get(annotation, "")
    if value in {"", "false"}:
        return "nothing"
    return "rollouts" if value == "rollouts" else "everything"


def read_status(resource: Manifest) -> Status:
    """Return the resource's status, without fields that this release does not know or cannot read: another release may
    have written it."""
    return read_known_fields(Status, resource)


def read_known_fields(model: type[StatusModel], resource: Manifest) -> StatusModel:
    """Return the resource's status, without fields that this release does not know or cannot read. Of a list that is
    longer than this release allows, the last entries stay."""
    data: Any = dict(resource.get("status") or {})
    try:
        return model.model_validate(data)  # nearly always: a copy of each status was a third of a reconcile
    except ValidationError:
        data = deepcopy(data)
    while True:
        try:
            return model.model_validate(data)
        except ValidationError as error:
            errors = error.errors(include_url=False)
        too_long = [
            fault for fault in errors if fault["type"] == "too_long" and isinstance(dig(data, *fault["loc"]), list)
        ]
        if len(too_long) == len(errors):
            for fault in too_long:
                del dig(data, *fault["loc"])[: -fault["ctx"]["max_length"]]
            continue
        # All at once: a list may have thousands of entries, and each validation looks at all of them.
        unreadable = {_existing_path(data, fault["loc"]) for fault in errors if fault not in too_long}
        if () in unreadable:
            data = {}
            continue
        # Inner fields before outer ones, and later entries of a list before earlier ones, so that each path holds.
        for *outer, last in sorted(unreadable, reverse=True):
            del dig(data, *outer)[last]


def _existing_path(data: Any, at: Loc) -> Loc:
    """Return the path of the innermost field on the path that the data has. Of a field that is missing, that is what
    lacks it."""
    for depth, step in enumerate(at):
        exists = (isinstance(data, dict) and step in data) or (
            isinstance(data, list) and isinstance(step, int) and step < len(data)
        )
        if not exists:
            return at[:depth]
        data = data[step]
    return at
