"""The rows of segments in Postgres: staged by tasks, made live by commits, retired, and removed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import TypeVar

import psycopg
from psycopg.types.json import Jsonb

from joinery_runtime.state import decisions, statements
from joinery_runtime.state.connection import Connection
from joinery_runtime.state.decisions import BATCH, SegmentStatus, StoredJob, StoredSegment, by_bytes
from joinery_runtime.state.migrations import check_chain, migrate_segment, readable_from
from joinery_runtime.state.statements import Statements
from joinery_runtime.state.store import Migration, SegmentMeta

_T = TypeVar("_T")


class SegmentTable:
    """Stages, reads, rewrites and removes the rows of segments, and changes their status. The caller passes the
    connection and holds its transaction."""

    def __init__(self, sql: Statements) -> None:
        self._sql = sql

    def stage(self, connection: Connection, stored: StoredJob, by_key: Mapping[str, tuple[SegmentMeta, bytes]]) -> None:
        try:
            self._copy_segments(connection, stored, by_key.values())
        except psycopg.errors.UniqueViolation:
            # The call is a repetition: the answer to an earlier one was lost.
            stored_keys = self._require_equal(connection, stored.job, by_key)
            self._copy_segments(connection, stored, [item for key, item in by_key.items() if key not in stored_keys])

    def read(self, connection: Connection, job: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the blobs of live and of pinned segments, without the keys that are not there."""
        blobs: dict[str, bytes] = {}
        for batch in cut_batches(keys, BATCH):
            rows = self._sql.run(connection, statements.READ, job, keys=encode_keys(batch), binary=True)
            blobs |= {key.decode(): blob for key, blob in rows}
        return blobs

    def set_status(self, connection: Connection, job: str, keys: Sequence[str], status: SegmentStatus) -> None:
        if keys:
            self._sql.run(connection, statements.SET_STATUS, job, keys=encode_keys(keys), status=status.value)

    def migrate(self, connection: Connection, stored: StoredJob, chain: Mapping[int, Migration], target: int) -> int:
        """Migrate the live segments that need it and return how many. Raises IncompatibleState before any change."""
        versions = self._sql.run(connection, statements.LIVE_VERSIONS, stored.job).fetchall()
        check_chain((version for (version,) in versions), target, chain)
        below = self._sql.run(connection, statements.LIVE_BELOW, stored.job, version=readable_from(target, chain))
        old = [(key, size) for key, size in below]
        for batch in by_bytes(old):
            self._migrate_batch(connection, stored, batch, chain, target)
        return len(old)

    def add_live(
        self, connection: Connection, stored: StoredJob, segments: Sequence[tuple[SegmentMeta, bytes]]
    ) -> None:
        live = StoredSegment(SegmentStatus.LIVE, stored.generation, stored.epoch)
        if segments:
            self._insert_segments(connection, stored.job, ((meta, blob, live) for meta, blob in segments))

    def garbage_keys(self, connection: Connection, stored: StoredJob) -> list[bytes]:
        """Return keys of the segments that nothing can ever need again."""
        return [
            key
            for key, status, staged_by, epoch, pinned in self._sql.run(connection, statements.NOT_LIVE, stored.job)
            if decisions.is_sweepable(
                StoredSegment(SegmentStatus(status), staged_by, epoch), stored.generation, stored.epoch, pinned=pinned
            )
        ]

    def remove(self, connection: Connection, job: str, keys: list[bytes]) -> int:
        return self._sql.run(connection, statements.REMOVE, job, keys=keys).rowcount

    def _copy_segments(
        self, connection: Connection, stored: StoredJob, segments: Iterable[tuple[SegmentMeta, bytes]]
    ) -> None:
        staged = (
            (meta, blob, StoredSegment(SegmentStatus.STAGED, stored.generation, decisions.staged_epoch(stored, meta)))
            for meta, blob in segments
        )
        self._insert_segments(connection, stored.job, staged)

    def _insert_segments(
        self, connection: Connection, job: str, segments: Iterable[tuple[SegmentMeta, bytes, StoredSegment]]
    ) -> None:
        with connection.cursor() as cursor, cursor.copy(self._sql[statements.STAGE]) as copy:
            copy.set_types(statements.STAGE_TYPES)
            for meta, blob, segment in segments:
                key, version = meta.key.encode(), meta.state_version
                under = (segment.status.value, segment.generation, segment.epoch)
                copy.write_row((job, key, blob, version, *under, Jsonb(asdict(meta))))

    def _require_equal(
        self, connection: Connection, job: str, by_key: Mapping[str, tuple[SegmentMeta, bytes]]
    ) -> set[str]:
        """Return the keys that are already stored. Raises StateError if one has other bytes."""
        stored = self._sql.run(connection, statements.STORED, job, keys=encode_keys(by_key), binary=True).fetchall()
        for key, blob, meta in stored:
            if by_key[key.decode()] != (SegmentMeta(**meta), blob):
                raise decisions.different_bytes(job, key.decode())
        return {key.decode() for key, _, _ in stored}

    def _migrate_batch(
        self, connection: Connection, stored: StoredJob, keys: list[bytes], chain: Mapping[int, Migration], target: int
    ) -> None:
        rows = self._sql.run(connection, statements.FOR_MIGRATION, stored.job, keys=keys, binary=True).fetchall()
        self._sql.run(connection, statements.SET_STATUS, stored.job, keys=keys, status=SegmentStatus.RETIRED.value)
        rewritten = (
            (
                *migrate_segment(SegmentMeta(**meta), blob, target, chain, stored.generation),
                StoredSegment(SegmentStatus.LIVE, *staged_under),
            )
            for meta, blob, *staged_under in rows
        )
        self._insert_segments(connection, stored.job, rewritten)


def encode_keys(keys: Iterable[str]) -> list[bytes]:
    return [key.encode() for key in keys]


def cut_batches(items: Sequence[_T], size: int) -> Iterator[list[_T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch
