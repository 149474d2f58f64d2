"""`joinery state orphans`: the states in a database, and which of them no resource of a cluster uses.

The cluster's resources come as a file, so that this needs no access to a cluster, and works without one for what the
database alone can tell. It changes nothing, not even the version of the tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from joinery_runtime.engine.job_state import live_segments
from joinery_runtime.errors import JoineryError, StateError, StoreUnavailable
from joinery_runtime.job import format_time
from joinery_runtime.job.model.owner import RecordedOwner, StateOwner
from joinery_runtime.job.model.wording import counted, size_text
from joinery_runtime.state.postgres import ReadOnlyStore
from joinery_runtime.state.store import JobRecord

DSN_VARIABLE = "JOINERY_STATE_DSN"
"""The variable for the database's DSN: on the command line, a list of processes would show its password."""
LIST_COMMAND = "kubectl get streamjoins,sessionwindows -A -o json"
CLUSTER_COMMAND = "kubectl get namespace kube-system -o jsonpath={.metadata.uid}"

Verdict = Literal["orphan", "used", "unknown"]


@dataclass(frozen=True, slots=True)
class ClusterResources:
    """All jobs of a cluster, as owners of states. `clusters` are the names under which state stores may know the
    cluster."""

    owners: tuple[StateOwner, ...]
    clusters: frozenset[str]

    def judge(self, job: str, recorded: RecordedOwner | None) -> tuple[Verdict, str]:
        """Whether a resource uses the state of this job, and why."""
        names = {(owner.kind, f"{owner.namespace}/{owner.name}") for owner in self.owners}
        if recorded is None:
            if job in {name for _, name in names}:
                return "used", "a resource has its name; no owner is on record"
            reason = "no resource has its name; no owner is on record, so another cluster or `joinery run` may use it"
            return "unknown", reason
        owner = recorded.owner
        if owner.uid and owner.uid in {resource.uid for resource in self.owners}:
            return "used", f"it belongs to {owner}"
        if not owner.cluster:
            return "unknown", f"it belongs to {owner}"
        if owner.cluster not in self.clusters:
            reason = "another cluster" if self.clusters else f"perhaps this one; give --cluster $({CLUSTER_COMMAND})"
            return "unknown", f"it belongs to {owner}: {reason}"
        if (owner.kind, f"{owner.namespace}/{owner.name}") in names:
            return "used", f"a resource of this name was created after {owner}, and takes it over at its start"
        return "orphan", f"{owner} was deleted"


@dataclass(frozen=True, slots=True)
class JudgedState:
    """A state, and whether a resource uses it. `owner` is the id of its owner (`RecordedOwner.id`); `rows` and `bytes`
    are those of its live segments, `written_at` is in milliseconds."""

    job: str
    verdict: Verdict
    reason: str
    owner: str | None
    rows: int
    bytes: int
    written_at: int

    def line(self) -> str:
        size = f"{counted(self.rows, 'row')}, {size_text(self.bytes)}"
        return f"{self.verdict}: {self.job} ({size}, last written {format_time(self.written_at)}): {self.reason}"


@dataclass(frozen=True, slots=True)
class StateListing:
    """The states of one store. `resources` is how many resources they were compared with; None: none were given."""

    location: str
    states: Sequence[JudgedState]
    resources: int | None

    def document(self) -> Mapping[str, Any]:
        return asdict(self)

    def lines(self) -> Iterator[str]:
        number = counted(len(self.states), "state")
        if self.resources is None:
            command = f"{LIST_COMMAND} | joinery state orphans --resources /dev/stdin"
            yield f"{number} in {self.location}. To compare them with a cluster: {command}"
        else:
            yield f"{number} in {self.location}, compared with {counted(self.resources, 'resource')}"
        yield from (state.line() for state in self.states)
        if any(state.verdict == "orphan" for state in self.states):
            yield (
                "To delete the state of an orphan: joinery state delete JOB.yaml --yes, with its namespace and name in "
                "the file's metadata, and this store in its stateStore"
            )


def list_states(dsn: str, schema: str, owners: Sequence[StateOwner] | None, cluster: str | None) -> StateListing:
    """Compare the states in a database with a cluster's resources. Without `cluster`, the cluster is that of each
    state whose owner is among the resources. Raises JoineryError."""
    with closing(ReadOnlyStore(dsn, schema)) as store:
        if not store.schema_version():
            todo = "Name the database and the schema that stateStore.postgres of the jobs names"
            raise JoineryError("There is no state store", facts=store.location, todo=todo)
        written = store.jobs_written()
        records: dict[str, JobRecord | StateError | None] = {}  # None: the state was deleted just now
        for job in written:
            try:
                records[job] = store.record(job)
            except StoreUnavailable:
                raise
            except StateError as error:  # the state is being moved
                records[job] = error
    resources = None
    if owners is not None:
        uids = {owner.uid for owner in owners}
        recorded = [record.owner for record in records.values() if isinstance(record, JobRecord) and record.owner]
        seen = {owner.owner.cluster for owner in recorded if owner.owner.uid in uids}
        resources = ClusterResources(tuple(owners), frozenset({cluster} if cluster else seen))
    states = []
    for job, record in records.items():
        if isinstance(record, StateError):
            states.append(JudgedState(job, "unknown", str(record), None, 0, 0, written[job]))
        elif record is not None:
            owner, segments = record.owner, live_segments(record)
            verdict: Verdict = "unknown"
            if resources is not None:
                verdict, reason = resources.judge(job, owner)
            else:
                reason = "no owner is on record" if owner is None else f"it belongs to {owner.owner}"
            rows, size = sum(segment.rows for segment in segments), sum(segment.bytes for segment in segments)
            owner_id = None if owner is None else owner.id
            states.append(JudgedState(job, verdict, reason, owner_id, rows, size, written[job]))
    states.sort(key=lambda state: (state.verdict, state.job))
    return StateListing(store.location, states, None if owners is None else len(owners))


def read_resources(path: Path) -> list[StateOwner]:
    """Read the resources that LIST_COMMAND has printed into a file. Raises JoineryError."""
    try:
        text = path.read_text(encoding="utf-8")
        return [
            StateOwner(
                kind=resource["kind"],
                namespace=resource["metadata"]["namespace"],
                name=resource["metadata"]["name"],
                uid=resource["metadata"]["uid"],
            )
            for resource in json.loads(text)["items"]
        ]
    except OSError as error:
        raise JoineryError(f"{path} cannot be read", facts=error.strerror or str(error)) from error
    except (ValueError, KeyError, TypeError) as error:
        facts = f"{type(error).__name__}: {error}"
        raise JoineryError(
            f"{path} is no list of resources", facts=facts, todo=f"Make it with: {LIST_COMMAND}"
        ) from error
