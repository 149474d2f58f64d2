"""Which errors of Postgres are waited for, by SQLSTATE, and what is advised."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from joinery_runtime.connectors.postgres.client import error_advice, is_unavailable
from joinery_runtime.errors import JoineryError

AWAY = {
    "08006": "can be reached",
    "08P01": "can be reached",  # pgbouncer's own, too
    "25006": "target_session_attrs=read-write",
    "25P03": "idle_in_transaction_session_timeout",
    "25P04": "transaction_timeout",
    "26000": "pooler",
    "42P05": "pooler",
    "40001": "Another transaction",
    "40P01": "Another transaction",
    "53000": "resources",
    "53100": "disk more room",
    "53200": "memory",
    "53300": "max_connections",
    "55000": "maintained",
    "55P03": "in the way",
    "57014": "statement_timeout",
    "57P01": "can be reached",
    "57P02": "can be reached",
    "57P03": "starting up",
    "57P05": "can be reached",
    "58030": "log and its disk",
}
FINAL = {
    "22003": "otherwise",
    "23505": "otherwise",
    "28000": "log in",
    "28P01": "password",
    "3D000": "Create the database",
    "42501": "otherwise",
    "42P01": "otherwise",
    "42804": "otherwise",
    "54000": "name shorter columns",
    "54001": "select fewer",
    "54011": "1,600 columns",
    "57P04": "dropped",
    "XX000": "otherwise",
}


def error_of(code: str) -> psycopg.Error:
    """Also one that psycopg has no class of its own for."""
    try:
        return errors.lookup(code)("refused")
    except KeyError:
        return type("Unknown", (psycopg.DatabaseError,), {"sqlstate": code})("refused")


@pytest.mark.parametrize("code", [*AWAY, *FINAL])
def test_by_sqlstate(code: str) -> None:
    error = error_of(code)
    assert error.sqlstate == code
    assert is_unavailable(error) == (code in AWAY)
    assert (AWAY | FINAL)[code] in error_advice(error, "otherwise")


@pytest.mark.parametrize(
    ("text", "unreachable", "todo"),
    [
        ('connection to server at "127.0.0.1", port 1 failed: Connection refused', True, "can be reached"),
        ("server closed the connection unexpectedly", True, "can be reached"),
        ("connection timeout expired", True, "can be reached"),
        ("failed to resolve host 'db'", True, "can be reached"),
        ("FATAL:  the database system is starting up", True, "starting up"),
        ("FATAL:  the database system is not yet accepting connections", True, "starting up"),
        ('FATAL:  database "prod" is not currently accepting connections', True, "maintained"),
        ("FATAL:  sorry, too many clients already", True, "max_connections"),
        ("FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute", True, "a pooler"),
        ('FATAL:  too many connections for role "me"', True, "max_connections"),
        ("FATAL:  no more connections allowed (max_client_conn)", True, "max_connections"),
        ('FATAL:  password authentication failed for user "me"', False, "password"),
        ("fe_sendauth: no password supplied", False, "password"),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1"', False, "pg_hba.conf"),
        ('FATAL:  role "me" is not permitted to log in', False, "right to log in"),
        ('FATAL:  database "prod" does not exist', False, "Create the database"),
        ('FATAL:  role "me" does not exist', False, "Check the role"),
        ('FATAL:  permission denied for database "prod"', False, "otherwise"),
        ('FATAL:  unrecognized configuration parameter "foo"', False, "otherwise"),
        ("FATAL:  unsupported startup parameter: extra_float_digits", False, "Check the DSN"),
        ("SSL error: certificate verify failed", False, "sslmode"),
        ('root certificate file "/root/.postgresql/root.crt" does not exist', False, "sslmode"),
        ('server certificate for "db" does not match host name "10.0.0.1"', False, "sslmode"),
        ("server does not support SSL, but SSL was required", False, "sslmode"),
    ],
)
def test_a_connection_that_is_not_made_has_no_sqlstate(text: str, unreachable: bool, todo: str) -> None:
    error = psycopg.OperationalError(f'connection failed: connection to server at "10.0.0.1", port 5432 failed: {text}')
    assert is_unavailable(error) == unreachable
    assert todo in error_advice(error, "otherwise")


def test_errors_of_data_without_a_code_are_final() -> None:
    assert not is_unavailable(psycopg.DataError("a NUL in a text"))


def test_what_a_server_asks_stays_a_question() -> None:
    """libpq's words end with one: `Is the server running on that host and accepting TCP/IP connections?`."""
    error = JoineryError("The store is away", facts="Is the server running?", todo="Check that it runs")
    assert str(error) == "The store is away: Is the server running? Check that it runs"
    assert str(JoineryError("It is away", todo="Check that it runs")) == "It is away. Check that it runs"
