"""Texts of a status: bounded, and as people read them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from joinery_operator.reconcile.conditions import events
from joinery_operator.reconcile.figures import delay_text
from joinery_operator.reconcile.reasons import MESSAGE, cut, listed
from simulated_cluster.simulation import SimulatedCluster, resource


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (0.9, "0s"), (59, "59s"), (60, "1m"), (185, "3m5s"), (1025, "17m"), (7620, "2h7m"), (183_600, "51h")],
)
def test_delays_have_two_units_at_most(seconds: float, text: str) -> None:
    assert delay_text(timedelta(seconds=seconds)) == text


def test_a_long_text_keeps_its_ends() -> None:
    text = cut("begin" + "x" * 5000 + "end")
    assert len(text) == MESSAGE
    assert text.startswith("begin")
    assert text.endswith("end")
    assert cut(" short ") == "short"


def test_many_problems_are_counted() -> None:
    text = listed([f"spec.inputs[{i}]: {'x' * 1000}" for i in range(40)])
    assert text.endswith("and 24 more")
    assert len(text) <= 4200


def test_events_tell_transitions_only() -> None:
    cluster = SimulatedCluster(resource())
    cluster.started(1)
    assert [event.split(":")[0] for event in cluster.events] == ["Normal Starting", "Normal Running"]
    assert not list(events(cluster.status, cluster.status))
    cluster.end("orders-driver-1", None, 137, "OOMKilled")
    cluster.step()
    assert cluster.events[-1].startswith("Warning BackOff: attempt 1 failed: OOMKilled: exit code 137")
