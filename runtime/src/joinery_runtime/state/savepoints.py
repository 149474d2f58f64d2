"""Savepoints that software makes: a migration's and a rollout's, as the way back, and a driver's periodic ones.

Their names say who made them. Every call here may be repeated: a process killed half-way does the same again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from joinery_runtime.errors import RolloutOver, StateError
from joinery_runtime.state.store import JobRecord, Savepoints, StoredSavepoint

MOST_PINS = 3
"""How many automatic savepoints are retained, newest first."""

_ROLLOUT = re.compile(r"rollout-.+")
_MIGRATION = re.compile(r"before-state-version-\d+-epoch-\d+")
_PERIODIC = re.compile(r"periodic-\d+")


def is_automatic(name: str) -> bool:
    """Return whether a rollout or a migration made the savepoint of this name, rather than a person."""
    return is_rollout(name) or _MIGRATION.fullmatch(name) is not None


def is_rollout(name: str) -> bool:
    """Return whether a rollout made the savepoint of this name. Retrying a rollout needs another name."""
    return _ROLLOUT.fullmatch(name) is not None


def is_periodic(name: str) -> bool:
    """Return whether a driver made the savepoint of this name. Rollouts do not count such savepoints as their own."""
    return _PERIODIC.fullmatch(name) is not None


def name_for_migration(record: JobRecord, target: int) -> str:
    """Return the name of a migration's savepoint if the user gave none."""
    return f"before-state-version-{target}-epoch-{record.committed}"


# --- pins of a rollout or a migration ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pin:
    """A savepoint and its `origin`. "kept": the savepoint is of another epoch, and the upgrade that it was made for is
    done."""

    savepoint: StoredSavepoint
    origin: Literal["created", "there already", "created again", "kept"]


def never(_: StoredSavepoint) -> bool:
    return False


def ensure_pin(
    store: Savepoints, record: JobRecord, name: str, *, done: Callable[[StoredSavepoint], bool] = never
) -> Pin:
    """Make sure that there is a savepoint `name` of the current state, and return it.

    An existing savepoint of the same epoch is used as it is. One of another epoch stays if what it was made for is
    `done` and the job has continued since. Otherwise a migration's savepoint is made again, a rollout's raises
    RolloutOver, and one made by hand raises StateError.
    """
    check_rollout(store, record, name, done=done)
    pins = {pin.name: pin for pin in store.savepoints(record.job)}
    pin = pins.get(name)
    if pin is None:
        return Pin(store.create_savepoint(record.job, name), "created")
    if pin.committed == record.committed and not _is_over(pin, pins):
        return Pin(pin, "there already")
    if done(pin) and not _is_over(pin, pins):
        return Pin(pin, "kept")
    if not is_automatic(name):
        raise StateError(
            f"Savepoint {name} of job {record.job} is of another epoch",
            facts=f"its state is at epoch {pin.committed}, the job's at {record.committed}",
            todo=f"Give another name, or delete it first: joinery state savepoint JOB {name} --delete",
        )
    store.delete_savepoint(record.job, name)
    return Pin(store.create_savepoint(record.job, name), "created again")


def check_rollout(store: Savepoints, record: JobRecord, name: str, *, done: Callable[[StoredSavepoint], bool]) -> None:
    """Raise RolloutOver if `name` is the savepoint of a rollout that ended without being `done`, or that another
    rollout came after.

    A pod of such a rollout may come late, from a node that was cut off. It must not touch the state of the release that
    runs now.
    """
    pins = {pin.name: pin for pin in store.savepoints(record.job)}
    pin = pins.get(name)
    if pin is None or not is_rollout(name):
        return
    if pin.rolled_back:
        reason = "it was rolled back"
    elif _is_over(pin, pins):
        reason = "another rollout came after it"
    elif pin.committed != record.committed and not done(pin):
        reason = f"it began at epoch {pin.committed}, and without it the state is now at epoch {record.committed}"
    else:
        return
    raise RolloutOver(
        f"The rollout of savepoint {name} of job {record.job} is over",
        facts=reason,
        todo="To try it again, give another name",
    )


def unfinished_rollout(store: Savepoints, record: JobRecord, *, but: str) -> StoredSavepoint | None:
    """Return the newest automatic savepoint; None if it is `but`, was rolled back, or an epoch was committed since."""
    automatic = [pin for pin in store.savepoints(record.job) if is_automatic(pin.name)]
    newest = max(automatic, key=lambda pin: pin.created_at, default=None)
    if newest is None or newest.name == but or newest.rolled_back:
        return None
    at = (newest.committed, newest.incarnation)
    return newest if at == (record.committed, record.incarnation) else None


def _is_over(pin: StoredSavepoint, pins: Mapping[str, StoredSavepoint]) -> bool:
    """Return whether what an automatic savepoint was made for has ended: it was rolled back, or a later one exists."""
    if not is_automatic(pin.name):
        return False
    return pin.rolled_back or any(is_automatic(o.name) for o in _later_pins(pin, pins.values()))


def is_superseded(pin: StoredSavepoint, pins: Iterable[StoredSavepoint]) -> bool:
    """Return whether another rollout came after the savepoint."""
    return any(is_rollout(other.name) for other in _later_pins(pin, pins))


def _later_pins(pin: StoredSavepoint, pins: Iterable[StoredSavepoint]) -> list[StoredSavepoint]:
    return [other for other in pins if other.created_at > pin.created_at]


def prune_pins(store: Savepoints, job: str, keep: str) -> list[str]:
    """Delete automatic savepoints except `keep` and the newest (MOST_PINS in all). Returns the deleted names."""
    automatic = [pin for pin in store.savepoints(job) if is_automatic(pin.name)]
    newest_first = sorted(automatic, key=lambda pin: (pin.name == keep, pin.created_at), reverse=True)
    names = [pin.name for pin in newest_first[MOST_PINS:]]
    for name in names:
        store.delete_savepoint(job, name)
    return names


# --- periodic savepoints (`stateStore.savepoints`) --------------------------------------------------------------------


def save_if_due(store: Savepoints, job: str, epoch: int, now_ms: int, *, every_ms: int, keep: int) -> None:
    """Pin the state on `epoch`, committed at `now_ms` by the store's clock, unless the newest periodic savepoint is
    younger than `every_ms`. Deletes the oldest periodic savepoints beyond `keep`. May be repeated."""
    name = f"periodic-{epoch}"
    # By epochs, which never repeat: a clock that was ahead and is right again gives newer savepoints earlier times.
    pins = sorted((pin for pin in store.savepoints(job) if is_periodic(pin.name)), key=lambda pin: pin.epoch)
    due = not pins or abs(now_ms - pins[-1].created_at) >= every_ms
    if due and name not in {pin.name for pin in pins}:
        pins.append(store.create_savepoint(job, name))
    for pin in pins[: max(0, len(pins) - keep)]:
        store.delete_savepoint(job, pin.name)
