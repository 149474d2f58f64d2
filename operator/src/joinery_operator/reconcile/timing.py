"""When to look again even if nothing happens."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from joinery_operator.reconcile.figures import next_report
from joinery_operator.reconcile.look import Look
from joinery_operator.reconcile.rollout import deadline
from joinery_runtime.job.crd import Status

_SOONEST = 0.5


def again_after(look: Look, status: Status, written: Status | None) -> float | None:
    """Seconds until time alone changes something; None: never. `written`: what is written of the status now."""
    left = [(moment - look.now).total_seconds() for moment in _moments(look, status)]
    waits = [seconds for seconds in left if seconds > 0]
    if written is None and status != look.status and (report := next_report(look, look.status)) is not None:
        waits.append(report)
    return max(min(waits), _SOONEST) if waits else None


def _moments(look: Look, status: Status) -> Iterator[datetime]:
    """Those that are over are of no use: what they changed has happened, or needs something else as well."""
    settings, attempt = look.settings, status.driver
    if (end := deadline(look, status)) is not None:
        yield end
    if attempt is not None and attempt.not_before is not None:
        yield attempt.not_before
    if attempt is not None and attempt.ready is not None and attempt.failures:
        yield attempt.ready + timedelta(seconds=settings.healthy_seconds)
    if status.deletion is not None and status.deletion.not_before is not None:
        yield status.deletion.not_before
    yield from _of_pods(look)


def _of_pods(look: Look) -> Iterator[datetime]:
    settings = look.settings
    others = [*look.checks.values(), *([look.delete_state] if look.delete_state else [])]
    if not look.all_quiet() and look.left_over:
        # No watch tells this job of them: they are not its children.
        yield look.now + timedelta(seconds=settings.poll_seconds)
    for pod in (*look.drivers.values(), *others):
        if pod.deleted is not None and pod.ended is None:
            yield pod.deleted
            yield pod.deleted + timedelta(seconds=settings.stuck_seconds)
        if pod.trouble is not None:
            yield pod.created + timedelta(seconds=settings.deadline_seconds)
    for pod in look.drivers.values():
        if pod.ready is None and pod.ended is None and pod.deleted is None:
            yield pod.unready + timedelta(seconds=settings.deadline_seconds)
    for pod in look.checks.values():
        if pod.ended is not None:
            yield pod.ended + timedelta(seconds=settings.backoff_first_seconds)
