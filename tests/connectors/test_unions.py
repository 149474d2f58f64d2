"""A union of inputs: what planner, reader and decoder of each branch see, and what the union makes of it."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from job.chains import PAYMENTS, document
from joinery_runtime.connectors.inputs import decoder_for, planner_for, reader_for, with_record_boundary
from joinery_runtime.connectors.source import Bounds, Range, StoredOffsets, UnsharedSource
from joinery_runtime.connectors.unions import UnionPlanner
from joinery_runtime.engine.plan import TopicNumbers
from joinery_runtime.engine.read_report import DeadLetters
from joinery_runtime.formats.batch import PartitionRef
from joinery_runtime.job import parse_job
from joinery_runtime.job.model.unions import UnionInput
from stores import STORE


@dataclass
class Topic(UnsharedSource):
    """One partition of a topic that two clusters have."""

    name: str
    end: int
    final: bool = False
    stored: StoredOffsets = field(default_factory=StoredOffsets)
    pinned: Collection[PartitionRef] = ()
    committed: Mapping[PartitionRef, int] = field(default_factory=dict)

    def bounds(self, stored: StoredOffsets) -> list[Bounds]:
        self.stored = stored
        ref = PartitionRef(self.name, "orders", 0)
        return [Bounds(ref, stored.offsets.get(ref, 0), self.end, final=self.final, topic_id=f"id of {self.name}")]

    def cut(self, bounds: Bounds, max_records: int) -> Range:
        assert bounds.partition.input == self.name
        return Range(bounds.partition, bounds.start, min(bounds.end_exclusive, bounds.start + max_records))

    def find_replaced_partitions(
        self, partitions: Collection[PartitionRef], topic_ids: Mapping[str, str]
    ) -> set[PartitionRef]:
        return {ref for ref in partitions if topic_ids.get(ref.topic) != f"id of {self.name}"}

    def pin(self, partitions: Collection[PartitionRef]) -> bool:
        self.pinned = partitions
        return True

    def unpin(self, committed: Mapping[PartitionRef, int]) -> None:
        self.committed = committed

    def close(self) -> None:
        """Nothing is open."""


EU, US = PartitionRef("orders", "eu:orders", 0), PartitionRef("orders", "us:orders", 0)


def test_topics_of_one_name_are_partitions_of_their_own() -> None:
    eu, us = Topic("eu", 10), Topic("us", 20)
    planner = UnionPlanner("orders", {"eu": eu, "us": us})
    stored = StoredOffsets({EU: 4, US: 7, PartitionRef("orders", "gone:x", 0): 3}, {US: 9}, {"us:orders": "id of us"})
    assert [(bound.partition, bound.start, bound.end_exclusive) for bound in planner.bounds(stored)] == [
        (EU, 4, 10),
        (US, 7, 20),
    ]
    own = PartitionRef("us", "orders", 0)
    assert us.stored == StoredOffsets({own: 7}, {own: 9}, {"orders": "id of us"})
    assert eu.stored == StoredOffsets({PartitionRef("eu", "orders", 0): 4}, {}, {})
    assert planner.cut(Bounds(US, 7, 20), 5) == Range(US, 7, 12)
    assert planner.records(Range(EU, 4, 10), 1.0) == 6
    assert planner.find_replaced_partitions([EU, US], {"us:orders": "id of us"}) == {EU}
    assert planner.pin([US])
    planner.unpin({EU: 10, US: 12})
    assert (us.pinned, eu.pinned) == ([own], [])
    assert (us.committed, eu.committed) == ({own: 12}, {PartitionRef("eu", "orders", 0): 10})


def test_a_branch_that_was_read_to_its_end_is_released() -> None:
    planner = UnionPlanner("orders", {"eu": Topic("eu", 10, final=True), "us": Topic("us", 20)})
    assert [bound.released for bound in planner.bounds(StoredOffsets({EU: 9}))] == [False, False]
    assert [bound.released for bound in planner.bounds(StoredOffsets({EU: 10}))] == [True, False]


def test_topics_are_numbered_in_the_order_of_the_branches_and_keep_their_numbers() -> None:
    """Rows of equal partition and offset are in the order of these numbers (U3, J2)."""
    eu, us = Topic("eu", 10), Topic("us", 20)
    first = TopicNumbers().of_new(UnionPlanner("orders", {"us": us, "eu": eu}).bounds(StoredOffsets()), (), {})
    assert first == {"us:orders": 0, "eu:orders": 1}
    stored = TopicNumbers().with_new(first)
    edited = UnionPlanner("orders", {"asia": Topic("asia", 5), "eu": eu, "us": us}).bounds(StoredOffsets({EU: 4}))
    assert stored.of_new(edited, ["eu:orders", "us:orders"], {}) == {"asia:orders": 2}


# --- files of two formats ------------------------------------------------------------------------------------------


@pytest.fixture
def union(tmp_path: Path) -> UnionInput:
    (tmp_path / "eu.csv").write_text("id;total;created\na;1,5;100\nb;-1;110\nc;x;120\nd;3;x\n")
    times = pa.array([90, 105], pa.timestamp("ms", "UTC"))
    pq.write_table(pa.table({"order_id": ["e", "f"], "amount": [2.5, 4.0], "ts": times}), tmp_path / "us.parquet")
    schema = [
        {"name": name, "type": kind} for name, kind in (("id", "string"), ("total", "double"), ("created", "int64"))
    ]
    eu = {
        **{"name": "eu", "file": {"path": str(tmp_path / "eu.csv")}, "format": "csv", "eventTime": "created"},
        **{"csv": {"separator": ";", "decimal": ","}, "schema": schema},
    }
    schema = [
        {"name": name, "type": kind}
        for name, kind in (("order_id", "string"), ("amount", "double"), ("ts", "timestamp"))
    ]
    us = {
        **{"name": "us", "file": {"path": str(tmp_path / "us.parquet")}, "format": "parquet", "eventTime": "ts"},
        "schema": schema,
    }
    branches = [
        {
            "input": "eu",
            "select": [
                {"column": "id", "as": "order_id"},
                {"expression": "total * 2", "as": "amount"},
                {"column": "created", "as": "ts"},
            ],
            "where": "total > 0",
        },
        {
            "input": "us",
            "select": [{"column": "order_id"}, {"column": "amount"}, {"column": "ts"}],
        },
    ]
    eu["schema"][2]["type"] = "timestamp"
    step = {
        "right": "payments",
        "keys": {"orders.order_id": "payments.order_id"},
        "interval": {"of": "orders", "lower": "0s", "upper": "1h"},
    }
    written = document(step, inputs=[eu, us, PAYMENTS], unions=[{"name": "orders", "branches": branches}])
    side = parse_job(json.dumps(written), "job.json").inputs[0]
    assert isinstance(side, UnionInput)
    return side


def test_rows_of_files_of_two_formats_are_rows_of_the_union(union: UnionInput) -> None:
    planner, reader = planner_for(union, "job", STORE), reader_for(union)
    decoder = with_record_boundary(union, decoder_for(union))
    rows: list[dict[str, Any]] = []
    dropped: Counter[str] = Counter()
    letters = []
    times: list[int] = []
    bounds = planner.bounds(StoredOffsets())
    assert [Path(bound.partition.topic).name for bound in bounds] == ["eu.csv", "us.parquet"]
    for raw in reader.read(*(planner.cut(bound, 100) for bound in bounds)):
        decoded = decoder.decode_batch(pickle.loads(pickle.dumps(raw)))
        rows += decoded.rows.cast(pa.schema([*decoded.rows.schema.remove(2), pa.field("ts", pa.int64())])).to_pylist()
        dropped.update(decoded.dropped)
        times += decoded.left_out.times.tolist() if decoded.left_out is not None else []
        if decoded.bad:
            letters += DeadLetters.of(raw, decoded.bad).rows.to_pylist()
    assert rows == [
        {"order_id": "a", "amount": 3.0, "ts": 100},
        {"order_id": "e", "amount": 2.5, "ts": 90},
        {"order_id": "f", "amount": 4.0, "ts": 105},
    ]
    assert dropped == {"filtered": 1}
    assert times == [110]
    assert [(letter["input"], Path(letter["topic"]).name) for letter in letters] == [("eu", "eu.csv"), ("eu", "eu.csv")]
    reader.close()
    planner.close()
