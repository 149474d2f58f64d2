"""Runs the core as a worker does, in memory, epoch after epoch: what the hypothesis suites compare with the oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from joinery_devkit.oracle import Oracle, Row, WatermarkOracle, multiset, output_row
from joinery_runtime.core import compaction
from joinery_runtime.core.expression import Expression, parse_expression
from joinery_runtime.core.join import ORDER_COLUMNS, JoinEpoch
from joinery_runtime.core.keyhash import KeyHash, key_hash
from joinery_runtime.core.prepare import cut_by_shard, prepare
from joinery_runtime.core.segment import Run, SegmentMeta, concat, decode, describe, encode, merge
from joinery_runtime.core.shards import shard_range
from joinery_runtime.core.spec import LEFT, PARTS, RIGHT, JoinSpec, OutputColumn, SideSpec
from joinery_runtime.core.watermark import InputClock, InputProgress, advance

Place = tuple[int, int, int, int]

# The histories of the suites span a few dozen milliseconds: without this, hardly any two segments would ever merge.
WIDER_BUCKETS_MS = 200
SideRows = Mapping[str, Sequence[Row]]


@dataclass(frozen=True)
class Epoch:
    """What one epoch gets. `rows` by side name, in any order; `idle` partitions and `ended` inputs at its plan."""

    rows: SideRows
    shards: int = 1
    idle: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ended: tuple[str, ...] = ()
    checkpoint: bool = False
    restart: bool = False


@dataclass(frozen=True)
class Case:
    """A job and its epochs. `oracle` makes a fresh oracle, `partitions` are known from the start, per side."""

    spec: JoinSpec
    oracle: Any
    delays: Mapping[str, int]
    partitions: Mapping[str, tuple[int, ...]]
    epochs: tuple[Epoch, ...]


@dataclass
class Result:
    pairs: Counter[Place]
    rows: list[dict[str, Any]]
    late: dict[str, int]
    dropped: dict[str, dict[str, int]]


def side_spec(
    name: str, schema: pa.Schema, keys: Sequence[str], partner: tuple[int, int], predicate: Expression | None = None
) -> SideSpec:
    stored = tuple(column for column in schema.names if column != "ts")
    return SideSpec(name, schema, "ts", tuple(keys), stored, predicate, *partner)


def join_spec(
    schemas: tuple[pa.Schema, pa.Schema],
    keys: Sequence[tuple[str, str]],
    interval: tuple[int, int],
    *,
    allowed_lateness: int = 0,
    reopen: bool = False,
    residual: str | None = None,
    filters: Mapping[str, str] | None = None,
) -> JoinSpec:
    """Sides named left and right, event time `ts`, every column in the output as left_/right_."""
    lower, upper = interval
    predicates = {name: parse_expression(text) for name, text in (filters or {}).items()}
    sides = (
        side_spec("left", schemas[0], [k[0] for k in keys], (lower, upper), predicates.get("left")),
        side_spec("right", schemas[1], [k[1] for k in keys], (-upper, -lower), predicates.get("right")),
    )
    output = [
        OutputColumn(side, column, f"{PARTS[side]}_{column}")
        for side in (LEFT, RIGHT)
        for column in schemas[side].names
    ]
    expression = parse_expression(residual) if residual else None
    return JoinSpec(sides, expression, tuple(output), allowed_lateness, not reopen)


def record_batch(schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=schema)


class CoreRunner:
    """The state of a job between epochs: encoded segments, as the store would hold them."""

    def __init__(self, spec: JoinSpec, hasher: KeyHash = key_hash) -> None:
        self.spec, self._hasher = spec, hasher
        self.segments: list[tuple[SegmentMeta, Run]] = []
        self._epoch = self._written = 0

    def epoch(self, epoch: Epoch, watermarks: tuple[int | None, int | None]) -> Result:
        self._epoch += 1
        if epoch.restart:
            self.segments = [(meta, Run.view(decode(encode(run.batch)))) for meta, run in self.segments]
        self._expire(watermarks)
        blocks, dropped = self._read(epoch)
        outputs: list[pa.RecordBatch] = []
        late = [0, 0]
        before, added, replaced = list(self.segments), [], set()
        for shard in range(epoch.shards):
            merged, gone = self._compact(before, shard, epoch, watermarks)
            added += merged
            replaced |= gone
            join = JoinEpoch(
                self.spec, blocks.get(shard, (None, None)), self._state(before, shard, epoch), watermarks, ordered=True
            )
            outputs += list(join.output())
            late = [a + b for a, b in zip(late, join.late, strict=True)]
            added += [self._segment(part, run) for part, run in zip(PARTS, join.kept, strict=True) if run is not None]
        self.segments = [item for item in before if item[0].key not in replaced] + added
        return self._result(outputs, late, dropped)

    def rows_kept(self, part: str) -> int:
        return sum(meta.rows for meta, _ in self.segments if meta.part == part)

    def _expire(self, watermarks: tuple[int | None, int | None]) -> None:
        """Whole segments only, as the engine does."""
        keep_from = {part: self.spec.keep_from(side, watermarks) for side, part in enumerate(PARTS)}
        self.segments = [
            (meta, run)
            for meta, run in self.segments
            if (limit := keep_from[meta.part]) is None or meta.ts_max >= limit
        ]

    def _read(self, epoch: Epoch) -> tuple[dict[int, Any], dict[str, dict[str, int]]]:
        blocks: dict[int, list[pa.RecordBatch | None]] = {}
        dropped: dict[str, dict[str, int]] = {}
        for side, name in enumerate(PARTS):
            counts: Counter[str] = Counter()
            for prepared in self._prepared(side, epoch.rows.get(name, ())):
                counts.update(prepared.dropped)
                for shard, rows in cut_by_shard(prepared.rows, epoch.shards):
                    pair = blocks.setdefault(shard, [None, None])
                    pair[side] = rows if pair[side] is None else concat([pair[side], rows])
            dropped[name] = dict(counts)
        return {shard: tuple(pair) for shard, pair in blocks.items()}, dropped

    def _prepared(self, side: int, rows: Sequence[Row]) -> Any:
        spec = self.spec.sides[side]
        for partition in sorted({row.partition for row in rows}):
            mine = [row for row in rows if row.partition == partition]
            offsets = np.array([row.offset for row in mine], dtype=np.int64)
            batch = record_batch(spec.schema, [row.values for row in mine])
            yield prepare(spec, batch, partition, offsets, self._hasher)

    def _state(self, segments: Any, shard: int, epoch: Epoch) -> tuple[list[Run], list[Run]]:
        owned = shard_range(shard, epoch.shards)
        mine = [(m, run.within(owned)) for m, run in segments if owned.overlaps(m.hash_min, m.hash_max)]
        left, right = ([run for meta, run in mine if meta.part == part] for part in PARTS)
        return left, right

    def _compact(self, segments: Any, shard: int, epoch: Epoch, watermarks: Any) -> tuple[list[Any], set[str]]:
        owned = shard_range(shard, epoch.shards)
        runs = {meta.key: run for meta, run in segments}
        added, replaced = [], set()
        for side, part in enumerate(PARTS):
            metas = [meta for meta, _ in segments if meta.part == part and owned.overlaps(meta.hash_min, meta.hash_max)]
            kept_for = self.spec.kept_for_ms(side) + WIDER_BUCKETS_MS
            for group in compaction.choose(metas, owned, kept_for_ms=kept_for, checkpoint=epoch.checkpoint):
                keep_from = self.spec.keep_from(side, watermarks)
                parts = [runs[meta.key] for meta in group]
                run = merge(parts if keep_from is None else [part.since(keep_from) for part in parts])
                replaced |= {meta.key for meta in group}
                added += [self._segment(part, run)] if len(run) else []
        return added, replaced

    def _segment(self, part: str, run: Run) -> tuple[SegmentMeta, Run]:
        self._written += 1
        return describe(run, key=str(self._written), part=part, epoch=self._epoch, blob=encode(run.batch)), run

    def _result(self, outputs: list[pa.RecordBatch], late: list[int], dropped: dict[str, dict[str, int]]) -> Result:
        pairs: Counter[Place] = Counter()
        rows = []
        for row in (row for batch in outputs for row in batch.to_pylist()):
            side, *places = (row.pop(name) for name in ORDER_COLUMNS)
            later, partner = tuple(places[:2]), tuple(places[2:])
            pairs[later + partner if side == LEFT else partner + later] += 1
            rows.append(row)
        return Result(pairs, rows, dict(zip(PARTS, late, strict=True)), dropped)


class CoreWatermarks:
    """Watermarks by the core's own rules, driven as the engine drives them."""

    def __init__(self, case: Case) -> None:
        self._clocks = {name: InputClock(delay) for name, delay in case.delays.items()}
        self._progress = {name: InputProgress({str(p): None for p in case.partitions[name]}) for name in case.delays}

    def next(self, epoch: Epoch) -> dict[str, int | None]:
        self._progress = advance(self._progress, self._clocks, idle=epoch.idle, ended=epoch.ended)
        watermarks = {name: value.watermark for name, value in self._progress.items()}
        for name, rows in epoch.rows.items():
            highest: dict[str, int | None] = {}
            for row in rows:
                highest[str(row.partition)] = max(row.ts, highest.get(str(row.partition)) or row.ts)
            self._progress[name] = self._progress[name].saw(highest)
        return watermarks


def check_against_oracle(case: Case, hasher: KeyHash = key_hash) -> list[Result]:
    """Every epoch: the same watermarks, pairs, output values, late and dropped counts as the oracle says."""
    runner, clocks, oracle = CoreRunner(case.spec, hasher), CoreWatermarks(case), case.oracle()
    partitions = {name: [str(p) for p in known] for name, known in case.partitions.items()}
    watermark_oracle = WatermarkOracle(case.delays, partitions)
    results = []
    for epoch in case.epochs:
        watermarks = clocks.next(epoch)
        assert watermarks == watermark_oracle.watermarks(epoch.idle, epoch.ended)
        _tell(watermark_oracle, epoch)
        got = runner.epoch(epoch, (watermarks["left"], watermarks["right"]))
        _compare(case, oracle, got, oracle.epoch(watermarks, epoch.rows), runner)
        results.append(got)
    return results


def _tell(oracle: WatermarkOracle, epoch: Epoch) -> None:
    for name, rows in epoch.rows.items():
        for row in rows:
            oracle.saw(name, str(row.partition), [row.ts])


def _compare(case: Case, oracle: Oracle, got: Result, wanted: Any, runner: CoreRunner) -> None:
    assert got.pairs == Counter(pair.place for pair in wanted.pairs)
    assert got.late == wanted.late
    assert got.dropped == {name: dict(reasons) for name, reasons in wanted.dropped.items()}
    columns = [(c.name, c.side, c.column) for c in case.spec.output]
    assert multiset(got.rows) == multiset(output_row(pair, columns) for pair in wanted.pairs)
    # Eviction of whole segments may keep a row longer, never shorter.
    assert all(runner.rows_kept(part) >= oracle.kept(part) for part in PARTS)
