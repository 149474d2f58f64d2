"""`joinery sql`: over output, epoch log and state, on a real Postgres."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from confluent_kafka import Producer

from cli.commands import Joinery
from cli.one_input_jobs import resource as one_input_job
from cli.session_jobs import REOPEN, epoch, resource, row, run_epochs
from cli.stored_state import commit_rows
from formats.registry import registry
from job.resources import edited
from joinery_devkit.kafka_admin import KafkaAdmin
from joinery_runtime.connectors import content
from joinery_runtime.connectors.files.sink import write_parquet
from joinery_runtime.connectors.outputs import Outputs
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.job import StreamJoin, load_job
from joinery_runtime.state.postgres import PostgresStore

HOUR = 3_600_000
OUTPUT = "    postgres: {table: joined}\n"

pytestmark = pytest.mark.services


def order(order_id: str, ts: int) -> dict[str, object]:
    return {"order_id": order_id, "country": 49, "amount": None, "ts": ts}


@pytest.fixture
def stored_in(postgres_dsn: str, schema: str) -> str:
    return f'  stateStore: {{postgres: {{dsn: "{postgres_dsn}", schema: "{schema}"}}}}\n'


@pytest.fixture
def job_file(tmp_path: Path, stored_in: str, schema: str) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(edited((OUTPUT, OUTPUT.replace("joined", f"{schema}.joined") + stored_in)))
    return path


@pytest.fixture
def two_epochs(store: PostgresStore, job: StreamJoin) -> None:
    """Two epochs; the second one closes the state up to 2 h of event time."""
    record = store.acquire("orders-payments")
    payments = [{"order_id": "a", "country": 49, "ts": HOUR}]
    commit_rows(store, record, job, 1, ([order("a", HOUR), order("b", HOUR)], payments), rows_out=3)
    watermarks = {"orders": 2 * HOUR, "payments": 2 * HOUR}
    commit_rows(store, record, job, 2, ([order("a", 2 * HOUR)], []), watermarks=watermarks, rows_out=4)


@pytest.mark.usefixtures("two_epochs")
def test_the_state_and_the_log_are_tables(joinery: Joinery, job_file: Path) -> None:
    query = (
        "SELECT order_id, count(*) AS n, max(event_time) AS newest FROM state_left GROUP BY order_id ORDER BY order_id"
    )
    assert joinery("sql", job_file, query).lines == [
        {"order_id": "a", "n": 2, "newest": "1970-01-01T02:00:00+00:00"},
        {"order_id": "b", "n": 1, "newest": "1970-01-01T01:00:00+00:00"},
    ]
    pairs = 'SELECT l.order_id, r."offset" FROM state_left l JOIN state_right r ON l.order_id = r.order_id'
    assert joinery("sql", job_file, pairs).lines == [{"order_id": "a", "offset": 0}] * 2
    log = joinery("sql", job_file, "SELECT epoch, rows_out FROM epochs ORDER BY epoch").lines
    assert log == [{"epoch": 1, "rows_out": 3}, {"epoch": 2, "rows_out": 4}]


@pytest.mark.usefixtures("two_epochs")
def test_the_output_is_a_table(joinery: Joinery, job_file: Path, postgres_dsn: str, schema: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(f'CREATE TABLE "{schema}".joined (k text, price numeric(9,2), at timestamptz, raw bytea)')
        row = ("a", "1.50", "2026-01-15T10:00:00Z", b"\xff")
        connection.execute(f'INSERT INTO "{schema}".joined VALUES (%s, %s, %s, %s)', row)
    (line,) = joinery("sql", job_file, "WITH few AS (SELECT * FROM output) SELECT * FROM few").lines
    assert (line["k"], line["price"], line["raw"]) == ("a", "1.50", "ff")
    assert line["at"].startswith("2026-01-15T")


@pytest.mark.usefixtures("two_epochs")
def test_times_after_the_year_9999_are_text(joinery: Joinery, job_file: Path, postgres_dsn: str, schema: str) -> None:
    """Postgres and Arrow have them, and Python has not. The other times of an answer by Postgres are text then, too."""
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(f'CREATE TABLE "{schema}".joined (k text, at timestamptz, day date)')
        insert = f'INSERT INTO "{schema}".joined VALUES (%s, %s, %s)'
        rows = [("a", "10000-01-01T00:00:00Z", "2026-01-15"), ("b", "2026-01-15T10:00:00Z", "infinity")]
        connection.cursor().executemany(insert, rows)
    beyond = [
        {"k": "a", "at": "10000-01-01 00:00:00+00", "day": "2026-01-15"},
        {"k": "b", "at": "2026-01-15 10:00:00+00", "day": "infinity"},
    ]
    assert joinery("sql", job_file, "SELECT k, at, day FROM output ORDER BY k").lines == beyond
    beside = "SELECT k, at, day FROM output, (SELECT count(*) AS n FROM epochs) AS e ORDER BY k"
    assert [row["k"] for row in joinery("sql", job_file, beside).lines] == ["a", "b"]
    later = "SELECT order_id, event_time + INTERVAL '3000000d' AS later FROM state_left ORDER BY order_id"
    assert joinery("sql", job_file, later).lines[-1] == {"order_id": "b", "later": "+10183-09-21T01:00:00.000+00:00"}


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_files_are_a_table(joinery: Joinery, tmp_path: Path, stored_in: str, two_epochs: None, kind: str) -> None:
    folder, path = tmp_path / "out", tmp_path / "files.yaml"
    path.write_text(edited((OUTPUT, f'    file: {{path: "{folder}"}}\n    format: {kind}\n{stored_in}')))
    nothing = joinery("sql", path, "SELECT * FROM output")
    assert "There is no output of job orders-payments yet" in nothing.err
    folder.mkdir()
    if kind == "json":
        (folder / "epoch-1-shard-0.jsonl").write_text('{"k": "a", "n": 1}\n{"k": "b", "n": null}\n')
    else:
        with (folder / "epoch-1-shard-0.parquet").open("wb") as file:
            write_parquet(file, pa.table({"k": ["a", "b"], "n": [1, None]}).to_batches())
    assert joinery("sql", path, "SELECT k FROM output WHERE n IS NULL").lines == [{"k": "b"}]


@pytest.mark.usefixtures("two_epochs")
@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            "SELECT * FROM joined",
            "There is no table joined of job orders-payments: its tables are epochs, output, state_left",
        ),
        ("SELECT * FROM joined", "Write output for the rows of "),
        ("DELETE FROM output", "The query is no SELECT"),
        ("SELECT 1; SELECT 2", "The query is no SQL statement"),
        ("SELECT FROM WHERE", "The query is no SQL statement"),
        ("SELECT nope FROM epochs", 'The query cannot be run: unable to find column "nope"; valid columns: ["epoch"'),
        ("SELECT * FROM output", 'joined" does not exist'),
    ],
)
def test_what_cannot_be_asked(joinery: Joinery, job_file: Path, query: str, message: str) -> None:
    err = joinery("sql", job_file, query).err
    assert message in err
    assert "plan" not in err, "of polars"


@pytest.mark.parametrize("form", ["json", "avro", "protobuf"])
def test_rows_in_a_topic(
    joinery: Joinery,
    tmp_path: Path,
    stored_in: str,
    two_epochs: None,
    kafka_broker: KafkaAdmin,
    schema: str,
    form: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that are committed, in every format; as many are read as the query needs; what is none of them is said."""
    kafka_broker.create_topic(schema, 1)
    path, count = tmp_path / "topic.yaml", 30_000
    with registry() as served:
        kafka = f"    kafka: {{bootstrapServers: '{kafka_broker.bootstrap}', topic: {schema}}}\n"
        encoding = "" if form == "json" else f"    format: {form}\n    schemaRegistry: {{url: {served.url}}}\n"
        path.write_text(edited((OUTPUT, kafka + encoding + stored_in)))
        job = load_job(path)
        assert job.spec.output.kafka is not None
        target = Outputs.of(job).targets[0].topic()
        table = pa.Table.from_pylist(
            [{"orders_order_id": f"o{i}"} for i in range(count)], compile_job(job).output_schema()
        )
        settings = {"bootstrap.servers": kafka_broker.bootstrap, "transactional.id": schema, "linger.ms": 5}
        producer = Producer({**settings, "queue.buffering.max.messages": 2 * count})
        producer.init_transactions(30)
        for values, ends in (
            ([message["value"] for message in target.records(table).messages()], producer.commit_transaction),
            ([b"not a row"], producer.commit_transaction),
            ([b"{}"], producer.abort_transaction),
        ):
            producer.begin_transaction()
            for value in values:
                producer.produce(schema, value)
            assert producer.flush(30) == 0
            ends(30)
        counted = joinery("sql", path, "SELECT count(*) AS n, count(orders_order_id) AS named FROM output")
        assert counted.lines == [{"n": count, "named": count}]
        assert (
            f"1 record is left out that no row of this job can be; the first one is {schema}-0@{count + 1}"
            in counted.err
        )
        twice = "SELECT count(*) AS n FROM output a JOIN output b ON a.orders_order_id = b.orders_order_id"
        joined = joinery("sql", path, twice)
        assert (joined.lines, joined.err.count("left out")) == ([{"n": count}], 1)
        one = f"SELECT orders_order_id FROM output WHERE orders_order_id = 'o{count - 1}'"
        assert joinery("sql", path, one).lines == [{"orders_order_id": f"o{count - 1}"}]
        few = joinery("sql", path, "SELECT orders_order_id FROM output LIMIT 2")
        assert few.lines == [{"orders_order_id": "o0"}, {"orders_order_id": "o1"}]
        assert few.err == "", "it has not come to the last record"
        producer.begin_transaction()
        producer.produce(schema, b"{}")
        assert producer.flush(30) == 0
        monkeypatch.setattr(content, "_END_SECONDS", 0.0)
        hidden = joinery("sql", path, "SELECT count(*) AS n FROM output")
        assert hidden.lines == [{"n": count}]
        assert f"a transaction has been open in {schema}-0 for 0 s or longer: records from" in hidden.err
        producer.abort_transaction(30)


def test_a_query_over_a_table_is_answered_by_postgres(
    joinery: Joinery, job_file: Path, two_epochs: None, postgres_dsn: str, schema: str
) -> None:
    """Of a row that cannot be read, and a thousand others, only those are that the query takes."""
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(f'CREATE TABLE "{schema}".rows (k text, "aB" bigint)')
        connection.execute(f'INSERT INTO "{schema}".rows SELECT n::text, n FROM generate_series(1, 1000) AS n')
        connection.execute(f'CREATE SEQUENCE "{schema}".s')
        view = f'CREATE VIEW "{schema}".joined AS SELECT k, "aB", 1 / (1000 - "aB") AS fails FROM "{schema}".rows'
        connection.execute(view)
    query = "WITH few AS (SELECT output.k, aB FROM output WHERE aB > 998) SELECT k, aB FROM few ORDER BY aB DESC"
    assert joinery("sql", job_file, query).lines == [{"k": "1000", "aB": 1000}, {"k": "999", "aB": 999}]
    assert joinery("sql", job_file, "SELECT fails FROM output AS o LIMIT 1").lines == [{"fails": 0}]
    assert "Postgres says: division by zero" in joinery("sql", job_file, "SELECT max(fails) FROM output").err
    assert "read-only transaction" in joinery("sql", job_file, f"SELECT setval('{schema}.s', 1) FROM output").err
    joined = joinery("sql", job_file, "SELECT count(*) AS n FROM epochs, output")
    assert "division by zero" in joined.err, "beside another table it is read whole"


@pytest.mark.parametrize("kind", ["json", "jsonb"])
def test_json_in_a_table_is_its_text(
    joinery: Joinery, job_file: Path, two_epochs: None, postgres_dsn: str, schema: str, kind: str
) -> None:
    """Rows of which each has other fields, and more of them than polars looks at for their types."""
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(f'CREATE TABLE "{schema}".joined (k bigint, doc {kind})')
        document = """CASE n WHEN 199 THEN '[1, 2]' WHEN 200 THEN '{"b": 1.10}' ELSE '{"a": 1}' END"""
        insert = f'INSERT INTO "{schema}".joined SELECT n, ({document})::{kind} FROM generate_series(1, 200) AS n'
        connection.execute(insert)
    last = [{"doc": '{"a": 1}'}, {"doc": "[1, 2]"}, {"doc": '{"b": 1.10}'}]
    assert joinery("sql", job_file, "SELECT doc FROM output ORDER BY k LIMIT 9 OFFSET 197").lines == last
    beside = "SELECT doc FROM output, (SELECT count(*) AS n FROM epochs) AS e WHERE k > 197 ORDER BY k"
    assert joinery("sql", job_file, beside).lines == last, "read whole"


def test_of_files_only_what_a_query_needs_is_read(
    joinery: Joinery, tmp_path: Path, stored_in: str, two_epochs: None
) -> None:
    """A column that is null at first has the job's type; rows from before an edit have columns and types of then."""
    folder, path = tmp_path / "out", tmp_path / "files.yaml"
    path.write_text(edited((OUTPUT, f'    file: {{path: "{folder}"}}\n{stored_in}')))
    folder.mkdir()
    line = '{"orders_order_id": %s, "orders_ts": %d}\n'
    first = folder / "epoch-1-shard-0.jsonl"
    first.write_text("".join(line % ("null", n) for n in range(50_000)) + line % ('"a"', 50_000))
    broken = folder / "epoch-2-shard-0.jsonl"
    broken.write_text(line % ('"b"', 1) + '{"orders_order_id": "cut of')
    assert joinery("sql", path, "SELECT orders_ts FROM output LIMIT 1").lines == [{"orders_ts": 0}]
    failed = joinery("sql", path, "SELECT count(*) AS n FROM output WHERE orders_order_id = 'a'")
    assert f"The file {broken} of the output cannot be read" in failed.err
    broken.unlink()
    assert joinery("sql", path, "SELECT orders_ts FROM output WHERE orders_order_id = 'a'").lines == [
        {"orders_ts": 50_000}
    ]
    (folder / "epoch-3-shard-0.jsonl").write_text(
        '{"orders_order_id": 7, "was": 1.5}\n{"orders_order_id": "x", "was": 2}\n'
    )
    assert joinery("sql", path, "SELECT orders_order_id, was FROM output WHERE was > 1").lines == [
        {"orders_order_id": "7", "was": 1.5},
        {"orders_order_id": "x", "was": 2.0},
    ]
    (folder / "epoch-4-shard-0.jsonl").write_text('{"orders_order_id": "old", "orders_ts": "2026-01-15T10:00:00Z"}\n')
    old = joinery("sql", path, "SELECT orders_ts FROM output WHERE orders_order_id = 'old'")
    assert old.lines == [{"orders_ts": "2026-01-15T10:00:00Z"}]


_PEAK = """
import resource, sys
from joinery_runtime.cli import main
main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def test_a_count_over_a_large_output_takes_little_memory(tmp_path: Path, stored_in: str, two_epochs: None) -> None:
    """Read whole, the rows would be 1.3 GB."""
    folder, path = tmp_path / "out", tmp_path / "files.yaml"
    path.write_text(edited((OUTPUT, f'    file: {{path: "{folder}"}}\n    format: parquet\n{stored_in}')))
    folder.mkdir()
    rows, pieces = 1_000_000, 20
    numbers = pa.table({"n": range(rows), "text": pa.array(["a long text of which each row has one"] * rows)})
    with pq.ParquetWriter(folder / "epoch-1-shard-0.parquet", numbers.schema) as writer:
        for _ in range(pieces):
            writer.write_table(numbers, row_group_size=100_000)

    def peak(query: str) -> int:
        """In MiB."""
        ran = subprocess.run(
            [sys.executable, "-c", _PEAK, "sql", path, query], check=True, capture_output=True, text=True
        )
        return int(ran.stderr.split()[-1]) >> 10

    nothing = peak("SELECT count(*) FROM epochs")
    assert peak("SELECT count(*) AS n FROM output WHERE n = 7 AND text LIKE '%one'") < nothing + 400
    assert peak("SELECT * FROM output LIMIT 10") < nothing + 400


@pytest.mark.usefixtures("two_epochs")
def test_a_terminal_shows_a_table(joinery: Joinery, job_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    shown = joinery("sql", job_file, "SELECT epoch, rows_out FROM epochs ORDER BY epoch", "--rows", "1").out
    assert "| epoch | rows_out |" in shown
    assert "1 more row\n" in shown


def test_sessions_are_a_table(joinery: Joinery, tmp_path: Path, postgres_dsn: str, schema: str) -> None:
    path = tmp_path / "sessions.yaml"
    stored = {"stateStore": {"postgres": {"dsn": postgres_dsn, "schema": schema}}}
    path.write_text(yaml.safe_dump(resource(**REOPEN, **stored)))
    store = PostgresStore(postgres_dsn, schema)
    run_epochs(load_job(path), store, epoch(row(100), row(80, "y")), epoch(row(105)))
    store.close()
    query = "SELECT k, window_start, window_end FROM state_sessions ORDER BY k"
    x, y = joinery("sql", path, query).lines
    assert x == {
        "k": "x",
        "window_start": "1970-01-01T00:00:00.100000+00:00",
        "window_end": "1970-01-01T00:00:00.105000+00:00",
    }
    assert y["k"] == "y"


@pytest.mark.parametrize(
    ("window", "start", "end"),
    [
        ({"tumbling": {"size": "10ms"}}, ".100000", ".110000"),
        ({"hopping": {"size": "10ms", "slide": "5ms"}}, ".100000", ".105000"),
        ({"cumulative": {"size": "20ms", "step": "10ms"}}, ".100000", ".110000"),
        ({"session": {"gap": "10ms", "maxDuration": "1s"}}, ".100000", ".102000"),
    ],
)
def test_spans_of_groups_are_a_table(
    joinery: Joinery, tmp_path: Path, postgres_dsn: str, schema: str, window: dict[str, object], start: str, end: str
) -> None:
    """Each group has one row for each pane, whatever number of epochs have added to it, or for each session."""
    stored = {"stateStore": {"postgres": {"dsn": postgres_dsn, "schema": schema}}}
    aggregate = {"groupBy": ["c.k"], "window": window, "aggregates": [{"function": "count", "as": "n"}]}
    path = tmp_path / "windows.yaml"
    path.write_text(yaml.safe_dump(one_input_job("w", aggregate=aggregate, **stored)))
    store, rows = PostgresStore(postgres_dsn, schema), [{"k": "x", "v": 1, "ts": 100}, {"k": "x", "v": 1, "ts": 102}]
    run_epochs(load_job(path), store, *({"input": "c", "rows": [of_epoch]} for of_epoch in rows))
    store.close()
    names = ("window_start", "window_end") if "session" in window else ("pane_start", "pane_end")
    (group,) = joinery("sql", path, f"SELECT k, {', '.join(names)} FROM state_aggregate").lines
    second = "1970-01-01T00:00:00"
    assert group == {"k": "x", names[0]: f"{second}{start}+00:00", names[1]: f"{second}{end}+00:00"}
