"""What jobs need at most that once did not fit in memory: records of 1 MB, and one key that all records have, with
default settings; then records of 1 MB with others. Gives the peak of each process, and whether the job ends with all of
its rows.

With default settings each job is killed, with its Postgres and all else, once half of its rows are written, and started
again. Where this user may make control groups, it runs in one that is limited to LIMIT, and the kernel may end nothing
of it. Elsewhere the sum of what its processes hold and cannot give back (anonymous and shared memory) is compared with
LIMIT. The broker is outside.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import psutil
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from bench import joinery_jobs
from bench.peer import Background, Peer, running
from bench.section import PARTITIONS
from bench.topics import START_MS, produce_records
from bench.usage import descendants, end_all, kind_of
from joinery_devkit.kafka import KafkaBroker

LIMIT = 2 << 30  # bytes
_LOOK_SECONDS = 0.25
_GROUPS = Path("/sys/fs/cgroup")

Record = tuple[bytes, bytes]  # key and value


@dataclass(frozen=True, slots=True)
class Case:
    """`records` per input, which `make` gives for a side (0, 1) and partition; `rows` come out. `max_bytes` and `cores`
    None: the default. `crash`: it is killed half way and started again."""

    name: str
    records: int
    rows: int
    upper: str  # of the interval
    make: Callable[[int, int], Iterator[Record]]
    max_bytes: str | None = None  # per epoch
    cores: int | None = None
    crash: bool = True


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes by what a process is: the most that all processes of the kind held at any moment. `total` is of all kinds
    at one moment. `limited`: the job ran in a control group, in which `killed` processes ran out of memory."""

    name: str
    rows: int
    seconds: float
    bytes: dict[str, int]
    total: int
    limited: bool
    killed: int = 0
    problem: str | None = None


def large(records: int, *, one_key: bool = False) -> Case:
    """Return records of 1 MB of text that compresses to three quarters, one per second and input. Every second one has
    a partner, a minute later; with one key every one has, half a second later."""
    later_ms = 500 if one_key else 60_000

    def make(side: int, partition: int) -> Iterator[Record]:
        text = _random_text()
        for number in range(partition, records, PARTITIONS):
            order = number if side == 0 or number % 2 else records + number
            start = (number * 7919 + side) % (len(text) - 990_000)
            ts = START_MS + 1_000 * number + side * later_ms
            yield _make_record(side, 0 if one_key else order, number, ts, text[start : start + 990_000])

    name = f"2 x {records:,} records of 1 MB"
    if one_key:
        return Case(f"{name} and one key", records, records, f"{later_ms}ms", make, crash=False)
    return Case(name, records, records // 2, "10m", make)


@cache
def _random_text() -> bytes:
    letters = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
    return letters[np.random.default_rng(1).integers(0, len(letters), 8 << 20)].tobytes()


def hot(records: int) -> Case:
    """Every record of one input meets every record of the other."""

    def make(side: int, partition: int) -> Iterator[Record]:
        for number in range(partition, records, PARTITIONS):
            yield _make_record(side, 0, number, START_MS, b"%0100d" % (2 * number + side))

    return Case(f"2 x {records:,} records of one key", records, records * records, "1h", make)


def _make_record(side: int, order: int, number: int, ts: int, text: bytes) -> Record:
    key = b"o%09d" % order
    if side:
        return key, b'{"payment_id":"p%09d","order_id":"%b","method":"%b","ts":%d}' % (number, key, text, ts)
    return key, b'{"order_id":"%b","customer":"%b","amount":%d,"ts":%d}' % (key, text, number, ts)


def with_settings(case: Case) -> Iterator[Case]:
    """Yield the case under settings that decide on memory, and without a crash."""
    for max_bytes, cores in (("16Mi", 2), ("64Mi", 1), ("64Mi", 2), ("64Mi", 4), ("64Mi", 8), ("128Mi", 2)):
        name = f"{case.name}, maxBytesPerEpoch {max_bytes}, {cores} threads"
        yield replace(case, name=name, max_bytes=max_bytes, cores=cores, crash=False)


def run(work: Path, *, quick: bool = False) -> list[Peak]:
    cases = [large(100), hot(400)]
    if not quick:
        cases = [large(2_500), hot(4_000), *with_settings(large(600)), large(400, one_key=True)]
    peaks = []
    for number, case in enumerate(cases):
        with KafkaBroker() as broker:
            peaks.append(_measure_case(case, broker, work / str(number)))
        print(f"  {_table_line(peaks[-1])}", file=sys.stderr, flush=True)
    return peaks


def peaks_table(peaks: list[Peak]) -> str:
    head = ("job", "rows out", "seconds", "limit", "peak MiB", "peak of each kind of process", "problem")
    rows = ["| " + " | ".join(head) + " |", "| --- | ---: | ---: | --- | ---: | --- | --- |"]
    return "\n".join(["## Memory", "", *rows, *map(_table_line, peaks), ""])


def _table_line(peak: Peak) -> str:
    parts = ", ".join(f"{name} {size >> 20:,}" for name, size in sorted(peak.bytes.items(), key=lambda part: -part[1]))
    limit = f"{LIMIT >> 20:,} MiB, {'control group' if peak.limited else 'by looking'}"
    total = f"{peak.total >> 20:,}"
    cells = (peak.name, f"{peak.rows:,}", f"{peak.seconds:.0f}", limit, total, parts, peak.problem or "none")
    return f"| {' | '.join(cells)} |"


def _measure_case(case: Case, broker: KafkaBroker, folder: Path) -> Peak:
    for topic in ("orders", "payments", "joined"):
        broker.create_topic(topic, PARTITIONS)
    for side, topic in enumerate(("orders", "payments")):
        produce_records(broker.bootstrap, topic, [case.make(side, number) for number in range(PARTITIONS)])
    job = _joinery_peer(case, broker.bootstrap, folder)
    earlier_pids = {process.pid for process in psutil.Process().children()}
    began = time.monotonic()
    with _new_group() as group, _Looks(earlier_pids) as looks:
        peer = job if group is None else replace(job, command=group.command(job.command))
        ending = _killed_half_way(peer, earlier_pids, case.rows, broker.bootstrap) if case.crash else None
        if ending is None:
            with running(peer) as ended:
                while (ending := ended()) is None:
                    time.sleep(_LOOK_SECONDS)
        killed = 0 if group is None else group.killed()
    seconds, rows = time.monotonic() - began, _count_committed(broker.bootstrap, "joined")
    peak = Peak(case.name, rows, seconds, looks.peak, looks.total, group is not None, killed)
    peak = replace(peak, problem=problem(peak, case, ending))
    if peak.problem is None:
        shutil.rmtree(folder, ignore_errors=True)
    return peak


def _killed_half_way(peer: Peer, earlier_pids: Collection[int], rows: int, bootstrap: str) -> str | None:
    """Run `peer` until half of the rows are written, visible or not, and kill it with all that it started. Says how
    it ended if it did so before."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    with running(peer) as ended:
        while (ending := ended()) is None and _count_written(admin, "joined") < rows // 2:
            time.sleep(_LOOK_SECONDS)
        end_all(earlier_pids, grace_seconds=0)
    return ending and f"was not killed half way: it {ending}"


def problem(peak: Peak, case: Case, ending: str) -> str | None:
    """Return what is wrong with a run that `ending` says the end of, as `bench.peer.running` does."""
    if not ending.startswith("ended with 0"):
        return f"the job {ending}"
    if peak.rows != case.rows:
        return f"{peak.rows:,} rows came out, not {case.rows:,}"
    if peak.killed:
        return f"{peak.killed} processes were killed for their memory"
    return None if peak.limited or peak.total <= LIMIT else "more memory than the limit"


def _joinery_peer(case: Case, bootstrap: str, folder: Path) -> Peer:
    """Return defaults wherever the case says nothing; the master too is what a laptop has."""
    spec = {
        "inputs": [joinery_jobs.kafka_input(name, bootstrap, stopAt="latest") for name in ("orders", "payments")],
        "joins": [
            {
                "right": "payments",
                "keys": {"orders.order_id": "payments.order_id"},
                "interval": {"of": "orders", "lower": "0s", "upper": case.upper},
                "where": "orders.customer <> payments.method",  # so that both texts are in the state
            }
        ],
        "select": [{"column": name} for name in ("orders.order_id", "orders.customer", "payments.payment_id")],
        "output": joinery_jobs.to_topic(bootstrap, "joined"),
    }
    if case.max_bytes is not None:
        spec["trigger"] = {"maxBytesPerEpoch": case.max_bytes}
    job = joinery_jobs.peer(case.name, "", joinery_jobs.document("StreamJoin", "memory", spec), folder)
    command = list(job.command[: job.command.index("--master")])
    return replace(job, command=[*command, *(() if case.cores is None else ("--master", f"local[{case.cores},4]"))])


def _count_written(admin: AdminClient, topic: str) -> int:
    """Return records of the topic, of transactions that did not end too."""
    ends = admin.list_offsets({TopicPartition(topic, number): OffsetSpec.latest() for number in range(PARTITIONS)})
    return sum(int(end.result().offset) for end in ends.values())


def _count_committed(bootstrap: str, topic: str) -> int:
    """Return rows that a `read_committed` reader sees."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "memory", "isolation.level": "read_committed",
                         "enable.auto.commit": False, "enable.partition.eof": True})  # fmt: skip
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    rows, open_partitions = 0, PARTITIONS
    while open_partitions:
        messages = consumer.consume(10_000, 0.2)
        errors = [error for message in messages if (error := message.error()) is not None]
        rows += len(messages) - len(errors)
        open_partitions -= sum(error.code() == KafkaError._PARTITION_EOF for error in errors)
    consumer.close()
    return rows


# --- memory -----------------------------------------------------------------------------------------------------------


class _Looks(Background):
    """The most that the processes below this one held, in bytes, without `earlier_pids`,
    which ran before."""

    def __init__(self, earlier_pids: Collection[int]) -> None:
        super().__init__()
        self.peak: Counter[str] = Counter()  # by what a process is
        self.total = 0
        self._earlier_pids = earlier_pids

    def _run(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            now: Counter[str] = Counter()
            for process in descendants(without=self._earlier_pids):
                now.update(memory_by_kind(process))
            self.peak |= now  # the larger one of each kind
            self.total = max(self.total, now.total())


def memory_by_kind(process: psutil.Process) -> dict[str, int]:
    """Return bytes of anonymous and shared memory, pages that n processes share counting 1/n each, by what the process
    is. Pages of files are left out: the kernel takes them back when memory is short."""
    try:
        name, words = process.name(), process.cmdline()
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
    except (psutil.Error, OSError):
        return {}
    size = {key: int(value.split()[0]) << 10 for key, value in (line.split(":", 1) for line in lines)}
    return {kind_of(name, words): size["Pss_Anon"] + size["Pss_Shmem"]}


@dataclass(frozen=True, slots=True)
class _Group:
    """A control group that is limited to LIMIT; version 2 of control groups, or 1."""

    folder: Path

    def command(self, command: Sequence[str]) -> list[str]:
        """Start the command within it."""
        return ["sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh", *command]

    def killed(self) -> int:
        """Process that the kernel ended because the group had no memory left."""
        events = self.folder / "memory.events"
        text = (events if events.exists() else self.folder / "memory.oom_control").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))


@contextmanager
def _new_group() -> Iterator[_Group | None]:
    """None where this user can make none."""
    version_1 = _GROUPS / "memory"
    folder = (version_1 if version_1.is_dir() else _GROUPS) / f"joinery-bench-{os.getpid()}"
    try:
        folder.mkdir()
        limit = folder / ("memory.limit_in_bytes" if version_1.is_dir() else "memory.max")
        limit.write_text(str(LIMIT))
    except OSError as problem:
        print(f"  no control group ({problem}): memory is looked at, not limited", file=sys.stderr)
        if folder.exists():
            folder.rmdir()
        yield None
        return
    try:
        yield _Group(folder)
    finally:
        folder.rmdir()
