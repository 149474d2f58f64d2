"""What the demo runs beside itself: a thread that sends records, and `joinery` as a user would start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from joinery_devkit.datagen import GeneratedRecord
from joinery_devkit.oracle.rows import END
from joinery_devkit.processes import ChildProcess
from joinery_devkit.topics import ordered_producer
from joinery_runtime.errors import EnvironmentProblem, JoineryError

_FIRST_SHARE = 0.02  # of the records, sent before the job starts
_TICK_SECONDS = 0.05
_STOP_SECONDS = 90.0
_EVERY_EPOCH = "1000000"


class Sender:
    """Sends records in a thread of its own: a first share at once, the others at an even pace after `go`."""

    def __init__(self, bootstrap: str, records: Sequence[GeneratedRecord], seconds: float) -> None:
        self._records, self._seconds = records, seconds
        self._producer = ordered_producer(bootstrap, {"linger.ms": 5, "log_level": 0})
        self._go, self._stopping = Event(), Event()
        self._thread = Thread(target=self._send_records, name="sender", daemon=True)
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

    def _send_records(self) -> None:
        self._send_until(int(_FIRST_SHARE * len(self._records)))
        self._go.wait()
        started, first = time.monotonic(), self.sent
        while self.sent < len(self._records) and not self._stopping.is_set():
            share = (time.monotonic() - started) / self._seconds
            self._send_until(min(len(self._records), first + 1 + int(share * (len(self._records) - first))))
            self._stopping.wait(_TICK_SECONDS)

    def _send_until(self, due: int) -> None:
        for record in self._records[self.sent : due]:
            self._producer.produce(record.topic, key=record.key, value=record.value, partition=record.partition)
        self._producer.flush()
        self.sent = due


class RunningJob:
    """`joinery run` as a child process; its JSON lines are read from its log."""

    def __init__(self, job_file: Path, directory: Path) -> None:
        environment = {**os.environ, "SPARK_LOCAL_DIRS": str(directory / "spark"), "PYTHONUNBUFFERED": "1"}
        environment |= {"JOINERY_WAIT_FOR_SPARK": "1"}  # the demo shows Spark, from its first epoch on
        self._process = ChildProcess([_joinery_command(), "run", str(job_file)], directory / "joinery.log", environment)
        self._at = 0

    @contextmanager
    def running(self) -> Iterator[RunningJob]:
        try:
            yield self
        finally:
            self._process.stop()

    @property
    def ended(self) -> bool:
        """Whether the job has ended by itself, successfully."""
        return self._process.exit_code() == 0

    def events(self) -> Iterator[Mapping[str, Any]]:
        """Yield the events that the job has logged since the last call. Raises JoineryError if it has failed."""
        failed = self._process.exit_code() not in {None, 0}
        with self._process.log.open("rb") as log:
            log.seek(self._at)
            lines = log.read().splitlines(keepends=True)
        for line in lines:
            if line.endswith(b"\n"):
                self._at += len(line)
                if line.startswith(b"{"):
                    yield json.loads(line)
        if failed:
            raise self.problem("ended by itself")

    def stop(self) -> None:
        """Send SIGTERM to the job if it still runs: it ends after the running epoch."""
        self._process.stop(_STOP_SECONDS)
        if self._process.exit_code() != 0:
            raise self.problem("did not stop in order")

    def problem(self, failure: str) -> JoineryError:
        """Return an error with the last lines of the job's log."""
        facts = f"exit code {self._process.exit_code()}, its last words:\n{self._process.log_tail()}"
        return JoineryError(f"the job {failure}", facts=facts)


def _joinery_command() -> str:
    """Return the command that belongs to this Python."""
    command = Path(sys.executable).with_name("joinery")
    if not command.is_file():
        raise EnvironmentProblem("the joinery command is missing", facts=f"{command}", todo="Run make setup")
    return str(command)


def epoch_log(job_file: Path) -> list[Mapping[str, Any]]:
    """Read the epoch log as any user can, through the command line."""
    command = [_joinery_command(), "state", "epochs", str(job_file), "--limit", _EVERY_EPOCH]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise JoineryError("the epoch log cannot be read", facts=done.stderr.strip())
    log = [json.loads(line) for line in done.stdout.splitlines()]
    for entry in log:
        at = entry["plan"]["watermarks"]
        entry["plan"]["watermarks"] = {name: END if value == "end" else value for name, value in at.items()}
    return log
