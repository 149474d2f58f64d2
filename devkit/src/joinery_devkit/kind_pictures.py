"""Draws what a golden trace says: the rows of each input on its line of time, and what the rows of the output join.

The pictures are those of docs/kinds.md (`kinds_page`). Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from joinery_runtime.job.model.duration import parse_duration

_WIDTH, _LEFT, _RIGHT, _TOP, _ROW, _WINDOW_ROW = 720, 120, 690, 44, 62, 20
STYLE = """text{font:13px system-ui,sans-serif;fill:#24292f}.dim{fill:#6e7781}.b{font-weight:600}
  .axis{stroke:#8c959f;stroke-width:1.5;fill:none}.left{fill:#0969da}.right{fill:#bc4c00}.unmatched{fill:#8c959f}
  .area{fill:#0969da;opacity:.14}.wm{stroke:#1a7f37;stroke-width:2;stroke-dasharray:5 4;fill:none}.wmt{fill:#1a7f37}
  .link{stroke:#24292f;stroke-width:1.2;fill:none}.box{fill:none;stroke:#8c959f;stroke-width:1.2}
  .out{stroke:#bc4c00;stroke-width:1.5;fill:none}
  @media (prefers-color-scheme:dark){text{fill:#e6edf3}.dim{fill:#9198a1}.left{fill:#58a6ff}.right{fill:#f0883e}
  .area{fill:#58a6ff;opacity:.2}.wm{stroke:#3fb950}.wmt{fill:#3fb950}.link{stroke:#e6edf3}.out{stroke:#f0883e}}"""
ARROW_HEAD = (
    '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#8c959f"/></marker></defs>'
)


@dataclass(frozen=True, slots=True)
class Dot:
    """A row that was read: its input, the name by which the output shows it, its event time and its columns."""

    input: str
    name: str
    time: int
    columns: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KindTrace:
    """The trace of a kind: its file's content, with what a picture needs of it."""

    description: str
    job: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]

    @property
    def inputs(self) -> tuple[str, ...]:
        inputs = self.job["inputs"] if "inputs" in self.job else [self.job["input"]]
        return tuple(spec["name"] for spec in inputs)

    def dots(self) -> tuple[Dot, ...]:
        """Return every row of the trace. A row's columns are its key, its name and `ts`, in this order."""
        return tuple(
            Dot(name, str([*row.values()][1]), row["ts"], row)
            for step in self.steps
            for name, rows in rows_of(step).items()
            for row in rows
        )

    def outputs(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(row for step in self.steps for row in step.get("expect", {}).get("output", ()))


def rows_of(step: Mapping[str, Any]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return the rows that a step sends, by input."""
    return step["rows"] if "input" not in step and "rows" in step else {step.get("input", ""): step.get("rows", ())}


@dataclass(frozen=True, slots=True)
class TimeScale:
    """The times at the left and the right end of the picture."""

    first: int
    last: int

    @classmethod
    def of(cls, trace: KindTrace) -> TimeScale:
        times = [dot.time for dot in trace.dots()]
        times += [time for row in trace.outputs() for name, time in row.items() if name.startswith("window_")]
        times += [time for watermarks in _emitting_watermarks(trace) for time in watermarks.values()]
        times += [time for start, end, _ in _match_ranges(trace) for time in (start, end)]
        margin = (max(times) - min(times)) // 12
        return cls(min(times) - margin, max(times) + margin)

    def x(self, time: int) -> int:
        return round(_LEFT + (_RIGHT - _LEFT - 40) * (time - self.first) / (self.last - self.first))


def picture(trace: KindTrace) -> str:
    """Return the SVG of the trace."""
    return "\n".join(_picture_lines(trace)) + "\n"


def _picture_lines(trace: KindTrace) -> Iterator[str]:
    scale = TimeScale.of(trace)
    axes = {name: _TOP + 12 + _ROW * number for number, name in enumerate(trace.inputs)}
    bottom = max(axes.values())
    rows = [row for row in trace.outputs() if "window_start" in row]
    windows = dict.fromkeys((row["window_start"], row["window_end"], row.get("retracted", False)) for row in rows)
    height = bottom + 44 + _WINDOW_ROW * len(windows)
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    yield f"<title>{escape(trace.description)}</title>"
    yield f"<style>\n  {STYLE}\n</style>"
    yield ARROW_HEAD
    for number, (start, end, retracted) in enumerate(windows):
        y = bottom + 42 + _WINDOW_ROW * number
        text = f"{start} to {end}{', retracted' if retracted else ''}"
        yield from _draw_window(scale.x(start), scale.x(end), y, text, retracted)
    for start, end, name in _match_ranges(trace):
        width = scale.x(end) - scale.x(start)
        yield f'<rect class="area" x="{scale.x(start)}" y="{axes[name] - 20}" width="{width}" height="40" rx="3"/>'
    for name, y in axes.items():
        yield f'<text x="{_LEFT - 12}" y="{y + 4}" text-anchor="end" class="b">{name}</text>'
        yield f'<path class="axis" d="M{_LEFT} {y}H{_RIGHT}" marker-end="url(#a)"/>'
    for watermarks in _emitting_watermarks(trace):
        for time in dict.fromkeys(watermarks.values()):
            lines = [axes[name] for name, watermark in watermarks.items() if watermark == time]
            x, top, end = scale.x(time), min(lines), max(lines)  # from the first input with this watermark to the last
            yield f'<path class="wm" d="M{x} {top - 24}V{end + 24}"/>'
            yield f'<text x="{x}" y="{top - 30}" text-anchor="middle" class="wmt">watermark {time}</text>'
    yield from _draw_links(trace, scale, axes)
    yield from _draw_dots(trace, scale, axes)
    yield "</svg>"


def _draw_links(trace: KindTrace, scale: TimeScale, axes: Mapping[str, int]) -> Iterator[str]:
    """Draw a line through the rows of each output row, and a ring around a row that is emitted with null. Dotted
    lines lead to matches that the output does not name: the first one of a semi join, all that are aggregated."""
    dots = {(dot.input, dot.name): dot for dot in trace.dots()}
    matches = [*_semi_matches(trace)]
    if "aggregate" in trace.job:
        matches += [pair for step in trace.job.get("joins", ()) for pair in _interval_matches(trace, step)]
    for left, right in matches:
        path = f"M{scale.x(left.time)} {axes[left.input]}L{scale.x(right.time)} {axes[right.input]}"
        yield f'<path class="link" d="{path}" stroke-dasharray="2 3"/>'
    for row in trace.outputs():
        joined = [dots[name, row[name]] for name in trace.inputs if row.get(name) is not None]
        points = [(scale.x(dot.time), axes[dot.input]) for dot in joined]
        if len(points) > 1:
            path = "L".join(f"{x} {y}" for x, y in points)
            yield f'<path class="link" d="M{path}"/>'
        if any(name in row and row[name] is None for name in trace.inputs):
            yield f'<circle class="out" cx="{points[-1][0]}" cy="{points[-1][1]}" r="10"/>'


def _draw_dots(trace: KindTrace, scale: TimeScale, axes: Mapping[str, int]) -> Iterator[str]:
    rows = trace.outputs()
    emitted = {(name, row[name]) for row in rows for name in trace.inputs if row.get(name) is not None}
    with_null = {
        [(name, row[name]) for name in trace.inputs if row.get(name) is not None][-1]
        for row in rows
        if any(name in row and row[name] is None for name in trace.inputs)
    }
    for dot in trace.dots():
        kind = "left" if dot.input == trace.inputs[0] else "right"
        names_rows = {"joins", "select"} & trace.job.keys() and "aggregate" not in trace.job
        if names_rows and (dot.input, dot.name) not in emitted:
            kind = "unmatched"
        x, y = scale.x(dot.time), axes[dot.input]
        text = f"{dot.time}, null" if (dot.input, dot.name) in with_null else dot.time
        yield f'<circle cx="{x}" cy="{y}" r="5.5" class="{kind}"/>'
        yield f'<text x="{x}" y="{y - 12}" text-anchor="middle">{dot.name}</text>'
        yield f'<text x="{x}" y="{y + 22}" text-anchor="middle" class="dim">{text}</text>'


def _draw_window(left: int, right: int, y: int, text: str, retracted: bool) -> Iterator[str]:
    """Draw a bar from the window's start to its end, and shade what lies above the bar."""
    width = max(right - left, 4)
    if not retracted:
        yield f'<rect class="area" x="{left}" y="{_TOP - 20}" width="{width}" height="{y - _TOP + 20}"/>'
    kind = "out" if retracted else "axis"
    yield f'<path class="{kind}" d="M{left} {y - 5}V{y + 5}M{left} {y}H{left + width}V{y - 5}V{y + 5}"/>'
    yield f'<text x="{left + width + 8}" y="{y + 4}" class="dim">{text}</text>'


def _match_ranges(trace: KindTrace) -> Iterator[tuple[int, int, str]]:
    """Yield the times at which a row matches, and the input on whose line they are: of an interval step those of the
    right input around each row from which the bounds count; of an as-of step those of the stream with one version."""
    dots = trace.dots()
    for step in trace.job.get("joins", ()):
        if "interval" in step:
            interval = step["interval"]
            lower, upper = parse_duration(interval["lower"]), parse_duration(interval["upper"])
            for dot in dots:
                if dot.input == interval["of"]:
                    yield dot.time + lower, dot.time + upper, step["right"]
        if "asOf" in step:
            versions = sorted(dot.time for dot in dots if dot.input == step["right"])
            ends = [*versions[1:], max(dot.time for dot in dots) + 10]
            for start, end in zip(versions, ends, strict=True):
                yield start + 1, end - 1, trace.inputs[0]


def _semi_matches(trace: KindTrace) -> Iterator[tuple[Dot, Dot]]:
    """Yield each emitted row of a semi join with the first row that was read and matches it."""
    first = trace.inputs[0]
    emitted = {row[first] for row in trace.outputs() if first in row}
    for step in trace.job.get("joins", ()):
        if step.get("type") == "semi":
            matches = [(left, right) for left, right in _interval_matches(trace, step) if left.name in emitted]
            yield from {left.name: (left, right) for left, right in reversed(matches)}.values()


def _interval_matches(trace: KindTrace, step: Mapping[str, Any]) -> Iterator[tuple[Dot, Dot]]:
    """Yield the pairs that an interval step matches, in the order of reading."""
    lower, upper = (parse_duration(step["interval"][bound]) for bound in ("lower", "upper"))
    keys = [(left.partition(".")[2], right.partition(".")[2]) for left, right in step["keys"].items()]
    for left in trace.dots():
        for right in trace.dots():
            if (left.input, right.input) == (step["interval"]["of"], step["right"]):
                keys_are_equal = all(left.columns[of_left] == right.columns[of_right] for of_left, of_right in keys)
                if keys_are_equal and lower <= right.time - left.time <= upper:
                    yield left, right


def _emitting_watermarks(trace: KindTrace) -> Iterator[Mapping[str, int]]:
    """Yield the watermarks of steps that emit rows."""
    for step in trace.steps:
        if "watermark" in step and step.get("expect", {}).get("output"):
            yield step["watermark"]
