"""What the benchmark prints and draws."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

from bench.__main__ import problems, write
from bench.latency import Delays, summary
from bench.nexmark import figures_by_query
from bench.peer import Figures, Peer
from bench.table import delays, rates, rates_picture

SVG = "{http://www.w3.org/2000/svg}"
OURS = Figures("Joinery, into files", "4 shards", 6000, 3000, 500.0, 1000.0, 4.0, 2.0, 2_000_000_000)
THEIRS = Figures("Flink <heap>", "4 slots", 6000, 3000, 100.0, 250.0, 8.0, 6.0, 1_500_000_000)
SMALL = Figures("Spark", "2 cores", 6000, 3000, 50.0, None, 80.0, None, 1_000_000_000)
FAILED = Figures("Streams", "2 threads", 6000, 17, problem="was given up: 17 of 3,000 rows are visible")


def test_a_table_has_rates_ratios_cpu_memory_and_settings() -> None:
    lines = rates("Joins", [OURS, THEIRS, SMALL, FAILED]).splitlines()
    assert lines[0] == "## Joins"
    assert lines[4] == "| Joinery, into files | 500 | 1,000 | 1.00 | 4.00 | 2.00 | 2.00 GB | 3,000 |"
    assert lines[5] == "| Flink <heap> | 100 | 250 | 0.25 | 8.00 | 6.00 | 1.50 GB | 3,000 |"
    assert lines[6] == "| Spark | 50 | - | - | 80.00 | - | 1.00 GB | 3,000 |"
    assert lines[7].startswith("| Streams | was given up: 17 of 3,000 rows are visible | ")
    assert "- Flink <heap>: 4 slots." in lines
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


def test_figures_of_nexmark_are_grouped_by_their_query_whatever_their_names_are() -> None:
    peers = [replace(figures, query=query) for query in ("q11", "q1") for figures in (OURS, THEIRS)]
    of_query_1, of_query_11 = peers[2:], peers[:2]
    assert list(figures_by_query([*peers, replace(SMALL, name="Spark, q1")])) == [
        ("q1", of_query_1),
        ("q11", of_query_11),
    ]


def test_latencies_are_in_a_table_too() -> None:
    text = delays(
        "Latency", [Delays("Joinery", "2 shards", 90, 120.4, 300.5), Delays("Flink", "1 s", problem="no row")]
    )
    assert "| Joinery | 120 | 300 | 90 |" in text
    assert "| Flink | no row | - | 0 |" in text


def test_delays_are_summed_up_and_none_is_a_problem() -> None:
    peer = Peer("Joinery", "2 shards", ["false"], Path("nowhere"))
    summed_up = summary(peer, [number / 1000 for number in range(101)])
    assert (summed_up.rows, summed_up.p50_ms, summed_up.p99_ms, summed_up.problem) == (101, 50.0, 99.0, None)
    assert summary(peer, []).problem == "no row came after the warm-up"
    assert summary(peer, "ended with 1").problem == "ended with 1"


def test_bars_are_as_long_as_rates_and_what_failed_has_none() -> None:
    picture = ElementTree.fromstring(rates_picture({"joins": [OURS, THEIRS, SMALL, FAILED], "sessions": [THEIRS]}))
    bars = [float(bar.attrib["width"]) for bar in picture.iter(f"{SVG}rect")][1:]
    assert bars == [500.0, 125.0, 25.0, 500.0]
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert "Flink <heap>" in texts
    assert "Streams" not in texts


def test_a_run_leaves_tables_figures_and_a_picture(tmp_path: Path) -> None:
    results = {
        "joins": [OURS, FAILED],
        "latency": [Delays("Joinery", "2 shards", 90, 1.0, 2.0)],
        "upserts": {"new": {}},
    }
    write(tmp_path, ["here", "## Joins"], results)
    assert (tmp_path / "table.md").read_text() == "here\n## Joins"
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["joins"][0]["warm_rate"] == 1000.0
    assert figures["latency"][0]["p99_ms"] == 2.0
    assert "Joinery, into files" in (tmp_path / "rates.svg").read_text()
    assert problems(results) == ["Streams: was given up: 17 of 3,000 rows are visible"]
