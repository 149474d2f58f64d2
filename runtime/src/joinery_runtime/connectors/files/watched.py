"""Directories that are watched for new files: an input that never ends, read in order of the files' paths.

The stored progress stays small however many files there were. It holds the files that are being read, and the last one
that was read to its end. All files whose paths come before the first of these have been read, so a new file needs a
path after them. A file that comes too early in this order, or that changed after it was read, stops the job instead of
being skipped.

A late file is told from one that was read long ago by a time: the last change of its inode (which a move sets), or the
move of a directory that contains it. This is compared with the latest such time among the files that were read; all are
times of the file system's clock. A directory whose content has changed since it was moved hides the time of its move.
Then only a job that is running at that moment notices the files.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from joinery_runtime.connectors.files.source import ListedFiles
from joinery_runtime.connectors.source import Bounds, Range, StoredOffsets, UnsharedSource
from joinery_runtime.errors import SourceError
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.formats.opened_files import file_errors

Rest = frozenset[tuple[str, ...]]
"""What may follow a directory: alternatives, each made of pattern parts. The last part matches a file name."""

_ANY_DIRECTORIES = "**"


class FilePattern:
    """A directory, which stands for all of its files, or a pattern with `*`, `?`, `[abc]` and `**` (any directories, or
    none). Names that begin with a dot or an underscore are hidden. `root` is the directory above all files."""

    def __init__(self, path: str) -> None:
        parts = Path(path).parts
        fixed = next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts))
        self.root = str(Path(*parts[:fixed])) if fixed < len(parts) else path
        self.below: Rest = frozenset([parts[fixed:] or ("*",)])

    def follows(self, file: str) -> bool:
        """Return whether the file would match if it existed."""
        if not Path(file).is_relative_to(self.root):
            return False
        *directories, name = Path(file).relative_to(self.root).parts or ("",)
        rest = self.below
        for directory in directories:
            rest = inside(rest, directory)
        return is_file_of(rest, name)


def inside(rest: Rest, directory: str) -> Rest:
    """Return what may follow a directory with this name; nothing if it does not match."""
    if _is_hidden(directory):
        return frozenset()
    remaining = set()
    for parts in _expand_steps(rest):
        if parts[0] == _ANY_DIRECTORIES:
            remaining.add(parts)
        elif len(parts) > 1 and fnmatch.fnmatchcase(directory, parts[0]):
            remaining.add(parts[1:])
    return frozenset(remaining)


def is_file_of(rest: Rest, name: str) -> bool:
    last_parts = (parts[0] for parts in _expand_steps(rest) if len(parts) == 1)
    fitting = (fnmatch.fnmatchcase(name, "*" if part == _ANY_DIRECTORIES else part) for part in last_parts)
    return not _is_hidden(name) and any(fitting)


def _expand_steps(rest: Rest) -> set[tuple[str, ...]]:
    """Add the alternatives in which a leading `**` stands for no directory."""
    shorter = {parts[1:] for parts in rest if len(parts) > 1 and parts[0] == _ANY_DIRECTORIES}
    return set(rest) | (_expand_steps(frozenset(shorter)) if shorter else shorter)


def _is_hidden(name: str) -> bool:
    return name[:1] in ("", ".", "_")


WINDOW = 200  # files that are read at a time: each is a partition in the plans
# A file is read once a second look, this long after the first, finds none before it. A file system's clock advances in
# steps of up to 10 ms, so whatever comes after the second look has a later time than the files that are read.
SETTLE_S = 0.05


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What is stored about a file, as the id of its partition: its size and modification time when it was read, the
    latest inode change or move (ns) of it and the files before it, and where its records end."""

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
    """What was found in a directory. Two changes may share one modification time. Only if the directory is `quiet` does
    an equal time mean that nothing has changed."""

    changed_ns: int
    changed_at: float
    quiet: bool = False
    files: set[str] = field(default_factory=set)
    directories: list[str] = field(default_factory=list)


class WatchedFiles(UnsharedSource):
    """The driver half. `path` is a directory or a pattern. `files` knows how a file's records are cut. `window` is the
    number of files that are read at a time."""

    def __init__(self, name: str, path: str, files: ListedFiles, window: int = WINDOW) -> None:
        self._name, self._path, self._files, self._window = name, path, files, window
        self._pattern = FilePattern(path)
        self._waiting: dict[str, float] = {}  # when each file that is not known to be read was first seen
        self._read: set[str] = set()
        self._came: set[str] = set()  # the waiting files that appeared after the first look
        self._listed_at: float | None = None
        self._directories: dict[str, _Directory] = {}

    def bounds(self, stored: StoredOffsets) -> list[Bounds]:
        first_listing = self._listed_at is None
        self._list_directories()
        if first_listing and self._waiting:
            time.sleep(SETTLE_S)
            self._list_directories()
        planned = sorted(ref for ref in stored.offsets if self._pattern.follows(ref.topic))
        for ref in planned:
            if ref.topic not in stored.topic_ids:
                raise SourceError(
                    f"Input {self._name} cannot be watched from here on",
                    facts=f"{ref.topic} was read without watch: true: which files were read was not recorded",
                    todo="Take watch: true out again, or start the job with new state",
                )
        stamps = {ref.topic: _Stamp.of(stored.topic_ids[ref.topic]) for ref in planned}
        self._sort_out(stamps)
        ends = [self._planned_bounds(ref, stored.offsets[ref], stamps[ref.topic]) for ref in planned]
        unread = [bound for bound in ends if bound.start < bound.end_exclusive]
        latest = max((stamp.latest_ns for stamp in stamps.values()), default=0)
        new = self._next_files(self._window - len(unread), latest)
        return [*_without_those_before(ends, following=bool(new)), *new]

    def _list_directories(self) -> None:
        """List the directories that may have changed."""
        first_listing, now = self._listed_at is None, time.monotonic()
        self._listed_at = now
        before, self._directories = self._directories, {}
        root = self._pattern.root
        try:
            with file_errors(root):
                names = self._list_below(root, self._pattern.below, before, now)
        except SourceError as error:
            if Path(root).exists():
                raise
            raise SourceError(
                f"The directory {root} that input {self._name} watches is not there",
                facts="it was moved or removed, is not mounted, or has another name",
                todo="Put it back, or correct the path in the job, and start the job again: it resumes where it was",
            ) from error
        appeared = names - self._waiting.keys() - self._read
        self._waiting = {name: self._waiting.get(name, now) for name in (self._waiting.keys() & names) | appeared}
        self._came = (self._came | (set() if first_listing else appeared)) & self._waiting.keys()
        self._read &= names

    def _list_below(self, path: str, rest: Rest, before: Mapping[str, _Directory], now: float) -> set[str]:
        """Return the files in and below a directory, using what the look before found. Raises OSError."""
        changed_ns, listing = Path(path).stat().st_mtime_ns, before.get(path)
        if listing is None or listing.changed_ns != changed_ns:
            listing = _Directory(changed_ns, now, files=set() if listing is None else listing.files)
        if not listing.quiet:
            with os.scandir(path) as listed:
                entries = list(listed)
            files = {entry.path for entry in entries if is_file_of(rest, entry.name) and entry.is_file()}
            if files - listing.files:
                listing.changed_at = now
            # Links to directories are not followed, because they may lead in circles.
            listing.directories = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            listing.files, listing.quiet = files, now - listing.changed_at >= SETTLE_S
        self._directories[path] = listing
        all_files = set(listing.files)
        for directory in listing.directories:
            if below := inside(rest, Path(directory).name):
                with suppress(FileNotFoundError):  # removed since it was listed
                    all_files |= self._list_below(directory, below, before, now)
        return all_files

    def _moved_ns(self, file: str) -> int:
        """When (ns) the file was last changed, or moved alone or with a directory. A change in a directory's content
        sets both of the directory's times; a move of the directory sets only its inode's."""
        latest = Path(file).stat().st_ctime_ns
        for directory in Path(file).relative_to(self._pattern.root).parents[:-1]:
            stat = (Path(self._pattern.root) / directory).stat()
            if stat.st_ctime_ns > stat.st_mtime_ns:
                latest = max(latest, stat.st_ctime_ns)
        return latest

    def _sort_out(self, stamps: Mapping[str, _Stamp]) -> None:
        """Move the waiting files that, by the stored progress, have been or are being read to `_read`. Raises
        SourceError for a file that has not, and comes before those."""
        if not stamps:
            return
        first, last = min(stamps), max(stamps)
        for file in sorted(self._waiting.keys()):
            if file > last:
                break
            if file not in stamps:
                with file_errors(file):
                    changed_ns = self._moved_ns(file)
                if file > first or file in self._came or changed_ns > stamps[first].latest_ns:
                    raise SourceError(
                        f"The file {file} of input {self._name} is new or was changed, and its turn is over",
                        facts=f"files are read in order of their paths, and {last} has been begun",
                        todo=f"If it was not read yet, give it a path that comes after {last}. If it was, move it away",
                    )
            del self._waiting[file]
            self._read.add(file)

    def _planned_bounds(self, ref: PartitionRef, position: int, stamp: _Stamp) -> Bounds:
        """Return the bounds of a file that was planned before. A file that was read to its end may have been
        deleted."""
        if position < stamp.end or Path(ref.topic).exists():
            self._check_unchanged(ref.topic, stamp, position)
        if position >= stamp.end:
            return Bounds(ref, position, position, topic_id=str(stamp))
        bounds = self._files.bounds_of(ref, position)
        return Bounds(ref, position, stamp.end, topic_id=str(stamp), record_bytes=bounds.record_bytes)

    def _check_unchanged(self, file: str, stamp: _Stamp, position: int | None = None) -> None:
        """Check that the file is as it was. `position` says how far its records were read, where that is known."""
        if not Path(file).exists():
            unit = self._files.unit
            read = "" if position is None else f"it was read up to {unit} {position:,} of {stamp.end:,}"
            raise SourceError(
                f"The file {file} of input {self._name} was removed before it was read to its end",
                facts=read or "an epoch that reads it is planned",
                todo="Put the same file back, with its time of change (cp -p, mv), and start the job again: it resumes "
                "where it was. A file may be removed once the job has read it. If the file is lost, start the job with "
                "new state: joinery state delete JOB.yaml --yes",
            )
        with file_errors(file):
            stat = Path(file).stat()
        if (stat.st_size, stat.st_mtime_ns) != (stamp.size, stamp.modified_ns):
            raise SourceError(
                f"The file {file} of input {self._name} was changed after reading it had begun",
                facts=f"it had {stamp.size:,} bytes then and has {stat.st_size:,} now",
                todo="Put the old file back with its time of change, and add records as a new file: write it beside "
                "the directory or with a name that begins with a dot, and move it in when it is complete",
            )

    def _next_files(self, number: int, latest_ns: int) -> list[Bounds]:
        """Return the next files to read, at most `number`: those that no new file can precede any more."""
        bounds: list[Bounds] = []
        for file in sorted(self._waiting):
            if len(bounds) >= number or (self._listed_at or 0) - self._waiting[file] < SETTLE_S:
                break
            with file_errors(file):
                stat = Path(file).stat()
                latest_ns = max(latest_ns, self._moved_ns(file))
            ref = PartitionRef(self._name, file, 0)
            bound = self._files.bounds_of(ref, None)
            stamp = _Stamp(stat.st_size, stat.st_mtime_ns, latest_ns, bound.end_exclusive)
            bounds.append(
                Bounds(ref, bound.start, stamp.end, topic_id=str(stamp), record_bytes=bound.record_bytes),
            )
        return bounds

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        return self._files.cut(bounds, max_records)

    def records(self, planned: Range, record_bytes: float) -> int:
        return self._files.records(planned, record_bytes)

    def reads_file(self, partition: PartitionRef) -> bool:
        return True

    def find_replaced_partitions(
        self, partitions: Collection[PartitionRef], topic_ids: Mapping[str, str]
    ) -> set[PartitionRef]:
        """Return nothing. Raises SourceError if a planned file has changed since."""
        for ref in partitions:
            self._check_unchanged(ref.topic, _Stamp.of(topic_ids[ref.topic]))
        return set()

    def close(self) -> None:
        self._files.close()


def _without_those_before(bounds: Iterable[Bounds], *, following: bool) -> list[Bounds]:
    """Forget the leading files that were read to their ends. Keeps the last of all files, unless others are
    `following`, because it says after which path new files come."""
    files = list(bounds)
    done = 0
    while done < len(files) - (not following) and files[done].start >= files[done].end_exclusive:
        done += 1
    forgotten = [
        Bounds(bound.partition, bound.start, bound.start, final=True, is_assigned=False, deleted=True)
        for bound in files[:done]
    ]
    return [*forgotten, *files[done:]]
