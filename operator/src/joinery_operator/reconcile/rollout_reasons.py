"""Why a rollout waits or is rejected, in words for a person."""

from __future__ import annotations

from joinery_operator.reconcile.context import ReconcileContext
from joinery_operator.reconcile.driver import restoring_revision
from joinery_operator.reconcile.pods import PodObservation
from joinery_operator.reconcile.reasons import CREATE_REFUSED, Fault, cut, sentence
from joinery_operator.reconcile.rollout_observation import (
    classify_check,
    classify_desired,
    classify_helper,
    comparison_seconds,
)
from joinery_operator.reconcile.rollout_table import (
    Check,
    Desired,
    Helper,
    RolloutStage,
    stage_of,
)
from joinery_runtime.job.crd import DriverAttempt, Rollout, Status
from joinery_runtime.job.model.duration import format_duration


def check_rejection(ctx: ReconcileContext, rollout: Rollout) -> str:
    """Return why the check rejects the revision."""
    pod = ctx.check(rollout)
    match classify_check(pod):
        case Check.NO_STATE:
            return _missing_state_text(ctx, rollout)
        case Check.MISFIT | Check.DIFFERS if pod is not None and pod.check_result is not None:
            return "; ".join(pod.check_result.refused)
        case Check.NOTHING_YET:
            limit = f"no result, and no progress for {ctx.deadline_text}"
            if compared := comparison_seconds(ctx, rollout):
                limit += f" and {format_duration(round(compared * 1000))} (upgrade.shadow.within)"
            return sentence(limit, _check_message(ctx, rollout) or rollout.reason)
        case _:
            return _check_message(ctx, rollout)


def waiting_reason(ctx: ReconcileContext, status: Status) -> str:
    """Return why the stage has not ended."""
    assert status.rollout is not None, "only stages of a rollout have such rows"
    match stage_of(status):
        case RolloutStage.CHECKING:
            return _check_message(ctx, status.rollout)
        case RolloutStage.STOPPING:
            waits = (_active_pod_text(ctx, pod) for pod in (*ctx.drivers.values(), *ctx.orphaned_drivers.values()))
            return (
                f"the old driver has not ended within {ctx.deadline_text}: {cut('; '.join(filter(None, waits)), 512)}"
            )
        case RolloutStage.STARTING:
            attempt = status.driver
            is_fatal = attempt is not None and attempt.outcome == "Fatal"
            problem = (status.last_error or "") if is_fatal else progress_problem(ctx, status, attempt)
            return cut(
                sentence(problem, "upgrade.rollback is manual")
                + ". Set it to automatic to return to the savepoint; any other change tries again"
            )
        case _:
            return _restore_problem(ctx, status, status.rollout)


def _active_pod_text(ctx: ReconcileContext, pod: PodObservation) -> str:
    if ctx.is_inactive(pod):
        return ""
    stuck_at = pod.stuck_at(ctx.settings.stuck_seconds)
    if stuck_at is None:
        return f"pod {pod.name} is not being deleted yet"
    return f"pod {pod.name} is taken for dead at {stuck_at:%H:%M:%S} UTC, and then the rollout continues"


def _restore_problem(ctx: ReconcileContext, status: Status, rollout: Rollout) -> str:
    revision, image = restoring_revision(status, rollout)
    attempt = status.driver
    if attempt is not None and attempt.restore and attempt.outcome == "Fatal":
        reason = status.last_error or ""
    elif ctx.revision(revision, image) is None:
        reason = f"its ConfigMap {ctx.names.config_map(revision)} is missing"
    else:
        reason = progress_problem(ctx, status, attempt)
    elsewhere = ""
    if classify_desired(ctx, status) is Desired.ANOTHER and classify_helper(ctx, status, rollout) is Helper.UNABLE:
        elsewhere = "; the job that is asked for now cannot, because it keeps its state elsewhere"
    return (
        f"the return to savepoint {rollout.savepoint} with revision {revision} and image {cut(image, 256)} is stuck: "
        f"{cut(reason, 512)}{elsewhere}"
    )


def _check_message(ctx: ReconcileContext, rollout: Rollout) -> str:
    """Return why the check has no result."""
    pod = ctx.check(rollout)
    if pod is None:
        return ctx.observed.create_refused
    if pod.ended_at is not None:
        return sentence("the check pod failed", pod.end_message)
    return sentence(pod.fault.reason, pod.fault.message) if pod.fault else ""


def _missing_state_text(ctx: ReconcileContext, rollout: Rollout) -> str:
    new = ctx.revision(rollout.revision, rollout.image)
    store = new.job.spec.state_store.postgres if new else None
    where = "where spec.stateStore points to"
    if store is not None:
        secret = store.dsn_secret_ref
        dsn = f"dsnSecretRef {secret.name}/{secret.key}" if secret else "spec.stateStore.postgres.dsn"
        where = f"in schema {store.schema_name} at {dsn}"
    return (
        f"there is no state of this job {where}; move it with `joinery state move`, or set upgrade.mode: stateless to "
        "start from the beginning without the state"
    )


def progress_problem(ctx: ReconcileContext, status: Status, attempt: DriverAttempt | None) -> str:
    """Return what keeps this attempt from making progress, as far as it is known."""
    limit = f"no progress for {ctx.deadline_text}"
    pod = ctx.drivers.get(attempt.number) if attempt else None
    refused = Fault(CREATE_REFUSED, ctx.observed.create_refused) if ctx.observed.create_refused else None
    fault = pod.fault if pod else refused
    if fault is not None:
        return sentence(limit, fault.reason, fault.message)
    waiting = ctx.waiting(attempt) if attempt else None
    failed = attempt is not None and attempt.failures > 0
    if waiting is not None:
        return sentence(limit, waiting.reason, ctx.executor_faults(waiting))
    return sentence(limit, (status.last_error or "") if failed else "")
