"""Which alerts fire when, by Prometheus' own engine. Series have a sample per minute."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from charts.rendering import CHART, NAMESPACE, Chart
from joinery_devkit.prometheus import fired_alerts

pytestmark = pytest.mark.services

RULES = CHART / "files" / "alerts.yaml"
JOB = 'job_kind="StreamJoin",job_namespace="shop",job_name="orders"'
HEALTHY = {
    'joinery_operator_healthy{pod="operator-1"}': "1x180",
    f'joinery_operator_job_condition{{{JOB},type="Ready"}}': "1x180",
    f'joinery_operator_job_condition{{{JOB},type="Degraded"}}': "0x180",
    f'joinery_operator_job_condition{{{JOB},type="Stalled"}}': "0x180",
    f"joinery_operator_job_attempts{{{JOB}}}": "7x180",
    "joinery_operator_audit_failures_total": "0x180",
    'joinery_lag_records{namespace="shop",pod="orders-driver-7",input="orders"}': "0x180",
    'joinery_start_timestamp_seconds{namespace="shop",pod="orders-driver-7"}': "0x180",
}


@pytest.fixture(scope="module", autouse=True)
def engine() -> None:
    """Builds the engine before a test's time begins."""
    fired_alerts(RULES, {}, 0)


def alerts_of(changed: dict[str, str], minutes: int = 60) -> dict[str, int]:
    """The first minute of each alert, for a healthy installation with those other series."""
    fired = fired_alerts(RULES, {**HEALTHY, **changed}, minutes)
    return {alert.alert: alert.minute for alert in reversed(fired)}


def condition(type_: str, samples: str) -> dict[str, str]:
    return {f'joinery_operator_job_condition{{{JOB},type="{type_}"}}': samples}


def test_a_healthy_installation_fires_nothing() -> None:
    assert alerts_of({}, 180) == {}


def test_an_operator_that_is_down_is_told() -> None:
    assert alerts_of({'joinery_operator_healthy{pod="operator-1"}': "1x10 _x170"}) == {"JoineryOperatorDown": 20}
    assert alerts_of({'joinery_operator_healthy{pod="operator-1"}': "1x10 0x170"}) == {"JoineryOperatorDown": 16}
    another = {'joinery_operator_healthy{pod="operator-2"}': "1x180"}
    assert alerts_of({'joinery_operator_healthy{pod="operator-1"}': "1x10 _x170", **another}) == {}


def test_another_installations_operator_does_not_hide_that_one_is_down(chart: Chart, tmp_path: Path) -> None:
    """They work on jobs of other classes."""
    rules = tmp_path / "alerts.yaml"
    rules.write_text(yaml.safe_dump(chart.render({"metrics.alerts.enabled": True}).of("PrometheusRule")[0]["spec"]))

    def operator(namespace: str, pod: str, samples: str) -> dict[str, str]:
        return {f'joinery_operator_healthy{{namespace="{namespace}",pod="{pod}"}}': samples}

    others = {
        **operator("joinery-blue", "joinery-operator-6d5f-b7k2p", "1x180"),
        **operator(NAMESPACE, "joinery-blue-operator-6d5f-b7k2p", "1x180"),
    }
    own = operator(NAMESPACE, "joinery-operator-7f9c-x2v4q", "1x10 0x170")
    replaced = own | operator(NAMESPACE, "joinery-operator-7f9c-m3n8z", "0x10 1x170")
    (alert,) = fired_alerts(rules, HEALTHY | others | own, 60)
    assert (alert.minute, alert.alert) == (16, "JoineryOperatorDown")
    assert (alert.labels["namespace"], alert.labels["deployment"]) == (NAMESPACE, "joinery-operator")
    assert fired_alerts(rules, HEALTHY | others | replaced, 60) == []


def test_errors_of_another_installations_operator_are_not_this_ones(chart: Chart, tmp_path: Path) -> None:
    rules = tmp_path / "alerts.yaml"
    rules.write_text(yaml.safe_dump(chart.render({"metrics.alerts.enabled": True}).of("PrometheusRule")[0]["spec"]))

    def failing(namespace: str, pod: str) -> dict[str, str]:
        labels = f'namespace="{namespace}",pod="{pod}"'
        return {
            f'joinery_operator_reconciles_total{{{labels},kind="StreamJoin",outcome="error"}}': "0+1x180",
            f"joinery_operator_audit_failures_total{{{labels}}}": "0+1x180",
            f'joinery_operator_namespace_left_out{{{labels},left_out="shop"}}': "1x180",
        }

    healthy = {f'joinery_operator_healthy{{namespace="{NAMESPACE}",pod="joinery-operator-7f9c-x2v4q"}}': "1x180"}
    others = failing("joinery-blue", "joinery-operator-6d5f-b7k2p") | failing(NAMESPACE, "blue-operator-6d5f-b7k2p")
    assert fired_alerts(rules, HEALTHY | healthy | others, 60) == []
    own = failing(NAMESPACE, "joinery-operator-7f9c-x2v4q")
    alerts = fired_alerts(rules, HEALTHY | healthy | others | own, 60)
    assert {alert.alert for alert in alerts} == {
        "JoineryOperatorFails",
        "JoineryOperatorBlind",
        "JoineryNamespaceLeftOut",
    }
    named = {(alert.labels["namespace"], alert.labels["deployment"], alert.labels["severity"]) for alert in alerts}
    assert named == {(NAMESPACE, "joinery-operator", "warning")}


def test_an_operator_that_cannot_act_or_see_is_told() -> None:
    errors = {'joinery_operator_reconciles_total{kind="StreamJoin",outcome="error"}': "0+1x180"}
    assert alerts_of(errors).keys() == {"JoineryOperatorFails"}
    assert alerts_of({"joinery_operator_audit_failures_total": "0+1x180"}).keys() == {"JoineryOperatorBlind"}


def test_a_driver_that_cannot_be_scheduled_is_told() -> None:
    """Degraded follows after upgrade.progressDeadline."""
    sick = condition("Ready", "0x180") | condition("Degraded", "0x9 1x170")
    assert alerts_of(sick) == {"JoineryJobNotReady": 15, "JoineryJobDegraded": 15}


def test_a_crash_loop_before_a_driver_is_ready_is_told() -> None:
    sick = condition("Ready", "0x180") | condition("Degraded", "1x180")
    sick[f"joinery_operator_job_attempts{{{JOB}}}"] = "1 2 3 4 5 5 6 6 6 7x5 8x5 9x160"
    assert alerts_of(sick) == {"JoineryJobRestarts": 4, "JoineryJobDegraded": 5, "JoineryJobNotReady": 15}


def test_a_crash_loop_of_a_driver_that_gets_ready_is_told_although_the_operator_restarts() -> None:
    """Its conditions come and go."""
    sick = condition("Ready", "0 1 1 1 1 1 1 1 " * 20) | condition("Degraded", "1 0 0 0 0 0 0 0 " * 20)
    del_attempts = {f"joinery_operator_job_attempts{{{JOB}}}": "_x180"}
    first = {f'joinery_operator_job_attempts{{{JOB},pod="a"}}': "1x7 2x7 _x160"}
    second = {f'joinery_operator_job_attempts{{{JOB},pod="b"}}': "_x15 3x7 4x7 5x7 6x7 7x100"}
    assert alerts_of(sick | del_attempts | first | second).keys() == {"JoineryJobRestarts"}


def test_a_drain_and_an_edit_are_no_crash_loop() -> None:
    assert alerts_of({f"joinery_operator_job_attempts{{{JOB}}}": "1x20 2x20 3x100"}, 120) == {}


def test_a_job_that_waits_for_a_person_is_named() -> None:
    (alert,) = fired_alerts(RULES, HEALTHY | condition("Stalled", "1x180"), 60)
    assert (alert.minute, alert.alert) == (1, "JoineryJobStalled")
    assert alert.annotations["description"] == "StreamJoin shop/orders"


POD = 'namespace="shop",pod="orders-driver-7"'
LAG = f'joinery_lag_records{{{POD},input="orders"}}'


@pytest.mark.parametrize(
    ("commits", "minute"),
    [
        ({}, 16),
        ({f"joinery_last_commit_timestamp_seconds{{{POD}}}": "_x5 600x180"}, 26),
        ({f"joinery_last_commit_timestamp_seconds{{{POD}}}": "0+60x180"}, None),
    ],
    ids=["never", "once", "always"],
)
def test_records_that_wait_without_a_commit_are_told_before_the_first_commit_too(
    commits: dict[str, str], minute: int | None
) -> None:
    fired = alerts_of({LAG: "1000x180", **commits})
    assert fired.get("JoineryNoCommit") == minute


def test_rules_are_read_as_prometheus_reads_them(tmp_path: Path) -> None:
    broken = tmp_path / "alerts.yaml"
    broken.write_text(RULES.read_text().replace("absent(joinery_operator_healthy == 1)", "absent(joinery_operator_"))
    with pytest.raises(ValueError, match="could not parse expression"):
        fired_alerts(broken, {}, 0)
