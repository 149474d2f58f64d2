"""Shows the progress of a run: a live table on a terminal, otherwise one JSON line per event."""

from __future__ import annotations

import shlex
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Literal, TextIO

import structlog
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from joinery_runtime.connectors.outputs import lake_table
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT, SIDES, part_name
from joinery_runtime.core.pipeline.watermark import END_OF_TIME, Watermark
from joinery_runtime.engine.assembly import input_clocks
from joinery_runtime.engine.driver import Driver
from joinery_runtime.engine.late_rows import closed_inputs, delays_to_name, late_inputs
from joinery_runtime.engine.loop import Backoff, CommittedEpoch, JobListener, Outage
from joinery_runtime.engine.messages import RunsOn
from joinery_runtime.engine.report import Totals, highest_by_name
from joinery_runtime.engine.reporter import Rates
from joinery_runtime.errors import JoineryError
from joinery_runtime.job import Job, StreamJoin
from joinery_runtime.job.model.outputs import NamedOutput
from joinery_runtime.job.model.wording import counted

RATE_WINDOW_S = 10.0
_FIRST_REPEAT_S, _LAST_REPEAT_S = 60.0, 900.0
_WIDE = 80  # columns of a terminal; in a narrower one, cells have no blanks around them
_MIN_WIDTHS = {"watermark": len("00:00:00.000Z")}
HOTTEST = 3  # hot keys shown with every epoch; /status has more

THIS_PROCESS = "this process (--local)"
"""Where the epochs of `joinery run --local` run. Other jobs run on a Spark master."""

EndedBy = Literal["stopped", "once", "inputs"]
"""What ended a run: a signal, the inputs' ends at its start (`--once`), or the final ends of all inputs."""


class Repeats:
    """Which reports of a trouble that lasts are worth a line: the first one, then those after 1, 3, 7, 15, ... minutes,
    and one in 15 minutes in the end. `clock` is in seconds and never goes back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By event and trouble: when the next report is due, and the pauses after it.
        self._due: dict[tuple[str, str], float] = {}
        self._pauses: defaultdict[tuple[str, str], Backoff] = defaultdict(
            lambda: Backoff(_FIRST_REPEAT_S, _LAST_REPEAT_S)
        )

    def due(self, event: str, error: JoineryError) -> bool:
        """Return whether to report the event now. The error's facts may differ from one try to the next."""
        now, trouble = self._clock(), (event, error.summary)
        if now < self._due.get(trouble, now):
            return False
        self._due[trouble] = now + self._pauses[trouble].next()
        return True

    def over(self) -> None:
        self._due.clear()
        self._pauses.clear()


class RunProgress(ABC):
    """Tells the user about a run; the epoch loop calls `listener`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._repeats = Repeats(clock)

    @property
    def listener(self) -> JobListener:
        return JobListener(
            self.show_start,
            self._after_commit,
            lambda error, pause: self.show_trouble(error, pause) if self._repeats.due("trouble", error) else None,
            warned=self.warn,
            waiting=lambda outage: self.show_waiting(outage) if self._repeats.due("waiting", outage.error) else None,
            recovered=self._after_recovery,
        )

    def _after_commit(self, progress: CommittedEpoch) -> None:
        self._repeats.over()
        self.show_commit(progress)

    def _after_recovery(self, outage: Outage) -> None:
        self._repeats.over()
        self.show_recovery(outage)

    @abstractmethod
    def show_page(self, page: str) -> None:
        """Show the address of the job's page."""

    @abstractmethod
    def warn(self, message: str) -> None: ...

    @abstractmethod
    def show_end(self, by: EndedBy) -> None: ...

    @abstractmethod
    def show_start(self, driver: Driver) -> None: ...

    @abstractmethod
    def show_commit(self, progress: CommittedEpoch) -> None: ...

    @abstractmethod
    def show_trouble(self, error: JoineryError, pause: float) -> None: ...

    @abstractmethod
    def show_waiting(self, outage: Outage) -> None: ...

    @abstractmethod
    def show_recovery(self, outage: Outage) -> None: ...


@contextmanager
def open_progress(job: Job, stream: TextIO, location: str) -> Iterator[RunProgress]:
    """Show the progress of a job that runs at `location`: THIS_PROCESS, or a Spark master."""
    if not stream.isatty():
        yield JsonProgress(job, stream, location)
        return
    console = Console(file=stream)
    with Live(console=console, refresh_per_second=4) as live:
        yield TableProgress(job, live, location)


class JsonProgress(RunProgress):
    """One line per epoch and event, with the job's name and a UTC time."""

    def __init__(self, job: Job, stream: TextIO, location: str) -> None:
        super().__init__()
        self._log = structlog.wrap_logger(
            structlog.WriteLogger(stream),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.JSONRenderer(),
            ],
        ).bind(job=job.name)
        self._location = location
        self._ended_before: list[str] = []
        self._to_latest = inputs_to_latest(job)
        self._read = 0
        self._totals = Totals()
        self._job, self._disorder = job, dict[str, int]()
        self._page: dict[str, str] = {}

    def show_page(self, page: str) -> None:
        self._page = {"page": page}

    def warn(self, message: str) -> None:
        self._log.warning("warning", message=message)

    def show_end(self, by: EndedBy) -> None:
        late_reports = list(late_inputs(self._totals, input_clocks(self._job)))
        for late in late_reports:
            self._log.warning("late", **late.document(), message=late.words)
        for words in (*closed_inputs(self._totals), *delays_to_name(self._job, self._totals, self._disorder)):
            self.warn(words)
        note = {} if self._read or by == "stopped" else {"note": nothing_new(by, self._ended_before, self._to_latest)}
        self._log.info(
            "ended",
            reason=WHY_ENDED[by],
            rows_in=self._read,
            late={late.input: late.rows for late in late_reports},
            **note,
        )

    def show_start(self, driver: Driver) -> None:
        self._ended_before = ended_inputs(driver)
        self._log.info(
            "started",
            master=self._location,
            generation=driver.generation,
            epoch=driver.epoch,
            replays=driver.pending,
            **self._page,
        )

    def show_commit(self, progress: CommittedEpoch) -> None:
        report = progress.report
        self._totals = report.totals
        self._disorder = highest_by_name(self._disorder, report.disorder)
        self._read += sum(report.rows_in.values())
        self._log.info(
            "epoch",
            epoch=report.epoch,
            seconds=round(progress.seconds, 3),
            runs_on=report.runs_on,
            rows_in=dict(report.rows_in),
            rows_out=report.rows_out,
            rows_held=report.unpublished_rows,
            # None: there is no watermark yet, or the input has ended.
            watermarks={name: None if at == END_OF_TIME else at for name, at in report.watermarks.items()},
            ended_inputs=[name for name, at in report.watermarks.items() if at == END_OF_TIME],
            backlog=dict(report.backlog),
            dropped={name: dict(counts) for name, counts in report.dropped.items()},
            after_eviction=dict(report.after_eviction),
            dead={name: count for name, count in report.dead.items() if count},
            lost=dict(report.lost),
            segments=report.segments,
            state_rows=report.state_rows,
            state_bytes=report.state_bytes,
            amplification=None if report.amplification is None else round(report.amplification, 3),
            sides={
                part: {**asdict(report.parts[part]), **asdict(totals)} for part, totals in report.totals.parts.items()
            },
            hottest_keys=[asdict(key) for key in report.hottest[:HOTTEST]],
        )

    def show_trouble(self, error: JoineryError, pause: float) -> None:
        self._log.error("trouble", error=str(error), retry_in_seconds=pause)

    def show_waiting(self, outage: Outage) -> None:
        self._log.error(
            "waiting",
            system=outage.error.system,
            since=show_time(round(outage.since * 1000)),
            error=str(outage.error),
            retry_in_seconds=outage.pause,
        )

    def show_recovery(self, outage: Outage) -> None:
        self._log.info("back", system=outage.error.system, since=show_time(round(outage.since * 1000)))


class TableProgress(RunProgress):
    """A table that is redrawn after each epoch; rates are over the last ten seconds."""

    def __init__(self, job: Job, live: Live, location: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._job, self._live, self._location, self._clock = job, live, location, clock
        self._rates = Rates(clock(), RATE_WINDOW_S)
        self._dropped: dict[str, Counter[str]] = {side.name: Counter() for side in job.inputs}
        self._started_at = clock()
        self._ended_before: list[str] = []
        self._rows_in: Counter[str] = Counter()
        self._rows_out = 0
        self._totals = Totals()
        self._disorder = dict[str, int]()

    def show_page(self, page: str) -> None:
        self._say(f"the job's page, while it runs: {escape(page)}")

    def warn(self, message: str) -> None:
        self._say(f"[bold red]warning:[/] {escape(message)}")

    def show_end(self, by: EndedBy) -> None:
        for late in late_inputs(self._totals, input_clocks(self._job)):
            self.warn(late.words)
        for words in (*closed_inputs(self._totals), *delays_to_name(self._job, self._totals, self._disorder)):
            self.warn(words)
        seconds, read = self._clock() - self._started_at, sum(self._rows_in.values())
        if self._rows_out:
            for line in where_rows_are(self._job):
                self._say(escape(line))
        rows = f"{counted(read, 'row')} in, {self._rows_out:,} out"
        if not read and by != "stopped":
            rows += f" ({nothing_new(by, self._ended_before, inputs_to_latest(self._job))})"
        self._say(f"{self._job.name}: {WHY_ENDED[by]} after {seconds:.1f} s, {rows}")

    def _say(self, markup: str) -> None:
        # Broken by the terminal and not by us, a command or an address can still be copied.
        self._live.console.print(markup, highlight=False, soft_wrap=True)

    def show_start(self, driver: Driver) -> None:
        self._ended_before = ended_inputs(driver)
        self._rates = Rates(self._clock(), RATE_WINDOW_S)
        verb, location = "is replayed" if driver.pending else "is next", escape(self._location)
        self._say(f"{self._job.name} on {location}: generation {driver.generation}, epoch {driver.epoch + 1} {verb}")

    def show_trouble(self, error: JoineryError, pause: float) -> None:
        self._say(f"[red]{escape(str(error))}[/]; trying again in {pause:.1f} s")

    def show_waiting(self, outage: Outage) -> None:
        since = show_time(round(outage.since * 1000))
        words = f"waiting for the {outage.error.system} since {since}, trying again in {outage.pause:.0f} s"
        self._say(f"[red]{escape(str(outage.error))}[/]; {words}")

    def show_recovery(self, outage: Outage) -> None:
        self._say(f"the {outage.error.system} is there again")

    def show_commit(self, progress: CommittedEpoch) -> None:
        report, now = progress.report, self._clock()
        self._rates.add(now, progress.seconds, {**report.rows_in, _OUT: report.rows_out})
        self._totals = report.totals
        self._disorder = highest_by_name(self._disorder, report.disorder)
        self._rows_in.update(report.rows_in)
        self._rows_out += report.rows_out
        for name, counts in report.dropped.items():
            self._dropped[name].update(counts)
        for name, count in report.dead.items():
            self._dropped[name]["dead letters"] += count
        for partition, count in report.lost.items():
            records = counted(count, "record", "were")
            self._say(f"[bold red]{escape(partition)}: {records} lost unread[/]")
        # The rows out per record in, and the keys with the most rows in the state.
        notes = [] if report.amplification is None else [f"{report.amplification:,.2f} rows out per record in"]
        keys = [f"{key.key} {counted(key.rows, 'row')} (step {key.step + 1})" for key in report.hottest[:HOTTEST]]
        notes += [f"hottest keys: {', '.join(keys)}"] if keys else []
        footer = [Text("; ".join(notes))] if notes else []
        tables = [self._inputs_table(progress, now)]
        if report.totals.parts:  # what each side of each step keeps now, and has kept since the state began
            sizes = ("side", "rows", "MB", "stored", "expired", "lookups", "matches", "peak")
            table = _table(sizes, left={"side"}, width=self._live.console.width)
            for part, totals in report.totals.parts.items():
                size = report.parts[part]
                since_start = (totals.stored, totals.expired, totals.lookups, totals.matches, totals.peak)
                side = _side_name(self._job, part)
                table.add_row(side, f"{size.rows:,}", f"{size.bytes / 1e6:,.1f}", *(f"{n:,}" for n in since_start))
            tables.append(table)
        self._live.update(Group(*tables, *footer))

    def _inputs_table(self, progress: CommittedEpoch, now: float) -> Table:
        report, rates = progress.report, self._rates.per_second(now)
        duration = f"{progress.seconds * 1000:.0f} ms on {_LOCATIONS[report.runs_on]}"
        headings = ("", "rows/s", "rows", "lag", "watermark", "dropped")
        table = _table(headings, left={"", "watermark", "dropped"}, width=self._live.console.width)
        table.title = f"{self._job.name}, epoch {report.epoch} ({duration})"
        for side in self._job.inputs:
            table.add_row(
                side.name,
                f"{rates[side.name]:,.0f}",
                f"{self._rows_in[side.name]:,}",
                f"{report.backlog[side.name]:,}",
                show_time(report.watermarks[side.name]).replace("T", " "),  # where a narrow table may break it
                ", ".join(f"{reason} {count:,}" for reason, count in self._dropped[side.name].items() if count),
            )
        rows, segments = counted(report.state_rows, "row"), counted(report.segments, "segment")
        state = f"state {rows}, {report.state_bytes / 1e6:,.1f} MB, {segments}"
        if report.unpublished_rows:
            state += f"; {counted(report.unpublished_rows, 'row', 'are')} held for larger files"
        joins = isinstance(self._job, StreamJoin) and self._job.aggregation is None
        output_label = "joined" if joins else "aggregated" if isinstance(self._job, StreamJoin) else "sessions"
        table.add_row(output_label, f"{rates[_OUT]:,.0f}", f"{self._rows_out:,}", "", state, "")
        return table


def _table(headings: Sequence[str], left: Set[str], width: int) -> Table:
    """Return a table with these columns, the `left` ones aligned to the left. On a terminal that is too narrow it
    breaks lines, and never cuts off the end of a time or a number."""
    table = Table(expand=False, padding=(0, 1 if width >= _WIDE else 0))
    for heading in headings:
        justify: Literal["left", "right"] = "left" if heading in left else "right"
        table.add_column(heading, justify=justify, overflow="fold", min_width=_MIN_WIDTHS.get(heading))
    return table


def _side_name(job: Job, part: str) -> str:
    if not isinstance(job, StreamJoin):
        return f"{part}: {', '.join(side.name for side in job.inputs)}"
    if part in job.behind_joins:
        return f"{part}: {', '.join(side.name for side in job.inputs)}"
    for number, step in enumerate(job.joins):
        inputs = {LEFT: job.left_inputs(number), RIGHT: (step.right,)}
        for side in SIDES:
            if part_name(number, side) == part:
                return f"{part}: {', '.join(inputs[side])}"
    return part  # a part of an earlier definition of the job, which is being settled


_LOCATIONS: Mapping[RunsOn, str] = {"driver": "the driver", "spark": "Spark"}
_OUT = "$out"  # no input has this name


WHY_ENDED: Mapping[EndedBy, str] = {
    "stopped": "stopped",
    "once": "read to the ends of now",
    "inputs": "all inputs have ended",
}


def ended_inputs(driver: Driver) -> list[str]:
    """Return the inputs that an earlier run has read to their final ends (T7)."""
    return [name for name, state in driver.state.inputs.items() if state.progress.ended]


def where_rows_are(job: Job) -> list[str]:
    """Say where each output is, with a command that shows some of it: for a user's first run."""
    if job.spec.outputs is None:
        return [_where_rows_are(job, job.outputs[0])]
    return [f"{output.name}: {_where_rows_are(job, output)}" for output in job.outputs]


def _where_rows_are(job: Job, output: NamedOutput) -> str:
    if output.file is not None:
        folder = output.file.path
        command = f"head {shlex.quote(folder)}/*.jsonl"
        if output.format == "parquet":
            code = f"import polars; print(polars.scan_parquet({folder + '/*.parquet'!r}).head().collect())"
            command = f"python -c {shlex.quote(code)}"
        return f"rows are in {folder}: {command}"
    if output.kafka is not None:
        kafka = output.kafka
        prefix = f"{output.format}-" if output.format in ("avro", "protobuf") else ""
        program = f"kafka-{prefix}console-consumer"
        command = f"{program} --bootstrap-server {kafka.bootstrap_servers} --topic {kafka.topic}"
        if output.schema_registry is not None:
            command += f" --property schema.registry.url={output.schema_registry.url}"
        return f"rows are in the topic {kafka.topic}: {command} --from-beginning"
    if output.iceberg is not None or output.delta is not None:
        return f"rows are in the {lake_table(output).name}: {_query_text(output)}"
    if output.console is not None:
        return "the first rows of each epoch were printed here; none are kept"
    assert output.postgres is not None, "an output has one of these kinds"
    table = output.postgres.table
    if not output.postgres.is_external and job.spec.state_store.kind == "embedded":
        # The embedded Postgres stops with the job.
        return f"rows are in the table {table} of the embedded Postgres: {_query_text(output)}"
    database = "the database of output.postgres" if output.postgres.is_external else "the state store's database"
    return f"rows are in the table {table} of {database}: SELECT * FROM {table} LIMIT 10"


def _query_text(output: NamedOutput) -> str:
    return f"joinery sql JOB.yaml 'SELECT * FROM {output.name} LIMIT 10'"


def inputs_to_latest(job: Job) -> list[str]:
    return [source.name for source in job.read_inputs if source.kafka is not None and source.kafka.stop_at == "latest"]


def nothing_new(by: EndedBy, ended: Sequence[str], to_latest: Sequence[str]) -> str:
    """Explain a run that had nothing to read. `ended` are the inputs that had ended before this run, `to_latest` those
    with `stopAt: latest`."""
    if ended:
        return (
            f"there was nothing new to read: {', '.join(ended)} ended in an earlier run (end of the files, or stopAt), "
            "and an input that has ended stays so. To process all of it again, delete the state: joinery state delete "
            "JOB.yaml --yes. To read with each run what is new, do that, and from then on use `joinery run --once`"
        )
    if by == "inputs" and to_latest:
        return (
            f"there was nothing new to read: stopAt of {', '.join(to_latest)} is latest, which means the end at the "
            "job's first start. `joinery run --once` continues from there, to the current end"
        )
    return "there was nothing new to read"


def show_time(watermark: Watermark) -> str:
    if watermark is None:
        return "-"
    if watermark == END_OF_TIME:
        return "ended"
    try:
        return datetime.fromtimestamp(watermark / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError):
        return str(watermark)
