"""Runs one reconcile of one job or savepoint: observe, decide, write the status, act."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

import structlog
from ruamel.yaml.error import YAMLError

from joinery_operator.decision import (
    Action,
    Children,
    Create,
    Decision,
    Delete,
    Event,
    Manifest,
    Observed,
    ObservedBlueGreen,
    ObservedEnd,
    ObservedSavepoint,
    SetFinalizers,
    waits_for_executors,
)
from joinery_operator.kube.api import Api, ApiError, NotFound
from joinery_operator.kube.apply import Applier, NameTaken, ResourceChanged, was_answered
from joinery_operator.kube.audit import EndingNamespaces, has_our_finalizer
from joinery_operator.kube.cache import (
    ObjectCache,
    key_of,
    name_conflicts,
    orphaned_drivers,
    page_conflicts,
    places_shared_with_others,
    uid_of,
)
from joinery_operator.kube.events import COMPONENT, EventRecorder
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.polling import Poller
from joinery_operator.kube.resources import BLUE_GREEN, BY_KIND, CONFIG_MAP, JOB_KINDS, POD, SAVEPOINT, ObjectKey
from joinery_operator.manifests.pod_base import JOB_FILE
from joinery_operator.manifests.yaml import from_yaml
from joinery_operator.names import labels, selector
from joinery_operator.settings import Settings
from joinery_runtime.errors import JoineryError

Reconcile = Callable[[Observed | ObservedSavepoint | ObservedBlueGreen | ObservedEnd], Decision]

_log = structlog.get_logger(COMPONENT)

_CACHE_SECONDS = 15.0
_CACHED = 500
_SOON_SECONDS = 0.5
_TEMPLATES_SECONDS = 60.0
"""How often a job with pod templates is reconciled at least: no watch reports that its author has edited one."""
_REPORTED_ERRORS = (ApiError, NameTaken, ResourceChanged)


def _template_names(job: object) -> frozenset[str]:
    names = (_value_at(job, "spec", "spark", part, "podTemplate", "name") for part in ("driver", "executor"))
    return frozenset(name for name in names if isinstance(name, str))


@lru_cache(maxsize=_CACHED)
def _template_names_in(text: str) -> frozenset[str]:
    # Parsing is slow, and few jobs have templates.
    if "podTemplate" not in text:
        return frozenset()
    try:
        return _template_names(from_yaml(text))
    except YAMLError:
        return frozenset()


def _value_at(document: object, *path: str) -> object:
    for step in path:
        document = document.get(step) if isinstance(document, Mapping) else None
    return document


class PodTemplateCache:
    """Reads ConfigMaps with pod templates, which are the users' own, when a job names them, and caches them for 15 s.
    `clock` is in seconds."""

    def __init__(self, api: Api, clock: Callable[[], float]) -> None:
        self._api = api
        self._clock = clock
        self._cached: OrderedDict[tuple[str, str], tuple[float, Manifest | None]] = OrderedDict()

    async def templates_of(self, job: Manifest, children: Children) -> Mapping[str, Manifest | None]:
        """Return the ConfigMaps named in `podTemplate` fields of the resource and of its revisions, by name; None:
        there is no ConfigMap of that name."""
        revisions = ((config_map.get("data") or {}).get(JOB_FILE, "") for config_map in children.config_maps.values())
        names = _template_names(job).union(*(_template_names_in(text) for text in revisions))
        return {name: await self._read_template(job["metadata"]["namespace"], name) for name in sorted(names)}

    async def _read_template(self, namespace: str, name: str) -> Manifest | None:
        read, template = self._cached.get((namespace, name), (float("-inf"), None))
        if self._clock() - read < _CACHE_SECONDS:
            return template
        try:
            template = await self._api.get(CONFIG_MAP, namespace, name)
        except NotFound:
            template = None
        self._cached[namespace, name] = (self._clock(), template)
        if len(self._cached) > _CACHED:
            self._cached.popitem(last=False)
        return template


class Observer:
    """Collects everything that `reconcile` reads. `now` returns the time in UTC."""

    def __init__(
        self,
        settings: Settings,
        api: Api,
        cache: ObjectCache,
        templates: PodTemplateCache,
        poller: Poller,
        ending_namespaces: EndingNamespaces,
        now: Callable[[], datetime],
    ) -> None:
        self._settings = settings
        self._api = api
        self._cache = cache
        self._templates = templates
        self._poller = poller
        self._ending_namespaces = ending_namespaces
        self._now = now

    async def observe(
        self, key: ObjectKey, applier: Applier
    ) -> Observed | ObservedSavepoint | ObservedBlueGreen | None:
        """Observe a job, savepoint or BlueGreenJob; None if there is no such object."""
        if key.kind == BLUE_GREEN.kind and (resource := self._cache.get(key)) is not None:
            return ObservedBlueGreen(
                resource=resource,
                jobs=self._cache.jobs_of(resource),
                now=self._now(),
                settings=self._settings,
                create_refused=applier.create_refused(resource),
                delete_refused=applier.delete_refused(resource),
                patch_refused=applier.patch_refused(resource),
                shared_places=tuple(places_shared_with_others(resource, self._cache)),
            )
        if key.kind == SAVEPOINT.kind:
            return await self._observe_savepoint(key, applier)
        return await self._observe_job(key, applier)

    async def _observe_savepoint(self, key: ObjectKey, applier: Applier) -> ObservedSavepoint | None:
        savepoint = self._cache.get(key)
        if savepoint is None:
            return None
        job_ref = savepoint["spec"]["job"]
        job = await self._observe_job(ObjectKey(job_ref["kind"], key.namespace, job_ref["name"]), applier)
        namespace_ends = await self._namespace_ends(savepoint)
        job_is_anothers = job is None and _waits_for_pod(savepoint)
        if job_is_anothers:  # unless it was deleted: the labels of the job change first, those of the savepoint follow
            try:
                await self._api.get(BY_KIND[job_ref["kind"]], key.namespace, job_ref["name"])
            except NotFound:
                job_is_anothers = False
        savepoint = self._cache.get(key) or savepoint
        return ObservedSavepoint(
            resource=savepoint,
            pods=self._cache.children(uid_of(savepoint)).pods,
            job=job,
            now=self._now(),
            settings=self._settings,
            create_refused=applier.create_refused(savepoint),
            delete_refused=applier.delete_refused(savepoint),
            namespace_ends=namespace_ends,
            permissions_end=key.namespace in self._ending_namespaces,
            job_is_anothers=job_is_anothers,
        )

    async def _observe_job(self, key: ObjectKey, applier: Applier) -> Observed | None:
        job = self._cache.get(key)
        if job is None:
            return None
        templates = await self._templates.templates_of(job, self._cache.children(uid_of(job)))
        executors: Mapping[str, Manifest] = {}
        if waits_for_executors(self._poller.last_status(job)):
            # No watch reports executors' pods: there may be thousands.
            answer = await self._api.list(POD, job["metadata"]["namespace"], selector(labels(job, "executor")))
            executors = {pod["metadata"]["name"]: pod for pod in answer["items"]}
        namespace_ends = await self._namespace_ends(job)
        # Nothing is awaited between here and the decision, so that all observations are from one moment.
        job = self._cache.get(key) or job
        return Observed(
            kind=JOB_KINDS[key.kind],
            resource=job,
            children=self._cache.children(uid_of(job)),
            templates=templates,
            driver=self._poller.last_status(job),
            now=self._now(),
            settings=self._settings,
            executors=executors,
            orphaned_drivers=orphaned_drivers(job, self._cache),
            create_refused=applier.create_refused(job),
            delete_refused=applier.delete_refused(job),
            name_conflicts=self._cached_objects(name_conflicts(key, self._cache)),
            page_conflicts=self._cached_objects(page_conflicts(key, self._cache, self._settings)),
            namespace_ends=namespace_ends,
            permissions_end=key.namespace in self._ending_namespaces,
        )

    async def _namespace_ends(self, resource: Manifest) -> bool:
        """Return whether a resource waits for a pod of ours before it is deleted, and its namespace takes no pods any
        more."""
        return _waits_for_pod(resource) and await self._api.namespace_ends(resource["metadata"]["namespace"])

    def _cached_objects(self, keys: Iterable[ObjectKey]) -> tuple[Manifest, ...]:
        return tuple(manifest for key in keys if (manifest := self._cache.get(key)))


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """`again_after`: the next reconcile is due after this many seconds even if nothing happens. `failed`: some actions
    were rejected, and are to be tried again."""

    again_after: float | None = None
    failed: bool = False


class JobReconciler:
    """Observes a job or savepoint, lets `reconcile` decide, writes the status, then acts. Calls `due` with other
    resources that a write concerns: the answer to it is in the cache, so a watch brings nothing new."""

    def __init__(
        self,
        reconcile: Reconcile,
        observer: Observer,
        applier: Applier,
        recorder: EventRecorder,
        cache: ObjectCache,
        metrics: Metrics,
        due: Callable[[ObjectKey], None],
    ) -> None:
        self._due = due
        self._reconcile = reconcile
        self._observer = observer
        self._applier = applier
        self._recorder = recorder
        self._cache = cache
        self._metrics = metrics

    async def run(self, key: ObjectKey) -> ReconcileResult:
        """Run a reconcile. Reports errors (log, Event, metrics). Raises those after which nothing more was done."""
        job = self._cache.get(key)
        if job is None:
            return ReconcileResult()
        outcome = "error"
        try:
            with self._metrics.reconcile_seconds.labels(key.kind).time():
                result = await self._reconcile_once(key)
            outcome = "error" if result.failed else "done"
        except _REPORTED_ERRORS as error:
            outcome = "changed" if isinstance(error, ResourceChanged) else "error"
            await self._report(job, key, error)
            raise
        except Exception:
            _log.exception("a reconcile failed", job=str(key))
            raise
        finally:
            self._metrics.reconciles.labels(key.kind, outcome).inc()
        return result

    async def report_end(self, job: Manifest) -> None:
        """Report what a job or savepoint that is gone leaves behind. `job` is its last copy."""
        for event in self._reconcile(ObservedEnd(job)).events:
            key = key_of(job, job["kind"])
            _log.warning("a resource is gone", job=str(key), reason=event.reason, what=event.message)
            await self._recorder.record(job, event)

    async def _report(self, job: Manifest, key: ObjectKey, error: JoineryError) -> None:
        if isinstance(error, ResourceChanged):
            _log.info("the job is reconciled again", job=str(key), why=str(error))
            return
        _log.warning("a reconcile failed", job=str(key), error=str(error))
        await self._recorder.record(job, Event("Warning", "ReconcileFailed", str(error)))

    async def _reconcile_once(self, key: ObjectKey) -> ReconcileResult:
        observed = await self._observer.observe(key, self._applier)
        if observed is None:
            return ReconcileResult()
        decision, job = self._reconcile(observed), observed.resource
        if decision.status is not None:
            before, job = job, await self._applier.write_status(job, decision.status)
            if self._cache.concerns_blue_greens(before, job, job["kind"]):
                self._make_blue_green_due(job)
        undone: list[Action] = []
        failure: JoineryError | None = None
        for action in decision.actions:
            if any(_depends_on(action, undone_action) for undone_action in undone):
                undone.append(action)
                continue
            try:
                job = await self._applier.act(job, action)
            except _REPORTED_ERRORS as error:
                # No driver may start before the finalizer is set.
                if isinstance(action, SetFinalizers) or not was_answered(error):
                    failure = error
                    break
                # A policy or a foreign object may prevent this action for ever; it must not hold up the others.
                undone.append(action)
                await self._report(job, key, error)
            else:
                changed = "finalizers" if isinstance(action, SetFinalizers) else f"{action.kind} {action.name}"
                _log.info("done", job=str(key), action=type(action).__name__, what=changed)
                self._make_others_due(job, action)
        # They are about the status, which is written: the next reconcile does not tell them again.
        for event in decision.events:
            if event.outlives_namespace:
                _log.warning("a namespace ends", job=str(key), reason=event.reason, what=event.message)
            await self._recorder.record(job, event)
        if failure is not None:
            raise failure
        return ReconcileResult(self._again_after(observed, decision, failed=bool(undone)), failed=bool(undone))

    def _make_others_due(self, job: Manifest, action: Action) -> None:
        if isinstance(action, SetFinalizers):
            self._make_blue_green_due(job)
        elif action.kind in JOB_KINDS:
            self._due(ObjectKey(action.kind, job["metadata"]["namespace"], action.name))

    def _make_blue_green_due(self, job: Manifest) -> None:
        if (blue_green := self._cache.blue_green_of(job, job["kind"])) is not None:
            self._due(blue_green)

    def _again_after(
        self, observed: Observed | ObservedSavepoint | ObservedBlueGreen, decision: Decision, *, failed: bool
    ) -> float | None:
        resource = observed.resource
        refused = (self._applier.create_refused(resource), self._applier.delete_refused(resource))
        # An action that failed before has succeeded, and the status still reports the failure.
        over = not failed and refused != (observed.create_refused, observed.delete_refused)
        if isinstance(observed, ObservedBlueGreen) and not failed:
            over |= self._applier.patch_refused(resource) != observed.patch_refused
        delays = [decision.again_after]
        if isinstance(observed, Observed) and observed.templates:
            delays.append(_TEMPLATES_SECONDS)
        if self._applier.has_news(resource) or over:
            delays.append(_SOON_SECONDS)
        return min((delay for delay in delays if delay is not None), default=None)


def _waits_for_pod(resource: Manifest) -> bool:
    """Return whether a resource is being deleted, and stays until a pod of ours has deleted what the state store has of
    it."""
    return bool(resource["metadata"].get("deletionTimestamp")) and has_our_finalizer(resource)


def _depends_on(action: Action, undone: Action) -> bool:
    """Return whether an action must come after another one: an object after the end of its namesake, a pod after its
    ConfigMap."""
    if not isinstance(action, Create):
        return False
    match undone:
        case Delete():
            return (undone.kind, undone.name) == (action.kind, action.name)
        case Create() if action.kind == "Pod" and undone.kind == "ConfigMap":
            volumes = action.manifest["spec"].get("volumes") or ()
            return any(_value_at(volume, "configMap", "name") == undone.name for volume in volumes)
    return False
