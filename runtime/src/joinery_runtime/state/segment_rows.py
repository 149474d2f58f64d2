"""The rows of a job's segments in Postgres: staged, read, marked, rewritten and removed.

Everything here runs on a connection, and in a transaction, that `postgres` holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

import psycopg
from psycopg.types.json import Jsonb

from joinery_runtime.state import decisions, statements
from joinery_runtime.state.batching import BATCH, by_bytes
from joinery_runtime.state.connection import Connection
from joinery_runtime.state.decisions import JobFacts, SegmentFacts, Status
from joinery_runtime.state.encoding import meta_from_json, meta_to_json
from joinery_runtime.state.migrations import check_chain, migrate_segment
from joinery_runtime.state.statements import Statements
from joinery_runtime.state.store import Migration, SegmentMeta

_T = TypeVar("_T")


class SegmentRows:
    def __init__(self, sql: Statements) -> None:
        self._sql = sql

    def stage(self, connection: Connection, facts: JobFacts, by_key: Mapping[str, tuple[SegmentMeta, bytes]]) -> None:
        try:
            self._copy(connection, facts, by_key.values())
        except psycopg.errors.UniqueViolation:
            # A repeated call, after an answer that was lost.
            stored = self._stored_equal(connection, facts.job, by_key)
            self._copy(connection, facts, [item for key, item in by_key.items() if key not in stored])

    def read(self, connection: Connection, job: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Blobs of live and of pinned segments; what is not there is left out."""
        found: dict[str, bytes] = {}
        for batch in batches(keys, BATCH):
            rows = self._sql.run(connection, statements.READ, job, keys=encoded(batch), binary=True)
            found |= {key.decode(): blob for key, blob in rows}
        return found

    def mark(self, connection: Connection, job: str, keys: Sequence[str], status: Status) -> None:
        if keys:
            self._sql.run(connection, statements.MARK, job, keys=encoded(keys), status=status.value)

    def migrate(self, connection: Connection, facts: JobFacts, chain: Mapping[int, Migration], target: int) -> int:
        """How many live segments were rewritten. Raises IncompatibleState before any is."""
        versions = self._sql.run(connection, statements.LIVE_VERSIONS, facts.job).fetchall()
        check_chain((version for (version,) in versions), target, chain)
        old = [(key, size) for key, size in self._sql.run(connection, statements.LIVE_BELOW, facts.job, target=target)]
        for batch in by_bytes(old):
            self._migrate_batch(connection, facts, batch, chain, target)
        return len(old)

    def garbage(self, connection: Connection, facts: JobFacts) -> list[bytes]:
        """Keys of what nothing can ever need again."""
        return [
            key
            for key, status, staged_by, epoch, pinned in self._sql.run(connection, statements.NOT_LIVE, facts.job)
            if decisions.sweepable(
                SegmentFacts(Status(status), staged_by, epoch), facts.generation, facts.epoch, pinned=pinned
            )
        ]

    def remove(self, connection: Connection, job: str, keys: list[bytes]) -> int:
        return self._sql.run(connection, statements.REMOVE, job, keys=keys).rowcount

    def _copy(self, connection: Connection, facts: JobFacts, segments: Iterable[tuple[SegmentMeta, bytes]]) -> None:
        staged = (
            (meta, blob, SegmentFacts(Status.STAGED, facts.generation, decisions.staged_epoch(facts, meta)))
            for meta, blob in segments
        )
        self._insert(connection, facts.job, staged)

    def _insert(
        self, connection: Connection, job: str, segments: Iterable[tuple[SegmentMeta, bytes, SegmentFacts]]
    ) -> None:
        with connection.cursor() as cursor, cursor.copy(self._sql[statements.STAGE]) as copy:
            copy.set_types(statements.STAGE_TYPES)
            for meta, blob, facts in segments:
                key, version = meta.key.encode(), meta.state_version
                under = (facts.status.value, facts.generation, facts.epoch)
                copy.write_row((job, key, blob, version, *under, Jsonb(meta_to_json(meta))))

    def _stored_equal(
        self, connection: Connection, job: str, by_key: Mapping[str, tuple[SegmentMeta, bytes]]
    ) -> set[str]:
        """Which keys are there already; raises StateError if one has other bytes."""
        stored = self._sql.run(connection, statements.STORED, job, keys=encoded(by_key), binary=True).fetchall()
        for key, blob, meta in stored:
            if by_key[key.decode()] != (meta_from_json(meta), blob):
                raise decisions.different_bytes(job, key.decode())
        return {key.decode() for key, _, _ in stored}

    def _migrate_batch(
        self, connection: Connection, facts: JobFacts, keys: list[bytes], chain: Mapping[int, Migration], target: int
    ) -> None:
        rows = self._sql.run(connection, statements.FOR_MIGRATION, facts.job, keys=keys, binary=True).fetchall()
        self._sql.run(connection, statements.MARK, facts.job, keys=keys, status=Status.RETIRED.value)
        rewritten = (
            (
                *migrate_segment(meta_from_json(meta), blob, target, chain, facts.generation),
                SegmentFacts(Status.LIVE, *staged_under),
            )
            for meta, blob, *staged_under in rows
        )
        self._insert(connection, facts.job, rewritten)


def encoded(keys: Iterable[str]) -> list[bytes]:
    return [key.encode() for key in keys]


def batches(items: Sequence[_T], size: int) -> Iterator[list[_T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch
