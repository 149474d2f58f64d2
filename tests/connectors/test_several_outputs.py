"""The sink of several outputs: which rows each gets, and which receipts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.rows import attempt
from joinery_runtime.connectors import several_outputs
from joinery_runtime.connectors.kafka.transactions import PartNames
from joinery_runtime.connectors.several_outputs import OutputPart, SeveralLimits, SeveralOutputs
from joinery_runtime.connectors.sink import Attempt, AttemptRows, BufferedSink, NamesNoStore, Receipt, RecoveryContext
from joinery_runtime.connectors.source import StoreIdentity
from joinery_runtime.core.compile.jobs import RowSelection
from joinery_runtime.core.pipeline.expression import parse_expression
from joinery_runtime.core.pipeline.step import ORDER_COLUMNS

ROWS = pa.record_batch({"id": ["a", "b", "c", None], "amount": pa.array([1, 20, None, 3], pa.int64())})


class Recorded(BufferedSink, NamesNoStore):
    """Records what a sink is asked for. Is both halves. `reads`: how often the writer reads the rows."""

    def __init__(self, name: str, reads: int = 1, visible: bool = False) -> None:
        self.name, self.reads, self.visible = name, reads, visible
        self.rows: list[dict[str, Any]] = []
        self.calls: list[tuple[Any, ...]] = []
        self.schema: pa.Schema | None = None

    def write(self, attempt: Attempt, rows: AttemptRows) -> Receipt:
        for _ in range(self.reads):
            self.rows = [row for batch in rows.to_batches() for row in batch.to_pylist()]
        return {"rows": len(self.rows), "by": self.name}

    def prepare(self, schema: pa.Schema) -> str | None:
        self.schema = schema
        return f"{self.name} was made"

    def writer(self) -> Recorded:
        return self

    def in_transaction(self, connection: Any, epoch: int, receipts: Sequence[Receipt]) -> None:
        self.calls.append(("in_transaction", epoch, receipts))

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        self.calls.append(("publish", epoch, receipts))

    def recover(self, recovery: RecoveryContext) -> bool:
        self.calls.append(("recover",))
        return self.visible

    def close(self) -> None:
        self.calls.append(("close",))

    @property
    def buffered_rows(self) -> int:
        return 2

    def due(self, *, last: bool) -> bool:
        return last

    def seal(self, generation: int, epoch: int, receipts: Sequence[Receipt], *, last: bool) -> Sequence[Receipt]:
        return [{"sealed": self.name, "of": len(receipts)}]


class Batches:
    """Rows that may be read once, as those of a step cost their computation each time."""

    def __init__(self, *batches: pa.RecordBatch) -> None:
        self._batches = iter(batches)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        return self._batches


def part(when: str | None = None, *columns: tuple[str, str], ordered: bool = False) -> OutputPart:
    condition = None if when is None else parse_expression(when, "rows")
    return OutputPart(RowSelection(condition, columns or None), ordered)


def test_each_output_gets_its_rows_of_one_computation() -> None:
    sinks = {"large": Recorded("large", reads=3), "every": Recorded("every"), "none": Recorded("none")}
    parts = {"large": part("amount > 10", ("amount", "sum")), "every": part(), "none": part("amount > 100")}
    several = SeveralOutputs(sinks, parts)
    receipt = several.writer().write(attempt(), Batches(ROWS, ROWS.slice(1, 1)))
    assert receipt == {"large": {"rows": 2, "by": "large"}, "every": {"rows": 5, "by": "every"}}
    assert sinks["large"].rows == [{"sum": 20}, {"sum": 20}]
    assert sinks["every"].rows == [*ROWS.to_pylist(), {"id": "b", "amount": 20}]
    assert several.prepare(ROWS.schema) == "large was made; every was made; none was made"
    assert sinks["large"].schema == pa.schema({"sum": pa.int64()})


def test_many_rows_go_through_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(several_outputs, "_SPOOL_BYTES", 1_000)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sink = Recorded("every", reads=2)
    SeveralOutputs({"every": sink}, {"every": part()}).writer().write(attempt(), Batches(*[ROWS] * 200))
    assert sink.rows == ROWS.to_pylist() * 200
    assert list(tmp_path.iterdir()) == []


def test_only_an_output_that_replaces_rows_gets_their_order() -> None:
    order = pa.array([1, 2, 3, 4], pa.int64())
    rows = pa.record_batch([*ROWS.columns, *[order] * len(ORDER_COLUMNS)], names=[*ROWS.schema.names, *ORDER_COLUMNS])
    sinks = {"plain": Recorded("plain"), "keyed": Recorded("keyed")}
    parts = {"plain": part(), "keyed": part("amount = 3", ("id", "key"), ordered=True)}
    SeveralOutputs(sinks, parts).writer().write(attempt(), Batches(rows))
    assert sinks["plain"].rows == ROWS.to_pylist()
    assert sinks["keyed"].rows == [{"key": None, **dict.fromkeys(ORDER_COLUMNS, 4)}]


def test_the_receipts_of_a_commit_are_each_output_s_own() -> None:
    sinks = {"a": Recorded("a"), "b": Recorded("b")}
    several = SeveralOutputs(sinks, {"a": part(), "b": part()})
    receipts = [{"a": {"n": 1}, "b": {"n": 2}}, {"b": {"n": 3}}]
    several.in_transaction(None, 7, receipts)
    several.publish(7, receipts)
    assert sinks["a"].calls == [("in_transaction", 7, [{"n": 1}]), ("publish", 7, [{"n": 1}])]
    assert sinks["b"].calls == [("in_transaction", 7, [{"n": 2}, {"n": 3}]), ("publish", 7, [{"n": 2}, {"n": 3}])]
    assert several.buffered_rows == 4
    assert several.due(last=True)
    assert several.seal(1, 7, receipts, last=True) == [{"a": {"sealed": "a", "of": 1}}, {"b": {"sealed": "b", "of": 2}}]


def test_each_output_recovers_although_one_has_visible_rows() -> None:
    sinks = {"a": Recorded("a", visible=True), "b": Recorded("b")}
    several = SeveralOutputs(sinks, {"a": part(), "b": part()})
    assert several.recover(RecoveryContext(1, 0, StoreIdentity("store", "place")))
    several.close()
    assert sinks["a"].calls == sinks["b"].calls == [("recover",), ("close",)]


def test_a_row_is_too_large_only_for_an_output_that_has_it() -> None:
    class Takes:
        words = "topic large takes 5"

        def at_most(self, sizes: Mapping[str, int]) -> Takes:
            return self

        def excess(self, rows: pa.RecordBatch) -> Any:
            amounts = rows.column("sum").fill_null(0).to_numpy()
            return amounts if amounts.any() else None

    selection = part("amount > 2", ("amount", "sum")).selection
    sizes = SeveralLimits(((selection, Takes()),)).excess(ROWS)
    assert sizes is not None
    assert sizes.tolist() == [0, 20, 0, 3]
    assert SeveralLimits(((selection, Takes()),)).excess(ROWS.slice(0, 1)) is None


def test_claims_of_one_output_are_not_another_s() -> None:
    names = [PartNames("ns/j-1"), PartNames("ns/j-1", output="late"), PartNames("ns/j-1", dead_letters=True)]
    claims = [name.of(3, "1f-2e") for name in names]
    assert claims == ["ns/j-1-1f2e-3", "ns/j-1-1f2e-late.3", "ns/j-1-1f2e-dead"]
    assert [[name.owns(claim) for claim in claims] for name in names] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]
    assert [PartNames("j", output="dead").owns(claim) for claim in claims] == [False, False, False]
