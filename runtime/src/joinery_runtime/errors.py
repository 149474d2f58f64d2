"""Every error that Joinery raises on purpose.

A message says what happened, the facts, and what to do, in that order; the cause stays chained. `exit_code` is the exit
code of the command line.

    JoineryError
    +-- JobError            the resource file is wrong (all problems at once)
    +-- ExpressionError     a predicate or select expression cannot be compiled or failed on data
    +-- SourceError         an input cannot be read
    |   +-- DataLoss        the broker no longer has a stored offset
    |   +-- PartitionsLost  another member of the consumer group took partitions that the epoch reads
    |   +-- PlanTooLarge    a planned epoch has more bytes than allowed, and is made smaller
    |   +-- SourceUnavailable   (U) an input's brokers do not answer
    +-- RecordError         a record cannot be used and there is no dead-letter output
    |   +-- MisreadInput    the job reads the first records of an input wrongly; their plan is dropped
    +-- AggregateError      a value of an aggregate does not fit, and there is no dead-letter output
    +-- StateError          the state store cannot do what it was asked to do
    |   +-- StoreUnavailable    (U) Postgres does not answer, or has no room
    |   +-- Fenced              a newer driver owns the job
    |   +-- IncompatibleState   the stored state does not fit the job or this release
    |   +-- LimitReached        the state is over a limit that the job sets
    |   +-- Moved               the state is in another database
    |   +-- StateTaken          the state belongs to another resource
    |   +-- RolloutOver         a rollout that has ended may no longer change the state
    |   +-- DuplicateJobName    a job of the same name, with another store, uses the same Kafka
    |   +-- CommittedSince      no rollback to a savepoint: the state is at another epoch by now
    +-- SinkError           an output cannot be written
    |   +-- RowLimitError   a row limit is not that of the topic
    |   |   +-- RecordTooLarge          a record is larger than its topic takes
    |   |   +-- WrittenWithOtherLimit   another attempt wrote the rows, and found another limit for large ones
    |   +-- Superseded      another attempt of the same task took over; this one wrote nothing
    |   +-- OutputUnavailable   (U) an output does not answer, or has no room
    +-- Unavailable         (U) an outside system does not answer: nothing is lost, and the job waits for it
    +-- EnvironmentProblem  the machine lacks something (Java, a package, a network)
        +-- NoRoom              a disk is full on which the job keeps files of its own
"""

from __future__ import annotations

import errno
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar


class JoineryError(Exception):
    """The base of all of Joinery's own errors: what happened, the facts, what to do."""

    exit_code = 1

    def __init__(self, summary: str, *, facts: str = "", todo: str = "") -> None:
        self.summary, self.facts, self.todo = summary, facts, todo
        super().__init__(summary, facts, todo)

    def __str__(self) -> str:
        text = f"{self.summary}: {self.facts}" if self.facts else self.summary
        return f"{text}{'' if text.endswith('?') else '.'} {self.todo}" if self.todo else text

    @property
    def kind(self) -> str:
        """The name of the error in a driver's ending, and so in the job's status."""
        return type(self).__name__

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries (Spark tasks), and pickle needs this for keyword-only arguments.
        return (partial(type(self), facts=self.facts, todo=self.todo), (self.summary,))


_LONGEST_WORD = 300  # characters


def cut_words(text: str) -> str:
    """Cut words of a message that are too long to be read, such as a user's literal or name."""
    return re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda word: f"{word[0][:80]}...{word[0][-20:]}", text)


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a resource file: `path` such as `spec.inputs[0].schema[2].type`, 1-based `line` if known."""

    path: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        location = f"line {self.line}: {self.path}" if self.line is not None else self.path
        return cut_words(f"{location}: {self.message}")


class JobError(JoineryError):
    """The resource is wrong. Carries every problem found."""

    exit_code = 2

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source, self.problems = source, tuple(problems)
        super().__init__(f"{source}: {len(self.problems)} problem(s)", facts="\n  " + "\n  ".join(map(str, problems)))

    def __reduce__(self) -> tuple[object, ...]:
        return (JobError, (self.source, self.problems))


class ExpressionError(JoineryError):
    exit_code = 2


class Unavailable(JoineryError):
    """An outside system does not answer or cannot serve now. Waiting may help: what was committed stays, and the job
    recovers as after a crash. `system` is the system that the job waits for."""

    system: ClassVar[str]


class SourceError(JoineryError):
    field: tuple[str, str] | None = None
    """An input, and the field of it that the job most likely has wrong."""


class DataLoss(SourceError):
    pass


class PartitionsLost(SourceError):
    pass


class PlanTooLarge(SourceError):
    """A planned epoch has more bytes than allowed. `read` says what was read from one partition so far: input, topic,
    partition, records, bytes."""

    def __init__(self, summary: str, *, facts: str = "", todo: str = "", read: tuple[str, str, int, int, int]) -> None:
        super().__init__(summary, facts=facts, todo=todo)
        self.read = read

    def __reduce__(self) -> tuple[object, ...]:
        return (partial(type(self), facts=self.facts, todo=self.todo, read=self.read), (self.summary,))


class SourceUnavailable(SourceError, Unavailable):
    system = "input"


class RecordError(JoineryError):
    pass


class MisreadInput(RecordError):
    """The first records of an input show that the job reads them wrongly. Nothing of the epoch is visible."""


class AggregateError(JoineryError):
    pass


class StateError(JoineryError):
    pass


class StoreUnavailable(StateError, Unavailable):
    system = "store"


class Fenced(StateError):
    pass


class IncompatibleState(StateError):
    pass


class LimitReached(StateError):
    pass


class Moved(StateError):
    pass


class StateTaken(StateError):
    pass


class RolloutOver(StateError):
    pass


class CommittedSince(StateError):
    pass


class DuplicateJobName(StateError):
    @property
    def kind(self) -> str:
        # Conditions and alerts use this name.
        return "NamesakeFound"


class SinkError(JoineryError):
    pass


class RowLimitError(SinkError):
    """The writer and its caller disagree about how large a row may be. `row_limit` is in bytes, and `output` is the
    output's name ("": the only one)."""

    def __init__(
        self, summary: str, *, facts: str = "", todo: str = "", row_limit: int | None = None, output: str = ""
    ) -> None:
        super().__init__(summary, facts=facts, todo=todo)
        self.row_limit, self.output = row_limit, output

    def __reduce__(self) -> tuple[object, ...]:
        build = partial(type(self), facts=self.facts, todo=self.todo, row_limit=self.row_limit, output=self.output)
        return (build, (self.summary,))


class RecordTooLarge(RowLimitError):
    """A row is larger than its topic takes. `row_limit` is the most that the topic takes, as far as its brokers show by
    their answers to rows of this shard and epoch (None: they do not show it)."""


class WrittenWithOtherLimit(RowLimitError):
    """The rows of this shard and epoch are in the topic. The attempt that wrote them left out rows over `row_limit`
    (None: only those that the job and the plan exclude), which is not the limit of this attempt."""


class Superseded(SinkError):
    pass


class OutputUnavailable(SinkError, Unavailable):
    system = "output"


class EnvironmentProblem(JoineryError):
    exit_code = 3


class NoRoom(EnvironmentProblem):
    pass


# --- a full disk: "No space left on device" alone says neither where nor what for -------------------------------------

ELSEWHERE = (
    "TMPDIR names another folder for temporary files; for those of Spark's workers, spark.local.dir in the job's "
    "spark.conf does (on a cluster SPARK_LOCAL_DIRS)"
)
_FULL = re.compile("No space left on device|Disk quota exceeded", re.IGNORECASE)


@contextmanager
def explain_full_disk(content: str, folder: Path | str) -> Iterator[None]:
    """Turn an error of the block into NoRoom if the folder has no room for the `content` that the block writes."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise no_room(content, folder, error.strerror or str(error)) from error


def temporary_folder() -> Path:
    """Return the folder for temporary files. Raises NoRoom if there is none that takes a file."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise NoRoom(
            "No folder takes temporary files", facts=error.strerror or str(error), todo=f"Make room in one. {ELSEWHERE}"
        ) from error


def is_full(error: OSError) -> bool:
    """Whether there is no room for a file, so that somebody may make some."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def says_full(text: str) -> bool:
    """Whether a message of another program says so."""
    return _FULL.search(text) is not None


def no_room(content: str, folder: Path | str, facts: str) -> NoRoom:
    return NoRoom(
        f"There is no room in {folder} for {content}",
        facts=facts,
        todo=f"Make room there and start again: nothing is lost. {ELSEWHERE}",
    )
