"""The Postgres schema. The product creates and upgrades it in numbered steps that only go forward.

A released step is never edited; a change is a new step. `schema_version` has one row per step that ran. The row names
the oldest version whose release can still use the tables after that step, so a rollout can return to that release.
"""

from __future__ import annotations

from collections.abc import Mapping

from psycopg import sql

from joinery_runtime.connectors.postgres.client import CATALOG_ONLY, create_schema
from joinery_runtime.errors import IncompatibleState
from joinery_runtime.state.connection import Connection

# state_blob is EXTERNAL: blobs are compressed already, and an UPDATE of other columns copies an 18-byte pointer, not
# the blob. The fill factors leave free space for heap-only (HOT) updates, which touch no index; so no column that a
# commit changes may be indexed.
_STEP_1 = """
CREATE TABLE {schema}.jobs (
    pipeline_name TEXT PRIMARY KEY,
    generation BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    signature JSON,
    pending_plan JSON,
    deleted BOOLEAN NOT NULL DEFAULT FALSE,
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

CREATE TABLE {schema}.state (
    pipeline_name TEXT NOT NULL,
    group_key BYTEA NOT NULL,
    state_blob BYTEA NOT NULL,
    state_version INT NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    status TEXT NOT NULL CHECK (status IN ('staged', 'live', 'retired')),
    generation BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    meta JSONB NOT NULL,
    PRIMARY KEY (pipeline_name, group_key)
) WITH (fillfactor = 70);
ALTER TABLE {schema}.state ALTER COLUMN state_blob SET STORAGE EXTERNAL;

CREATE TABLE {schema}.offsets (
    pipeline_name TEXT NOT NULL,
    source_id TEXT NOT NULL,
    offset_bytes BYTEA NOT NULL,
    state_version INT NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline_name, source_id)
) WITH (fillfactor = 50);

CREATE TABLE {schema}.epochs (
    pipeline_name TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    plan JSON NOT NULL,
    result JSON NOT NULL,
    committed_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline_name, epoch)
);

CREATE TABLE {schema}.savepoints (
    pipeline_name TEXT NOT NULL,
    name TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    rows BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    signature JSON,
    source_ids TEXT[] NOT NULL,
    source_offsets BYTEA[] NOT NULL,
    PRIMARY KEY (pipeline_name, name)
);

CREATE TABLE {schema}.savepoint_segments (
    pipeline_name TEXT NOT NULL,
    name TEXT NOT NULL,
    group_key BYTEA NOT NULL,
    PRIMARY KEY (pipeline_name, group_key, name),
    FOREIGN KEY (pipeline_name, name) REFERENCES {schema}.savepoints ON DELETE CASCADE,
    FOREIGN KEY (pipeline_name, group_key) REFERENCES {schema}.state
);
"""

# For exactly-once output: the life of the job that a marker in Kafka belongs to, and the job definition under which a
# pending plan is replayed. A plan that is already pending counts as written when its row was last touched.
_STEP_2 = """
ALTER TABLE {schema}.jobs
    ADD COLUMN lineage UUID NOT NULL DEFAULT gen_random_uuid(),
    ADD COLUMN definition JSON,
    ADD COLUMN planned_at TIMESTAMPTZ;
UPDATE {schema}.jobs SET planned_at = updated_at;

CREATE TABLE {schema}.claims (
    pipeline_name TEXT NOT NULL,
    name TEXT NOT NULL,
    owner TEXT NOT NULL,
    PRIMARY KEY (pipeline_name, name)
);
"""

# The epoch that the state is at, and everything a savepoint needs to bring a job back to that epoch. Earlier
# releases took the newest epoch of the log for the one that a restored job is at.
_STEP_3 = """
ALTER TABLE {schema}.jobs ADD COLUMN committed BIGINT NOT NULL DEFAULT 0, ADD COLUMN moved_to TEXT;
UPDATE {schema}.jobs j SET committed = coalesce(
    (SELECT max(e.epoch) FROM {schema}.epochs e WHERE e.pipeline_name = j.pipeline_name), 0);

ALTER TABLE {schema}.savepoints
    ADD COLUMN committed BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN lineage UUID,
    ADD COLUMN definition JSON,
    ADD COLUMN rolled_back BOOLEAN NOT NULL DEFAULT FALSE;
UPDATE {schema}.savepoints s SET
    committed = coalesce((SELECT max(e.epoch) FROM {schema}.epochs e
        WHERE e.pipeline_name = s.pipeline_name AND e.epoch <= s.epoch), 0),
    lineage = (SELECT j.lineage FROM {schema}.jobs j WHERE j.pipeline_name = s.pipeline_name);
ALTER TABLE {schema}.savepoints ALTER COLUMN lineage SET NOT NULL;

ALTER TABLE {schema}.schema_version ADD COLUMN usable_from INT;
"""

# The identity of this store: in Kafka, it tells apart jobs of the same name that use different stores.
_STEP_4 = """
ALTER TABLE {schema}.schema_version ADD COLUMN store_id UUID;
UPDATE {schema}.schema_version SET store_id = gen_random_uuid() WHERE version = 1;
"""

# The resource that the state belongs to (`RecordedOwner`). Without one, the next driver's resource takes the state.
_STEP_5 = """
ALTER TABLE {schema}.jobs ADD COLUMN owner JSON;
"""

STEPS: tuple[str, ...] = (_STEP_1, _STEP_2, _STEP_3, _STEP_4, _STEP_5)
"""Step n brings the schema from version n - 1 to n."""

USABLE_FROM: Mapping[int, int] = {4: 3, 5: 3}
"""By step, the oldest version whose release still works with the tables after that step: columns that it does not know
have defaults, and what it knows stays true. A step without an entry needs a release that knows the step."""

_CREATE = """
CREATE TABLE IF NOT EXISTS {schema}.schema_version (
    version INT PRIMARY KEY,
    applied_at TIMESTAMPTZ NOT NULL DEFAULT now()
);
"""
_HAS_VERSION = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'schema_version'"
_VERSION = "SELECT coalesce(pg_catalog.max(version), 0) FROM {schema}.schema_version"
_ADD_VERSION = "INSERT INTO {schema}.schema_version (version) VALUES ({version})"
_SAY_USABLE = "UPDATE {schema}.schema_version SET usable_from = {usable_from} WHERE version = {version}"
_NEEDS = "SELECT pg_catalog.max(coalesce(usable_from, version)) FROM {schema}.schema_version WHERE version > %s"
_FIRST_THAT_SAYS = 3  # the first version in which `schema_version` has the column `usable_from`
_LOCK = "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('joinery schema ' || %s, 0))"


def ensure_schema(connection: Connection, schema: str) -> None:
    """Bring the schema to this release's version. Raises IncompatibleState if the schema is newer and not usable.

    Any number of processes may call it at once. Once the schema exists, the role needs no right to create anything.
    """
    if installed_version(connection, schema) == len(STEPS):
        return
    with connection.transaction():
        connection.execute(CATALOG_ONLY)
        connection.execute(_LOCK, (schema,))
        installed = installed_version(connection, schema)
        if installed > len(STEPS):
            row = connection.execute(sql.SQL(_NEEDS).format(schema=sql.Identifier(schema)), (len(STEPS),)).fetchone()
            if row is None or row[0] > len(STEPS):
                raise IncompatibleState(
                    f"The schema {schema} of the state store is newer than this release: it has version {installed}",
                    facts=f"this release knows up to {len(STEPS)}",
                    todo="Run the release that upgraded it or a later one, or name another schema",
                )
        if installed == 0:
            create_schema(connection, schema)
            _run_statement(connection, _CREATE, schema)
        for version in range(installed + 1, len(STEPS) + 1):
            _run_statement(connection, STEPS[version - 1], schema)
            _run_statement(connection, _ADD_VERSION, schema, version)
        for version in range(max(installed, _FIRST_THAT_SAYS - 1) + 1, len(STEPS) + 1):
            _run_statement(connection, _SAY_USABLE, schema, version, USABLE_FROM.get(version, version))


def installed_version(connection: Connection, schema: str) -> int:
    """Return the schema's version; 0 if there is no schema."""
    if connection.execute(_HAS_VERSION, (schema,)).fetchone() is None:
        return 0
    row = connection.execute(sql.SQL(_VERSION).format(schema=sql.Identifier(schema))).fetchone()
    assert row is not None  # an aggregate always has one row
    return int(row[0])


def _run_statement(connection: Connection, statement: str, schema: str, version: int = 0, usable_from: int = 0) -> None:
    text = sql.SQL(statement)
    values = {"version": sql.Literal(version), "usable_from": sql.Literal(usable_from)}
    connection.execute(text.format(schema=sql.Identifier(schema), **values))
