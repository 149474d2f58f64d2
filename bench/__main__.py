"""The comparison of Joinery with every peer, in one run on this machine, outputs verified. Prints tables, and writes
them, all figures as JSON and a picture of the rates into a folder.

    python -m bench --only joins --rows 3000000
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench import joins, kinds, latency, memory, nexmark, scale, sessions, state, table, upserts
from bench.peer import Figures
from bench.usage import adopt_orphans

ROWS, QUICK_ROWS = 3_000_000, 100_000
STATE_ROWS, RECOVERED_ROWS = 20_000_000, 5_000_000  # a side; a quick run has QUICK_ROWS
LATENCY_SECONDS, QUICK_LATENCY_SECONDS = 60.0, 10.0
RUNS = 3  # of each peer; the median is shown


class SectionReport(NamedTuple):
    figures: Any
    text: str  # shows the figures


def _measure_joins(work: Path, options: argparse.Namespace) -> SectionReport:
    figures = joins.run(work, options.rows, options.peers, options.runs)
    return SectionReport(figures, table.rates(f"Inner join within 60 s, 2 x {options.rows:,} records", figures))


def _measure_sessions(work: Path, options: argparse.Namespace) -> SectionReport:
    figures = sessions.run(work, options.rows, options.peers, options.runs)
    return SectionReport(figures, table.rates(f"Sessions with a gap of 60 s, {options.rows:,} records", figures))


def _measure_latency(work: Path, options: argparse.Namespace) -> SectionReport:
    delays = latency.run(work, QUICK_LATENCY_SECONDS if options.quick else LATENCY_SECONDS, options.peers)
    return SectionReport(
        delays, table.delays(f"Latency at {latency.RATE:,} records per second and topic, exactly once", delays)
    )


def _measure_kinds(work: Path, options: argparse.Namespace) -> SectionReport:
    figures = kinds.run(work, options.rows, options.peers)
    return SectionReport(figures, table.rates("Kinds of join", figures))


def _measure_nexmark(work: Path, options: argparse.Namespace) -> SectionReport:
    figures = nexmark.run(work, options.rows, options.peers, options.runs)
    tables = [
        table.rates(f"Nexmark {query}, {options.rows:,} events of three topics", of_query)
        for query, of_query in nexmark.figures_by_query(figures)
    ]
    return SectionReport(figures, "\n".join(tables))


def _measure_scale(work: Path, options: argparse.Namespace) -> SectionReport:
    figures = scale.run(work, options.rows, options.peers, options.runs)
    title = f"Executors and shards, every epoch on Spark, 2 x {options.rows:,} records"
    return SectionReport(figures, f"{table.cpu_by_kind(title, figures)}\n{table.goals(scale.goal_rows(figures))}")


def _measure_upserts(work: Path, options: argparse.Namespace) -> SectionReport:
    rates_by_variant = upserts.run(work, options.rows)
    return SectionReport(rates_by_variant, upserts.rates_table(rates_by_variant))


def _measure_state(work: Path, options: argparse.Namespace) -> SectionReport:
    sizes = (options.rows, options.rows) if options.quick else (STATE_ROWS, RECOVERED_ROWS)
    growth = state.run(work, *sizes)
    return SectionReport(growth, state.growth_table(growth))


def _measure_memory(work: Path, options: argparse.Namespace) -> SectionReport:
    peaks = memory.run(work, quick=options.quick)
    return SectionReport(peaks, memory.peaks_table(peaks))


SECTIONS: dict[str, Callable[[Path, argparse.Namespace], SectionReport]] = {
    "joins": _measure_joins,
    "sessions": _measure_sessions,
    "latency": _measure_latency,
    "scale": _measure_scale,
    "kinds": _measure_kinds,
    "nexmark": _measure_nexmark,
    "upserts": _measure_upserts,
    "state": _measure_state,
    "memory": _measure_memory,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help=f"records per topic; {ROWS:,} by default")
    parser.add_argument("--only", choices=SECTIONS, nargs="*", default=list(SECTIONS))
    parser.add_argument(
        "--peers",
        nargs="*",
        help="short names, such as flink-heap or cluster-2x1, kinds of join, or queries; all by default",
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} records: does every peer work?")
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    options.rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    options.runs = 1 if options.quick else RUNS
    adopt_orphans()
    # Modules are compiled, as where they are installed: else each start compiles those that have changed.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C: the peer that runs is stopped
    results: dict[str, Any] = {}
    texts = [heading()]
    print(texts[0], flush=True)
    work = Path(tempfile.mkdtemp(prefix="joinery-bench-"))
    for name in options.only:
        results[name], text = SECTIONS[name](work / name, options)
        texts.append(text)
        print(text, flush=True)
        write(options.out, texts, results)  # after each: an interrupted run leaves what it has
    if problems(results):
        print(f"Logs of what failed are in {work}", file=sys.stderr)
        return 1
    shutil.rmtree(work, ignore_errors=True)
    return 0


def heading() -> str:
    """When and where, and how busy the machine is: its figures are compared with others of the same run only."""
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB, "
        f"load {load} before the run. Broker, database and engine share the machine.\n"
    )


def problems(results: Mapping[str, Any]) -> list[str]:
    """Return what failed."""
    results_of_peers = [result for section in results.values() if isinstance(section, Sequence) for result in section]
    return [f"{result.name}: {result.problem}" for result in results_of_peers if result.problem]


def write(out: Path, texts: Sequence[str], results: Mapping[str, Any]) -> None:
    """`table.md`, `figures.json` and `rates.svg` in the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text("\n".join(texts))
    (out / "figures.json").write_text(json.dumps(results, indent=2, default=_as_plain))
    sections = {name: section for name, section in results.items() if isinstance(section, list)}
    rates = {
        name: section for name, section in sections.items() if all(isinstance(figures, Figures) for figures in section)
    }
    (out / "rates.svg").write_text(table.rates_picture(rates))


def _as_plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value)} in the figures")


if __name__ == "__main__":
    sys.exit(main())
