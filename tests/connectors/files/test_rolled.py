"""Files of several epochs: when they are merged, and that a reader of the folder gets each row once, whatever dies."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.rows import EMPTY, EVERY_TYPE, FULL, INCARNATION, attempt, recovery
from joinery_runtime.connectors.files import rolling
from joinery_runtime.connectors.files import sink as files
from joinery_runtime.connectors.files.rolling import Rolling
from joinery_runtime.connectors.files.sink import FileSink, published_lines
from joinery_runtime.connectors.sink import Receipt, short_incarnation
from joinery_runtime.errors import Fenced, SinkError

EPOCHS = 6
SUFFIX = {"json": ".jsonl", "parquet": ".parquet"}
HOUR_MS = 3_600_000


@pytest.fixture(params=["json", "parquet"])
def file_format(request) -> str:
    return request.param


def rows(epoch: int, shard: int) -> pa.Table:
    """Three rows that no other part has."""
    return pa.table({"a": [100 * epoch + 10 * shard + n for n in range(3)]})


@dataclass
class Store:
    """The state store of a job: its generation, and the receipts of its committed epochs."""

    folder: Path
    file_format: str
    size: int = 1 << 20
    interval: int = HOUR_MS
    now: float = field(default_factory=time.time)
    generation: int = 0
    committed: list[list[Receipt]] = field(default_factory=list)

    def sink(self) -> FileSink:
        rolling = Rolling(self.size, self.interval)
        file_sink = FileSink(str(self.folder), self.file_format, rolling=rolling, wall=lambda: self.now)
        file_sink.prepare(rows(1, 0).schema)
        return file_sink

    def commit(self, generation: int, epoch: int, receipts: list[Receipt]) -> None:
        if generation != self.generation:
            raise Fenced("another driver has taken over")
        assert epoch == len(self.committed) + 1
        self.committed.append(json.loads(json.dumps(receipts)))

    def drive(self, sink: FileSink, until: int = EPOCHS) -> None:
        """A driver: recovers, then runs epochs of two shards, of which every third is empty; closes with the last."""
        self.generation += 1
        generation = self.generation
        done = len(self.committed)
        if done:
            sink.publish(done, self.committed[-1])
        sink.recover(recovery(generation, done))
        for epoch in range(done + 1, until + 1):
            shards = range(0 if epoch % 3 == 0 else 2)
            self.epoch(sink, generation, epoch, shards, last=epoch == EPOCHS)

    def epoch(self, sink: FileSink, generation: int, epoch: int, shards: range, *, last: bool = False) -> None:
        writer = sink.writer()
        written = [writer.write(attempt(epoch, shard, generation), rows(epoch, shard)) for shard in shards]
        named = [*written, *sink.seal(generation, epoch, written, last=last)]
        sink.in_transaction(None, epoch, named)
        self.commit(generation, epoch, named)
        sink.publish(epoch, named)

    def all_rows(self) -> Counter[int]:
        shown = [(epoch, shard) for epoch in range(1, EPOCHS + 1) if epoch % 3 for shard in (0, 1)]
        return Counter(value for epoch, shard in shown for value in rows(epoch, shard)["a"].to_pylist())


def read(folder: Path) -> Counter[int]:
    """What a reader of `folder/*.jsonl` or `folder/*.parquet` gets."""
    value_counts: Counter[int] = Counter()
    for path in folder.glob("*.*"):
        if path.suffix == ".parquet":
            value_counts.update(pq.read_table(path)["a"].to_pylist())
        elif path.suffix == ".jsonl":
            value_counts.update(json.loads(line)["a"] for line in path.read_bytes().splitlines())
    return value_counts


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


@pytest.fixture
def store(tmp_path: Path, file_format: str) -> Store:
    return Store(tmp_path / "out", file_format)


# --- when -------------------------------------------------------------------------------------------------------------


def test_small_files_wait_until_they_are_large_together(store: Store) -> None:
    sink = store.sink()
    store.drive(sink, until=1)
    size = sum(path.stat().st_size for path in (store.folder / ".held").iterdir())
    store.size = 2 * size
    sink = store.sink()
    store.drive(sink, until=1)
    assert (names(store.folder), sink.buffered_rows, sink.due(last=False), sink.due(last=True)) == ([], 6, False, True)
    store.epoch(sink, store.generation, 2, range(2))
    assert names(store.folder) == [f"epoch-000000000002-since-000000000001{SUFFIX[store.file_format]}"]
    assert sorted(read(store.folder)) == [100, 101, 102, 110, 111, 112, 200, 201, 202, 210, 211, 212]
    assert (
        sink.buffered_rows,
        list((store.folder / ".held").iterdir()),
        list((store.folder / ".staging").iterdir()),
    ) == (
        0,
        [],
        [],
    )


def test_an_old_one_does_not_wait_for_more(store: Store) -> None:
    """Its age is that of the file, so it goes on when another driver takes over."""
    store.interval = 60_000
    store.drive(store.sink(), until=1)
    (oldest, *_) = sorted((store.folder / ".held").iterdir())
    os.utime(oldest, (1_000.0, 1_000.0))
    store.now = 1_059.9
    sink = store.sink()
    store.drive(sink, until=1)
    assert not sink.due(last=False)
    store.now = 1_060.0
    assert sink.due(last=False)
    store.epoch(sink, store.generation, 2, range(0))
    assert names(store.folder) == [f"epoch-000000000002-since-000000000001{SUFFIX[store.file_format]}"]
    assert not sink.due(last=True)


def test_a_clock_that_was_set_back_holds_no_file_for_longer(store: Store) -> None:
    store.interval = 60_000
    sink = store.sink()
    store.drive(sink, until=1)
    assert not sink.due(last=False)
    store.now -= 3_600
    assert sink.due(last=False)


def test_a_large_file_is_not_held(store: Store) -> None:
    store.size = 1
    sink = store.sink()
    store.drive(sink, until=1)
    assert names(store.folder) == [f"epoch-000000000001-shard-0000{n}{SUFFIX[store.file_format]}" for n in (0, 1)]
    assert sink.buffered_rows == 0


def test_a_file_s_name_is_behind_those_that_are_there(store: Store) -> None:
    """So that another job may watch the folder: a large file has appeared, and what was held longer comes after it."""
    store.size = 4096
    sink = store.sink()
    store.drive(sink, until=1)
    large = pa.table({"a": np.random.default_rng(1).permutation(10_000) + 1_000})
    written = [sink.writer().write(attempt(2, shard), table) for shard, table in enumerate((large, rows(2, 1)))]
    sink.publish(2, [*written, *sink.seal(1, 2, written, last=False)])
    (first,) = names(store.folder)
    sink.publish(3, sink.seal(1, 3, [], last=True))
    assert names(store.folder) == [first, f"epoch-000000000003-since-000000000001{SUFFIX[store.file_format]}"]
    assert read(store.folder).total() == 10_009


def test_without_rolling_each_epoch_is_visible_at_once(tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path))
    sink.prepare(rows(1, 0).schema)
    written = [sink.writer().write(attempt(), rows(1, 0))]
    assert list(sink.seal(1, 1, written, last=True)) == []
    sink.publish(1, written)
    assert (len(names(tmp_path)), sink.buffered_rows, sink.due(last=True)) == (1, 0, False)


def test_columns_that_changed_make_another_file(store: Store) -> None:
    sink = store.sink()
    store.drive(sink, until=1)
    wider = sink.writer().write(attempt(2), pa.table({"a": [1], "b": [2.5]}))
    named = [wider, *sink.seal(1, 2, [wider], last=True)]
    sink.publish(2, named)
    expected = {"json": 1, "parquet": 2}[store.file_format]
    assert len(names(store.folder)) == expected
    assert sum(read(store.folder).values()) == 7


def test_parquet_keeps_its_types_in_large_row_groups(tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path), "parquet", rolling=Rolling(1 << 20, HOUR_MS))
    sink.prepare(EVERY_TYPE)
    for epoch in (1, 2):
        batches = [pa.RecordBatch.from_pylist([row], EVERY_TYPE) for row in (FULL, EMPTY)]
        written = [sink.writer().write(attempt(epoch), pa.Table.from_batches(batches))]
        sink.publish(epoch, [*written, *sink.seal(1, epoch, written, last=epoch == 2)])
    (merged,) = tmp_path.glob("*.parquet")
    assert pq.read_table(merged).to_pylist() == [FULL, EMPTY] * 2
    assert pq.read_schema(merged).equals(EVERY_TYPE)
    assert pq.ParquetFile(merged).num_row_groups == 1


# --- which rows are of which epoch ------------------------------------------------------------------------------------


def test_each_epoch_s_rows_are_found_wherever_they_are(store: Store) -> None:
    sink = store.sink()
    store.drive(sink, until=3)
    assert [values_of(store, epoch) for epoch in (1, 2, 3)] == [expected_of(1), expected_of(2), []], "held"
    store.drive(sink)
    assert names(store.folder) == [f"epoch-000000000006-since-000000000001{SUFFIX[store.file_format]}"]
    assert [values_of(store, e) for e in (1, 3, 4, 5)] == [expected_of(1), [], expected_of(4), expected_of(5)], "merged"


def test_rows_that_no_commit_has_named_are_found_once(store: Store) -> None:
    """A file of several epochs that has grown, and one that is there under two names."""
    store.drive(store.sink())
    (merged,) = store.folder.glob("epoch-*")
    everything = [value for epoch in (1, 2, 4, 5) for value in expected_of(epoch)]
    again = merged.with_name(merged.name.replace("since-000000000001", "since-000000000002"))
    again.write_bytes(merged.read_bytes())
    assert [value for epoch in range(1, 7) for value in values_of(store, epoch)] == everything * 2
    again.unlink()
    if store.file_format == "json":
        with merged.open("a") as file:
            file.write('{"a":100}\n')
    else:
        pq.write_table(pa.concat_tables([pq.read_table(merged), pa.table({"a": [100]})]), merged)
    assert [value for epoch in range(1, 7) for value in values_of(store, epoch)] == [*everything, 100]


def values_of(store: Store, epoch: int) -> list[int]:
    lines = published_lines(
        str(store.folder), epoch, lambda number: store.committed[number - 1], short_incarnation(INCARNATION)
    )
    return [json.loads(line)["a"] for line in lines]


def expected_of(epoch: int) -> list[int]:
    return [value for shard in (0, 1) for value in rows(epoch, shard)["a"].to_pylist()]


def test_an_epoch_s_rows_are_found_while_they_are_merged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job goes on while `joinery verify` looks: what was held when it began to look is gone when it reads."""
    sink = store.sink()
    store.drive(sink, until=2)
    looked = rolling.held_parts(store.folder)
    store.drive(sink)
    monkeypatch.setattr(files, "held_parts", lambda *_: looked)
    assert values_of(store, 1) == expected_of(1)
    for path in store.folder.glob("epoch-*"):
        path.unlink()
    with pytest.raises(SinkError, match="cannot be read"):
        values_of(store, 1)


def test_a_folder_that_holds_another_job_s_rows_is_refused(store: Store) -> None:
    store.drive(store.sink(), until=2)
    with pytest.raises(SinkError, match="output of another job") as raised:
        store.sink().recover(recovery(1, 0))
    assert ".held/epoch-000000000002-shard-00001-rows-3" in raised.value.facts
    store.drive(store.sink())
    with pytest.raises(SinkError, match="output of another job"):
        store.sink().recover(recovery(9, 4))


def test_what_was_merged_is_not_merged_again_by_a_job_that_is_started_anew(store: Store) -> None:
    """It died between the name of the merged file and the removal; without its signature nothing is published again."""
    sink = store.sink()
    store.drive(sink, until=2)
    held_files = {path: path.read_bytes() for path in (store.folder / ".held").iterdir()}
    store.epoch(sink, store.generation, 3, range(0), last=True)
    for path, data in held_files.items():
        path.write_bytes(data)
    anew = store.sink()
    anew.recover(recovery(9, 3))
    assert (anew.buffered_rows, anew.due(last=True), len(names(store.folder))) == (0, False, 1)


def test_another_life_s_held_files_are_left_alone_and_told_of(store: Store) -> None:
    """The state was deleted, so that the rows are written again; or a live job's folder is another job's by an edit."""
    earlier = store.sink()
    store.drive(earlier, until=2)
    held_files = sorted((store.folder / ".held").iterdir())
    other, warnings = store.sink(), list[str]()
    other.recover(recovery(1, 100, incarnation="another-life", warn=warnings.append))
    assert (other.buffered_rows, other.due(last=True)) == (0, False)
    written = [other.writer().write(attempt(101, incarnation="another-life"), rows(101, 0))]
    other.publish(101, [*written, *other.seal(1, 101, written, last=True)])
    assert sorted(read(store.folder)) == [10_100, 10_101, 10_102]
    assert sorted((store.folder / ".held").iterdir()) == held_files
    (warning,) = warnings
    assert warning.startswith(
        f"{store.folder / '.held'}/*-of-{short_incarnation(INCARNATION)}.* hold 12 rows of another job"
    )
    store.epoch(earlier, store.generation, 3, range(0), last=True)
    assert set(read(store.folder).values()) == {1}
    assert read(store.folder).total() == 15, "the job whose they are still shows them"


def test_a_held_file_that_is_gone_or_torn_is_named(store: Store) -> None:
    sink = store.sink()
    store.drive(sink, until=2)
    (first, second, *_) = sorted((store.folder / ".held").iterdir())
    first.unlink()
    with pytest.raises(SinkError, match=r"held in .* cannot be merged"):
        store.epoch(sink, store.generation, 3, range(0), last=True)
    anew = store.sink()
    anew.recover(recovery(1, 2))
    second.write_bytes(b"" if store.file_format == "json" else b"PAR1")
    with pytest.raises(SinkError, match=r"held in .* cannot be merged"):
        store.epoch(anew, store.generation, 3, range(0), last=True)
    assert len(store.committed) == 2


# --- whatever dies ----------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """As SIGKILL: nothing after it runs."""


@contextmanager
def stopping(at: int, then: Callable[[], None], between: Callable[[], None]) -> Iterator[list[int]]:
    """Calls `then` before the call number `at` that changes the file system, and `between` before each one."""
    calls = [0]
    active = [True]

    def around(original):
        def called(*args, **kwargs):
            if active[0]:
                active[0] = False  # what happens in between is not counted
                between()
                calls[0] += 1
                if calls[0] == at:
                    then()
                active[0] = True
            return original(*args, **kwargs)

        return called

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", around(lambda _: None))
        for name in ("replace", "unlink"):
            patch.setattr(Path, name, around(getattr(Path, name)))
        yield calls
        active[0] = False


class Reader:
    """Looks at the folder again and again: no row twice, and none that goes."""

    def __init__(self, store: Store) -> None:
        self._store, self._seen = store, Counter[int]()

    def look(self) -> None:
        value_counts = read(self._store.folder)
        assert set(value_counts.values()) <= {1}, "a row is there twice"
        assert value_counts >= self._seen, "a row has gone"
        self._seen = value_counts


def rolls_every_two_epochs(folder: Path, file_format: str) -> Store:
    return Store(folder, file_format, size={"json": 70, "parquet": 1400}[file_format])


def cases(folder: Path, file_format: str) -> Iterator[tuple[int, Store]]:
    """One for each call that changes the file system in a run that nothing disturbs."""
    undisturbed = rolls_every_two_epochs(folder / "undisturbed", file_format)
    with stopping(0, lambda: None, lambda: None) as calls:
        undisturbed.drive(undisturbed.sink())
    assert len(names(undisturbed.folder)) >= 2, "it rolls more than once"
    assert read(undisturbed.folder) == undisturbed.all_rows()
    assert calls[0] > 40
    for at in range(1, calls[0] + 1):
        yield at, rolls_every_two_epochs(folder / str(at), file_format)


def test_a_driver_may_die_at_every_step(tmp_path: Path, file_format: str) -> None:
    def kill() -> None:
        raise Killed

    for at, store in cases(tmp_path, file_format):
        reader = Reader(store)
        with stopping(at, kill, reader.look), suppress(Killed):
            store.drive(store.sink())
        reader.look()
        for epoch in range(1, len(store.committed) + 1):
            assert sorted(values_of(store, epoch)) == (expected_of(epoch) if epoch % 3 else []) or epoch == len(
                store.committed
            )
        with stopping(0, lambda: None, reader.look):
            store.drive(store.sink())
        assert read(store.folder) == store.all_rows(), at
        assert not any((store.folder / ".held").iterdir()), at


def test_a_driver_may_sleep_at_every_step_while_another_one_takes_over(tmp_path: Path, file_format: str) -> None:
    """What it does when it wakes changes nothing: its commit is refused, and what it has committed is published."""
    for at, store in cases(tmp_path, file_format):
        reader = Reader(store)
        with stopping(at, lambda store=store: store.drive(store.sink()), reader.look), suppress(Fenced, SinkError):
            store.drive(store.sink())
        reader.look()
        assert read(store.folder) == store.all_rows(), at
