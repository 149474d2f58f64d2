"""The driver's figures in the status: bounded, rounded, and written only as often as is useful."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from joinery_operator.reconcile.context import ReconcileContext
from joinery_operator.reconcile.reasons import cut
from joinery_runtime.job.crd import FIGURES, DriverStatus, Status

_INPUTS, _KEYS, _KEY_LENGTH, _NAME_LENGTH = 16, 10, 256, 253


def with_figures(ctx: ReconcileContext, status: Status, *, alive: bool) -> Status:
    """Return the status with what its driver last reported. `alive`: whether its pod still runs."""
    attempt = status.driver
    reported = ctx.driver_status(attempt) if attempt is not None and alive else None
    if reported is not None:
        return status.model_copy(update=_figure_fields(reported, ctx.now))
    if alive:
        return status
    # Totals stay. Rates and lags mean nothing for a job that does not run.
    rest = tuple(input_status.model_copy(update=_STILL) for input_status in status.inputs)
    return status.model_copy(
        update={"inputs": rest, "lag": None, "rows_per_second": None, "watermark_delay": None, "executors": 0}
    )


def due_status(ctx: ReconcileContext, old: Status, new: Status) -> Status | None:
    """Return the status to write; None if nothing is new, or only figures, which were written a moment ago."""
    if new.model_copy(update={name: getattr(old, name) for name in _REPORTED}) != old:
        return new.model_copy(update={"reported": ctx.now})
    if new == old or next_report(ctx, old) is not None:
        return None
    return new.model_copy(update={"reported": ctx.now})


def next_report(ctx: ReconcileContext, old: Status) -> float | None:
    """Return seconds until figures may be written again; None: now."""
    if old.reported is None:
        return None
    wait = (old.reported - ctx.now).total_seconds() + ctx.settings.figures_seconds
    # A clock that was set back must not silence a job.
    return wait if 0 < wait <= ctx.settings.figures_seconds else None


_STILL = {"lag": None, "watermark_delay": None, "rows_per_second": None}
_REPORTED = (*FIGURES, "job_generation", "last_savepoint", "last_error")


def _figure_fields(reported: DriverStatus, now: datetime) -> dict[str, object]:
    inputs = []
    for input_status in reported.inputs[:_INPUTS]:
        watermark = None if input_status.ended else input_status.watermark
        delay = None if watermark is None else delay_text(now - _as_utc(watermark))
        update = {"name": input_status.name[:_NAME_LENGTH], "watermark_delay": delay}
        inputs.append(input_status.model_copy(update=update))
    watermarks = [
        _as_utc(input_status.watermark)
        for input_status in reported.inputs
        if input_status.watermark and not input_status.ended
    ]
    lags = [input_status.lag for input_status in inputs if input_status.lag is not None]
    totals = {
        "job_generation": reported.job_generation,
        "epoch": reported.epoch,
        "rows_in": reported.rows_in,
        "rows_out": reported.rows_out,
        "late": reported.late,
        "state_bytes": reported.state_bytes,
        "last_savepoint": reported.last_savepoint,
        "last_error": cut(reported.last_error) if reported.last_error else None,
        "scaling": reported.scaling,
    }
    return {
        # Keeps totals that the driver does not know yet.
        **{name: value for name, value in totals.items() if value is not None},
        "inputs": tuple(inputs),
        "lag": sum(lags) if lags else None,
        "rows_per_second": reported.rows_per_second,
        "watermark_delay": delay_text(now - min(watermarks)) if watermarks else None,
        "hottest_keys": tuple(
            hot_key.model_copy(update={"key": cut(hot_key.key, _KEY_LENGTH)})
            for hot_key in reported.hottest_keys[:_KEYS]
        ),
        "executors": reported.executors or 0,
    }


def delay_text(delay: timedelta) -> str:
    """Return a duration for people, rounded so that a growing delay does not change the status all the time: 12s, 3m5s,
    17m, 2h7m, 51h."""
    seconds = max(int(delay.total_seconds()), 0)
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}m{seconds}s" if seconds and minutes < 10 else f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m" if minutes and hours < 24 else f"{hours}h"


def _as_utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
