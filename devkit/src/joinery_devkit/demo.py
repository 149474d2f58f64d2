"""`make demo`: a streaming job on a real Kafka broker, Spark and Postgres, and then its verification.

    broker, Postgres -> records sent while `joinery run` takes them -> its end, or SIGTERM -> verdict

It runs one of `SCENARIOS`: joins of orders and payments, or sessions of clicks. The job runs as a process of its own,
as a user would start it. Code that shares nothing with the engine then judges the output. At the end, even after
Ctrl-C, everything that was started is gone. With `--keep` it stays until Ctrl-C, for a look around.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psycopg
from psycopg.rows import dict_row
from rich.console import Console
from rich.syntax import Syntax

from joinery_devkit.datagen import GeneratedRecord
from joinery_devkit.demo_process import RunningJob, Sender
from joinery_devkit.demo_scenarios import Joins, SessionsOfClicks
from joinery_devkit.demo_view import Progress, Rows, Wording, open_view, table_of
from joinery_devkit.environment import java_command
from joinery_devkit.kafka import KafkaBroker, kafka_jars
from joinery_devkit.playground import write_environment
from joinery_devkit.processes import deadline_after
from joinery_devkit.verify_plan import CheckResult
from joinery_runtime.errors import JoineryError
from joinery_runtime.state.embedded import embedded_postgres

_STALLED_SECONDS = 150.0
_STAYS = """
Kept until Ctrl-C. In another terminal:
    cd {folder} && . ./env
    psql $POSTGRES -c 'SELECT * FROM {table} LIMIT 5'
    joinery explain {job}
    joinery state stats {job}
    joinery run {job} --status-port 8998    # resumes where it stopped; its page is http://localhost:8998/
"""


class Scenario(Protocol):
    """What the demo shows: topics with their partitions, records, and a job. `newest` is a query for some rows of the
    job's `table`; `ends` says that the job ends by itself once it has read all records."""

    name: str
    topics: Mapping[str, int]
    words: Wording
    newest: str
    table: str
    ends: bool

    def records(self, seed: int, size: int) -> list[GeneratedRecord]: ...

    def job(self, bootstrap: str, dsn: str, records: Sequence[GeneratedRecord]) -> str:
        """Return the job's file."""
        ...

    def judge(self, job_file: Path, bootstrap: str, table: Rows) -> CheckResult: ...


SCENARIOS: Mapping[str, Scenario] = {"joins": Joins(), "sessions": SessionsOfClicks()}


@dataclass(frozen=True, slots=True)
class Size:
    """How many orders (payments come on top) or clicks, sent over how many seconds."""

    records: int
    seconds: float
    seed: int


def demo(console: Console, scenario: Scenario, size: Size, *, keep: bool = False) -> CheckResult:
    """Run the demo and return the verdict; with `keep`, wait for an interrupt first. Raises JoineryError."""
    began = time.monotonic()
    java_command()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="joinery-demo-")))
        console.print("Starting a Kafka broker (the first time ever, this downloads 60 MB)")
        kafka_jars()
        broker = stack.enter_context(KafkaBroker(directory / "kafka"))
        for topic, partitions in scenario.topics.items():
            broker.create_topic(topic, partitions)
        console.print("Starting an embedded Postgres, for state, offsets and output")
        dsn = stack.enter_context(embedded_postgres(directory / "postgres"))
        records = scenario.records(size.seed, size.records)
        job_file = directory / f"{scenario.name}.yaml"
        job_file.write_text(scenario.job(broker.bootstrap, dsn, records))
        console.print(f"The job, {job_file}:")
        if console.is_terminal:
            console.print(Syntax(job_file.read_text(), "yaml", background_color="default", padding=(0, 2)))
        else:
            console.print(job_file.read_text(), highlight=False, markup=False, soft_wrap=True)
        sender = Sender(broker.bootstrap, records, size.seconds)
        console.print(
            f"Sending {len(records):,} records in {size.seconds:.0f} s, "
            f"while `joinery run` {scenario.words.does} on Spark"
        )
        with sender.running(), RunningJob(job_file, directory).running() as job:
            _DemoRun(console, scenario, dsn).watch(job, sender)
        if not console.is_terminal:  # a terminal already shows these rows
            console.print(table_of(f"The newest {scenario.words.title}", _query_rows(dsn, scenario.newest)))
        console.print("Reading the topics again, and comparing the output with what the rules demand")
        verdict = scenario.judge(job_file, broker.bootstrap, _query_rows(dsn, f"SELECT * FROM {scenario.table}"))
        console.print(f"{verdict} ({time.monotonic() - began:.0f} s in all)", highlight=False, soft_wrap=True)
        if keep:
            write_environment(directory / "env", broker.bootstrap, dsn, directory / "home")
            text = _STAYS.format(folder=directory, table=scenario.table, job=job_file.name)
            console.print(text, highlight=False, markup=False, soft_wrap=True)
            with suppress(KeyboardInterrupt):
                signal.pause()
    return verdict


@dataclass(frozen=True, slots=True)
class _DemoRun:
    console: Console
    scenario: Scenario
    dsn: str

    def watch(self, job: RunningJob, sender: Sender) -> None:
        """Watch the job until it has read everything that was sent, and has stopped."""
        progress = Progress()
        deadline = deadline_after(_STALLED_SECONDS)
        with open_view(self.console, self.scenario.words) as view:
            while not self._has_arrived(job, sender, progress):
                before = progress.epoch
                for event in job.events():
                    progress.take(event)
                if progress.epoch > before:
                    sender.go()
                    deadline = deadline_after(_STALLED_SECONDS)
                elif time.monotonic() > deadline:
                    raise job.problem(f"has made no progress for {_STALLED_SECONDS:.0f} s")
                newest = (
                    _query_rows(self.dsn, self.scenario.newest) if self.console.is_terminal and progress.out else ()
                )
                view.update(progress, sender.sent, newest)
                time.sleep(0.2)
        if not self.scenario.ends:
            self.console.print("All is read: SIGTERM, the job stops after its epoch")
        job.stop()

    def _has_arrived(self, job: RunningJob, sender: Sender, progress: Progress) -> bool:
        if self.scenario.ends:
            return job.ended
        if job.ended:
            raise job.problem("ended by itself")
        return sender.done and progress.read.total() >= sender.sent


def _query_rows(dsn: str, sql: str) -> Rows:
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        return connection.execute(sql.encode()).fetchall()


def _interrupt_once(*_: object) -> None:
    """Raise KeyboardInterrupt at the first signal only: the clean-up must not be interrupted, and none of its steps
    waits for ever.

    Later signals get a handler that does nothing, rather than SIG_IGN: if two signals arrive at once, Python would look
    for the second one's handler in vain, which ends a C call of the Kafka client with a SystemError.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo. Exit code 0: verified; 1: not; 3: something is missing on this machine; 130: interrupted."""
    parser = argparse.ArgumentParser(prog="python -m joinery_devkit.demo", description="A verified streaming job")
    parser.add_argument("--kind", choices=SCENARIOS, default="joins", help="what the job does (default: joins)")
    parser.add_argument("--records", type=int, default=60_000, help="how many orders or clicks (default: 60000)")
    parser.add_argument("--seconds", type=float, default=25.0, help="how long sending takes (default: 25)")
    parser.add_argument("--seed", type=int, default=1, help="of the records (default: 1)")
    parser.add_argument("--keep", action="store_true", help="leave all as it is at the end, until Ctrl-C")
    chosen = parser.parse_args(arguments)
    size = Size(chosen.records, chosen.seconds, chosen.seed)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt_once)
    try:
        return 0 if demo(Console(), SCENARIOS[chosen.kind], size, keep=chosen.keep).ok else 1
    except KeyboardInterrupt:
        print("joinery demo: interrupted, everything is cleaned up", file=sys.stderr)
        return 130
    except JoineryError as problem:
        print(f"joinery demo: {problem}", file=sys.stderr)
        return problem.exit_code


if __name__ == "__main__":
    sys.exit(main())
