from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from rich.live import Live

from cli.session_jobs import session_job
from job.resources import job
from joinery_runtime.cli.progress import JsonProgress, Repeats, TableProgress, open_progress, show_time, where_rows_are
from joinery_runtime.core.pipeline.spec import Pipeline
from joinery_runtime.core.pipeline.watermark import END_OF_TIME
from joinery_runtime.engine.hot_keys import KeyRows
from joinery_runtime.engine.job_state import JobState
from joinery_runtime.engine.loop import CommittedEpoch, Outage
from joinery_runtime.engine.report import EpochReport, PartTotals, StateSize, Totals
from joinery_runtime.errors import PartitionsLost, StoreUnavailable
from joinery_runtime.job import Job

JOB = job()
TROUBLE = StoreUnavailable("The state store is not available (host [::1])", facts="refused")
OUTAGE = Outage(TROUBLE, 1_700_000_000, 2.0)
WARNING = "wider bounds [/]: rows stay gone"


class FakeDriver:
    generation, epoch, pending = 3, 6, True
    state = JobState(Pipeline((), ()), {})


def report(epoch: int = 7, rows_in: Mapping[str, int] | None = None, **changes: Any) -> EpochReport:
    values: dict[str, Any] = {
        "rows_in": {"orders": 2000, "payments": 1000} if rows_in is None else rows_in,
        "rows_out": 1500,
        "dropped": {"orders": {"late": 3, "null key": 1}},
        "dead": {"orders": 0, "payments": 2},
        "watermarks": {"orders": 1_700_000_000_000, "payments": None},
        "backlog": {"orders": 12_345, "payments": 0},
        "lost": {},
        "segments": 4,
        "state_rows": 3000,
        "state_bytes": 2_500_000,
        "totals": Totals(parts={"left": PartTotals(2_500, 500, 70, 1_400, 2_200), "right": PartTotals(stored=1_000)}),
        "parts": {"left": StateSize(3, 2_000, 2_000_000), "right": StateSize(1, 1_000, 500_000)},
        "hottest": (KeyRows("order_id=a", 1_234), KeyRows("order_id=b", 9)),
    }
    return EpochReport(epoch=epoch, **(values | changes))


# --- JSON lines -------------------------------------------------------------------------------------------------------


def json_lines(text: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.getvalue().splitlines()]


def test_every_event_is_a_line_of_json_with_the_job_and_a_time() -> None:
    text = io.StringIO()
    progress = JsonProgress(JOB, text, "local[2]")
    progress.warn(WARNING)
    progress.listener.started(FakeDriver())  # type: ignore[arg-type]
    progress.listener.committed(CommittedEpoch(report(), 0.25))
    progress.listener.retrying(TROUBLE, 0.5)
    progress.show_end("stopped")
    progress.listener.warned("hot")
    *lines, noticed = json_lines(text)
    assert [line["event"] for line in lines] == ["warning", "started", "epoch", "trouble", "ended"]
    assert [line["level"] for line in lines] == ["warning", "info", "info", "error", "info"]
    assert (noticed["event"], noticed["message"]) == ("warning", "hot")
    assert {line["job"] for line in lines} == {"orders-payments"}
    assert all(line["timestamp"].endswith("Z") for line in lines)
    assert lines[0]["message"] == WARNING
    assert (lines[1]["generation"], lines[1]["epoch"], lines[1]["replays"]) == (3, 6, True)
    assert (lines[1]["master"], lines[2]["runs_on"]) == ("local[2]", "driver")
    assert (lines[3]["error"], lines[3]["retry_in_seconds"]) == (str(TROUBLE), 0.5)
    assert (lines[4]["reason"], lines[4]["rows_in"]) == ("stopped", 3000)
    assert "note" not in lines[4]


def test_an_outage_says_what_is_waited_for_and_since_when() -> None:
    text = io.StringIO()
    listener = JsonProgress(JOB, text, "local[2]").listener
    listener.waiting(OUTAGE)
    listener.recovered(OUTAGE)
    waiting, back = json_lines(text)
    assert (waiting["event"], waiting["level"], waiting["system"]) == ("waiting", "error", "store")
    assert (waiting["error"], waiting["retry_in_seconds"]) == (str(TROUBLE), 2.0)
    assert waiting["since"] == back["since"] == "2023-11-14T22:13:20.000Z"
    assert (back["event"], back["level"], back["system"]) == ("back", "info", "store")


def test_an_outage_that_lasts_an_hour_is_a_few_lines() -> None:
    """A try every four seconds was 900 lines, of each system that was away."""
    text, now = io.StringIO(), [100.0]
    progress = JsonProgress(JOB, text, "local[2]")
    progress._repeats = Repeats(lambda: now[0])
    listener = progress.listener

    def lasts(seconds: int) -> list[float]:
        begun = now[0]
        shown = []
        for tried in range(0, seconds, 4):
            now[0], lines = begun + tried, len(json_lines(text))
            listener.waiting(replace(OUTAGE, error=StoreUnavailable(TROUBLE.summary, facts=f"port {tried}")))
            shown += [tried] if len(json_lines(text)) > lines else []
        return shown

    assert lasts(3600) == [0, 60, 180, 420, 900, 1800, 2700]
    listener.recovered(OUTAGE)
    assert lasts(60) == [0]
    listener.retrying(PartitionsLost("Epoch 7 waits for partitions"), 0.25)  # another trouble is told at once
    assert json_lines(text)[-1]["event"] == "trouble"


def test_the_address_of_the_page_is_in_the_first_line() -> None:
    text = io.StringIO()
    progress = JsonProgress(JOB, text, "local[2]")
    progress.show_page("http://127.0.0.1:4711/")
    progress.listener.started(FakeDriver())  # type: ignore[arg-type]
    assert json_lines(text)[0]["page"] == "http://127.0.0.1:4711/"


LATE = Totals(dropped={"orders": {"late": 29_996}, "payments": {"null_key": 4}}, behind={"orders": 5_400_001})
LATE_WORDS = (
    "29,996 rows of orders were dropped as late, up to 1h30m1ms behind its watermark; watermark.delay: "
    "1h30m10s1ms of that input would have kept them all"
)


def test_json_says_at_the_end_what_was_late_and_what_would_have_kept_it() -> None:
    text = io.StringIO()
    progress = JsonProgress(JOB, text, "local[2]")
    progress.listener.committed(CommittedEpoch(report(totals=LATE), 0.25))
    progress.show_end("inputs")
    late, ended = json_lines(text)[1:]
    assert (late["event"], late["level"], late["message"]) == ("late", "warning", LATE_WORDS)
    assert (late["input"], late["rows"], late["behind_ms"], late["delay_ms"]) == (
        "orders",
        29_996,
        5_400_001,
        5_410_001,
    )
    assert (ended["event"], ended["late"]) == ("ended", {"orders": 29_996})


OUT_OF_ORDER = (
    "rows of payments came up to 5m out of order, and the job names no watermark.delay for them: with other epochs "
    "they may be late. watermark.delay: 5m of that input keeps them all"
)


def test_json_proposes_a_delay_at_the_end_where_rows_were_out_of_order_and_not_late() -> None:
    text = io.StringIO()
    progress = JsonProgress(JOB, text, "local[2]")
    for disorder in ({"orders": 7, "payments": 300_000}, {"payments": 1}):
        progress.listener.committed(CommittedEpoch(report(disorder=disorder), 0.25))
    progress.show_end("once")
    messages = [line["message"] for line in json_lines(text) if line["event"] == "warning"]
    assert messages == [OUT_OF_ORDER]


def test_an_epochs_line_has_all_of_its_numbers() -> None:
    text = io.StringIO()
    JsonProgress(JOB, text, "local[2]").listener.committed(
        CommittedEpoch(report(lost={"orders/0": 5}, unpublished_rows=40, runs_on="spark"), 0.25)
    )
    (line,) = json_lines(text)
    expected = {
        "epoch": 7,
        "seconds": 0.25,
        "runs_on": "spark",
        "rows_in": {"orders": 2000, "payments": 1000},
        "rows_out": 1500,
        "rows_held": 40,
        "watermarks": {"orders": 1_700_000_000_000, "payments": None},
        "backlog": {"orders": 12_345, "payments": 0},
        "dropped": {"orders": {"late": 3, "null key": 1}},
        "dead": {"payments": 2},
        "lost": {"orders/0": 5},
        "segments": 4,
        "state_rows": 3000,
        "state_bytes": 2_500_000,
        "amplification": 0.5,
        "hottest_keys": [{"key": "order_id=a", "rows": 1234, "step": 0}, {"key": "order_id=b", "rows": 9, "step": 0}],
    }
    assert line["sides"]["left"] == {
        **{"segments": 3, "rows": 2_000, "bytes": 2_000_000},
        **{"stored": 2_500, "expired": 500, "lookups": 70, "matches": 1_400, "peak": 2_200},
    }
    assert {name: line[name] for name in expected} == expected


@pytest.mark.parametrize("epochs", [[], [report(rows_in={"orders": 0, "payments": 0})]])
def test_json_says_when_there_was_nothing_new(epochs: list[EpochReport]) -> None:
    text = io.StringIO()
    progress = JsonProgress(JOB, text, "local[2]")
    for epoch in epochs:
        progress.listener.committed(CommittedEpoch(epoch, 0.1))
    progress.show_end("inputs")
    assert json_lines(text)[-1]["reason"] == "all inputs have ended"
    assert "nothing new to read" in json_lines(text)[-1]["note"]


def test_json_names_inputs_that_have_ended_instead_of_a_watermark() -> None:
    text = io.StringIO()
    JsonProgress(JOB, text, "local[2]").listener.committed(
        CommittedEpoch(report(watermarks={"orders": END_OF_TIME, "payments": 5}), 0.1)
    )
    (line,) = json_lines(text)
    assert (line["watermarks"], line["ended_inputs"]) == ({"orders": None, "payments": 5}, ["orders"])


def test_json_says_that_latest_is_of_the_first_start() -> None:
    text = io.StringIO()
    JsonProgress(job(("topic: orders", f"topic: orders\n{8 * ' '}stopAt: latest")), text, "local[2]").show_end("inputs")
    assert "stopAt of orders is latest" in json_lines(text)[-1]["note"]
    assert "joinery run --once" in json_lines(text)[-1]["note"]


# --- the table --------------------------------------------------------------------------------------------------------


class Screen:
    """A terminal that is recorded; its clock stands still until `at` moves it."""

    def __init__(self, job: Job = JOB, width: int = 160) -> None:
        self.console = Console(file=io.StringIO(), record=True, width=width)
        self.now = 100.0
        self.live = Live(console=self.console, auto_refresh=False)
        self.progress = TableProgress(job, self.live, "local[2]", lambda: self.now)

    def commit(self, at: float, seconds: float, **changes: Any) -> None:
        self.now = at
        self.progress.listener.committed(CommittedEpoch(report(**changes), seconds))

    def table(self) -> dict[str, list[str]]:
        """Cells by row name."""
        self.console.print(self.live.renderable)
        rows = [line.split("│") for line in self.text().splitlines() if line.startswith("│")]
        return {cells[1].strip(): [cell.strip() for cell in cells[2:-1]] for cells in rows}

    def text(self) -> str:
        return self.console.export_text(clear=False)


@pytest.fixture
def screen() -> Screen:
    return Screen()


def test_the_table_shows_rate_total_lag_watermark_and_drops_per_input(screen: Screen) -> None:
    driver = FakeDriver()
    driver.pending = False
    screen.progress.listener.started(driver)  # type: ignore[arg-type]
    screen.commit(at=102, seconds=2)
    assert screen.table() == {
        "orders": ["1,000", "2,000", "12,345", "2023-11-14 22:13:20.000Z", "late 3, null key 1"],
        "payments": ["500", "1,000", "0", "-", "dead letters 2"],
        "joined": ["750", "1,500", "", "state 3,000 rows, 2.5 MB, 4 segments", ""],
        "left: orders": ["2,000", "2.0", "2,500", "500", "70", "1,400", "2,200"],
        "right: payments": ["1,000", "0.5", "1,000", "0", "0", "0", "0"],
    }
    hottest = "hottest keys: order_id=a 1,234 rows (step 1), order_id=b 9 rows (step 1)"
    assert f"0.50 rows out per record in; {hottest}" in screen.text()
    assert "orders-payments on local[2]: generation 3, epoch 7 is next" in screen.text()
    assert "orders-payments, epoch 7 (2000 ms on the driver)" in screen.text()


def test_the_table_says_that_an_epoch_ran_on_spark(screen: Screen) -> None:
    screen.commit(at=102, seconds=2, runs_on="spark")
    screen.table()
    assert "orders-payments, epoch 7 (2000 ms on Spark)" in screen.text()


def test_the_table_of_sessions() -> None:
    screen = Screen(session_job())
    screen.progress.listener.started(FakeDriver())  # type: ignore[arg-type]
    one = {"rows_in": {"clicks": 3000}, "watermarks": {"clicks": None}, "backlog": {"clicks": 0}, "dead": {}}
    parts = {
        "totals": Totals(parts={"sessions": PartTotals(700, 20, 3000)}),
        "parts": {"sessions": StateSize(3, 680, 0)},
    }
    screen.commit(at=102, seconds=2, **one, **parts, dropped={"clicks": {"closed": 1}})
    assert screen.table() == {
        "clicks": ["1,500", "3,000", "0", "-", "closed 1"],
        "sessions": ["750", "1,500", "", "state 3,000 rows, 2.5 MB, 4 segments", ""],
        "sessions: clicks": ["680", "0.0", "700", "20", "3,000", "0", "0"],
    }


def test_the_table_says_that_rows_are_held(screen: Screen) -> None:
    screen.commit(at=101, seconds=1, unpublished_rows=1_200)
    assert screen.table()["joined"][3].endswith("4 segments; 1,200 rows are held for larger files")


def test_totals_and_drops_add_up(screen: Screen) -> None:
    screen.commit(at=101, seconds=1)
    screen.commit(at=102, seconds=1)
    table = screen.table()
    assert (table["orders"][1], table["orders"][4]) == ("4,000", "late 6, null key 2")
    assert (table["payments"][4], table["joined"][1]) == ("dead letters 4", "3,000")


def test_rates_count_the_time_of_the_first_epoch_too(screen: Screen) -> None:
    screen.commit(at=101, seconds=1)
    screen.commit(at=102, seconds=1)
    assert screen.table()["orders"][0] == "2,000"


def test_rates_count_waiting(screen: Screen) -> None:
    screen.commit(at=104.95, seconds=0.05)
    assert screen.table()["orders"][0] == "404"


def test_rates_forget_what_is_ten_seconds_old(screen: Screen) -> None:
    screen.commit(at=101, seconds=1, rows_in={"orders": 1_000_000, "payments": 0})
    screen.commit(at=120, seconds=0.1)
    assert screen.table()["orders"][0] == "200"


def test_an_epoch_longer_than_the_window_counts_whole(screen: Screen) -> None:
    screen.commit(at=120, seconds=20)
    assert screen.table()["orders"][0] == "100"


def test_lost_records_are_shouted(screen: Screen) -> None:
    screen.commit(at=101, seconds=1, lost={"orders/0": 1234})
    assert "orders/0: 1,234 records were lost unread" in screen.text()


def test_messages_are_shown_as_they_are(screen: Screen) -> None:
    """Brackets in them are no markup."""
    screen.progress.warn(WARNING)
    screen.progress.listener.started(FakeDriver())  # type: ignore[arg-type]
    screen.progress.listener.retrying(TROUBLE, 0.5)
    screen.progress.listener.waiting(OUTAGE)
    screen.progress.listener.warned("key [b]a[/b] is hot")
    assert f"warning: {WARNING}" in screen.text()
    assert "warning: key [b]a[/b] is hot" in screen.text()
    assert "orders-payments on local[2]: generation 3, epoch 7 is replayed" in screen.text()
    assert f"{TROUBLE}; trying again in 0.5 s" in screen.text()
    since = "2023-11-14T22:13:20.000Z"
    assert f"{TROUBLE}; waiting for the store since {since}, trying again in 2 s" in screen.text()


def test_a_command_in_a_message_is_not_broken_on_a_narrow_terminal() -> None:
    screen = Screen(JOB, width=40)
    command = "kafka-consumer-groups --describe --members --bootstrap-server kafka-1.example.org:9092"
    screen.progress.warn(f"Another member has the partitions. See who it is with {command}")
    screen.progress.show_page("http://127.0.0.1:40227/")
    assert command in screen.text()
    assert "http://127.0.0.1:40227/" in screen.text()


def test_a_narrow_table_cuts_off_no_time_and_no_number() -> None:
    screen = Screen(JOB, width=60)
    screen.commit(at=102, seconds=2)
    screen.table()
    text = screen.text()
    assert "…" not in text
    assert all(part in text for part in ("2023-11-14 ", "22:13:20.000Z", "12,345", "2,500"))


def test_the_end_tells_the_totals(screen: Screen) -> None:
    screen.commit(at=101, seconds=1)
    screen.now = 103.5
    screen.progress.show_end("inputs")
    assert "orders-payments: all inputs have ended after 3.5 s, 3,000 rows in, 1,500 out\n" in screen.text()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            "postgres: {table: joined}",
            "the table joined of the embedded Postgres: joinery sql JOB.yaml 'SELECT * FROM output LIMIT 10'",
        ),
        (
            "postgres: {table: joined}\n  stateStore: {postgres: {dsn: 'host=db'}}",
            "the table joined of the state store's database: SELECT * FROM joined LIMIT 10",
        ),
        (
            "postgres: {table: joined, dsn: 'host=db'}",
            "the table joined of the database of output.postgres: SELECT * FROM joined LIMIT 10",
        ),
        ("console: {}", "the first rows of each epoch were printed here; none are kept"),
        ("file: {path: /tmp/my rows}", "rows are in /tmp/my rows: head '/tmp/my rows'/*.jsonl"),
        (
            "kafka: {bootstrapServers: 'k:1', topic: out}",
            "the topic out: kafka-console-consumer --bootstrap-server k:1 --topic out --from-beginning",
        ),
        (
            "kafka: {bootstrapServers: 'k:1', topic: out}\n    format: avro\n    schemaRegistry: {url: 'http://r:1'}",
            "out: kafka-avro-console-consumer --bootstrap-server k:1 --topic out --property "
            "schema.registry.url=http://r:1 --from-beginning",
        ),
    ],
)
def test_the_end_tells_where_the_rows_are_and_how_to_look(output: str, message: str) -> None:
    screen = Screen(job(("postgres: {table: joined}", output)))
    screen.commit(at=101, seconds=1)
    screen.progress.show_end("inputs")
    assert message in " ".join(screen.text().split())


def test_the_end_shouts_what_was_late(screen: Screen) -> None:
    screen.commit(101, 1.0, totals=LATE)
    screen.progress.show_end("inputs")
    assert " ".join(LATE_WORDS.split()) in " ".join(screen.text().split())


def test_the_end_proposes_a_delay(screen: Screen) -> None:
    screen.commit(101, 1.0, disorder={"payments": 300_000})
    screen.progress.show_end("once")
    assert " ".join(OUT_OF_ORDER.split()) in " ".join(screen.text().split())


def test_the_end_tells_when_there_was_nothing_new(screen: Screen) -> None:
    screen.progress.show_end("inputs")
    assert "0 rows in, 0 out (there was nothing new to read" in screen.text()


def test_a_stop_without_rows_does_not(screen: Screen) -> None:
    screen.progress.show_end("stopped")
    assert "stopped after 0.0 s, 0 rows in, 0 out\n" in screen.text()


# --- which one --------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def opened(stream: io.StringIO) -> Iterator[type]:
    with open_progress(JOB, stream, "local[2]") as progress:
        yield type(progress)


def test_a_terminal_gets_the_table_anything_else_json() -> None:
    with opened(Terminal()) as kind:
        assert kind is TableProgress
    with opened(io.StringIO()) as kind:
        assert kind is JsonProgress


@pytest.mark.parametrize(
    ("watermark", "shown"),
    [
        (None, "-"),
        (END_OF_TIME, "ended"),
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (2**60, str(2**60)),
    ],
)
def test_show_time(watermark: int | None, shown: str) -> None:
    assert show_time(watermark) == shown


def test_the_command_that_shows_rows_of_parquet_works(tmp_path: Path) -> None:
    folder = tmp_path / "it's out"
    folder.mkdir()
    pq.write_table(pa.table({"id": ["o1", "o2"]}), folder / "epoch-1.parquet")
    output = ("postgres: {table: joined}", f'file: {{path: "{folder}"}}\n    format: parquet')
    (line,) = where_rows_are(job(output))
    _, _, look = line.partition(": ")
    ran = subprocess.run(look.replace("python", sys.executable, 1), shell=True, check=True, capture_output=True)
    assert "o2" in ran.stdout.decode()
