"""Both forms of each question in docs/questions.md give the rows of a query that DuckDB runs over the same files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from docs.blocks import ROOT, blocks_of
from local_rows import rows_of, run_job

PAGE = ROOT / "docs/questions.md"
FILES = ROOT / "examples/data/questions"
ANSWERS: Mapping[str, str] = yaml.safe_load((Path(__file__).parent / "questions.yaml").read_text())
HEAD, *QUESTIONS = re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)
SECTIONS = {title: text for title, _, text in (question.partition("\n") for question in QUESTIONS)}
ENVELOPE, INPUTS = [yaml.safe_load(block.text) for block in blocks_of(PAGE, HEAD)]
TYPES = {"ts": "TIMESTAMP", "amount": "DECIMAL(9, 2)"}
INPUT_OF_NAME = {source["name"]: source for source in INPUTS["inputs"]}


def forms(text: str) -> Iterator[dict[str, Any]]:
    """The `spec` of a question's two blocks, in SQL and in fields, with the inputs that it reads."""
    named, _, again = text.lstrip().partition(".")[0].partition("in fields also")
    for block in blocks_of(PAGE, text):
        fields = {"sql": block.text} if block.language == "sql" else yaml.safe_load(block.text)
        names = re.findall(r"`(\w+)`", named if "sql" in fields else named + again)
        inputs = [{**INPUT_OF_NAME[name], "file": {"path": path_of(name)}} for name in names]
        yield {**ENVELOPE["spec"], "inputs": inputs, **fields}


def path_of(name: str) -> str:
    return str(ROOT / "examples" / INPUT_OF_NAME[name]["file"]["path"])


@pytest.fixture(scope="module")
def files() -> Iterator[duckdb.DuckDBPyConnection]:
    """The files as tables."""
    with duckdb.connect() as connection:
        for path in FILES.glob("*.csv"):
            header = path.read_text().partition("\n")[0].split(",")
            types = {name: kind for name, kind in TYPES.items() if name in header}
            table = path.stem.replace("-", "_")
            connection.execute(f"CREATE TABLE {table} AS FROM read_csv('{path}', types = {types})")
        connection.execute(f"""
            CREATE TABLE changes AS SELECT coalesce(after.customer, before.customer) AS customer, after.tier, op,
                make_timestamp(source.ts_ms * 1000) AS ts FROM read_json('{FILES}/customers.jsonl')""")
        yield connection


def milliseconds(value: Any) -> Any:
    """A time as the job's output has it; any other value as it is."""
    return int(value.replace(tzinfo=UTC).timestamp() * 1000) if isinstance(value, datetime) else value


def test_every_question_has_an_answer() -> None:
    assert list(SECTIONS) == list(ANSWERS)
    assert len(SECTIONS) >= 45


@pytest.mark.filterwarnings("ignore:stateStore is memory")
@pytest.mark.parametrize("title", SECTIONS)
def test_sql_and_fields_give_the_rows_of_duckdb(title: str, files: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    answer = files.sql(ANSWERS[title]).pl()
    expected = Counter([tuple(answer.columns), *(tuple(map(milliseconds, row)) for row in answer.rows())])
    assert len(expected) > 1
    sql, fields = forms(SECTIONS[title])
    assert "sql" in sql
    assert "sql" not in fields
    for name, spec in (("sql", sql), ("fields", fields)):
        (tmp_path / name).mkdir()
        assert rows_of(run_job({**ENVELOPE, "spec": spec}, tmp_path / name)) == expected, name
