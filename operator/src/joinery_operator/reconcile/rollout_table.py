"""The rollout of another revision as one table: from which stage, when, what is done, to which stage.

`rollout` classifies what was observed into a `RolloutObservation` and carries out its row. Every observation has
exactly one row (tests/operator/reconcile/test_rollout_table.py). `make crds` renders docs/rollout-table.md from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import Final, Literal

from joinery_operator.reconcile.reasons import INCOMPATIBLE
from joinery_runtime.job.crd import Status
from joinery_runtime.job.crd.status import Phase

RefusalReason = Literal["IncompatibleState", "CheckFailed", "MigrationFailed", "StartFailed", "DeadlineExceeded"]


class RolloutStage(Enum):
    """`status.rollout.stage`, and STABLE where there is no rollout."""

    STABLE = "Stable"
    CHECKING = "Checking"
    STOPPING = "Stopping"
    STARTING = "Starting"
    ROLLING_BACK = "RollingBack"


def stage_of(status: Status) -> RolloutStage:
    return RolloutStage(status.rollout.stage) if status.rollout else RolloutStage.STABLE


class Asked(Enum):
    """What the resource asks for. A resource that is no valid job asks for nothing else."""

    SAME = "the same"
    ANOTHER = "another"


class Suspend(Enum):
    """`spec.suspend`."""

    NO = "no"
    YES = "yes"


class AtStake(Enum):
    """What could be lost or returned to: durable state of a revision in force that was ready once (`status.proved`)."""

    NOTHING = "nothing"
    STATE = "state"


class NewStore(Enum):
    """What the state store of the revision asked for does with that state."""

    KEEPS = "keeps state"
    IN_MEMORY = "keeps none"
    GIVES_UP = "keeps none, and upgrade.mode is stateless"


class Refused(Enum):
    """Whether `status.refused` is about the revision asked for, in this mode."""

    NO = "no"
    YES = "yes"


class Mode(Enum):
    """`upgrade.mode` of the rollout."""

    STATEFUL = "stateful"
    STATELESS = "stateless"


class Check(Enum):
    """What the check pod says."""

    NOTHING_YET = "nothing yet"
    FITS = "the job fits the state"
    NO_STATE = "there is no state"
    MISFIT = "the job does not fit the state"
    FAILED = "failed for good"
    INCOMPATIBLE = "failed for good: IncompatibleState"


class OldDriver(Enum):
    """Whether the old driver may still commit."""

    ACTIVE = "active"
    GONE = "gone"


class NewDriver(Enum):
    """How far the driver is that migrates the state for the new revision."""

    NONE = "none yet"
    UNDERWAY = "under way, or between two attempts"
    READY = "ready, without a commit"
    COMMITTED = "has committed or finished"
    STOPPED = "stopped by the operator"
    MISFIT = "failed for good: IncompatibleState"
    NOT_MIGRATED = "failed for good before it was initialized"
    FAILED = "failed for good after it was initialized"


class Restore(Enum):
    """How far the driver is that restores the state for the revision in force."""

    UNDERWAY = "under way"
    RESTORED = "restored"
    COMMITTED_SINCE = "refused: CommittedSince"


class Deadline(Enum):
    """Whether the stage has taken longer than `deadline_seconds`."""

    AHEAD = "ahead"
    PASSED = "passed"


@dataclass(frozen=True, slots=True)
class RolloutObservation:
    """What was observed, as far as the stage's rows tell it apart; None where they do not."""

    stage: RolloutStage
    asked: Asked | None = None
    suspend: Suspend | None = None
    at_stake: AtStake | None = None
    new_store: NewStore | None = None
    refused: Refused | None = None
    mode: Mode | None = None
    check: Check | None = None
    old_driver: OldDriver | None = None
    new_driver: NewDriver | None = None
    restore: Restore | None = None
    deadline: Deadline | None = None


DIMENSIONS: Final[Mapping[str, type[Enum]]] = {
    "asked": Asked,
    "suspend": Suspend,
    "at_stake": AtStake,
    "new_store": NewStore,
    "refused": Refused,
    "mode": Mode,
    "check": Check,
    "old_driver": OldDriver,
    "new_driver": NewDriver,
    "restore": Restore,
    "deadline": Deadline,
}


class DriverRole(Enum):
    """Which driver is to run."""

    NONE = "none"
    IN_FORCE = "of the revision in force"
    MIGRATES = "of the new revision, migrates first"
    RESTORES = "of the revision in force, restores first"


@dataclass(frozen=True, slots=True)
class StageRules:
    """What holds while a stage lasts. `dimensions`: what its rows depend on; `phase`: the job's, where the stage says
    more than the driver does."""

    driver: DriverRole
    phase: Phase | None
    dimensions: tuple[str, ...]

    @property
    def has_deadline(self) -> bool:
        return "deadline" in self.dimensions


STAGES: Final[Mapping[RolloutStage, StageRules]] = {
    RolloutStage.STABLE: StageRules(
        DriverRole.IN_FORCE, None, ("asked", "at_stake", "new_store", "suspend", "refused")
    ),
    RolloutStage.CHECKING: StageRules(DriverRole.IN_FORCE, None, ("asked", "suspend", "mode", "check", "deadline")),
    RolloutStage.STOPPING: StageRules(DriverRole.NONE, "Stopping", ("asked", "suspend", "old_driver")),
    RolloutStage.STARTING: StageRules(DriverRole.MIGRATES, "Migrating", ("asked", "suspend", "new_driver", "deadline")),
    RolloutStage.ROLLING_BACK: StageRules(DriverRole.RESTORES, "RollingBack", ("restore",)),
}


class Act(Enum):
    """What a row does to the status."""

    WAIT = "wait"
    REPORT = "wait, and report what keeps the check"
    TAKE_OVER = "put the revision in force without a rollout"
    BEGIN = "begin a rollout"
    REFUSE = "refuse the revision"
    STOP = "stop the old driver"
    START = "start the new driver"
    DROP = "drop the rollout, then as Stable"
    RESTART_CLOCK = "begin the deadline anew"
    ROLL_BACK = "roll back"
    REFUSE_AND_ROLL_BACK = "refuse the revision and roll back"
    COMPLETE = "put the revision in force"
    KEEP = "keep the revision in force"


def _when(*conditions: Enum | tuple[Enum, ...]) -> Mapping[str, frozenset[Enum]]:
    """Conditions by dimension, which the enum tells. A tuple means: any of these."""
    names = {kind: name for name, kind in DIMENSIONS.items()}
    groups = [each if isinstance(each, tuple) else (each,) for each in conditions]
    return {names[type(group[0])]: frozenset(group) for group in groups}


@dataclass(frozen=True, slots=True)
class Transition:
    """In `stage`, when all of `when` hold: do `act`; the stage is `to` then. `refused`: the reason of the refusal."""

    stage: RolloutStage
    when: Mapping[str, frozenset[Enum]]
    act: Act
    to: RolloutStage
    why: str
    refused: RefusalReason | None = None

    def matches(self, observation: RolloutObservation) -> bool:
        return observation.stage is self.stage and all(
            getattr(observation, dimension) in values for dimension, values in self.when.items()
        )


_NOT_GIVEN_UP = (NewStore.KEEPS, NewStore.IN_MEMORY)
_PENDING = (NewDriver.NONE, NewDriver.UNDERWAY, NewDriver.READY)
_BEGUN = tuple(each for each in NewDriver if each not in {NewDriver.NONE, NewDriver.COMMITTED})
_NOT_COMMITTED = (NewDriver.NONE, *_BEGUN)
_STABLE, _CHECKING, _STOPPING, _STARTING, _ROLLING_BACK = RolloutStage

# fmt: off
TABLE: Final[tuple[Transition, ...]] = (
    # Stable: no rollout.
    Transition(_STABLE, _when(Asked.SAME), Act.WAIT, _STABLE,
        "The revision in force is asked for, or no valid job."),
    Transition(_STABLE, _when(Asked.ANOTHER, AtStake.NOTHING), Act.TAKE_OVER, _STABLE,
        "Nothing can be lost or returned to."),
    Transition(_STABLE, _when(Asked.ANOTHER, AtStake.STATE, NewStore.GIVES_UP), Act.TAKE_OVER, _STABLE,
        "The resource gives the state up."),
    Transition(_STABLE, _when(Asked.ANOTHER, AtStake.STATE, _NOT_GIVEN_UP, Suspend.YES),
        Act.WAIT, _STABLE, "A rollout begins at the resumption."),
    Transition(_STABLE, _when(Asked.ANOTHER, AtStake.STATE, _NOT_GIVEN_UP, Suspend.NO, Refused.YES),
        Act.WAIT, _STABLE, "What was refused is not tried again."),
    Transition(_STABLE, _when(Asked.ANOTHER, AtStake.STATE, NewStore.KEEPS, Suspend.NO, Refused.NO),
        Act.BEGIN, _CHECKING, "A check shows whether the job fits its state."),
    Transition(_STABLE, _when(Asked.ANOTHER, AtStake.STATE, NewStore.IN_MEMORY, Suspend.NO, Refused.NO),
        Act.REFUSE, _STABLE, "All of the state would be left behind.", INCOMPATIBLE),
    # Checking: the check pod runs with the new image and job; the old driver goes on.
    Transition(_CHECKING, _when(Asked.ANOTHER), Act.DROP, _STABLE,
        "Nothing has happened to the state: what is asked for now is another matter."),
    Transition(_CHECKING, _when(Asked.SAME, Suspend.YES), Act.DROP, _STABLE,
        "Nothing has happened to the state: the check is made at the resumption."),
    Transition(_CHECKING, _when(Asked.SAME, Suspend.NO, Check.FITS), Act.STOP, _STOPPING,
        "The check has passed."),
    Transition(_CHECKING, _when(Asked.SAME, Suspend.NO, Mode.STATELESS, (Check.NO_STATE, Check.MISFIT)),
        Act.STOP, _STOPPING, "The state is left behind: the check only shows that image and job are usable."),
    Transition(_CHECKING, _when(Asked.SAME, Suspend.NO, Mode.STATEFUL, Check.NO_STATE), Act.REFUSE, _STABLE,
        "The state is somewhere else: the new revision would begin with none.", INCOMPATIBLE),
    Transition(_CHECKING, _when(Asked.SAME, Suspend.NO, Mode.STATEFUL, Check.MISFIT), Act.REFUSE, _STABLE,
        "The check says what does not fit.", INCOMPATIBLE),
    Transition(_CHECKING, _when(Asked.SAME, Suspend.NO, Check.INCOMPATIBLE), Act.REFUSE, _STABLE,
        "Another check would fail the same way.", INCOMPATIBLE),
    Transition(_CHECKING, _when(Asked.SAME, Suspend.NO, Check.FAILED), Act.REFUSE, _STABLE,
        "Another check would fail the same way.", "CheckFailed"),
    Transition(_CHECKING, _when(Asked.SAME, Suspend.NO, Check.NOTHING_YET, Deadline.AHEAD), Act.REPORT, _CHECKING,
        "A check that says nothing is made again."),
    Transition(_CHECKING, _when(Asked.SAME, Suspend.NO, Check.NOTHING_YET, Deadline.PASSED), Act.REFUSE, _STABLE,
        "No result within the deadline.", "CheckFailed"),
    # Stopping: the old driver finishes its epoch.
    Transition(_STOPPING, _when(Asked.ANOTHER), Act.DROP, _STABLE,
        "Nothing has happened to the state: what is asked for now is another matter."),
    Transition(_STOPPING, _when(Asked.SAME, Suspend.YES), Act.DROP, _STABLE,
        "Nothing has happened to the state: the check is made again at the resumption."),
    Transition(_STOPPING, _when(Asked.SAME, Suspend.NO, OldDriver.ACTIVE), Act.WAIT, _STOPPING,
        "Two drivers never run at a time."),
    Transition(_STOPPING, _when(Asked.SAME, Suspend.NO, OldDriver.GONE), Act.START, _STARTING,
        "No other driver can commit any more. The savepoint gets its name."),
    # Starting: a driver pins the savepoint, migrates the state, and runs.
    Transition(_STARTING, _when(NewDriver.COMMITTED), Act.COMPLETE, _STABLE,
        "An epoch of the new revision is committed: there is no way back."),
    Transition(_STARTING, _when(Asked.ANOTHER, NewDriver.NONE), Act.DROP, _STABLE,
        "Nothing has happened to the state: what is asked for now is another matter."),
    Transition(_STARTING, _when(Asked.ANOTHER, _BEGUN),
        Act.ROLL_BACK, _ROLLING_BACK, "The state may be migrated, and the resource asks for another job."),
    Transition(_STARTING, _when(Asked.SAME, Suspend.YES, _NOT_COMMITTED), Act.WAIT, _STARTING,
        "No driver runs while the job is suspended."),
    Transition(_STARTING, _when(Asked.SAME, Suspend.NO, NewDriver.STOPPED), Act.RESTART_CLOCK, _STARTING,
        "The job was suspended: its time starts again."),
    Transition(_STARTING, _when(Asked.SAME, Suspend.NO, NewDriver.MISFIT), Act.REFUSE_AND_ROLL_BACK, _ROLLING_BACK,
        "Another attempt would fail the same way.", INCOMPATIBLE),
    Transition(_STARTING, _when(Asked.SAME, Suspend.NO, NewDriver.NOT_MIGRATED),
        Act.REFUSE_AND_ROLL_BACK, _ROLLING_BACK, "Another attempt would fail the same way.", "MigrationFailed"),
    Transition(_STARTING, _when(Asked.SAME, Suspend.NO, NewDriver.FAILED), Act.REFUSE_AND_ROLL_BACK, _ROLLING_BACK,
        "Another attempt would fail the same way.", "StartFailed"),
    Transition(_STARTING, _when(Asked.SAME, Suspend.NO, _PENDING, Deadline.AHEAD),
        Act.WAIT, _STARTING, "The first commit is awaited; a failure that may pass is tried again."),
    Transition(_STARTING, _when(Asked.SAME, Suspend.NO, NewDriver.READY, Deadline.PASSED), Act.COMPLETE, _STABLE,
        "Without records there is no commit: a driver that is ready at the deadline is taken."),
    Transition(_STARTING, _when(Asked.SAME, Suspend.NO, NewDriver.NONE, Deadline.PASSED), Act.REFUSE, _STABLE,
        "Nothing has happened to the state: there is nothing to roll back.", "DeadlineExceeded"),
    Transition(_STARTING, _when(Asked.SAME, Suspend.NO, NewDriver.UNDERWAY, Deadline.PASSED),
        Act.REFUSE_AND_ROLL_BACK, _ROLLING_BACK, "Not ready within the deadline.", "DeadlineExceeded"),
    # RollingBack: a driver of the revision in force restores the savepoint, and runs. The resource waits meanwhile.
    Transition(_ROLLING_BACK, _when(Restore.UNDERWAY), Act.WAIT, _ROLLING_BACK,
        "The old revision runs only on its own state."),
    Transition(_ROLLING_BACK, _when(Restore.RESTORED), Act.KEEP, _STABLE,
        "The state is as it was before the migration."),
    Transition(_ROLLING_BACK, _when(Restore.COMMITTED_SINCE), Act.COMPLETE, _STABLE,
        "The new driver had committed, unseen: there is no way back, and no need of one."),
)
# fmt: on


def row_for(observation: RolloutObservation) -> Transition:
    """The row that the observation has."""
    return next(row for row in TABLE if row.matches(observation))


def observations() -> Iterator[RolloutObservation]:
    """Every observation that there may be, each once."""
    for stage, rules in STAGES.items():
        found = (
            RolloutObservation(stage, **dict(zip(rules.dimensions, values, strict=True)))  # type: ignore[arg-type]
            for values in product(*(DIMENSIONS[name] for name in rules.dimensions))
        )
        if stage is RolloutStage.STABLE:
            # What asks for nothing has no store and was not refused.
            found = (RolloutObservation(stage, each.asked) if each.asked is Asked.SAME else each for each in found)
        yield from dict.fromkeys(found)


def rendered() -> str:
    """docs/rollout-table.md."""
    lines = [
        "# The rollout of another revision, as a table",
        "",
        "Generated from `operator/src/joinery_operator/reconcile/rollout_table.py` by `make crds`; edit that.",
        "[operator.md](operator.md) explains it. Each reconcile classifies what it observes; exactly one row applies.",
        "",
        "| stage | driver that runs | phase | deadline |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{stage.value}` | {rules.driver.value} | {f'`{rules.phase}`' if rules.phase else 'as the driver'} | "
        f"{'`deadline_seconds`' if rules.has_deadline else ''} |"
        for stage, rules in STAGES.items()
    ]
    lines += ["", "| in | when | then | next | refused as | why |", "|---|---|---|---|---|---|"]
    lines += [
        f"| `{row.stage.value}` | {_conditions(row)} | {row.act.value} | `{row.to.value}` | "
        f"{f'`{row.refused}`' if row.refused else ''} | {row.why} |"
        for row in TABLE
    ]
    lines += ["", "| observed | is | values |", "|---|---|---|"]
    lines += [
        f"| {name.replace('_', ' ')} | {' '.join((kind.__doc__ or '').split())} | "
        f"{'; '.join(f'{_code(each)} {each.value}' for each in kind)} |"
        for name, kind in DIMENSIONS.items()
    ]
    return "\n".join([*lines, ""])


def _conditions(row: Transition) -> str:
    parts = []
    for name, values in row.when.items():
        kind = DIMENSIONS[name]
        some = [_code(each) for each in kind if each in values]
        others = [_code(each) for each in kind if each not in values]
        text = f"not {others[0]}" if len(others) == 1 < len(some) else " or ".join(some)
        parts.append(f"{name.replace('_', ' ')} {text}")
    return ", ".join(parts)


def _code(value: Enum) -> str:
    return f"`{value.name}`"
