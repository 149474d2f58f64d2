"""One look at a job: what was observed, read once for all parts of reconcile."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from joinery_operator.names import Names
from joinery_operator.observed import Manifest, Observed
from joinery_operator.reconcile.facts import PodFacts, pod_facts
from joinery_operator.reconcile.job import Job, Wanted, stored, wanted
from joinery_operator.settings import Settings
from joinery_runtime.job.crd import Attempt, DriverStatus, Rollout, Status

FINALIZER = "joinery.dev/delete-state"


@dataclass(frozen=True)
class Look:
    """`status` is the resource's as it is now."""

    observed: Observed
    status: Status

    @property
    def now(self) -> datetime:
        return self.observed.now

    @property
    def settings(self) -> Settings:
        return self.observed.settings

    @property
    def metadata(self) -> Manifest:
        metadata: Manifest = self.observed.resource["metadata"]
        return metadata

    @property
    def spec(self) -> Manifest:
        """As it was written: it may be no valid one."""
        spec = self.observed.resource.get("spec")
        return spec if isinstance(spec, Mapping) else {}

    @property
    def suspended(self) -> bool:
        return self.spec.get("suspend") is True

    @property
    def finalizers(self) -> tuple[str, ...]:
        return tuple(self.metadata.get("finalizers") or ())

    @cached_property
    def names(self) -> Names:
        return Names(self.observed.resource)

    @cached_property
    def wanted(self) -> Wanted:
        return wanted(self.observed, self.status)

    @property
    def target(self) -> str | None:
        """The revision that the resource asks for; None when it asks for none that can be."""
        return self.wanted.job.revision if self.wanted.job else None

    @cached_property
    def drivers(self) -> dict[int, PodFacts]:
        """Driver pods by attempt. Pods are told apart by their names: labels may have been changed by others."""
        return self._attempts(self.observed.children.pods)

    @cached_property
    def left_over(self) -> dict[int, PodFacts]:
        """Driver pods of an earlier resource of this name, which go by themselves."""
        return self._attempts(self.observed.left_over)

    @cached_property
    def checks(self) -> dict[str, PodFacts]:
        """Check pods by name, which tells revision and mode."""
        return {facts.name: facts for _, facts in self._pods(self.names.check(""))}

    def check(self, rollout: Rollout) -> PodFacts | None:
        return self.checks.get(self.names.check(rollout.revision, rollout.mode))

    @cached_property
    def delete_state(self) -> PodFacts | None:
        return dict(self._pods(self.names.delete_state)).get("")

    def quiet(self, pod: PodFacts) -> bool:
        return pod.quiet(self.now, self.settings.stuck_seconds)

    def all_quiet(self) -> bool:
        """Whether no driver pod can do anything any more."""
        return all(self.quiet(pod) for pod in (*self.drivers.values(), *self.left_over.values()))

    def job(self, revision: str, image: str) -> Job | None:
        """What pods of a revision are made from; None when it is gone."""
        found = self._jobs.get((revision, image), self)
        if found is not self:
            return found  # type: ignore[return-value]
        asked = self.wanted.job
        fits = asked is not None and (asked.revision, asked.image) == (revision, image)
        job = asked if fits else stored(self.observed, revision, image)
        self._jobs[revision, image] = job
        return job

    def driver_status(self, attempt: Attempt) -> DriverStatus | None:
        """What the driver of this attempt, which must be the status's own, last said."""
        said = self.observed.driver
        return said if said is not None and said.revision in {"", attempt.revision} else None

    def over(self, since: datetime, seconds: float) -> bool:
        return self.now >= since + timedelta(seconds=seconds)

    @cached_property
    def _jobs(self) -> dict[tuple[str, str], Job | None]:
        return {}

    def _pods(self, prefix: str) -> list[tuple[str, PodFacts]]:
        return self._facts(self.observed.children.pods, prefix)

    def _attempts(self, pods: Mapping[str, Manifest]) -> dict[int, PodFacts]:
        return {int(end): facts for end, facts in self._facts(pods, self.names.driver(0)[:-1]) if end.isdigit()}

    def _facts(self, pods: Mapping[str, Manifest], prefix: str) -> list[tuple[str, PodFacts]]:
        return [(name.removeprefix(prefix), pod_facts(pods[name])) for name in sorted(pods) if name.startswith(prefix)]


def read_status(resource: Manifest) -> Status:
    """The status as it stands in the resource, without what this release does not know or cannot read: another release
    may have written it."""
    data: Any = deepcopy(dict(resource.get("status") or {}))
    while True:
        try:
            return Status.model_validate(data)
        except ValidationError as error:
            # One at a time: what is left out for the first one may have been the cause of the others.
            data = _without(data, error.errors(include_url=False)[0]["loc"])


def _without(data: Any, at: tuple[int | str, ...]) -> Any:
    """The data without the innermost field on the path; entries of lists go whole."""
    inner, parent, last = data, None, None
    for step in at:
        there = (isinstance(inner, dict) and step in inner) or (
            isinstance(inner, list) and isinstance(step, int) and step < len(inner)
        )
        if not there:
            break
        parent, last, inner = inner, step, inner[step]
    if parent is not None:
        del parent[last]
        return data
    return {}
