"""Waiting for what a cluster says: it says one thing after another."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from joinery_devkit.kubernetes.kubectl import wait_until


def test_what_is_looked_up_may_not_be_there_yet() -> None:
    answers: list[Mapping[str, Mapping[str, str]]] = [{}, {"status": {}}, {"status": {"phase": "Running"}}]
    wait_until("it runs", lambda: answers.pop(0)["status"]["phase"] == "Running")
    assert answers == []


def test_what_never_comes_is_named() -> None:
    with pytest.raises(TimeoutError, match=r"it runs: not within 0 s, KeyError\('phase'\)"):
        wait_until("it runs", lambda: {}["phase"], seconds=0)
    with pytest.raises(TimeoutError, match=r"it runs: not within 0 s$"):
        wait_until("it runs", lambda: False, seconds=0)
