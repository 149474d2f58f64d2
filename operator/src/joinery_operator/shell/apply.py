"""Carries out what reconcile decided: first the status, then the actions in their order.

Every answer goes into the store, so that the next look works on what was just written even when no watch has told yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joinery_operator.decision import Action, Create, Delete, Patch, SetFinalizers
from joinery_operator.observed import Manifest
from joinery_operator.shell.api import Api, ApiError, Conflict, NotFound
from joinery_operator.shell.kinds import BY_KIND, Key, Resource
from joinery_operator.shell.store import Store, uid_of
from joinery_runtime.errors import JoineryError
from joinery_runtime.job.crd import Status

_REFUSED = {400, 403, 422}
"""By a quota, an admission, a namespace that ends, or the API server's own rules."""


class NameTaken(JoineryError):
    """An object that is not the job's has the name of one of its children."""


class Changed(JoineryError):
    """The resource is no longer the one that was looked at; the store has its newest copy now."""


class Applier:
    """Writes for jobs; what it is given and returns are whole objects."""

    def __init__(self, api: Api, store: Store) -> None:
        self._api = api
        self._store = store
        self._refusals: dict[str, str] = {}

    async def write_status(self, job: Manifest, status: Status) -> Manifest:
        """The resource as it is then. Raises Changed when it is another one by now."""
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        if body == job.get("status"):
            return job
        resource = BY_KIND[job["kind"]]
        try:
            written = await self._api.replace_status(resource, {**job, "status": body})
        except (Conflict, NotFound) as error:
            raise await self._looked_again(job, error) from error
        return self._keep(written, resource)

    def refused(self, job: Manifest) -> str:
        """What the API server said when it last refused to create a child of the job; empty when it made one since."""
        return self._refusals.get(uid_of(job), "")

    async def act(self, job: Manifest, action: Action) -> Manifest:
        """Returns the resource, which only SetFinalizers changes."""
        match action:
            case Create(manifest):
                await self._create(job, manifest)
            case Patch(kind, name, body):
                await self._patch(job, BY_KIND[kind], name, body)
            case Delete(kind, name, uid, grace_seconds):
                await self._delete(job, BY_KIND[kind], name, uid, grace_seconds)
            case SetFinalizers(finalizers):
                return await self._set_finalizers(job, finalizers)
        return job

    async def _create(self, job: Manifest, manifest: Manifest) -> None:
        resource, namespace = BY_KIND[manifest["kind"]], job["metadata"]["namespace"]
        try:
            created = await self._api.create(resource, namespace, manifest)
        except Conflict:
            name = manifest["metadata"]["name"]
            created = await self._api.get(resource, namespace, name)
            _refuse_others(job, resource, created)
        except ApiError as error:
            if error.code in _REFUSED:
                self._refuse(job, str(error))
            raise
        self._refusals.pop(uid_of(job), None)
        self._keep(created, resource)

    def _refuse(self, job: Manifest, why: str) -> None:
        there = {uid: text for uid, text in self._refusals.items() if self._store.by_uid(uid) is not None}
        self._refusals = {**there, uid_of(job): why}

    async def _patch(self, job: Manifest, resource: Resource, name: str, body: Manifest) -> None:
        namespace = job["metadata"]["namespace"]
        try:
            self._keep(await self._api.patch(resource, namespace, name, body), resource)
        except NotFound as error:
            if gone := self._store.get(Key(resource.kind, namespace, name)):
                self._store.remove(Key(resource.kind, namespace, name), uid_of(gone))
            raise Changed(f"{resource.kind} {namespace}/{name} is gone", facts="before it could be repaired") from error

    async def _delete(self, job: Manifest, resource: Resource, name: str, uid: str, grace_seconds: int | None) -> None:
        namespace = job["metadata"]["namespace"]
        try:
            left = await self._api.delete(resource, namespace, name, uid, grace_seconds)
        except NotFound:
            self._store.remove(Key(resource.kind, namespace, name), uid)
            return
        except Conflict as error:
            await self._not_deleted(Key(resource.kind, namespace, name), uid, error)
            return
        if (left.get("metadata") or {}).get("deletionTimestamp"):
            self._keep(left, resource)
        else:
            self._store.remove(Key(resource.kind, namespace, name), uid)

    async def _not_deleted(self, key: Key, uid: str, error: Conflict) -> None:
        """Most often a namesake is there by now, and the one that was meant is gone. Raises Changed if it is not."""
        try:
            found = await self._api.get(BY_KIND[key.kind], key.namespace, key.name)
        except NotFound:
            self._store.remove(key, uid)
            return
        if uid_of(found) == uid:
            self._keep(found, BY_KIND[key.kind])
            raise Changed(f"{key} was not deleted", facts=error.message) from error
        self._store.remove(key, uid)

    async def _set_finalizers(self, job: Manifest, finalizers: tuple[str, ...]) -> Manifest:
        resource, metadata = BY_KIND[job["kind"]], job["metadata"]
        # With its resourceVersion a merge patch is refused when somebody else has changed the list.
        body = {"metadata": {"finalizers": list(finalizers), "resourceVersion": metadata["resourceVersion"]}}
        try:
            patched = await self._api.patch(resource, metadata["namespace"], metadata["name"], body)
        except (Conflict, NotFound) as error:
            raise await self._looked_again(job, error) from error
        if patched["metadata"].get("deletionTimestamp") and not patched["metadata"].get("finalizers"):
            self._store.remove(Key(resource.kind, metadata["namespace"], metadata["name"]), uid_of(job))
            return patched
        return self._keep(patched, resource)

    async def _looked_again(self, job: Manifest, error: Conflict | NotFound) -> Changed:
        """Brings the store up to date without waiting for the watch, which may be late or dead."""
        resource, metadata = BY_KIND[job["kind"]], job["metadata"]
        key = Key(resource.kind, metadata["namespace"], metadata["name"])
        try:
            newest = await self._api.get(resource, key.namespace, key.name)
        except NotFound:
            self._store.remove(key, uid_of(job))
        else:
            if uid_of(newest) != uid_of(job):
                self._store.remove(key, uid_of(job))
            self._keep(newest, resource)
        return Changed(f"{key} has changed", facts=error.message)

    def _keep(self, manifest: Manifest, resource: Resource) -> Manifest:
        complete = completed(manifest, resource)
        self._store.put(complete, resource.kind)
        return complete


def completed(manifest: Manifest, resource: Resource) -> Mapping[str, Any]:
    """As it is kept: with its type, which the items of a list do not say, and without `managedFields`, which are half
    of an object's size (a write without them leaves them as they are)."""
    metadata = {name: value for name, value in manifest["metadata"].items() if name != "managedFields"}
    return {"apiVersion": resource.api_version, "kind": resource.kind, **manifest, "metadata": metadata}


def _refuse_others(job: Manifest, resource: Resource, found: Manifest) -> None:
    owners = found["metadata"].get("ownerReferences", ())
    if any(owner["uid"] == uid_of(job) for owner in owners):
        return
    metadata = found["metadata"]
    whose = ", ".join(f"{owner['kind']} {owner['name']} (uid {owner['uid']})" for owner in owners) or "nobody"
    raise NameTaken(
        f"{resource.kind} {metadata['namespace']}/{metadata['name']} is not this job's",
        facts=f"it is owned by {whose}, not by {job['kind']} {job['metadata']['name']} (uid {uid_of(job)})",
        todo="Delete or rename it, or rename the job",
    )
