"""What others may do to a job through its output table, and which permissions its role needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from connectors.rows import attempt
from joinery_runtime.connectors.postgres.external import ExternalPostgresSink
from joinery_runtime.connectors.postgres.sink import PostgresSink, Staging, drop_staging
from joinery_runtime.connectors.postgres.table import TargetTable
from joinery_runtime.connectors.table_content import PostgresContent
from joinery_runtime.errors import SinkError
from joinery_runtime.state.postgres import PostgresStore
from state.values import commit_of, live_keys, segment

pytestmark = pytest.mark.services
ROWS = pa.table({"k": [1, 2], "v": ["a", "b"]})
_numbers = count()

# In a database where anybody may create things in `public`: better matches for our calls, and the same ones.
TRAPS = """
CREATE TABLE trap.calls (name text);
GRANT ALL ON trap.calls TO PUBLIC;
CREATE FUNCTION trap.sprung(name text) RETURNS void LANGUAGE sql AS 'INSERT INTO trap.calls VALUES (name)';
CREATE FUNCTION trap.hashtextextended(text, int) RETURNS bigint LANGUAGE sql
    AS $$SELECT trap.sprung('hash'); SELECT 1::bigint$$;
CREATE FUNCTION trap.hashtext(text) RETURNS int LANGUAGE sql AS $$SELECT trap.sprung('hashtext'); SELECT 1$$;
CREATE FUNCTION trap.now() RETURNS timestamptz LANGUAGE sql AS $$SELECT trap.sprung('now'); SELECT pg_catalog.now()$$;
CREATE FUNCTION trap.gen_random_uuid() RETURNS uuid LANGUAGE sql
    AS $$SELECT trap.sprung('uuid'); SELECT pg_catalog.gen_random_uuid()$$;
CREATE FUNCTION trap.octet_length(bytea) RETURNS int LANGUAGE sql AS $$SELECT trap.sprung('octet_length'); SELECT 1$$;
CREATE FUNCTION trap.mod(bigint, int) RETURNS bigint LANGUAGE sql AS $$SELECT trap.sprung('mod'); SELECT 0::bigint$$;
CREATE FUNCTION trap.split_part(text, text, int) RETURNS text LANGUAGE sql
    AS $$SELECT trap.sprung('split_part'); SELECT '0'$$;
CREATE FUNCTION trap.to_regclass(text) RETURNS regclass LANGUAGE sql
    AS $$SELECT trap.sprung('regclass'); SELECT NULL::regclass$$;
CREATE FUNCTION trap.format_type(oid, int) RETURNS text LANGUAGE sql
    AS $$SELECT trap.sprung('format_type'); SELECT 'x'$$;
CREATE FUNCTION trap.encode(bytea, text) RETURNS text LANGUAGE sql AS $$SELECT trap.sprung('encode'); SELECT ''$$;
CREATE FUNCTION trap.get(jsonb, jsonb) RETURNS text LANGUAGE sql AS $$SELECT trap.sprung('->>'); SELECT '1'$$;
CREATE OPERATOR trap.->> (LEFTARG = jsonb, RIGHTARG = jsonb, FUNCTION = trap.get);
CREATE FUNCTION trap.minus(jsonb, jsonb) RETURNS jsonb LANGUAGE sql AS $$SELECT trap.sprung('-'); SELECT '{}'::jsonb$$;
CREATE OPERATOR trap.- (LEFTARG = jsonb, RIGHTARG = jsonb, FUNCTION = trap.minus);
"""


@pytest.fixture
def own(dsn: str) -> Iterator[str]:
    """A database of this test's own; its superuser's address."""
    name = f"rights_{next(_numbers)}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        for role in ("writer", "reporter"):
            connection.execute(f"DO $$BEGIN CREATE ROLE {role} LOGIN; EXCEPTION WHEN duplicate_object THEN END$$")
        yield make_conninfo(dsn, dbname=name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def sink_of(dsn: str, table: TargetTable, *, external: bool = False) -> PostgresSink:
    staging = Staging.of("joinery", "job", table.name, external=external)
    return ExternalPostgresSink(dsn, table, staging, ROWS.schema) if external else PostgresSink(dsn, table, staging)


def write(dsn: str, sink: PostgresSink) -> None:
    sink.prepare(ROWS.schema)
    receipt = sink.writer().write(attempt(), ROWS)
    with psycopg.connect(dsn) as connection:
        sink.in_transaction(connection, 1, [receipt])
    sink.publish(1, [receipt])
    sink.close()


def rows_of(dsn: str, table: str) -> list[tuple[int, str]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(f"SELECT k, v FROM {table} ORDER BY k").fetchall()


def run(dsn: str, statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statements)


def test_a_table_of_another_role_is_refused_unless_the_job_names_it(own: str, external: bool) -> None:
    run(own, "CREATE TABLE t (k bigint, v text); ALTER TABLE t OWNER TO reporter")
    for named in (None, "writer"):
        with pytest.raises(
            SinkError, match=r"t belongs to another role: reporter.*output.postgres.tableOwner: reporter"
        ):
            sink_of(own, TargetTable("t", owner=named), external=external).prepare(ROWS.schema)
    write(own, sink_of(own, TargetTable("t", owner="reporter"), external=external))
    assert rows_of(own, "t") == [(1, "a"), (2, "b")]


@pytest.mark.parametrize(
    "code",
    [
        "CREATE TRIGGER audit BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION fill()",
        "CREATE TRIGGER audit AFTER DELETE ON t FOR EACH STATEMENT EXECUTE FUNCTION fill()",
        "CREATE RULE audit AS ON INSERT TO t DO ALSO SELECT 1",
    ],
)
def test_a_table_with_triggers_or_rules_is_refused_unless_the_job_says_so(own: str, external: bool, code: str) -> None:
    """A trigger may name a table without its schema, as for any other client."""
    run(
        own,
        "CREATE TABLE t (k bigint, v text); CREATE TABLE log (n int);"
        "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql "
        "AS 'BEGIN INSERT INTO log VALUES (1); RETURN new; END';" + code,
    )
    with pytest.raises(SinkError, match=r"t has triggers or rules: audit.*output.postgres.allowTriggers: true"):
        sink_of(own, TargetTable("t"), external=external).prepare(ROWS.schema)
    write(own, sink_of(own, TargetTable("t", triggers=True), external=external))
    assert rows_of(own, "t") == [(1, "a"), (2, "b")]


def test_a_partition_counts_too(own: str) -> None:
    run(
        own,
        "CREATE TABLE t (k bigint, v text) PARTITION BY RANGE (k); CREATE TABLE p PARTITION OF t DEFAULT;"
        "ALTER TABLE p OWNER TO reporter",
    )
    with pytest.raises(SinkError, match="belongs to another role: reporter"):
        sink_of(own, TargetTable("t")).prepare(ROWS.schema)


@pytest.mark.parametrize("path", ["trap, pg_catalog, public", "public, trap", "trap"])
def test_no_function_or_operator_of_another_is_called_through_the_search_path(
    own: str, external: bool, path: str
) -> None:
    job = "job"
    run(own, f"CREATE SCHEMA trap; {TRAPS}")
    run(own, f"ALTER DATABASE {psycopg.conninfo.conninfo_to_dict(own)['dbname']} SET search_path = {path}")
    typed = pa.table({"k": [1], "at": pa.array([1_500], pa.timestamp("ms", tz="UTC")), "b": pa.array([b"x"])})
    with closing(PostgresStore(own)) as store:
        record = store.acquire(job)
        store.stage(job, [segment("a")])
        store.create_savepoint(job, "sp")
        table = TargetTable("trap.t" if path == "trap" else "t", ("k",))
        sink = sink_of(own, table, external=external)
        sink.prepare(typed.schema)
        receipt = sink.writer().write(attempt(), typed)
        effects = [lambda connection: sink.in_transaction(connection, 1, [receipt])]
        store.commit(job, record.generation, commit_of(1, ["a"], effects=effects))
        sink.publish(1, [receipt])
        store.create_savepoint(job, "sp2")
        store.sweep(job, record.generation)
        store.start_from("other", job, "sp2")
        assert live_keys(store, "other") == ["a"]
        with closing(PostgresContent(own, table, typed.schema, lambda: 1, lambda _: 1)) as content:
            assert [text for piece in content.pieces() for text in piece.texts] == content.texts(typed)
        sink.close()
        store.delete_job(job)
    drop_staging(own, "joinery", "job")
    with psycopg.connect(own) as connection:
        assert connection.execute("SELECT * FROM trap.calls").fetchall() == []


def test_a_table_without_a_schema_is_where_the_roles_path_leads(own: str, external: bool) -> None:
    run(own, "CREATE SCHEMA reports")
    run(own, f"ALTER DATABASE {psycopg.conninfo.conninfo_to_dict(own)['dbname']} SET search_path = reports, public")
    write(own, sink_of(own, TargetTable("t"), external=external))
    assert rows_of(own, "reports.t") == [(1, "a"), (2, "b")]


def test_a_role_with_the_documented_grants_suffices(own: str, external: bool) -> None:
    """docs/security.md: the schema is made before, and a table of another role."""
    run(
        own,
        "CREATE SCHEMA joinery AUTHORIZATION writer; CREATE SCHEMA reports;"
        "CREATE TABLE reports.t (k bigint, v text, UNIQUE NULLS NOT DISTINCT (k));"
        "ALTER TABLE reports.t OWNER TO reporter; GRANT USAGE ON SCHEMA reports TO writer;"
        "GRANT SELECT, INSERT, UPDATE, DELETE ON reports.t TO writer",
    )
    writer = make_conninfo(own, user="writer")
    with closing(PostgresStore(writer)) as store:
        record = store.acquire("job")
        store.stage("job", [segment("a")])
        table = TargetTable("reports.t", ("k",), owner="reporter")
        sink = sink_of(writer, table, external=external)
        sink.prepare(ROWS.schema)
        receipt = sink.writer().write(attempt(), ROWS)
        effects = [lambda connection: sink.in_transaction(connection, 1, [receipt])]
        store.commit("job", record.generation, commit_of(1, ["a"], effects=effects))
        sink.publish(1, [receipt])
        sink.close()
    assert rows_of(own, "reports.t") == [(1, "a"), (2, "b")]
