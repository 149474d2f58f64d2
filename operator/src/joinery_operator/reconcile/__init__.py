"""`reconcile`: decides what to do about a job from what was observed of it. Pure: no clock, no API.

    base      failures and a rejection are dropped if the resource changed  (`record_target`)
    driver    what became of the driver's pod                               (`observe_attempt`)
    rollout   another revision, one step further by `rollout_table`         (`advance_rollout`)
    driver    the next pod's number, when one is due                        (`next_attempt`)
    children  created, repaired and deleted as the status says
    status    the phase, conditions and figures that report all of that

Each step is a function from a status to a status, so that a decision is written in full before any of it is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from joinery_operator.decision import (
    EXECUTORS,
    Action,
    Decision,
    Observed,
    ObservedBlueGreen,
    ObservedEnd,
    ObservedSavepoint,
)
from joinery_operator.manifests import page_url
from joinery_operator.names import labels, selector
from joinery_operator.reconcile import deletion, savepoint
from joinery_operator.reconcile.blue_green import reconcile_blue_green
from joinery_operator.reconcile.children import child_actions, deletion_fault
from joinery_operator.reconcile.conditions import events, with_conditions, with_late_rows, with_pause
from joinery_operator.reconcile.context import FINALIZER, ReconcileContext, read_status
from joinery_operator.reconcile.driver import next_attempt, observe_attempt, planned_driver
from joinery_operator.reconcile.figures import due_status, next_report, with_figures
from joinery_operator.reconcile.phase import JobPhase, deletion_phase, job_phase
from joinery_operator.reconcile.places import state_place_text, written_outputs
from joinery_operator.reconcile.reasons import INCOMPLETE, NOT_ALLOWED
from joinery_operator.reconcile.rollout import (
    advance_rollout,
    record_hold,
    record_progress,
    record_proof,
    record_target,
    without_deadline,
)
from joinery_operator.reconcile.rollout_observation import deadline
from joinery_runtime.job.crd import BLUE_GREEN, SAVEPOINT, Status

__all__ = ["FINALIZER", "reconcile"]

_SOONEST_SECONDS = 0.5
_NAMESPACE_SECONDS = 60.0


def reconcile(observed: Observed | ObservedSavepoint | ObservedBlueGreen | ObservedEnd) -> Decision:
    """Decide. Never raises for anything that a user, a cluster or another release may have written."""
    if isinstance(observed, ObservedSavepoint):
        return savepoint.reconcile_savepoint(observed)
    if isinstance(observed, ObservedBlueGreen):
        return reconcile_blue_green(observed)
    if isinstance(observed, ObservedEnd):
        last_copy = observed.resource
        if last_copy["kind"] == BLUE_GREEN.name:  # its jobs say what they leave
            return Decision(None)
        left_behind = (
            savepoint.left_behind_events if last_copy["kind"] == SAVEPOINT.name else deletion.left_behind_events
        )
        return Decision(None, events=tuple(left_behind(last_copy)))
    status = read_status(observed.resource)
    if observed.permissions_end or observed.resource["metadata"].get("deletionTimestamp"):
        return _reconcile_deleted(ReconcileContext(deletion.without_lost_templates(observed), status))
    ctx = ReconcileContext(observed, status)
    if ctx.pause_scope == "everything":  # neither what the resource asks for nor its children count
        return _decision(ctx, with_pause(ctx, without_deadline(ctx.status)), ())
    return _reconcile_live(ctx)


def _reconcile_live(ctx: ReconcileContext) -> Decision:
    status = record_target(ctx, ctx.status)
    status = observe_attempt(ctx, status, planned_driver(ctx, status))
    status = record_progress(ctx, record_hold(ctx, record_proof(ctx, status)))
    status = advance_rollout(ctx, status)
    status = next_attempt(ctx, status, planned_driver(ctx, status))
    plan = planned_driver(ctx, status)
    children = child_actions(ctx, status, plan)
    if status.revision:
        resource = ctx.observed.resource
        page = None if ctx.page_owner else page_url(resource, ctx.settings)
        status = status.model_copy(update={"page": page, "selector": selector(labels(resource, "executor"))})
    if (current := ctx.revision(status.revision, status.image)) is not None:
        update = {"state_place": state_place_text(current.job.spec), "outputs": written_outputs(current.job)}
        status = status.model_copy(update=update)
    stays = deletion_fault(children.actions, ctx.observed.delete_refused)
    phase = job_phase(ctx, status, plan, children.blocked, creates=children.creates, undeleted=stays)
    status = with_conditions(ctx, status, phase)
    return _decision(ctx, status, (*deletion.finalizer_actions(ctx), *children.actions))


def _reconcile_deleted(ctx: ReconcileContext) -> Decision:
    """Delete the job's state before the job. A job whose namespace is being deleted is let go at once: Kubernetes also
    deletes the operator's RoleBinding there, perhaps before the job. Kubernetes ends the pods."""
    if FINALIZER not in ctx.finalizers:
        return Decision(None)
    if ctx.observed.permissions_end:
        released = deletion.release(ctx, ctx.status)
        message = (
            f"namespace {ctx.metadata['namespace']} is being deleted, and no pod can delete the state, which stays"
        )
        status = with_conditions(ctx, released.status, JobPhase("Deleting", "Deleting", message))
        return Decision(status, released.actions, released.events)
    deleted = deletion.delete_state(ctx, ctx.status)
    fault = deleted.fault or deletion_fault(deleted.actions, ctx.observed.delete_refused)
    status = with_conditions(ctx, deleted.status, deletion_phase(fault, deletion.WAY_OUT))
    decision = _decision(ctx, status, deleted.actions)
    # No watch reports the end of the namespace, which may let the resource go.
    again_after = _NAMESPACE_SECONDS if fault and decision.again_after is None else decision.again_after
    return replace(decision, events=(*decision.events, *deleted.events), again_after=again_after)


def _decision(ctx: ReconcileContext, status: Status, actions: tuple[Action, ...]) -> Decision:
    alive = any(pod.ended_at is None for pod in ctx.drivers.values())
    new = with_late_rows(ctx, with_figures(ctx, status, alive=alive))
    written = due_status(ctx, ctx.status, new)
    reported = tuple(events(ctx.status, new)) if written is not None else ()
    # When to reconcile again even if nothing happens.
    delays = [(moment - ctx.now).total_seconds() for moment in _moments(ctx, new)]
    waits = [seconds for seconds in delays if seconds > 0]
    if ctx.status.revision is not None and _stage_begun(new) != _stage_begun(ctx.status):
        # The first step of the new stage may wait for the next reconcile, and no watch tells the operator about its
        # own writes.
        waits.append(_SOONEST_SECONDS)
    if written is None and new != ctx.status and (report := next_report(ctx, ctx.status)) is not None:
        waits.append(report)
    again_after = max(min(waits), _SOONEST_SECONDS) if waits else None
    return Decision(written, actions, reported, again_after)


def _stage_begun(status: Status) -> tuple[object, ...]:
    """Return a value that changes whenever a row of the rollout's table leads to a stage, even to the same one
    again."""
    rollout = status.rollout
    return status.revision, rollout and (rollout.stage, rollout.since, rollout.restorer)


def _moments(ctx: ReconcileContext, status: Status) -> Iterator[datetime]:
    """Yield the moments at which time alone may change something. The caller ignores past ones: their effect has
    happened, or needs something else as well."""
    settings, attempt = ctx.settings, status.driver
    if (end := deadline(ctx, status)) is not None:
        yield end
    if attempt is not None and attempt.not_before is not None:
        yield attempt.not_before
    if attempt is not None and attempt.ready is not None and (attempt.failures or attempt.interruptions):
        yield attempt.ready + timedelta(seconds=settings.healthy_seconds)
    if status.deletion is not None and status.deletion.not_before is not None:
        yield status.deletion.not_before
    if ctx.observed.templates and any(condition.reason in {INCOMPLETE, NOT_ALLOWED} for condition in status.conditions):
        # No watch reports pod templates: they are the users' own.
        yield ctx.now + timedelta(seconds=settings.poll_seconds)
    if attempt is not None and (waiting := ctx.waiting(attempt)) is not None and waiting.system == EXECUTORS:
        # No watch reports executors' pods to the job: they are their driver's children.
        yield ctx.now + timedelta(seconds=settings.poll_seconds)
        yield waiting.since + timedelta(seconds=ctx.deadline_seconds)
    yield from _moments_of_pods(ctx)


def _moments_of_pods(ctx: ReconcileContext) -> Iterator[datetime]:
    settings = ctx.settings
    other_pods = [*ctx.checks.values(), *([ctx.delete_state] if ctx.delete_state else [])]
    if not ctx.all_drivers_inactive() and ctx.orphaned_drivers:
        # No watch reports these pods to this job, because they are not its children.
        yield ctx.now + timedelta(seconds=settings.poll_seconds)
    for pod in (*ctx.drivers.values(), *other_pods):
        stuck_at = pod.stuck_at(settings.stuck_seconds)
        if pod.deletion_time is not None and stuck_at is not None and pod.ended_at is None:
            yield pod.deletion_time
            yield stuck_at
        if not pod.started:
            yield pod.created_at + timedelta(seconds=ctx.deadline_seconds)
    for pod in ctx.drivers.values():
        if not pod.ready and pod.ended_at is None and pod.deletion_time is None:
            yield ctx.not_ready_since(pod) + timedelta(seconds=ctx.deadline_seconds)
    for pod in ctx.checks.values():
        if pod.ended_at is not None:
            for since in (pod.created_at, pod.ended_at):
                yield since + timedelta(seconds=settings.backoff_first_seconds)
