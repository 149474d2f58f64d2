"""Opens the state store that a job names, or an embedded Postgres. Tells where tasks find it, and for whom this process
works on the state: in an operator's pod for its resource, elsewhere for `joinery run`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from joinery_runtime.errors import StateError
from joinery_runtime.job import Job
from joinery_runtime.job.model.owner import STATE_OWNER, OwnerCandidate, check_candidate
from joinery_runtime.state.embedded import embedded_directory, embedded_postgres
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.store import JobReader, StateStore

EMBEDDED_SCHEMA = "joinery"
"""The schema of an embedded Postgres that holds the state."""

MEMORY_WARNING = (
    "stateStore is memory: ALL STATE AND OFFSETS ARE LOST when this job stops, and rows may repeat or be missed after "
    "that. Use it for trying things out only"
)


@dataclass(frozen=True, slots=True)
class PostgresStoreAddress:
    """The Postgres in which tasks find the store."""

    dsn: str = field(repr=False)
    schema: str

    def connect(self) -> PostgresStore:
        return PostgresStore(self.dsn, self.schema)


@dataclass(frozen=True, slots=True)
class OpenStore:
    """The driver's store, and the address at which tasks find it; None: it is in the driver's memory."""

    store: StateStore
    address: PostgresStoreAddress | None


def store_address(job: Job) -> PostgresStoreAddress:
    """Return the address of the Postgres that a job names, after its secrets were filled in."""
    postgres = job.spec.state_store.postgres
    assert postgres is not None
    assert postgres.dsn is not None, "with_secrets fills it in"
    return PostgresStoreAddress(postgres.dsn, postgres.schema_name)


@contextmanager
def open_store(job: Job, warn: Callable[[str], None]) -> Iterator[OpenStore]:
    """Yield the job's store once it has answered. Raises StateError if it does not answer, without a retry."""
    spec = job.spec.state_store
    match spec.kind:
        case "memory":
            warn(MEMORY_WARNING)
            yield OpenStore(MemoryStore(), None)
        case "postgres":
            with _open_postgres(job, store_address(job), warn) as opened:
                yield opened
        case "embedded":
            with (
                embedded_postgres(embedded_directory()) as dsn,
                _open_postgres(job, PostgresStoreAddress(dsn, EMBEDDED_SCHEMA), warn) as opened,
            ):
                yield opened
        case unknown:
            raise StateError(
                f"Nothing opens the state store {unknown} of job {job.name}",
                todo=f"Name {' or '.join(spec.KINDS)} under stateStore, or nothing for an embedded Postgres",
            )


@contextmanager
def _open_postgres(job: Job, address: PostgresStoreAddress, warn: Callable[[str], None]) -> Iterator[OpenStore]:
    named = job.spec.state_store.postgres
    retention = None if named is None else named.epoch_log_retention
    store = PostgresStore(address.dsn, address.schema, log_retention_ms=retention)
    try:
        store.record(job.name)
        if (warning := store.durability_warning()) is not None:
            warn(warning)
        yield OpenStore(store, address)
    finally:
        store.close()


def candidate_of(job: Job) -> OwnerCandidate | None:
    """Who asks for the state when the job runs here; None in a pod of an operator that names no owners yet: its next
    release does."""
    if (candidate := operator_candidate()) is not None:
        return candidate
    in_a_pod_of_an_operator = bool(os.environ.get("JOINERY_REVISION"))
    return None if in_a_pod_of_an_operator else OwnerCandidate(replaces=job.metadata.replaces_owner)


def operator_candidate() -> OwnerCandidate | None:
    """Return the resource for which an operator has started this process; None if a person did."""
    text = os.environ.get(STATE_OWNER)
    return OwnerCandidate.model_validate_json(text) if text else None


def require_own_state(store: JobReader, job: str) -> None:
    """Raise StateTaken if an operator has started this command for a resource to which the state does not belong. What
    a person does is never rejected: the state may have lost its owner."""
    candidate, record = operator_candidate(), store.record(job)
    if candidate is not None and record is not None:
        check_candidate(job, record.owner, candidate)
