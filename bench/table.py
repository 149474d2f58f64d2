"""What the comparison prints: one table per section, with notes; what it writes as JSON; and a picture of the rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

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
    """Return a table in Markdown. Ratios are to the first of Joinery's rows that has a warm rate."""
    joinery_rate = next(
        (peer.warm_rate for peer in figures if peer.name.startswith("Joinery") and peer.warm_rate), None
    )
    return _markdown_table(title, _HEAD, [_rates_row(peer, joinery_rate) for peer in figures], figures)


def _rates_row(figures: Figures, joinery_rate: float | None) -> list[str]:
    if figures.problem:
        return [figures.name, figures.problem, *[""] * (len(_HEAD) - 2)]
    return [
        figures.name,
        _number_text(figures.cold_rate),
        _number_text(figures.warm_rate),
        f"{figures.warm_rate / joinery_rate:.2f}" if figures.warm_rate and joinery_rate else "-",
        _number_text(figures.cold_cpu_us, 2),
        _number_text(figures.warm_cpu_us, 2),
        f"{figures.peak_bytes / 1e9:.2f} GB" if figures.peak_bytes else "-",
        f"{figures.rows_out:,}" if figures.rows_out else "-",
    ]


def cpu_by_kind(title: str, figures: Sequence[Figures]) -> str:
    """Return rates, and CPU per row by kind of process, warm and with the start counted."""
    first, *later_kinds = KINDS
    head = ("", "rows/s, start counted", "warm", f"CPU us/row, warm (start counted): {first}", *later_kinds)
    rows = []
    for peer in figures:
        if peer.problem:
            rows.append([peer.name, peer.problem, *[""] * (1 + len(KINDS))])
            continue
        cold, warm = peer.cold_cpu_by_kind, peer.warm_cpu_by_kind or {}
        cells = [f"{_number_text(warm.get(kind), 2)} ({_number_text(cold.get(kind), 2)})" for kind in KINDS]
        rows.append([peer.name, _number_text(peer.cold_rate), _number_text(peer.warm_rate), *cells])
    return _markdown_table(title, head, rows, figures)


def goals(rows: Sequence[tuple[str, float, str, str]]) -> str:
    """Return what is compared, warm; the value; its goal; and whether that is reached."""
    lines = [_table_line(("warm", "measured", "goal", "reached")), _table_line(("---", "---:", "---:", "---"))]
    return "\n".join([*lines, *(_table_line((text, f"{value:.2f}", *rest)) for text, value, *rest in rows), ""])


def delays(title: str, results: Sequence[Delays]) -> str:
    head = ("", "p50 ms", "p99 ms", "rows")
    rows = [
        [peer.name, peer.problem or _number_text(peer.p50_ms), _number_text(peer.p99_ms), f"{peer.rows:,}"]
        for peer in results
    ]
    return _markdown_table(title, head, rows, results)


def _number_text(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _markdown_table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], results: Sequence[Figures] | Sequence[Delays]
) -> str:
    lines = [_table_line(head), _table_line(["---", *["---:"] * (len(head) - 1)]), *map(_table_line, rows)]
    notes = [f"- {peer.name}: {peer.settings}." for peer in results]
    return "\n".join([f"## {title}", "", *lines, "", *notes, ""])


def _table_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_WIDTH, _NAMES, _BAR, _GAP, _TITLE = 900, 300, 18, 8, 34
_OURS, _THEIRS = "#1f6f8b", "#b0b7bd"


def rates_picture(sections: Mapping[str, Sequence[Figures]]) -> str:
    """Return a picture in SVG, written by hand. It has a bar per engine, as long as its warm rate, or the rate with its
    start where it has no other; those that failed are left out. Each section has a scale of its own."""
    parts, top = [], 0
    for title, results in sections.items():
        rates = [(figures.name, figures.warm_rate or figures.cold_rate) for figures in results if not figures.problem]
        most = max((rate for _, rate in rates if rate), default=1.0)
        parts.append(_draw_text(0, top + _TITLE - 12, f"{title}, rows per second", "bold"))
        top += _TITLE
        for name, rate in rates:
            length = round((_WIDTH - _NAMES - 100) * (rate or 0.0) / most, 1)
            colour = _OURS if name.startswith("Joinery") else _THEIRS
            parts += [
                _draw_text(_NAMES - 8, top + 14, name, "end"),
                f'<rect x="{_NAMES}" y="{top}" width="{length}" height="{_BAR}" fill="{colour}"/>',
                _draw_text(_NAMES + length + 6, top + 14, f"{rate or 0.0:,.0f}", ""),
            ]
            top += _BAR + _GAP
    style = "<style>text{font:13px sans-serif;fill:#222}.bold{font-weight:bold}.end{text-anchor:end}</style>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" height="{top}">'
    ground = f'<rect width="{_WIDTH}" height="{top}" fill="white"/>'
    return "\n".join([head, style, ground, *parts, "</svg>", ""])


def _draw_text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(text)}</text>'
