"""A board that has seen a day of a job, for the page: two topics, one with a slow partition, and a rescale."""

from __future__ import annotations

import math
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

from joinery_runtime.core.pipeline.watermark import END_OF_TIME, InputProgress
from joinery_runtime.engine.hot_keys import KeyRows
from joinery_runtime.engine.loop import CommittedEpoch, JobListener, Outage, Scaling
from joinery_runtime.engine.plan import InputState
from joinery_runtime.engine.report import EpochReport, PartTotals, StateSize, Totals
from joinery_runtime.hosts.status.board import Board, Liveness
from joinery_runtime.hosts.status.snapshot import JobDescription

START = 1_790_000_000.0  # seconds since 1970
SOURCES = {"orders": "Kafka topic shop.orders, from the earliest records", "payments": "Kafka topic shop.payments"}
ABOUT = JobDescription(
    "an inner interval join",
    SOURCES,
    "Kafka topic shop.orders_paid, exactly once",
    "orders-payments: an inner interval join\n  payments from 0 ms to 30 min after orders",
)


NOBODY = JobListener(*[lambda *_: None] * 3)


@dataclass
class DayOfAJob:
    """Its clocks are its own; `run` lets time pass, with an epoch every `every` seconds."""

    names: tuple[str, ...] = ("orders", "payments")
    partitions: int = 3
    now: float = START
    epoch: int = 0
    read: dict[str, int] = field(default_factory=dict)
    out: int = 0
    ended: bool = False
    silent: str = ""
    newest: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sources = {name: SOURCES.get(name, f"Kafka topic {name}") for name in self.names}
        about = replace(ABOUT, sources=sources)
        self.board = Board("orders-payments", self.names, Liveness(600, self.clock), self.clock, self.clock, about)
        idle = {self.names[0]: (f"{self.names[0]}/2",)}
        self.listener = self.board.recording_listener(NOBODY, idle=lambda: idle, savepoints=list)
        self.read = self.read or dict.fromkeys(self.names, 0)
        self.driver: Any = SimpleNamespace(generation=3, state=self, backlog={}, paused={}, planned=False)
        self.listener.started(self.driver)

    def clock(self) -> float:
        return self.now

    # What the board asks of a driver's state.

    @property
    def committed_at_ms(self) -> int | None:
        return None

    @property
    def size(self) -> StateSize:
        return StateSize(12, 40_000, 3_000_000)

    @property
    def sides(self) -> Mapping[str, Any]:
        return {"left": SimpleNamespace(inputs=self.names[:-1]), "right": SimpleNamespace(inputs=self.names[-1:])}

    @property
    def part_sizes(self) -> dict[str, StateSize]:
        wave = 1 + 0.3 * math.sin(self.now / 300)
        return {
            "left": StateSize(6, round(30_000 * wave), round(2_400_000 * wave)),
            "right": StateSize(6, round(11_000 * wave), round(900_000 * wave)),
        }

    @property
    def inputs(self) -> dict[str, InputState]:
        now = round(self.now * 1000)
        states = {}
        for number, name in enumerate(self.names):
            highest: dict[str, int | None] = {
                f"{name}/{p}": now - 2_000 - 9_000 * p * (1 + number) for p in range(self.partitions)
            }
            highest |= {self.silent: None} if self.silent in highest else {}
            watermark = (
                END_OF_TIME if self.ended else now - 10_000 - round(8_000 * number * (1 + math.sin(self.now / 90)))
            )
            states[name] = InputState(progress=InputProgress(highest, watermark))
        return states

    @property
    def totals(self) -> Totals:
        return Totals(
            dict(self.read),
            self.out,
            {self.names[0]: {"late": self.epoch // 5, "null_key": 12}},
            {self.names[-1]: self.epoch // 9},
            parts={
                "left": PartTotals(900_000, 860_000, 410_000, self.out, 41_000),
                "right": PartTotals(410_000, 399_000, 900_000, self.out, 15_000),
            },
            behind={self.names[0]: 74_000},
        )

    def run(self, seconds: float, every: float = 1.0) -> None:
        until = self.now + seconds
        while self.now < until:
            self.listener.polled(self.driver)
            self.now += every
            self.epoch += 1
            pace = (1 + 0.4 * math.sin(self.now / 120)) * every
            rows = {name: round(pace * 4_000 / (1 + number)) for number, name in enumerate(self.names)}
            self.newest = rows
            self.read = {name: self.read[name] + rows[name] for name in self.names}
            self.out += round(pace * 1_700)
            lag = {
                name: round(3_000 * (1.2 + math.sin(self.now / 200 + number))) for number, name in enumerate(self.names)
            }
            self.driver.backlog = lag
            self._commit(rows, lag)

    def _commit(self, rows: dict[str, int], lag: dict[str, int]) -> None:
        report = EpochReport(
            epoch=self.epoch,
            rows_in=rows,
            rows_out=round(sum(rows.values()) * 0.28),
            dropped={},
            dead={},
            watermarks={},
            backlog=lag,
            lost={},
            segments=12,
            state_rows=40_000,
            state_bytes=sum(size.bytes for size in self.part_sizes.values()),
            totals=self.totals,
            runs_on="spark",
            hottest=(KeyRows("id=guest", 1_804), KeyRows("id=7113", 96)),
            parts=self.part_sizes,
        )
        ran = 0.18 + 0.05 * math.sin(self.epoch)
        self.listener.committed(CommittedEpoch(report, ran + 0.07, ran, 0.055))

    def begin_outage(self, outage: Outage) -> None:
        self.board.outage_listener(NOBODY).waiting(outage)

    def scaled(self) -> None:
        self.listener.scaled(Scaling(8, 4, "lag of 84,000 records is more than 10 s of work", "load"))


@contextmanager
def in_front_of(address: str, change: Callable[[str, bytes], bytes | None]) -> Iterator[str]:
    """The address of a server that passes a driver's answers on as `change` makes them of a path and a body; None: it
    does not answer."""

    class Between(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with urllib.request.urlopen(address + self.path, timeout=60) as answer:
                body = change(self.path, answer.read())
            if body is None:
                self.send_error(503)
                return
            self.send_response(200)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Between)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def gone_after_one_answer(address: str) -> AbstractContextManager[str]:
    """The address of a driver that tells its status once, and no second time."""
    paths: list[str] = []

    def answer(path: str, body: bytes) -> bytes | None:
        paths.append(path)
        return None if paths.count("/status") > 1 else body

    return in_front_of(address, answer)
