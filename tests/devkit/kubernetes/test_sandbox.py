"""Whatever runs in a sandbox ends with it, and it ends with its owner unless it is kept. Needs root."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from joinery_devkit.kubernetes.kubectl import wait_until
from joinery_devkit.kubernetes.sandbox import Sandbox
from joinery_runtime.errors import EnvironmentProblem

pytestmark = pytest.mark.node

LINK = "joinerytest0"
OWNER = """
import sys, time
from pathlib import Path
from joinery_devkit.kubernetes.sandbox import Sandbox

sandbox = Sandbox(Path(sys.argv[1]), "joinerytest0")
sandbox.start(detached=sys.argv[2] == "kept")
sandbox.spawn("sleeper", ["sleep", "4242"])
print("started", flush=True)
time.sleep(600)
"""


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    new_sandbox = Sandbox(tmp_path / "sandbox", LINK)
    yield new_sandbox
    new_sandbox.stop()


def killed_owner(directory: Path, mode: str) -> None:
    """Another process starts a sandbox there and is killed."""
    command = [sys.executable, "-c", OWNER, str(directory), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "started\n"
        owner.send_signal(signal.SIGKILL)


def sleepers() -> list[psutil.Process]:
    processes = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["cmdline"] == ["sleep", "4242"] and process.info["status"] != psutil.STATUS_ZOMBIE:
            processes.append(process)
    return processes


def test_its_processes_mounts_and_network_end_with_it(sandbox: Sandbox) -> None:
    routes = Path("/proc/net/route").read_text()
    sandbox.start(detached=False)
    sandbox.connect("10.201.0.1", "10.201.0.2", ["10.202.0.0/24"])
    sandbox.spawn("sleeper", ["sleep", "4242"])
    # A daemon that has left its parent, as containerd's shims do.
    sandbox.run(["sh", "-c", "setsid sleep 4242 >/dev/null 2>&1 &"])
    sandbox.run(["mount", "-t", "tmpfs", "tmpfs", "/mnt"])
    sandbox.run(["ip", "link", "add", "joinerytest1", "type", "bridge"])
    assert LINK in Path("/proc/net/route").read_text()
    wait_until("both run", lambda: len(sleepers()) == 2)
    assert " /mnt " not in Path("/proc/mounts").read_text()
    assert not Path("/sys/class/net/joinerytest1").exists()

    assert sandbox.stop()

    assert not sleepers()
    assert Path("/proc/net/route").read_text() == routes
    assert not sandbox.directory.exists()
    assert not sandbox.stop()


def test_it_leaves_the_kernel_s_settings_as_they_were(sandbox: Sandbox) -> None:
    setting = Path("/proc/sys/vm/panic_on_oom")
    before = setting.read_text()
    sandbox.start(detached=False)
    try:
        setting.write_text("1")
        sandbox.stop()
        assert setting.read_text() == before
    finally:
        setting.write_text(before)


def test_it_ends_with_an_owner_that_is_killed(sandbox: Sandbox) -> None:
    killed_owner(sandbox.directory, "not kept")
    wait_until("nothing runs any more", lambda: not sandbox.running and not sleepers())
    assert not sandbox.detached


def test_a_kept_one_outlives_its_owner_and_is_stopped_by_another_process(sandbox: Sandbox) -> None:
    killed_owner(sandbox.directory, "kept")
    assert sandbox.running
    assert sandbox.detached
    # The owner may have been killed before its service had entered the namespaces and become what it runs.
    wait_until("the service runs", lambda: len(sleepers()) == 1)

    assert sandbox.stop()

    assert not sandbox.running
    assert not sleepers()


def test_a_command_that_fails_in_it_says_why(sandbox: Sandbox) -> None:
    sandbox.start(detached=False)
    with pytest.raises(EnvironmentProblem, match=r"/nowhere.* No such file or directory"):
        sandbox.run(["ls", "/nowhere"])
