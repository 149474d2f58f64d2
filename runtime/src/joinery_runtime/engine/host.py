"""The port between the engine and what runs its tasks: one process, or Spark."""

from __future__ import annotations

from typing import Protocol

from joinery_runtime.engine.messages import EpochOutcome, EpochWork


class Host(Protocol):
    def run(self, work: EpochWork) -> EpochOutcome:
        """Runs all tasks of one epoch. Raises the JoineryError of a task; may rerun tasks, as Spark does."""
        ...
