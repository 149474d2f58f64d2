"""Finds watches that are dead although nothing says so (kopf #1276): lists everything again and compares.

What an audit finds is put right at once: the copy is replaced and the job looked at. A watch that has still not told
it after a grace time is dead, which is for the liveness probe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from joinery_operator.shell.kinds import Key
from joinery_operator.shell.store import Seen, Store, uid_of, version_of


@dataclass(frozen=True, slots=True)
class Finding:
    """`version` is the one that was listed; None: the object is gone."""

    key: Key
    uid: str
    version: int | None


def findings(kind: str, listed: Mapping[Key, Seen], list_version: int, store: Store) -> tuple[Finding, ...]:
    """What the watch of a kind has not told. A list may come from the API server's cache and so be older than what is
    known, which is no finding."""
    late = [
        Finding(key, item.uid, item.version)
        for key, item in listed.items()
        if (seen := store.seen(key)) is None or seen.version < item.version
    ]
    gone = [
        Finding(key, uid_of(held), None)
        for key in store.keys(kind)
        if key not in listed and (held := store.get(key)) is not None and version_of(held) <= list_version
    ]
    return (*late, *gone)


@dataclass(frozen=True, slots=True)
class _Suspicion:
    since: float
    events: int


class Suspicions:
    """What audits found and the watches have not told since. Times are seconds of the caller's clock; `events` counts
    what the kind's watch has delivered so far."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: dict[Finding, _Suspicion] = {}

    def found(self, kind: str, now: float, events: int, found: tuple[Finding, ...]) -> None:
        """The result of one audit of a kind. An object that changes again and again is suspect since the first time."""
        before = {each.key: suspicion for each, suspicion in self._open.items() if each.key.kind == kind}
        # What is gone was put right and is not found a second time.
        self._open = {
            each: since for each, since in self._open.items() if each.key.kind != kind or each.version is None
        }
        for finding in found:
            self._open[finding] = before.get(finding.key, _Suspicion(now, events))

    def older_than(self, seconds: float, now: float, events: Mapping[str, int]) -> tuple[Finding, ...]:
        """What a watch has had so many seconds to tell, and has not."""
        self._open = {
            finding: suspicion
            for finding, suspicion in self._open.items()
            if not self._settled(finding, suspicion, events)
        }
        return tuple(finding for finding, suspicion in self._open.items() if now - suspicion.since > seconds)

    def _settled(self, finding: Finding, suspicion: _Suspicion, events: Mapping[str, int]) -> bool:
        seen = self._store.seen(finding.key)
        if finding.version is None:
            # A watch that began anew does not tell what went in between; but it lives if it tells anything.
            return events.get(finding.key.kind, 0) > suspicion.events
        if seen is None:
            return self._store.get(finding.key) is None
        return seen.version >= finding.version
