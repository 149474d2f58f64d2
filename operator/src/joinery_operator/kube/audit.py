"""Audits find watches that are dead although nothing says so (kopf #1276): they list everything again and compare.

What an audit finds is put right at once: the copy is replaced and the job reconciled. A watch that has still not
reported it after a grace time is dead, which is for the liveness probe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from joinery_operator.kube.api import Api, NotFound
from joinery_operator.kube.apply import completed
from joinery_operator.kube.cache import ObjectCache, WatchedVersion, key_of, uid_of, version_of
from joinery_operator.kube.events import COMPONENT
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.resources import JOBS, WATCHED, ApiResource, ObjectKey
from joinery_operator.kube.watches import SELECTOR


@dataclass(frozen=True, slots=True)
class Finding:
    """`version` is the one that was listed; None: the object is gone."""

    key: ObjectKey
    uid: str
    version: int | None


def findings(
    kind: str, listed: Mapping[ObjectKey, WatchedVersion], list_version: int, cache: ObjectCache
) -> tuple[Finding, ...]:
    """What the watch of a kind has not reported. A list may come from the API server's cache and so be older than
    this cache, which is no finding."""
    late = [
        Finding(key, item.uid, item.version)
        for key, item in listed.items()
        if (seen := cache.seen(key)) is None or seen.version < item.version
    ]
    gone = [
        Finding(key, uid_of(held), None)
        for key in cache.keys(kind)
        if key not in listed and (held := cache.get(key)) is not None and version_of(held) <= list_version
    ]
    return (*late, *gone)


@dataclass(frozen=True, slots=True)
class _OpenSince:
    since: float
    events: int


class OpenFindings:
    """What audits found and the watches have not reported since. Times are seconds of the caller's clock; `events`
    counts what the kind's watch has delivered so far."""

    def __init__(self, cache: ObjectCache) -> None:
        self._cache = cache
        self._open: dict[Finding, _OpenSince] = {}

    def found(self, kind: str, now: float, events: int, found: tuple[Finding, ...]) -> None:
        """The result of one audit of a kind. An object that changes again and again is open since the first time."""
        before = {each.key: opened for each, opened in self._open.items() if each.key.kind == kind}
        # What is gone was put right and is not found a second time.
        self._open = {
            each: since for each, since in self._open.items() if each.key.kind != kind or each.version is None
        }
        for finding in found:
            self._open[finding] = before.get(finding.key, _OpenSince(now, events))

    def older_than(self, seconds: float, now: float, events: Mapping[str, int]) -> tuple[Finding, ...]:
        """What a watch has had so many seconds to report, and has not."""
        self._open = {
            finding: opened for finding, opened in self._open.items() if not self._settled(finding, opened, events)
        }
        return tuple(finding for finding, opened in self._open.items() if now - opened.since > seconds)

    def _settled(self, finding: Finding, opened: _OpenSince, events: Mapping[str, int]) -> bool:
        seen = self._cache.seen(finding.key)
        if finding.version is None:
            # A watch that began anew does not report what went in between; but it lives if it reports anything.
            return events.get(finding.key.kind, 0) > opened.events
        if seen is None:
            return self._cache.get(finding.key) is None
        return seen.version >= finding.version


_log = structlog.get_logger(COMPONENT)


class Auditor:
    """`events` counts what each kind's watch delivered; `due` is called with the jobs to reconcile; `clock` counts
    seconds."""

    def __init__(
        self,
        api: Api,
        namespaces: Sequence[str],
        cache: ObjectCache,
        open_findings: OpenFindings,
        events: Mapping[str, int],
        due: Callable[[ObjectKey], None],
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._api = api
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._cache = cache
        self._open_findings = open_findings
        self._events = events
        self._due = due
        self._metrics = metrics
        self._clock = clock

    async def fill(self) -> None:
        """Reads everything. Nothing may be decided before: what is not cached yet would be taken for deleted."""
        for resource in WATCHED:
            for namespace in self._namespaces:
                listed = await self._api.list(resource, namespace, _selector(resource))
                for item in listed["items"]:
                    self._cache.put(completed(item, resource), resource.kind)
        for resource in JOBS:
            for key in self._cache.keys(resource.kind):
                self._due(key)

    async def round(self) -> None:
        """One audit of all kinds."""
        for resource in WATCHED:
            listed, version = await self._listed(resource)
            events = self._events.get(resource.kind, 0)
            found = findings(resource.kind, listed, version, self._cache)
            owed = [finding for finding in found if await self._put_right(resource, finding)]
            self._open_findings.found(resource.kind, self._clock(), events, tuple(owed))

    async def _listed(self, resource: ApiResource) -> tuple[dict[ObjectKey, WatchedVersion], int]:
        listed: dict[ObjectKey, WatchedVersion] = {}
        versions = []
        for namespace in self._namespaces:
            answer = await self._api.list(resource, namespace, _selector(resource), metadata_only=True)
            versions.append(version_of(answer))
            for item in answer["items"]:
                listed[key_of(item, resource.kind)] = WatchedVersion(uid_of(item), version_of(item))
        return listed, min(versions)

    async def _put_right(self, resource: ApiResource, finding: Finding) -> bool:
        """Whether the watch owes it. A child without the label that it is listed by is not gone."""
        held = self._cache.get(finding.key)
        if finding.version is not None and held is not None and version_of(held) >= finding.version:
            return True
        job = self._cache.job_of(held, finding.key.kind) if held is not None else None
        try:
            newest = await self._api.get(resource, finding.key.namespace, finding.key.name)
        except NotFound:
            changed, owed = self._cache.remove(finding.key, finding.uid), True
        else:
            complete = completed(newest, resource)
            changed, owed = self._cache.put(complete, resource.kind), finding.version is not None
            job = self._cache.job_of(complete, resource.kind)
        if changed:
            self._metrics.missed.labels(resource.kind).inc()
            _log.info(
                "an audit found what no watch has reported", object=str(finding.key), gone=finding.version is None
            )
            if job is not None:
                self._due(job)
        return owed


def _selector(resource: ApiResource) -> str:
    return "" if resource in JOBS else SELECTOR
