"""What the comparison prints: one table per section, with notes; and what it writes as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from bench.latency import Delays
from bench.peer import Figures
from bench.usage import KINDS

_HEAD = (
    "",
    "rows/s, start counted",
    "rows/s, warm",
    "of Joinery's, warm",
    "CPU us/row",
    "warm",
    "peak memory",
    "rows out",
)


def rates(title: str, figures: Sequence[Figures]) -> str:
    """A table in Markdown. Ratios are to the first of Joinery's rows that has a warm rate."""
    joinery_rate = next(
        (peer.warm_rate for peer in figures if peer.name.startswith("Joinery") and peer.warm_rate), None
    )
    return _table(title, _HEAD, [_rates_row(peer, joinery_rate) for peer in figures], figures)


def _rates_row(figures: Figures, joinery_rate: float | None) -> list[str]:
    if figures.problem:
        return [figures.name, figures.problem, *[""] * (len(_HEAD) - 2)]
    return [
        figures.name,
        _number(figures.cold_rate),
        _number(figures.warm_rate),
        f"{figures.warm_rate / joinery_rate:.2f}" if figures.warm_rate and joinery_rate else "-",
        _number(figures.cold_cpu_us, 2),
        _number(figures.warm_cpu_us, 2),
        f"{figures.peak_bytes / 1e9:.2f} GB" if figures.peak_bytes else "-",
        f"{figures.rows_out:,}" if figures.rows_out else "-",
    ]


def cpu_by_kind(title: str, figures: Sequence[Figures]) -> str:
    """Rates, and CPU per row by kind of process, warm and with the start counted."""
    first, *later_kinds = KINDS
    head = ("", "rows/s, start counted", "warm", f"CPU us/row, warm (start counted): {first}", *later_kinds)
    return _table(title, head, [_cpu_by_kind_row(peer) for peer in figures], figures)


def _cpu_by_kind_row(figures: Figures) -> list[str]:
    if figures.problem:
        return [figures.name, figures.problem, *[""] * (1 + len(KINDS))]
    cold, warm = figures.cold_cpu_by_kind, figures.warm_cpu_by_kind or {}
    cells = [f"{_number(warm.get(kind), 2)} ({_number(cold.get(kind), 2)})" for kind in KINDS]
    return [figures.name, _number(figures.cold_rate), _number(figures.warm_rate), *cells]


def goals(rows: Sequence[tuple[str, float, str, str]]) -> str:
    """What is compared, warm; the value; its goal; and whether that is reached."""
    lines = [_line(("warm", "measured", "goal", "reached")), _line(("---", "---:", "---:", "---"))]
    return "\n".join([*lines, *(_line((text, f"{value:.2f}", *rest)) for text, value, *rest in rows), ""])


def delays(title: str, results: Sequence[Delays]) -> str:
    head = ("", "p50 ms", "p99 ms", "rows")
    rows = [
        [peer.name, peer.problem or _number(peer.p50_ms), _number(peer.p99_ms), f"{peer.rows:,}"] for peer in results
    ]
    return _table(title, head, rows, results)


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], results: Sequence[Figures] | Sequence[Delays]
) -> str:
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)]), *map(_line, rows)]
    notes = [f"- {peer.name}: {peer.settings}." for peer in results]
    return "\n".join([f"## {title}", "", *lines, "", *notes, ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
