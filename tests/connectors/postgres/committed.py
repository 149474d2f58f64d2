"""What tests of the Postgres sink do and look at."""

from __future__ import annotations

from typing import Any

import psycopg

from joinery_runtime.connectors.postgres.sink import PostgresSink
from joinery_runtime.connectors.sink import Receipt


def commit(connection: psycopg.Connection, sink: PostgresSink, epoch: int, *receipts: Receipt) -> None:
    with connection.transaction():
        sink.in_transaction(connection, epoch, receipts)
    sink.publish(epoch, receipts)


def content(connection: psycopg.Connection, table: str) -> list[tuple[Any, ...]]:
    return connection.execute(f"SELECT * FROM {table} AS stored ORDER BY stored").fetchall()
