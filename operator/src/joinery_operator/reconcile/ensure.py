"""What is to be made, repaired and deleted for the children to be as the status says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from joinery_operator.children import ChildError, check_pod, config_map, drifted, driver_pod, service
from joinery_operator.decision import Action, Create, Delete
from joinery_operator.names import labels, owner_reference
from joinery_operator.observed import Manifest
from joinery_operator.reconcile.facts import PodFacts, Trouble
from joinery_operator.reconcile.job import Job, stored
from joinery_operator.reconcile.look import Look
from joinery_operator.reconcile.plan import Plan
from joinery_operator.reconcile.rollout import check_due
from joinery_runtime.job.crd import Attempt, Rollout, Status

LOST = "RevisionLost"
TEMPLATE = "Incomplete"


@dataclass(frozen=True, slots=True)
class Ensured:
    """`blocked`: why the pod that should run cannot be made."""

    actions: tuple[Action, ...]
    blocked: Trouble | None = None


def ensured(look: Look, status: Status, plan: Plan | None) -> Ensured:
    """For a resource that is not being deleted. `plan` is what is to run by the status."""
    attempt = status.driver
    planned = attempt if attempt is not None and plan is not None and plan.fits(attempt) else None
    found: list[Action] = [*_gone_drivers(look, planned)]
    blocked = None
    if planned is not None and _to_create(look, planned):
        made = _driver(look, planned)
        if isinstance(made, Trouble):
            blocked = made
        else:
            found += made
    elif planned is not None:
        found += _kept(look, planned)
    found += [*_check(look, status), *_config_maps(look, status)]
    found += _deleted([look.delete_state] if look.delete_state else [])
    # Last: a Service of that name that is somebody else's keeps no driver from running.
    found += _service(look) if status.revision else ()
    return Ensured(tuple(_once(found)), blocked)


def _to_create(look: Look, attempt: Attempt) -> bool:
    """Whether the pod of the current attempt is still to be created."""
    unseen = attempt.outcome is None and attempt.pod_uid is None and attempt.number not in look.drivers
    return unseen and look.all_quiet()


def _once(actions: Iterable[Action]) -> Iterator[Action]:
    """Two pods of one revision share its ConfigMap."""
    created = set()
    for action in actions:
        if isinstance(action, Create):
            key = (action.manifest["kind"], action.manifest["metadata"]["name"])
            if key in created:
                continue
            created.add(key)
        yield action


def stopped(pods: Iterable[PodFacts]) -> Iterator[Action]:
    """Graceful ends: a driver finishes its epoch."""
    return _deleted(pod for pod in pods if pod.ended is None)


def forced(look: Look, pods: Iterable[PodFacts]) -> Iterator[Action]:
    """For pods on dead nodes that hold nothing: what they do may be done twice, and their names are needed."""
    for pod in pods:
        if pod.ended is None and pod.stuck(look.now, look.settings.stuck_seconds):
            yield Delete("Pod", pod.name, pod.uid, grace_seconds=0)


def job_config_map(look: Look, job: Job) -> Iterator[Action]:
    """Raises ChildError."""
    name = look.names.config_map(job.revision)
    found = look.observed.children.config_maps.get(name)
    if found is None:
        yield Create(config_map(*job.parts))
    else:
        about = labels(look.observed.resource, "config", revision=job.revision)
        yield from _made(_outside(look, "ConfigMap", name, about), found)


def lost(look: Look, revision: str) -> Trouble:
    name = look.names.config_map(revision)
    return Trouble(
        LOST,
        f"revision {revision} cannot be started: its ConfigMap {name} is gone or of no use to this release, and the "
        "resource asks for another job now. Set the resource back to what ran, or annotate it with "
        "joinery.dev/restartedAt to have what it asks for now tried again",
    )


def _service(look: Look) -> Iterator[Action]:
    expected = service(look.observed.resource)
    yield from _made(expected, look.observed.children.services.get(expected["metadata"]["name"]))


def _made(expected: Manifest, found: Manifest | None) -> Iterator[Action]:
    if found is None:
        yield Create(expected)
    elif not found["metadata"].get("deletionTimestamp") and (patch := drifted(expected, found)):
        yield patch


def _deleted(pods: Iterable[PodFacts]) -> Iterator[Action]:
    return (Delete("Pod", pod.name, pod.uid) for pod in pods if pod.deleted is None)


def _gone_drivers(look: Look, attempt: Attempt | None) -> Iterator[Action]:
    """Pods that are not to run, and ended ones whose logs nobody needs: the newest is kept until the next is ready."""
    wanted = attempt.number if attempt is not None else None
    ended = [number for number, pod in look.drivers.items() if pod.ended is not None]
    runs_well = attempt is not None and attempt.outcome is None and attempt.ready is not None
    keep = None if runs_well else max(ended, default=None)
    yield from _deleted(pod for number, pod in look.drivers.items() if number not in {wanted, keep})


def _driver(look: Look, attempt: Attempt) -> list[Action] | Trouble:
    job = look.job(attempt.revision, attempt.image)
    if job is None:
        return lost(look, attempt.revision)
    model, resource, revision, image, settings, templates = job.parts
    try:
        pod = driver_pod(
            model,
            resource,
            attempt.number,
            revision,
            image,
            settings,
            templates,
            migrate=attempt.migrate,
            anew=attempt.anew,
            restore=attempt.restore,
        )
        return [*job_config_map(look, job), Create(pod)]
    except ChildError as error:
        return Trouble(TEMPLATE, str(error))


def _kept(look: Look, attempt: Attempt) -> Iterator[Action]:
    name = look.names.driver(attempt.number)
    found = look.observed.children.pods.get(name)
    if found is not None:
        about = labels(look.observed.resource, "driver", attempt.number, attempt.revision)
        yield from _made(_outside(look, "Pod", name, about), found)


def _outside(look: Look, kind: str, name: str, about: Manifest) -> Manifest:
    """All of a pod or ConfigMap that can be repaired; what is inside cannot be changed."""
    owners = [owner_reference(look.observed.resource)]
    return {"kind": kind, "metadata": {"name": name, "labels": about, "ownerReferences": owners}}


def _check(look: Look, status: Status) -> Iterator[Action]:
    rollout = status.rollout
    checked = look.names.check(rollout.revision, rollout.mode) if rollout and rollout.stage == "Checking" else None
    yield from _deleted(pod for name, pod in look.checks.items() if name != checked or check_due(look, pod))
    yield from forced(look, look.checks.values())
    if rollout is None or checked is None or checked in look.checks:
        return
    job = look.job(rollout.revision, rollout.image)
    if job is None or job.mode != rollout.mode or _other_mode_is_checked(look, rollout):
        return
    try:
        yield from [*_check_config_map(look, job), Create(check_pod(*job.parts))]
    except ChildError:
        return  # the deadline of the check tells


def _other_mode_is_checked(look: Look, rollout: Rollout) -> bool:
    """While its pod is there, a kubelet may keep its (immutable) ConfigMap, and give it to the next pod as well."""
    return any(name.startswith(look.names.check(rollout.revision)) for name in look.checks)


def _check_config_map(look: Look, job: Job) -> Iterator[Action]:
    """The mode is no part of a revision, but the check reads it from the file: one of the other mode is replaced."""
    name = look.names.config_map(job.revision)
    found = look.observed.children.config_maps.get(name)
    there = stored(look.observed, job.revision, job.image)
    if found is None or (there is not None and there.mode == job.mode):
        yield from job_config_map(look, job)
        return
    yield Delete("ConfigMap", name, found["metadata"]["uid"])
    yield Create(config_map(*job.parts))


def _config_maps(look: Look, status: Status) -> Iterator[Action]:
    """Lost ones are made again as long as it is known what was in them; those of other revisions go."""
    rollout, attempt = status.rollout, status.driver
    named = [(status.revision, status.image)]
    named += [(each.revision, each.image) for each in (rollout, attempt) if each is not None]
    needed = {look.names.config_map(revision) for revision, _ in named if revision}
    there = look.observed.children.config_maps
    asked = look.wanted.job
    if asked is not None and (asked.revision, asked.image) == (status.revision, status.image):
        yield from job_config_map(look, asked)
    for name, found in there.items():
        metadata = found["metadata"]
        if name not in needed and not metadata.get("deletionTimestamp"):
            yield Delete("ConfigMap", name, metadata["uid"])
