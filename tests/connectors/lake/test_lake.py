"""Iceberg and Delta tables: each epoch is one commit, published once whatever dies, and an old driver adds nothing."""

from __future__ import annotations

import errno
import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from connectors.rows import EMPTY, EVERY_TYPE, FULL, INCARNATION, attempt, recovery
from connectors.rows import ROWS as ALL_TYPES
from connectors.test_outputs import job
from joinery_runtime.connectors.lake import sink as lake_module
from joinery_runtime.connectors.lake.delta import DeltaLakeTable
from joinery_runtime.connectors.lake.iceberg import IcebergTable
from joinery_runtime.connectors.lake.sink import LakeSink
from joinery_runtime.connectors.outputs import Outputs
from joinery_runtime.connectors.sink import short_incarnation
from joinery_runtime.errors import EnvironmentProblem, OutputUnavailable, SinkError

ROWS = pa.table({"a": [1, 2]})
MORE = pa.table({"a": [3]})
LIFE = short_incarnation(INCARNATION)


class Lake:
    """A table of one kind in a folder, its sinks (one for each driver), and what readers see of it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}

    def sink(self, schema: pa.Schema = ROWS.schema) -> LakeSink:
        iceberg = self.kind == "iceberg"
        table = IcebergTable("c", "db.out", self.properties) if iceberg else DeltaLakeTable(f"{self.folder}/out", {})
        return LakeSink(table, "job", schema)

    def rows(self) -> list[dict]:
        """As the table's own library reads them, each time anew."""
        if self.kind == "delta":
            return DeltaTable(f"{self.folder}/out").to_pyarrow_table().to_pylist()
        return self.iceberg().scan().to_arrow().to_pylist()

    def values(self) -> list[int]:
        return sorted(row["a"] for row in self.rows())

    def commits(self) -> list[int]:
        """The epochs that the table's own history names, oldest first."""
        if self.kind == "delta":
            history = reversed(DeltaTable(f"{self.folder}/out").history())
            return [int(entry["joinery.epoch"]) for entry in history if "joinery.epoch" in entry]
        summaries = [snapshot.summary.additional_properties for snapshot in self.iceberg().metadata.snapshots]
        return [int(summary["joinery.epoch"]) for summary in summaries if "joinery.epoch" in summary]

    def iceberg(self):
        return load_catalog("c", **self.properties).load_table("db.out")

    def append(self, rows: pa.Table) -> None:
        """Another writer."""
        if self.kind == "delta":
            write_deltalake(f"{self.folder}/out", rows, mode="append")
        else:
            self.iceberg().append(rows)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("joinery/**/*.parquet"))


@pytest.fixture(params=["delta", "iceberg"])
def lake(request, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


@pytest.fixture
def sink(lake: Lake) -> LakeSink:
    lake_sink = lake.sink()
    assert lake_sink.prepare(ROWS.schema) == f"the {lake_sink.table.name}"
    return lake_sink


def written(sink: LakeSink, rows: pa.Table = ROWS, **fields) -> dict:
    """A receipt as the epoch log gives it back; the writer has gone to a worker."""
    writer = pickle.loads(pickle.dumps(sink.writer()))
    return json.loads(json.dumps(writer.write(attempt(**fields), rows)))


def test_a_disk_that_is_full_is_waited_for(lake, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = lake.sink()
    sink.prepare(ROWS.schema)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(lake_module, "write_parquet", full)
    with pytest.raises(OutputUnavailable, match=r"cannot be written: No space left on device\. Make room"):
        sink.writer().write(attempt(), ROWS)


def test_rows_are_visible_only_once_published(lake: Lake, sink: LakeSink) -> None:
    receipt = written(sink, epoch=7, shard=3)
    written(sink, epoch=7, shard=3, name="failed")
    sink.in_transaction(None, 7, [receipt])
    assert lake.rows() == []
    sink.publish(7, [receipt, written(sink, MORE, epoch=7, shard=4)])
    assert lake.values() == [1, 2, 3]
    assert lake.commits() == [7]
    # What the failed attempt has written is gone.
    assert lake.files() == ["1-7-3-a.parquet", "1-7-4-a.parquet"]


def test_every_type_comes_back(lake: Lake) -> None:
    sink = lake.sink(EVERY_TYPE)
    sink.prepare(EVERY_TYPE)
    sink.publish(1, [written(sink, ALL_TYPES)])
    assert lake.rows() == [FULL, EMPTY]
    assert sink.table.read().to_pylist() == [FULL, EMPTY]
    # It is what the job asks for again.
    assert lake.sink(EVERY_TYPE).prepare(EVERY_TYPE) is None


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg2", "postgresql+psycopg"])
def test_a_catalog_in_postgres_uses_the_driver_of_the_state_store(dsn: str, tmp_path: Path, scheme: str) -> None:
    properties = {"type": "sql", "uri": dsn.replace("postgresql", scheme, 1), "warehouse": f"file://{tmp_path}"}
    sink = LakeSink(IcebergTable(scheme, "db.out", properties), "job", ROWS.schema)
    sink.prepare(ROWS.schema)
    sink.publish(1, [written(sink)])
    assert sink.table.read() == ROWS
    sink.table.close()


def test_duckdb_reads_the_files_of_the_table(lake: Lake, sink: LakeSink) -> None:
    sink.publish(1, [written(sink)])
    if lake.kind == "delta":
        seen = DeltaTable(f"{lake.folder}/out").to_pyarrow_dataset()
    else:
        seen = lake.iceberg().scan().to_arrow()
    assert duckdb.sql("SELECT sum(a) FROM seen").fetchall() == [(3,)]
    assert seen is not None


def test_a_driver_that_died_before_the_tables_commit_is_made_up_for(lake: Lake, sink: LakeSink) -> None:
    receipt = written(sink)
    after = lake.sink()
    after.publish(1, [receipt])
    assert after.recover(recovery(committed_epoch=1)) is False
    assert lake.values() == [1, 2]


def test_a_driver_that_died_after_the_tables_commit_is_not_repeated(lake: Lake, sink: LakeSink) -> None:
    receipt = written(sink)
    sink.publish(1, [receipt])
    after = lake.sink()
    after.publish(1, [receipt])
    after.recover(recovery(committed_epoch=1))
    after.prepare(ROWS.schema)
    after.publish(2, [written(after, MORE, epoch=2, generation=2)])
    assert lake.values() == [1, 2, 3]
    assert lake.commits() == [1, 2]


def test_an_old_driver_adds_nothing(lake: Lake, sink: LakeSink) -> None:
    """It slept between the commits of epoch 1; the newer driver published that and went on."""
    receipt = written(sink)
    newer = lake.sink()
    newer.publish(1, [receipt])
    newer.publish(2, [written(newer, MORE, epoch=2, generation=2)])
    sink.publish(1, [receipt])
    assert lake.values() == [1, 2, 3]


def test_two_drivers_at_one_moment_publish_once(lake: Lake, sink: LakeSink, monkeypatch) -> None:
    """The newer driver commits after the older one has read the mark, and before it commits."""
    receipt = written(sink)
    add, newer, tried = sink.table.add, lake.sink(), []

    def overtaken(added) -> None:
        tried.append(added.mark)
        if len(tried) == 1:
            newer.publish(1, [receipt])
        add(added)

    monkeypatch.setattr(sink.table, "add", overtaken)
    sink.publish(1, [receipt])
    assert tried == [(1, 1)]
    assert lake.values() == [1, 2]


def test_an_epoch_reads_the_table_once(lake: Lake, sink: LakeSink, monkeypatch) -> None:
    """To publish it; and once more for each commit of others that comes between."""
    read, times = sink.table._find_table, []

    def counted():
        times.append(1)
        return read()

    monkeypatch.setattr(sink.table, "_find_table", counted)
    for epoch in (1, 2):
        receipt = written(lake.sink(), epoch=epoch)
        sink.in_transaction(None, epoch, [receipt])
        sink.publish(epoch, [receipt])
        assert len(times) == epoch
    lake.append(MORE)
    receipt = written(lake.sink(), epoch=3)
    add = sink.table.add

    def overtaken(added) -> None:
        if len(times) == 3:
            lake.append(MORE)
        add(added)

    monkeypatch.setattr(sink.table, "add", overtaken)
    sink.publish(3, [receipt])
    assert len(times) == 4
    assert lake.values() == [1, 1, 1, 2, 2, 2, 3, 3]


def test_another_writers_commit_between_is_gone_round(lake: Lake, sink: LakeSink, monkeypatch) -> None:
    add, tried = sink.table.add, []

    def overtaken(added) -> None:
        tried.append(added.mark)
        if len(tried) <= 2:
            lake.append(pa.table({"a": [10 * len(tried)]}))
        add(added)

    monkeypatch.setattr(sink.table, "add", overtaken)
    sink.publish(1, [written(sink)])
    assert len(tried) == 3
    assert lake.values() == [1, 2, 10, 20]


def test_a_writer_without_a_pause_is_waited_for(lake: Lake, sink: LakeSink, monkeypatch) -> None:
    monkeypatch.setattr(lake_module, "_CONFLICTS", 2)
    add, receipt = sink.table.add, written(sink)

    def overtaken(added) -> None:
        lake.append(MORE)
        add(added)

    with monkeypatch.context() as busy:
        busy.setattr(sink.table, "add", overtaken)
        with pytest.raises(OutputUnavailable, match="cannot take the rows of epoch 1"):
            sink.publish(1, [receipt])
    lake.sink().publish(1, [receipt])
    assert lake.values() == [1, 2, 3, 3]


def test_epochs_that_count_anew_after_a_savepoint_are_published(lake: Lake, sink: LakeSink) -> None:
    sink.publish(5, [written(sink, epoch=5)])
    after = lake.sink()
    assert after.recover(recovery(committed_epoch=4)) is False  # epoch 5 again, and its files are the table's
    after.prepare(ROWS.schema)
    after.publish(5, [written(after, MORE, epoch=5, generation=2)])
    assert lake.values() == [1, 2, 3]


def test_recovery_removes_what_no_commit_named(lake: Lake, sink: LakeSink) -> None:
    sink.publish(1, [written(sink)])
    written(sink, epoch=2)
    written(sink, epoch=2, generation=2)  # of a driver that is no older
    lake.sink().recover(recovery(generation=2, committed_epoch=1))
    assert lake.files() == ["1-1-0-a.parquet", "2-2-0-a.parquet"]
    assert lake.values() == [1, 2]


def test_jobs_of_other_stores_do_not_hide_each_others_epochs(lake: Lake, sink: LakeSink) -> None:
    sink.publish(1, [written(sink)])
    sink.publish(1, [written(sink, MORE, incarnation="another-life")])
    assert lake.values() == [1, 2, 3]


def test_files_that_are_gone_are_said_and_nothing_is_committed(lake: Lake, sink: LakeSink) -> None:
    receipt = written(sink)
    next(lake.folder.rglob("joinery/**/*.parquet")).unlink()
    with pytest.raises(SinkError, match="cannot be seen from the driver"):
        sink.in_transaction(None, 1, [receipt])
    with pytest.raises(SinkError, match="Output of epoch 1, the newest one, is gone"):
        sink.publish(1, [receipt])
    assert lake.commits() == []


def test_receipts_of_another_table_are_not_lost_in_silence(lake: Lake, sink: LakeSink, tmp_path: Path) -> None:
    receipt = written(sink)
    elsewhere = Lake(lake.kind, tmp_path / "elsewhere")
    elsewhere.folder.mkdir()
    other = elsewhere.sink()
    other.prepare(ROWS.schema)
    other.publish(1, [receipt])
    assert elsewhere.rows() == []
    other.recover(recovery(committed_epoch=1))  # stopped in order: the other table has its rows
    with pytest.raises(SinkError, match="Rows of epoch 1 are of another table"):
        other.recover(recovery(committed_epoch=1, pending=2))


def test_columns_that_do_not_fit_are_named(sink: LakeSink) -> None:
    with pytest.raises(SinkError, match="column a is int64, and the job's is string"):
        sink.prepare(pa.schema({"a": pa.string()}))


def test_new_columns_are_added_and_old_rows_have_null(lake: Lake, sink: LakeSink) -> None:
    sink.publish(1, [written(sink)])
    wide = pa.table({"b": ["x"], "a": [3]})
    after = lake.sink(wide.schema)
    assert after.prepare(wide.schema) is None
    after.publish(2, [written(after, wide, epoch=2)])
    # And a column that the job has no more.
    narrow = lake.sink()
    narrow.prepare(ROWS.schema)
    narrow.publish(3, [written(narrow, pa.table({"a": [4]}), epoch=3)])
    sorted_rows = sorted(lake.rows(), key=lambda row: row["a"])
    assert sorted_rows == [{"a": a, "b": "x" if a == 3 else None} for a in (1, 2, 3, 4)]


def test_tables_with_partitions_are_refused(lake: Lake) -> None:
    if lake.kind == "delta":
        DeltaTable.create(f"{lake.folder}/out", ROWS.schema, partition_by=["a"])
    else:
        catalog = load_catalog("c", **lake.properties)
        catalog.create_namespace("db")
        with catalog.create_table("db.out", ROWS.schema).update_spec() as spec:
            spec.add_identity("a")
    with pytest.raises(SinkError, match="is partitioned by a"):
        lake.sink().prepare(ROWS.schema)


def test_the_files_are_plain_parquet(lake: Lake, sink: LakeSink) -> None:
    sink.publish(1, [written(sink)])
    assert pq.read_table(next(lake.folder.rglob("joinery/**/*.parquet"))) == ROWS


def test_a_place_that_cannot_be_written_names_what_to_check(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="Check output"):
        LakeSink(DeltaLakeTable(f"{tmp_path}/file/out", {}), "job", ROWS.schema).prepare(ROWS.schema)
    broken = IcebergTable("c", "db.out", {"type": "sql", "uri": f"sqlite:///{tmp_path}/none/c.db"})
    with pytest.raises(SinkError, match="Check output"):
        LakeSink(broken, "job", ROWS.schema).prepare(ROWS.schema)


@pytest.mark.parametrize(
    ("output", "module"),
    [({"delta": {"path": "out"}}, "deltalake"), ({"iceberg": {"table": "db.out"}}, "pyiceberg")],
)
def test_missing_libraries_name_the_extra(output, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)
    kind = next(iter(output))
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"joinery_runtime.connectors.lake.{kind}")
    with pytest.raises(EnvironmentProblem, match=r"joinery-runtime\[engine,lakehouse\]"):
        Outputs.of(job(output=output)).sink(None)


def test_what_a_job_names_is_what_its_sink_opens(tmp_path: Path) -> None:
    lake_sink: Callable = Outputs.of(
        job(output={"delta": {"path": "s3://b/t", "properties": {"AWS_REGION": "x"}}})
    ).sink(None)
    assert lake_sink.table.storage().location == "s3://b/t"
    assert dict(lake_sink.table.storage().options) == {"AWS_REGION": "x"}
    assert "x" not in repr(lake_sink.table.storage()).replace("s3://b/t", "")
