"""Code on the pages works: jobs load, and the quickstart's commands print what the page says that they print."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from joinery_runtime.job import parse_job

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = {"joinery", "cat", "cp", "echo", "export", "make", "sed"}

# Whole resources in the blocks of the pages, each with its place.
JOBS = [
    (f"{page.relative_to(ROOT)}[{number}]", block)
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
    if re.search(r"^kind: (StreamJoin|SessionWindow)$", block, re.MULTILINE)
]


@pytest.mark.parametrize(("place", "job"), JOBS, ids=[place for place, _ in JOBS])
def test_a_whole_job_loads(place: str, job: str) -> None:
    assert parse_job(job, place).spec


def test_some_jobs_are_on_the_pages() -> None:
    assert len(JOBS) >= 3


def blocks(text: str) -> list[str]:
    """Indented blocks, in order."""
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in re.findall(r"(?<=\n\n)(?:    .*\n)+", text)]


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


@pytest.mark.services
def test_the_quickstart_prints_what_it_says(tmp_path: Path) -> None:
    """Every command, in order, and each block of output among what was printed last."""
    page = (ROOT / "docs/quickstart.md").read_text()
    (tmp_path / "env").write_text(f"export PATH={Path(sys.executable).parent}:$PATH\ncd {ROOT}\n")
    printed, ran = "", 0
    for block in blocks(page.replace("/tmp/quickstart", str(tmp_path / "quickstart")).replace("make setup\n", "\n")):
        if block.split(maxsplit=1)[0] in COMMANDS:
            script = f". {tmp_path}/env\n{block}\n{{ declare -px; echo cd $PWD; }} > {tmp_path}/env"
            shown = on_a_terminal(["bash", "-c", script])
            printed, ran = in_one_line(shown), ran + 1
        elif not re.search(expected(block), printed):  # then it has some of the lines
            for line in block.splitlines():
                assert re.search(expected(line), printed), f"{line}\n\nwas not printed:\n\n{shown}"
    assert ran >= 10
