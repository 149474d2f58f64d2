"""Guarded Postgres connections: opened on demand, reopened after a loss, with our own errors in place of psycopg's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg

from joinery_runtime.connectors.postgres.client import (
    CATALOG_ONLY,
    connect,
    error_advice,
    is_stale,
    is_unavailable,
    parse_dsn,
)
from joinery_runtime.errors import StateError, StoreUnavailable

Connection = psycopg.Connection[tuple[Any, ...]]

# A frozen driver must not lock the job's row for ever, and its successor must not wait for ever. LOCAL: behind a pooler
# the next transaction may run on another server connection, and another client may get this one.
_PATIENCE = f"SET LOCAL idle_in_transaction_session_timeout = '60s'; SET LOCAL lock_timeout = '90s'; {CATALOG_ONLY}"


class GuardedConnection:
    """One connection, used by one thread of the process at a time. Sessions may nest. `prepare` runs on the connection
    each time it is opened, until it has succeeded once.

    Nothing outlives a transaction on the server (no prepared statement, setting, temporary table or advisory lock), so
    a pooler in transaction mode may sit in between.
    """

    def __init__(self, dsn: str, prepare: Callable[[Connection], None] | None = None) -> None:
        try:
            self._parameters = parse_dsn(dsn)
        except psycopg.Error:
            raise _bad_dsn("it is neither a postgresql:// address nor a list of key=value pairs") from None
        if any("@" in str(self._parameters.get(name, "")) for name in ("host", "port", "dbname")):
            raise _bad_dsn("there is an @ after the host's place")
        self._prepare = prepare
        self._lock = threading.RLock()
        self._connection: Connection | None = None

    @property
    def location(self) -> str:
        """Host, port and database for messages; never the password."""
        return describe(self._parameters)

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """Yield the connection in autocommit mode. Raises StoreUnavailable, or StateError if Postgres rejects a
        statement."""
        with self._lock:
            try:
                yield self._open_connection()
            except psycopg.Error as error:
                if is_unavailable(error):
                    self.close()
                raise self._translate_error(error) from error

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield the connection in a READ COMMITTED transaction that ends with the block."""
        with self.session() as connection, connection.transaction():
            connection.execute(_PATIENCE)
            yield connection

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _open_connection(self) -> Connection:
        if self._connection is not None and is_stale(self._connection):
            self.close()
        if self._connection is None:
            connection = connect(self._parameters, autocommit=True)
            # Locking a row before reading relies on this level, whatever the database's default is.
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            if self._prepare is not None:
                try:
                    self._prepare(connection)
                except BaseException:
                    connection.close()
                    raise
                self._prepare = None
            self._connection = connection
        return self._connection

    def _translate_error(self, error: psycopg.Error) -> StateError:
        reason = " ".join(str(error).split())
        todo = error_advice(error, "Check the role's privileges, and that nobody altered the schema by hand")
        if is_unavailable(error):
            summary = f"The state store is not available ({self.location})"
            return StoreUnavailable(summary, facts=reason, todo=f"{todo}. Nothing committed is lost")
        rejected = "a statement" if error.sqlstate is not None or self._connection is not None else "the connection"
        return StateError(f"The state store rejected {rejected} ({self.location})", facts=reason, todo=todo)


class GuardedConnections:
    """A pool that grows to as many connections as there are threads in a session at once. A nested session reuses the
    connection of the outer one. Each connection runs `prepare` when it is opened, until it has succeeded once."""

    def __init__(self, dsn: str, prepare: Callable[[Connection], None] | None = None) -> None:
        self._new = partial(GuardedConnection, dsn, prepare)
        self._idle = [self._new()]  # reports a DSN that cannot be parsed now, not at the first session
        self.location = self._idle[0].location
        self._thread = threading.local()

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """Like `GuardedConnection.session`."""
        with self._borrow_connection() as guarded, guarded.session() as connection:
            yield connection

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Like `GuardedConnection.transaction`."""
        with self._borrow_connection() as guarded, guarded.transaction() as connection:
            yield connection

    def close(self) -> None:
        """Close the connections that no session is using."""
        for guarded in self._idle:
            guarded.close()

    @contextmanager
    def _borrow_connection(self) -> Iterator[GuardedConnection]:
        current: GuardedConnection | None = getattr(self._thread, "connection", None)
        if current is not None:
            yield current
            return
        try:
            current = self._idle.pop()
        except IndexError:
            current = self._new()
        self._thread.connection = current
        try:
            yield current
        finally:
            self._thread.connection = None
            self._idle.append(current)


def describe(parameters: dict[str, Any]) -> str:
    host = parameters.get("host") or parameters.get("hostaddr") or os.environ.get("PGHOST", "the default socket")
    port = parameters.get("port") or os.environ.get("PGPORT", "5432")
    database = parameters.get("dbname") or parameters.get("user") or os.environ.get("PGDATABASE", "the default one")
    return f"host {host}, port {port}, database {database}"


def _bad_dsn(facts: str) -> StateError:
    return StateError(
        "The state store's DSN cannot be read",
        facts=facts,
        todo="Write postgresql://user:password@host:5432/database, with @ : / % in the password percent-encoded",
    )
