"""The epoch plan and the progress of inputs: the two documents that outlive a driver, and their JSON.

A plan fixes everything that decides an epoch's rows: ranges, watermarks, shard count. It is written to the state store
before the first task runs and is replayed unchanged after a crash. Both documents carry a format number; an unknown
number is rejected.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, Self

from joinery_runtime.connectors.source import Bounds, Range, StoredOffsets
from joinery_runtime.core.pipeline.lateness import FormerFutureRows, FutureCheck, FutureRows
from joinery_runtime.core.pipeline.step import Horizon
from joinery_runtime.core.pipeline.watermark import END_OF_TIME, InputClock, InputProgress, InputTime, Watermark
from joinery_runtime.core.table.columns import numbered_partition
from joinery_runtime.errors import IncompatibleState
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.job.model.outputs import ONLY_OUTPUT
from joinery_runtime.state.store import JobRecord

FORMAT = 3
_READABLE = {1, 2, FORMAT}  # format 1 had no stops and no topic ids, format 2 no horizons
NAMED_BY_LIFE = 4  # since this plan format the parts of an epoch's output have the names of docs/decisions/0026
JUDGED_BY_CLOCK = 5  # since this plan format a plan has the clock that event times are compared with (T11)
PLAN_FORMAT = JUDGED_BY_CLOCK
"""The format of new plans. A plan keeps the format that it was written with: earlier releases reject a plan of this
one, and continue with their own."""

DEATHS = 2  # of a plan's processes, after which its records are decoded in another process first


@dataclass(frozen=True, slots=True)
class TopicNumbers:
    """The numbers of an input's topics or files by name, and how many have been given. One that is not named has 0.

    They tell rows of equal partition and offset apart (rule J2). A topic gets its number when a plan first sees it and
    keeps it, so numbers of rows in the state and of new rows compare. The first topic has number 0. So an input of one
    topic has no number in any stored document, as in earlier releases."""

    by_topic: Mapping[str, int] = field(default_factory=dict)
    count: int = 0

    def of_new(self, bounds: Iterable[Bounds], read: Iterable[str], topic_ids: Mapping[str, str]) -> dict[str, int]:
        """Return numbers for the topics of these bounds that have none yet, in the order of the bounds. Topics that
        have been `read` come first: an earlier release gave them no numbers, or there was one topic, which has 0. If
        there were several, the state has rows of each with 0, and no topic gets that number. A topic that was
        recreated, by its id in `topic_ids`, is another topic. Empty if all rows so far have 0."""
        unnumbered = sorted(frozenset(read) - self.by_topic.keys())
        new: dict[str, None] = {}
        for bound in bounds:
            topic, known_id = bound.partition.topic, topic_ids.get(bound.partition.topic, "")
            recreated = bool(known_id and bound.topic_id and known_id != bound.topic_id)
            if recreated or (topic not in self.by_topic and topic not in unnumbered):
                new[topic] = None
        first = self.count or int(len(unnumbered) > 1)
        numbers = {topic: number for number, topic in enumerate([*unnumbered, *new], first)}
        return numbers if any(numbers.values()) else {}

    def with_new(self, numbers: Mapping[str, int]) -> Self:
        return type(self)({**self.by_topic, **numbers}, max([self.count, *(n + 1 for n in numbers.values())]))

    def without(self, topics: Iterable[str]) -> Self:
        """Forget the numbers of these topics; no other topic gets them. An only topic had 0 and is not named."""
        forgotten = frozenset(topics)
        count = self.count or int(bool(forgotten))
        return type(self)({name: n for name, n in self.by_topic.items() if name not in forgotten}, count)

    def to_json(self) -> list[Any] | None:
        """None: there is nothing to store, because no topic but the first has a number."""
        return [self.count, dict(self.by_topic)] if self.count else None

    @classmethod
    def from_json(cls, doc: tuple[int, Mapping[str, int]] | None) -> Self:
        return cls() if doc is None else cls(dict(doc[1]), doc[0])


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """One epoch, decided. `watermarks` are those that count in the epoch (T3). `idle` names idle partitions per input,
    `ended` the inputs that had been read to their final end before it. `checkpoint` asks for compaction. `lost` counts
    per partition the records that the broker had deleted before they were read (`onDataLoss: continue`). `stops` and
    `topic_ids` (by input, then topic; "" for a deleted topic) hold what this plan is the first to know. `horizons` say
    what the epoch closes in each part of the state. `highest` is the highest event time per input that earlier epochs
    have read. `tables_read` names the tables that this epoch has read to their first end (A4). `max_future` is, by
    input, how far ahead an event time may be (ms, T11); inputs that are not named take any. `clock` is the driver's
    wall clock (ms since 1970) when it planned; None: it was not told, as in a trace. `pace` gives, for each
    input whose watermark advances while all are idle (T6), the watermark to start from and the milliseconds since.
    `co_partitions` is how many partitions co-partitioned inputs have in common (else 0). `starts` are the offsets from
    which to read partitions that the consumer group has not assigned to this job yet, where no earlier plan says so.
    `unplanned` names the inputs with a partition that neither an earlier plan nor a range of this one has.
    `definition` names the definition of the job that made the plan (`definition_hash`; "": an earlier release made it).
    `format` is that of the release that made the plan, `generation` that of the driver (0: unknown).
    `reached` names the inputs of an as-of join that are behind, each with the event time up to which it was read
    (`InputTime.reached`). `unread` names the streams of such a join of which this plan leaves records unread.
    `row_limits` says by output how large a row its topic took when the plan was made, where that was less than the
    client takes. An output is missing where that is not known, or that has no topic.
    `topic_numbers` has, by input, the numbers of topics that the ranges read or that this plan is the first to give
    (`TopicNumbers`); a topic that is not named has 0."""

    epoch: int
    shards: int
    ranges: tuple[Range, ...]
    watermarks: Mapping[str, Watermark]
    idle: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ended: tuple[str, ...] = ()
    checkpoint: bool = False
    fingerprint: str = ""
    lost: Mapping[str, int] = field(default_factory=dict)
    stops: Mapping[PartitionRef, int] = field(default_factory=dict)
    topic_ids: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    horizons: Mapping[str, Horizon] = field(default_factory=dict)
    highest: Mapping[str, int | None] = field(default_factory=dict)
    tables_read: tuple[str, ...] = ()
    max_future: Mapping[str, int] = field(default_factory=dict)
    pace: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    clock: int | None = None
    co_partitions: int = 0
    starts: Mapping[PartitionRef, int] = field(default_factory=dict)
    unplanned: tuple[str, ...] = ()
    definition: str = ""
    reached: Mapping[str, int] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    row_limits: Mapping[str, int] = field(default_factory=dict)
    topic_numbers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    format: int = PLAN_FORMAT
    generation: int = 0

    def is_deadly(self, generation: int) -> bool:
        """Say whether so many drivers before the one of this generation have begun the plan that one of its records may
        have ended their processes (T8)."""
        return bool(self.generation) and generation - self.generation >= DEATHS

    @property
    def times(self) -> dict[str, InputTime]:
        return {
            name: InputTime(watermark, self.highest.get(name), self.reached.get(name, END_OF_TIME))
            for name, watermark in self.watermarks.items()
        }

    @property
    def partitions(self) -> tuple[PartitionRef, ...]:
        return tuple(r.partition for r in self.ranges)

    def numbered(self, ref: PartitionRef) -> int:
        """Return what rows of the partition have as PARTITION."""
        return numbered_partition(ref.partition, self.topic_numbers.get(ref.input, {}).get(ref.topic, 0))

    def future_check(self, name: str) -> FutureCheck | None:
        """Return the check of event times that are too far ahead (T11), for one range of the input; None takes any."""
        most = self.max_future.get(name)
        if most is None:
            return None
        if self.format < JUDGED_BY_CLOCK:
            return FormerFutureRows(most, self.watermarks[name])
        return FutureRows(most, self.clock)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "epoch": self.epoch,
            "shards": self.shards,
            "ranges": [
                [r.partition.input, r.partition.topic, r.partition.partition, r.start, r.end_exclusive]
                for r in self.ranges
            ],
            "watermarks": dict(self.watermarks),
            "idle": {name: list(parts) for name, parts in self.idle.items()},
            "ended": list(self.ended),
            "checkpoint": self.checkpoint,
            "fingerprint": self.fingerprint,
            "lost": dict(self.lost),
            "stops": _offsets_to_json(self.stops),
            "topic_ids": {name: dict(ids) for name, ids in self.topic_ids.items()},
            "horizons": {part: [horizon.previous, horizon.current] for part, horizon in self.horizons.items()},
            "highest": dict(self.highest),
            "tables_read": list(self.tables_read),
            "max_future": dict(self.max_future),
            "pace": {name: list(pace) for name, pace in self.pace.items()},
            **({"clock": self.clock} if self.format >= JUDGED_BY_CLOCK else {}),
            **({"co_partitions": self.co_partitions} if self.co_partitions else {}),
            **({"starts": _offsets_to_json(self.starts)} if self.starts else {}),
            **({"unplanned": list(self.unplanned)} if self.unplanned else {}),
            **({"generation": self.generation} if self.generation else {}),
            **({"definition": self.definition} if self.definition else {}),
            **({"reached": dict(self.reached)} if self.reached else {}),
            **({"unread": list(self.unread)} if self.unread else {}),
            **_row_limits_to_json(self.row_limits),
            **(
                {"topic_numbers": {name: dict(numbers) for name, numbers in self.topic_numbers.items()}}
                if self.topic_numbers
                else {}
            ),
        }

    @classmethod
    def from_json(cls, doc: Mapping[str, Any]) -> EpochPlan:
        check_format(doc, "epoch plan", _READABLE | {NAMED_BY_LIFE, PLAN_FORMAT})
        return cls(
            format=doc["format"],
            epoch=doc["epoch"],
            shards=doc["shards"],
            ranges=tuple(Range(PartitionRef(i, t, p), start, end) for i, t, p, start, end in doc["ranges"]),
            watermarks=dict(doc["watermarks"]),
            idle={name: tuple(parts) for name, parts in doc["idle"].items()},
            ended=tuple(doc["ended"]),
            checkpoint=doc["checkpoint"],
            fingerprint=doc["fingerprint"],
            lost=dict(doc["lost"]),
            stops=_offsets_from_json(doc.get("stops", [])),
            topic_ids={name: dict(ids) for name, ids in doc.get("topic_ids", {}).items()},
            horizons={part: Horizon(*bounds) for part, bounds in doc.get("horizons", {}).items()},
            highest=dict(doc.get("highest", {})),
            tables_read=tuple(doc.get("tables_read", [])),
            max_future=dict(doc.get("max_future", {})),
            pace={name: (start, idle_ms) for name, (start, idle_ms) in doc.get("pace", {}).items()},
            clock=doc.get("clock"),
            co_partitions=doc.get("co_partitions", 0),
            starts=_offsets_from_json(doc.get("starts", [])),
            unplanned=tuple(doc.get("unplanned", [])),
            generation=doc.get("generation", 0),
            definition=doc.get("definition", ""),
            reached=dict(doc.get("reached", {})),
            unread=tuple(doc.get("unread", [])),
            row_limits={ONLY_OUTPUT: doc["row_limit"]} if "row_limit" in doc else dict(doc.get("row_limits", {})),
            topic_numbers={name: dict(numbers) for name, numbers in doc.get("topic_numbers", {}).items()},
        )


def _row_limits_to_json(limits: Mapping[str, int]) -> dict[str, Any]:
    """Return the limits as they are stored: that of `output` as a number, as before jobs had several outputs."""
    if not limits:
        return {}
    return {"row_limit": limits[ONLY_OUTPUT]} if ONLY_OUTPUT in limits else {"row_limits": dict(limits)}


def _offsets_to_json(offsets: Mapping[PartitionRef, int]) -> list[list[str | int]]:
    return [[ref.input, ref.topic, ref.partition, offset] for ref, offset in sorted(offsets.items())]


def _offsets_from_json(doc: Iterable[tuple[str, str, int, int]]) -> dict[PartitionRef, int]:
    return {PartitionRef(name, topic, partition): offset for name, topic, partition, offset in doc}


@dataclass(frozen=True, slots=True)
class InputState:
    """Where one input stands after the newest committed epoch: next offset per partition, event-time progress, where
    its partitions stop if it is bounded, and the id of the topic that its offsets belong to (another topic may get the
    same name). `first_read`: the input is a table, and has been read to where it ended at the very first start.
    `behind`: the input is the stream of a table, and the newest epoch has left records of it unread. `topic_numbers`
    order its topics or files."""

    positions: Mapping[PartitionRef, int] = field(default_factory=dict)
    progress: InputProgress = field(default_factory=InputProgress)
    stops: Mapping[PartitionRef, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    first_read: bool = False
    behind: bool = False
    topic_numbers: TopicNumbers = field(default_factory=TopicNumbers)

    @property
    def stored_offsets(self) -> StoredOffsets:
        return StoredOffsets(self.positions, self.stops, self.topic_ids)

    def after(self, plan: EpochPlan, name: str, highest: Mapping[str, int | None], clock: InputClock) -> InputState:
        """Return the state after this epoch; `highest` are the event times that its rows reached, per `partition_id`.

        The watermark that the rows imply is settled here, with the idle partitions of this plan. If all partitions are
        idle when the next plan is made, that watermark must not be forgotten (T1: a watermark never goes back). Nothing
        is settled while a partition waits for its first plan: its rows are still to come.
        """
        ends = {r.partition: r.end_exclusive for r in plan.ranges}
        read_to = {ref: offset for ref, offset in {**plan.starts, **ends}.items() if ref.input == name}
        seen = {partition_id(ref): None for ref in read_to} | dict(highest)
        before = self._without_former(plan.topic_ids.get(name, {}))
        progress = before.progress.raised(plan.watermarks.get(name)).saw(seen)
        if not clock.explicit and name not in plan.unplanned:
            progress = progress.raised(progress.implied(clock, plan.idle.get(name, ())))
        if any(r.start < r.end_exclusive for r in plan.ranges):
            progress = replace(progress, idle_from=None, idle_ms=0)
        elif name in plan.pace:
            start, idle_ms = plan.pace[name]
            progress = replace(progress, idle_from=start, idle_ms=idle_ms)
        stops = {ref: stop for ref, stop in plan.stops.items() if ref.input == name}
        first_read = self.first_read or name in plan.tables_read
        positions, stops = {**before.positions, **read_to}, {**before.stops, **stops}
        deleted = [topic for topic, topic_id in plan.topic_ids.get(name, {}).items() if not topic_id]
        numbers = before.topic_numbers.with_new(plan.topic_numbers.get(name, {})).without(deleted)
        return InputState(positions, progress, stops, before.topic_ids, first_read, name in plan.unread, numbers)

    def _without_former(self, topic_ids: Mapping[str, str]) -> InputState:
        """Return the state with these topic ids, and without what was stored about topics that had other ids."""
        former = {topic for topic, new in topic_ids.items() if not new or new != self.topic_ids.get(topic, new)}
        ids = {topic: topic_id for topic, topic_id in {**self.topic_ids, **topic_ids}.items() if topic_id}
        positions, stops = (
            {ref: offset for ref, offset in stored.items() if ref.topic not in former}
            for stored in (self.positions, self.stops)
        )
        deleted = {partition_id(ref) for ref in self.positions if ref.topic in former and not topic_ids[ref.topic]}
        highest = {partition: at for partition, at in self.progress.highest.items() if partition not in deleted}
        progress = replace(self.progress, highest=highest)
        return replace(self, positions=positions, stops=stops, topic_ids=ids, progress=progress)

    def to_bytes(self) -> bytes:
        doc = {
            "format": FORMAT,
            "positions": _by_partition(self.positions),
            "highest": dict(self.progress.highest),
            "watermark": self.progress.watermark,
            "stops": _by_partition(self.stops),
            "topic_ids": dict(self.topic_ids),
            "first_read": self.first_read,
        }
        if self.behind:
            doc["behind"] = True
        numbers = self.topic_numbers.to_json()
        if numbers is not None:
            doc["topic_numbers"] = numbers
        if self.progress.idle_from is not None:
            doc["pace"] = [self.progress.idle_from, self.progress.idle_ms]
        return json.dumps(doc).encode()

    @classmethod
    def from_bytes(cls, name: str, data: bytes) -> InputState:
        doc = json.loads(data)
        check_format(doc, f"offsets of input {name}")
        positions, stops = (
            {PartitionRef(name, topic, partition): offset for topic, partition, offset in doc.get(key, [])}
            for key in ("positions", "stops")
        )
        progress = InputProgress(doc["highest"], doc["watermark"], *doc.get("pace", (None, 0)))
        return cls(
            positions,
            progress,
            stops,
            doc.get("topic_ids", {}),
            doc.get("first_read", False),
            doc.get("behind", False),
            TopicNumbers.from_json(doc.get("topic_numbers")),
        )


Inputs = Mapping[str, InputState]
"""The inputs of a job by name."""


def _by_partition(offsets: Mapping[PartitionRef, int]) -> list[list[str | int]]:
    return [[ref.topic, ref.partition, offset] for ref, offset in sorted(offsets.items())]


def input_states(names: Iterable[str], record: JobRecord | None) -> dict[str, InputState]:
    """Where a job's inputs stand according to the record; an input that is not stored starts from the beginning."""
    stored = record.offsets if record is not None else {}
    return {name: InputState.from_bytes(name, stored[name]) if name in stored else InputState() for name in names}


def partition_id(ref: PartitionRef) -> str:
    """Return the partition's name in its input's progress: unique within the input."""
    return f"{ref.topic}/{ref.partition}"


def check_format(doc: Mapping[str, Any], document: str, readable: Set[int] = _READABLE) -> None:
    if doc.get("format") not in readable:
        raise IncompatibleState(
            f"the stored {document} has format {doc.get('format')}",
            facts=f"this release reads formats up to {max(readable)}",
            todo="Run the release that wrote it, or a newer one that migrates it",
        )
