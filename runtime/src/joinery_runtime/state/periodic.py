"""Savepoints that a driver makes periodically by itself (`stateStore.savepoints`); the newest ones are retained."""

from __future__ import annotations

import re

from joinery_runtime.state.store import Savepoints

_NAME = re.compile(r"periodic-\d+")


def is_periodic(name: str) -> bool:
    """Whether a driver made the savepoint of this name. Rollouts do not count such savepoints as their own."""
    return _NAME.fullmatch(name) is not None


def save_if_due(store: Savepoints, job: str, epoch: int, now_ms: int, *, every_ms: int, keep: int) -> None:
    """Pins the state on `epoch`, committed at `now_ms` by the store's clock, unless the newest periodic savepoint is
    younger than `every_ms`. Deletes the oldest periodic savepoints beyond `keep`. May be repeated."""
    name = f"periodic-{epoch}"
    pins = sorted((pin for pin in store.savepoints(job) if is_periodic(pin.name)), key=lambda pin: pin.created_at)
    due = not pins or now_ms - pins[-1].created_at >= every_ms
    if due and name not in {pin.name for pin in pins}:
        pins.append(store.create_savepoint(job, name))
    for pin in pins[: max(0, len(pins) - keep)]:
        store.delete_savepoint(job, pin.name)
