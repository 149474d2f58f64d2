import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from joinery_devkit.processes import ChildProcess, free_port

ENDLESS = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
# An owner that starts a child, tells its pid and then waits to be killed.
OWNER = f"""
import pathlib, sys
from joinery_devkit.processes import ChildProcess
child = ChildProcess([sys.executable, "-c", {ENDLESS!r}], pathlib.Path(sys.argv[1]))
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start(tmp_path):
    started = []

    def run(code):
        process = ChildProcess([sys.executable, "-c", code], tmp_path / "log")
        started.append(process)
        # It is up once it has printed: signals sent earlier would meet the interpreter's own handlers.
        while process.running() and "up" not in process.log_tail():
            pass
        return process

    yield run
    for process in started:
        process.kill()


def test_stop_asks_first(start):
    process = start(ENDLESS)
    process.stop()
    assert process.exit_code() == -signal.SIGTERM
    assert not psutil.pid_exists(process.pid)


def test_stop_ends_what_does_not_listen(start):
    process = start(STUBBORN)
    process.stop(grace_seconds=0.1)
    assert process.exit_code() == -signal.SIGKILL


def test_kill(start):
    process = start(STUBBORN)
    process.kill()
    assert process.exit_code() == -signal.SIGKILL


def test_stopping_twice_is_harmless(start):
    process = start("print('up')")
    process.wait(60)
    process.stop()
    process.stop()
    assert process.exit_code() == 0


def test_keeps_the_last_lines_of_its_log(start):
    process = start("print('up'); [print(i) for i in range(100)]")
    process.wait(60)
    assert process.log_tail(2) == "98\n99"


def test_the_guard_goes_with_the_child(start):
    before = {child.pid for child in psutil.Process().children()}
    start(ENDLESS).stop()
    assert {child.pid for child in psutil.Process().children()} <= before


def test_a_child_does_not_outlive_its_killed_owner(tmp_path):
    command = [sys.executable, "-c", OWNER, str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        child = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
    ended, alive = psutil.wait_procs([child], timeout=60)
    assert (ended, alive) == ([child], [])


def test_free_port_can_be_listened_on():
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))
        server.listen()


def test_free_port_is_not_one_that_clients_are_given():
    # Linux's default range begins at 32768; macOS' and BSD's at 49152.
    assert all(1024 < free_port() < 32768 for _ in range(20))


def test_environment_replaces_ours(tmp_path):
    code = "import os; print(os.environ.get('JOINERY_MARK'))"
    process = ChildProcess([sys.executable, "-c", code], tmp_path / "log", {**os.environ, "JOINERY_MARK": "seen"})
    assert process.wait(60) == 0
    process.stop()
    assert process.log_tail() == "seen"


def test_stack_frames_are_not_worth_a_line(start):
    process = start(r"print('up'); print('Broken: x\n\tat a.B.c(B.java:1)\n\t... 7 more\nCaused by: y')")
    process.wait(60)
    assert process.log_tail(2) == "Broken: x\nCaused by: y"
