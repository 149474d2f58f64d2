"""What all connections to Postgres that are kept open have: how soon it shows that their server has gone."""

from __future__ import annotations

import select
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

CONNECTION_DEFAULTS: dict[str, Any] = {
    "application_name": "joinery",
    "connect_timeout": 10,  # seconds
    # A server that vanished without a word is noticed within half a minute.
    "keepalives_idle": 15,  # seconds
    "keepalives_interval": 5,  # seconds
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # milliseconds
}
"""What a DSN that is silent about it gets."""


def is_stale(connection: psycopg.Connection[Any]) -> bool:
    """Whether the server has ended an idle connection, as a restart does: it has said so, and nobody has read that yet.
    Of a server that vanished without a word the next statement tells."""
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
