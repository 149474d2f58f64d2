"""Warns about inputs whose records look wrong as a whole, although each record may be valid.

A column may have no value at all, no record may be usable, or event times may be in another unit or often too far ahead
(T11). The usual cause is a name, a path or a format in the job that does not match the topic, or no longer does.

The warnings count runs: consecutive records that lack a value, or cannot be used, since the driver started or since the
last epoch that shows otherwise. After such an epoch, only a long run that far exceeds all earlier runs causes a
warning, so a column that few records have causes none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.engine.messages import PartitionRead
from joinery_runtime.engine.null_keys import ColumnsRead, by_source
from joinery_runtime.errors import MisreadInput
from joinery_runtime.formats.convert import SECONDS_2000, SECONDS_2100
from joinery_runtime.job.model.wording import counted, listed

MOST_NAMED = 5  # columns in one message
LONG_RUN = 1_000  # rows without a value, after rows that had one
LONG_USELESS_RUN = 100  # unusable records, after usable ones
OFTEN = 100  # one record in so many that is too far ahead is no single corrupt one
FAR_LONGER = 10  # times the longest earlier run
_ONE_UNUSABLE, _ONE_DECODED = "the one record read so far cannot", "the one record decoded so far"


@dataclass(slots=True)
class _Run:
    """The newest records in a row that have the same fault. `earlier` is the length of the longest run that has ended;
    None if all records since the driver's start have the fault."""

    length: int = 0
    earlier: int | None = None

    def end(self) -> None:
        self.earlier = max(self.earlier or 0, self.length)
        self.length = 0

    def looks_wrong(self, long: int) -> bool:
        if self.earlier is None:
            return self.length > 0
        return self.length >= max(long, FAR_LONGER * self.earlier)


@dataclass(slots=True)
class _Input:
    """What has been read of an input. `empty` has a run for each column that was ever null in all rows of an epoch.
    `useless` counts records that went to the dead letters or have a null key, in epochs that had no others; `unusable`
    counts them by reason, and `first` is one of them. `deletions` of a stream give no rows, and prove nothing about
    the other records. Of all `records` read so far, `future` were too far ahead, as `first_future` was. `times`
    are the lowest and the highest event time of the newest epoch that had any."""

    rows_seen: bool = False
    empty: dict[str, _Run] = field(default_factory=dict)
    useless: _Run = field(default_factory=_Run)
    unusable: dict[str, int] = field(default_factory=dict)
    deletions: int = 0
    first: str = ""
    times: tuple[int, int] | None = None
    records: int = 0
    future: int = 0
    first_future: str = ""

    def add(self, reads: list[PartitionRead]) -> None:
        """Add what one epoch has read."""
        with_rows = [read for read in reads if read.empty is not None]
        if with_rows:
            empty = frozenset.intersection(*(read.empty for read in with_rows if read.empty is not None))
            for column in empty:
                run = self.empty.setdefault(column, _Run(earlier=0 if self.rows_seen else None))
                run.length += sum(read.decoded for read in with_rows)
            for column in self.empty.keys() - empty:
                self.empty[column].end()
            self.rows_seen = True
        lowest = [read.lowest for read in reads if read.lowest is not None]
        highest = [read.highest for read in reads if read.highest is not None]
        if lowest and highest:
            self.times = min(lowest), max(highest)
        records = sum(read.records for read in reads)
        self.records += records
        self.future += sum(read.dropped.get("future", 0) for read in reads)
        self.first_future = self.first_future or next((r.first_dead for r in reads if ": future: " in r.first_dead), "")
        deletions = sum(read.dropped.get("deletion", 0) + read.dropped.get("tombstone", 0) for read in reads)
        dead, null_keys = sum(read.dead for read in reads), sum(read.dropped.get("null_key", 0) for read in reads)
        if dead + null_keys + deletions < records:
            self.useless.end()
            self.unusable, self.deletions, self.first = {}, 0, ""
            return
        self.useless.length += dead + null_keys
        self.deletions += deletions
        for reason, count in (("dead letter", dead), ("null key", null_keys)):
            if count:
                self.unusable[reason] = self.unusable.get(reason, 0) + count
        self.first = self.first or next((read.first_dead for read in reads if read.first_dead), "")

    @property
    def without_value(self) -> list[str]:
        return sorted(name for name, run in self.empty.items() if run.looks_wrong(LONG_RUN))

    @property
    def is_useless(self) -> bool:
        """Whether no record can be used. Records that are too far ahead have a warning of their own."""
        return sum(self.unusable.values()) > self.future and self.useless.looks_wrong(LONG_USELESS_RUN)

    @property
    def is_often_ahead(self) -> bool:
        return self.future > 0 and self.future * OFTEN >= self.records

    @property
    def counts_seconds(self) -> bool:
        return self.times is not None and _count_seconds(*self.times)

    def warning(self, name: str, int64_time: str | None) -> str | None:
        """Return the warning about this input in a few sentences; None if nothing looks wrong. `int64_time` is the
        int64 column with its event time (None: its event time is a timestamp)."""
        faults = []
        if self.is_useless:
            unusable = self.unusable | ({"deleted record": self.deletions} if self.deletions else {})
            counts = listed(counted(count, reason) for reason, count in unusable.items())
            first = f" (the first: {self.first})" if self.first else ""
            read = self.useless.length + self.deletions
            none = f"none of the {_run_text(self.useless, 'read', self.deletions)} can" if read > 1 else _ONE_UNUSABLE
            faults.append(f"{none} be used: {counts}{first}")
        missing = self.without_value
        for since in (True, False):
            named = [column for column in missing if (self.empty[column].earlier is None) == since]
            if named:
                more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
                columns = f"column{'s' if len(named) > 1 else ''} {', '.join(named[:MOST_NAMED])}{more}"
                shortest = min((self.empty[column] for column in named), key=lambda run: run.length)
                among = f"any of the {_run_text(shortest, 'decoded')}" if shortest.length > 1 else _ONE_DECODED
                faults.append(f"no value for {columns} in {among}")
        sentences = [f"{'; '.join(faults)}. Compare the schema's names and paths with a record"] if faults else []
        if missing:
            dotted = next((column for column in missing if "." in column), "customer.id")
            sentences[0] += (
                f"; a value inside of an object is written as path: {dotted}, of an array as path: items[0].sku"
            )
        if int64_time is not None and self.counts_seconds and self.times is not None:
            lowest = self.times[0]
            sentences.append(
                f"event times of column {int64_time} are from {_day(lowest)} on, and from {_day(lowest * 1_000)} on "
                f"if their numbers count seconds. If they do, declare {int64_time} as type: timestamp with format: s"
            )
        if self.is_often_ahead:
            first = f" (the first: {self.first_future})" if self.first_future else ""
            sentences.append(
                f"{self.future:,} of the {counted(self.records, 'record')} read so far went to the dead letters "
                f"because their event times are too far ahead{first}. If these times are right, give the input "
                'watermark: {maxFuture: "off"}'
            )
        return f"Input {name}: {'. '.join(sentences)}" if sentences else None


def _run_text(run: _Run, done: str, between: int = 0) -> str:
    """Name the records of a run (more than one) in words, `between` others among them counted in."""
    count = run.length + between
    return f"{count:,} records {done} so far" if run.earlier is None else f"newest {count:,} records {done}"


def _count_seconds(lowest: int, highest: int) -> bool:
    return lowest >= SECONDS_2000 and highest < SECONDS_2100


def reject_seconds(reads: Iterable[ColumnsRead], columns: Mapping[str, str], *, at_least: int) -> None:
    """Raise MisreadInput if all event times of a source (an input or a union's branch), of at least so many records,
    most likely count seconds. `reads` are those of the whole epoch. `columns` names the int64 column, which is
    milliseconds, of each source of which no time is known."""
    for name, source_reads in by_source(reads).items():
        lowest, partition = min((read.lowest for read in source_reads if read.lowest is not None), default=(0, None))
        highest = max((read.highest for read in source_reads if read.highest is not None), default=0)
        records = sum(read.records for read in source_reads)
        if name not in columns or partition is None or records < at_least or not _count_seconds(lowest, highest):
            continue
        column = columns[name]
        raise MisreadInput(
            f"Input {name}: the event times of column {column} most likely count seconds, and int64 is milliseconds",
            facts=f"the lowest in {partition.topic}/{partition.partition} is {lowest}: {_day(lowest)} in milliseconds, "
            f"{_day(lowest * 1_000)} in seconds; nothing of the epoch was committed",
            todo=f"Declare {column} as type: timestamp with format: s or, if its numbers are milliseconds, with "
            "format: ms",
        )


def _day(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1_000, UTC).date().isoformat()


class InputWarnings:
    """The warnings of all inputs. Warns when an input first looks wrong, and again when something else does. Branches
    of a union are judged apart, because each has a format and names of its own. `int64_times` names the int64 column
    with the event time, for inputs and branches that have it in one."""

    def __init__(self, int64_times: Mapping[str, str], pipeline: Pipeline) -> None:
        self._inputs: dict[str, _Input] = {}
        self._int64_times = int64_times
        self._pipeline = pipeline
        self._warned: set[tuple[str, str]] = set()  # pairs of an input and what is wrong with it

    def learn(self, reads: Iterable[PartitionRead]) -> tuple[str, ...]:
        """Take what a committed epoch has read, and return the new warnings."""
        by_source: dict[str, list[PartitionRead]] = {}
        for read in reads:
            branch = self._pipeline.input(read.partition.input).branch_of(read.partition.topic)
            source = read.partition.input if branch is None else branch.name
            empty = read.empty
            if branch is not None and empty is not None:
                # As messages name them, without those that a branch of a union leaves empty on purpose.
                empty = frozenset(branch.columns[name] for name in empty.intersection(branch.columns))
            by_source.setdefault(source, []).append(replace(read, empty=empty))
        new = []
        for name, source_reads in by_source.items():
            history = self._inputs.setdefault(name, _Input())
            history.add(source_reads)
            wrong = {(name, f"column {column}") for column in history.without_value}
            wrong |= {(name, "records")} if history.is_useless else set()
            wrong |= {(name, "event times")} if name in self._int64_times and history.counts_seconds else set()
            wrong |= {(name, "future")} if history.is_often_ahead else set()
            if wrong - self._warned:
                new.append(self._warning_of(name) or "")
            # A fault that ended is reported again if it returns: by then its run is far longer. Event times have no
            # runs.
            self._warned = {fault for fault in self._warned if fault[0] != name or fault[1] == "event times"} | wrong
        return tuple(new)

    @property
    def active(self) -> Mapping[str, str]:
        """The warning of each input that looks wrong now, of a union those of its branches. A record that shows
        otherwise ends it."""
        warnings = dict[str, str]()
        for spec in self._pipeline.inputs:
            texts = [self._warning_of(source) for source in spec.sources if source in self._inputs]
            if text := ". ".join(filter(None, texts)):
                warnings[spec.name] = text
        return warnings

    def _warning_of(self, name: str) -> str | None:
        return self._inputs[name].warning(name, self._int64_times.get(name))
