"""What all users of Postgres share: how connections are opened, and what an error means.

By its SQLSTATE an error says whether waiting may mend it, and what to do about it. psycopg's classes do not say: its
OperationalError covers an unavailable server as well as a value that an index does not take, and a standby that takes
no writes is an InternalError.
"""

from __future__ import annotations

import re
import select
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

CONNECTION_DEFAULTS: dict[str, Any] = {
    "application_name": "joinery",
    "connect_timeout": 10,  # seconds
    # A server that vanished silently is noticed within half a minute.
    "keepalives_idle": 15,  # seconds
    "keepalives_interval": 5,  # seconds
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds
}
"""Defaults for settings that the DSN does not mention."""

CATALOG_ONLY = "SET LOCAL search_path TO pg_catalog, pg_temp"
"""In a transaction: names without a schema are Postgres's own, whoever made others of the same name. Our statements
name the schema of everything else, and, as most run outside of transactions, of functions too."""
OWN_PATH = "SET LOCAL search_path TO DEFAULT"

NAME_BYTES = 63
_ENCODING = "UTF8"

_UNREACHABLE = "Check that Postgres runs and can be reached from here"
_POOLED = "A pooler in transaction mode, or a failover, changed the server under the connection; it is opened again"
_RECODED = (
    "Create a database with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0 and name it in the DSN; pg_dump and "
    "pg_restore take along what is in the old one"
)

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
    "53300": "Raise max_connections, or a limit of the role or database, or use a pooler (docs/state.md#connections)",
    "55": "Another transaction is in the way, or the server is being maintained",
    "57": _UNREACHABLE,
    "57P03": "The server is starting up, shutting down or recovering: its log says what it waits for",
    "57014": "Somebody cancelled the statement, or statement_timeout of the role is too short",
    "58": "Look at the server's log and its disk",
}
_FINAL = {
    "28": "Check the role, its right to log in and its password, and pg_hba.conf",
    "3D000": "Create the database, or name another one",
    "54": "A row or a key has more bytes or columns than Postgres takes: select fewer or shorter columns",
    "54000": "A key is longer than an index takes: name shorter columns in upsertKey; of sessions, session_id",
    "54011": "Postgres takes at most 1,600 columns in a table: select fewer",
    "57P04": "The database was dropped: restore it, or name another one",
}
# Of a connection that is not made libpq gives the text of the server, or of pgbouncer, without its SQLSTATE. A text in
# another language than English is taken for an unavailable server.
_CODES = {
    r"authentication failed|no password supplied": "28P01",
    r"no pg_hba\.conf entry|is not permitted to log in": "28000",
    r'FATAL:  role ".*" does not exist|no such user': "28000",
    r'FATAL:  database ".*" does not exist|no such database': "3D000",
    r"permission denied for database": "42501",
    r"unrecognized configuration parameter": "42704",
    r"too many clients already|remaining connection slots|too many connections for": "53300",
    r"no more connections allowed": "53300",
    r"is not currently accepting connections": "55000",
    r"the database system is": "57P03",
}
# What is settled before the server is asked to let the role in.
_UNSECURED = re.compile(
    r"certificate verify failed|server certificate for .* does not match|certificate file .* does not exist"
    r"|server does not support SSL"
)
_UNTAKEN = re.compile(r"unsupported startup parameter")  # pgbouncer


class UnsuitableEncoding(psycopg.NotSupportedError):
    """The database stores text in another encoding than UTF-8."""


def connect(
    dsn: str | Mapping[str, Any], *, application_name: str = "joinery", autocommit: bool = False
) -> psycopg.Connection[Any]:
    """Open a connection on which text is UTF-8, whatever the DSN and the environment (PGCLIENTENCODING) say, because
    rows travel as UTF-8 bytes. Raises psycopg.Error; UnsuitableEncoding if the database cannot store all of Unicode."""
    parameters = parse_dsn(dsn) if isinstance(dsn, str) else dsn
    for setting in ("user", "dbname"):
        check_name(f"{setting} of the DSN", str(parameters.get(setting) or ""))
    defaults = CONNECTION_DEFAULTS | {"application_name": application_name}
    address = make_conninfo(**(defaults | dict(parameters) | {"client_encoding": _ENCODING}))
    # A prepared statement would outlive its transaction, and a pooler hands the server to other clients after that.
    connection: psycopg.Connection[Any] = psycopg.connect(  # noqa: TID251
        address, autocommit=autocommit, prepare_threshold=None
    )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != _ENCODING:
        database = connection.info.dbname
        connection.close()
        raise UnsuitableEncoding(f"the database {database} has the encoding {encoding}; Joinery needs {_ENCODING}")
    return connection


def check_name(subject: str, name: str) -> None:
    """Raise psycopg.ProgrammingError if a name is so long that Postgres would cut it, and take another one's place."""
    if (size := len(name.encode())) > NAME_BYTES:
        raise psycopg.ProgrammingError(
            f"{subject} has {size} bytes, and Postgres cuts names after {NAME_BYTES}: {name!r}"
        )


def parse_dsn(dsn: str) -> dict[str, Any]:
    """Return the settings of a DSN. Raises psycopg.ProgrammingError without libpq's message, which may quote the
    password."""
    try:
        return dict(conninfo_to_dict(dsn))
    except psycopg.Error:
        raise psycopg.ProgrammingError(
            "the DSN is neither a postgresql:// address nor a list of key=value pairs"
        ) from None


def create_schema(connection: psycopg.Connection[Any], name: str) -> None:
    """Create the schema if it is missing. A role that may not create schemas can use one that is there: Postgres would
    deny it CREATE SCHEMA IF NOT EXISTS too."""
    if connection.execute("SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s", (name,)).rowcount == 0:
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(name)))


def is_stale(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the server has ended an idle connection, as a restart does. Its notice is then waiting to be read.
    If the server vanished silently, only the next statement shows it."""
    server = connection.pgconn
    try:
        while (
            connection.info.transaction_status is TransactionStatus.IDLE
            and select.select([server.socket], [], [], 0)[0]
        ):
            server.consume_input()
    except (psycopg.OperationalError, OSError, ValueError):
        return True
    return connection.closed


def is_unavailable(error: psycopg.Error) -> bool:
    """Return whether waiting may help; the connection has to be opened again then."""
    code = _error_code(error)
    if code is None:
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return lost and not (_UNSECURED.search(str(error)) or _UNTAKEN.search(str(error)))
    return _look_up(code, _FINAL) is None and _look_up(code, _AWAY) is not None


def error_advice(error: psycopg.Error, otherwise: str) -> str:
    """Return what to do about the error; `otherwise` for a statement that Postgres rejects."""
    code = _error_code(error)
    if code is not None:
        return _look_up(code, _FINAL) or _look_up(code, _AWAY) or otherwise
    if is_unavailable(error):
        return _UNREACHABLE
    if isinstance(error, UnsuitableEncoding):
        return _RECODED
    return "Check sslmode and the certificates of the DSN" if _UNSECURED.search(str(error)) else "Check the DSN"


def _error_code(error: psycopg.Error) -> str | None:
    if error.sqlstate is not None or not isinstance(error, psycopg.OperationalError):
        return error.sqlstate
    return next((code for text, code in _CODES.items() if re.search(text, str(error))), None)


def _look_up(code: str, table: dict[str, str]) -> str | None:
    return table.get(code) or table.get(code[:2])
