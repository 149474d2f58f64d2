"""Who a job is to the state store, and whether it fits what is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from joinery_runtime.errors import IncompatibleState
from joinery_runtime.job import compare, same_rows
from joinery_runtime.state.store import JobRecord


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """Who the job is to the state store: its name, the signature that its state must fit (rule M2), and its definition:
    what decides the rows of an epoch and where they go, so that a plan is replayed under the job that made it."""

    name: str
    signature: Mapping[str, Any]
    definition: Mapping[str, Any]
    stateful_warning: Callable[[str], None] = field(default=lambda _: None)

    def defines(self, record: JobRecord) -> bool:
        """Whether the record's plan and newest epoch were made under this definition."""
        return record.definition is None or same_rows(record.definition, self.definition)


def compare_with_state(identity: JobIdentity, record: JobRecord) -> tuple[str, ...]:
    """Warnings about a job that goes on with the state of another; raises IncompatibleState if it cannot (M2)."""
    if record.signature is None:
        return ()
    comparison = compare(record.signature, identity.signature)
    if comparison.refused:
        raise IncompatibleState(
            f"the state of job {identity.name} does not fit the job as it is now",
            facts="; ".join(comparison.refused),
            todo="Undo the change. To start anew, without the state, give the job another name; under the operator "
            "upgrade.mode: stateless does it too",
        )
    return comparison.warnings
