"""A picture of the rates: bars in an SVG, written by hand, since nothing else here draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from bench.peer import Figures

_WIDTH, _NAMES, _BAR, _GAP, _TITLE = 900, 300, 18, 8, 34
_OURS, _THEIRS = "#1f6f8b", "#b0b7bd"


def svg(sections: Mapping[str, Sequence[Figures]]) -> str:
    """A bar per engine, as long as its warm rate, or the rate with its start where it has no other; those that failed
    are left out. Each section has a scale of its own."""
    parts, top = [], 0
    for title, results in sections.items():
        rates = [(figures.name, figures.warm_rate or figures.cold_rate) for figures in results if not figures.problem]
        most = max((rate for _, rate in rates if rate), default=1.0)
        parts.append(_text(0, top + _TITLE - 12, f"{title}, rows per second", "bold"))
        top += _TITLE
        for name, rate in rates:
            parts += _bar(name, rate or 0.0, most, top)
            top += _BAR + _GAP
    style = "<style>text{font:13px sans-serif;fill:#222}.bold{font-weight:bold}.end{text-anchor:end}</style>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" height="{top}">'
    ground = f'<rect width="{_WIDTH}" height="{top}" fill="white"/>'
    return "\n".join([head, style, ground, *parts, "</svg>", ""])


def _bar(name: str, rate: float, most: float, top: int) -> list[str]:
    length = round((_WIDTH - _NAMES - 100) * rate / most, 1)
    colour = _OURS if name.startswith("Joinery") else _THEIRS
    return [
        _text(_NAMES - 8, top + 14, name, "end"),
        f'<rect x="{_NAMES}" y="{top}" width="{length}" height="{_BAR}" fill="{colour}"/>',
        _text(_NAMES + length + 6, top + 14, f"{rate:,.0f}", ""),
    ]


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(text)}</text>'
