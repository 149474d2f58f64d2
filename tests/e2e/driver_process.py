"""`joinery run` as a process of its own: its JSON lines as they come, and what is done to it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyspark

PATIENCE_S = 480  # for what hangs: the machine may be a tenth of itself for minutes


@dataclass(slots=True)
class Run:
    """One driver process. `lines` has those so far."""

    process: subprocess.Popen[str]
    lines: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    _readers: list[threading.Thread] = field(default_factory=list)

    @classmethod
    def start(cls, job: Path, master: str, environment: Mapping[str, str] | None = None) -> Run:
        full = os.environ | {"SPARK_HOME": str(Path(pyspark.__file__).parent)} | dict(environment or {})
        command = [str(Path(sys.executable).with_name("joinery")), "run", str(job), "--master", master]
        return cls.of(command, full, job.parent)

    @classmethod
    def of(cls, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Run:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(environment), cwd=folder
        )
        run = cls(process)
        run._readers = [threading.Thread(target=target) for target in (run._read_lines, run._read_errors)]
        for reader in run._readers:
            reader.start()
        return run

    def wait(self) -> int:
        """The driver's exit code. What it started may live on for a moment and keep its output open."""
        code = self.process.wait(timeout=PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return code

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait_for(self, what: str, ready: Any) -> None:
        """Until `ready(epoch lines)` holds; fails when the driver ends first or time runs out."""
        with self.changed:
            met = self.changed.wait_for(lambda: ready(self.epochs) or self.process.poll() is not None, PATIENCE_S)
        assert self.process.poll() is None, f"{what}: the driver ended\n{self.last_words}"
        assert met, f"{what}: not within {PATIENCE_S} s"

    def wait_for_more_epochs(self, number: int) -> None:
        target = len(self.epochs) + number
        self.wait_for(f"{number} more epochs", lambda epochs: len(epochs) >= target)

    @property
    def epochs(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == "epoch"]

    @property
    def replayed(self) -> bool:
        """Whether it found a pending plan."""
        return any(line["event"] == "started" and line["replays"] for line in self.lines)

    @property
    def last_words(self) -> str:
        return "".join(self.errors[-30:])

    def pause(self) -> list[psutil.Process]:
        """Stops all of its processes (SIGSTOP) until `resume` gets them back."""
        stopped: dict[int, psutil.Process] = {}
        # Until none has been started.
        while new := [process for process in self.processes() if process.pid not in stopped]:
            for process in new:
                process.suspend()
                stopped[process.pid] = process
        return list(stopped.values())

    @staticmethod
    def resume(paused: list[psutil.Process]) -> None:
        for process in paused:
            process.resume()

    def processes(self) -> list[psutil.Process]:
        """The driver, its Java process, executors and Python workers."""
        driver = psutil.Process(self.process.pid)
        return [driver, *driver.children(recursive=True)]

    def kill(self) -> None:
        """Whatever is left of it."""
        with suppress(psutil.NoSuchProcess):
            for process in reversed(self.processes()):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.wait()

    def executors(self) -> list[psutil.Process]:
        """The Java processes of this driver's executors; none where the driver itself runs the tasks."""
        return [process for process in self.processes() if "CoarseGrainedExecutorBackend" in command_of(process)]

    def python_workers(self) -> list[psutil.Process]:
        """The Python processes that run tasks. Not the daemons that fork them, by whatever module: workers whose daemon
        has died go on, and are nobody's children then."""
        python = {
            process.pid: process for process in self.processes() if command_of(process).endswith(" pyspark.worker")
        }
        return [process for process in python.values() if _parent(process) in python]

    def some(self, what: Callable[[], list[psutil.Process]]) -> list[psutil.Process]:
        """What is there of these processes, as soon as there is one: those that died are replaced after a while."""
        deadline = time.monotonic() + PATIENCE_S
        while not (processes := what()):
            assert self.process.poll() is None, self.last_words
            assert time.monotonic() < deadline, what.__name__
            time.sleep(0.02)
        return processes

    def kill_one(self, what: Callable[[], list[psutil.Process]], choose: random.Random) -> None:
        """One may have ended by itself since they were listed."""
        while True:
            with suppress(psutil.NoSuchProcess):
                choose.choice(self.some(what)).kill()
                return

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                if not line.startswith("{"):  # spark-submit puts a program's errors there too
                    self.errors.append(line)
                    continue
                with self.changed:
                    self.lines.append(json.loads(line))
                    self.changed.notify_all()
        self.process.wait(PATIENCE_S)  # its output may end before it does
        with self.changed:
            self.changed.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                self.errors.append(line)


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.Error:
        return None


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def caught_up(epochs: list[Mapping[str, Any]]) -> bool:
    return bool(epochs) and not any(epochs[-1]["backlog"].values())
