"""Checks what holds for every run, whatever its job does: the plans of its epochs, and its dead letters. Each check
yields sentences with samples; none if all is well."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from joinery_devkit.expectation import Log, Reading, Values
from joinery_devkit.oracle import WatermarkOracle
from joinery_runtime.job import Job

SAMPLES = 5


class CheckResult(ABC):
    """The result of checking a run: `problems` are sentences with samples; none if all is well."""

    __slots__ = ()
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems

    @abstractmethod
    def good_news(self) -> str:
        """Return what to print if all is well."""

    def __str__(self) -> str:
        return f"VERIFIED: {self.good_news()}" if self.ok else "NOT VERIFIED:\n  - " + "\n  - ".join(self.problems)


def range_problems(log: Log) -> Iterator[str]:
    """Check that each partition is read without gaps or overlaps, by epochs with increasing numbers (M3)."""
    ends: dict[Values, tuple[int, int]] = {}
    last = 0
    for entry in log:
        epoch = entry["epoch"]
        if epoch <= last:
            yield f"epoch {epoch} comes after epoch {last} in the log"
        last = epoch
        for name, topic, partition, start, end in entry["plan"]["ranges"]:
            before, end_before = ends.get((name, topic, partition), (0, start))
            if start != end_before:
                where = f"input {name}, {topic}-{partition}"
                yield f"{where}: epoch {epoch} starts at offset {start}, epoch {before} ended at {end_before}"
            ends[name, topic, partition] = epoch, end


def watermark_problems(reading: Reading, log: Log, job: Job) -> Iterator[str]:
    """Check that the plan's watermarks are those that the rows of all earlier epochs imply (T1, T3, T5)."""
    for side in job.inputs:
        if side.watermark.explicit or side.watermark.on_idle == "advance":
            raise NotImplementedError(f"input {side.name}: only watermarks that follow from records can be verified")
    oracle = WatermarkOracle({side.name: side.watermark.delay for side in job.inputs})
    times: dict[int, dict[tuple[str, str], list[int]]] = {}  # by epoch and partition
    for name, rows in reading.rows.items():
        for row in rows:
            times.setdefault(row.epoch, {}).setdefault((name, f"{row.topic}/{row.partition}"), []).append(row.ts)
    for entry in log:
        plan = entry["plan"]
        for name, topic, partition, _, _ in plan["ranges"]:
            oracle.saw(name, f"{topic}/{partition}", ())
        expected = oracle.watermarks(plan["idle"], plan["ended"])
        if expected != plan["watermarks"]:
            yield f"epoch {entry['epoch']}: the watermarks are {plan['watermarks']}, the records imply {expected}"
        for (name, partition), seen in times.get(entry["epoch"], {}).items():
            oracle.saw(name, partition, seen)
        oracle.settle(plan["idle"])


def dead_letters_exactly_once(job: Job) -> bool:
    """Whether dead letters never repeat: in files always, in a topic only with exactly-once delivery."""
    return job.dead_letter_kafka is None or job.spec.delivery == "exactlyOnce"


def dead_letter_problems(
    reading: Reading, rows: Iterable[Mapping[str, Any]] | None, *, exactly_once: bool
) -> Iterator[str]:
    if rows is None:
        return
    got = Counter((row["topic"], row["partition"], row["offset"]) for row in rows)
    names = ["topic", "partition", "offset"]
    yield from named("records are not among the dead letters", Counter(reading.dead - set(got)), names)
    yield from named("dead letters are of usable records", Counter(set(got) - reading.unusable), names)
    if exactly_once:
        repeats = Counter({position: count - 1 for position, count in got.items() if count > 1})
        yield from named("dead letters came more than once", repeats, names)


def named(problem: str, rows: Counter[Any], names: Sequence[str]) -> Iterator[str]:
    """Yield one sentence with samples; none if there are no rows."""
    if rows:
        samples = [str(dict(zip(names, row, strict=True))) for row in list(rows)[:SAMPLES]]
        yield f"{rows.total():,} {problem}, such as:" + "".join(f"\n      {sample}" for sample in samples)
