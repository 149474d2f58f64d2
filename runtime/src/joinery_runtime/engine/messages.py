"""The values that travel between the driver and its tasks: work to do, and summaries of it. All of them pickle."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from joinery_runtime.connectors.sink import Receipt
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.engine.hot_keys import KeyRows
from joinery_runtime.engine.plan import EpochPlan
from joinery_runtime.errors import EnvironmentProblem, JoineryError
from joinery_runtime.formats.batch import PartitionRef

TRANSACTION_POINTS = ("transaction-begun", "transaction-sent", "transaction-committed")
CRASH_POINTS = ("planned", "reading", "staged", *TRANSACTION_POINTS, "output-written", "before-commit", "after-commit")
"""Where a test may kill a driver, in the order of an epoch. An epoch reaches the points of a transaction only if its
output is transactional in Kafka."""

RunsOn = Literal["driver", "spark"]
"""Where an epoch ran: in the driver's own process, or as a job of Spark."""


@dataclass(frozen=True, slots=True)
class FaultPoint:
    """Fault injection for the kill tests: SIGKILL the process `pid` when an epoch reaches the crash point `name`."""

    name: str
    epoch: int
    pid: int

    @classmethod
    def from_environment(cls) -> FaultPoint | None:
        """`JOINERY_FAULT=staged@7` kills this driver when epoch 7, or the first later one, reaches the point."""
        text = os.environ.get("JOINERY_FAULT")
        if not text:
            return None
        name, _, epoch = text.partition("@")
        if name not in CRASH_POINTS or not epoch.isdecimal():
            raise EnvironmentProblem(
                "The environment variable JOINERY_FAULT names no crash point of an epoch",
                facts=text,
                todo=f"Write <point>@<epoch>, with a point of {', '.join(CRASH_POINTS)}, or unset it",
            )
        return cls(name, int(epoch), os.getpid())

    def strike(self, point: str, epoch: int) -> None:
        """Kill the process if this is the point, and the epoch or a later one."""
        if self.name == point and epoch >= self.epoch:
            os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class EpochWork:
    """What a task needs to know of an epoch. `segments` are live and not expired under the plan's watermarks.
    `incarnation` is that of the job. `replaced_partitions` are planned partitions that can no longer be read and need
    not be. `allowed` is how many bytes of undecoded records each range may yield: with more, the epoch is too large to
    continue. `merge_all` puts off no merge to later epochs, because a limit on the state counts what merges leave.
    `int64_times` are inputs of the plan, and branches of its unions, of which no event time is known yet, with the
    int64 column that is taken for milliseconds without a word of the user: the task rejects times that most likely
    count seconds. `keys_to_check` are the keys (`null_keys`) of those of which nothing is committed. `careful`:
    processes have died of this plan, so each batch is decoded in another process first. `is_small`: the plan reads so
    little that several processes may each read all of it."""

    generation: int
    plan: EpochPlan
    segments: tuple[SegmentMeta, ...]
    fault: FaultPoint | None = None
    incarnation: str = ""
    replaced_partitions: frozenset[PartitionRef] = frozenset()
    allowed: Mapping[PartitionRef, int] = field(default_factory=dict)
    merge_all: bool = False
    int64_times: Mapping[str, str] = field(default_factory=dict)
    keys_to_check: Mapping[str, tuple[frozenset[str], ...]] = field(default_factory=dict)
    careful: bool = False
    is_small: bool = False

    @property
    def judges_inputs(self) -> bool:
        """Whether each shard needs to know what was read of an input anywhere."""
        return bool(self.int64_times or self.keys_to_check)

    def failpoint(self, point: str) -> None:
        if self.fault is not None:
            self.fault.strike(point, self.plan.epoch)


@dataclass(frozen=True, slots=True)
class PartitionRead:
    """What reading one range gave: `records` read, their undecoded `bytes`, the `rows` passed on, the `lowest` and
    `highest` event time of all readable rows (ms), the most (`disorder`, ms) that one is behind an earlier one of the
    range, rows `dropped` by reason, `dead` records for the dead-letter output
    with the first of them in words, and `lost` offsets that the broker deleted after they were planned (`onDataLoss:
    continue`). `decoded` counts the rows decoded, without deletions of a table
    and rows that the input's condition leaves out. `empty` columns are null in all of
    these rows (None: there are no such rows). `paths` are those of a record's values, if a key looks wrong."""

    partition: PartitionRef
    records: int = 0
    bytes: int = 0
    rows: int = 0
    lowest: int | None = None
    highest: int | None = None
    disorder: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    dead: int = 0
    first_dead: str = ""
    lost: int = 0
    decoded: int = 0
    empty: frozenset[str] | None = None
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadSummary:
    partitions: tuple[PartitionRead, ...]
    dead_letters: Receipt | None = None


@dataclass(frozen=True, slots=True)
class PartCounts:
    """What an attempt did to one part of the state: rows added to it, and arrivals that were looked up in it."""

    stored: int = 0
    lookups: int = 0


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """One attempt of one step in one shard.

    `rows_in` counts rows of inputs, `rows_taken` rows of the step before, `rows_handed` rows for the next step,
    `rows_out` rows for the output. `dropped` counts per input and reason. `staged` segments are new, `replaced` ones
    are merged into them, and `finished` ones have no row of this shard that is still needed. `hottest` are the keys
    with the most rows in the state before the epoch; None if they were not counted. `removed` counts, by segment, rows
    that are no longer part of the state although the segment stays (sessions that were emitted or replaced).
    `after_eviction` counts, per input, rows that were accepted when some of their partners may already have been gone.
    `behind` says, per input with late rows, how far the latest of them was behind its watermark (ms). `dead` counts,
    per input, records that the step has found for the dead letters: late ones, or such that lack a value. `first_dead`
    is the first of them in words. `dead` also counts rows of an aggregate that do not fit. `first_unfit` is
    the reason of the first one, or of a stored row that has lost values, in a job without dead letters.
    """

    step: int
    shard: int
    rows_in: int = 0
    rows_taken: int = 0
    rows_handed: int = 0
    rows_out: int = 0
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    staged: tuple[SegmentMeta, ...] = ()
    replaced: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    receipt: Receipt | None = None
    hottest: tuple[KeyRows, ...] | None = None
    parts: Mapping[str, PartCounts] = field(default_factory=dict)
    matches: int = 0
    removed: Mapping[str, int] = field(default_factory=dict)
    after_eviction: Mapping[str, int] = field(default_factory=dict)
    behind: Mapping[str, int] = field(default_factory=dict)
    dead: Mapping[str, int] = field(default_factory=dict)
    first_dead: str = ""
    first_unfit: str = ""


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """One of our errors, carried to the driver as a value so that it arrives with its own type and text."""

    error: JoineryError


@dataclass(frozen=True, slots=True)
class EpochOutcome:
    """`shards` holds one summary per step and shard, by (step, shard). A host that sends the epoch elsewhere sets
    `runs_on`."""

    read: ReadSummary
    shards: Mapping[tuple[int, int], ShardSummary]
    runs_on: RunsOn = "driver"
