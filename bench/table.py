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


def rates(title: str, found: Sequence[Figures]) -> str:
    """A table in Markdown. Ratios are to the first of Joinery's rows that has a warm rate."""
    ours = next((each.warm_rate for each in found if each.name.startswith("Joinery") and each.warm_rate), None)
    return _table(title, _HEAD, [_rates_row(each, ours) for each in found], found)


def _rates_row(found: Figures, ours: float | None) -> list[str]:
    if found.problem:
        return [found.name, found.problem, *[""] * (len(_HEAD) - 2)]
    return [
        found.name,
        _number(found.cold_rate),
        _number(found.warm_rate),
        f"{found.warm_rate / ours:.2f}" if found.warm_rate and ours else "-",
        _number(found.cold_cpu_us, 2),
        _number(found.warm_cpu_us, 2),
        f"{found.peak_bytes / 1e9:.2f} GB" if found.peak_bytes else "-",
        f"{found.rows_out:,}" if found.rows_out else "-",
    ]


def cpu_by_kind(title: str, found: Sequence[Figures]) -> str:
    """Rates, and CPU per row by kind of process, warm and with the start counted."""
    first, *others = KINDS
    head = ("", "rows/s, start counted", "warm", f"CPU us/row, warm (start counted): {first}", *others)
    return _table(title, head, [_cpu_by_kind_row(each) for each in found], found)


def _cpu_by_kind_row(found: Figures) -> list[str]:
    if found.problem:
        return [found.name, found.problem, *[""] * (1 + len(KINDS))]
    cold, warm = found.cold_cpu_by_kind, found.warm_cpu_by_kind or {}
    cells = [f"{_number(warm.get(kind), 2)} ({_number(cold.get(kind), 2)})" for kind in KINDS]
    return [found.name, _number(found.cold_rate), _number(found.warm_rate), *cells]


def goals(rows: Sequence[tuple[str, float, str, str]]) -> str:
    """What is compared, warm; the value; its goal; and whether that is reached."""
    lines = [_line(("warm", "measured", "goal", "reached")), _line(("---", "---:", "---:", "---"))]
    return "\n".join([*lines, *(_line((text, f"{value:.2f}", *rest)) for text, value, *rest in rows), ""])


def delays(title: str, found: Sequence[Delays]) -> str:
    head = ("", "p50 ms", "p99 ms", "rows")
    rows = [[each.name, each.problem or _number(each.p50_ms), _number(each.p99_ms), f"{each.rows:,}"] for each in found]
    return _table(title, head, rows, found)


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], found: Sequence[Figures] | Sequence[Delays]
) -> str:
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)]), *map(_line, rows)]
    notes = [f"- {each.name}: {each.settings}." for each in found]
    return "\n".join([f"## {title}", "", *lines, "", *notes, ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
