"""The steps of a trace: what a valid step is, and the records and idle partitions that the steps give the inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from joinery_runtime.connectors.history import READ, is_file_of_history
from joinery_runtime.connectors.source import Bounds, Range, StoredOffsets, UnsharedSource
from joinery_runtime.connectors.unions import branch_ref, branch_topic
from joinery_runtime.engine.plan import partition_id
from joinery_runtime.errors import JoineryError
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.formats.table_decoder import DELETE
from joinery_runtime.job import Input
from joinery_runtime.job.model.inputs import Table
from joinery_runtime.job.model.wording import listed

Step = Mapping[str, Any]
_WATERMARKS = frozenset({"watermark", "resetWatermark"})
MAX_SHARDS = 4096
PARTITION = "$partition"
TOPIC = "$topic"  # of the Kafka record, for an input of several topics (U1)
TIMESTAMP = "$timestamp"  # of the Kafka record
KEY = "$key"  # of the Kafka record: text as it is, anything else as JSON
HEADERS = "$headers"  # of the Kafka record: texts by name
HISTORY = "$history"  # true: the row is from the files before the topic (T12)
_OF_RECORD = {PARTITION, TOPIC, TIMESTAMP, KEY, HEADERS, HISTORY}
_FILES = "/history"  # stands for these files


def check_step(number: int, step: Step, inputs: Sequence[Input]) -> None:
    """Raise JoineryError if the value is not a step, names an input or a history that the job does not have, or
    delete in a way that no table of the job understands."""
    kind = _KINDS.get(frozenset(step))
    if kind is None:
        todo = f"A step has {', '.join('input and rows' if 'input' in keys else min(keys) for keys in _KINDS)}"
        raise JoineryError(f"step {number} is not a step", facts=f"it has {sorted(step) or 'nothing'}", todo=todo)
    shape, is_shape, names = kind
    if not is_shape(step):
        raise JoineryError(f"step {number} is not a step", facts=f"{shape} is expected")
    by_name = {part.name: part for side in inputs for part in (side, *side.parts)}
    for name in names(step):
        if name not in by_name:
            raise JoineryError(f"step {number} names input {name!r}", facts=f"the job has {sorted(by_name)}")
        _check_unions(number, step, name, inputs)
    for name, rows in rows_by_input(step).items():
        for at, row in enumerate(rows):
            topics = topics_of(by_name[name])
            if row.get(TOPIC, topics[0]) not in topics:
                summary = (
                    f"step {number}: row {at} of {name!r} has {TOPIC}: {row[TOPIC]}, which the input does not read"
                )
                raise JoineryError(summary, facts=f"it reads {listed(topics)}", todo="Name one of these")
            if row.get(HISTORY) and union_of(name, inputs) != name:
                summary = f"step {number}: row {at} of {name!r} has {HISTORY}, and the input is a branch of a union"
                todo = f"Leave {HISTORY} out, or trace the input without the union"
                raise JoineryError(summary, facts=json.dumps(row), todo=todo)
            if row.get(HISTORY) and by_name[name].history is None:
                summary = f"step {number}: row {at} of {name!r} has {HISTORY}, and the input has no history"
                todo = f"Give the input a history, or leave {HISTORY} out"
                raise JoineryError(summary, facts=json.dumps(row), todo=todo)
            if DELETE in row:
                _check_deletion(f"step {number}: row {at} of {name!r}", row, by_name[name].table)


def _check_unions(number: int, step: Step, name: str, inputs: Sequence[Input]) -> None:
    """Raise JoineryError if the step has a union's rows by its own name, or the watermark of a branch."""
    union = union_of(name, inputs)
    if name != union and _WATERMARKS & step.keys():
        facts = f"it is a branch of {union!r}, which has the watermark"
        raise JoineryError(f"step {number} names input {name!r}", facts=facts, todo="Name the union")
    parts = next((side.parts for side in inputs if side.name == name), ())
    if len(parts) > 1 and {"input", "rows"} & step.keys():
        facts = f"it is a union of {listed(part.name for part in parts)}"
        raise JoineryError(f"step {number} has rows of {name!r}", facts=facts, todo="Name the branch")


def _check_deletion(row_label: str, row: Mapping[str, Any], table: Table | None) -> None:
    if table is None:
        todo = f"Only rows of a table may have {DELETE}; give the input table: {{key: [...]}}, or leave {DELETE} out"
        raise JoineryError(f"{row_label} deletes, and the input is no table", facts=json.dumps(row), todo=todo)
    if row[DELETE] is not True:
        todo = f"A deletion has {DELETE}: true, any other row has no {DELETE}"
        raise JoineryError(f"{row_label} has {DELETE}: {json.dumps(row[DELETE])}", facts=json.dumps(row), todo=todo)
    missing = [name for name in table.key if name not in row]
    if missing:
        todo = f"A deletion names its key: {', '.join(table.key)}"
        raise JoineryError(f"{row_label} deletes without {', '.join(missing)}", facts=json.dumps(row), todo=todo)


def union_of(name: str, inputs: Iterable[Input]) -> str:
    """Return the union of which an input is a branch, or the input itself."""
    return next((side.name for side in inputs if any(part.name == name for part in side.parts)), name)


def united_step(step: Step, inputs: Sequence[Input]) -> Step:
    """Return the step with rows of a union's branches as rows of the union, whose topics have the branch's name."""
    branches = {part.name: part for side in inputs if len(side.parts) > 1 for part in side.parts}
    if not branches.keys() & rows_by_input(step).keys():
        return step
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for name, own in rows_by_input(step).items():
        of_union = rows.setdefault(union_of(name, inputs), [])
        if (part := branches.get(name)) is None:
            of_union += own
        else:
            of_union += [{**row, TOPIC: branch_topic(name, row.get(TOPIC, topics_of(part)[0]))} for row in own]
    return {"rows": rows}


def topics_of(side: Input) -> tuple[str, ...]:
    """Return the topics of a trace's input: those that it names if these are several, else one with the input's name;
    of a union those of its branches."""
    if len(side.parts) > 1:
        return tuple(branch_topic(part.name, topic) for part in side.parts for topic in topics_of(part))
    return (side.kafka.topics if side.kafka is not None else None) or (side.name,)


def rows_by_input(step: Step) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    rows: Mapping[str, Any] = {step["input"]: step["rows"]} if "input" in step else step.get("rows", {})
    return rows


def _are_rows(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, dict)
        and _is_count(row.get(PARTITION, 0))
        and isinstance(row.get(TOPIC, ""), str)
        and _is_count(row.get(TIMESTAMP, 0), most=2**63 - 1)
        and isinstance(row.get(HISTORY, False), bool)
        and _is_mapping(row.get(HEADERS, {}), lambda value: isinstance(value, str))
        for row in value
    )


def _is_count(value: object, least: int = 0, most: int = 2**31 - 1) -> bool:
    return type(value) is int and least <= value <= most


def _is_mapping(value: object, inner: Callable[[object], bool]) -> bool:
    return isinstance(value, dict) and all(map(inner, value.values()))


def _are_idle(value: object) -> bool:
    """Whether the value lists inputs ("payments") or partitions ("payments/1", of a topic "payments/payments-eu/1")."""
    return isinstance(value, list) and all(
        isinstance(name, str) and ("/" not in name or name.rpartition("/")[2].isdecimal()) for name in value
    )


# Keys of a step -> its shape in words, whether a step has that shape, and the inputs that it names.
_KINDS: dict[frozenset[str], tuple[str, Callable[[Step], bool], Callable[[Step], Iterable[str]]]] = {
    frozenset({"input", "rows"}): (
        'one input\'s rows, {"input": "orders", "rows": [{...}]}',
        lambda s: isinstance(s["input"], str) and _are_rows(s["rows"]),
        lambda s: [s["input"]],
    ),
    frozenset({"rows"}): (
        'rows by input, {"rows": {"orders": [{...}], ...}}',
        lambda s: _is_mapping(s["rows"], _are_rows),
        lambda s: s["rows"],
    ),
    frozenset({"watermark"}): (
        'milliseconds by input, {"watermark": {"orders": 1700000000000}}',
        lambda s: _is_mapping(s["watermark"], lambda ms: _is_count(ms, -(2**63), 2**63 - 1)),
        lambda s: s["watermark"],
    ),
    frozenset({"resetWatermark"}): (
        'milliseconds by input, {"resetWatermark": {"orders": 1700000000000}}',
        lambda s: _is_mapping(s["resetWatermark"], lambda ms: _is_count(ms, -(2**63), 2**63 - 1)),
        lambda s: s["resetWatermark"],
    ),
    frozenset({"idle"}): (
        'a list of inputs or partitions, {"idle": ["orders", "payments/1"]}',
        lambda s: _are_idle(s["idle"]),
        lambda s: [name.partition("/")[0] for name in s["idle"]],
    ),
    frozenset({"clock"}): (
        'milliseconds since 1970, {"clock": 1700000000000}',
        lambda s: _is_count(s["clock"], most=2**63 - 1),
        lambda _: [],
    ),
    frozenset({"restart"}): ('{"restart": true}', lambda s: s["restart"] is True, lambda _: []),
    frozenset({"rescale"}): (
        f'a number of shards from 1 to {MAX_SHARDS}, {{"rescale": 4}}',
        lambda s: _is_count(s["rescale"], 1, MAX_SHARDS),
        lambda _: [],
    ),
    frozenset({"end"}): (
        '{"end": true}, or a list of inputs, {"end": ["orders"]}',
        lambda s: s["end"] is True or (isinstance(s["end"], list) and all(isinstance(name, str) for name in s["end"])),
        lambda s: [] if s["end"] is True else s["end"],
    ),
}


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """A record as Kafka would have it. A `timestamp` of -1 means that there is none."""

    value: bytes
    timestamp: int
    key: str | None
    headers: Mapping[str, str]


class StepLog(UnsharedSource):
    """The records that the steps gave one input: the trace's Kafka topics, planner and reader in one. If the input has
    a history, its files end when the topics' first record comes."""

    def __init__(self, side: Input) -> None:
        self.name = side.name
        self._keyed = any(part.keyed for part in side.parts)
        self._headers = tuple(dict.fromkeys(name for part in side.parts for name in part.headers))
        self._parts = frozenset(part.name for part in side.parts)
        branches = side.parts if len(side.parts) > 1 else ()
        self._branch_numbers = {part.name: number for number, part in enumerate(branches)}
        self._ended: set[str] = set()
        self.topics = topics_of(side)
        self.partitions: dict[PartitionRef, list[TraceRecord]] = {}
        self._files: list[TraceRecord] | None = None if side.history is None else []

    @property
    def final(self) -> bool:
        """Whether the input, or each branch of the union, has ended."""
        return self._ended == self._parts

    def end(self, name: str) -> None:
        """End the input, or one branch of the union."""
        self._ended |= self._parts if name == self.name else {name}

    def refs_of(self, name: str) -> set[PartitionRef]:
        """Return the partitions of the input, or of one branch of the union."""
        return {ref for ref in self.refs() if name in {self.name, branch_ref(ref).input}}

    def released(self) -> set[PartitionRef]:
        """Return the partitions of the union's branches that have ended."""
        if len(self._parts) == 1:
            return set()
        return {ref for name in self._ended for ref in self.refs_of(name)}

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            value = {key: v for key, v in row.items() if key not in _OF_RECORD}
            key = row.get(KEY)
            written = key if key is None or isinstance(key, str) else json.dumps(key)
            record = TraceRecord(json.dumps(value).encode(), row.get(TIMESTAMP, -1), written, row.get(HEADERS, {}))
            if row.get(HISTORY) and self._files is not None:
                self._files.append(record)
            else:
                self.partitions.setdefault(self.ref_of(row), []).append(record)

    def ref_of(self, row: Mapping[str, Any]) -> PartitionRef:
        """Return the partition of a row."""
        return PartitionRef(self.name, row.get(TOPIC, self.topics[0]), row.get(PARTITION, 0))

    def refs(self) -> list[PartitionRef]:
        """Return the partitions in the order of the branches (U3) and of the topics' names (J2): those of the rows so
        far, and the first one of each topic that has had none."""
        begun = {ref.topic for ref in self.partitions}
        empty = [PartitionRef(self.name, topic, 0) for topic in self.topics if topic not in begun]
        numbers = self._branch_numbers
        return sorted([*self.partitions, *empty], key=lambda ref: (numbers.get(branch_ref(ref).input, 0), ref))

    def bounds(self, stored: StoredOffsets) -> list[Bounds]:
        released = self.released()
        topic = [
            Bounds(
                ref,
                stored.offsets.get(ref, 0),
                len(self.partitions.get(ref, [])),
                final=self.final or ref in released,
                released=ref in released,
            )
            for ref in self.refs()
        ]
        if self._files is None or READ in stored.topic_ids:
            return topic
        files = PartitionRef(self.name, _FILES, 0)
        at, begun = stored.offsets.get(files, 0), self.final or bool(self.partitions)
        if at < len(self._files) or not begun:
            return [Bounds(files, at, len(self._files)), *(replace(bound, waits=True) for bound in topic)]
        read = Bounds(PartitionRef(self.name, READ, 0), 0, 0, topic_id=_FILES, waits=True)
        return [Bounds(files, at, at, final=True, is_assigned=False, deleted=True), read, *topic]

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        return Range(bounds.partition, bounds.start, min(bounds.end_exclusive, bounds.start + max_records))

    def read(self, *planned: Range) -> Iterator[RawBatch]:
        for part in planned:
            log = self._files or [] if is_file_of_history(part.partition) else self.partitions.get(part.partition, [])
            records = log[part.start : part.end_exclusive]
            offsets = np.arange(part.start, part.end_exclusive, dtype=np.int64)
            values = pa.array([record.value for record in records], pa.binary())
            timestamps = np.array([record.timestamp for record in records], dtype=np.int64)
            keys = pa.array([record.key for record in records], pa.string()).cast(pa.binary()) if self._keyed else None
            headers = {
                name: pa.array([record.headers.get(name) for record in records], pa.string()).cast(pa.binary())
                for name in self._headers
            }
            origin = branch_ref(part.partition) if len(self._parts) > 1 else None
            stamps = timestamps.__getitem__
            yield RawBatch(part.partition, offsets, values, keys, stamps, headers=headers, origin=origin)

    def close(self) -> None:
        """Do nothing: nothing is open."""


class ScriptedIdleness:
    """Inputs ("payments") or partitions ("payments/1", "payments/payments-eu/1") that a step declared idle, until their
    next row. Steps describe the outside world, so a restart does not forget them."""

    def __init__(self, logs: Mapping[str, StepLog]) -> None:
        self._logs = logs
        self._idle: dict[str, set[PartitionRef] | None] = {}  # by input; None: all partitions

    def set_idle(self, name: str, log: StepLog) -> None:
        first, *topics, partition = name.split("/") if "/" in name else (name, "")
        idle = self._idle.get(log.name, set()) if partition or first != log.name else None
        partitions = {PartitionRef(log.name, topic, int(partition)) for topic in topics or log.topics if partition}
        if first != log.name:  # a branch of the union
            of_branch = log.refs_of(first)
            topics = [branch_topic(first, topic) for topic in topics]
            partitions = {
                ref
                for ref in of_branch
                if partition in {"", str(ref.partition)} and ref.topic in (topics or [ref.topic])
            }
        self._idle[log.name] = None if idle is None else idle | partitions

    def set_active(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        idle = self._idle.get(name)
        if not rows or name not in self._idle:
            return
        log = self._logs[name]
        self._idle[name] = ({*log.refs()} if idle is None else idle) - {log.ref_of(row) for row in rows}

    def observe(self, bounds: Iterable[Bounds], now_ms: int) -> None:
        """Do nothing: steps say what is idle, positions do not."""

    def idle(self) -> dict[str, Collection[str]]:
        released = {name: refs for name, log in self._logs.items() if (refs := log.released())}
        idle: dict[str, set[PartitionRef] | None] = {**{name: set() for name in released}, **self._idle}
        return {
            name: tuple(
                partition_id(ref)
                for ref in self._logs[name].refs()
                if partitions is None or ref in partitions or ref in released.get(name, ())
            )
            for name, partitions in idle.items()
        }

    def idle_for_ms(self, all_idle: bool, now_ms: int, committed_ms: int) -> int:
        return 0
