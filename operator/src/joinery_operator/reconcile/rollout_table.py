"""The rollout of another revision as one table: from which stage, when, what is done, to which stage.

`rollout_observation` classifies what was observed, and `rollout` carries out the row of it. Every observation has
exactly one row (tests/operator/reconcile/test_rollout_table.py). `make crds` renders docs/rollout-table.md from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from typing import Final, Literal

from joinery_operator.reconcile.reasons import INCOMPATIBLE
from joinery_runtime.job.crd import Status
from joinery_runtime.job.crd.status import Phase

RefusalReason = Literal[
    "IncompatibleState", "RowsDiffer", "CheckFailed", "MigrationFailed", "StartFailed", "DeadlineExceeded"
]


class RolloutStage(Enum):
    """`status.rollout.stage`, and STABLE where there is no rollout."""

    STABLE = "Stable"
    CHECKING = "Checking"
    STOPPING = "Stopping"
    STARTING = "Starting"
    ROLLING_BACK = "RollingBack"


def stage_of(status: Status) -> RolloutStage:
    return RolloutStage(status.rollout.stage) if status.rollout else RolloutStage.STABLE


class Desired(Enum):
    """What the resource asks for."""

    NOTHING = "no valid job"
    CURRENT = "the current revision"
    ROLLOUT = "what is being rolled out"
    ANOTHER = "another"


class Suspend(Enum):
    """`spec.suspend`, and whether the annotation joinery.dev/pause keeps rollouts from beginning."""

    NO = "no"
    YES = "yes"
    PAUSED = "no, but rollouts are paused"


class AtStake(Enum):
    """What could be lost or returned to: durable state of a current revision that was ready once (`status.proved`)."""

    NOTHING = "nothing"
    STATE = "state"


class NewStore(Enum):
    """What the state store of the revision asked for does with that state."""

    KEEPS = "keeps state"
    IN_MEMORY = "keeps none"
    GIVES_UP = "keeps none, and upgrade.mode is stateless"


class Rejected(Enum):
    """Whether `status.refused` names the revision asked for, in this mode."""

    NO = "no"
    YES = "yes"


class Mode(Enum):
    """`upgrade.mode` of the rollout."""

    STATEFUL = "stateful or shadow"
    STATELESS = "stateless"


class Check(Enum):
    """What the check pod says."""

    NOTHING_YET = "nothing yet"
    FITS = "the job fits the state"
    NO_STATE = "there is no state"
    MISFIT = "the job does not fit the state"
    DIFFERS = "its rows are not those of the job that runs"
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
    MISFIT = "failed for good: IncompatibleState"
    NOT_MIGRATED = "failed for good before it was initialized"
    FAILED = "failed for good after it was initialized"


class Rollback(Enum):
    """`upgrade.rollback`."""

    AUTOMATIC = "automatic"
    MANUAL = "manual"
    DISABLED = "disabled"


class Restore(Enum):
    """How far the pod is that returns to the savepoint."""

    UNDERWAY = "under way"
    RESTORED = "restored"
    COMMITTED_SINCE = "rejected: CommittedSince"
    STUCK = "failed for good, cannot be made, or got no further within the deadline"


class Restorer(Enum):
    """Whose image and job return to the savepoint."""

    CURRENT = "those of the current revision"
    ASKED = "those that the resource asks for"
    PAST = "those that it asked for before"


class Helper(Enum):
    """Whether another revision that is asked for could return to the savepoint."""

    ABLE = "its state is in the same place"
    UNABLE = "its state is elsewhere, or in memory"
    GIVES_UP = "it keeps none, and upgrade.mode is stateless"


class Deadline(Enum):
    """Whether the stage got no further for longer than `upgrade.progressDeadline`."""

    AHEAD = "ahead"
    PASSED = "passed"
    LIFTED = "there is none any more"


@dataclass(frozen=True, slots=True)
class RolloutObservation:
    """What was observed, as far as the stage's rows depend on it; None for what they do not depend on."""

    stage: RolloutStage
    desired: Desired | None = None
    suspend: Suspend | None = None
    at_stake: AtStake | None = None
    new_store: NewStore | None = None
    rejected: Rejected | None = None
    mode: Mode | None = None
    check: Check | None = None
    old_driver: OldDriver | None = None
    new_driver: NewDriver | None = None
    rollback: Rollback | None = None
    restore: Restore | None = None
    restorer: Restorer | None = None
    helper: Helper | None = None
    deadline: Deadline | None = None


DIMENSIONS: Final[Mapping[str, type[Enum]]] = {
    "desired": Desired,
    "suspend": Suspend,
    "at_stake": AtStake,
    "new_store": NewStore,
    "rejected": Rejected,
    "mode": Mode,
    "check": Check,
    "old_driver": OldDriver,
    "new_driver": NewDriver,
    "rollback": Rollback,
    "restore": Restore,
    "restorer": Restorer,
    "helper": Helper,
    "deadline": Deadline,
}


class DriverRole(Enum):
    """Which driver is to run."""

    NONE = "none"
    CURRENT = "of the current revision, unless it is blocked (`status.held`)"
    MIGRATES = "of the new revision, migrates first"
    RESTORES = "none: a pod returns to the savepoint"


@dataclass(frozen=True, slots=True)
class StageRules:
    """What holds during a stage. `dimensions` are what its rows depend on. `phase` is the job's, if the stage says more
    than the driver does. `values` are the values of a dimension that can occur in the stage, if not all can. `way_out`
    is what a person can do to leave the stage, whatever holds it up, as in the job's conditions; `leaves` is what is
    observed then."""

    driver: DriverRole
    phase: Phase | None
    dimensions: tuple[str, ...]
    values: Mapping[str, tuple[Enum, ...]] = field(default_factory=dict)
    way_out: str = ""
    leaves: tuple[Enum, ...] = ()


_TAKE_BACK = "To take it back, apply the job of revision {revision}"
_CLOCK: Mapping[str, tuple[Enum, ...]] = {"deadline": (Deadline.AHEAD, Deadline.PASSED)}
# A pause does not stop a rollout half-way: until it has ended, no driver of the current revision may run.
_NOT_PAUSED: Mapping[str, tuple[Enum, ...]] = {"suspend": (Suspend.NO, Suspend.YES)}
STAGES: Final[Mapping[RolloutStage, StageRules]] = {
    RolloutStage.STABLE: StageRules(
        DriverRole.CURRENT,
        None,
        ("desired", "at_stake", "new_store", "suspend", "rejected"),
        {"desired": (Desired.NOTHING, Desired.CURRENT, Desired.ANOTHER)},
    ),
    RolloutStage.CHECKING: StageRules(
        DriverRole.CURRENT,
        None,
        ("desired", "suspend", "mode", "check", "deadline"),
        _CLOCK,
        way_out=_TAKE_BACK,
        leaves=(Desired.CURRENT,),
    ),
    RolloutStage.STOPPING: StageRules(
        DriverRole.NONE,
        "Stopping",
        ("desired", "suspend", "old_driver", "deadline"),
        _CLOCK,
        way_out=f"{_TAKE_BACK}. To continue without waiting for the old pod, delete it by force "
        "(kubectl delete pod --grace-period=0 --force)",
        leaves=(Desired.CURRENT,),
    ),
    RolloutStage.STARTING: StageRules(
        DriverRole.MIGRATES,
        "Migrating",
        ("desired", "suspend", "new_driver", "rollback", "deadline"),
        _NOT_PAUSED,
        way_out=_TAKE_BACK,
        leaves=(Desired.CURRENT,),
    ),
    RolloutStage.ROLLING_BACK: StageRules(
        DriverRole.RESTORES,
        "RollingBack",
        ("desired", "suspend", "restore", "restorer", "helper"),
        _NOT_PAUSED,
        way_out="If that cannot be mended, apply another job with an image that can be pulled and the same "
        "spec.stateStore (an annotation joinery.dev/restartedAt makes it another one): then that image returns to the "
        "savepoint",
        leaves=(Desired.ANOTHER, Suspend.NO, Helper.ABLE, Restorer.PAST),
    ),
}


class Act(Enum):
    """What a row does to the status."""

    WAIT = "wait"
    REPORT = "wait, and report what keeps the stage"
    TAKE_OVER = "make the revision asked for current without a rollout"
    BEGIN = "begin a rollout"
    REJECT = "reject the revision"
    STOP = "stop the old driver"
    START = "start the new driver"
    DROP = "drop the rollout, then as Stable"
    LIFT = "lift the deadline"
    ROLL_BACK = "roll back"
    REJECT_AND_ROLL_BACK = "reject the revision and roll back"
    RESTORE_WITH_DESIRED = "return to the savepoint with the image and job asked for"
    COMPLETE = "make the new revision current"
    GO_FORWARD = "make the new revision current as one that was never ready"
    KEEP = "keep the current revision"


def _when(*conditions: Enum | tuple[Enum, ...]) -> Mapping[str, frozenset[Enum]]:
    """Return the conditions by dimension, which the type of the enum gives. A tuple means any of its values."""
    names = {kind: name for name, kind in DIMENSIONS.items()}
    groups = [condition if isinstance(condition, tuple) else (condition,) for condition in conditions]
    return {names[type(group[0])]: frozenset(group) for group in groups}


@dataclass(frozen=True, slots=True)
class Transition:
    """A row: in `stage`, if all of `when` hold, do `act`; then the stage is `to`. `rejected_as` is the reason if the
    revision is rejected."""

    stage: RolloutStage
    when: Mapping[str, frozenset[Enum]]
    act: Act
    to: RolloutStage
    rationale: str
    rejected_as: RefusalReason | None = None

    def matches(self, observation: RolloutObservation) -> bool:
        return observation.stage is self.stage and all(
            getattr(observation, dimension) in values for dimension, values in self.when.items()
        )


_WAITS = (Suspend.YES, Suspend.PAUSED)
_NOT_GIVEN_UP = (NewStore.KEEPS, NewStore.IN_MEMORY)
_GOES_ON = (Desired.NOTHING, Desired.ROLLOUT)
_LEAVES = (Desired.CURRENT, Desired.ANOTHER)
_UNFIT = (Check.NO_STATE, Check.MISFIT, Check.DIFFERS)
_BEGUN = tuple(new_driver for new_driver in NewDriver if new_driver not in {NewDriver.NONE, NewDriver.COMMITTED})
_NOT_COMMITTED = (NewDriver.NONE, *_BEGUN)
_WAITED_FOR = (NewDriver.NONE, NewDriver.UNDERWAY, NewDriver.READY)
_ENDED = (NewDriver.MISFIT, NewDriver.NOT_MIGRATED, NewDriver.FAILED)
_RETURNS = (Rollback.AUTOMATIC, Rollback.MANUAL)
_UNDECIDED = (Restore.UNDERWAY, Restore.STUCK)
_STABLE, _CHECKING, _STOPPING, _STARTING, _ROLLING_BACK = RolloutStage

# fmt: off
TABLE: Final[tuple[Transition, ...]] = (
    # Stable: no rollout.
    Transition(_STABLE, _when(Desired.NOTHING), Act.WAIT, _STABLE,
        "What runs keeps running; what does not run does not start."),
    Transition(_STABLE, _when(Desired.CURRENT), Act.WAIT, _STABLE,
        "It is what is asked for."),
    Transition(_STABLE, _when(Desired.ANOTHER, _WAITS), Act.WAIT, _STABLE,
        "The resource counts once the job resumes; until then it may change again."),
    Transition(_STABLE, _when(Desired.ANOTHER, Suspend.NO, AtStake.NOTHING), Act.TAKE_OVER, _STABLE,
        "Nothing can be lost or returned to."),
    Transition(_STABLE, _when(Desired.ANOTHER, Suspend.NO, AtStake.STATE, NewStore.GIVES_UP), Act.TAKE_OVER, _STABLE,
        "The resource gives the state up."),
    Transition(_STABLE, _when(Desired.ANOTHER, Suspend.NO, AtStake.STATE, _NOT_GIVEN_UP, Rejected.YES),
        Act.WAIT, _STABLE, "A rejected revision is not tried again."),
    Transition(_STABLE, _when(Desired.ANOTHER, Suspend.NO, AtStake.STATE, NewStore.KEEPS, Rejected.NO),
        Act.BEGIN, _CHECKING, "A check shows whether the job fits its state."),
    Transition(_STABLE, _when(Desired.ANOTHER, Suspend.NO, AtStake.STATE, NewStore.IN_MEMORY, Rejected.NO),
        Act.REJECT, _STABLE, "All of the state would be left behind.", INCOMPATIBLE),
    # Checking: the check pod runs with the new image and job; the old driver keeps running, if it ran.
    Transition(_CHECKING, _when(_LEAVES), Act.DROP, _STABLE,
        "Nothing has happened to the state: what is asked for now is another matter."),
    Transition(_CHECKING, _when(_GOES_ON, _WAITS), Act.DROP, _STABLE,
        "Nothing has happened to the state: the check is made at the resumption."),
    Transition(_CHECKING, _when(_GOES_ON, Suspend.NO, Check.FITS), Act.STOP, _STOPPING,
        "The check has passed."),
    Transition(_CHECKING, _when(_GOES_ON, Suspend.NO, Mode.STATELESS, _UNFIT),
        Act.STOP, _STOPPING, "The state is left behind: the check only shows that image and job are usable."),
    Transition(_CHECKING, _when(_GOES_ON, Suspend.NO, Mode.STATEFUL, Check.NO_STATE), Act.REJECT, _STABLE,
        "The state is somewhere else: the new revision would begin with none.", INCOMPATIBLE),
    Transition(_CHECKING, _when(_GOES_ON, Suspend.NO, Mode.STATEFUL, Check.MISFIT), Act.REJECT, _STABLE,
        "The check says what does not fit.", INCOMPATIBLE),
    Transition(_CHECKING, _when(_GOES_ON, Suspend.NO, Mode.STATEFUL, Check.DIFFERS), Act.REJECT, _STABLE,
        "`upgrade.mode: shadow`: the check names the first rows that differ.", "RowsDiffer"),
    Transition(_CHECKING, _when(_GOES_ON, Suspend.NO, Check.INCOMPATIBLE), Act.REJECT, _STABLE,
        "Another check would fail the same way.", INCOMPATIBLE),
    Transition(_CHECKING, _when(_GOES_ON, Suspend.NO, Check.FAILED), Act.REJECT, _STABLE,
        "Another check would fail the same way.", "CheckFailed"),
    Transition(_CHECKING, _when(_GOES_ON, Suspend.NO, Check.NOTHING_YET, Deadline.AHEAD), Act.REPORT, _CHECKING,
        "A check that says nothing is made again."),
    Transition(_CHECKING, _when(_GOES_ON, Suspend.NO, Check.NOTHING_YET, Deadline.PASSED), Act.REJECT, _STABLE,
        "No result within the deadline.", "CheckFailed"),
    # Stopping: the old driver finishes its epoch.
    Transition(_STOPPING, _when(_LEAVES), Act.DROP, _STABLE,
        "Nothing has happened to the state: what is asked for now is another matter."),
    Transition(_STOPPING, _when(_GOES_ON, _WAITS), Act.DROP, _STABLE,
        "Nothing has happened to the state: the check is made again at the resumption."),
    Transition(_STOPPING, _when(_GOES_ON, Suspend.NO, OldDriver.ACTIVE, Deadline.AHEAD), Act.WAIT, _STOPPING,
        "Two drivers never run at a time."),
    Transition(_STOPPING, _when(_GOES_ON, Suspend.NO, OldDriver.ACTIVE, Deadline.PASSED), Act.REPORT, _STOPPING,
        "Two drivers never run at a time, however long the old one takes."),
    Transition(_STOPPING, _when(_GOES_ON, Suspend.NO, OldDriver.GONE), Act.START, _STARTING,
        "No other driver can commit any more. The savepoint gets its name."),
    # Starting: a driver pins the savepoint, migrates the state, and runs.
    Transition(_STARTING, _when(NewDriver.COMMITTED), Act.COMPLETE, _STABLE,
        "An epoch of the new revision is committed: there is no way back."),
    Transition(_STARTING, _when(_LEAVES, NewDriver.NONE), Act.DROP, _STABLE,
        "Nothing has happened to the state: what is asked for now is another matter."),
    Transition(_STARTING, _when(_LEAVES, _BEGUN, _RETURNS), Act.ROLL_BACK, _ROLLING_BACK,
        "The state may be migrated, and the resource asks for another job."),
    Transition(_STARTING, _when(_LEAVES, _BEGUN, Rollback.DISABLED), Act.GO_FORWARD, _STABLE,
        "No savepoint is returned to: what is asked for now continues from here."),
    Transition(_STARTING, _when(_GOES_ON, Suspend.YES, _NOT_COMMITTED), Act.WAIT, _STARTING,
        "No driver runs while the job is suspended, and its time does not count."),
    Transition(_STARTING, _when(_GOES_ON, Suspend.NO, NewDriver.MISFIT, Rollback.AUTOMATIC),
        Act.REJECT_AND_ROLL_BACK, _ROLLING_BACK, "Another attempt would fail the same way.", INCOMPATIBLE),
    Transition(_STARTING, _when(_GOES_ON, Suspend.NO, NewDriver.NOT_MIGRATED, Rollback.AUTOMATIC),
        Act.REJECT_AND_ROLL_BACK, _ROLLING_BACK, "Another attempt would fail the same way.", "MigrationFailed"),
    Transition(_STARTING, _when(_GOES_ON, Suspend.NO, NewDriver.FAILED, Rollback.AUTOMATIC),
        Act.REJECT_AND_ROLL_BACK, _ROLLING_BACK, "Another attempt would fail the same way.", "StartFailed"),
    Transition(_STARTING, _when(_GOES_ON, Suspend.NO, _ENDED, Rollback.MANUAL), Act.REPORT, _STARTING,
        "A person decides: any change of the resource tries again, another job rolls back."),
    Transition(_STARTING, _when(_GOES_ON, Suspend.NO, _ENDED, Rollback.DISABLED), Act.GO_FORWARD, _STABLE,
        "No savepoint is returned to: the job waits for a change as any that failed for good."),
    Transition(_STARTING, _when(_GOES_ON, Suspend.NO, _WAITED_FOR, (Deadline.AHEAD, Deadline.LIFTED)),
        Act.WAIT, _STARTING, "The first commit is awaited; a failure that may pass is tried again."),
    Transition(_STARTING, _when(_GOES_ON, Suspend.NO, NewDriver.READY, Deadline.PASSED), Act.LIFT, _STARTING,
        "Without records there is no commit: the driver keeps running, and until it commits there is a way back."),
    Transition(_STARTING, _when(_GOES_ON, Suspend.NO, NewDriver.NONE, Deadline.PASSED), Act.REJECT, _STABLE,
        "Nothing has happened to the state: there is nothing to roll back.", "DeadlineExceeded"),
    Transition(_STARTING, _when(_GOES_ON, Suspend.NO, NewDriver.UNDERWAY, Rollback.AUTOMATIC, Deadline.PASSED),
        Act.REJECT_AND_ROLL_BACK, _ROLLING_BACK, "It got no further within the deadline.", "DeadlineExceeded"),
    Transition(_STARTING, _when(_GOES_ON, Suspend.NO, NewDriver.UNDERWAY, Rollback.MANUAL, Deadline.PASSED),
        Act.REPORT, _STARTING, "A person decides; meanwhile it is tried again."),
    Transition(_STARTING, _when(_GOES_ON, Suspend.NO, NewDriver.UNDERWAY, Rollback.DISABLED, Deadline.PASSED),
        Act.GO_FORWARD, _STABLE, "No savepoint is returned to: it is tried again as any driver."),
    # RollingBack: a pod returns to the savepoint; then the current revision runs again.
    Transition(_ROLLING_BACK, _when(Restore.RESTORED), Act.KEEP, _STABLE,
        "The state is as it was before the migration."),
    Transition(_ROLLING_BACK, _when(Restore.COMMITTED_SINCE), Act.COMPLETE, _STABLE,
        "The new driver had committed, unseen: there is no way back, and no need of one."),
    Transition(_ROLLING_BACK, _when(Suspend.YES, _UNDECIDED), Act.WAIT, _ROLLING_BACK,
        "No pod runs while the job is suspended."),
    Transition(_ROLLING_BACK, _when(Suspend.NO, Restore.UNDERWAY), Act.WAIT, _ROLLING_BACK,
        "The old revision runs only on its own state."),
    Transition(_ROLLING_BACK, _when(_GOES_ON, Suspend.NO, Restore.STUCK), Act.REPORT, _ROLLING_BACK,
        "It is tried again; another job leads out as well, by its own image."),
    Transition(_ROLLING_BACK, _when(Desired.CURRENT, Suspend.NO, Restore.STUCK, Restorer.CURRENT),
        Act.REPORT, _ROLLING_BACK, "It is tried again; another job leads out as well, by its own image."),
    Transition(_ROLLING_BACK, _when(Desired.CURRENT, Suspend.NO, Restore.STUCK, (Restorer.ASKED, Restorer.PAST)),
        Act.RESTORE_WITH_DESIRED, _ROLLING_BACK, "The other image was of no use either, and is no longer desired."),
    Transition(_ROLLING_BACK, _when(Desired.ANOTHER, Suspend.NO, Restore.STUCK, Helper.GIVES_UP),
        Act.TAKE_OVER, _STABLE, "The resource gives the state up."),
    Transition(_ROLLING_BACK, _when(Desired.ANOTHER, Suspend.NO, Restore.STUCK, Helper.UNABLE),
        Act.REPORT, _ROLLING_BACK, "It would look for the savepoint where it is not."),
    Transition(_ROLLING_BACK,
        _when(Desired.ANOTHER, Suspend.NO, Restore.STUCK, Helper.ABLE, (Restorer.CURRENT, Restorer.PAST)),
        Act.RESTORE_WITH_DESIRED, _ROLLING_BACK, "The savepoint knows no image: the desired one returns to it."),
    Transition(_ROLLING_BACK, _when(Desired.ANOTHER, Suspend.NO, Restore.STUCK, Helper.ABLE, Restorer.ASKED),
        Act.REPORT, _ROLLING_BACK, "It is tried again; another job leads out as well, by its own image."),
)
# fmt: on


def row_for(observation: RolloutObservation) -> Transition:
    """Return the row that applies to the observation."""
    return next(row for row in TABLE if row.matches(observation))


def observations() -> Iterator[RolloutObservation]:
    """Yield every possible observation once."""
    for stage, rules in STAGES.items():
        values = (rules.values.get(name, tuple(DIMENSIONS[name])) for name in rules.dimensions)
        possible = (
            RolloutObservation(stage, **dict(zip(rules.dimensions, combination, strict=True)))  # type: ignore[arg-type]
            for combination in product(*values)
        )
        if stage is RolloutStage.STABLE:
            # A resource that asks for nothing new has no new store, and cannot be rejected.
            possible = (
                observation
                if observation.desired is Desired.ANOTHER
                else RolloutObservation(stage, observation.desired)
                for observation in possible
            )
        yield from dict.fromkeys(possible)


def rendered() -> str:
    """Return the text of docs/rollout-table.md."""
    lines = [
        "# The rollout of another revision, as a table",
        "",
        "Generated from `operator/src/joinery_operator/reconcile/rollout_table.py` by `make crds`; edit that.",
        "[operator.md](operator.md) explains it. Each reconcile classifies what it observes; exactly one row applies.",
        "",
        "| stage | driver that runs | phase | deadline | way out, as its conditions say |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{stage.value}` | {rules.driver.value} | {f'`{rules.phase}`' if rules.phase else 'as the driver'} | "
        f"{'' if stage is RolloutStage.STABLE else '`upgrade.progressDeadline`'} | {rules.way_out} |"
        for stage, rules in STAGES.items()
    ]
    lines += ["", "| in | when | then | next | rejected as | why |", "|---|---|---|---|---|---|"]
    lines += [
        f"| `{row.stage.value}` | {_conditions(row)} | {row.act.value} | `{row.to.value}` | "
        f"{f'`{row.rejected_as}`' if row.rejected_as else ''} | {row.rationale} |"
        for row in TABLE
    ]
    lines += ["", "| observed | is | values |", "|---|---|---|"]
    lines += [
        f"| {name.replace('_', ' ')} | {' '.join((kind.__doc__ or '').split())} | "
        f"{'; '.join(f'{_in_backquotes(member)} {member.value}' for member in kind)} |"
        for name, kind in DIMENSIONS.items()
    ]
    return "\n".join([*lines, ""])


def _conditions(row: Transition) -> str:
    parts = []
    for name, values in row.when.items():
        kind = DIMENSIONS[name]
        included = [_in_backquotes(member) for member in kind if member in values]
        excluded = [_in_backquotes(member) for member in kind if member not in values]
        text = f"not {excluded[0]}" if len(excluded) == 1 < len(included) else " or ".join(included)
        parts.append(f"{name.replace('_', ' ')} {text}")
    return ", ".join(parts)


def _in_backquotes(value: Enum) -> str:
    return f"`{value.name}`"
