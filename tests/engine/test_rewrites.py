"""Segments that no event time ends are written anew, cut to shards, after a rescale; wide ones serve a narrower job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.audit import Auditor
from engine.sim_run import small_world
from engine.sim_steps import add, epochs, record, started
from engine.simulation import World
from joinery_runtime.core.table import compaction
from joinery_runtime.core.table.blob import from_blob
from joinery_runtime.core.table.columns import HASH
from joinery_runtime.core.table.keyhash import shard_range
from joinery_runtime.core.table.segment import SegmentMeta
from joinery_runtime.engine import worker
from joinery_runtime.engine.limits import StateLimits
from joinery_runtime.engine.next_plan import PlanSettings
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.inspect.trace_steps import Step
from joinery_runtime.job import StreamJoin, parse_job
from joinery_runtime.state.memory import MemoryStore

STEPS = {
    "tumbling": "window: {tumbling: 100ms}",
    "session": "window: {session: {gap: 10ms}}",
    "asOf": "asOf: {historyRetention: 50ms, grace: 0}",
    "interval": "interval: {of: l, lower: -10ms, upper: 10ms}",
}
SELECT = "[{column: l.v, as: l}, {column: r.v, as: r}]"
WIDE = "[{column: l.v, as: l}, {column: l.w, as: lw}, {column: r.v, as: r}, {column: r.w, as: rw}]"


def job(step: str, select: str = SELECT, kind: str = "inner", w: str = "string") -> StreamJoin:
    table = ", table: {key: [k]}" if step == "asOf" else ""
    joins = f"{{right: r, type: {kind}, keys: {{l.k: r.k}}, {STEPS[step]}}}"
    return written(source("l", w) + source("r", w, table), joins, select)


def chain(select: str) -> StreamJoin:
    joins = ", ".join(f"{{right: {name}, keys: {{l.k: {name}.k}}, {STEPS['interval']}}}" for name in "rs")
    return written("".join(map(source, "lrs")), joins, select)


def source(name: str, w: str = "string", more: str = "") -> str:
    columns = (
        f"[{{name: k, type: string}}, {{name: v, type: string}}, {{name: w, type: {w}}}, {{name: ts, type: int64}}]"
    )
    return f"    - {{name: {name}, file: {{path: {name}}}, format: json, schema: {columns}, eventTime: ts{more}}}\n"


def written(inputs: str, joins: str, select: str) -> StreamJoin:
    return parse_job(
        f"""
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: rewritten}}
spec:
  inputs:
{inputs}
  joins: [{joins}]
  select: {select}
  output: {{file: {{path: out}}}}
  stateStore: {{memory: {{}}}}
""",
        "test",
    )


def rows(*keys: str, ts: int, mark: str = "") -> list[dict[str, Any]]:
    return [{"k": key, "v": key + mark, "w": "wide", "ts": ts} for key in keys]


def play(played_job: StreamJoin, steps: Sequence[Step], store: MemoryStore, shards: int) -> list[dict[str, Any]]:
    return [row for line in run_trace(played_job, steps, store, shards) for row in line["output"]]


def live(store: MemoryStore, part: str) -> list[SegmentMeta]:
    record = store.record("rewritten")
    assert record is not None
    return [meta for meta in record.segments if meta.part == part]


@pytest.fixture
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after every epoch with rows."""
    monkeypatch.setattr(PlanSettings, "checkpoint_interval_ms", property(lambda _: 0, lambda _, __: None))


@pytest.mark.parametrize("capped", [False, True])
def test_what_a_checkpoint_puts_off_is_merged_by_the_next_epochs(
    capped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One group of segments an epoch here; with a limit of the state, which counts them, all at once."""
    small_world(monkeypatch)
    monkeypatch.setattr(compaction, "FAN_IN", 99)
    monkeypatch.setattr(compaction, "CHECKPOINT_FAN_IN", 3)
    monkeypatch.setattr(StateLimits, "capped", capped)
    world = World(tmp_path)
    driver, auditor = started(world, shards=1), Auditor(world)
    counts = []
    for epoch in range(6):
        world.now_ms += 70 if epoch == 3 else 1
        for name in ("orders", "payments"):
            add(world, name, epoch, 1_000 + epoch)
        (plan,) = epochs(driver, auditor)
        assert plan.checkpoint == (epoch == 3)
        parts = [meta.part for meta in record(world).segments]
        counts.append((parts.count("left"), parts.count("right")))
    assert counts[:3] == [(1, 1), (2, 2), (3, 3)], "each epoch adds one to either side"
    assert counts[3:] == ([(2, 2), (3, 3), (4, 4)] if capped else [(2, 4), (3, 2), (4, 3)])
    world.close()


KEYS = [f"key{n}" for n in range(40)]


@pytest.mark.usefixtures("checkpoints")
@pytest.mark.parametrize("step", ["session", "asOf"])
def test_after_a_rescale_each_shard_writes_its_rows_of_a_segment_once(step: str) -> None:
    store = MemoryStore()
    play(job(step), [{"rows": {"l": [], "r": rows(*KEYS, ts=100)}}], store, 1)
    (spanning,) = live(store, "right")
    output = play(job(step), [{"rows": {"l": rows(*KEYS, ts=105)}}, {"end": True}], store, 4)
    assert sorted(row["r"] for row in output) == sorted(KEYS)
    parts = live(store, "right")
    assert spanning.key not in {meta.key for meta in parts}
    if step == "asOf":  # a session's rows are gone when it has gone out
        assert sum(meta.rows for meta in parts) == len(KEYS)
        owned = [shard_range(shard, 4) for shard in range(4)]
        assert all(any(o.contains(meta.hash_min, meta.hash_max) for o in owned) for meta in parts)
        blobs = store.read_segments("rewritten", [meta.key for meta in parts])
        assert len({h for blob in blobs.values() for h in from_blob(blob).column(HASH).to_pylist()}) == len(KEYS)


@pytest.mark.usefixtures("checkpoints")
@pytest.mark.parametrize("step", list(STEPS))
def test_a_job_that_selects_less_goes_on(step: str) -> None:
    store = MemoryStore()
    play(job(step, WIDE), [{"rows": {"l": [], "r": rows("a", "b", ts=100)}}], store, 1)
    read = rows("a", "b", ts=100)  # each run has all records from the start
    later: list[Step] = [{"rows": {"l": rows("a", ts=101), "r": [*read, *rows("b", ts=101, mark="2")]}}]
    later += [{"rows": {"l": rows("b", ts=102), "r": []}}, {"end": True}]
    output = play(job(step), later, store, 1)
    expected = [("a", "a"), ("b", "b2")] + ([] if step == "asOf" else [("b", "b")])
    assert sorted((row["l"], row["r"]) for row in output) == sorted(expected)


@pytest.mark.usefixtures("checkpoints")
@pytest.mark.parametrize("step", list(STEPS))
def test_a_job_that_selects_more_goes_on_and_what_was_not_stored_is_null(step: str) -> None:
    store = MemoryStore()
    play(job(step), [{"rows": {"l": [], "r": rows("a", "b", ts=100)}}], store, 1)
    read = rows("a", "b", ts=100)  # each run has all records from the start
    later: list[Step] = [{"rows": {"l": rows("a", ts=101), "r": [*read, *rows("b", ts=101, mark="2")]}}]
    later += [{"rows": {"l": rows("b", ts=102), "r": []}}, {"end": True}]
    output = play(job(step, WIDE), later, store, 1)
    expected = [("a", "wide", "a", None), ("b", "wide", "b2", "wide")]
    expected += [] if step == "asOf" else [("b", "wide", "b", None)]
    assert sorted(map(repr, (tuple(row.values()) for row in output))) == sorted(map(repr, expected))


def test_a_column_that_comes_back_with_another_type_is_null_in_rows_that_had_the_first() -> None:
    store = MemoryStore()
    play(job("interval", WIDE), [{"rows": {"l": [], "r": rows("a", ts=100)}}], store, 1)
    read = rows("a", ts=100)
    play(job("interval"), [{"rows": {"l": [], "r": [*read, *rows("b", ts=100)]}}], store, 1)
    number = job("interval", WIDE, w="int64")
    read = [{**row, "w": 7} for row in rows("a", "b", ts=100)]
    later: list[Step] = [{"rows": {"l": [{**row, "w": 8} for row in rows("a", "b", ts=101)], "r": read}}, {"end": True}]
    output = play(number, later, store, 1)
    assert sorted(tuple(row.values()) for row in output) == [("a", 8, "a", None), ("b", 8, "b", None)]


def test_joined_rows_of_a_chain_get_columns_too() -> None:
    store, pairs = MemoryStore(), {"l": rows("a", ts=100), "r": rows("a", ts=100)}
    play(chain(SELECT), [{"rows": {**pairs, "s": []}}], store, 1)
    wider = chain(WIDE.replace("]", ", {column: s.w, as: sw}]"))
    output = play(wider, [{"rows": {**pairs, "s": rows("a", ts=101)}}, {"end": True}], store, 1)
    assert output == [{"l": "a", "lw": None, "r": "a", "rw": None, "sw": "wide"}]


def test_padded_rows_have_what_was_stored_of_them() -> None:
    store = MemoryStore()
    play(job("interval", kind="left"), [{"rows": {"l": rows("a", ts=100), "r": []}}], store, 1)
    later: list[Step] = [{"rows": {"l": rows("a", ts=100), "r": []}}, {"end": True}]
    output = play(job("interval", WIDE, kind="left"), later, store, 1)
    assert output == [{"l": "a", "lw": None, "r": None, "rw": None}]


def test_an_outer_join_that_becomes_an_inner_one_pads_no_more_and_keeps_its_matches() -> None:
    store = MemoryStore()
    play(job("interval", kind="full"), [{"rows": {"l": rows("a", "b", ts=100), "r": rows("a", ts=100)}}], store, 1)
    later: list[Step] = [{"rows": {"l": rows("a", "b", ts=100), "r": rows("a", ts=100) + rows("b", ts=101)}}]
    output = play(job("interval"), [*later, {"end": True}], store, 2)
    assert output == [{"l": "b", "r": "b"}]


class Staging(MemoryStore):
    """Counts the segments of each call of `stage`."""

    def __init__(self) -> None:
        super().__init__()
        self.staged: list[int] = []

    def stage(self, job: str, segments: Sequence[tuple[SegmentMeta, bytes]]) -> None:
        self.staged.append(len(segments))
        super().stage(job, segments)


@pytest.mark.usefixtures("checkpoints")
@pytest.mark.parametrize(("limit", "left"), [(1 << 20, 1), (1, 4)])
def test_segments_whose_rows_take_much_memory_are_not_merged(
    limit: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little they take in the store."""
    monkeypatch.setattr(compaction, "MAX_DECODED_BYTES", limit)
    store = MemoryStore()
    arriving: list[Step] = [{"rows": {"l": rows("a", ts=100 + n), "r": []}} for n in range(4)]
    play(job("interval"), [*arriving, {"rows": {"l": rows("a", ts=104), "r": []}}], store, 1)
    assert len(live(store, "left")) == left + 1  # that of the last epoch


def test_segments_are_staged_in_parts_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    arriving: list[Step] = [{"rows": {"l": rows(*KEYS, ts=100), "r": rows(*KEYS, ts=100)}}]
    store = Staging()
    play(job("interval"), arriving, store, 1)
    assert store.staged == [2]
    monkeypatch.setattr(worker, "STAGED_BYTES", 1)
    store = Staging()
    play(job("interval"), arriving, store, 1)
    assert store.staged == [1, 1]
    assert [meta.rows for part in ("left", "right") for meta in live(store, part)] == [40, 40]
