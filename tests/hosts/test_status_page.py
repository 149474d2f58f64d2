"""The job's page: what the driver serves for it, and what a browser makes of that."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from hosts.page_scene import START, DayOfAJob, gone_after_one_answer, in_front_of
from joinery_devkit.browser import elements, picture
from joinery_runtime.engine.loop import Outage
from joinery_runtime.errors import StoreUnavailable
from joinery_runtime.hosts.status.board import Board, Liveness
from joinery_runtime.hosts.status.document import history_document
from joinery_runtime.hosts.status.history import EPOCHS, HistoryDocument
from joinery_runtime.hosts.status.server import serve_status

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "runtime/src/joinery_runtime/hosts/status/page"
PICTURES = ROOT / "docs/images"


@pytest.fixture(scope="module")
def day() -> DayOfAJob:
    day = DayOfAJob()
    day.run(2 * 3600, every=30)
    day.run(960)
    day.scaled()
    return day


@contextmanager
def served(day: DayOfAJob) -> Iterator[str]:
    with serve_status(day.board, 0) as address:
        yield address.page.removesuffix("/")


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_a_day_is_kept_finely_at_its_end_and_coarsely_before() -> None:
    day = DayOfAJob()
    day.run(40 * 3600, every=20)
    samples = history_document(day.board, 0).samples
    ages = [(day.now * 1000 - sample.at) / 1000 for sample in samples]
    assert ages == sorted(ages, reverse=True)
    assert len(samples) <= 660
    assert 23 * 3600 < ages[0] <= 25 * 3600
    recent = [age for age in ages if age <= 900]
    assert len(recent) == 46  # each epoch is one, as it comes every 20 s
    gaps = {round(a - b) for a, b in pairwise(ages) if a > 1200}
    assert gaps == {240}


def test_there_is_no_sample_before_the_totals_are_known() -> None:
    """Of a driver that goes on with a state they are millions at once."""
    day = DayOfAJob(read={"orders": 5_000_000, "payments": 4_000_000}, out=1_000_000)
    day.board.note_executors(None)
    (first,) = history_document(day.board, 0).samples
    assert first.rows_in == {"orders": 5_000_000, "payments": 4_000_000}
    unknown = Board("job", ("orders",), Liveness(60))
    unknown.note_trouble(StoreUnavailable("the store is away"))
    unknown.note_executors(None)
    assert history_document(unknown, 0).samples == ()


def test_a_quick_job_is_not_sampled_at_each_epoch(day: DayOfAJob) -> None:
    document = history_document(day.board, round((day.now - 60) * 1000))
    assert len(document.samples) == 20
    assert len(document.epochs) == 60
    assert len(history_document(day.board, 0).epochs) == EPOCHS


def test_only_what_is_newer_is_told(day: DayOfAJob) -> None:
    everything = history_document(day.board, 0)
    since = everything.samples[-3].at
    assert history_document(day.board, since).samples == everything.samples[-2:]
    assert all(epoch.at > since for epoch in history_document(day.board, since).epochs)
    assert not history_document(day.board, everything.now).samples


def test_an_epoch_says_where_its_time_went(day: DayOfAJob) -> None:
    epoch = history_document(day.board, 0).epochs[-1]
    assert (epoch.plan_ms, epoch.commit_ms) == (15.0, 55.0)
    assert 130 <= epoch.run_ms <= 230
    assert (epoch.epoch, epoch.rows_in) == (day.epoch, sum(day.newest.values()))


def test_the_slowest_partitions_come_first_and_idle_ones_last(day: DayOfAJob) -> None:
    listed = [
        (partition.input, partition.partition, partition.behind, partition.idle)
        for partition in history_document(day.board, 0).partitions
    ]
    assert listed == [
        ("orders", "orders/1", 11_000, False),
        ("orders", "orders/0", 2_000, False),
        ("orders", "orders/2", 20_000, True),
        ("payments", "payments/2", 38_000, False),
        ("payments", "payments/1", 20_000, False),
        ("payments", "payments/0", 2_000, False),
    ]


def test_of_hundreds_of_partitions_the_worst_are_told() -> None:
    day = DayOfAJob(partitions=300)
    day.run(5)
    partitions = history_document(day.board, 0).partitions
    assert [partition.partition for partition in partitions if partition.input == "orders"] == [
        f"orders/{n}" for n in (299, 298, 297, 296, 295)
    ]


def test_a_partition_without_a_row_holds_most_back() -> None:
    day = DayOfAJob(silent="payments/1")
    day.run(5)
    first = next(partition for partition in history_document(day.board, 0).partitions if partition.input == "payments")
    assert (first.partition, first.behind) == ("payments/1", None)


def test_rows_left_out_and_scalings(day: DayOfAJob) -> None:
    document = history_document(day.board, 0)
    assert set(document.dropped["orders"]) == {"late", "null_key"}
    assert set(document.dropped["payments"]) == {"dead letter"}
    (scaling,) = document.scalings
    assert (scaling.shards, scaling.executors) == (8, 4)


# --- what is served ---------------------------------------------------------------------------------------------------


def test_the_page_asks_nothing_of_others(day: DayOfAJob) -> None:
    with served(day) as address:
        for path in ("/", "/page.css", "/page.js", "/uplot.css", "/uplot.js"):
            with urllib.request.urlopen(address + path, timeout=60) as answer:
                body = answer.read().decode()
                policy = answer.headers["Content-Security-Policy"]
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert set(re.findall(r"https?://[^\s'\"]+", body)) <= {"https://github.com/leeoniya/uPlot"}
            assert "innerHTML" not in body
        with urllib.request.urlopen(f"{address}/", timeout=60) as answer:
            matches = re.findall(r'(?:src|href)="([^"]+)"', answer.read().decode())
        for path in {path for path in matches if not path.startswith("data:")}:
            with urllib.request.urlopen(f"{address}/{path}", timeout=60) as answer:
                assert answer.status == 200


def test_history_is_served_since_a_moment(day: DayOfAJob) -> None:
    with served(day) as address:
        with urllib.request.urlopen(f"{address}/history?since={round(day.now * 1000) - 9000}", timeout=60) as answer:
            document = HistoryDocument.model_validate(json.load(answer))
        assert len(document.samples) == 3
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(f"{address}/history?since=yesterday", timeout=60)


@pytest.mark.parametrize("path", ["/page", "/page.js.map", "/../board.py", "/uplot-1.6.32/LICENSE", "/index.html"])
def test_nothing_else_is_served(day: DayOfAJob, path: str) -> None:
    with served(day) as address, pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(address + path, timeout=60)


def test_the_charting_library_is_the_one_that_its_folder_names() -> None:
    script = (PAGE / "uplot-1.6.32/uPlot.iife.min.js").read_text()
    assert "uPlot (v1.6.32)" in script
    assert "MIT" in (PAGE / "uplot-1.6.32/LICENSE").read_text()


# --- in a browser -----------------------------------------------------------------------------------------------------


def text_of(address: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", elements(address)))


@pytest.mark.slow
def test_a_browser_shows_the_job_and_writes_the_pictures_of_the_docs(day: DayOfAJob) -> None:
    with served(day) as address:
        page = text_of(address)
        PICTURES.mkdir(exist_ok=True)
        for name, width, height, dark in (
            ("light", 1200, 1150, False),
            ("dark", 1200, 1150, True),
            ("phone", 400, 1300, False),
        ):
            target = PICTURES / f"page-{name}.png"
            picture(address, target, width=width, height=height, dark=dark)
            assert 20_000 < target.stat().st_size < 150_000, name
    for shown in (
        "orders-payments", "an inner interval join", "Running", "Kafka topic shop.orders", "exactly once",
        "Records per second", "sets the watermark", "idle: not counted", "id=guest", "dead letter",
        "lag of 84,000 records", "30 min after orders",
        "late: too far behind the watermark", "Counted since the job's state began",
        "say how long that took", "lag in records",
    ):  # fmt: skip
        assert shown in page


# Written into the page once it has drawn: the titles of the boxes whose contents are wider than they are, and how wide
# the window and the page are.
MEASURED = b"""
setTimeout(() => {
  const boxes = [...document.querySelectorAll("figure, .card, #tables > section, header")];
  const wide = boxes.filter((box) => box.scrollWidth > box.clientWidth);
  const titles = wide.map((box) => box.querySelector("figcaption, h2, h1").textContent);
  const page = document.documentElement;
  document.body.append(element("output", "", JSON.stringify([titles, page.clientWidth, page.scrollWidth])));
}, 1500);
"""


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scrolls"), [(1200, []), (500, ["State by side", "Newest epochs"])])
def test_long_names_stay_inside_their_boxes(width: int, scrolls: list[str]) -> None:
    """Where it is narrow, tables of seven numbers and more scroll inside theirs."""
    of_topics = "com.example.platform.settlements." * 7 + "end", "clicks_of_the_shop_with_consent_and_enrichment_v2"
    day = DayOfAJob(names=of_topics)
    day.run(120)

    def measured(path: str, body: bytes) -> bytes:
        return body + MEASURED if path == "/page.js" else body

    with served(day) as address, in_front_of(address, measured) as measuring:
        document = elements(measuring, width=width)
    (written,) = re.findall(r"<output>(.*)</output>", document)
    assert json.loads(written) == [scrolls, width, width]


@pytest.mark.slow
def test_charts_without_a_value_say_so() -> None:
    """Of one sample there are no rates, and before the first poll no lag."""
    day = DayOfAJob()
    day.run(1)
    with served(day) as address:
        document = elements(address)
    assert re.findall(r"<figcaption>([^<]*)</figcaption><div><p", document) == [
        "Records per second",
        "Lag: records that are not read yet",
        "Rows out per record in",
        "Late rows and dead letters per second",
    ]
    assert document.count("No values") == 4


@pytest.mark.slow
def test_a_browser_says_what_is_wrong() -> None:
    day = DayOfAJob(names=("a", "b", "c", "d", "e"))
    day.run(60)
    day.begin_outage(Outage(StoreUnavailable("the store <b>is</b> away"), START, 0.5))
    with served(day) as address:
        document = elements(address)
    assert "Waiting for the store" in document
    assert "the store &lt;b&gt;is&lt;/b&gt; away" in document
    assert all(f"Kafka topic {name}" in document for name in "abcde")


@pytest.mark.slow
@pytest.mark.parametrize("ended", [True, False])
def test_a_browser_says_that_the_driver_has_gone(ended: bool) -> None:
    day = DayOfAJob(ended=ended)
    day.run(60)
    with served(day) as address, gone_after_one_answer(address) as leaving:
        page = text_of(leaving)
    assert ("its driver has gone" in page) is ended
    assert ("has not answered since" in page) is not ended
    assert "orders-payments" in page
