"""When to reconcile again even if nothing happens."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from joinery_operator.reconcile.context import ReconcileContext
from joinery_operator.reconcile.figures import next_report
from joinery_operator.reconcile.rollout import deadline
from joinery_runtime.job.crd import Status

_SOONEST = 0.5


def again_after(ctx: ReconcileContext, status: Status, written: Status | None) -> float | None:
    """Seconds until time alone changes something; None: never. `written`: what is written of the status now."""
    left = [(moment - ctx.now).total_seconds() for moment in _moments(ctx, status)]
    waits = [seconds for seconds in left if seconds > 0]
    if written is None and status != ctx.status and (report := next_report(ctx, ctx.status)) is not None:
        waits.append(report)
    return max(min(waits), _SOONEST) if waits else None


def _moments(ctx: ReconcileContext, status: Status) -> Iterator[datetime]:
    """Moments in the past are of no use: what they changed has happened, or needs something else as well."""
    settings, attempt = ctx.settings, status.driver
    if (end := deadline(ctx, status)) is not None:
        yield end
    if attempt is not None and attempt.not_before is not None:
        yield attempt.not_before
    if attempt is not None and attempt.ready is not None and attempt.failures:
        yield attempt.ready + timedelta(seconds=settings.healthy_seconds)
    if status.deletion is not None and status.deletion.not_before is not None:
        yield status.deletion.not_before
    yield from _of_pods(ctx)


def _of_pods(ctx: ReconcileContext) -> Iterator[datetime]:
    settings = ctx.settings
    others = [*ctx.checks.values(), *([ctx.delete_state] if ctx.delete_state else [])]
    if not ctx.all_drivers_inactive() and ctx.orphaned_drivers:
        # No watch reports these to this job: they are not its children.
        yield ctx.now + timedelta(seconds=settings.poll_seconds)
    for pod in (*ctx.drivers.values(), *others):
        if pod.deletion_time is not None and pod.ended_at is None:
            yield pod.deletion_time
            yield pod.deletion_time + timedelta(seconds=settings.stuck_seconds)
        if pod.fault is not None:
            yield pod.created_at + timedelta(seconds=settings.deadline_seconds)
    for pod in ctx.drivers.values():
        if pod.ready_since is None and pod.ended_at is None and pod.deletion_time is None:
            yield pod.not_ready_since + timedelta(seconds=settings.deadline_seconds)
    for pod in ctx.checks.values():
        if pod.ended_at is not None:
            yield pod.ended_at + timedelta(seconds=settings.backoff_first_seconds)
