"""A start of Java that is given up, or cut short, leaves no process; and what bash makes of its command."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import GatewayClient
from py4j.protocol import ERROR_ON_RECEIVE, Py4JNetworkError
from pyspark import java_gateway

from joinery_runtime.cli.ending import Stopped
from joinery_runtime.cli.run import Signals
from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.hosts.java_process import _EXEC, JavaStart, _under_way, kill_starts

Waits = Callable[[subprocess.Popen[bytes]], Any]


@pytest.fixture
def launching(monkeypatch: pytest.MonkeyPatch) -> Callable[[Waits], list[subprocess.Popen[bytes]]]:
    """Puts a process that never answers in Java's place, for which PySpark's launch `waits`."""

    def launching(waits: Waits) -> list[subprocess.Popen[bytes]]:
        processes: list[subprocess.Popen[bytes]] = []

        def launch_gateway() -> None:
            processes.append(java_gateway.Popen(["sleep", "600"], env=dict(os.environ)))
            waits(processes[0])
            raise RuntimeError("JAVA_GATEWAY_EXITED")

        monkeypatch.setattr(java_gateway, "launch_gateway", launch_gateway)
        return processes

    return launching


def test_a_start_that_is_given_up_ends_its_process(launching: Any) -> None:
    begun = threading.Event()

    def waits(process: subprocess.Popen[bytes]) -> None:
        begun.set()
        process.wait()

    processes = launching(waits)
    start, raised = JavaStart(), list[BaseException]()

    def launch() -> None:
        try:
            with start.capture_launch():
                java_gateway.launch_gateway()
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=launch)
    thread.start()
    assert begun.wait(60)
    start.give_up()
    thread.join(60)
    assert processes[0].poll() is not None
    assert [str(error) for error in raised] == ["JAVA_GATEWAY_EXITED"]


def test_the_child_runs_no_python_and_ignores_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python in a forked child destroys what other threads hold, of which the child may die."""
    began = list[subprocess.Popen[bytes]]()

    def launch_gateway() -> None:
        ready = "import signal; print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN, flush=True)"
        command = [sys.executable, "-c", ready]
        began.append(
            java_gateway.Popen(command, env=dict(os.environ), stdout=subprocess.PIPE, preexec_fn=lambda: os._exit(7))
        )

    monkeypatch.setattr(java_gateway, "launch_gateway", launch_gateway)
    with JavaStart().capture_launch():
        java_gateway.launch_gateway()
    output, _ = began[0].communicate(timeout=60)
    assert (began[0].returncode, output) == (0, b"True\n")


def test_who_ends_at_once_ends_what_is_being_started(launching: Any) -> None:
    """As a second signal does: the first one is still waiting for the process to end."""

    def waits(process: subprocess.Popen[bytes]) -> None:
        kill_starts()
        assert process.wait(60) == -signal.SIGKILL

    processes = launching(waits)
    with pytest.raises(RuntimeError), JavaStart().capture_launch():
        java_gateway.launch_gateway()
    assert len(processes) == 1
    assert _under_way == set()


def test_a_call_that_is_cut_off_when_a_start_is_given_up_prints_nothing(
    launching: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """py4j writes the traceback to the root logger, and to standard error if nobody has set that up."""

    class ResetConnection:
        def send_command(self, command: str) -> str:
            raise Py4JNetworkError("Error while receiving", ConnectionResetError(), ERROR_ON_RECEIVE)

        def close(self, reset: bool) -> None:
            pass

    monkeypatch.setattr(logging.getLogger(), "filters", [])
    client = GatewayClient()
    monkeypatch.setattr(client, "_get_connection", ResetConnection)
    client.send_command("call")
    assert [record.message for record in caplog.records] == ["Exception while sending command."]
    caplog.clear()
    start = JavaStart()

    def give_up(_: object) -> None:
        start.give_up()
        client.send_command("call")

    launching(give_up)
    with pytest.raises(RuntimeError), start.capture_launch():
        java_gateway.launch_gateway()
    assert caplog.records == []


def test_a_start_that_was_given_up_makes_no_process(launching: Any) -> None:
    processes = launching(lambda _: None)
    start = JavaStart()
    start.give_up()
    with pytest.raises(EnvironmentProblem, match="given up"), start.capture_launch():
        java_gateway.launch_gateway()
    assert processes == []
    assert java_gateway.Popen is subprocess.Popen


def test_a_java_that_answers_after_its_start_was_given_up_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    start = JavaStart()
    monkeypatch.setattr(
        java_gateway, "launch_gateway", lambda: (java_gateway.Popen(["sleep", "600"], env={}), start.give_up())
    )
    with pytest.raises(EnvironmentProblem, match="given up"), start.capture_launch():
        java_gateway.launch_gateway()
    assert start._process is not None
    assert start._process.poll() is not None


def test_a_signal_during_the_start_leaves_no_process(launching: Any) -> None:
    def waits(_: subprocess.Popen[bytes]) -> None:
        raise KeyboardInterrupt

    processes = launching(waits)
    with pytest.raises(KeyboardInterrupt), JavaStart().capture_launch():
        java_gateway.launch_gateway()
    assert processes[0].poll() is not None


def test_a_signal_kills_what_is_being_started_before_it_cuts_the_start_short(launching: Any) -> None:
    """PySpark then removes the folder to which Java writes its address, and Java would print a traceback."""

    def waits(process: subprocess.Popen[bytes]) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except Stopped:
            assert process.wait(60) == -signal.SIGKILL
            raise

    launching(waits)
    before, stop = signal.getsignal(signal.SIGTERM), threading.Event()
    try:
        with Signals(stop, [signal.SIGTERM], signal.raise_signal).end_a_start(), JavaStart().capture_launch():
            java_gateway.launch_gateway()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stop.is_set()


ENDED = """
from pyspark import SparkContext
from joinery_runtime.hosts import java_process, spark


class Interrupted(SparkContext):
    def __init__(self, conf):
        raise KeyboardInterrupt


def end(process, ends=java_process._end_process):
    SparkContext._jvm.org.apache.logging.log4j.LogManager.getRootLogger().error("Error initializing SparkContext.")
    ends(process)


java_process._end_process, java_process._PATIENCE_S = end, 100
java = java_process.JavaStart()
"""
GIVEN_UP = """
spark.start_context("ended", {}, "local[1]", java)
java.give_up()
"""
CUT_SHORT = """
spark.SparkContext = Interrupted
try:
    spark.start_context("ended", {}, "local[1]", java)
except KeyboardInterrupt:
    pass
"""


@pytest.mark.services
@pytest.mark.parametrize("how", [GIVEN_UP, CUT_SHORT], ids=["given up", "cut short by a signal"])
def test_java_is_silent_once_its_start_is_over(how: str) -> None:
    """A context that is being made in a Java that ends says that it cannot be made."""
    program = f"{ENDED}{how}print(java._process.returncode)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [str(128 + signal.SIGTERM)]


def test_java_is_started_without_the_module_that_it_would_warn_of() -> None:
    """As in Spark's scripts: one is executed by another, and that one executes Java."""
    java = 'exec printf "%s|" "two words" --add-modules=jdk.incubator.vector "" last'
    done = subprocess.run(
        ["bash", "-c", f"exec bash -c '{java}; exit 3'"],
        env=os.environ | {"BASH_FUNC_exec%%": _EXEC},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "two words||last|"


def test_java_is_started_with_the_class_path_that_the_image_s_archive_needs(tmp_path: Path) -> None:
    """As Spark's launcher names it, for a folder of settings that is mounted, and for the one that Spark assumes."""
    jars = tmp_path / "jars"
    jars.mkdir()
    for name in ("a.jar", "a-2.jar", "B.jar"):
        (jars / name).touch()
    sorted_jars = ":".join(str(jars / name) for name in ("B.jar", "a-2.jar", "a.jar"))

    def class_path(archive: str, first: str, environment: Mapping[str, str]) -> str:
        words = ["java", "-cp", f"{first}:{jars}/*", f"-XX:SharedArchiveFile={archive}", "org.apache.spark.deploy"]
        done = subprocess.run(
            ["bash", "-c", 'exec printf "%s\n" "$@"', "bash", *words],
            env={"PATH": os.defpath, "SPARK_HOME": str(tmp_path), "BASH_FUNC_exec%%": _EXEC, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        before, _, value, *after = done.stdout.splitlines()
        assert (before, after) == ("java", words[3:])
        return value

    ours, mounted = "/opt/joinery/share/joinery/image.jsa", {"SPARK_CONF_DIR": "/etc/joinery"}
    first = f"{jars}/a-2.jar"  # Spark's launcher puts a logging library before everything
    assert class_path(ours, f"{first}:/etc/joinery/", mounted) == f"{first}:{sorted_jars}:/etc/joinery"
    assert class_path(ours, f"{tmp_path}/conf/", {}) == f"{sorted_jars}:{tmp_path}/conf"
    assert class_path(ours, "/extra.jar:/etc/joinery/", mounted) == f"/extra.jar:{sorted_jars}:/etc/joinery"
    of_a_laptop = "/home/share/joinery/spark-1.jsa"
    assert class_path(of_a_laptop, "/etc/joinery/", mounted) == f"/etc/joinery/:{jars}/*"
