"""A directory that is watched: every record once across restarts, little to store, and no file left out silently."""

from __future__ import annotations

import gzip
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from joinery_runtime.connectors.files.watched import SETTLE_S
from joinery_runtime.connectors.inputs import planner_for, reader_for
from joinery_runtime.connectors.source import StoredOffsets
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.watermark import InputClock
from joinery_runtime.engine.epoch_budget import Budget
from joinery_runtime.engine.job_state import JobState
from joinery_runtime.engine.next_plan import PlanSettings
from joinery_runtime.engine.plan import EpochPlan, InputState
from joinery_runtime.engine.planner import Planner
from joinery_runtime.engine.source_snapshot import IdleClock
from joinery_runtime.errors import SourceError
from joinery_runtime.job import Input
from stores import STORE


class Watch:
    """A planner over a directory, and the input's state; `restart` goes on with what is stored."""

    def __init__(self, folder: Path, *, once: bool = False, records: int = 1_000, **model: Any) -> None:
        folder.mkdir(exist_ok=True)
        schema = [{"name": "a", "type": "int64"}]
        data = {"name": "in", "format": "json", "schema": schema, "eventTime": "a", **model}
        self.folder, self.model = folder, Input.model_validate({"file": {"path": str(folder), "watch": True}, **data})
        self.state, self.number, self.once, self.records = InputState(), 0, once, records
        self.now_ms = 0
        self.restart()

    def restart(self) -> None:
        self.state = InputState.from_bytes("in", self.state.to_bytes())
        self.source = planner_for(self.model, "job", STORE, once=self.once)
        settings = PlanSettings(1, Budget(self.records, 64 << 20), 3_600_000, "f")
        self.clocks = {"in": InputClock(delay_ms=0)}
        self.planner = Planner(settings, {"in": self.source}, self.clocks, IdleClock({"in": 1_000}), once=self.once)

    def add(self, name: str, *values: int, pack: bool = False) -> None:
        data = b"".join(json.dumps({"a": value}).encode() + b"\n" for value in values)
        path = self.folder / name
        hidden = path.with_name(f".{path.name}")
        hidden.write_bytes(gzip.compress(data) if pack else data)
        hidden.rename(path)

    def plan(self) -> EpochPlan | None:
        self.now_ms += 100
        result = self.planner.plan(JobState(Pipeline((), ()), {"in": self.state}, epoch=self.number), self.now_ms)
        self.status = result.status
        return result.plan

    def commit(self, plan: EpochPlan) -> list[int]:
        values_read: list[int] = []
        highest: dict[str, int | None] = {}
        for batch in reader_for(self.model).read(*plan.ranges):
            rows = batch.columns.to_pylist() if batch.columns is not None else map(json.loads, batch.values.to_pylist())
            values = [row["a"] for row in rows]
            ref = f"{batch.partition.topic}/0"
            highest[ref] = max([*values, *([highest[ref]] if ref in highest else [])])
            values_read += values
        self.state = self.state.after(EpochPlan.from_json(plan.to_json()), "in", highest, self.clocks["in"])
        self.number += 1
        return values_read

    def read(self) -> list[int]:
        """All that is there, by epochs, after a moment in which names settle."""
        values_read: list[int] = []
        for _ in range(3):
            while (plan := self.plan()) is not None:
                values_read += self.commit(plan)
            time.sleep(SETTLE_S)
        return values_read

    @property
    def stored(self) -> list[str]:
        return [Path(ref.topic).name for ref in self.state.positions]


def test_new_files_are_read_once_across_restarts_and_the_input_never_ends(tmp_path) -> None:
    job = Watch(tmp_path / "in")
    assert job.read() == []
    job.add("1.jsonl", 10, 11)
    job.add("2.jsonl.gz", 12, pack=True)
    assert sorted(job.read()) == [10, 11, 12]
    job.restart()
    assert job.read() == []
    job.add("3.jsonl", 13)
    assert job.read() == [13]
    assert not job.status.finished
    assert not job.state.progress.ended


def test_a_directory_that_is_moved_away_is_named_and_goes_on_when_it_is_back(tmp_path) -> None:
    job, elsewhere = Watch(tmp_path / "in"), tmp_path / "elsewhere"
    job.add("1", 10)
    assert job.read() == [10]
    job.folder.rename(elsewhere)
    with pytest.raises(SourceError, match=r"directory .*/in that input in watches is not there: .*\. Put it back"):
        job.plan()
    elsewhere.rename(job.folder)
    job.restart()
    job.add("2", 11)
    assert job.read() == [11]


def test_a_restart_within_a_file_goes_on_there(tmp_path) -> None:
    job, values = Watch(tmp_path / "in", records=3), list(range(20))
    job.add("1", *values[:11])
    job.add("2", *values[11:])
    values_read: list[int] = []
    while (plan := job.plan()) is not None:
        values_read += job.commit(plan)
        job.restart()
    assert sorted(values_read) == values
    assert job.number > 5


def test_what_is_stored_does_not_grow_with_the_files(tmp_path) -> None:
    job = Watch(tmp_path / "in")
    for number in range(6):
        job.add(f"{number:03}", number)
        assert job.read() == [number]
    assert job.stored == ["005"]
    assert len(job.state.topic_ids) == len(job.state.progress.highest) == 1
    for file in sorted(job.folder.iterdir()):
        file.unlink()
    job.restart()
    assert job.read() == [], "files that were read may go"
    job.add("006", 6)
    assert job.read() == [6]


def test_more_files_than_are_read_at_a_time(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("joinery_runtime.connectors.inputs.WINDOW", 4)
    job = Watch(tmp_path / "in")
    for number in range(11):
        job.add(f"{number:03}", number)
    plan = job.plan()
    assert plan is not None
    assert len(plan.ranges) == 4
    assert sorted([*job.commit(plan), *job.read()]) == list(range(11))


def test_the_watermark_follows_the_newest_file_and_no_file_that_was_read_holds_it_back(tmp_path) -> None:
    job = Watch(tmp_path / "in")
    job.add("1", 10)
    job.read()
    assert job.state.progress.watermark == 10
    job.add("2", 50)
    job.read()
    assert job.state.progress.watermark == 50
    for _ in range(12):
        plan = job.plan()
    assert plan is None
    assert job.planner._observe_sources({"in": job.state}, job.now_ms).idle == {"in": (f"{job.folder}/2/0",)}


def test_a_run_once_reads_what_is_there_and_the_next_one_goes_on(tmp_path) -> None:
    job = Watch(tmp_path / "in", once=True)
    job.add("1", 1)
    plan = job.plan()
    assert plan is not None
    job.add("2", 2)
    assert [*job.commit(plan), *job.read()] == [1]
    assert job.status.finished
    job.restart()
    assert job.read() == [2]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_file_that_comes_before_those_that_were_read_stops_the_job(tmp_path, restarts: bool) -> None:
    job = Watch(tmp_path / "in")
    job.add("1", 1)
    job.add("5", 5)
    job.read()
    job.add("6", 6)
    job.read()
    assert job.stored == ["6"]
    job.add("3", 3)
    if restarts:
        job.restart()
    with pytest.raises(SourceError, match=r"/3 of input in is new or was changed, and its turn is over"):
        job.read()
    (job.folder / "3").rename(job.folder / "7")
    assert job.read() == [3]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_file_that_grows_after_it_was_read_stops_the_job(tmp_path, restarts: bool) -> None:
    job = Watch(tmp_path / "in")
    job.add("1", 1)
    job.add("2", 2)
    job.read()
    with (job.folder / "2").open("a") as file:
        file.write('{"a": 3}\n')
    if restarts:
        job.restart()
    with pytest.raises(SourceError, match=r"/2 of input in was changed after reading it had begun"):
        job.read()


def test_an_older_file_that_grows_is_found_at_the_next_start(tmp_path) -> None:
    job = Watch(tmp_path / "in")
    job.add("1", 1)
    job.read()
    job.add("2", 2)
    job.read()
    with (job.folder / "1").open("a") as file:
        file.write('{"a": 3}\n')
    job.restart()
    with pytest.raises(SourceError, match=r"/1 of input in is new or was changed"):
        job.read()


def test_a_plan_is_not_replayed_over_another_file(tmp_path) -> None:
    job = Watch(tmp_path / "in")
    job.add("1", 1)
    plan = job.plan()
    assert plan is not None
    job.restart()
    assert job.planner.replaced_partitions(plan, {"in": job.state}) == frozenset()
    (job.folder / "1").write_text('{"a": 1}\n{"a": 2}\n')
    with pytest.raises(SourceError, match="it had 9 bytes then and has 18 now"):
        job.planner.replaced_partitions(plan, {"in": job.state})


@pytest.mark.parametrize("restarts", [False, True])
def test_a_file_that_is_removed_half_read_is_named_and_goes_on_when_it_is_back(tmp_path, restarts: bool) -> None:
    job, values = Watch(tmp_path / "in", records=2), list(range(6))
    job.add("1", *values)
    first = job.plan()
    assert first is not None
    values_read = job.commit(first)
    assert 0 < len(values_read) < len(values)
    (job.folder / "1").rename(tmp_path / "elsewhere")
    if restarts:
        job.restart()
    message = (
        r"/1 of input in was removed before it was read to its end: it was read up to byte \d+ of 54\. Put the same"
    )
    with pytest.raises(SourceError, match=message):
        job.plan()
    (tmp_path / "elsewhere").rename(job.folder / "1")
    job.restart()
    assert values_read + job.read() == values


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_a_file_that_is_removed_after_its_epoch_was_planned_is_named(tmp_path, kind: str) -> None:
    job = Watch(tmp_path / "in", format=kind)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "parquet")
    (tmp_path / "json").write_text('{"a": 1}\n')
    (tmp_path / kind).rename(job.folder / "1")
    plan = job.plan()
    assert plan is not None
    (job.folder / "1").rename(tmp_path / "elsewhere")
    units = {"json": "bytes 0 to 9", "parquet": "rows 0 to 1"}[kind]
    with pytest.raises(SourceError, match=rf"/1 is not there any more: an epoch is to read its {units}\. Put the same"):
        job.commit(plan)
    job.restart()
    with pytest.raises(SourceError, match=r"removed before it was read to its end: an epoch that reads it is planned"):
        job.planner.replaced_partitions(plan, {"in": job.state})
    (tmp_path / "elsewhere").rename(job.folder / "1")
    assert job.planner.replaced_partitions(plan, {"in": job.state}) == frozenset()
    assert job.commit(plan) == [1]


def test_parquet(tmp_path) -> None:
    job = Watch(tmp_path / "in", format="parquet")
    for number in range(3):
        pq.write_table(pa.table({"a": [number]}), tmp_path / "next")
        (tmp_path / "next").rename(job.folder / f"{number}.parquet")
        assert job.read() == [number]
        job.restart()


def test_watching_neither_begins_nor_ends_on_what_is_stored(tmp_path) -> None:
    job = Watch(tmp_path / "in")
    job.add("1", 1)
    job.read()
    with pytest.raises(SourceError, match="was watched, and is not any more"):
        planner_for(_watching(job.model, watch=False), "job", STORE).bounds(job.state.stored_offsets)
    stored = StoredOffsets(job.state.positions)
    with pytest.raises(SourceError, match="cannot be watched from here on"):
        job.source.bounds(stored)


def in_folders(tmp_path: Path, pattern: str = "dt=*/part-*.json", **more: Any) -> Watch:
    return Watch(tmp_path / "in", file={"path": str(tmp_path / "in" / pattern), "watch": True}, **more)


def new_folder(job: Watch, name: str, **files: int) -> None:
    """Moved in as a whole, some time after its files were written."""
    beside = job.folder.parent / "beside" / name
    beside.mkdir(parents=True)
    for file, value in files.items():
        (beside / f"part-{file}.json").write_text(json.dumps({"a": value}) + "\n")
    (job.folder / name).parent.mkdir(parents=True, exist_ok=True)
    time.sleep(SETTLE_S)
    beside.rename(job.folder / name)


@pytest.mark.parametrize("pattern", ["dt=*/part-*.json", "**/*.json", "**/part-?.json", "*/*", "**"])
def test_files_of_directories_are_read_once_in_order_of_their_paths(tmp_path, pattern: str) -> None:
    job = in_folders(tmp_path, pattern)
    assert job.read() == []
    (job.folder / "dt=25").mkdir()
    job.add("dt=25/part-1.json", 1)
    job.add("dt=25/part-2.json", 2)
    new_folder(job, "dt=26", a=3)
    assert job.read() == [1, 2, 3]
    job.restart()
    assert job.read() == []
    job.add("dt=26/part-b.json", 4)
    (job.folder / ".dt=27").mkdir()
    (job.folder / ".dt=27" / "part-0.json").write_text("hidden")
    (job.folder / "dt=26" / "_SUCCESS").write_text("hidden")
    assert job.read() == [4]
    assert job.stored == ["part-b.json"]
    shutil.rmtree(job.folder / "dt=25")
    job.restart()
    new_folder(job, "dt=28", a=5)
    assert job.read() == [5], "directories that were read may go"


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("dt=*/part-*.json", ["dt=1/part-1.json"]),
        ("**/part-*.json", ["part-0.json", "dt=1/part-1.json", "dt=1/deep/part-2.json"]),
        ("**/deep/**/*.json", ["dt=1/deep/part-2.json"]),
        ("**", ["part-0.json", "dt=1/part-1.json", "dt=1/other", "dt=1/deep/part-2.json"]),
        ("*", ["part-0.json"]),
    ],
)
def test_a_pattern_means_what_it_does_where_nothing_is_watched(tmp_path, pattern: str, fits: list[str]) -> None:
    job = in_folders(tmp_path, pattern)
    every = ["part-0.json", "dt=1/part-1.json", "dt=1/other", "dt=1/deep/part-2.json"]
    for value, name in enumerate(every):
        (job.folder / name).parent.mkdir(exist_ok=True, parents=True)
        (job.folder / name).write_text(json.dumps({"a": value}) + "\n")
    assert sorted(job.read()) == sorted(every.index(name) for name in fits)
    once = planner_for(_watching(job.model, watch=False), "job", STORE).bounds(StoredOffsets())
    assert sorted(bound.partition.topic for bound in once) == sorted(str(job.folder / name) for name in fits)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("moved_in", [False, True])
def test_a_directory_that_comes_before_those_that_were_read_stops_the_job(
    tmp_path, restarts: bool, moved_in: bool
) -> None:
    job = in_folders(tmp_path)
    new_folder(job, "dt=20", a=1)
    if not moved_in:
        (job.folder / "dt=22").mkdir()
    else:
        (tmp_path / "beside" / "dt=22").mkdir()
        (tmp_path / "beside" / "dt=22" / "part-a.json").write_text('{"a": 2}\n')
        time.sleep(SETTLE_S)
    new_folder(job, "dt=25", a=5)
    assert job.read() == [1, 5]
    if moved_in:  # of which no file has changed since
        (tmp_path / "beside" / "dt=22").rename(job.folder / "dt=22")
    else:
        job.add("dt=22/part-a.json", 2)
    if restarts:
        job.restart()
    with pytest.raises(
        SourceError, match=r"/dt=22/part-a.json of input in is new or was changed, and its turn is over"
    ):
        job.read()
    (job.folder / "dt=22").rename(job.folder / "dt=26")
    assert job.read() == [2]


def test_a_directory_that_comes_too_late_is_seen_whatever_is_put_into_it(tmp_path) -> None:
    """That changes both of its times, and its move does not show any more."""
    job = in_folders(tmp_path)
    new_folder(job, "dt=20", a=1)
    (tmp_path / "beside" / "dt=22").mkdir()
    (tmp_path / "beside" / "dt=22" / "part-a.json").write_text('{"a": 2}\n')
    new_folder(job, "dt=25", a=5)
    assert job.read() == [1, 5]
    (tmp_path / "beside" / "dt=22").rename(job.folder / "dt=22")
    (job.folder / "dt=22" / "_SUCCESS").write_text("")
    with pytest.raises(SourceError, match=r"/dt=22/part-a.json of input in is new or was changed"):
        job.read()


def test_a_new_file_beside_files_that_were_read_long_ago_does_not_make_them_new(tmp_path) -> None:
    """It changes their directory."""
    job = in_folders(tmp_path)
    new_folder(job, "dt=25", a=1, b=2)
    assert job.read() == [1, 2]
    job.add("dt=25/part-c.json", 3)
    assert job.read() == [3]
    (job.folder / "dt=25" / "part-a.json").unlink()
    job.restart()
    assert job.read() == []


def test_a_directory_that_is_not_there(tmp_path) -> None:
    job = Watch(tmp_path / "in")
    job.folder.rmdir()
    with pytest.raises(SourceError, match=r"directory .*/in that input in watches is not there"):
        job.plan()


def _watching(model: Input, *, watch: bool) -> Input:
    assert model.file is not None
    return model.model_copy(update={"file": model.file.model_copy(update={"watch": watch})})
