"""A union of inputs as one input with several parts (rule U3), each with a source, a reader and a decoder of its own.

The union's partitions are those of its branches. Their topics and files carry the name of the branch before a colon, as
`orders_eu:orders`, so that the engine's documents tell equal topics of two clusters apart. A branch sees its own names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from joinery_runtime.connectors.source import Bounds, Range, SourcePlanner, SourceReader, StoredOffsets, StoreIdentity
from joinery_runtime.core.compile.inputs import BranchRows, compile_branch
from joinery_runtime.core.pipeline.operators import event_times
from joinery_runtime.core.pipeline.watermark import BRANCH_END
from joinery_runtime.errors import Unavailable
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.formats.records import BadRecord, Decoded, Decoder, LeftOut, with_bad
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.job.model.unions import UnionInput

FILTERED = "filtered"


def branch_topic(branch: str, topic: str) -> str:
    """Return the name in the union of a branch's topic or file."""
    return f"{branch}{BRANCH_END}{topic}"


def union_ref(union: str, own: PartitionRef) -> PartitionRef:
    """Return the partition of a branch as the union knows it."""
    return PartitionRef(union, branch_topic(own.input, own.topic), own.partition)


def branch_ref(ref: PartitionRef) -> PartitionRef:
    """Return the partition as its branch knows it."""
    branch, _, topic = ref.topic.partition(BRANCH_END)
    return PartitionRef(branch, topic, ref.partition)


class UnionPlanner:
    """The driver half. `branches` are the planners of the branches by their names, in the order of the union."""

    def __init__(self, name: str, branches: Mapping[str, SourcePlanner]) -> None:
        self._name, self._branches = name, branches

    def bounds(self, stored: StoredOffsets) -> list[Bounds]:
        bounds = []
        for name, planner in self._branches.items():
            own = StoredOffsets(
                self._branch_offsets(name, stored.offsets),
                self._branch_offsets(name, stored.stops),
                self._branch_topic_ids(name, stored.topic_ids),
            )
            branch_bounds = planner.bounds(own)
            ended = bool(branch_bounds) and all(
                bound.final and bound.start >= bound.end_exclusive for bound in branch_bounds
            )
            bounds += [
                replace(bound, partition=union_ref(self._name, bound.partition), released=ended)
                for bound in branch_bounds
            ]
        return bounds

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        own = replace(bounds, partition=branch_ref(bounds.partition))
        return replace(self._planner_of(bounds.partition).cut(own, max_records), partition=bounds.partition)

    def records(self, planned: Range, record_bytes: float) -> int:
        own = replace(planned, partition=branch_ref(planned.partition))
        return self._planner_of(planned.partition).records(own, record_bytes)

    def reads_file(self, partition: PartitionRef) -> bool:
        return self._planner_of(partition).reads_file(branch_ref(partition))

    def find_replaced_partitions(
        self, partitions: Collection[PartitionRef], topic_ids: Mapping[str, str]
    ) -> set[PartitionRef]:
        replaced = [
            planner.find_replaced_partitions(self._refs_of(name, partitions), self._branch_topic_ids(name, topic_ids))
            for name, planner in self._branches.items()
        ]
        return {union_ref(self._name, ref) for refs in replaced for ref in refs}

    def pin(self, partitions: Collection[PartitionRef]) -> bool:
        return all(planner.pin(self._refs_of(name, partitions)) for name, planner in self._branches.items())

    def is_pinned(self) -> bool:
        return all(planner.is_pinned() for planner in self._branches.values())

    def unpin(self, committed: Mapping[PartitionRef, int]) -> None:
        for name, planner in self._branches.items():
            planner.unpin(self._branch_offsets(name, committed))

    def rejoin(self) -> None:
        for planner in self._branches.values():
            planner.rejoin()

    def committed_by(self) -> StoreIdentity | None:
        stores = (planner.committed_by() for planner in self._branches.values())
        return next((store for store in stores if store is not None), None)

    def unavailability(self) -> Unavailable | None:
        errors = (planner.unavailability() for planner in self._branches.values())
        return next((error for error in errors if error is not None), None)

    def close(self) -> None:
        for planner in self._branches.values():
            planner.close()

    def _planner_of(self, ref: PartitionRef) -> SourcePlanner:
        return self._branches[branch_ref(ref).input]

    def _refs_of(self, name: str, partitions: Iterable[PartitionRef]) -> list[PartitionRef]:
        return [own for own in map(branch_ref, partitions) if own.input == name]

    def _branch_offsets(self, name: str, offsets: Mapping[PartitionRef, int]) -> dict[PartitionRef, int]:
        own = {branch_ref(ref): offset for ref, offset in offsets.items()}
        return {ref: offset for ref, offset in own.items() if ref.input == name}

    def _branch_topic_ids(self, name: str, topic_ids: Mapping[str, str]) -> dict[str, str]:
        before = branch_topic(name, "")
        return {topic.removeprefix(before): id_ for topic, id_ in topic_ids.items() if topic.startswith(before)}


class UnionReader:
    """The task half. Readers of branches are made when they first read: a lane may read one branch only."""

    def __init__(self, name: str, make: Callable[[str], SourceReader]) -> None:
        self._name, self._make = name, make
        self._readers: dict[str, SourceReader] = {}

    def within(self, boundary: Callable[[SourceReader], SourceReader]) -> UnionReader:
        """Return the same with a boundary around the reader of each branch."""
        return UnionReader(self._name, lambda name: boundary(self._reader(name)))

    def read(self, *planned: Range) -> Iterator[RawBatch]:
        by_branch: dict[str, list[Range]] = {}
        for planned_range in planned:
            own = replace(planned_range, partition=branch_ref(planned_range.partition))
            by_branch.setdefault(own.partition.input, []).append(own)
        for name, ranges in by_branch.items():
            for raw in self._reader(name).read(*ranges):
                yield united_batch(self._name, raw)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()

    def _reader(self, name: str) -> SourceReader:
        if name not in self._readers:
            self._readers[name] = self._make(name)
        return self._readers[name]


def united_batch(union: str, raw: RawBatch) -> RawBatch:
    """Return the batch of a branch as one of the union."""
    return replace(raw, partition=union_ref(union, raw.partition), origin=raw.partition)


class UnionDecoder:
    """Decodes each branch in its own format, and makes its rows rows of the union. A row for which the conditions of
    the branch are not true is left out as by `where` of an input: it moves the watermark (T1)."""

    def __init__(self, model: UnionInput, make: Callable[[Input], Decoder]) -> None:
        self._model, self._make = model, make
        self._branches = {branch.source.name: branch for branch in model.branches}
        self._decoders: dict[str, tuple[Decoder, BranchRows]] = {}

    def within(self, boundary: Callable[[Input, Decoder], Decoder]) -> UnionDecoder:
        """Return the same with a boundary around the decoder of each branch."""
        return UnionDecoder(self._model, lambda source: boundary(source, self._make(source)))

    def decode_batch(self, raw: RawBatch) -> Decoded:
        own = branch_ref(raw.partition)
        if own.input not in self._decoders:
            branch = self._branches[own.input]
            self._decoders[own.input] = (self._make(branch.source), compile_branch(branch, self._model))
        decoder, rows = self._decoders[own.input]
        return _unite_rows(rows, decoder.decode_batch(replace(raw, partition=own)))


def _unite_rows(branch: BranchRows, decoded: Decoded) -> Decoded:
    rows, index, left_out, dropped = decoded.rows, decoded.index, decoded.left_out, dict(decoded.dropped)
    bad: dict[int, str] = {}
    if branch.condition is not None and rows.num_rows:
        times, valid = event_times(rows[branch.event_time])  # rows of invalid times become dead letters
        evaluated = branch.condition.mask(lambda ref: rows[ref.column].combine_chunks(), rows.num_rows)
        passes = evaluated.values.to_numpy(zero_copy_only=False) | ~valid
        fine = _record_failures(evaluated.failed, index, bad)
        filtered = fine & ~passes
        if filtered.any():
            dropped[FILTERED] = dropped.get(FILTERED, 0) + int(filtered.sum())
            earlier = [left_out] if left_out is not None else []
            left_out = LeftOut(
                np.concatenate([*(events.times for events in earlier), times[filtered]]),
                np.concatenate([*(events.index for events in earlier), index[filtered]]),
            )
        rows, index = rows.filter(pa.array(fine & passes)), index[fine & passes]
    united, failed = branch.compute(rows)
    fine = _record_failures(failed, index, bad)
    return with_bad(
        Decoded(
            united.filter(pa.array(fine)),
            index[fine],
            decoded.bad,
            dropped=dropped,
            passed=decoded.passed,
            left_out=left_out,
        ),
        [BadRecord(position, reason) for position, reason in bad.items()],
    )


def _record_failures(failed: Mapping[int, str], index: np.ndarray, bad: dict[int, str]) -> np.ndarray:
    """Add the records on which an expression failed to `bad`. Return the others as bool[n]."""
    fine = np.ones(len(index), dtype=np.bool_)
    for row, reason in failed.items():
        bad.setdefault(int(index[row]), reason)
        fine[row] = False
    return fine
