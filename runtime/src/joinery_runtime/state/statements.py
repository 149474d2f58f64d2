"""The SQL of the Postgres store. `{schema}` is filled in once per store (`Statements`).

Every transaction that changes a job's segments, plan, offsets or savepoints runs LOCK_JOB first: what it reads after
that stays true until it ends. Only `stage`, which adds rows that no one else knows, and `sweep` need no lock.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from joinery_runtime.state.connection import Connection

STORE_ID = "SELECT store_id::text FROM {schema}.schema_version WHERE version = 1"

ACQUIRE = """
INSERT INTO {schema}.jobs (pipeline_name, generation, epoch) VALUES (%(job)s, 1, 0)
ON CONFLICT (pipeline_name) DO UPDATE
    SET generation = jobs.generation + 1, deleted = FALSE, updated_at = pg_catalog.now(),
        -- An earlier release deletes a job and leaves its owner.
        owner = CASE WHEN NOT jobs.deleted THEN jobs.owner END
WHERE jobs.moved_to IS NULL
"""
SET_OWNER = "UPDATE {schema}.jobs SET owner = %(owner)s::json WHERE pipeline_name = %(job)s"

JOB = """
SELECT generation, epoch, pending_plan::text, definition::text, deleted, committed, lineage::text, moved_to,
    owner::text
FROM {schema}.jobs WHERE pipeline_name = %(job)s
"""
LOCK_JOB = JOB + " FOR UPDATE"

JOBS = "SELECT pipeline_name FROM {schema}.jobs WHERE NOT deleted ORDER BY pipeline_name"

JOBS_WRITTEN = """
SELECT pipeline_name, (extract(epoch FROM updated_at) * 1000)::bigint FROM {schema}.jobs WHERE NOT deleted
"""

STANDING = """
SELECT generation, epoch, pending_plan IS NOT NULL FROM {schema}.jobs WHERE pipeline_name = %(job)s AND NOT deleted
"""

# One statement, so that everything comes from one snapshot.
RECORD = """
SELECT lineage::text, generation, epoch, signature::text, definition::text, pending_plan::text,
    CASE WHEN pending_plan IS NULL THEN 0
        ELSE greatest(0, (extract(epoch FROM pg_catalog.clock_timestamp() - planned_at) * 1000)::bigint) END,
    (SELECT coalesce(pg_catalog.array_agg(source_id ORDER BY source_id), '{{}}')
     FROM {schema}.offsets o WHERE o.pipeline_name = j.pipeline_name),
    (SELECT coalesce(pg_catalog.array_agg(offset_bytes ORDER BY source_id), '{{}}')
     FROM {schema}.offsets o WHERE o.pipeline_name = j.pipeline_name),
    (SELECT coalesce(pg_catalog.json_agg(meta ORDER BY group_key), '[]')
     FROM {schema}.state s WHERE s.pipeline_name = j.pipeline_name AND status = 'live'),
    committed, owner::text, moved_to
FROM {schema}.jobs j WHERE pipeline_name = %(job)s AND NOT deleted
"""

# An unchanged definition keeps the stored value: a big one is stored out of line and would be rewritten each time.
_DEFINITION = "CASE WHEN definition::text = %(definition)s THEN definition ELSE %(definition)s::json END"

# FOR SHARE: either an `acquire` waits until the claim is written, or the claim sees the new generation. xmax is 0 in a
# row that was inserted and not updated, so it tells a fresh claim.
CLAIM = """
WITH job AS (
    SELECT generation, epoch, pending_plan IS NOT NULL AS pending, deleted
    FROM {schema}.jobs WHERE pipeline_name = %(job)s FOR SHARE
)
INSERT INTO {schema}.claims AS c (pipeline_name, name, owner)
SELECT %(job)s, %(name)s, %(owner)s FROM job
WHERE generation = %(generation)s AND epoch = %(epoch)s AND pending AND NOT deleted
ON CONFLICT (pipeline_name, name) DO UPDATE
    SET owner = CASE WHEN c.owner = %(replacing)s THEN excluded.owner ELSE c.owner END
RETURNING owner, xmax = 0
"""
CLAIMS = "SELECT name, owner FROM {schema}.claims WHERE pipeline_name = %(job)s"
RELEASE_CLAIMS = "UPDATE {schema}.claims SET owner = '' WHERE pipeline_name = %(job)s"
DROP_CLAIMS = "DELETE FROM {schema}.claims WHERE pipeline_name = %(job)s"

WRITE_PLAN = f"""
UPDATE {{schema}}.jobs SET pending_plan = %(plan)s::json, planned_at = pg_catalog.now(), definition = {_DEFINITION},
    updated_at = pg_catalog.now()
WHERE pipeline_name = %(job)s
"""

STAGE = """
COPY {schema}.state (pipeline_name, group_key, state_blob, state_version, status, generation, epoch, meta)
FROM STDIN (FORMAT binary)
"""
STAGE_TYPES = ("text", "bytea", "bytea", "int4", "text", "int8", "int8", "jsonb")

STORED = """
SELECT group_key, state_blob, meta FROM {schema}.state WHERE pipeline_name = %(job)s AND group_key = ANY(%(keys)b)
"""

READ = """
SELECT group_key, state_blob FROM {schema}.state s
WHERE pipeline_name = %(job)s AND group_key = ANY(%(keys)b) AND (status = 'live' OR status = 'retired' AND EXISTS (
    SELECT FROM {schema}.savepoint_segments p WHERE p.pipeline_name = s.pipeline_name AND p.group_key = s.group_key))
"""

NAMED = """
SELECT group_key, status, generation, epoch FROM {schema}.state
WHERE pipeline_name = %(job)s AND group_key = ANY(%(keys)b)
"""

SET_STATUS = """
UPDATE {schema}.state SET status = %(status)s, updated_at = pg_catalog.now()
WHERE pipeline_name = %(job)s AND group_key = ANY(%(keys)b)
"""

SET_OFFSETS = """
INSERT INTO {schema}.offsets (pipeline_name, source_id, offset_bytes, state_version)
SELECT %(job)s, source_id, offset_bytes, %(version)s
FROM ROWS FROM (pg_catalog.unnest(%(sources)s::text[]), pg_catalog.unnest(%(values)b::bytea[]))
    AS t (source_id, offset_bytes)
ON CONFLICT (pipeline_name, source_id) DO UPDATE SET
    offset_bytes = excluded.offset_bytes, state_version = excluded.state_version, updated_at = pg_catalog.now()
"""

ADVANCE = f"""
UPDATE {{schema}}.jobs SET epoch = %(epoch)s, committed = %(epoch)s, signature = %(signature)s::json,
    definition = {_DEFINITION}, pending_plan = %(next_plan)s::json, planned_at = pg_catalog.now(),
    updated_at = pg_catalog.now()
WHERE pipeline_name = %(job)s
"""

LOG_EPOCH = """
INSERT INTO {schema}.epochs (pipeline_name, epoch, generation, plan, result)
VALUES (%(job)s, %(epoch)s, %(generation)s, %(plan)s::json, %(result)s::json)
"""

TRIM_EPOCHS = "DELETE FROM {schema}.epochs WHERE pipeline_name = %(job)s AND epoch < %(oldest)s"

# Keeps the newest epoch, which the state is at. `pg_column_size` does not read values that are stored out of line.
TRIM_LOG = """
DELETE FROM {schema}.epochs WHERE pipeline_name = %(job)s AND epoch = ANY (ARRAY(
    SELECT epoch FROM (
        SELECT epoch, committed_at,
            pg_catalog.sum(pg_catalog.pg_column_size(plan) + pg_catalog.pg_column_size(result))
                OVER (ORDER BY epoch DESC) AS held
        FROM {schema}.epochs WHERE pipeline_name = %(job)s) log
    WHERE epoch < %(newest)s
    AND (held > %(bytes)s OR committed_at < pg_catalog.now() - %(retention)s::float8 * interval '1 millisecond')
    ORDER BY epoch LIMIT %(limit)s))
"""

EPOCHS = """
SELECT epoch, generation, plan::text, result::text, (extract(epoch FROM committed_at) * 1000)::bigint
FROM {schema}.epochs WHERE pipeline_name = %(job)s AND epoch > %(after)s ORDER BY epoch LIMIT %(limit)s
"""

NEWEST_EPOCH = """
SELECT epoch, generation, plan::text, result::text, (extract(epoch FROM committed_at) * 1000)::bigint
FROM {schema}.epochs e WHERE pipeline_name = %(job)s
AND epoch = (SELECT committed FROM {schema}.jobs j WHERE j.pipeline_name = e.pipeline_name)
"""

NOT_LIVE = """
SELECT group_key, status, generation, epoch, EXISTS (
    SELECT FROM {schema}.savepoint_segments p WHERE p.pipeline_name = s.pipeline_name AND p.group_key = s.group_key)
FROM {schema}.state s WHERE pipeline_name = %(job)s AND status <> 'live'
"""

REMOVE = """
DELETE FROM {schema}.state WHERE pipeline_name = %(job)s AND group_key = ANY(%(keys)b) AND status <> 'live'
"""

CREATE_SAVEPOINT = """
WITH live AS (
    SELECT group_key, (meta OPERATOR(pg_catalog.->>) 'rows'::text)::bigint AS rows,
        (meta OPERATOR(pg_catalog.->>) 'bytes'::text)::bigint AS bytes
    FROM {schema}.state WHERE pipeline_name = %(job)s AND status = 'live'
), pins AS (
    INSERT INTO {schema}.savepoint_segments SELECT %(job)s, %(name)s, group_key FROM live
)
INSERT INTO {schema}.savepoints (
    pipeline_name, name, epoch, committed, lineage, rows, bytes, signature, definition, source_ids, source_offsets)
SELECT pipeline_name, %(name)s, epoch, committed, lineage,
    (SELECT coalesce(pg_catalog.sum(rows), 0) FROM live), (SELECT coalesce(pg_catalog.sum(bytes), 0) FROM live),
    signature, definition,
    (SELECT coalesce(pg_catalog.array_agg(source_id ORDER BY source_id), '{{}}')
     FROM {schema}.offsets WHERE pipeline_name = %(job)s),
    (SELECT coalesce(pg_catalog.array_agg(offset_bytes ORDER BY source_id), '{{}}')
     FROM {schema}.offsets WHERE pipeline_name = %(job)s)
FROM {schema}.jobs WHERE pipeline_name = %(job)s
"""

SAVEPOINTS = """
SELECT name, epoch, (extract(epoch FROM created_at) * 1000)::bigint, rows, bytes, committed, lineage::text, rolled_back
FROM {schema}.savepoints WHERE pipeline_name = %(job)s ORDER BY name COLLATE "C"
"""

# Has the same columns as RECORD.
PINNED = """
SELECT s.lineage::text, j.generation, s.epoch, s.signature::text, s.definition::text, NULL, 0,
    s.source_ids, s.source_offsets,
    (SELECT coalesce(pg_catalog.json_agg(meta ORDER BY group_key), '[]')
     FROM {schema}.state JOIN {schema}.savepoint_segments p USING (pipeline_name, group_key)
     WHERE p.pipeline_name = s.pipeline_name AND p.name = s.name),
    s.committed, j.owner::text, NULL
FROM {schema}.savepoints s JOIN {schema}.jobs j USING (pipeline_name)
WHERE s.pipeline_name = %(job)s AND s.name = %(name)s AND NOT j.deleted
"""
SET_ROLLED_BACK = "UPDATE {schema}.savepoints SET rolled_back = TRUE WHERE pipeline_name = %(job)s AND name = %(name)s"

DELETE_SAVEPOINT = "DELETE FROM {schema}.savepoints WHERE pipeline_name = %(job)s AND name = %(name)s"

RESTORE_SEGMENTS = """
WITH pinned AS (
    SELECT group_key FROM {schema}.savepoint_segments WHERE pipeline_name = %(job)s AND name = %(name)s
)
UPDATE {schema}.state SET updated_at = pg_catalog.now(),
    status = CASE WHEN group_key IN (SELECT group_key FROM pinned) THEN 'live' ELSE 'retired' END
WHERE pipeline_name = %(job)s AND (status = 'live' OR group_key IN (SELECT group_key FROM pinned))
"""

RESTORE_OFFSETS = """
INSERT INTO {schema}.offsets (pipeline_name, source_id, offset_bytes, state_version)
SELECT pipeline_name, source_id, offset_bytes, %(version)s
FROM {schema}.savepoints, ROWS FROM (pg_catalog.unnest(source_ids), pg_catalog.unnest(source_offsets))
    AS t (source_id, offset_bytes)
WHERE pipeline_name = %(job)s AND name = %(name)s
"""

RESTORE_JOB = """
UPDATE {schema}.jobs j SET (signature, definition, lineage, committed) = (
    SELECT s.signature, s.definition, s.lineage, s.committed
    FROM {schema}.savepoints s WHERE s.pipeline_name = j.pipeline_name AND s.name = %(name)s)
WHERE pipeline_name = %(job)s
"""

# `start_from`: what a new job copies from another job's savepoint. The epoch's log entry goes without what that epoch
# wrote, since those outputs are the other job's.
COPY_SEGMENTS = """
INSERT INTO {schema}.state (pipeline_name, group_key, state_blob, state_version, status, generation, epoch, meta)
SELECT %(job)s, s.group_key, s.state_blob, s.state_version, 'live', s.generation, s.epoch, s.meta
FROM {schema}.state s JOIN {schema}.savepoint_segments p USING (pipeline_name, group_key)
WHERE p.pipeline_name = %(other)s AND p.name = %(name)s
"""
COPY_OFFSETS = """
INSERT INTO {schema}.offsets (pipeline_name, source_id, offset_bytes, state_version)
SELECT %(job)s, source_id, offset_bytes, %(version)s
FROM {schema}.savepoints, ROWS FROM (pg_catalog.unnest(source_ids), pg_catalog.unnest(source_offsets))
    AS t (source_id, offset_bytes)
WHERE pipeline_name = %(other)s AND name = %(name)s
"""
COPY_JOB = """
UPDATE {schema}.jobs j
SET signature = s.signature, definition = s.definition, committed = s.committed, epoch = greatest(j.epoch, s.committed)
FROM {schema}.savepoints s WHERE j.pipeline_name = %(job)s AND s.pipeline_name = %(other)s AND s.name = %(name)s
"""
COPY_EPOCH = """
INSERT INTO {schema}.epochs (pipeline_name, epoch, generation, plan, result, committed_at)
SELECT %(job)s, e.epoch, e.generation, e.plan, (e.result::jsonb - 'output'::text - 'dead_letters'::text)::json,
    e.committed_at
FROM {schema}.epochs e JOIN {schema}.savepoints s ON s.pipeline_name = e.pipeline_name AND s.committed = e.epoch
WHERE s.pipeline_name = %(other)s AND s.name = %(name)s
"""

RETIRE_LIVE = """
UPDATE {schema}.state SET status = 'retired', updated_at = pg_catalog.now()
WHERE pipeline_name = %(job)s AND status = 'live'
"""
FORGET_JOB = """
UPDATE {schema}.jobs SET signature = NULL, definition = NULL, lineage = pg_catalog.gen_random_uuid()
WHERE pipeline_name = %(job)s
"""

FENCE = """
UPDATE {schema}.jobs SET generation = generation + 1, updated_at = pg_catalog.now() WHERE pipeline_name = %(job)s
"""

RESET = """
UPDATE {schema}.jobs
SET generation = generation + 1, epoch = %(epoch)s, pending_plan = NULL, updated_at = pg_catalog.now()
WHERE pipeline_name = %(job)s
"""

LIVE_BELOW = """
SELECT group_key, pg_catalog.octet_length(state_blob) FROM {schema}.state
WHERE pipeline_name = %(job)s AND status = 'live' AND state_version < %(version)s ORDER BY group_key
"""

LIVE_VERSIONS = """
SELECT DISTINCT state_version FROM {schema}.state WHERE pipeline_name = %(job)s AND status = 'live'
"""

FOR_MIGRATION = """
SELECT meta, state_blob, generation, epoch FROM {schema}.state
WHERE pipeline_name = %(job)s AND group_key = ANY(%(keys)b)
"""

DELETE_SAVEPOINTS = "DELETE FROM {schema}.savepoints WHERE pipeline_name = %(job)s"
DELETE_STATE = "DELETE FROM {schema}.state WHERE pipeline_name = %(job)s"
DELETE_OFFSETS = "DELETE FROM {schema}.offsets WHERE pipeline_name = %(job)s"
DELETE_EPOCHS = "DELETE FROM {schema}.epochs WHERE pipeline_name = %(job)s"
SET_DELETED = """
UPDATE {schema}.jobs SET deleted = TRUE, moved_to = NULL, committed = 0, signature = NULL, definition = NULL,
    owner = NULL, lineage = pg_catalog.gen_random_uuid()
WHERE pipeline_name = %(job)s
"""


class Statements:
    """The statements above for one schema, as the bytes that psycopg sends. `run` executes one for a job."""

    def __init__(self, schema: str) -> None:
        self._schema = sql.Identifier(schema)
        self._filled: dict[str, bytes] = {}

    def __getitem__(self, statement: str) -> bytes:
        if statement not in self._filled:
            text = sql.SQL(statement).format(schema=self._schema)
            self._filled[statement] = text.as_bytes(None)
        return self._filled[statement]

    def run(
        self, connection: Connection, statement: str, job: str, *, binary: bool = False, **values: Any
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        return connection.execute(self[statement], {"job": job, **values}, binary=binary)
