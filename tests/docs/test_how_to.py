"""Each how-to has the same parts, and the pages about a state print what they say they print."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from docs.blocks import ROOT, blocks_of
from docs.test_code_blocks import try_out

FOLDER = ROOT / "docs/how-to"
PAGES = sorted(FOLDER.glob("*.md"))
JOB = """\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {name: orders-payments}
spec:
  inputs:
    - {name: orders, file: {path: orders.jsonl}, format: json, eventTime: ts,
       schema: [{name: id, type: string}, {name: item, type: string}, {name: ts, type: timestamp}]}
    - {name: payments, file: {path: payments.jsonl}, format: json, eventTime: ts,
       schema: [{name: order, type: string}, {name: method, type: string}, {name: ts, type: timestamp}]}
  joins:
    - {right: payments, keys: {orders.id: payments.order}, interval: {of: orders, lower: 0s, upper: 24h}}
  output: {file: {path: joined}}
  stateStore: {postgres: {dsn: "${STATE_DSN}"}}
"""
ORDERS = """\
{"id": "o-1", "item": "book", "ts": "2026-01-15T10:00:00Z"}
{"id": "o-2", "item": "lamp", "ts": "2026-01-15T10:05:00Z"}
"""
PAYMENTS = '{"order": "o-1", "method": "card", "ts": "2026-01-15T10:02:00Z"}\n'
BEFORE = {
    "read-state.md": "joinery run --local --once orders.yaml",
    "back-up.md": "joinery run --local --once orders.yaml",
    "move-state.md": "joinery run --local --once orders.yaml",
}
"""What each tested page expects to be done, in a folder with the job and its two files."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_how_to_says_what_is_needed_what_to_do_what_is_printed_and_how_to_return(page: Path) -> None:
    text = page.read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[:3] == ["Prerequisites", "Steps", "Roll back"]
    languages = {block.language for block in blocks_of(page)}
    assert languages & {"sh", "console"}, "no command"
    assert languages & {"text", "console"}, "no output"


def test_every_how_to_is_in_the_index_and_in_the_navigation() -> None:
    index, navigation = (ROOT / "docs/index.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    assert len(PAGES) >= 3
    for page in PAGES:
        assert f"](how-to/{page.name})" in index, page.name
        assert f": how-to/{page.name}\n" in navigation, page.name


@pytest.mark.services
@pytest.mark.parametrize("name", BEFORE)
def test_a_page_about_the_state_prints_what_it_says(name: str, postgres_dsn: str, tmp_path: Path) -> None:
    for file, content in {"orders.yaml": JOB, "orders.jsonl": ORDERS, "payments.jsonl": PAYMENTS}.items():
        (tmp_path / file).write_text(content)
    target = f"{name.partition('-')[0]}_target"
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS joinery CASCADE")
        connection.execute(f"CREATE DATABASE {target}")
    move = re.sub(r"/\w+\?", f"/{target}?", postgres_dsn)
    begin = f"cd {tmp_path} && export STATE_DSN='{postgres_dsn}' JOINERY_MOVE_DSN='{move}'\n"
    try_out(f"```sh\n{BEFORE[name]}\n```\n", tmp_path, begin)
    assert try_out((FOLDER / name).read_text(), tmp_path, begin) >= 3
