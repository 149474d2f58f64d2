"""A look at a job's state that changes nothing: no generation is taken, and an older schema stays as it is."""

from __future__ import annotations

from joinery_runtime.state.ddl import ensure_schema
from joinery_runtime.state.postgres import PostgresStore
from joinery_runtime.state.store import JobRecord


class ReadingStore(PostgresStore):
    """For `record` and `read_segments`, beside a driver of an earlier release: that one could not start again after
    its schema was upgraded. What an upgrade would make of the record is found out and rolled back."""

    def record(self, job: str) -> JobRecord | None:
        with self._connection.session() as connection, connection.transaction(force_rollback=True):
            ensure_schema(connection, self.schema)
            return self._found(connection, job)

    def _ensure_schema(self) -> None:
        """The tables that hold segments are read as they are."""
