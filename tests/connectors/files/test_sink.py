"""Parts of JSON lines and of Parquet: visible only once named, publishing twice, and what recovery sweeps."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import pytest

from connectors.rows import EMPTY, EVERY_TYPE, FULL, INCARNATION, attempt, recovery
from joinery_runtime.connectors.files.sink import FileSink, published_lines
from joinery_runtime.connectors.sink import short_incarnation
from joinery_runtime.errors import OutputUnavailable, SinkError

ROWS = pa.table({"a": [1, 2]})
LIFE = short_incarnation(INCARNATION)


@pytest.fixture(params=["json", "parquet"])
def sink(request, tmp_path: Path) -> FileSink:
    file_sink = FileSink(str(tmp_path / "out"), request.param)
    file_sink.prepare(ROWS.schema)
    return file_sink


def suffix(sink: FileSink) -> str:
    return {"json": ".jsonl", "parquet": ".parquet"}[sink.writer().format]


def visible(sink: FileSink) -> dict[str, list[int]]:
    paths = sorted(Path(sink.writer().directory).glob(f"*{suffix(sink)}"))
    return {path.name: [row["a"] for row in rows_of(path)] for path in paths}


def rows_of(path: Path) -> list[dict[str, int]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def staged(sink: FileSink) -> list[str]:
    return sorted(path.name for path in Path(sink.writer().directory, ".staging").iterdir())


def test_rows_are_visible_only_once_published(sink) -> None:
    writer = pickle.loads(pickle.dumps(sink.writer()))
    receipt = writer.write(attempt(epoch=7, shard=3), ROWS)
    writer.write(attempt(epoch=7, shard=3, name="retry"), ROWS)
    assert visible(sink) == {}
    sink.in_transaction(None, 7, [receipt])
    sink.publish(7, [json.loads(json.dumps(receipt))])
    assert visible(sink) == {f"epoch-000000000007-shard-00003{suffix(sink)}": [1, 2]}
    assert list(published_lines(str(sink._directory), 7, lambda _: [], LIFE)) == [b'{"a":1}', b'{"a":2}']


def test_publishing_again_changes_nothing(sink) -> None:
    receipt = sink.writer().write(attempt(), ROWS)
    sink.publish(1, [receipt])
    before = visible(sink)
    sink.publish(1, [receipt])
    assert visible(sink) == before


def test_files_appear_in_the_order_of_their_names(sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards end in any order, and a driver dies between two names: a job that watches the folder has seen the last."""
    receipts = [sink.writer().write(attempt(shard=shard), ROWS) for shard in (2, 0, 1)]
    named: list[str] = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda path, to: [named.append(to.name), replace(path, to)][1])
    sink.publish(1, receipts)
    assert named == [f"epoch-000000000001-shard-0000{shard}{suffix(sink)}" for shard in range(3)]


def test_output_that_is_gone_is_an_error_with_ways_out(sink, tmp_path: Path) -> None:
    """All files at once; the command that the message names lets the job go on without them, and readers of the folder
    see nothing of it. What a job that is started anew loses is told again."""
    receipts = [sink.writer().write(attempt(shard=shard), ROWS) for shard in (0, 1)]
    sink.publish(1, receipts)
    shutil.rmtree(tmp_path / "out")
    assert sink.prepare(ROWS.schema) == f"the folder {tmp_path / 'out'}"
    with pytest.raises(SinkError, match=r"epoch 1, the newest one, is gone: 2 of 2 files") as raised:
        sink.publish(1, receipts)
    assert "joinery state delete" in raised.value.todo
    touch = re.search(r"touch \S+ \S+(?=\.)", raised.value.todo)
    assert touch is not None
    subprocess.run(touch[0], shell=True, check=True)
    sink.publish(1, receipts)
    assert sink.prepare(ROWS.schema) is None
    assert visible(sink) == {}
    sink.publish(2, [sink.writer().write(attempt(epoch=2), ROWS)])
    assert dataset.dataset(tmp_path / "out", format=sink._format).count_rows() == ROWS.num_rows
    again = sink.writer().write(attempt(name="anew"), ROWS)
    shutil.rmtree(tmp_path / "out" / ".staging")
    with pytest.raises(SinkError, match=r"epoch 1, the newest one, is gone: 1 of 1 file"):
        sink.publish(1, [again])


def test_recovery_sweeps_what_no_commit_can_name_any_more(sink) -> None:
    writer = sink.writer()
    for staged_attempt in (attempt(epoch=4), attempt(epoch=5), attempt(epoch=6), attempt(epoch=6, generation=2)):
        writer.write(staged_attempt, ROWS)
    sink.recover(recovery(2, 5))
    assert staged(sink) == [f"1-5-0-a{suffix(sink)}", f"2-6-0-a{suffix(sink)}"]


def test_what_attempts_left_that_were_run_again_goes_with_the_next_epoch(sink) -> None:
    """Not with its own one: in this folder, the dead letters of the epoch may still have to be published."""
    writer = sink.writer()
    named = writer.write(attempt(epoch=7), ROWS)
    for abandoned_attempt in (attempt(epoch=7, name="lost"), attempt(epoch=9, name="zombie")):
        writer.write(abandoned_attempt, ROWS)
    sink.publish(7, [named])
    assert staged(sink) == [f"1-7-0-lost{suffix(sink)}", f"1-9-0-zombie{suffix(sink)}"]
    sink.publish(8, [writer.write(attempt(epoch=8), ROWS)])
    assert staged(sink) == [f"1-9-0-zombie{suffix(sink)}"]
    assert len(visible(sink)) == 2


def test_a_staged_file_that_the_driver_cannot_see_stops_the_commit(sink) -> None:
    """Tasks on another machine wrote to a folder of their own: nothing may be committed that can never be published."""
    receipt = sink.writer().write(attempt(), ROWS)
    sink.in_transaction(None, 1, [receipt])
    for path in staged(sink):
        (sink._directory / ".staging" / path).unlink()
    with pytest.raises(SinkError, match="must share the directory"):
        sink.in_transaction(None, 1, [receipt])


def test_a_folder_with_the_output_of_another_job_is_refused(sink) -> None:
    for epoch in (1, 2):
        sink.publish(epoch, [sink.writer().write(attempt(epoch=epoch), ROWS)])
    sink.recover(recovery(2, 2))
    with pytest.raises(SinkError, match="output of another job"):
        sink.recover(recovery(1, 0))
    assert len(visible(sink)) == 2


def test_a_directory_that_cannot_be_made(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match=r"file/out cannot be written: Not a directory"):
        FileSink(str(tmp_path / "file" / "out")).prepare(ROWS.schema)


def test_a_staging_directory_that_cannot_be_written(sink) -> None:
    staging = Path(sink.writer().directory, ".staging")
    staging.rmdir()
    staging.write_text("")
    with pytest.raises(SinkError, match="cannot be written"):
        sink.writer().write(attempt(), ROWS)


def test_a_full_disk_is_waited_for(sink, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OutputUnavailable, match=r"cannot be written: No space left on device\. Make room"):
            sink.writer().write(attempt(), ROWS)
    sink.publish(1, [sink.writer().write(attempt(name="again"), ROWS)])
    assert list(visible(sink).values()) == [[1, 2]]


def test_parquet_has_every_type_as_it_is(tmp_path: Path) -> None:
    """In a row group per batch: no attempt's rows are in memory together."""
    sink = FileSink(str(tmp_path), "parquet")
    sink.prepare(EVERY_TYPE)
    batches = [pa.RecordBatch.from_pylist([row], EVERY_TYPE) for row in (FULL, EMPTY)]
    sink.publish(1, [sink.writer().write(attempt(), pa.Table.from_batches(batches))])
    (part,) = tmp_path.glob("*.parquet")
    assert pq.read_table(part).to_pylist() == [FULL, EMPTY]
    assert pq.read_schema(part).equals(EVERY_TYPE)
    assert pq.ParquetFile(part).num_row_groups == 2


@pytest.mark.parametrize("named", [True, False], ids=["with its format", "by an earlier release"])
def test_what_was_staged_before_the_format_was_edited_is_published(tmp_path: Path, named: bool) -> None:
    """A driver died between its commit and `publish`; the next one has `format: parquet`."""
    before, after = FileSink(str(tmp_path)), FileSink(str(tmp_path), "parquet")
    before.prepare(ROWS.schema)
    receipt = before.writer().write(attempt(epoch=3), ROWS)
    receipt = {name: value for name, value in receipt.items() if named or name != "format"}
    after.recover(recovery(2, 3))
    after.publish(3, [receipt])
    assert visible(before) == {"epoch-000000000003-shard-00000.jsonl": [1, 2]}
    with pytest.raises(SinkError, match="output of another job"):
        after.recover(recovery(1, 0))


def test_a_part_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "epoch-000000000001-shard-00000.parquet").write_bytes(b"torn")
    with pytest.raises(SinkError, match=r"shard-00000\.parquet cannot be read"):
        list(published_lines(str(tmp_path), 1, lambda _: [], LIFE))
