"""The commands of quickstart and tutorial print what the page says they print."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from docs.blocks import ROOT, blocks_of


def in_one_line(text: str) -> str:
    """Pages break lines where they like."""
    return re.sub(r"\s+", " ", text).strip()


def expected(line: str) -> str:
    """A pattern: `...` stands for anything, and a duration for any other."""
    return re.sub(r"\d+\\\.\d+\\ s\b", r"[\\d.]+\\ s", re.escape(in_one_line(line)).replace(r"\.\.\.", ".*"))


def on_a_terminal(command: list[str]) -> str:
    """What it prints on one that is wide, without control sequences."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdout=theirs, stderr=theirs, env={**os.environ, "COLUMNS": "400", "TERM": "dumb"}
    )
    os.close(theirs)
    printed = b""
    with suppress(OSError), os.fdopen(ours, "rb", buffering=0) as output:  # OSError: nobody writes there any more
        while part := output.read(65536):
            printed += part
    process.wait()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed.decode())


def try_out(page: str, folder: Path, begin: str) -> int:
    """Runs every `sh` block of the page in the folder, in order, and looks for each block of `text` in what was printed
    last. Returns how many were run; the lines of `make` are left out, `begin` comes first."""
    (folder / "env").write_text(f"export PATH={Path(sys.executable).parent}:$PATH\n{begin}\n")
    printed, shown, ran = "", "", 0
    for block in blocks_of(ROOT / "README.md", re.sub(r"^make .*\n", "", page, flags=re.MULTILINE)):
        if block.language == "sh":
            script = f". {folder}/env\n{block.text}\n{{ declare -px; echo cd $PWD; }} > {folder}/env"
            shown = on_a_terminal(["bash", "-c", script])
            printed, ran = in_one_line(shown), ran + 1
        elif not re.search(expected(block.text), printed):  # then it has some of the lines
            for line in block.text.splitlines():
                assert re.search(expected(line), printed), f"{line}\n\nwas not printed:\n\n{shown}"
    return ran


@pytest.mark.services
def test_the_quickstart_prints_what_it_says(tmp_path: Path) -> None:
    page = (ROOT / "docs/quickstart.md").read_text().replace("/tmp/quickstart", str(tmp_path / "quickstart"))
    assert try_out(page, tmp_path, f"cd {ROOT}") >= 10


@pytest.mark.services
def test_the_tutorial_prints_what_it_says(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    playground = subprocess.Popen([sys.executable, "-m", "joinery_devkit.playground"], cwd=tmp_path, env=environment)
    try:
        addresses = tmp_path / "build/playground.env"
        while not addresses.exists():
            assert playground.poll() is None
            time.sleep(0.1)
        assert try_out((ROOT / "docs/tutorial.md").read_text(), tmp_path, f"cd {tmp_path}") >= 6
    finally:
        playground.terminate()
        assert playground.wait() == 0
    assert not addresses.exists()
