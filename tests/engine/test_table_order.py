"""A stream's rows take the versions of their times, however the reading is cut into epochs and runs (A1 to A4)."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import examples, rest_in_search
from engine.sim_jobs import AS_OF
from engine.simulation import World
from joinery_runtime.engine.driver import Driver

pytestmark = pytest.mark.usefixtures("simulated_topics")

PARTITIONS = 2


class TableWorld(World):
    partitions: ClassVar[Mapping[str, int]] = {"orders": PARTITIONS, "payments": PARTITIONS}


def as_of(kind: str, **settings: int) -> str:
    job = json.loads(AS_OF)
    job["spec"]["joins"][0] |= {"type": kind, "asOf": settings}
    for side in job["spec"]["inputs"]:
        side["watermark"]["delay"] = 0
    return json.dumps(job)


class AtOnceWorld(TableWorld):
    job_text = as_of("left", historyRetention=10)


class InnerWorld(TableWorld):
    job_text = as_of("inner", historyRetention=10)


class ShortHistoryWorld(TableWorld):
    job_text = as_of("left", historyRetention=20, grace=15)


class WaitingWorld(TableWorld):
    job_text = as_of("left", historyRetention=100_000, grace=15)


@dataclass(frozen=True)
class Row:
    name: str
    partition: int
    key: str
    step: int  # ms since the row before, of both inputs


@dataclass(frozen=True)
class Run:
    """What one start of the job does. When it starts, `rows` are there, which are later than those of earlier runs. It
    makes `epochs`, or all that there are."""

    rows: Sequence[Row]
    max_records: int
    shards: int
    epochs: int | None


ROWS = st.lists(
    st.builds(
        Row,
        st.sampled_from(["orders", "payments"]),
        st.integers(0, PARTITIONS - 1),
        st.sampled_from("ab"),
        st.integers(0, 4),
    ),
    max_size=30,
)
RUNS = st.lists(
    st.builds(Run, ROWS, st.integers(2, 12), st.integers(1, 2), st.one_of(st.none(), st.integers(0, 4))), max_size=5
)


def rows_joined(world: World, runs: Sequence[Run]) -> Counter[Any]:
    """What the job puts out in these runs, and in one more that reads everything to its end. When it first starts,
    nothing is there: it would read the table alone, ahead of the stream by more than the history is kept."""
    now, identifier = 1_000, 0
    for run in [Run([], 2, 1, None), *runs, Run([], 1_000, 1, None)]:
        now += 1
        for row in run.rows:
            now, identifier = now + row.step, identifier + 1
            world.append(row.name, row.partition, row.key, now, identifier=identifier)
        driver = world.new_driver(run.shards, max_records=run.max_records)
        driver.recover()
        for _ in _epochs(driver, run.epochs):
            pass
    world.end_inputs()
    for _ in _epochs(driver, None):
        pass
    return Counter(world.output.table)


def _epochs(driver: Driver, most: int | None) -> Iterator[None]:
    committed = 0
    while (most is None or committed < most) and (plan := driver.plan()) is not None:
        driver.commit(plan, driver.run(plan))
        committed += 1
        yield


def rows_expected(world: World) -> Counter[Any]:
    """Each row of the stream with the newest version that is not newer; of versions of one time, that with the higher
    offset, then partition."""
    versions = sorted(_records(world, "payments"), key=lambda at: (at[0]["ts"], at[2], at[1]))
    joined = []
    for row, _, _ in _records(world, "orders"):
        valid = [v["id"] for v, _, _ in versions if v["k"] == row["k"] and v["ts"] <= row["ts"]]
        joined.append((row["id"], valid[-1] if valid else None))
    left = '"left"' in world.job_text
    return Counter(pair for pair in joined if left or pair[1] is not None)


def _records(world: World, name: str) -> Iterator[tuple[dict[str, Any], int, int]]:
    for partition, values in enumerate(world.topics[name].partitions):
        for offset, value in enumerate(values):
            assert value is not None
            yield json.loads(value), partition, offset


@pytest.mark.parametrize("world_type", rest_in_search([AtOnceWorld, InnerWorld, WaitingWorld], (WaitingWorld,)))
@settings(max_examples=examples(400), deadline=None)
@given(runs=RUNS)
def test_the_result_does_not_depend_on_where_epochs_and_runs_end(world_type: type[World], runs: Sequence[Run]) -> None:
    with tempfile.TemporaryDirectory() as cache, closing(world_type(Path(cache))) as world:
        assert rows_joined(world, runs) == rows_expected(world)


def test_rows_that_end_their_grace_after_a_backlog_find_their_versions(tmp_path: Path) -> None:
    """A2: the table is read to its end first, 190 ms ahead of the stream's first rows. The stream is read in two
    epochs, and in the epoch after each of them rows go out that have waited for the stream only."""
    times = sorted([*((10 * n, "payments") for n in range(20)), *((5 * n + 2, "orders") for n in range(40))])
    before = [0, *(at for at, _ in times)]
    rows = [Row(name, 0, "a", at - last) for (at, name), last in zip(times, before, strict=False)]
    with closing(ShortHistoryWorld(tmp_path)) as world:
        assert rows_joined(world, [Run(rows, 44, 1, None)]) == rows_expected(world)
