"""Shows the progress of the demo's job: a live table on a terminal, a line every two seconds elsewhere."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from joinery_runtime.core.pipeline.watermark import END_OF_TIME

_RATE_SECONDS = 5.0
_LINE_SECONDS = 2.0

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Wording:
    """Words for a scenario: what the job does with records, what its output rows are, and the title of its table."""

    does: str
    out: str
    title: str


@dataclass(slots=True)
class Progress:
    """Adds up the `epoch` events that `joinery run` logs as JSON lines."""

    started: bool = False
    epoch: int = 0
    seconds: float = 0.0
    read: Counter[str] = field(default_factory=Counter)
    out: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    dead: int = 0
    watermarks: Mapping[str, int | None] = field(default_factory=dict)
    backlog: Mapping[str, int] = field(default_factory=dict)
    state_rows: int = 0
    _recent: deque[tuple[float, int, int]] = field(default_factory=deque)

    def take(self, event: Mapping[str, Any]) -> None:
        self.started |= event["event"] == "started"
        if event["event"] != "epoch":
            return
        self.epoch, self.seconds = event["epoch"], event["seconds"]
        self.read.update(event["rows_in"])
        self.out += event["rows_out"]
        for counts in event["dropped"].values():
            self.dropped.update(counts)
        self.dead += sum(event["dead"].values())
        self.watermarks, self.backlog = event["watermarks"], event["backlog"]
        self.state_rows = event["state_rows"]
        now = time.monotonic()
        self._recent.append((now, sum(event["rows_in"].values()), event["rows_out"]))
        while self._recent[0][0] < now - _RATE_SECONDS:
            self._recent.popleft()

    def rates(self) -> tuple[float, float]:
        """Return the recent rates: rows read and rows written per second."""
        if not self._recent:
            return 0.0, 0.0
        span = max(time.monotonic() - self._recent[0][0], self.seconds, 0.1)
        return sum(read for _, read, _ in self._recent) / span, sum(out for _, _, out in self._recent) / span


class View:
    def __init__(self, console: Console, words: Wording, live: Live | None) -> None:
        self._console, self._words, self._live = console, words, live
        self._line_at = time.monotonic() + _LINE_SECONDS

    def update(self, progress: Progress, sent: int, sample: Rows) -> None:
        if self._live is not None:
            self._live.update(
                Group(
                    _progress_table(progress, self._words, sent), table_of(f"{self._words.title}, the newest", sample)
                )
            )
        elif time.monotonic() >= self._line_at:
            self._line_at = time.monotonic() + _LINE_SECONDS
            self._console.print(_progress_line(progress, self._words, sent), highlight=False, soft_wrap=True)


@contextmanager
def open_view(console: Console, words: Wording) -> Iterator[View]:
    if not console.is_terminal:
        yield View(console, words, None)
        return
    with Live(console=console, refresh_per_second=4) as live:
        yield View(console, words, live)


def table_of(title: str, rows: Rows) -> Table:
    table = Table(title=title, title_justify="left", show_edge=False)
    for name in rows[0] if rows else ():
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(
            *(
                cell.astimezone(UTC).strftime("%H:%M:%S") if isinstance(cell, datetime) else str(cell)
                for cell in row.values()
            )
        )
    return table


def _progress_table(progress: Progress, words: Wording, sent: int) -> Table:
    read_rate, out_rate = progress.rates()
    table = Table(title=f"epoch {progress.epoch}, {progress.seconds * 1000:.0f} ms", title_justify="left")
    for heading in ("", "rows", "rows/s", "lag", "watermark"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    table.add_row("sent to Kafka", f"{sent:,}", "", "", "")
    for name, watermark in progress.watermarks.items():
        read, lag = f"{progress.read[name]:,}", f"{progress.backlog[name]:,}"
        table.add_row(f"read from {name}", read, "", lag, _clock_text(watermark))
    table.add_row("read", f"{progress.read.total():,}", f"{read_rate:,.0f}", "", "")
    table.add_row(f"{words.out}, in Postgres", f"{progress.out:,}", f"{out_rate:,.0f}", "", "")
    table.add_row("in the state", f"{progress.state_rows:,}", "", "", "")
    for reason, count in sorted(progress.dropped.items()):
        table.add_row(f"dropped: {reason}", f"{count:,}", "", "", "")
    table.add_row("dead letters", f"{progress.dead:,}", "", "", "")
    return table


def _progress_line(progress: Progress, words: Wording, sent: int) -> str:
    if not progress.started:
        return "  Spark is starting"
    watermarks = ", ".join(f"{name} {_clock_text(watermark)}" for name, watermark in progress.watermarks.items())
    drops = "".join(f", {count:,} {reason}" for reason, count in sorted(progress.dropped.items()))
    if not progress.epoch:
        return f"  {sent:,} sent, the first epoch is running"
    return (
        f"  epoch {progress.epoch} ({progress.seconds * 1000:.0f} ms): {sent:,} sent, {progress.read.total():,} read, "
        f"{progress.out:,} {words.out}, state {progress.state_rows:,} rows{drops}, {progress.dead:,} dead letters; "
        f"watermarks {watermarks}"
    )


def _clock_text(watermark: int | None) -> str:
    if watermark == END_OF_TIME:
        return "at the end"
    return "-" if watermark is None else datetime.fromtimestamp(watermark / 1000, UTC).strftime("%H:%M:%S")
