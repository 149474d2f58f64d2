"""Topics with a history: files up to a time, and Kafka from then on, as one input (rule T12).

The files are read first. The partitions of the topics wait until every file has been read to its end and that is
committed. Until then they are not read, and the input's watermark is that of the files. The next epoch is the seam. Its
plan forgets the files, fixes where the topics' partitions start, and records that the history has been read, as the id
of a topic that cannot exist. From then on no file is needed or looked at.

Which rows count does not depend on the position of the seam. Rows of files with event times at or after `until` are
skipped, and so are records of topics before it. A record that is in both therefore counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from joinery_runtime.connectors.files.source import ListedFiles
from joinery_runtime.connectors.source import Bounds, Range, SourcePlanner, SourceReader, StoredOffsets, StoreIdentity
from joinery_runtime.core.pipeline.operators import event_times
from joinery_runtime.errors import SourceError, Unavailable
from joinery_runtime.formats.batch import PartitionRef, RawBatch
from joinery_runtime.formats.records import Decoded, Decoder

SKIPPED = "history"
"""The reason under which rows and records are counted that belong to the other part of the input (T10)."""
READ = "history:read"
"""The name stored, like a topic with an id, once the history has been read. A topic's name cannot have a colon."""


def is_file_of_history(ref: PartitionRef) -> bool:
    """Return whether the partition is a file of the history. Its path is absolute, and a topic's name cannot have a
    slash."""
    return "/" in ref.topic


class TopicPlanner(SourcePlanner, Protocol):
    """The driver half of the topics."""

    def forget_starts(self) -> None:
        """Forget where partitions start, so that it is resolved again. Only before any topic has been read."""
        ...


class HistoryPlanner:
    """The driver half. `files` plans the history's files, by absolute paths. The history ends at `until` (ms)."""

    def __init__(self, name: str, until: int, files: ListedFiles, topics: TopicPlanner) -> None:
        self._name, self._until, self._files, self._topics = name, until, files, topics

    def bounds(self, stored: StoredOffsets) -> list[Bounds]:
        files = {ref: at for ref, at in stored.offsets.items() if is_file_of_history(ref)}
        stored_topics = replace(
            stored, offsets={ref: at for ref, at in stored.offsets.items() if not is_file_of_history(ref)}
        )
        if READ in stored.topic_ids:
            return self._topics.bounds(stored_topics)
        # Asked now, so that a topic that cannot be read is found before all files have been read.
        topics = self._topics.bounds(stored_topics)
        # Files that were read to their ends have nothing more to give, and hold back no watermark. None is final,
        # because no file is the end of the input.
        bounds = self._files.bounds(replace(stored, offsets=files))
        missing = sorted(files.keys() - {bound.partition for bound in bounds})
        if missing:
            raise SourceError(
                f"The history of input {self._name} has other files than before",
                facts=f"{missing[0].topic} was read, in part or whole, and is not one of them now",
                todo="Write the path as it was until the history has been read, or start the job with new state",
            )
        unread = [
            replace(bound, final=False)
            for bound in bounds
            if bound.start < bound.end_exclusive or bound.partition not in files
        ]
        if unread:
            # While the topics wait, retention may delete records that nobody needs.
            self._topics.forget_starts()
            return [*unread, *(replace(bound, waits=True) for bound in topics)]
        read = Bounds(PartitionRef(self._name, READ, 0), 0, 0, topic_id=str(self._until), waits=True)
        forgotten = [Bounds(ref, at, at, final=True, is_assigned=False, deleted=True) for ref, at in files.items()]
        return [*forgotten, read, *topics]

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        return self._planner_of(bounds.partition).cut(bounds, max_records)

    def records(self, planned: Range, record_bytes: float) -> int:
        return self._planner_of(planned.partition).records(planned, record_bytes)

    def reads_file(self, partition: PartitionRef) -> bool:
        return is_file_of_history(partition)

    def find_replaced_partitions(
        self, partitions: Collection[PartitionRef], topic_ids: Mapping[str, str]
    ) -> set[PartitionRef]:
        return self._topics.find_replaced_partitions(
            [ref for ref in partitions if not is_file_of_history(ref)], topic_ids
        )

    def pin(self, partitions: Collection[PartitionRef]) -> bool:
        return self._topics.pin([ref for ref in partitions if not is_file_of_history(ref)])

    def is_pinned(self) -> bool:
        return self._topics.is_pinned()

    def unpin(self, committed: Mapping[PartitionRef, int]) -> None:
        self._topics.unpin({ref: at for ref, at in committed.items() if not is_file_of_history(ref)})

    def rejoin(self) -> None:
        self._topics.rejoin()

    def committed_by(self) -> StoreIdentity | None:
        return self._topics.committed_by()

    def unavailability(self) -> Unavailable | None:
        return self._topics.unavailability()

    def close(self) -> None:
        self._files.close()
        self._topics.close()

    def _planner_of(self, ref: PartitionRef) -> ListedFiles | TopicPlanner:
        return self._files if is_file_of_history(ref) else self._topics


class HistoryReader:
    """The task half."""

    def __init__(self, files: SourceReader, topics: SourceReader) -> None:
        self.files, self.topics = files, topics

    def read(self, *planned: Range) -> Iterator[RawBatch]:
        for part, reader in ((True, self.files), (False, self.topics)):
            ranges = [planned_range for planned_range in planned if is_file_of_history(planned_range.partition) is part]
            if ranges:
                yield from reader.read(*ranges)

    def close(self) -> None:
        self.files.close()
        self.topics.close()


class HistoryDecoder:
    """Decodes each part in its own format, and skips the rows that belong to the other part. A part's decoder is made
    when the part is first read: the files may be gone when the topics are read."""

    def __init__(
        self, event_time: str, until: int, files: Callable[[], Decoder], topics: Callable[[], Decoder]
    ) -> None:
        self._event_time, self._until = event_time, until
        self._makers = {True: files, False: topics}
        self._decoders: dict[bool, Decoder] = {}

    def decode_batch(self, raw: RawBatch) -> Decoded:
        return self.without_skipped(raw, self.with_skipped(raw))

    def within(self, boundary: Callable[[Decoder], Decoder]) -> HistoryDecoder:
        """Return the same with a boundary around the decoder of each part."""
        files, topics = self._makers[True], self._makers[False]
        return HistoryDecoder(self._event_time, self._until, lambda: boundary(files()), lambda: boundary(topics()))

    def with_skipped(self, raw: RawBatch) -> Decoded:
        """Also the rows that the other part has."""
        part = is_file_of_history(raw.partition)
        if part not in self._decoders:
            self._decoders[part] = self._makers[part]()
        return self._decoders[part].decode_batch(raw)

    def without_skipped(self, raw: RawBatch, decoded: Decoded) -> Decoded:
        part = is_file_of_history(raw.partition)
        # A file's records take the input no further than the history's end, because the topics' rows begin there.
        if part and decoded.left_out is not None:
            capped = np.minimum(decoded.left_out.times, self._until - 1)
            decoded = replace(decoded, left_out=replace(decoded.left_out, times=capped))
        times, valid = event_times(decoded.rows[self._event_time])  # rows of invalid times become dead letters
        skipped = valid & ((times >= self._until) if part else (times < self._until))
        count = int(np.count_nonzero(skipped))
        if not count:
            return decoded
        passed = [*np.minimum(times[skipped], self._until - 1).tolist(), *(decoded.passed or ())]
        return replace(
            decoded,
            rows=decoded.rows.filter(pa.array(~skipped)),
            index=decoded.index[~skipped],
            deleted=None if decoded.deleted is None else decoded.deleted[~skipped],
            unavailable=None if decoded.unavailable is None else decoded.unavailable.filter(pa.array(~skipped)),
            dropped={**decoded.dropped, SKIPPED: count},
            passed=(min(passed), max(passed)),
        )
