"""Ways to the command: `python -m`, and completion in a shell."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

JOINERY = Path(sys.executable).parent / "joinery"


def test_the_package_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "joinery_runtime", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == version("joinery-runtime")


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
