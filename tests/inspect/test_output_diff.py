"""A topic against what the epochs have emitted, where nobody needs a broker: rows that are there too often, and topics
that have lost their beginning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from cli.test_verify_kafka import JOB, STEPS
from cli.verified import Written
from joinery_runtime.connectors.content import Piece
from joinery_runtime.formats.json.encode import rows_to_json
from joinery_runtime.inspect.output_diff import OutputDiff
from joinery_runtime.inspect.row_differences import RowComparison
from joinery_runtime.job import parse_job

EPOCHS = {1: 1, 2: 2, 3: 3}  # the value of the row that each emits


@dataclass
class Topic:
    """A topic of one partition. `heads` are as `Content` has them."""

    rows: Sequence[bytes]
    heads: Mapping[int, Sequence[bytes]] = field(default_factory=dict)
    ours: bool = True
    complete_to: int = 3
    exact: bool = False
    upsert_key: tuple[str, ...] = ()
    retracted: str | None = None
    notes: Sequence[str] = ()

    def texts(self, rows: pa.Table) -> list[bytes]:
        return rows_to_json(rows)

    def pieces(self) -> Iterator[Piece]:
        yield Piece(self.rows, [f"t:0={at}" for at in range(len(self.rows))], range(len(self.rows)), self.ours)

    def close(self) -> None:
        """Nothing is open."""


def row(value: int) -> bytes:
    return b'{"a":%d}' % value


def compared(
    topic: Topic,
    folder: Path,
    *,
    alone: bool = True,
    may_repeat: bool = False,
    since: int | None = None,
) -> tuple[RowComparison, list[str]]:
    diff, into = OutputDiff("output", topic, folder, ["l"]), RowComparison()
    for epoch, value in EPOCHS.items():
        diff.expect(epoch, [pa.table({"a": [value]})])
    into.rows = diff.compare(into, 1, 3, only_incarnation=alone, may_repeat=may_repeat, since=since)
    diff.close()
    return into, diff.notes


def test_what_the_topic_hides_is_told(tmp_path: Path) -> None:
    into, notes = compared(Topic([*map(row, (1, 2))], notes=["a transaction has been open"]), tmp_path)
    assert (into.counted["missing"], notes) == (1, ["output: a transaction has been open"])


@pytest.mark.parametrize(("alone", "ours"), [(True, True), (False, True), (True, False)])
def test_a_row_that_is_there_twice_is_extra_whoever_else_writes_there(tmp_path: Path, alone: bool, ours: bool) -> None:
    """An earlier life of the job may have put rows there, or another writer: that one is there twice all the same."""
    into, notes = compared(Topic([*map(row, (1, 2, 3, 3))], ours=ours), tmp_path, alone=alone)
    assert dict(into.counted) == {"extra": 1}
    assert [(difference.epoch, difference.actual, difference.found_at) for difference in into.differences] == [
        (3, {"a": 3}, "t:0=3")
    ]
    assert ["1 row is there once too often" in note for note in notes] == [True] * (not (alone and ours))


def test_equal_rows_of_epochs_before_the_first_one_are_a_note(tmp_path: Path) -> None:
    """Of epochs that were not computed: 8 and 9 are theirs, and so may the second 3 be if they have equal rows."""
    for name, earlier, expected_counts in (("unique", (8, 9, 3), {"extra": 1}), ("equal", (9, 9, 3), {})):
        (tmp_path / name).mkdir()
        topic = Topic([*map(row, (*earlier, 1, 2, 3))])
        into, notes = compared(topic, tmp_path / name, alone=False, since=1)
        assert dict(into.counted) == expected_counts
        often = "1 rows are there more often than these epochs emitted them; epochs before 1 may have emitted equal"
        assert [often in note for note in notes if "more often" in note] == [True] * (name == "equal")
        (note,) = [note for note in notes if "these epochs have not emitted" in note]
        assert note.startswith("output: 2 rows are there")


@pytest.fixture
def written(tmp_path: Path) -> Written:
    text = JOB.replace("NAME", "cut").replace("BROKER", "nowhere:1").replace("DELIVERY", "exactlyOnce")
    return Written(parse_job(text.replace(", HOW", "").replace(", MORE", ""), "job.yaml"), STEPS, tmp_path / "cache")


def topic_of(tables: Mapping[int, pa.Table], heads: Mapping[int, Sequence[bytes]]) -> Topic:
    """With all rows, as far as these epochs go."""
    return Topic([text for table in tables.values() for text in rows_to_json(table)], heads, complete_to=max(tables))


@pytest.mark.parametrize(
    ("output", "dead", "right"), [(False, False, True), (True, False, False), (False, True, True), (True, True, False)]
)
def test_an_output_of_which_no_row_has_to_be_there_is_not_verified(
    written: Written, monkeypatch: pytest.MonkeyPatch, output: bool, dead: bool, right: bool
) -> None:
    """Of an empty partition nobody can say what was there. Dead letters may all be gone."""
    emptied: Mapping[int, Sequence[bytes]] = {1: []}
    newest = max(written.rows)
    topics = topic_of(written.rows, emptied if output else {}), topic_of(written.dead, emptied if dead else {})
    methods = "OutputTarget.content", "Outputs.dead_letter_content"
    for name, topic in zip(methods, topics, strict=True):
        topic.complete_to = newest
        monkeypatch.setattr(f"joinery_runtime.connectors.outputs.{name}", lambda *_, topic=topic: topic)
    verdict = written.verdict()
    assert (verdict.right, verdict.document()["verified"], dict(verdict.compared.counted)) == (right, right, {})
    first, *rest = verdict.lines()
    assert ("NOT VERIFIED, nothing could be judged" in first) == output
    rows = sum(table.num_rows for table in written.rows.values())
    says = f"output: none of {rows} rows has to be there still, as the topic has lost its beginning"
    assert (says in rest) == output
    why = "(partition 1: no record is left there, or none that tells its epoch)"
    assert sum(why in note for note in verdict.notes) == output + dead


def test_what_may_be_there_again_or_be_of_others_is_a_note(tmp_path: Path) -> None:
    into, notes = compared(Topic([*map(row, (1, 2, 3, 3, 9))]), tmp_path, alone=False, may_repeat=True)
    assert (dict(into.counted), into.rows) == ({}, 3)
    assert "1 row is there again, as delivery: atLeastOnce allows" in notes[0]
    assert "1 row is there that these epochs have not emitted" in notes[1]
