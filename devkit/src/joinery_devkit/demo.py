"""`make demo`: a streaming join on a real Kafka broker, Spark and Postgres, and then its verification.

    broker, Postgres -> orders and payments sent while `joinery run` joins them -> SIGTERM -> verdict

The job runs as a process of its own, as a user would start it. What it wrote is then judged by `verify`, which shares
no code with the engine. Everything that was brought up is gone afterwards, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psycopg
from confluent_kafka import Producer
from psycopg.rows import dict_row
from rich.console import Console
from rich.syntax import Syntax

from joinery_devkit.datagen import DELAY_MS, INTERVAL_MS, LATENESS_MS, Made, make
from joinery_devkit.demo_view import Progress, Rows, joined_table, open_view
from joinery_devkit.environment import java_command
from joinery_devkit.kafka import KafkaBroker, kafka_jars
from joinery_devkit.processes import ChildProcess, deadline_after
from joinery_devkit.topics import read_topic
from joinery_devkit.verify import Verdict, verify
from joinery_runtime.errors import EnvironmentProblem, JoineryError
from joinery_runtime.job import format_duration, load_job
from joinery_runtime.state.embedded import embedded_postgres

PARTITIONS = 3
DEAD_LETTERS = "orders-payments.dead"
_FIRST_SHARE = 0.02  # what is there before the job
_TICK_SECONDS = 0.05
_STALLED_SECONDS = 150.0
_STOP_SECONDS = 90.0
_EVERY_EPOCH = "1000000"

JOB = """\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: orders-payments}}
spec:
  inputs:
    - name: orders
      kafka: {{bootstrapServers: "{bootstrap}", topic: orders}}
      format: json
      schema:
        - {{name: order_id, type: string}}
        - {{name: customer, type: string}}
        - {{name: amount, type: double}}
        - {{name: currency, type: string}}
        - {{name: ts, type: timestamp}}
      eventTime: ts
      watermark: {{delay: {delay}}}
    - name: payments
      kafka: {{bootstrapServers: "{bootstrap}", topic: payments}}
      format: json
      schema:
        - {{name: payment_id, type: string}}
        - {{name: order_id, type: string}}
        - {{name: method, type: string}}
        - {{name: amount, type: double}}
        - {{name: ts, type: timestamp}}
      eventTime: ts
      watermark: {{delay: {delay}}}
  joins:
    - right: payments
      type: inner
      keys: {{orders.order_id: payments.order_id}}
      interval: {{of: orders, lower: {lower}, upper: {upper}}}
      where: "orders.amount >= 5 AND payments.amount <= orders.amount"
      allowedLateness: {lateness}
  select:
    - {{column: orders.order_id}}
    - {{column: orders.customer}}
    - {{column: orders.amount, as: ordered}}
    - {{column: orders.currency}}
    - {{column: orders.ts, as: ordered_at}}
    - {{column: payments.payment_id}}
    - {{column: payments.method}}
    - {{column: payments.amount, as: paid}}
    - {{column: payments.ts, as: paid_at}}
  output: {{postgres: {{table: joined}}}}
  deadLetter: {{kafka: {{topic: {dead_letters}}}}}
  stateStore: {{postgres: {{dsn: "{dsn}"}}}}
  shards: 4
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How many orders (payments come on top), sent over how many seconds."""

    orders: int
    seconds: float
    seed: int


class Sender:
    """Sends records in a thread of its own: a first share at once, the others at an even pace after `go`."""

    def __init__(self, bootstrap: str, records: Sequence[Made], seconds: float) -> None:
        self._records, self._seconds = records, seconds
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
        self._go, self._stopping = Event(), Event()
        self._thread = Thread(target=self._send, name="sender", daemon=True)
        self.sent = 0

    @property
    def done(self) -> bool:
        return self.sent == len(self._records)

    @contextmanager
    def running(self) -> Iterator[Sender]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            self._go.set()
            self._thread.join()

    def go(self) -> None:
        self._go.set()

    def _send(self) -> None:
        self._send_until(int(_FIRST_SHARE * len(self._records)))
        self._go.wait()
        started, first = time.monotonic(), self.sent
        while self.sent < len(self._records) and not self._stopping.is_set():
            share = (time.monotonic() - started) / self._seconds
            self._send_until(min(len(self._records), first + 1 + int(share * (len(self._records) - first))))
            self._stopping.wait(_TICK_SECONDS)

    def _send_until(self, due: int) -> None:
        for record in self._records[self.sent : due]:
            self._producer.produce(record.topic, key=record.key, value=record.value)
        self._producer.flush()
        self.sent = due


class RunningJob:
    """`joinery run` as a child process; its JSON lines are read from its log."""

    def __init__(self, job_file: Path, directory: Path) -> None:
        environment = {**os.environ, "SPARK_LOCAL_DIRS": str(directory / "spark"), "PYTHONUNBUFFERED": "1"}
        self._process = ChildProcess([_joinery(), "run", str(job_file)], directory / "joinery.log", environment)
        self._at = 0

    @contextmanager
    def running(self) -> Iterator[RunningJob]:
        try:
            yield self
        finally:
            self._process.stop()

    def events(self) -> Iterator[Mapping[str, Any]]:
        """The events that it has logged since the last call. Raises JoineryError when it has ended."""
        ended = not self._process.running()
        with self._process.log.open("rb") as log:
            log.seek(self._at)
            lines = log.read().splitlines(keepends=True)
        for line in lines:
            if line.endswith(b"\n"):
                self._at += len(line)
                if line.startswith(b"{"):
                    yield json.loads(line)
        if ended:
            raise self.problem("ended by itself")

    def stop(self) -> None:
        """SIGTERM: the job ends after the running epoch."""
        self._process.stop(_STOP_SECONDS)
        if self._process.exit_code() != 0:
            raise self.problem("did not stop in order")

    def problem(self, what: str) -> JoineryError:
        """An error that tells what the job said last."""
        facts = f"exit code {self._process.exit_code()}, its last words:\n{self._process.log_tail()}"
        return JoineryError(f"the job {what}", facts=facts)


def _joinery() -> str:
    """The command that belongs to this Python."""
    command = Path(sys.executable).with_name("joinery")
    if not command.is_file():
        raise EnvironmentProblem("the joinery command is missing", facts=f"{command}", todo="Run make setup")
    return str(command)


def demo(console: Console, size: Size) -> Verdict:
    """Runs it all and returns the verdict. Raises JoineryError."""
    began = time.monotonic()
    java_command()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="joinery-demo-")))
        broker = _broker(stack, console, directory)
        console.print("Starting an embedded Postgres, for state, offsets and output")
        dsn = stack.enter_context(embedded_postgres(directory / "postgres"))
        job_file = _job_file(directory, broker.bootstrap, dsn)
        _show(console, job_file)
        records = make(size.seed, size.orders)
        console.print(
            f"Sending {len(records):,} records in {size.seconds:.0f} s, while `joinery run` joins them on Spark"
        )
        _join(console, job_file, directory, dsn, Sender(broker.bootstrap, records, size.seconds))
        if not console.is_terminal:  # there they are in sight already
            console.print(joined_table("The newest joined rows", _newest(dsn)))
        console.print("Reading the topics again, and comparing the output with what the rules demand")
        verdict = _judge(job_file, broker.bootstrap, dsn)
        console.print(f"{verdict} ({time.monotonic() - began:.0f} s in all)", highlight=False, soft_wrap=True)
    return verdict


def _broker(stack: ExitStack, console: Console, directory: Path) -> KafkaBroker:
    console.print("Starting a Kafka broker (the first time ever, this downloads 60 MB)")
    kafka_jars()
    broker = stack.enter_context(KafkaBroker(directory / "kafka"))
    for topic, partitions in (("orders", PARTITIONS), ("payments", PARTITIONS), (DEAD_LETTERS, 1)):
        broker.create_topic(topic, partitions)
    return broker


def _job_file(directory: Path, bootstrap: str, dsn: str) -> Path:
    lower, upper, delay, lateness = map(format_duration, (*INTERVAL_MS, DELAY_MS, LATENESS_MS))
    path = directory / "orders-payments.yaml"
    text = JOB.format(
        bootstrap=bootstrap, dsn=dsn, dead_letters=DEAD_LETTERS,
        lower=lower, upper=upper, delay=delay, lateness=lateness,
    )  # fmt: skip
    path.write_text(text)
    return path


def _show(console: Console, job_file: Path) -> None:
    console.print(f"The job, {job_file}:")
    text = job_file.read_text()
    if console.is_terminal:
        console.print(Syntax(text, "yaml", background_color="default", padding=(0, 2)))
    else:
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def _join(console: Console, job_file: Path, directory: Path, dsn: str, sender: Sender) -> None:
    """Returns when the job has read all that was sent and has stopped."""
    with sender.running(), RunningJob(job_file, directory).running() as job:
        _watch(console, job, sender, dsn)
        console.print("All is read: SIGTERM, the job stops after its epoch")
        job.stop()


def _watch(console: Console, job: RunningJob, sender: Sender, dsn: str) -> None:
    progress = Progress()
    deadline = deadline_after(_STALLED_SECONDS)
    with open_view(console) as view:
        while not sender.done or progress.read.total() < sender.sent:
            before = progress.epoch
            for event in job.events():
                progress.take(event)
            if progress.epoch > before:
                sender.go()
                deadline = deadline_after(_STALLED_SECONDS)
            elif time.monotonic() > deadline:
                raise job.problem(f"has made no progress for {_STALLED_SECONDS:.0f} s")
            view.update(progress, sender.sent, _newest(dsn) if console.is_terminal and progress.joined else ())
            time.sleep(0.2)


def _newest(dsn: str) -> Rows:
    shown = "order_id, customer, ordered, method, paid, ordered_at, paid_at"
    return _query(dsn, f"SELECT {shown} FROM joined ORDER BY paid_at DESC LIMIT 5")


def _query(dsn: str, sql: str) -> Rows:
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        return connection.execute(sql).fetchall()


def _judge(job_file: Path, bootstrap: str, dsn: str) -> Verdict:
    job = load_job(job_file)
    records = {side.name: read_topic(bootstrap, side.name) for side in job.spec.inputs}
    dead = [json.loads(record.value or b"") for record in read_topic(bootstrap, DEAD_LETTERS)]
    return verify(records, _epoch_log(job_file), _query(dsn, "SELECT * FROM joined"), job, dead_letters=dead)


def _epoch_log(job_file: Path) -> list[Mapping[str, Any]]:
    """The epoch log as anybody can have it, through the command line."""
    command = [_joinery(), "state", "epochs", str(job_file), "--limit", _EVERY_EPOCH]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise JoineryError("the epoch log cannot be read", facts=done.stderr.strip())
    return [json.loads(line) for line in done.stdout.splitlines()]


def _interrupt(*_: object) -> None:
    """Only the first one counts: what cleans up must not be interrupted, and none of its steps waits for ever.

    What comes after it is taken and not ignored (SIG_IGN): of two signals at once Python would tell the second one's
    handler that is gone, which ends a C call of the Kafka client with a SystemError.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: verified; 1: not; 3: something is missing on this machine; 130: interrupted."""
    parser = argparse.ArgumentParser(prog="python -m joinery_devkit.demo", description="A verified streaming join")
    parser.add_argument("--orders", type=int, default=60_000, help="how many (default: 60000)")
    parser.add_argument("--seconds", type=float, default=25.0, help="how long sending takes (default: 25)")
    parser.add_argument("--seed", type=int, default=1, help="of the records (default: 1)")
    chosen = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        return 0 if demo(Console(), Size(chosen.orders, chosen.seconds, chosen.seed)).ok else 1
    except KeyboardInterrupt:
        print("joinery demo: interrupted, everything is cleaned up", file=sys.stderr)
        return 130
    except JoineryError as problem:
        print(f"joinery demo: {problem}", file=sys.stderr)
        return problem.exit_code


if __name__ == "__main__":
    sys.exit(main())
