"""The dashboard and the alerts ask for metrics that drivers and the operator have, by labels that those have."""

from __future__ import annotations

import json
import re

import pytest

from charts.rendering import CHART, Chart
from joinery_operator.kube.metrics import Metrics
from joinery_runtime.core.pipeline.watermark import InputProgress
from joinery_runtime.engine.plan import InputState
from joinery_runtime.engine.report import StateSize, Totals
from joinery_runtime.hosts.status.board import Board, JobSnapshot, Liveness
from joinery_runtime.hosts.status.metrics import registry_of
from joinery_runtime.job.crd import KINDS

DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text())
# What Prometheus' operator adds to samples of a pod, and the PodMonitor's relabelings.
ADDED = {"namespace", "job_name", "job_kind"}
_SELECTOR = re.compile(r"(joinery_\w+)(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"by \(([^)]*)\)")


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Labels by name of every sample of a driver that knows everything, and of an operator."""
    snapshot = JobSnapshot(
        inputs={"orders": InputState(progress=InputProgress({"0": 5}, 5))},
        backlog={"orders": 1},
        totals=Totals(dropped={"orders": {"late": 1}}),
        state=StateSize(1, 1, 1),
        committed_at=1.0,
    )
    monkeypatch.setattr(Board, "snapshot", snapshot)
    operator = Metrics()
    for kind in KINDS:
        operator.reconciles.labels(kind.name, "done")
        operator.reconcile_seconds.labels(kind.name)
    condition = {"type": "Ready", "status": "True"}
    status = {"phase": "Running", "driver": {"number": 1}, "conditions": [condition]}
    operator.set_jobs([{"kind": "StreamJoin", "metadata": {"namespace": "shop", "name": "j"}, "status": status}])
    operator.api_calls.labels("get", "Pod", "200")
    operator.watch_time.labels("Pod")
    operator.excluded.labels("shop")
    labels_by_sample: dict[str, set[str]] = {}
    for registry in (registry_of(Board("jobs/j", ["orders"], Liveness(60.0))), operator.registry):
        for family in registry.collect():
            for sample in family.samples:
                labels_by_sample.setdefault(sample.name, set()).update(sample.labels)
    return labels_by_sample


def _targets() -> list[dict[str, str]]:
    return [target for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def _expressions() -> list[str]:
    return [target["expr"] for target in _targets()]


@pytest.mark.services
def test_the_alerts_are_those_of_the_documentation_and_ask_for_metrics_that_exist(
    chart: Chart, samples: dict[str, set[str]]
) -> None:
    on = {"metrics.alerts": {"enabled": True, "labels": {"release": "prometheus"}}}
    manifest = chart.render(on).one("PrometheusRule", "joinery")
    assert manifest["metadata"]["labels"]["release"] == "prometheus"
    rules = [rule for group in manifest["spec"]["groups"] for rule in group["rules"]]
    text = (CHART.parents[1] / "docs" / "operations.md").read_text()
    table = text.split("(`charts/joinery/files/alerts.yaml`):")[1].split("\n## ")[0]
    documented_expressions = [
        expression for row in table.splitlines() for expression in re.findall(r"`([^`]+)`", row.rpartition(" | ")[0])
    ]
    assert [rule["expr"] for rule in rules] == documented_expressions
    of_another_release = chart.render(on, "blue").one("PrometheusRule", "blue-joinery")["spec"]["groups"][0]["rules"]
    assert (
        of_another_release[0]["expr"]
        == 'absent(joinery_operator_healthy{namespace="joinery-system",pod=~"blue-joinery-operator-[^-]+-[^-]+"} == 1)'
    )
    own, other = 'pod=~"joinery-operator-', 'pod=~"blue-joinery-operator-'
    assert [rule["expr"].replace(other, own) for rule in of_another_release] == [rule["expr"] for rule in rules]
    deployments = [rule["labels"].get("deployment") for rule in of_another_release]
    assert deployments == ["blue-joinery-operator"] * 4 + [None] * (len(rules) - 4)
    assert len({rule["alert"] for rule in rules}) == len(rules) > 8
    metrics = {name for rule in rules for name, _ in _SELECTOR.findall(rule["expr"])}
    assert metrics <= samples.keys()


def test_every_panel_asks_for_metrics_that_exist(samples: dict[str, set[str]]) -> None:
    assert len(_expressions()) > 15
    for expression in _expressions():
        names = _SELECTOR.findall(expression)
        assert names, expression
        for name, selector in names:
            labels = samples[name] | ADDED
            selected = {matcher.partition("=")[0].strip(" ~!") for matcher in selector.split(",") if matcher}
            grouped = {label.strip() for by in _GROUPING.findall(expression) for label in by.split(",")}
            assert selected | grouped <= labels, expression


def test_jobs_of_one_name_have_series_of_their_own() -> None:
    """Two kinds may share a name."""
    by_job = [targets for targets in _targets() if "job_name" in "".join(_GROUPING.findall(targets["expr"]))]
    assert len(by_job) > 5
    for target in by_job:
        assert "job_kind" in "".join(_GROUPING.findall(target["expr"])), target["expr"]
        assert "{{job_kind}}" in target["legendFormat"]


SHOWN = [
    "rows_in_total",
    "rows_out_total",
    "dropped_total",
    "dead_letters_total",
    "lag_records",
    "watermark_delay_seconds",
    "state_bytes",
    "epoch_seconds_bucket",
    "epochs_committed_total",
]


def test_every_metric_of_a_jobs_rows_and_time_is_shown(samples: dict[str, set[str]]) -> None:
    text = " ".join(_expressions())
    for name in SHOWN:
        assert f"joinery_{name}" in samples
        assert f"joinery_{name}" in text


def test_variables_are_filled_from_a_metric_of_every_driver(samples: dict[str, set[str]]) -> None:
    queries = [variable["definition"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
    assert queries
    for query in queries:
        ((name, _),) = _SELECTOR.findall(query)
        assert name in samples
