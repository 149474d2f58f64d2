"""How a run shows itself: a live table on a terminal, one JSON line per event otherwise."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol, TextIO

import structlog
from rich.console import Console
from rich.live import Live
from rich.table import Table

from joinery_runtime.core.spec import END_OF_TIME, Watermark
from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.loop import Listener, Progress
from joinery_runtime.errors import StoreUnavailable
from joinery_runtime.job import StreamJoin

RATE_WINDOW_S = 10.0


class RunProgress(Protocol):
    @property
    def listener(self) -> Listener: ...

    def warn(self, message: str) -> None: ...

    def ended(self, *, stopped: bool) -> None: ...


@contextmanager
def open_progress(job: StreamJoin, stream: TextIO) -> Iterator[RunProgress]:
    if not stream.isatty():
        yield JsonProgress(job, stream)
        return
    console = Console(file=stream)
    with Live(console=console, refresh_per_second=4) as live:
        yield TableProgress(job, live)


class JsonProgress:
    """One line per epoch and event, with the job's name and a UTC time."""

    def __init__(self, job: StreamJoin, stream: TextIO) -> None:
        self._log = structlog.wrap_logger(
            structlog.WriteLogger(stream),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.JSONRenderer(),
            ],
        ).bind(job=job.name)

    @property
    def listener(self) -> Listener:
        return Listener(self._started, self._committed, self._trouble)

    def warn(self, message: str) -> None:
        self._log.warning("warning", message=message)

    def ended(self, *, stopped: bool) -> None:
        self._log.info("ended", reason="stopped" if stopped else "all inputs have ended")

    def _started(self, driver: Driver) -> None:
        self._log.info("started", generation=driver.generation, epoch=driver.epoch, replays=driver.replays)

    def _committed(self, progress: Progress) -> None:
        report = progress.report
        self._log.info(
            "epoch",
            epoch=report.epoch,
            seconds=round(progress.seconds, 3),
            rows_in=dict(report.rows_in),
            rows_out=report.rows_out,
            watermarks=dict(report.watermarks),
            backlog=dict(report.backlog),
            dropped={name: dict(counts) for name, counts in report.dropped.items()},
            dead={name: count for name, count in report.dead.items() if count},
            lost=dict(report.lost),
            segments=report.segments,
            state_rows=report.state_rows,
            state_bytes=report.state_bytes,
        )

    def _trouble(self, error: StoreUnavailable, pause: float) -> None:
        self._log.error("state store unavailable", error=str(error), retry_in_seconds=pause)


class TableProgress:
    """A table that is drawn again after each epoch; rates are over the last ten seconds."""

    def __init__(self, job: StreamJoin, live: Live) -> None:
        self._job, self._live = job, live
        self._recent: deque[tuple[float, Mapping[str, int], int]] = deque()
        self._dropped: Counter[str] = Counter()
        self._started_at = time.monotonic()
        self._totals: Counter[str] = Counter()

    @property
    def listener(self) -> Listener:
        return Listener(self._started, self._committed, self._trouble)

    def warn(self, message: str) -> None:
        self._live.console.print(f"[bold red]warning:[/] {message}")

    def ended(self, *, stopped: bool) -> None:
        seconds = time.monotonic() - self._started_at
        read, written = sum(self._totals[s.name] for s in self._job.spec.inputs), self._totals["out"]
        why = "stopped" if stopped else "all inputs have ended"
        nothing = " (nothing new to read: an earlier run of this job has read it)" if not read and not stopped else ""
        rows = f"{read:,} rows in, {written:,} out{nothing}"
        self._live.console.print(f"{self._job.name}: {why} after {seconds:.1f} s, {rows}")

    def _started(self, driver: Driver) -> None:
        again = f", epoch {driver.epoch + 1} is replayed" if driver.replays else ""
        self._live.console.print(f"{self._job.name}: generation {driver.generation}, after epoch {driver.epoch}{again}")

    def _trouble(self, error: StoreUnavailable, pause: float) -> None:
        self._live.console.print(f"[red]{error}[/]; trying again in {pause:.1f} s")

    def _committed(self, progress: Progress) -> None:
        report, now = progress.report, time.monotonic()
        self._recent.append((now, report.rows_in, report.rows_out))
        while self._recent[0][0] < now - RATE_WINDOW_S:
            self._recent.popleft()
        self._totals.update({**report.rows_in, "out": report.rows_out})
        for name, counts in report.dropped.items():
            self._dropped.update({f"{name} {reason}": count for reason, count in counts.items()})
        for name, count in report.dead.items():
            self._dropped[f"{name} dead letters"] += count
        self._live.update(self._table(progress, now))

    def _table(self, progress: Progress, now: float) -> Table:
        report = progress.report
        span = max(now - self._recent[0][0], progress.seconds, 0.001)
        table = Table(title=f"{self._job.name}, epoch {report.epoch} ({progress.seconds * 1000:.0f} ms)", expand=False)
        for heading in ("", "rows/s", "rows", "lag", "watermark", "dropped"):
            table.add_column(heading, justify="left" if heading in {"", "watermark", "dropped"} else "right")
        for side in self._job.spec.inputs:
            rate = sum(rows.get(side.name, 0) for _, rows, _ in self._recent) / span
            table.add_row(
                side.name,
                f"{rate:,.0f}",
                f"{self._totals[side.name]:,}",
                f"{report.backlog[side.name]:,}",
                show_time(report.watermarks[side.name]),
                self._dropped_text(side.name),
            )
        rate = sum(out for _, _, out in self._recent) / span
        state = f"state {report.state_rows:,} rows, {report.state_bytes / 1e6:,.1f} MB, {report.segments} segments"
        table.add_row("joined", f"{rate:,.0f}", f"{self._totals['out']:,}", "", state, "")
        return table

    def _dropped_text(self, name: str) -> str:
        counts = {k.removeprefix(f"{name} "): n for k, n in self._dropped.items() if k.startswith(f"{name} ")}
        return ", ".join(f"{reason} {count:,}" for reason, count in counts.items() if count)


def show_time(watermark: Watermark) -> str:
    if watermark is None:
        return "-"
    if watermark == END_OF_TIME:
        return "ended"
    try:
        return datetime.fromtimestamp(watermark / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError):
        return str(watermark)
