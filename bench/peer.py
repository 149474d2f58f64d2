"""One way to start and measure an engine.

A peer is started with the inputs already in Kafka, is waited for until the expected rows are visible, is stopped, and
its rows are compared with the expected ones.

`cold`: from the start of its process to the last row. `warm`: from the moment when WARM_FROM of the rows were visible,
when compilers, workers and connections have warmed up. What an engine had read ahead by then counts as if it were read
after it; that is at most its clients' queues. An engine that shows its rows in few large steps has no warm rate in a
small run.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from bench.outputs import Ends, Fingerprint, Output, fingerprint
from bench.usage import CpuMeter, end_all, memory_bytes


class Background(ABC):
    """Runs `_run` until it returns; leaving the `with` sets `_done` and waits for that."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def _run(self) -> None: ...

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


WARM_FROM = 0.25
_LOOK_SECONDS = 0.2
_MEMORY_EVERY = 5  # looks: reading the memory of large processes takes milliseconds
_STOP_SECONDS = 60.0
_LEAST_RATE = 1_500  # input rows a second below which a peer is given up, after _START_SECONDS
_START_SECONDS = 300.0
_SHORT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine with its settings. `command` is started in a directory of its own, `folder`, where its log is. `note`
    says after a run what belongs to the settings and is known only then."""

    name: str
    settings: str  # for the table's notes
    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    note: Callable[[], str] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def settings_after_run(self) -> str:
        return self.settings if self.note is None else f"{self.settings}; {self.note()}"


@dataclass(frozen=True, slots=True)
class Figures:
    """`rows` are input rows. Rates are in rows per second, CPU in microseconds per row of all processes, the broker's
    and the database's included; `warm_*` is None where too little was seen. `*_cpu_by_kind`: the same by kind of
    process (`usage.KINDS`). `problem`: why the figures do not count. `query` is Nexmark's, empty in other sections."""

    name: str
    settings: str
    rows: int
    rows_out: int = 0
    cold_rate: float | None = None
    warm_rate: float | None = None
    cold_cpu_us: float | None = None
    warm_cpu_us: float | None = None
    peak_bytes: int | None = None
    problem: str | None = None
    cold_cpu_by_kind: Mapping[str, float] = field(default_factory=dict)
    warm_cpu_by_kind: Mapping[str, float] | None = None
    query: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """`seconds`, and `cpu` seconds by kind of process, since the start."""

    seconds: float
    cpu: Mapping[str, float]
    ends: Ends

    @property
    def visible(self) -> int:
        return sum(self.ends.values())


class Looks(Background):
    """Looks at a run again and again, from a thread of its own: what reads the rows does not stop the clock."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self.looks: list[Look] = []
        self.peak_bytes = 0
        self._output, self._earlier_pids = output, {process.pid for process in psutil.Process().children()}
        self._meter = CpuMeter()
        self._cpu, self._started = self._meter.seconds(), time.monotonic()

    def _run(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            ends = self._output.ends()
            cpu = {kind: seconds - self._cpu[kind] for kind, seconds in self._meter.seconds().items()}
            self.looks.append(Look(time.monotonic() - self._started, cpu, ends))
            if len(self.looks) % _MEMORY_EVERY == 0:
                self.peak_bytes = max(self.peak_bytes, memory_bytes(without=self._earlier_pids))

    def until(self, last: Ends) -> list[Look]:
        """Up to the first look that saw everything up to `last`, which is waited for."""
        number = 0
        while True:
            if number == len(self.looks):
                if not self._thread.is_alive():
                    raise RuntimeError("nobody looks at the output any more; the thread's error is above")
                time.sleep(_LOOK_SECONDS)
            elif all(self.looks[number].ends[part] >= end for part, end in last.items()):
                return self.looks[: number + 1]
            else:
                number += 1


@contextmanager
def running(peer: Peer) -> Iterator[Callable[[], str | None]]:
    """Give a function that says whether the peer ended by itself, and how. Stops it in order, waits for what it leaves
    behind, and kills what does not end."""
    earlier_pids = {process.pid for process in psutil.Process().children()}
    peer.folder.mkdir(parents=True, exist_ok=True)
    with peer.log.open("wb") as log:
        process = subprocess.Popen(
            peer.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=peer.folder,
            env=os.environ | peer.environment, start_new_session=True,
        )  # fmt: skip

    def ended() -> str | None:
        return None if process.poll() is None else f"ended with {process.returncode}; see {peer.log}"

    try:
        yield ended
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        end_all(without=earlier_pids)


def measure(peer: Peer, output: Output, rows: int, expected: Fingerprint) -> Figures:
    """Run `peer` until the expected rows have come to `output`; `rows` is how many it reads."""
    deadline = time.monotonic() + _START_SECONDS + rows / _LEAST_RATE
    last: Ends | None = None
    with Looks(output) as looks, running(peer) as ended:
        while last is None:
            time.sleep(_LOOK_SECONDS)
            visible = looks.looks[-1].visible if looks.looks else 0
            last = output.last(expected.rows) if visible >= expected.rows else None
            if last is None and (problem := ended() or (time.monotonic() > deadline and "was given up") or None):
                visible = sum(output.ends().values())
                seen = f"{visible:,} of {expected.rows:,} rows are visible"
                return Figures(peer.name, peer.settings_after_run(), rows, visible, problem=f"{problem}: {seen}")
        seen_looks = looks.until(last)
    return figures(peer, rows, expected, fingerprint(output.read()), seen_looks, looks.peak_bytes)


def typical(run: Callable[[int], Figures], most: int) -> Figures:
    """Return the figures of the run with the median rate, start counted, of `most` runs of one peer. A run of more than
    _SHORT_SECONDS is not repeated: the start, and what else the machine does, weigh less in it. Of runs with a problem,
    the first one. `run` gets the number of the run, from 1."""
    runs: list[Figures] = []
    while len(runs) < most:
        figures = run(len(runs) + 1)
        if figures.problem is not None or figures.cold_rate is None:
            return figures
        runs.append(figures)
        if figures.rows / figures.cold_rate > _SHORT_SECONDS:
            break
    return sorted(runs, key=lambda figures: figures.cold_rate or 0.0)[len(runs) // 2]


def figures(
    peer: Peer, rows: int, expected: Fingerprint, actual: Fingerprint, looks: Sequence[Look], peak: int
) -> Figures:
    """Return the result of `looks`, which end with the one that saw the last row."""
    last, warm = looks[-1], None
    first_warm = next(number for number, look in enumerate(looks) if look.visible >= WARM_FROM * expected.rows)
    steps = len({look.visible for look in looks[first_warm:]})
    if looks[first_warm].visible < 0.9 * expected.rows and steps > 2:  # otherwise rows came in less than two steps more
        warm = looks[first_warm]
    problem = None
    if actual != expected:
        problem = (
            f"wrong rows: {actual.rows:,} with checksum {actual.checksum:x}, "
            f"not {expected.rows:,} with {expected.checksum:x}"
        )
    warm_rows = rows * (1 - warm.visible / expected.rows) if warm else 0.0
    cold_cpu = _cpu_us_per_row(last.cpu, {}, rows)
    warm_cpu = _cpu_us_per_row(last.cpu, warm.cpu, warm_rows) if warm else None
    return Figures(
        peer.name,
        peer.settings_after_run(),
        rows,
        actual.rows,
        cold_rate=rows / last.seconds,
        warm_rate=warm_rows / (last.seconds - warm.seconds) if warm else None,
        cold_cpu_us=sum(cold_cpu.values()),
        warm_cpu_us=sum(warm_cpu.values()) if warm_cpu else None,
        peak_bytes=peak,
        problem=problem,
        cold_cpu_by_kind=cold_cpu,
        warm_cpu_by_kind=warm_cpu,
    )


def _cpu_us_per_row(until: Mapping[str, float], since: Mapping[str, float], rows: float) -> dict[str, float]:
    return {kind: 1e6 * (seconds - since.get(kind, 0.0)) / rows for kind, seconds in until.items()}
