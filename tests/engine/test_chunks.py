"""Output is made, written and handed on in chunks of bounded size, whatever a key makes of it."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from engine.sim_jobs import CHAIN, INNER
from engine.sim_sink import NoTopic, SimWriter
from engine.sim_steps import started
from engine.simulation import World
from joinery_runtime.connectors.sink import Attempt, AttemptRows, Receipt
from joinery_runtime.core.kinds import rows as core_rows
from joinery_runtime.engine import output_limit
from joinery_runtime.engine.output_limit import ReplayableBatches, in_chunks, slice_batches

HOT = 30  # records of one key on each side


def batch(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())})


def batches_of(*sizes: int) -> Generator[pa.RecordBatch, None, str]:
    first = 0
    for size in sizes:
        yield batch(first, size)
        first += size
    return "done"


def sizes(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [record_batch.num_rows for record_batch in batches]


@pytest.mark.parametrize(
    ("batch_sizes", "expected"),
    [((), []), ((3, 4), [7]), ((6, 5, 1), [6, 6]), ((12, 1), [12, 1]), ((5, 5, 5), [10, 5])],
)
def test_small_batches_become_chunks(
    batch_sizes: Sequence[int], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_limit, "CHUNK_ROWS", 10)
    assert sizes(in_chunks(batches_of(*batch_sizes))) == expected


def test_chunks_are_bounded_by_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_limit, "CHUNK_BYTES", 8 * 10)
    assert sizes(in_chunks(batches_of(6, 5, 1))) == [6, 6]
    assert sizes(slice_batches([batch(0, 25)])) == [10, 10, 5]


def test_rows_are_made_while_they_are_read_and_again_for_who_reads_again() -> None:
    begun = []

    def make() -> Generator[pa.RecordBatch, None, str]:
        begun.append("begun")
        return (yield from batches_of(3, 4))

    rows = ReplayableBatches(make)
    assert rows.any()
    assert [record_batch["n"].to_pylist() for record_batch in rows.to_batches()] == [list(range(7))]
    assert (rows.result(), rows.count, len(begun)) == ("done", 7, 1)
    assert sizes(rows.to_batches()) == [7]
    assert (rows.result(), rows.count, len(begun)) == ("done", 7, 2)


def test_what_nobody_reads_is_made_for_its_result() -> None:
    rows = ReplayableBatches(lambda: batches_of(3, 4))
    assert rows.any()
    assert (rows.result(), rows.count) == ("done", 7)
    empty = ReplayableBatches(batches_of)
    assert not empty.any()
    assert (empty.result(), empty.count) == ("done", 0)


class Recorder(SimWriter):
    """Notes the size of every chunk that is written."""

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        self._sink.chunks += sizes(iter(rows.to_batches()))
        return super().write(attempt, rows)


class RecordingSink(NoTopic):
    chunks: list[int]

    def writer(self) -> SimWriter:
        self.chunks = []
        return Recorder(self)


@pytest.mark.parametrize("job", [INNER, CHAIN])
def test_a_hot_key_is_written_in_bounded_chunks(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_limit, "CHUNK_ROWS", 40)
    monkeypatch.setattr(core_rows, "PROJECTED_ROWS", 40)
    text = job.replace('"maxRecordsPerEpoch": 6', '"maxRecordsPerEpoch": 1000')
    world = type("HotWorld", (World,), {"sink_type": RecordingSink, "job_text": text})(tmp_path)
    for name, count in (("orders", HOT), ("payments", HOT), ("refunds", 1)):
        for number in range(count if name in world.topics else 0):
            world.append(name, 0, "a", 1_000, identifier=number)
    driver = started(world)
    plan = driver.plan()
    assert plan is not None
    report = driver.commit(plan, driver.run(plan))
    assert report.rows_out == len(world.output.table) == sum(world.output.chunks) == HOT * HOT
    assert max(world.output.chunks) <= 40
    world.close()
