"""One look at one job: observe, reconcile, write the status, act."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import structlog

from joinery_operator.decision import Decision, Event
from joinery_operator.observed import Manifest, Observed
from joinery_operator.settings import Settings
from joinery_operator.shell.api import ApiError
from joinery_operator.shell.apply import Applier, Changed, NameTaken
from joinery_operator.shell.kinds import JOB_KINDS, Key
from joinery_operator.shell.left_over import left_over
from joinery_operator.shell.metrics import Metrics
from joinery_operator.shell.namesakes import namesakes
from joinery_operator.shell.polling import Poller
from joinery_operator.shell.recorder import COMPONENT, Recorder
from joinery_operator.shell.store import Store, uid_of
from joinery_operator.shell.templates import Templates

Reconcile = Callable[[Observed], Decision]

_log = structlog.get_logger(COMPONENT)


class Worker:
    """`now` tells the time in UTC."""

    def __init__(
        self,
        settings: Settings,
        reconcile: Reconcile,
        store: Store,
        applier: Applier,
        templates: Templates,
        poller: Poller,
        recorder: Recorder,
        metrics: Metrics,
        now: Callable[[], datetime],
    ) -> None:
        self._settings = settings
        self._reconcile = reconcile
        self._store = store
        self._applier = applier
        self._templates = templates
        self._poller = poller
        self._recorder = recorder
        self._metrics = metrics
        self._now = now

    async def look(self, key: Key) -> float | None:
        """Returns after how many seconds the next look is due even if nothing happens. What goes wrong is told (log,
        Event, metrics) and raised again."""
        job = self._store.get(key)
        if job is None:
            return None
        outcome = "error"
        try:
            with self._metrics.reconcile_seconds.labels(key.kind).time():
                again_after = await self._look(key, job)
            outcome = "done"
        except Changed as error:
            outcome = "changed"
            _log.info("the job is looked at again", job=str(key), why=str(error))
            raise
        except (ApiError, NameTaken) as error:
            _log.warning("a look at a job failed", job=str(key), error=str(error))
            await self._recorder.tell(job, Event("Warning", "ReconcileFailed", str(error)))
            raise
        except Exception:
            _log.exception("a look at a job failed", job=str(key))
            raise
        finally:
            self._metrics.reconciles.labels(key.kind, outcome).inc()
        return again_after

    async def _look(self, key: Key, job: Manifest) -> float | None:
        templates = await self._templates.of(job, self._store.children(uid_of(job)))
        # Nothing is awaited between here and the decision: what is observed is of one moment.
        job = self._store.get(key) or job
        observed = Observed(
            kind=JOB_KINDS[key.kind],
            resource=job,
            children=self._store.children(uid_of(job)),
            templates=templates,
            driver=self._poller.last_of(job),
            now=self._now(),
            settings=self._settings,
            left_over=left_over(job, self._store),
            refused=self._applier.refused(job),
            namesakes=tuple(other for each in namesakes(key, self._store) if (other := self._store.get(each))),
        )
        decision = self._reconcile(observed)
        if decision.status is not None:
            job = await self._applier.write_status(job, decision.status)
        for action in decision.actions:
            job = await self._applier.act(job, action)
            _log.info("done", job=str(key), action=type(action).__name__, what=_what(action))
        for event in decision.events:
            await self._recorder.tell(job, event)
        return decision.again_after


def _what(action: object) -> str:
    manifest = getattr(action, "manifest", None)
    if manifest is not None:
        return f"{manifest['kind']} {manifest['metadata']['name']}"
    return f"{getattr(action, 'kind', 'finalizers')} {getattr(action, 'name', '')}".strip()
