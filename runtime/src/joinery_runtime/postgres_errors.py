"""What an error of Postgres means, by its SQLSTATE: whether waiting may mend it, and what to do about it.

psycopg's classes do not say: its OperationalError holds a server that is away as well as a value that an index does not
take, and a standby that takes no writes is an InternalError.
"""

from __future__ import annotations

import psycopg

_UNREACHABLE = "Check that Postgres runs and can be reached from here"
_POOLED = "A pooler in transaction mode, or a failover, changed the server under the connection; it is opened anew"

# Codes and classes (two characters) that waiting may mend; the longest match counts.
_AWAY = {
    "08": _UNREACHABLE,  # the connection broke
    "25006": "This server takes no writes: a standby, as after a failover. Name the primary, or several hosts and "
    "target_session_attrs=read-write",
    "25P03": "A transaction was idle for longer than idle_in_transaction_session_timeout",
    "25P04": "Raise transaction_timeout for the role",
    "26000": _POOLED,  # no such prepared statement
    "40": "Another transaction was in the way",
    "42P05": _POOLED,  # there is such a prepared statement already
    "53": "Give the server more resources",
    "53100": "Give the server's disk more room",
    "53200": "Give the server more memory",
    "53300": "Raise max_connections, or use a pooler (docs/state.md#connections)",
    "55": "Another transaction is in the way, or the server is being maintained",
    "57": _UNREACHABLE,
    "57014": "Somebody cancelled the statement, or statement_timeout of the role is too short",
    "58": "Look at the server's log and its disk",
}
_FINAL = {
    "54": "A row or a key has more bytes or columns than Postgres takes: select fewer or shorter columns",
    "54000": "A key is longer than an index takes: name shorter columns in upsertKey; of sessions, session_id",
    "54011": "Postgres takes at most 1,600 columns in a table: select fewer",
    "57P04": "The database was dropped: restore it, or name another one",
}
# A connection that is refused has no SQLSTATE, only libpq's text.
_REFUSED = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "certificate verify failed",
    "unsupported startup parameter",
)
_NOT_THERE = ("database", "role")


def is_away(error: psycopg.Error) -> bool:
    """Whether waiting may mend it; the connection has to be opened anew then."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not _refused(error)
    return _found(error.sqlstate, _FINAL) is None and _found(error.sqlstate, _AWAY) is not None


def advice(error: psycopg.Error, otherwise: str) -> str:
    """What to do about it; `otherwise` for what Postgres simply refuses."""
    if error.sqlstate is None:
        return _UNREACHABLE if is_away(error) else "Check the DSN, the role and its password, and pg_hba.conf"
    return _found(error.sqlstate, _FINAL) or _found(error.sqlstate, _AWAY) or otherwise


def _found(code: str, table: dict[str, str]) -> str | None:
    return table.get(code) or table.get(code[:2])


def _refused(error: psycopg.Error) -> bool:
    text = str(error)
    missing = any(f'FATAL:  {what} "' in text for what in _NOT_THERE) and "does not exist" in text
    return missing or any(words in text for words in _REFUSED)
