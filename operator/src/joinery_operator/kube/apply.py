"""Carries out what reconcile decided: first the status, then the actions in their order.

Every answer goes into the cache, so that the next reconcile works on what was just written, even before a watch reports
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joinery_operator.decision import Action, Create, Delete, Manifest, Patch, SetFinalizers
from joinery_operator.kube.api import Api, ApiError, Conflict, NotFound
from joinery_operator.kube.cache import ObjectCache, owner_uid, uid_of
from joinery_operator.kube.resources import BY_KIND, OWNERS, ApiResource, ObjectKey
from joinery_operator.names import controls
from joinery_runtime.errors import JoineryError
from joinery_runtime.job.crd import BlueGreenState, SavepointState, Status

_REFUSED = {400, 403, 422, 500}
"""By a quota, an admission (500: its webhook does not answer), a namespace that ends, or the API server's own rules."""
_AWAY = {0, 503, 504}


class NameTaken(JoineryError):
    """An object that does not belong to the job has the name of one of its children."""


class ResourceChanged(JoineryError):
    """The resource has changed since it was observed; the cache now has its newest copy."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    key: ObjectKey
    message: str


class Applier:
    """Writes for jobs and savepoints. Takes and returns whole objects."""

    def __init__(self, api: Api, cache: ObjectCache) -> None:
        self._api = api
        self._cache = cache
        self._refusals: dict[str, dict[str, _Refusal]] = {}
        self._undeleted: dict[str, dict[str, _Refusal]] = {}
        self._unpatched: dict[str, dict[str, _Refusal]] = {}
        self._news: set[str] = set()

    async def write_status(self, job: Manifest, status: Status | SavepointState | BlueGreenState) -> Manifest:
        """Write the status, and return the resource. Raises ResourceChanged if the resource has changed meanwhile."""
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        if body == job.get("status"):
            return job
        resource = BY_KIND[job["kind"]]
        try:
            written = await self._api.replace_status(resource, {**job, "status": body})
        except (Conflict, NotFound) as error:
            raise await self._refresh(job, error) from error
        return self._cache_copy(written, resource)

    def create_refused(self, job: Manifest) -> str:
        """Which children of the job could not be created, and why: the API server's answer, or the owner of an object
        with the child's name. Empty once one of that kind was created, or is there: a create may take effect although
        its answer is an error."""
        uid = uid_of(job)
        refused = [(refusal.message, self._cache.get(refusal.key)) for refusal in self._refusals.get(uid, {}).values()]
        return "; ".join(message for message, existing in refused if existing is None or owner_uid(existing) != uid)

    def delete_refused(self, job: Manifest) -> Mapping[str, str]:
        """Which children of the job could not be deleted, by their uid, and the API server's answer. One that is gone
        or going by now does not count."""
        remaining = {}
        for uid, refusal in self._undeleted.pop(uid_of(job), {}).items():
            cached = self._cache.get(refusal.key)
            if cached is not None and uid_of(cached) == uid and not cached["metadata"].get("deletionTimestamp"):
                remaining[uid] = refusal
        if remaining:
            self._undeleted[uid_of(job)] = remaining
        return {uid: refusal.message for uid, refusal in remaining.items()}

    def patch_refused(self, job: Manifest) -> Mapping[str, str]:
        """Which children could not be changed, by their name, and the API server's answer. One that was changed since,
        or is gone, does not count."""
        refused = self._unpatched.pop(uid_of(job), {})
        if remaining := {name: refusal for name, refusal in refused.items() if self._cache.get(refusal.key)}:
            self._unpatched[uid_of(job)] = remaining
        return {name: refusal.message for name, refusal in remaining.items()}

    def has_news(self, job: Manifest) -> bool:
        """Return whether answers since the last call told of the job's children what no watch reports any more: a watch
        brings nothing new of what the cache already has."""
        had = uid_of(job) in self._news
        self._news.discard(uid_of(job))
        return had

    async def act(self, job: Manifest, action: Action) -> Manifest:
        """Carry out an action. Returns the resource, which only SetFinalizers changes."""
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
        key = ObjectKey(resource.kind, namespace, manifest["metadata"]["name"])
        try:
            created = await self._api.create(resource, namespace, manifest)
        except Conflict as error:
            try:
                created = await self._api.get(resource, namespace, key.name)
            except NotFound:
                raise error from None  # of a quota, which others use at the same moment
            try:
                _check_owner(job, resource, created)
                if resource in OWNERS and not self._cache.selects(created):
                    raise NameTaken(
                        f"{key} is not this operator's",
                        facts="its labels select another operator",
                        todo="Correct them, or delete it",
                    )
            except NameTaken as error:
                self._remember(job, key, str(error))
                raise
            self._news.add(uid_of(job))  # it may have run, and ended, by now
        except ApiError as error:
            if error.code in _REFUSED:
                refusal_error = JoineryError(f"{key} cannot be created", facts=error.facts, todo=error.todo)
                self._remember(job, key, str(refusal_error))
            raise
        self._refusals.get(uid_of(job), {}).pop(key.kind, None)
        self._cache_copy(created, resource)

    def _remember(self, job: Manifest, key: ObjectKey, message: str) -> None:
        """Remember one rejection of a kind: an earlier one may concern a pod that is no longer wanted."""
        remaining = {uid: refusals for uid, refusals in self._refusals.items() if self._cache.by_uid(uid) is not None}
        self._refusals = {
            **remaining,
            uid_of(job): {**remaining.get(uid_of(job), {}), key.kind: _Refusal(key, message)},
        }

    async def _patch(self, job: Manifest, resource: ApiResource, name: str, body: Manifest) -> None:
        namespace = job["metadata"]["namespace"]
        key = ObjectKey(resource.kind, namespace, name)
        cached = self._cache.get(key)
        try:
            patched = self._cache_copy(await self._api.patch(resource, namespace, name, body), resource)
            if cached is None or cached.get("status") != patched.get("status"):
                self._news.add(uid_of(job))  # of its kubelet
        except NotFound as error:
            if cached is not None:
                self._cache.remove(key, uid_of(cached))
            raise ResourceChanged(
                f"{resource.kind} {namespace}/{name} was deleted", facts="before it could be repaired"
            ) from error
        except ApiError as error:
            if was_answered(error):
                refusal_error = JoineryError(f"{key} cannot be changed", facts=error.facts, todo=error.todo)
                self._unpatched.setdefault(uid_of(job), {})[name] = _Refusal(key, str(refusal_error))
            raise
        self._unpatched.get(uid_of(job), {}).pop(name, None)

    async def _delete(
        self, job: Manifest, resource: ApiResource, name: str, uid: str, grace_seconds: int | None
    ) -> None:
        namespace = job["metadata"]["namespace"]
        key = ObjectKey(resource.kind, namespace, name)
        try:
            deleted = await self._api.delete(resource, namespace, name, uid, grace_seconds)
        except NotFound:
            self._forget_deleted(job, key, uid)
            return
        except ApiError as error:
            if isinstance(error, Conflict):
                # Usually the object was deleted, and another one has its name by now.
                current = await current_copy(self._api, resource, key, uid)
                if current is None:
                    self._forget_deleted(job, key, uid)
                    return
                self._cache.put(current, resource.kind)
            if was_answered(error):
                refusal_error = JoineryError(f"{key} cannot be deleted", facts=error.facts, todo=error.todo)
                self._undeleted.setdefault(uid_of(job), {})[uid] = _Refusal(key, str(refusal_error))
            if isinstance(error, Conflict):
                raise ResourceChanged(f"{key} was not deleted", facts=error.message) from error
            raise
        metadata = deleted.get("metadata") or {}
        # An object that went at once comes as a Status, or as a copy that was never stored.
        if metadata.get("deletionTimestamp") and metadata.get("resourceVersion"):
            self._cache_copy(deleted, resource)
        else:
            self._forget_deleted(job, key, uid)

    def _forget_deleted(self, job: Manifest, key: ObjectKey, uid: str) -> None:
        self._cache.remove(key, uid)
        self._news.add(uid_of(job))

    async def _set_finalizers(self, job: Manifest, finalizers: tuple[str, ...]) -> Manifest:
        resource, metadata = BY_KIND[job["kind"]], job["metadata"]
        # With the resourceVersion, the API server rejects the merge patch if somebody else has changed the list.
        body = {"metadata": {"finalizers": list(finalizers), "resourceVersion": metadata["resourceVersion"]}}
        try:
            patched = await self._api.patch(resource, metadata["namespace"], metadata["name"], body)
        except (Conflict, NotFound) as error:
            raise await self._refresh(job, error) from error
        if patched["metadata"].get("deletionTimestamp") and not patched["metadata"].get("finalizers"):
            self._cache.remove(ObjectKey(resource.kind, metadata["namespace"], metadata["name"]), uid_of(job))
            return patched
        return self._cache_copy(patched, resource)

    async def _refresh(self, job: Manifest, error: Conflict | NotFound) -> ResourceChanged:
        """Update the cache without waiting for the watch, which may be late or dead. Returns the error to raise."""
        resource, metadata = BY_KIND[job["kind"]], job["metadata"]
        key = ObjectKey(resource.kind, metadata["namespace"], metadata["name"])
        try:
            newest = await self._api.get(resource, key.namespace, key.name)
        except NotFound:
            self._cache.remove(key, uid_of(job))
        else:
            if uid_of(newest) != uid_of(job):
                self._cache.remove(key, uid_of(job))
            self._cache_copy(newest, resource)
        return ResourceChanged(f"{key} has changed", facts=error.message)

    def _cache_copy(self, manifest: Manifest, resource: ApiResource) -> Manifest:
        complete = complete_manifest(manifest, resource)
        self._cache.put(complete, resource.kind)
        return complete


def was_answered(error: JoineryError) -> bool:
    """Return whether an error concerns this one call. Otherwise the API server is unavailable, and answers no other
    call either."""
    return not isinstance(error, ApiError) or error.code not in _AWAY


async def current_copy(api: Api, resource: ApiResource, key: ObjectKey, uid: str) -> Manifest | None:
    """Return an object as it is now; None if it was deleted, even if another one has its name by now. Raises
    ApiError."""
    try:
        current = await api.get(resource, key.namespace, key.name)
    except NotFound:
        return None
    return complete_manifest(current, resource) if uid_of(current) == uid else None


def complete_manifest(manifest: Manifest, resource: ApiResource) -> Mapping[str, Any]:
    """Return the object as the cache holds it: with its type, which items of a list lack, and without `managedFields`,
    which make up half of an object's size (a write without them does not change them)."""
    metadata = {name: value for name, value in manifest["metadata"].items() if name != "managedFields"}
    return {"apiVersion": resource.api_version, "kind": resource.kind, **manifest, "metadata": metadata}


def _check_owner(job: Manifest, resource: ApiResource, existing: Manifest) -> None:
    owners = existing["metadata"].get("ownerReferences", ())
    is_owned = any(owner["uid"] == uid_of(job) for owner in owners)
    if controls(job, existing) if resource in OWNERS else is_owned:
        return
    metadata = existing["metadata"]
    owner_names = ", ".join(f"{owner['kind']} {owner['name']} (uid {owner['uid']})" for owner in owners) or "nobody"
    raise NameTaken(
        f"{resource.kind} {metadata['namespace']}/{metadata['name']} is not this job's",
        facts=f"it is owned by {owner_names}, not by {job['kind']} {job['metadata']['name']} (uid {uid_of(job)})",
        todo="Delete or rename it, or rename the job",
    )
