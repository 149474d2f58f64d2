"""`joinery verify` of Iceberg and Delta tables: right, spoilt, compacted, and with rows of other writers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from cli.verified import Written, left_join
from joinery_runtime.errors import JoineryError
from joinery_runtime.formats.json.encode import rows_to_json
from joinery_runtime.job import parse_job

COLUMNS = "[{name: k, type: string}, {name: v, type: int64}, {name: ts, type: timestamp}]"
JOB = left_join(
    COLUMNS,
    """\
  output: OUTPUT
""",
)
EPOCHS = 3
STEPS: list[dict[str, Any]] = [
    {
        "rows": {
            "l": [{"k": f"k{i}", "v": i, "ts": 100 * step + i} for i in range(10)],
            "r": [{"k": f"k{i}", "v": 10 * i, "ts": 100 * step + i} for i in range(0, 10, 2)],
        }
    }
    for step in range(EPOCHS)
]


class Table:
    """One kind's table in a folder."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.path = kind, f"{folder}/out"
        self.properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}

    @property
    def output(self) -> str:
        if self.kind == "delta":
            return f"{{delta: {{path: {self.path}}}}}"
        properties = ", ".join(f'{name}: "{value}"' for name, value in self.properties.items())
        return f"{{iceberg: {{table: db.out, properties: {{{properties}}}}}}}"

    def iceberg(self) -> Any:
        return load_catalog("default", **self.properties).load_table("db.out")

    def read(self) -> pa.Table:
        return DeltaTable(self.path).to_pyarrow_table() if self.kind == "delta" else self.iceberg().scan().to_arrow()

    def append(self, rows: pa.Table) -> None:
        if self.kind == "delta":
            write_deltalake(self.path, rows, mode="append")
        else:
            self.iceberg().append(rows)

    def delete(self, condition: str) -> None:
        """Files that have such a row are written anew by it."""
        if self.kind == "delta":
            DeltaTable(self.path).delete(condition)
        else:
            self.iceberg().delete(condition)


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table(request.param, tmp_path)


@pytest.fixture
def written(table: Table, tmp_path: Path) -> Written:
    return Written(parse_job(JOB.replace("OUTPUT", table.output), "job.yaml"), STEPS, tmp_path / "cache")


def test_a_right_table(written: Written) -> None:
    written.publish()
    verdict = written.verdict()
    assert (verdict.right, verdict.notes, verdict.compared.epochs) == (True, [], verdict.last)
    assert verdict.compared.rows == sum(rows.num_rows for rows in written.rows.values())
    assert "VERIFIED" in next(iter(verdict.lines()))


def test_rows_that_are_missing_twice_and_different(written: Written, tmp_path: Path) -> None:
    def spoilt(rows: pa.Table) -> pa.Table:
        """The first one is missing, the second one is twice, the third one has another value."""
        third = rows.slice(2, 1).to_pylist()[0] | {"left_v": 77}
        return pa.concat_tables([rows.slice(1, 1), rows.slice(1, 1), pa.Table.from_pylist([third], rows.schema)])

    rows = written.rows[1]
    written.rows[1] = pa.concat_tables([spoilt(rows), rows.slice(3)])
    written.publish()
    verdict = written.verdict()
    assert not verdict.right
    assert dict(verdict.compared.counted) == {"missing": 1, "extra": 1, "different": 1}
    differences = {difference.kind: difference for difference in verdict.compared.differences}
    assert {difference.epoch for difference in differences.values()} == {1}
    first, second, third = (json.loads(line) for line in rows_to_json(rows.slice(0, 3)))
    assert (differences["missing"].expected, differences["missing"].actual) == (first, None)
    assert (differences["extra"].expected, differences["extra"].actual) == (None, second)
    assert (differences["different"].expected, differences["different"].actual) == (third, third | {"left_v": 77})
    assert differences["different"].origin.startswith("r 0/")
    assert "/000000000001/" in differences["extra"].found_at, "the file says the epoch"


def test_the_newest_epoch_may_not_be_published_yet_and_others_must(written: Written) -> None:
    newest = max(written.rows)
    written.publish(newest - 1)
    verdict = written.verdict()
    assert (verdict.right, verdict.last) == (True, newest - 1)
    with pytest.raises(JoineryError, match=f"it has rows up to epoch {newest - 1}"):
        written.verdict(newest)


def test_an_epoch_that_was_never_published_is_missing(written: Written) -> None:
    lost = written.rows.pop(2)
    written.publish()
    verdict = written.verdict()
    assert dict(verdict.compared.counted) == {"missing": lost.num_rows}
    assert {difference.epoch for difference in verdict.compared.differences} == {2}
    assert written.verdict(3).right, "only epochs that are asked for are judged"
    assert not written.verdict(1, 2).right


def test_rows_of_another_writer_are_told_apart(written: Written, table: Table) -> None:
    written.publish()
    rows = table.read().slice(0, 2)
    index = rows.schema.get_field_index("left_v")
    table.append(rows.set_column(index, rows.schema.field(index), pa.array([-1, -2], pa.int64())))
    verdict = written.verdict()
    assert verdict.right
    assert ["2 rows are there that these epochs have not emitted" in note for note in verdict.notes] == [True]
    table.append(rows.slice(0, 1))
    verdict = written.verdict()
    assert dict(verdict.compared.counted) == {"extra": 1}, "a row of the job is there twice, whoever wrote it"
    assert "1 row is there once too often" in verdict.notes[0]


@pytest.mark.parametrize("rewrite", [None, "left_k = 'k3'"])
def test_a_table_that_was_compacted(written: Written, table: Table, rewrite: str | None) -> None:
    """Files that other programs have put together do not say which epoch their rows are of, and rows have to be
    there."""
    written.publish()
    if rewrite is None:
        rows = table.read()
        if table.kind == "delta":
            DeltaTable(table.path).optimize.compact()
        else:
            table.iceberg().overwrite(rows)
        assert written.verdict().right
    else:
        table.delete(rewrite)
        verdict = written.verdict()
        lost = sum(rows.filter(pc.equal(rows["left_k"], "k3")).num_rows for rows in written.rows.values())
        assert dict(verdict.compared.counted) == {"missing": lost}
        assert {
            difference.expected["left_k"] for difference in verdict.compared.differences if difference.expected
        } == {"k3"}
