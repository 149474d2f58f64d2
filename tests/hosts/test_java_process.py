"""A start of Java that is given up, or cut short, leaves no process; and what bash makes of its command."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import java_gateway

from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.hosts.java_process import _WITHOUT_MODULE, JavaStart, _under_way, kill_starts

Waits = Callable[[subprocess.Popen[bytes]], Any]


@pytest.fixture
def launching(monkeypatch: pytest.MonkeyPatch) -> Callable[[Waits], list[subprocess.Popen[bytes]]]:
    """Puts a process that never answers in Java's place, for which PySpark's launch `waits`."""

    def launching(waits: Waits) -> list[subprocess.Popen[bytes]]:
        made: list[subprocess.Popen[bytes]] = []

        def launch_gateway() -> None:
            made.append(java_gateway.Popen(["sleep", "600"], env=dict(os.environ)))
            waits(made[0])
            raise RuntimeError("JAVA_GATEWAY_EXITED")

        monkeypatch.setattr(java_gateway, "launch_gateway", launch_gateway)
        return made

    return launching


def test_a_start_that_is_given_up_ends_its_process(launching: Any) -> None:
    begun = threading.Event()

    def waits(process: subprocess.Popen[bytes]) -> None:
        begun.set()
        process.wait()

    made = launching(waits)
    start, raised = JavaStart(), list[BaseException]()

    def launch() -> None:
        try:
            with start.made_here():
                java_gateway.launch_gateway()
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=launch)
    thread.start()
    assert begun.wait(60)
    start.give_up()
    thread.join(60)
    assert made[0].poll() is not None
    assert [str(error) for error in raised] == ["JAVA_GATEWAY_EXITED"]


def test_who_ends_at_once_ends_what_is_being_started(launching: Any) -> None:
    """As a second signal does: the first one is still waiting for the process to end."""

    def waits(process: subprocess.Popen[bytes]) -> None:
        kill_starts()
        assert process.wait(60) == -signal.SIGKILL

    made = launching(waits)
    with pytest.raises(RuntimeError), JavaStart().made_here():
        java_gateway.launch_gateway()
    assert len(made) == 1
    assert _under_way == set()


def test_a_start_that_was_given_up_makes_no_process(launching: Any) -> None:
    made = launching(lambda _: None)
    start = JavaStart()
    start.give_up()
    with pytest.raises(EnvironmentProblem, match="given up"), start.made_here():
        java_gateway.launch_gateway()
    assert made == []
    assert java_gateway.Popen is subprocess.Popen


def test_a_signal_during_the_start_leaves_no_process(launching: Any) -> None:
    def waits(_: subprocess.Popen[bytes]) -> None:
        raise KeyboardInterrupt

    made = launching(waits)
    with pytest.raises(KeyboardInterrupt), JavaStart().made_here():
        java_gateway.launch_gateway()
    assert made[0].poll() is not None


def test_java_is_started_without_the_module_that_it_would_warn_of() -> None:
    """As in Spark's scripts: one is executed by another, and that one executes Java."""
    java = 'exec printf "%s|" "two words" --add-modules=jdk.incubator.vector "" last'
    done = subprocess.run(
        ["bash", "-c", f"exec bash -c '{java}; exit 3'"],
        env=os.environ | {"BASH_FUNC_exec%%": _WITHOUT_MODULE},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "two words||last|"
