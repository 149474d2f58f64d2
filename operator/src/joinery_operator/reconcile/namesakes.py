"""Jobs of other kinds with the same name: a store keeps states by `namespace/name` alone, so only one of them has it.

The driver of the second one would be refused by the state's signature; but until then it could be told to delete that
state, or to leave it behind. So the older resource has it, and the other one asks for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joinery_operator.observed import Manifest, Observed
from joinery_runtime.job import PostgresStore


def state_taken(observed: Observed, store: PostgresStore | None) -> str | None:
    """What to tell a job whose state in that store is another resource's; None: it is its own."""
    if store is None:
        return None
    mine = observed.resource
    for other in observed.namesakes:
        if _age(other) < _age(mine) and _place(other) == _where(store.model_dump(by_alias=True)):
            name = f"{mine['metadata']['namespace']}/{mine['metadata']['name']}"
            return (
                f"{other['kind']} {name} is older and keeps its state in the same Postgres and schema, where a state "
                "is found by namespace and name alone: give one of the two jobs another name, or another "
                "spec.stateStore.postgres.schema"
            )
    return None


def _age(resource: Manifest) -> tuple[str, str]:
    """Less for the older one. Two of the same second are told apart by their kinds."""
    return resource["metadata"].get("creationTimestamp", ""), resource["kind"]


def _place(resource: Manifest) -> tuple[object, ...] | None:
    """Of a resource as it was written, valid or not; None: its state is in no Postgres."""
    found: Any = resource
    for step in ("spec", "stateStore", "postgres"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return _where(found) if isinstance(found, Mapping) else None


def _where(store: Mapping[str, Any]) -> tuple[object, ...]:
    ref = store.get("dsnSecretRef")
    secret = (ref.get("name"), ref.get("key")) if isinstance(ref, Mapping) else None
    return store.get("dsn"), secret, store.get("schema", PostgresStore.model_fields["schema_name"].default)
