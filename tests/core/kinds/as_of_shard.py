"""One shard of an as-of step, epoch by epoch, and what it should do said again with dictionaries and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from core.step_runs import Ran, ran
from joinery_runtime.core.kinds.as_of import AsOfJoin
from joinery_runtime.core.pipeline.expression import parse_expression
from joinery_runtime.core.pipeline.sides import LEFT, RIGHT, Intake, OutputColumn, SideSpec
from joinery_runtime.core.pipeline.spec import StepSpec
from joinery_runtime.core.pipeline.step import Horizon, StateRun, StepWork
from joinery_runtime.core.table.segment import merge

TIME = pa.timestamp("ms", "UTC")
TRADES = pa.schema([("currency", pa.string()), ("amount", pa.int64()), ("ts", TIME)])
RATES = pa.schema([("currency", pa.string()), ("rate", pa.int64()), ("ts", TIME)])

HashOf = Callable[[str], int]


def far_apart(key: str) -> int:
    return ord(key) << 40


def all_the_same(key: str) -> int:
    return 7


@dataclass(frozen=True)
class Trade:
    currency: str
    ts: int
    amount: int = 0
    partition: int = 0
    offset: int = 0
    joinable: bool = True


@dataclass(frozen=True)
class Rate:
    """`rate` None deletes."""

    currency: str
    ts: int
    rate: int | None
    partition: int = 0
    offset: int = 0

    @property
    def position(self) -> tuple[int, int, int]:
        return self.ts, self.offset, self.partition


Row = tuple[str, int, int | None, int | None]  # currency, amount, rate, ts of the rate


def asof_step(*, grace: int = 0, left: bool = False, where: str | None = None) -> StepSpec:
    """trades(currency, amount, ts) with rates(currency, rate, ts)."""
    trades = Intake(TRADES, "ts", ("currency",), ("currency", "amount"), preserved=left)
    rates = Intake(RATES, "ts", ("currency",), ("currency", "rate"), table=True)
    sides = (SideSpec("left", ("trades",), "trades", trades), SideSpec("right", ("rates",), "rates", rates))
    output = (
        OutputColumn("currency", pa.string(), LEFT, "currency"),
        OutputColumn("amount", pa.int64(), LEFT, "amount"),
        OutputColumn("rate", pa.int64(), RIGHT, "rate"),
        OutputColumn("rated_at", TIME, RIGHT, "ts"),
    )
    residual = parse_expression(where) if where is not None else None
    return StepSpec(0, sides, AsOfJoin(history_retention=10, grace=grace), residual, output)


@dataclass
class Shard:
    """`runs` are the sides' segments so far; nothing but `compact` ever drops a row of them."""

    step: StepSpec
    hash_of: HashOf = far_apart
    ordered: bool = False
    runs: tuple[list[StateRun], list[StateRun]] = field(default_factory=lambda: ([], []))
    horizons: list[Horizon] = field(default_factory=lambda: [Horizon(), Horizon()])

    def epoch(
        self,
        trades: Sequence[Trade] = (),
        rates: Sequence[Rate] = (),
        *,
        now: int | None = None,
        history: int | None = None,
    ) -> Ran:
        """`now` is the stream's horizon, `history` the table's; None: as before."""
        self.horizons = [_risen(old, new) for old, new in zip(self.horizons, (now, history), strict=True)]
        arrivals = (self._trades(trades), self._rates(rates))
        left, right = self.horizons
        result = ran(self.step.kind.run(self.step, StepWork(arrivals, self.runs, (left, right), ordered=self.ordered)))
        for side, new_run in enumerate(result.added):
            if new_run is not None:
                assert new_run.batch.schema == self.step.sides[side].segment_schema()
                self.runs[side].append(StateRun(f"{side}-{len(self.runs[side])}", new_run))
        return result

    def compact(self, side: int, chosen: Sequence[bool]) -> None:
        """Merges those of the side's runs that are chosen."""
        marked = list(zip(self.runs[side], [*chosen, *[False] * len(self.runs[side])], strict=False))
        chosen_runs = [run for run, choice in marked if choice]
        rest = [run for run, choice in marked if not choice]
        survivors = self.step.kind.survivors(self.step, side, chosen_runs, self.horizons[side])
        rows = [one.run for one in survivors if len(one.run)]
        self.runs[side][:] = [*rest, *([StateRun("merged", merge(rows, by_offset=True))] if rows else [])]

    def kept_rows(self, side: int) -> int:
        return sum(len(state_run.run) for state_run in self.runs[side])

    def _trades(self, trades: Sequence[Trade]) -> pa.RecordBatch | None:
        extra = [[trade.joinable for trade in trades]] * self.step.sides[LEFT].preserved
        return self._batch(LEFT, trades, [*extra, [t.currency for t in trades], [t.amount for t in trades]])

    def _rates(self, rates: Sequence[Rate]) -> pa.RecordBatch | None:
        deleted = [rate.rate is None for rate in rates]
        unavailable = [None] * len(rates)
        return self._batch(RIGHT, rates, [deleted, unavailable, [r.currency for r in rates], [r.rate for r in rates]])

    def _batch(self, side: int, rows: Sequence[Any], columns: Sequence[Sequence[Any]]) -> pa.RecordBatch | None:
        if not rows:
            return None
        engine = [[self.hash_of(r.currency), r.ts, r.partition, r.offset] for r in rows]
        values = [*map(list, zip(*engine, strict=True)), *columns]
        schema = self.step.sides[side].intake.prepared_schema()
        return pa.record_batch([pa.array(v, f.type) for v, f in zip(values, schema, strict=True)], schema=schema)


def _risen(old: Horizon, new: int | None) -> Horizon:
    return Horizon(old.current, old.current if new is None else new)


def rows_of(result: Ran) -> list[Row]:
    """The output in its order."""
    rows = [row for batch in result.output for row in batch.cast(_plain(batch.schema)).to_pylist()]
    return [(row["currency"], row["amount"], row["rate"], row["rated_at"]) for row in rows]


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, pa.int64() if f.type == TIME else f.type) for f in schema])


@dataclass
class Oracle:
    """Rules A1-A4 row by row. Keeps everything for ever."""

    grace: int
    left: bool
    accepts: Callable[[int | None], bool]  # what `where` says of a rate
    versions: list[Rate] = field(default_factory=list)
    waiting: list[Trade] = field(default_factory=list)
    now: int | None = None
    history: int | None = None

    def epoch(
        self, trades: Sequence[Trade], rates: Sequence[Rate], now: int | None, history: int | None
    ) -> tuple[list[Row], int, int]:
        """Output, dropped versions and lookups."""
        self.now, self.history = (
            (now if now is not None else self.now),
            (history if history is not None else self.history),
        )
        expired = [rate for rate in sorted(rates, key=lambda r: (r.partition, r.offset)) if not self._take(rate)]
        due = sorted((t for t in self.waiting if self._over(t)), key=lambda t: (t.ts, t.partition, t.offset))
        arriving = sorted(trades, key=lambda t: (t.partition, t.offset))
        going = [*due, *(t for t in arriving if not self._waits(t))]
        self.waiting = [t for t in self.waiting if not self._over(t)] + [t for t in arriving if self._waits(t)]
        return [row for t in going for row in self._row(t)], len(expired), sum(t.joinable for t in going)

    def _take(self, rate: Rate) -> bool:
        expired = self._gone(rate)
        if not expired:
            self.versions.append(rate)
        return not expired

    def _gone(self, rate: Rate) -> bool:
        return self.history is not None and any(
            other.currency == rate.currency and other.position > rate.position and other.ts <= self.history
            for other in self.versions
        )

    def _over(self, trade: Trade) -> bool:
        return self.now is not None and trade.ts <= self.now

    def _waits(self, trade: Trade) -> bool:
        return self.grace > 0 and trade.joinable and not self._over(trade)

    def _row(self, trade: Trade) -> list[Row]:
        candidates = [
            rate
            for rate in self.versions
            if rate.currency == trade.currency and rate.ts <= trade.ts and not self._gone(rate)
        ]
        valid = max(candidates, key=lambda rate: rate.position, default=None)
        if trade.joinable and valid is not None and valid.rate is not None and self.accepts(valid.rate):
            return [(trade.currency, trade.amount, valid.rate, valid.ts)]
        return [(trade.currency, trade.amount, None, None)] if self.left else []
