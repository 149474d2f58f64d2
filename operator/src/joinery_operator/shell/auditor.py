"""Makes the audits: lists what there is, puts right what the watches missed, and remembers what they owe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import structlog

from joinery_operator.shell.api import Api, NotFound
from joinery_operator.shell.apply import completed
from joinery_operator.shell.audit import Finding, Suspicions, findings
from joinery_operator.shell.kinds import JOBS, WATCHED, Key, Resource
from joinery_operator.shell.metrics import Metrics
from joinery_operator.shell.recorder import COMPONENT
from joinery_operator.shell.store import Seen, Store, key_of, uid_of, version_of
from joinery_operator.shell.watches import SELECTOR

_log = structlog.get_logger(COMPONENT)


class Auditor:
    """`events` counts what each kind's watch delivered; `due` is told the jobs to look at; `clock` counts seconds."""

    def __init__(
        self,
        api: Api,
        namespaces: Sequence[str],
        store: Store,
        suspicions: Suspicions,
        events: Mapping[str, int],
        due: Callable[[Key], None],
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._api = api
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._store = store
        self._suspicions = suspicions
        self._events = events
        self._due = due
        self._metrics = metrics
        self._clock = clock

    async def fill(self) -> None:
        """Reads everything. Nothing may be decided before: what is not known yet looks as if it were gone."""
        for resource in WATCHED:
            for namespace in self._namespaces:
                listed = await self._api.list(resource, namespace, _selector(resource))
                for item in listed["items"]:
                    self._store.put(completed(item, resource), resource.kind)
        for resource in JOBS:
            for key in self._store.keys(resource.kind):
                self._due(key)

    async def round(self) -> None:
        """One audit of all kinds."""
        for resource in WATCHED:
            listed, version = await self._listed(resource)
            events = self._events.get(resource.kind, 0)
            found = findings(resource.kind, listed, version, self._store)
            owed = [finding for finding in found if await self._put_right(resource, finding)]
            self._suspicions.found(resource.kind, self._clock(), events, tuple(owed))

    async def _listed(self, resource: Resource) -> tuple[dict[Key, Seen], int]:
        listed: dict[Key, Seen] = {}
        versions = []
        for namespace in self._namespaces:
            answer = await self._api.list(resource, namespace, _selector(resource), metadata_only=True)
            versions.append(version_of(answer))
            for item in answer["items"]:
                listed[key_of(item, resource.kind)] = Seen(uid_of(item), version_of(item))
        return listed, min(versions)

    async def _put_right(self, resource: Resource, finding: Finding) -> bool:
        """Whether the watch owes it. A child without the label that it is listed by is not gone."""
        held = self._store.get(finding.key)
        if finding.version is not None and held is not None and version_of(held) >= finding.version:
            return True
        job = self._store.job_of(held, finding.key.kind) if held is not None else None
        try:
            newest = await self._api.get(resource, finding.key.namespace, finding.key.name)
        except NotFound:
            changed, owed = self._store.remove(finding.key, finding.uid), True
        else:
            complete = completed(newest, resource)
            changed, owed = self._store.put(complete, resource.kind), finding.version is not None
            job = self._store.job_of(complete, resource.kind)
        if changed:
            self._metrics.missed.labels(resource.kind).inc()
            _log.info("an audit found what no watch has told", object=str(finding.key), gone=finding.version is None)
            if job is not None:
                self._due(job)
        return owed


def _selector(resource: Resource) -> str:
    return "" if resource in JOBS else SELECTOR
