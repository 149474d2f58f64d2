"""Writes docs/kinds.md and its pictures from the golden traces in tests/traces/kinds: each kind with its YAML, rows in
and rows out. `make crds` runs it, and tests/docs/test_kinds.py fails while the files differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from joinery_devkit.kind_pictures import KindTrace, picture, rows_of

ROOT = Path(__file__).parents[3]
TRACES = ROOT / "tests/traces/kinds"
PAGE = Path("docs/kinds.md")
PICTURES = Path("docs/pictures/kinds")


class Kind(NamedTuple):
    """A section of the page. `rules` is the anchor of its rules in the semantics page."""

    title: str
    trace: str
    rules: str


KINDS = (
    Kind("Interval join", "interval", "interval-join"),
    Kind("Left join", "left", "outer-join"),
    Kind("Right join", "right", "outer-join"),
    Kind("Full join", "full", "outer-join"),
    Kind("Semi join", "semi", "semi-and-anti-join"),
    Kind("Anti join", "anti", "semi-and-anti-join"),
    Kind("Tumbling window join", "tumbling", "window-join"),
    Kind("Hopping window join", "hopping", "window-join"),
    Kind("Session window join", "session", "window-join"),
    Kind("Chain", "chain", "chain"),
    Kind("Three inputs in one window", "window-chain", "w5"),
    Kind("As-of join", "as-of", "as-of-join"),
    Kind("Join on time only", "time-only", "j9"),
    Kind("Projection of one input", "projection", "projection"),
    Kind("Sessions", "sessions", "session-window"),
    Kind("Aggregates of tumbling windows", "aggregate-tumbling", "g1"),
    Kind("Aggregates of hopping windows", "aggregate-hopping", "g1"),
    Kind("Aggregates of cumulative windows", "aggregate-cumulative", "g1"),
    Kind("Sessions of a join's rows", "aggregate-sessions", "s8"),
    Kind("Deduplication", "deduplicate", "deduplication"),
    Kind("Top-N", "top-n", "top-n"),
)
"""The sections in their order. A new kind has a trace in tests/traces/kinds, and a line here."""
_INTRODUCTION = """\
# Kinds by example

Each kind of join, sessions, aggregates, projection, deduplication and top-N, with its picture, its YAML, the rows that
go in and the rows that come out. The rows are those of the golden traces in
[tests/traces/kinds/](../tests/traces/kinds/), which every build runs, also with restarts and with other numbers of
shards between the steps. [Joins](joins.md), [Sessions](sessions.md), [Aggregates](aggregates.md),
[Deduplication](deduplication.md) and [Top-N](top-n.md) describe each kind; [Semantics](semantics.md) has the rules.

Times are milliseconds. In the pictures, a line connects the rows that make one row of the output, and a dotted line
leads to a match that the output does not name. A ring marks a row that is emitted with null for the other side.
Grey rows are in no row of the output. A green dashed line is a watermark that makes the job emit rows. Shaded are the
times that match. In the tables, each row that goes in is written as its first column, its name and its event time;
the column `session_id` of sessions is left out.
"""


def load(name: str) -> KindTrace:
    """Read a trace of tests/traces/kinds."""
    content = yaml.safe_load((TRACES / f"{name}.yaml").read_text())
    return KindTrace(content["about"], content["job"], content["steps"])


def files() -> Mapping[Path, str]:
    """Return the page and the pictures, by their path from the repository's root."""
    traces = {kind: load(kind.trace) for kind in KINDS}
    pictures = {PICTURES / f"{kind.trace}.svg": picture(trace) for kind, trace in traces.items()}
    lines = [_INTRODUCTION]
    for kind, trace in traces.items():
        lines += [
            f"## {kind.title}\n",
            f"{trace.description} [Rules](semantics.md#{kind.rules}).\n",
            f"![{kind.title}: the rows below on a line of time](pictures/kinds/{kind.trace}.svg)\n",
            f"```yaml\n{yaml_of(trace)}```\n",
            *_rows_table(trace),
            "",
        ]
    return {PAGE: "\n".join(lines), **pictures}


def yaml_of(trace: KindTrace) -> str:
    """Return the part of the job that makes it this kind."""
    text = ""
    if "joins" in trace.job:
        text += "joins:\n"
        for step in trace.job["joins"]:
            lines = [f"{name}: {_in_line(value)}\n" for name, value in step.items()]
            text += "".join(f"  {'- ' if number == 0 else '  '}{line}" for number, line in enumerate(lines))
    for step in {"aggregate", "deduplicate", "topN"} & trace.job.keys():
        fields = trace.job[step].items()
        text += f"{step}:\n" + "".join(f"  {name}: {_in_line(value)}\n" for name, value in fields)
    if "select" in trace.job and not {"joins", "deduplicate", "topN"} & trace.job.keys():
        (source,) = trace.job["inputs"]
        columns = "".join(f"  - {_in_line(column)}\n" for column in trace.job["select"])
        text += f"inputs:\n  - name: {source['name']}\n    where: {_in_line(source['where'])}\nselect:\n{columns}"
    if "groupBy" in trace.job:
        fields = [(name, value) for name, value in trace.job.items() if name != "input"]
        text += "".join(f"{name}: {_in_line(value)}\n" for name, value in fields)
    return text


def _in_line(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=200, sort_keys=False).removesuffix("...\n").strip()


def _rows_table(trace: KindTrace) -> Iterator[str]:
    columns = list(trace.outputs()[0])
    yield f"| step | rows in: column, name, time | rows out: {', '.join(f'`{column}`' for column in columns)} |"
    yield "|---|---|---|"
    for number, step in enumerate(trace.steps, start=1):
        rows_out = (
            [", ".join(_value_text(row[column]) for column in columns) for row in step["expect"]["output"]]
            if ("expect" in step)
            else []
        )
        if rows_out or "end" not in step:
            yield f"| {number} | {_step_text(step)} | {'; '.join(f'`{row}`' for row in rows_out) or 'none'} |"


def _step_text(step: Mapping[str, Any]) -> str:
    if "watermark" in step:
        return "; ".join(f"watermark of {name}: {time}" for name, time in step["watermark"].items())
    if "end" in step:
        return "all inputs end"
    texts = []
    for name, rows in rows_of(step).items():
        values = [list(row.values()) for row in rows]
        texts.append(f"{name}: " + ", ".join(f"`{key} {row_name} {time}`" for key, row_name, time in values))
    return "; ".join(texts)


def _value_text(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def main() -> None:
    for path, text in files().items():
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(text)


if __name__ == "__main__":
    main()
