"""Directories that are watched for new files: an input that never ends, read in order of the files' paths.

What is stored of it stays small however many files there were: the files that are being read, and the last one that was
read to its end. All that come before the first of these by their paths have been read. So a new file needs a path
behind those; one that is not, or a file that changed after it was read, stops the job instead of being left out. A file
that comes too late is told from one that was read long ago by the time of its last change (of the inode: a move sets
it), or of the move of a directory that it is in, compared with the latest of such times among the files that were read:
all are of the file system's clock. What is put into a directory hides when it was moved itself; only a job that runs
meanwhile sees its files come.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from joinery_runtime.errors import SourceError
from joinery_runtime.sources.base import Bounds, PartitionRef, Range, StoredOffsets, UnsharedSource
from joinery_runtime.sources.file_patterns import FilePattern, Rest, inside, is_file_of
from joinery_runtime.sources.files import ListedFiles
from joinery_runtime.sources.opened_files import readable

WINDOW = 200  # files that are read at a time: each is a partition of the plans
# A file is read when a second look, this much after the first, finds none before it. A file system's times go on in
# steps of up to 10 ms: what comes after the second look has a later time than what is read then.
SETTLE_S = 0.05


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What is stored of a file as the id of its partition: size and time of change as it was read, the latest move or
    change of an inode (ns) of it and the files before it, and where its records end."""

    size: int
    modified_ns: int
    latest_ns: int
    end: int

    def __str__(self) -> str:
        return f"{self.size}:{self.modified_ns}:{self.latest_ns}:{self.end}"

    @classmethod
    def of(cls, text: str) -> Self:
        return cls(*(int(number) for number in text.split(":")))


@dataclass(slots=True)
class _Directory:
    """What was found in a directory. It has a time of change, which two changes may share: only while it is `quiet` the
    time says that nothing has changed."""

    changed_ns: int
    changed_at: float
    quiet: bool = False
    files: set[str] = field(default_factory=set)
    directories: list[str] = field(default_factory=list)


class WatchedFiles(UnsharedSource):
    """Driver half. `path` is a directory or a pattern, `files` knows how a file's records are cut, `window` is how many
    files are read at a time."""

    def __init__(self, name: str, path: str, files: ListedFiles, window: int = WINDOW) -> None:
        self._name, self._path, self._files, self._window = name, path, files, window
        self._pattern = FilePattern(path)
        self._waiting: dict[str, float] = {}  # by file that is not known to be read: when it was first seen
        self._read: set[str] = set()
        self._came: set[str] = set()  # of the waiting ones those that were not there at first
        self._listed_at: float | None = None
        self._directories: dict[str, _Directory] = {}

    def bounds(self, stored: StoredOffsets) -> list[Bounds]:
        first_listing = self._listed_at is None
        self._list()
        if first_listing and self._waiting:
            time.sleep(SETTLE_S)
            self._list()
        known = sorted(ref for ref in stored.offsets if self._pattern.follows(ref.topic))
        stamps = {ref.topic: self._stored(ref, stored) for ref in known}
        self._sort_out(stamps)
        ends = [self._known(ref, stored.offsets[ref], stamps[ref.topic]) for ref in known]
        unread = [bound for bound in ends if bound.start < bound.end_exclusive]
        latest = max((stamp.latest_ns for stamp in stamps.values()), default=0)
        new = self._new(self._window - len(unread), latest)
        return [*_without_those_before(ends, following=bool(new)), *new]

    def _stored(self, ref: PartitionRef, stored: StoredOffsets) -> _Stamp:
        if ref.topic not in stored.topic_ids:
            raise SourceError(
                f"Input {self._name} cannot be watched from here on",
                facts=f"{ref.topic} was read without watch: true, and what of {self._path} was read is not known",
                todo="Take watch: true out again, or start the job with new state",
            )
        return _Stamp.of(stored.topic_ids[ref.topic])

    def _list(self) -> None:
        """Looks into the directories that may have changed."""
        first_listing, now = self._listed_at is None, time.monotonic()
        self._listed_at = now
        before, self._directories = self._directories, {}
        with readable(self._pattern.root):
            names = self._look(self._pattern.root, self._pattern.below, before, now)
        appeared = names - self._waiting.keys() - self._read
        self._waiting = {name: self._waiting.get(name, now) for name in (self._waiting.keys() & names) | appeared}
        self._came = (self._came | (set() if first_listing else appeared)) & self._waiting.keys()
        self._read &= names

    def _look(self, path: str, rest: Rest, before: Mapping[str, _Directory], now: float) -> set[str]:
        """The files in and below a directory, which is known from the look before. Raises OSError."""
        changed_ns, known = Path(path).stat().st_mtime_ns, before.get(path)
        if known is None or known.changed_ns != changed_ns:
            known = _Directory(changed_ns, now, files=set() if known is None else known.files)
        if not known.quiet:
            with os.scandir(path) as listed:
                entries = list(listed)
            files = {entry.path for entry in entries if is_file_of(rest, entry.name) and entry.is_file()}
            if files - known.files:
                known.changed_at = now
            # Links to directories are not followed: they may lead in circles.
            known.directories = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            known.files, known.quiet = files, now - known.changed_at >= SETTLE_S
        self._directories[path] = known
        found = set(known.files)
        for directory in known.directories:
            if below := inside(rest, Path(directory).name):
                with suppress(FileNotFoundError):  # it was removed since it was listed
                    found |= self._look(directory, below, before, now)
        return found

    def _moved_ns(self, file: str) -> int:
        """When the file was last changed or moved, by itself or in a directory. What is in a directory changes both of
        its times, its own move the one of the inode alone."""
        latest = Path(file).stat().st_ctime_ns
        for directory in Path(file).relative_to(self._pattern.root).parents[:-1]:
            found = (Path(self._pattern.root) / directory).stat()
            if found.st_ctime_ns > found.st_mtime_ns:
                latest = max(latest, found.st_ctime_ns)
        return latest

    def _sort_out(self, stamps: Mapping[str, _Stamp]) -> None:
        """Which of the waiting files have been read, or are, by what is stored. Raises SourceError for one that is not
        and comes before them."""
        if not stamps:
            return
        first, last = min(stamps), max(stamps)
        for file in sorted(self._waiting.keys()):
            if file > last:
                break
            if file not in stamps:
                with readable(file):
                    changed_ns = self._moved_ns(file)
                if file > first or file in self._came or changed_ns > stamps[first].latest_ns:
                    raise SourceError(
                        f"The file {file} of input {self._name} is new or was changed, and its turn is over",
                        facts=f"files are read in order of their paths, and {last} has been begun",
                        todo=f"If it was not read yet, give it a path that comes after {last}. If it was, move it away",
                    )
            del self._waiting[file]
            self._read.add(file)

    def _known(self, ref: PartitionRef, position: int, stamp: _Stamp) -> Bounds:
        """The bounds of a file that was planned before. One that was read to its end may be deleted."""
        if position < stamp.end or Path(ref.topic).exists():
            self._check(ref.topic, stamp)
        if position >= stamp.end:
            return Bounds(ref, position, position, topic_id=str(stamp))
        found = self._files.bounds_of(ref, position)
        return Bounds(ref, position, stamp.end, topic_id=str(stamp), record_bytes=found.record_bytes)

    def _check(self, file: str, stamp: _Stamp) -> None:
        with readable(file):
            found = Path(file).stat()
        if (found.st_size, found.st_mtime_ns) != (stamp.size, stamp.modified_ns):
            raise SourceError(
                f"The file {file} of input {self._name} was changed after reading it had begun",
                facts=f"it had {stamp.size:,} bytes then and has {found.st_size:,} now",
                todo="Put the old file back with its time of change, and add records as a new file: write it beside "
                "the directory or with a name that begins with a dot, and move it in when it is complete",
            )

    def _new(self, number: int, latest_ns: int) -> list[Bounds]:
        """The next files to begin with, at most so many: those that nothing can come before any more."""
        found: list[Bounds] = []
        for file in sorted(self._waiting):
            if len(found) >= number or (self._listed_at or 0) - self._waiting[file] < SETTLE_S:
                break
            with readable(file):
                stat = Path(file).stat()
                latest_ns = max(latest_ns, self._moved_ns(file))
            ref = PartitionRef(self._name, file, 0)
            bound = self._files.bounds_of(ref, None)
            stamp = _Stamp(stat.st_size, stat.st_mtime_ns, latest_ns, bound.end_exclusive)
            found.append(
                Bounds(ref, bound.start, stamp.end, topic_id=str(stamp), record_bytes=bound.record_bytes),
            )
        return found

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        return self._files.cut(bounds, max_records)

    def records(self, planned: Range, record_bytes: float) -> int:
        return self._files.records(planned, record_bytes)

    def gone(self, partitions: Collection[PartitionRef], topic_ids: Mapping[str, str]) -> set[PartitionRef]:
        """None ever is: raises SourceError for a file of a plan that is not as it was planned."""
        for ref in partitions:
            self._check(ref.topic, _Stamp.of(topic_ids[ref.topic]))
        return set()

    def close(self) -> None:
        self._files.close()


def _without_those_before(known: Iterable[Bounds], *, following: bool) -> list[Bounds]:
    """Files that were read to their ends, up to the first one that was not, are forgotten; the last of all is kept,
    because it says where new files go on."""
    kept = list(known)
    done = 0
    while done < len(kept) - (not following) and kept[done].start >= kept[done].end_exclusive:
        done += 1
    forgotten = [
        Bounds(bound.partition, bound.start, bound.start, final=True, held=False, deleted=True) for bound in kept[:done]
    ]
    return [*forgotten, *kept[done:]]
