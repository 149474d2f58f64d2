"""Caches the newest copy of every object that the operator watches.

Copies come from watches, from lists, and from answers to the operator's own calls, in any order. The one with the
greatest resourceVersion stays (they are comparable numbers). An object that was once seen to be gone stays gone, so
that a late answer cannot bring it back.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from joinery_operator.decision import Children, Manifest, SharedPlace
from joinery_operator.kube.resources import (
    ALL_CHILDREN,
    BLUE_GREEN,
    JOB_KINDS,
    JOBS,
    OWNER_KINDS,
    POD,
    SAVEPOINT,
    ObjectKey,
)
from joinery_operator.manifests import page_url
from joinery_operator.names import JOB_LABEL, KIND_LABEL, ROLE_LABEL, labels
from joinery_operator.outputs import OutputPlace, written_places
from joinery_operator.settings import Settings
from joinery_runtime.job.crd import FIGURES, Status
from joinery_runtime.job.model.draft import dig

_GRAVES = 20_000
_FIGURES = frozenset(Status.model_fields[name].alias or name for name in FIGURES)
"""No BlueGreenJob depends on these fields of a job's status, except that the inputs of a candidate are compared with
those of the active job."""


def key_of(manifest: Manifest, kind: str) -> ObjectKey:
    """Return the key of an object. `kind` is a parameter because items of a list lack theirs."""
    metadata = manifest["metadata"]
    return ObjectKey(kind, metadata["namespace"], metadata["name"])


def version_of(manifest: Manifest) -> int:
    return int(manifest["metadata"]["resourceVersion"])


def uid_of(manifest: Manifest) -> str:
    return str(manifest["metadata"]["uid"])


_BLUE_GREEN = frozenset({BLUE_GREEN.kind})
_OWNERS_OF_PODS = OWNER_KINDS - _BLUE_GREEN


def owner_uid(manifest: Manifest) -> str | None:
    """Return the uid of the job or savepoint that controls the object."""
    return _controller_uid(manifest, _OWNERS_OF_PODS)


def _controller_uid(manifest: Manifest, kinds: Collection[str]) -> str | None:
    for owner in manifest["metadata"].get("ownerReferences", ()):
        if owner.get("controller") and owner.get("kind") in kinds:
            return str(owner["uid"])
    return None


class ObjectCache:
    """The cache. For one event loop, not for several threads. `selects` tells which jobs and savepoints are this
    operator's: labels may change, and a copy may come by other ways than a watch with a selector."""

    def __init__(self, selects: Callable[[Manifest], bool] = lambda _: True) -> None:
        self.selects = selects
        self._objects: dict[ObjectKey, Manifest] = {}
        self._keys_by_uid: dict[str, ObjectKey] = {}
        self._owners: dict[ObjectKey, str] = {}
        self._children: defaultdict[str, set[ObjectKey]] = defaultdict(set)
        self._blue_greens: dict[ObjectKey, str] = {}
        self._jobs_of: defaultdict[str, set[ObjectKey]] = defaultdict(set)
        self._same_host: defaultdict[str, set[ObjectKey]] = defaultdict(set)
        self._output_places: dict[ObjectKey, frozenset[OutputPlace]] = {}
        self._writers: defaultdict[OutputPlace, set[ObjectKey]] = defaultdict(set)
        self._graves: OrderedDict[str, None] = OrderedDict()

    def get(self, key: ObjectKey) -> Manifest | None:
        return self._objects.get(key)

    def by_uid(self, uid: str) -> Manifest | None:
        key = self._keys_by_uid.get(uid)
        return self._objects.get(key) if key else None

    def keys(self, kind: str) -> Iterator[ObjectKey]:
        return (key for key in tuple(self._objects) if key.kind == kind)

    def jobs_like(self, job: ObjectKey) -> Iterator[ObjectKey]:
        """Yield jobs of any kind and namespace with the same name, but for dots and hyphens."""
        yield from sorted(self._same_host.get(_host(job), ()))

    def children(self, uid: str) -> Children:
        """Return the objects whose controller is the job or savepoint of this uid."""
        by_kind: dict[str, dict[str, Manifest]] = {child.kind: {} for child in ALL_CHILDREN}
        for key in sorted(self._children.get(uid, ())):
            by_kind[key.kind][key.name] = self._objects[key]
        return Children(*(by_kind[child.kind] for child in ALL_CHILDREN))

    def jobs_of(self, blue_green: Manifest) -> dict[str, Manifest]:
        """Return the jobs of a BlueGreenJob's namespace, by name, that name its uid as their controller or whose uid
        its status lists. Only `reconcile` knows which of them are its own."""
        namespace = blue_green["metadata"]["namespace"]
        claiming = sorted(self._jobs_of.get(uid_of(blue_green), ()))
        uids = [dig(listed, "uid") for listed in (blue_green.get("status") or {}).get("jobs") or ()]
        # The last one of a name counts: jobs of two kinds may share a name.
        keys = (*claiming, *(key for uid in uids if (key := self._keys_by_uid.get(uid)) is not None))
        return {key.name: self._objects[key] for key in keys if key.kind in JOB_KINDS and key.namespace == namespace}

    def blue_green_of(self, manifest: Manifest, kind: str) -> ObjectKey | None:
        """Return the BlueGreenJob to reconcile when this job changes: the one that the job names as its controller, or
        named before others removed the reference."""
        key = key_of(manifest, kind)
        if kind not in JOB_KINDS:
            return None
        blue_green = self._keys_by_uid.get(_controller_uid(manifest, _BLUE_GREEN) or self._blue_greens.get(key, ""))
        if blue_green is None or (blue_green.kind, blue_green.namespace) != (BLUE_GREEN.kind, key.namespace):
            return None
        return blue_green

    def concerns_blue_greens(self, before: Manifest | None, after: Manifest, kind: str) -> bool:
        """Return whether a change of an object matters to BlueGreenJobs: it is a job, and not only its figures
        differ."""
        if kind not in JOB_KINDS or before is None:
            return kind in JOB_KINDS
        blue_green = self.blue_green_of(after, kind)
        figures = _FIGURES
        if blue_green is not None and dig(self._objects[blue_green], "status", "candidate") is not None:
            figures -= {"inputs"}
        return _without_figures(before, figures) != _without_figures(after, figures)

    def owner_of(self, manifest: Manifest, kind: str) -> ObjectKey | None:
        """Return the job or savepoint to reconcile when this object changes: itself, or its controller."""
        key = key_of(manifest, kind)
        if kind in OWNER_KINDS:
            return key
        uid = owner_uid(manifest) or self._owners.get(key)
        return self._keys_by_uid.get(uid) if uid else None

    def put(self, manifest: Manifest, kind: str) -> bool:
        """Keep the copy if it is newer than the cached one; return whether this changed the cache."""
        key, uid = key_of(manifest, kind), uid_of(manifest)
        if uid in self._graves:
            return False
        old = self._objects.get(key)
        if old is not None and version_of(old) > version_of(manifest):
            return False
        if kind in OWNER_KINDS and not self.selects(manifest):
            # Another operator's now. It is not deleted, and may come back. A watch shows what left its selector with
            # its former labels and the new version, so a copy of the same version counts too.
            if old is not None:
                del self._objects[key]
                self._unlink(key, old)
            return old is not None
        if old is not None and version_of(old) == version_of(manifest):
            return False
        owner = owner_uid(manifest)
        blue_green = _controller_uid(manifest, _BLUE_GREEN) if kind in JOB_KINDS else None
        output_places: frozenset[OutputPlace] = frozenset()
        if kind in JOB_KINDS:
            has_old_spec = old is not None and old.get("spec") == manifest.get("spec")  # most changes are of a status
            output_places = self._output_places[key] if has_old_spec else written_places(manifest)
        if old is not None:
            # A child whose owner reference others removed still belongs to its owner, which repairs it.
            owner = owner or (self._owners.get(key) if uid_of(old) == uid else None)
            blue_green = blue_green or (self._blue_greens.get(key) if uid_of(old) == uid else None)
            self._unlink(key, old)
        self._objects[key] = manifest
        self._keys_by_uid[uid] = key
        if kind in JOB_KINDS:
            self._same_host[_host(key)].add(key)
            self._output_places[key] = output_places
            for output_place in output_places:
                self._writers[output_place].add(key)
        if owner and kind not in OWNER_KINDS:
            self._owners[key] = owner
            self._children[owner].add(key)
        if blue_green:
            self._blue_greens[key] = blue_green
            self._jobs_of[blue_green].add(key)
        return True

    def shared_places(self, job: ObjectKey) -> Iterator[tuple[OutputPlace, ObjectKey]]:
        """Yield the places that a job writes, each with every other job that writes it."""
        shared = [at for at in self._output_places.get(job, ()) if len(self._writers[at]) > 1]
        for output_place in sorted(shared, key=str):
            yield from ((output_place, other) for other in sorted(self._writers[output_place]) if other != job)

    def apply_watch_event(self, manifest: Manifest, kind: str, deleted: bool) -> bool:
        """Take an event of a watch; return whether it brought something new."""
        return self.remove(key_of(manifest, kind), uid_of(manifest)) if deleted else self.put(manifest, kind)

    def remove(self, key: ObjectKey, uid: str) -> bool:
        """Note that the object of this uid is gone for good; return whether it was cached."""
        self._graves[uid] = None
        if len(self._graves) > _GRAVES:
            self._graves.popitem(last=False)
        old = self._objects.get(key)
        if old is None or uid_of(old) != uid:
            return False
        del self._objects[key]
        self._unlink(key, old)
        return True

    def count(self, kinds: Iterable[str]) -> Mapping[str, int]:
        counted = Counter(key.kind for key in self._objects)
        return {kind: counted[kind] for kind in kinds}

    def jobs(self) -> Iterator[Manifest]:
        return (manifest for key, manifest in self._objects.items() if key.kind in JOB_KINDS)

    def blue_greens(self) -> Iterator[Manifest]:
        return (manifest for key, manifest in self._objects.items() if key.kind == BLUE_GREEN.kind)

    def _unlink(self, key: ObjectKey, old: Manifest) -> None:
        self._keys_by_uid.pop(uid_of(old), None)
        if key.kind in JOB_KINDS:
            alike = self._same_host[_host(key)]
            alike.discard(key)
            if not alike:
                del self._same_host[_host(key)]
            for output_place in self._output_places.pop(key, ()):
                self._writers[output_place].discard(key)
                if not self._writers[output_place]:
                    del self._writers[output_place]
        for owners, children in ((self._owners, self._children), (self._blue_greens, self._jobs_of)):
            if owner := owners.pop(key, None):
                children[owner].discard(key)
                if not children[owner]:
                    del children[owner]


def _without_figures(job: Manifest, figures: Collection[str]) -> tuple[object, ...]:
    metadata = {name: value for name, value in job["metadata"].items() if name != "resourceVersion"}
    status = {name: value for name, value in (job.get("status") or {}).items() if name not in figures}
    return metadata, job.get("spec"), status


def name_conflicts(job: ObjectKey, cache: ObjectCache) -> Iterator[ObjectKey]:
    """Yield jobs of other kinds with the same name in the same namespace."""
    for resource in JOBS if job.kind in JOB_KINDS else ():
        key = ObjectKey(resource.kind, job.namespace, job.name)
        if key != job and cache.get(key) is not None:
            yield key


def page_conflicts(job: ObjectKey, cache: ObjectCache, settings: Settings) -> Iterator[ObjectKey]:
    """Other jobs whose pages would have the same address as this one's."""
    if not settings.page_url or job.kind not in JOB_KINDS:
        return
    address = _page(job, settings)
    for key in cache.jobs_like(job):
        if key != job and _page(key, settings) == address:
            yield key


def _host(job: ObjectKey) -> str:
    return job.name.replace(".", "-")  # as in the address of its page


def _page(job: ObjectKey, settings: Settings) -> str | None:
    return page_url({"metadata": {"namespace": job.namespace, "name": job.name}}, settings)


def places_shared_with_others(blue_green: Manifest, cache: ObjectCache) -> Iterator[SharedPlace]:
    """Yield the places that jobs of a BlueGreenJob write, and jobs that are not its own write too, each with its first
    broker."""
    jobs = {key_of(manifest, manifest["kind"]) for manifest in cache.jobs_of(blue_green).values()}
    reported: set[tuple[ObjectKey, ObjectKey, str]] = set()
    for job in sorted(jobs):
        for output_place, other in cache.shared_places(job):
            text = f"{output_place.kind} {output_place.target}"
            manifest = cache.get(other)
            if other not in jobs and manifest is not None and (job, other, text) not in reported:
                reported.add((job, other, text))
                yield SharedPlace(job.name, text, manifest)


def blue_greens_beside(job: ObjectKey, cache: ObjectCache) -> Iterator[ObjectKey]:
    """Yield the BlueGreenJobs whose jobs write where this job writes."""
    for _, other in cache.shared_places(job):
        manifest = cache.get(other)
        if manifest is not None and (blue_green := cache.blue_green_of(manifest, other.kind)) is not None:
            yield blue_green


def savepoints_of(job: ObjectKey, cache: ObjectCache) -> Iterator[ObjectKey]:
    """Yield the savepoints of a job."""
    for key in cache.keys(SAVEPOINT.kind) if job.kind in JOB_KINDS else ():
        savepoint = cache.get(key)
        if savepoint is not None and key.namespace == job.namespace:
            job_ref = savepoint["spec"]["job"]
            if (job_ref["kind"], job_ref["name"]) == (job.kind, job.name):
                yield key


def orphaned_drivers(job: Manifest, cache: ObjectCache) -> Mapping[str, Manifest]:
    """Driver pods, by name, of an earlier resource of the same name, which was deleted and created again before they
    had ended. Looks for them before the first attempt only: going through every pod is too much for each reconcile."""
    if (job.get("status") or {}).get("driver") is not None:
        return {}
    driver_labels = labels(job, "driver")
    identifying_labels = {name: driver_labels[name] for name in (JOB_LABEL, KIND_LABEL, ROLE_LABEL)}
    namespace = job["metadata"]["namespace"]
    pods = {key.name: cache.get(key) for key in cache.keys(POD.kind) if key.namespace == namespace}
    return {
        name: pod
        for name, pod in pods.items()
        if pod is not None
        and identifying_labels.items() <= (pod["metadata"].get("labels") or {}).items()
        # A pod without an owner is never deleted, and nothing proves that it is a driver of this job.
        and owner_uid(pod) not in {None, uid_of(job)}
    }
