"""Topics with a history: files up to a time, and Kafka from there on, as one input (rule T12).

The files are read first. Until each of them has been read to its end and that is committed, the partitions of the
topics wait: they are not read, and the input's watermark is that of the files. The next epoch is the seam: its plan
forgets the files, fixes where the topics' partitions start, and notes that the history has been read, as the id of a
topic that cannot exist. From then on no file is looked at, and they may go.

Which rows count does not depend on where the seam is: a row of a file with an event time from `until` on is skipped,
and so is a record of a topic from before it. So a record that is in both counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.pipeline.operators import EVENT_TIME_MAX, EVENT_TIME_MIN
from joinery_runtime.errors import SourceError
from joinery_runtime.sources.base import (
    Bounds,
    PartitionRef,
    Range,
    RawBatch,
    SourcePlanner,
    SourceReader,
    StoredOffsets,
)
from joinery_runtime.sources.files import ListedFiles
from joinery_runtime.sources.records import Decoded, Decoder
from joinery_runtime.store_identity import StoreIdentity

SKIPPED = "history"
"""The reason by which rows and records are counted that the other part of the input has (T10)."""
READ = "history:read"
"""What is stored as a topic with an id once the history has been read; no topic can have a colon in its name."""


def of_files(ref: PartitionRef) -> bool:
    """Whether it is a file of the history: its path is absolute, and no topic's name has a slash."""
    return "/" in ref.topic


class TopicPlanner(SourcePlanner, Protocol):
    """The driver half of the topics."""

    def forget_starts(self) -> None:
        """Before anything of the input has been read: where its partitions start is asked for anew."""
        ...


class HistoryPlanner:
    """Driver half. `files` has the history's files, by absolute paths; `until` (ms) is where it ends."""

    def __init__(self, name: str, until: int, files: ListedFiles, topics: TopicPlanner) -> None:
        self._name, self._until, self._files, self._topics = name, until, files, topics

    def bounds(self, stored: StoredOffsets) -> list[Bounds]:
        files = {ref: at for ref, at in stored.offsets.items() if of_files(ref)}
        of_topics = replace(stored, offsets={ref: at for ref, at in stored.offsets.items() if not of_files(ref)})
        if READ in stored.topic_ids:
            if not of_topics.offsets:
                # The seam has fixed no start where another member held the partitions: as after a restart.
                self._topics.forget_starts()
            return self._topics.bounds(of_topics)
        # A topic that cannot be read is found before all files have been.
        topics = self._topics.bounds(of_topics)
        unread = self._unread(files, stored)
        if unread:
            # While it waits, retention may take records that nobody needs.
            self._topics.forget_starts()
            return [*unread, *(replace(bound, waits=True) for bound in topics)]
        mark = Bounds(PartitionRef(self._name, READ, 0), 0, 0, topic_id=str(self._until), waits=True)
        forgotten = [Bounds(ref, at, at, final=True, held=False, deleted=True) for ref, at in files.items()]
        return [*forgotten, mark, *topics]

    def _unread(self, files: Mapping[PartitionRef, int], stored: StoredOffsets) -> list[Bounds]:
        """Those that have not been read to their ends: nothing more can come of the others, and they hold no watermark
        back. None of them is the input's end."""
        found = self._files.bounds(replace(stored, offsets=files))
        gone = sorted(files.keys() - {bound.partition for bound in found})
        if gone:
            raise SourceError(
                f"The history of input {self._name} has other files than before",
                facts=f"{gone[0].topic} was read, in part or whole, and is not one of them now",
                todo="Write the path as it was until the history has been read, or start the job with new state",
            )
        return [
            replace(bound, final=False)
            for bound in found
            if bound.start < bound.end_exclusive or bound.partition not in files
        ]

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        return self._of(bounds.partition).cut(bounds, max_records)

    def records(self, planned: Range, record_bytes: float) -> int:
        return self._of(planned.partition).records(planned, record_bytes)

    def gone(self, partitions: Collection[PartitionRef], topic_ids: Mapping[str, str]) -> set[PartitionRef]:
        return self._topics.gone([ref for ref in partitions if not of_files(ref)], topic_ids)

    def hold(self, partitions: Collection[PartitionRef]) -> bool:
        return self._topics.hold([ref for ref in partitions if not of_files(ref)])

    def still_held(self) -> bool:
        return self._topics.still_held()

    def release(self, committed: Mapping[PartitionRef, int]) -> None:
        self._topics.release({ref: at for ref, at in committed.items() if not of_files(ref)})

    def rejoin(self) -> None:
        self._topics.rejoin()

    def committed_by(self) -> StoreIdentity | None:
        return self._topics.committed_by()

    def close(self) -> None:
        self._files.close()
        self._topics.close()

    def _of(self, ref: PartitionRef) -> ListedFiles | TopicPlanner:
        return self._files if of_files(ref) else self._topics


class HistoryReader:
    """Task half."""

    def __init__(self, files: SourceReader, topics: SourceReader) -> None:
        self._files, self._topics = files, topics

    def read(self, *planned: Range) -> Iterator[RawBatch]:
        for part, reader in ((True, self._files), (False, self._topics)):
            ranges = [each for each in planned if of_files(each.partition) is part]
            if ranges:
                yield from reader.read(*ranges)

    def close(self) -> None:
        self._files.close()
        self._topics.close()


class HistoryDecoder:
    """Decodes each part as it is written, and skips the rows that the other part has. The decoder of a part is made
    when it is first read: files may be gone while the topics are."""

    def __init__(
        self, event_time: str, until: int, files: Callable[[], Decoder], topics: Callable[[], Decoder]
    ) -> None:
        self._event_time, self._until = event_time, until
        self._makers = {True: files, False: topics}
        self._made: dict[bool, Decoder] = {}

    def decode_batch(self, raw: RawBatch) -> Decoded:
        part = of_files(raw.partition)
        if part not in self._made:
            self._made[part] = self._makers[part]()
        decoded = self._made[part].decode_batch(raw)
        times = pc.fill_null(decoded.rows[self._event_time].cast(pa.int64()), EVENT_TIME_MIN - 1).to_numpy()
        # What is no time at all is for the dead letters.
        known = (times >= EVENT_TIME_MIN) & (times <= EVENT_TIME_MAX)
        skipped = known & ((times >= self._until) if part else (times < self._until))
        count = int(np.count_nonzero(skipped))
        if not count:
            return decoded
        # A file that has come to the history's end is no further than that: the topic's rows begin there.
        passed = np.minimum(times[skipped], self._until - 1)
        return replace(
            decoded,
            rows=decoded.rows.filter(pa.array(~skipped)),
            index=decoded.index[~skipped],
            deleted=None if decoded.deleted is None else decoded.deleted[~skipped],
            dropped={**decoded.dropped, SKIPPED: count},
            passed=(int(passed.min()), int(passed.max())),
        )
