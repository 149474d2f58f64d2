"""Who a stored state belongs to, and who asks for it. One resource of one cluster owns a state, so that two clusters
with the same jobs and the same Postgres do not take it from each other in turns."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from joinery_runtime.errors import StateTaken
from joinery_runtime.job.model.base import Model

REPLACES_OWNER = "joinery.dev/replacesOwner"
"""The annotation of a resource that takes a state from another owner: `RecordedOwner.id`."""

STATE_OWNER = "JOINERY_STATE_OWNER"
"""The environment variable in which an operator's pods find their `OwnerCandidate`. Without it, `joinery run` asks."""


class _Stored(Model):
    # Another release may have written more.
    model_config = ConfigDict(alias_generator=to_camel, frozen=True, extra="ignore")


class StateOwner(_Stored):
    """A resource. Without a cluster: `joinery run`, on whatever machine, because a restart may be on another one.
    `cluster` is the uid of the cluster's namespace kube-system."""

    cluster: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""

    def __str__(self) -> str:
        if not self.cluster:
            return "`joinery run`, outside of an operator"
        return f"{self.kind} {self.namespace}/{self.name} (uid {self.uid}) of cluster {self.cluster}"


class RecordedOwner(_Stored):
    """The owner of a state as a store has it. `since` is the generation at which it took the state."""

    owner: StateOwner
    since: Annotated[int, Field(ge=0)]

    @property
    def id(self) -> str:
        """Names this owner until another one takes the state: what replaced it once does not replace it again."""
        owner = self.owner
        path = "/".join((owner.cluster, owner.namespace, owner.name, owner.uid)) if owner.cluster else "joinery-run"
        return f"{path}@{self.since}"


class OwnerCandidate(_Stored):
    """Who asks for a state. `replaces` is the id of the owner from which it may take the state."""

    owner: StateOwner = StateOwner()
    replaces: str = ""


def check_candidate(job: str, recorded: RecordedOwner | None, candidate: OwnerCandidate) -> None:
    """Raise StateTaken unless the candidate may have the state: it has no owner, is its own, or that of an earlier
    resource of its name; or the candidate names the owner that it replaces."""
    own = candidate.owner
    if recorded is None or recorded.owner == own or candidate.replaces == recorded.id:
        return
    # A cluster has one resource of a kind and a name at a time, so one with another uid was deleted.
    if own.cluster and _name(recorded.owner) == _name(own):
        return
    named = f"; {REPLACES_OWNER} names {candidate.replaces}" if candidate.replaces else ""
    annotate = (
        f"kubectl annotate {own.kind.lower()} {own.name} -n {own.namespace} --overwrite {REPLACES_OWNER}={recorded.id}"
        if own.cluster
        else f"write {REPLACES_OWNER}: {recorded.id} into metadata.annotations of the file"
    )
    raise StateTaken(
        f"The state of job {job} belongs to {recorded.owner}, since generation {recorded.since}",
        facts=f"this is {own}{named}",
        todo="Give this job another name, or another schema in stateStore.postgres. To take the state from that owner, "
        f"stop its job, then {annotate}",
    )


def _name(owner: StateOwner) -> tuple[str, ...]:
    return owner.cluster, owner.kind, owner.namespace, owner.name
