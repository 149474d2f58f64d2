"""docs/state.md shows what the commands print. Sizes, times of the clock and addresses are the machine's own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cli.commands import Joinery
from cli.stored_state import commit_rows
from docs.blocks import ROOT, Block, blocks_of
from job.resources import edited
from joinery_runtime.core.table.blob import from_blob
from joinery_runtime.core.table.segment import STATE_VERSION, encode
from joinery_runtime.engine.report import PartTotals, Totals
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.job import load_job
from joinery_runtime.state import migrations
from joinery_runtime.state.postgres import PostgresStore

pytestmark = pytest.mark.services
BLOCKS = [block for block in blocks_of(ROOT / "docs/state.md") if block.language == "console"]
SQL = "joinery sql "  # reads what a run of the quickstart has left
HERE = "host db, port 5432, database postgres, schema joinery"
THERE = "host db, port 5432, database joinery, schema joinery"

NOON = 1_790_000_000_000  # 2026-09-21T14:13:20Z
SECOND = 1000
DAY = 1_768_471_200_000  # 2026-01-15T10:00:00Z


def rows(first: int, count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"order_id": f"o-{n}", "country": 49, "ts": first + n * SECOND, **more} for n in range(count)]


ORDERS = [rows(NOON, 500, amount=None), rows(NOON + 3_500 * SECOND, 500, amount=None)]
PAYMENTS = [rows(NOON + 60 * SECOND, 300), rows(NOON + 3_600 * SECOND, 400)]
WATERMARKS = {"orders": NOON + 3_990 * SECOND, "payments": NOON + 3_980 * SECOND}
CLICKS = [
    ("ann", 0, "/a"), ("ann", 25, "/b"), ("ann", 50, "/c"), ("bob", 91, "/a"), ("ann", 95, "/a"), ("ann", 115, "/a"),
]  # fmt: skip


class Page:
    """The jobs of the page, in a Postgres. `epochs` of the join are committed when they are asked for."""

    def __init__(
        self, joinery: Joinery, store: PostgresStore, folder: Path, other: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._joinery, self.store, self._other, self._monkeypatch = joinery, store, other, monkeypatch
        self.files = {name: folder / name for name in ("job.yaml", "session-window.yaml")}
        kafka = "    kafka: {bootstrapServers: 'kafka:9092', topic: joined}\n"
        state = f'  stateStore: {{postgres: {{dsn: "{store.dsn}", schema: "{store.schema}"}}}}\n'
        self.files["job.yaml"].write_text(edited(("    postgres: {table: joined}\n", kafka + state)))
        self.files["session-window.yaml"].write_text((ROOT / "examples/session-window.yaml").read_text() + state)

    def epochs(self, count: int) -> None:
        job = load_job(self.files["job.yaml"])
        record = self.store.acquire(job.name)
        parts = {
            "left": PartTotals(stored=1_200, expired=200, lookups=900, matches=640, peak=1_000),
            "right": PartTotals(stored=900, expired=200, lookups=1_200, matches=640, peak=700),
        }
        for epoch in range(1, count + 1):
            sides = (ORDERS[epoch - 1], PAYMENTS[epoch - 1]) if epoch < 3 else ([], [])
            out, totals = {3: 5, 4: 50}.get(epoch, 0), Totals(parts=parts)
            commit_rows(
                self.store,
                record,
                job,
                epoch,
                sides,
                watermarks=WATERMARKS,
                rows_out=out,
                version=STATE_VERSION,
                totals=totals,
            )
            if epoch == 2 and count > 2:
                self.store.create_savepoint(job.name, "before-noon")
        if count > 2:
            self.store.create_savepoint(job.name, "evening")

    def clicks(self) -> None:
        job = load_job(self.files["session-window.yaml"])
        steps = [
            {"input": "clicks", "rows": [{"user_id": user, "page": page, "ts": DAY + at * SECOND}]}
            for user, at, page in CLICKS
        ]
        for _ in run_trace(job, steps, self.store, 1):
            """The rows go to nobody."""

    def shows(self, block: Block) -> None:
        for command, expected in commands(block):
            printed = self._printed(command)
            cut = expected.index("  ...") if "  ..." in expected else None
            assert [*map(shown, printed)][:cut] == [*map(shown, expected)][:cut], f"{block.location}: {command}"

    def _printed(self, command: str) -> list[str]:
        words = shlex.split(command.replace("JOINERY_MOVE_DSN=postgresql://... ", ""))
        assert words[0] == "joinery"
        self._monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        ended = self._joinery(*(self.files.get(word, word) for word in words[1:]))
        with closing(PostgresStore(self._other, self.store.schema)) as other:
            printed = (ended.out + ended.err).replace(other.location, THERE).replace(self.store.location, HERE)
        return printed.splitlines()


def commands(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Each with the lines that it prints."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, *expected = part.splitlines()
        yield command, expected


def shown(line: str) -> str:
    line = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", "TIME", line)
    return re.sub(r"\b\d+\.\d s\b", "SECONDS", re.sub(r"[\d.,]+ (KiB|MiB|bytes)", "SIZE", line))


@pytest.fixture
def page(
    joinery: Joinery, postgres_dsn: str, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Page]:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(schema)))
    other = make_conninfo(**{**conninfo_to_dict(postgres_dsn), "dbname": schema})
    monkeypatch.setenv("JOINERY_MOVE_DSN", other)
    with closing(PostgresStore(postgres_dsn, schema)) as store:
        yield Page(joinery, store, tmp_path, other, monkeypatch)


def beginning(*words: str) -> list[Block]:
    """The blocks whose first command begins so."""
    return [block for block in BLOCKS if any(next(commands(block))[0].startswith(word) for word in words)]


def test_what_is_kept(page: Page) -> None:
    page.epochs(2)
    page.clicks()
    blocks = beginning("joinery state stats", "joinery state show")
    for block in blocks:
        page.shows(block)
    assert len(blocks) == 4


def test_savepoints(page: Page) -> None:
    page.epochs(2)
    (block,) = beginning("joinery state savepoint")
    page.shows(block)


def test_going_back_and_deleting(page: Page) -> None:
    page.epochs(4)
    (back,) = beginning("joinery state restore job.yaml --savepoint before-noon")
    page.shows(back)
    (deleted,) = beginning("joinery state delete")
    page.shows(deleted)


def test_a_newer_release(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    page.epochs(4)
    fits, refused = beginning("joinery state check")
    good = page.files["job.yaml"].read_text()
    key = "{orders.order_id: payments.order_id}"
    assert key in good
    page.files["job.yaml"].write_text(good.replace(key, "{orders.country: payments.country}"))
    page.shows(refused)
    page.files["job.yaml"].write_text(good)
    monkeypatch.setattr(migrations, "CURRENT_STATE_VERSION", STATE_VERSION + 1)
    chain = {**migrations.MIGRATIONS, STATE_VERSION: lambda blob: encode(from_blob(blob), compression=None)}
    monkeypatch.setattr(migrations, "MIGRATIONS", chain)
    page.shows(fits)
    for block in beginning("joinery state migrate", "joinery state restore job.yaml --savepoint rollout"):
        page.shows(block)


def test_another_postgres(page: Page) -> None:
    page.epochs(4)
    moved, listing = beginning("JOINERY_MOVE_DSN", "joinery state ls")
    page.shows(moved)
    page.shows(listing)


def test_every_block_is_one_of_these() -> None:
    named = ("stats", "show", "savepoint", "restore", "check", "migrate", "ls", "delete")
    covered = beginning(SQL, "JOINERY_MOVE_DSN", *(f"joinery state {name}" for name in named))
    assert covered == BLOCKS
    assert len(BLOCKS) >= 14
