"""Ways to the command: `python -m`, and completion in a shell."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from cli.commands import Joinery
from job.resources import DELAYED, edited

JOINERY = Path(sys.executable).parent / "joinery"


def test_the_package_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "joinery_runtime", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == version("joinery-runtime")


def test_a_start_imports_only_what_each_job_needs() -> None:
    """PySpark and the formats of schema registries took a sixth of it."""
    code = "import sys, joinery_runtime.cli.app, joinery_runtime.cli.run; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "joinery_runtime.hosts.run" in loaded
    assert not {"pyspark", "fastavro", "google.protobuf"} & set(loaded)


def test_a_shell_completes_commands_once_it_is_told_to(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "SHELL": "/bin/bash", "PATH": "/usr/bin:/bin"}
    subprocess.run([JOINERY, "--install-completion"], env=environment, capture_output=True, check=True)
    (script,) = (path for path in tmp_path.rglob("joinery") if path.is_file())
    words = f"source {script}; COMP_WORDS=(joinery val); COMP_CWORD=1; _joinery; echo ${{COMPREPLY[@]}}"
    shown = subprocess.run(["bash", "-c", words], env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["validate"]


def test_ctrl_c_while_the_command_is_being_loaded_leaves_no_trace_of_python() -> None:
    code = """
import os, signal, sys
from joinery_runtime.cli import main

class Interrupts:
    def find_spec(self, name, *_):
        if name == "cyclopts":
            os.kill(os.getpid(), signal.SIGINT)

assert "pydantic" not in sys.modules, "more is loaded before the command begins than need be"
sys.meta_path.insert(0, Interrupts())
main(["--version"])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_a_run_does_not_load_the_client_of_schema_registries_before_a_job_names_one() -> None:
    code = """
import sys
import joinery_runtime.cli.run
assert "confluent_kafka" in sys.modules
print(*(name for name in sys.modules if name.startswith("confluent_kafka.schema_registry")))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == ""


@pytest.mark.parametrize("option", ["-", "-f"])
def test_who_writes_as_for_kubectl_is_told_how_a_job_is_named(joinery: Joinery, option: str) -> None:
    ended = joinery("validate", option)
    assert ended.code == 2
    assert f"joinery: {option}: 1 problem(s)" in ended.err
    assert "joinery run /dev/stdin < job.yaml" in ended.err


def test_a_job_is_read_from_standard_input(job_file: Path) -> None:
    job_file.write_text(edited(DELAYED))
    with job_file.open() as lines:
        command = [JOINERY, "validate", "/dev/stdin"]
        done = subprocess.run(command, stdin=lines, capture_output=True, text=True, check=True)
    assert done.stdout == "/dev/stdin: valid\n"
