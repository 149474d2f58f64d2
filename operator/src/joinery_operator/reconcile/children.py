"""Decides what to create, repair and delete so that the children are as the status says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from joinery_operator.decision import Action, ChildKind, Create, Delete, Manifest
from joinery_operator.manifests import (
    ManifestError,
    check_pod,
    config_map,
    driver_pod,
    network_policy,
    page_ingress,
    page_route,
    repair_patch,
    restore_pod,
    scale_annotation,
    service,
)
from joinery_operator.names import SCALE_ANNOTATION, labels, owner_reference
from joinery_operator.reconcile.context import ReconcileContext
from joinery_operator.reconcile.desired import stored_revision
from joinery_operator.reconcile.driver import DriverPlan
from joinery_operator.reconcile.pods import PodObservation
from joinery_operator.reconcile.reasons import DELETE_REFUSED, INCOMPLETE, REVISION_LOST, Fault, cut
from joinery_operator.reconcile.rollout import is_check_due
from joinery_operator.revision import JobRevision
from joinery_runtime.job import ShadowComparison
from joinery_runtime.job.crd import DriverAttempt, Status


@dataclass(frozen=True, slots=True)
class ChildActions:
    """The actions on children. `blocked`: why the pod that should run cannot be created."""

    actions: tuple[Action, ...]
    blocked: Fault | None = None

    @property
    def creates(self) -> bool:
        return any(isinstance(action, Create) for action in self.actions)


def deletion_fault(actions: Iterable[Action], refused: Mapping[str, str]) -> Fault | None:
    """Return the fault of children that are still to be deleted, although a deletion failed before
    (`Observed.delete_refused`)."""
    answers = [refused[action.uid] for action in actions if isinstance(action, Delete) and action.uid in refused]
    return Fault(DELETE_REFUSED, cut("; ".join(answers))) if answers else None


def child_actions(ctx: ReconcileContext, status: Status, plan: DriverPlan | None) -> ChildActions:
    """Return the actions for a resource that is not being deleted. `plan` is the driver that should run according to
    the status."""
    attempt = status.driver
    planned = attempt if attempt is not None and plan is not None and plan.fits(attempt) else None
    actions: list[Action] = [*_delete_unplanned_drivers(ctx, planned)]
    blocked = None
    unseen = (
        planned is not None
        and planned.outcome is None
        and planned.pod_uid is None
        and planned.number not in ctx.drivers
    )
    if planned is not None and unseen and ctx.all_drivers_inactive():
        created = _create_driver(ctx, planned)
        if isinstance(created, Fault):
            blocked = created
        else:
            actions += created
    elif planned is not None:
        actions += _repair_driver(ctx, planned)
    actions += [*_check_job(ctx, status), *_config_maps(ctx, status)]
    actions += _delete_pods([ctx.delete_state] if ctx.delete_state else [])
    if status.revision:
        actions += _ensure_access(ctx)
    return ChildActions(tuple(_drop_repeated_creates(actions)), blocked)


def _drop_repeated_creates(actions: Iterable[Action]) -> Iterator[Action]:
    """Drop repeated creates: two pods of one revision share its ConfigMap."""
    created = set()
    for action in actions:
        if isinstance(action, Create):
            key = (action.kind, action.name)
            if key in created:
                continue
            created.add(key)
        yield action


def _ensure_optional(kind: ChildKind, expected: Manifest | None, actual: Manifest | None) -> Iterator[Action]:
    """Ensure an optional child. If the installation does not want it (`expected` None), deletes an existing one."""
    if expected is not None:
        yield from _ensure_child(expected, actual)
    elif actual is not None and not actual["metadata"].get("deletionTimestamp"):
        yield Delete(kind, actual["metadata"]["name"], actual["metadata"]["uid"])


def _ensure_access(ctx: ReconcileContext) -> Iterator[Action]:
    """Return the objects that give access to the job's pods, and the one that restricts it."""
    resource, settings, names, children = ctx.observed.resource, ctx.settings, ctx.names, ctx.observed.children
    policy = network_policy(resource, settings) if settings.status_from else None
    yield from _ensure_optional("NetworkPolicy", policy, children.network_policies.get(names.network_policy))
    # After the driver and the policy, so that a foreign Service of this name does not keep a driver from running.
    yield from _ensure_child(service(resource), children.services.get(names.service))
    ingress = page_ingress(resource, settings) if settings.page_ingress and not ctx.page_owner else None
    yield from _ensure_optional("Ingress", ingress, children.ingresses.get(names.page))
    route = page_route(resource, settings) if settings.page_route and not ctx.page_owner else None
    yield from _ensure_optional("HTTPRoute", route, children.http_routes.get(names.page))


def stop(pods: Iterable[PodObservation]) -> Iterator[Action]:
    """Delete pods gracefully: a driver finishes its epoch."""
    return _delete_pods(pod for pod in pods if pod.ended_at is None)


def make_room(ctx: ReconcileContext, pods: Iterable[PodObservation]) -> Iterator[Action]:
    """Delete pods that have ended, if another one could not be created: a quota of `count/pods` counts them too."""
    return _delete_pods(pod for pod in pods if ctx.observed.create_refused and pod.ended_at is not None)


def delete_stuck(ctx: ReconcileContext, pods: Iterable[PodObservation]) -> Iterator[Action]:
    """Force-deletes pods on dead nodes, because their names are needed. Their work may be done twice."""
    for pod in pods:
        if pod.ended_at is None and pod.is_stuck(ctx.now, ctx.settings.stuck_seconds):
            yield Delete("Pod", pod.name, pod.uid, grace_seconds=0)


def job_config_map(ctx: ReconcileContext, revision: JobRevision) -> Iterator[Action]:
    """Ensure the revision's ConfigMap. Raises ManifestError."""
    name = ctx.names.config_map(revision.revision)
    actual = ctx.observed.children.config_maps.get(name)
    if actual is None:
        yield Create(config_map(revision))
    else:
        expected_labels = labels(ctx.observed.resource, "config", revision=revision.revision)
        yield from _ensure_child(_repairable_fields(ctx, "ConfigMap", name, expected_labels), actual)


def _ensure_child(expected: Manifest, actual: Manifest | None) -> Iterator[Action]:
    if actual is None:
        yield Create(expected)
    elif not actual["metadata"].get("deletionTimestamp") and (patch := repair_patch(expected, actual)):
        yield patch


def _delete_pods(pods: Iterable[PodObservation]) -> Iterator[Action]:
    return (Delete("Pod", pod.name, pod.uid) for pod in pods if pod.deletion_time is None)


def _delete_unplanned_drivers(ctx: ReconcileContext, attempt: DriverAttempt | None) -> Iterator[Action]:
    """Delete drivers that should not run, and ended ones; the newest ended one stays for its logs until the next
    driver is ready, or until a pod cannot be created: a quota may leave no room for both."""
    planned_number = attempt.number if attempt is not None else None
    ended = [number for number, pod in ctx.drivers.items() if pod.ended_at is not None]
    runs_well = attempt is not None and attempt.outcome is None and attempt.ready is not None
    keep = None if runs_well or ctx.observed.create_refused else max(ended, default=None)
    yield from _delete_pods(pod for number, pod in ctx.drivers.items() if number not in {planned_number, keep})


def _create_driver(ctx: ReconcileContext, attempt: DriverAttempt) -> list[Action] | Fault:
    revision = ctx.revision(attempt.revision, attempt.image)
    if revision is None:
        return Fault(
            REVISION_LOST,
            f"revision {attempt.revision} cannot be started: its ConfigMap {ctx.names.config_map(attempt.revision)} is "
            "missing or of no use to this release, and the resource asks for another job now. Set the resource back to "
            "what ran, or annotate it with joinery.dev/restartedAt to have what it asks for now tried again",
        )
    try:
        pod = (
            restore_pod(revision, attempt.number, attempt.restore)
            if attempt.restore
            else driver_pod(
                revision,
                attempt.number,
                ctx.scale,
                executors=ctx.status.scaling.executors if ctx.status.scaling else None,
                migrate=attempt.migrate,
                abandon_state=attempt.anew,
            )
        )
        return [*job_config_map(ctx, revision), Create(pod)]
    except ManifestError as error:
        return Fault(INCOMPLETE, str(error))


def _repair_driver(ctx: ReconcileContext, attempt: DriverAttempt) -> Iterator[Action]:
    name = ctx.names.driver(attempt.number)
    actual = ctx.observed.children.pods.get(name)
    if actual is not None:
        expected_labels = labels(ctx.observed.resource, "driver", attempt.number, attempt.revision)
        expected = _repairable_fields(ctx, "Pod", name, expected_labels)
        if ctx.scale is not None and SCALE_ANNOTATION in (actual["metadata"].get("annotations") or {}):
            expected["metadata"]["annotations"] = scale_annotation(ctx.scale)
        yield from _ensure_child(expected, actual)


def _repairable_fields(ctx: ReconcileContext, kind: str, name: str, expected_labels: Manifest) -> dict[str, Any]:
    """Return what can be repaired in a pod or ConfigMap: labels and owner."""
    owners = [owner_reference(ctx.observed.resource)]
    return {"kind": kind, "metadata": {"name": name, "labels": expected_labels, "ownerReferences": owners}}


def _check_job(ctx: ReconcileContext, status: Status) -> Iterator[Action]:
    rollout = status.rollout
    checked = ctx.names.check(rollout.revision, rollout.mode) if rollout and rollout.stage == "Checking" else None
    yield from _delete_pods(pod for name, pod in ctx.checks.items() if name != checked or is_check_due(ctx, pod))
    yield from delete_stuck(ctx, ctx.checks.values())
    if rollout is None or checked is None or checked in ctx.checks:
        return
    revision = ctx.revision(rollout.revision, rollout.image)
    # While the other mode's check pod exists, a kubelet may cache its (immutable) ConfigMap, and give it to the next
    # pod as well.
    other_mode_is_checked = any(name.startswith(ctx.names.check(rollout.revision)) for name in ctx.checks)
    if revision is None or revision.mode != rollout.mode or other_mode_is_checked:
        return
    try:
        yield from [*_check_config_map(ctx, revision), Create(check_pod(revision))]
    except ManifestError:
        return  # the check's deadline reports it


def _check_config_map(ctx: ReconcileContext, revision: JobRevision) -> Iterator[Action]:
    """Ensure the check's ConfigMap. How a job takes over is not part of a revision, but the check reads it from the
    file: a ConfigMap with a different setting is replaced."""
    name = ctx.names.config_map(revision.revision)
    actual = ctx.observed.children.config_maps.get(name)
    stored = stored_revision(ctx.observed, revision.revision, revision.image)
    if actual is None or (stored is not None and _upgrade_settings(stored) == _upgrade_settings(revision)):
        yield from job_config_map(ctx, revision)
        return
    yield Delete("ConfigMap", name, actual["metadata"]["uid"])
    yield Create(config_map(revision))


def _upgrade_settings(revision: JobRevision) -> tuple[str, ShadowComparison]:
    upgrade = revision.job.spec.upgrade
    return upgrade.mode, upgrade.shadow


def _config_maps(ctx: ReconcileContext, status: Status) -> Iterator[Action]:
    """Create lost ConfigMaps again if their content is known, and delete those of revisions no longer needed."""
    rollout, attempt = status.rollout, status.driver
    named = [(status.revision, status.image)]
    named += [(source.revision, source.image) for source in (rollout, attempt) if source is not None]
    if rollout is not None and rollout.restorer is not None:
        named.append((rollout.restorer.revision, rollout.restorer.image))
    named += [(past.revision, past.image) for past in status.history]
    needed = {ctx.names.config_map(revision) for revision, _ in named if revision}
    config_maps = ctx.observed.children.config_maps
    desired = ctx.desired.job
    if desired is not None and (desired.revision, desired.image) == (status.revision, status.image):
        yield from job_config_map(ctx, desired)
    for name, manifest in config_maps.items():
        metadata = manifest["metadata"]
        if name not in needed and not metadata.get("deletionTimestamp"):
            yield Delete("ConfigMap", name, metadata["uid"])
