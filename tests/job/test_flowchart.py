"""Flowcharts of jobs in Mermaid's language, as `joinery explain --mermaid` prints them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from joinery_devkit.images.build import PROJECT
from joinery_runtime.job import job_from, load_job
from joinery_runtime.job.explain import flowchart

CHARTS = Path(__file__).with_name("flowcharts")
# Of each kind of step an example.
EXAMPLES = [
    "as-of-join",
    "chain-as-of-join",
    "cumulative-window-files",
    "deduplicate-files",
    "early-results",
    "full-outer-join",
    "hopping-window-join",
    "large-orders",
    "session-window",
    "session-window-join",
    "sessions-of-paid-orders",
    "three-inputs-window-join",
    "time-only-join",
    "tumbling-window-join",
    "two-outputs",
    "unpaid-orders",
]


def chart(name: str) -> str:
    """The flowchart of an example, with paths as its file writes them."""
    return flowchart(load_job(PROJECT / "examples" / f"{name}.yaml")).replace(f"{PROJECT / 'examples'}/", "")


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_each_kind(name: str) -> None:
    assert f"{chart(name)}\n" == (CHARTS / f"{name}.mmd").read_text()


@pytest.mark.parametrize("path", sorted((PROJECT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_arrow_is_between_nodes_that_are_drawn_once(path: Path) -> None:
    lines = [line.strip() for line in chart(path.stem).splitlines()[1:]]
    nodes = [match[1] for line in lines if (match := re.match(r"(\w+)[\[{]", line))]
    arrows = [match.groups() for line in lines if (match := re.match(r"(\w+) -\.?->\S*.*? (\w+)$", line))]
    assert len(nodes) == len(set(nodes))
    assert len(nodes) + len(arrows) == len(lines)
    drawn = {node for arrow in arrows for node in arrow}
    assert drawn == set(nodes), "and no node stands alone"


def test_conditions_late_rows_and_what_a_text_may_not_have() -> None:
    document = {
        "apiVersion": "joinery.dev/v1alpha1",
        "kind": "StreamJoin",
        "metadata": {"name": "drawn"},
        "spec": {
            "inputs": [
                {
                    "name": name,
                    "kafka": {"bootstrapServers": "kafka:9092", "topic": name},
                    "format": "json",
                    "eventTime": "ts",
                    "watermark": {"delay": "1s"},
                    "schema": [{"name": column, "type": kind} for column, kind in (("k", "string"), ("ts", "int64"))],
                }
                for name in ("end", "b")
            ],
            "joins": [
                {
                    "right": "b",
                    "type": "left",
                    "keys": {"end.k": "b.k"},
                    "interval": {"of": "end", "lower": "0s", "upper": "1s"},
                    "filter": "b.k IS NULL OR end.k <> '\"#&'",
                    "lateData": "dlq",
                }
            ],
            "aggregate": {
                "window": {"of": "end", "tumbling": {"size": "1m"}},
                "groupBy": ["end.k"],
                "aggregates": [{"function": "count", "as": "n"}],
                "having": "n > 1",
            },
            "output": {"kafka": {"bootstrapServers": "kafka:9092", "topic": "out"}},
            "deadLetter": {"kafka": {"bootstrapServers": "kafka:9092", "topic": "dead"}},
        },
    }
    lines = flowchart(job_from(document)).splitlines()
    for line in (
        "  filter_1{{\"b.k IS NULL OR end.k #lt;#gt; '#quot;#35;#amp;'\"}}",
        "  step_1 --> filter_1",
        "  filter_1 --> step_2",
        '  having_2{{"n #gt; 1"}}',
        "  step_2 --> having_2",
        "  having_2 --> output_1",
        "  input_end -.-> dead_letters",
        '  step_1 -.->|"late rows"| dead_letters',
    ):
        assert line in lines
    assert not any("late rows" in line and "step_2" in line for line in lines)
