"""The commands of quickstart and tutorial print what the page says they print, and so do the blocks of Python."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from cli.verified import inputs_of, write_files
from docs.blocks import ROOT, blocks_of, command_lines
from joinery_devkit.kubernetes.api_server import ApiServer
from joinery_devkit.kubernetes.binaries import program
from joinery_devkit.time_limit import TOOK
from joinery_runtime.cli.replay_commands import why_command
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.inspect.verify import verify
from joinery_runtime.job import parse_job
from joinery_runtime.state.memory import MemoryStore

TEN_MINUTES_S = 600


def in_one_line(text: str) -> str:
    """Pages break lines where they like."""
    return re.sub(r"\s+", " ", text).strip()


def expected(line: str) -> str:
    """A pattern: `...` stands for anything, and a duration for any other."""
    return re.sub(r"\d+\\\.\d+\\ s\b", r"[\\d.]+\\ s", re.escape(in_one_line(line)).replace(r"\.\.\.", ".*"))


def on_a_terminal(command: list[str]) -> str:
    """What it prints on one that is wide, without control sequences. A reader's short job ends before Spark is up."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "400", "TERM": "dumb"}
    environment.pop("JOINERY_WAIT_FOR_SPARK", None)
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
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
        elif block.language == "text" and not re.search(expected(block.text), printed):  # then it has some of the lines
            for line in block.text.splitlines():
                assert re.search(expected(line), printed), f"{line}\n\nwas not printed:\n\n{shown}"
    return ran


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_screen_shows_the_first_job_and_what_it_prints(page: str) -> None:
    job, shown = [block for block in blocks_of(ROOT / page) if block.language in {"yaml", "console"}][:2]
    assert (ROOT / "examples/first.yaml").read_text().partition("\n")[2] == job.text
    (command,) = command_lines(shown)
    printed = on_a_terminal(["bash", "-c", f"cd {ROOT} && PATH={Path(sys.executable).parent}:$PATH {command}"])
    for line in shown.text.splitlines()[1:]:
        assert re.search(expected(line), printed), f"{line}\n\nwas not printed:\n\n{printed}"


@pytest.mark.services
def test_the_quickstart_prints_what_it_says(tmp_path: Path) -> None:
    page = (ROOT / "docs/quickstart.md").read_text().replace("/tmp/quickstart", str(tmp_path / "quickstart"))
    assert try_out(page, tmp_path, f"cd {ROOT}") >= 10


@pytest.mark.services
def test_the_tutorial_prints_what_it_says(
    tmp_path: Path, api_server: ApiServer, api_namespace: str, record_property: Callable[[str, object], None]
) -> None:
    """From a Debezium topic to rows in psql, within the time that the page promises. The last part is on an API server,
    where no operator starts the job."""
    api_server.kubectl.apply(ROOT / "crds")
    namespace = f"{api_namespace}-jobs"
    page = (ROOT / "docs/tutorial.md").read_text().replace("-n jobs", f"-n {namespace}")
    page = page.replace("create namespace jobs", f"create namespace {namespace}")
    began = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    playground = subprocess.Popen([sys.executable, "-m", "joinery_devkit.playground"], cwd=tmp_path, env=environment)
    try:
        addresses = tmp_path / "build/playground.env"
        while not addresses.exists():
            assert playground.poll() is None
            time.sleep(0.1)
        on_cluster = f"export PATH=$PATH:{program('kubectl').parent} KUBECONFIG={api_server.kubectl.kubeconfig}"
        assert try_out(page, tmp_path, f"cd {tmp_path}\n{on_cluster}") >= 10
        assert api_server.kubectl.get("streamjoin", "clicks-with-users", namespace) is not None
        seconds = time.monotonic() - began
        record_property(TOOK, f"the tutorial took {seconds:.0f} s, all of its commands")
        assert seconds < TEN_MINUTES_S
    finally:
        api_server.kubectl("delete", "namespace", namespace, "--wait=false", "--ignore-not-found")
        playground.terminate()
        assert playground.wait() == 0
    assert not addresses.exists()


_ORDERS_AND_PAYMENTS = """\
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {name: orders-payments}
spec:
  inputs:
    - {name: orders, file: {path: o.jsonl}, format: json, eventTime: ts, schema: COLUMNS}
    - {name: payments, file: {path: p.jsonl}, format: json, eventTime: ts, schema: COLUMNS}
  joins:
    - {right: payments, type: left, keys: {orders.k: payments.k}, interval: {of: orders, lower: -10ms, upper: 10ms}}
  output: {console: {}}
  stateStore: {memory: {}}
""".replace("COLUMNS", "[{name: k, type: string}, {name: v, type: string}, {name: ts, type: timestamp}]")
_TEN = 1793613600000  # 10:00 of the page


def test_the_page_about_why_shows_what_it_prints(tmp_path: Path) -> None:
    def row(value: str, ms: int) -> dict[str, object]:
        return {"k": "o-17", "v": value, "ts": _TEN + ms}

    (tmp_path / "job.yaml").write_text(_ORDERS_AND_PAYMENTS)
    trace = [
        {"input": "orders", "rows": [row("book", 0)]},
        {"input": "payments", "rows": [row("card", 5), row("gift", 30)]},
        {"watermark": {"orders": _TEN + 100_000, "payments": _TEN + 100_000}},
        {"input": "payments", "rows": [row("cash", 1)]},
    ]
    (tmp_path / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in trace))
    block = next(block for block in blocks_of(ROOT / "docs/why.md") if block.language == "console")
    (command,) = command_lines(block)
    assert command == "joinery why job.yaml --key k=o-17 --steps steps.jsonl"
    job = parse_job((tmp_path / "job.yaml").read_text(), "job.yaml")
    printed = why_command(job, ["k=o-17"], None, None, tmp_path / "steps.jsonl").lines()
    assert block.text.splitlines()[1:] == list(printed)


def test_the_page_about_why_shows_what_a_changed_row_gives(tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(ROOT / "docs/why.md") if block.language == "console"]
    assert [command_lines(block)[0].split()[1] for block in blocks] == ["why", "verify"]  # that is all of them
    output = f"output: {{file: {{path: {tmp_path / 'out'}}}}}\n  deadLetter: {{file: {{path: {tmp_path / 'dead'}}}}}"
    job = parse_job(_ORDERS_AND_PAYMENTS.replace("output: {console: {}}", output), "job.yaml")
    trace = [
        {"rows": {name: [{"k": f"o-{n}", "v": value, "ts": _TEN + n} for n in range(17, 17 + count)]}}
        for name, value, count in (("orders", "book", 3), ("payments", "card", 2))
    ]
    store = MemoryStore()
    for _ in run_trace(job, [*trace, {"end": True}], store):
        """What goes out is written below."""
    inputs = inputs_of(job, trace)
    write_files(job, store, inputs, tmp_path / "cache")
    part = next(path for path in sorted((tmp_path / "out").iterdir()) if "o-18" in path.read_text())
    first, changed, *rest = part.read_text().splitlines(keepends=True)
    part.write_text("".join([first, changed.replace('"card"', '"cash"'), *rest]))
    _, block = blocks
    assert block.text.splitlines()[1:] == list(verify(job, store, inputs, None, None).lines())


def as_in_a_notebook(text: str) -> str:
    """The code, with what its last line yields printed."""
    tree = ast.parse(text)
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        tree.body[-1:] = ast.parse(f"if (_ := {ast.unparse(last)}) is not None:\n    print(repr(_))").body
    return ast.unparse(tree)


@pytest.mark.services
def test_the_page_about_python_prints_what_it_says(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    blocks = list(blocks_of(ROOT / "docs/python.md"))
    cells = [block for block in blocks if block.language == "python"]
    end_of_cell = "~ the next cell ~"
    script = f"\nprint({end_of_cell!r})\n".join(as_in_a_notebook(cell.text) for cell in cells)
    environment = {**os.environ, "JOINERY_HOME": str(tmp_path / "home"), "POLARS_FMT_MAX_COLS": "20"}
    for name in ("JOINERY_WAIT_FOR_SPARK", "PYSPARK_PYTHON"):
        environment.pop(name, None)
    ran = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        cwd=tmp_path / "examples",
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    printed = ran.stdout.split(end_of_cell)
    assert len(printed) == len(cells) >= 6
    for before, block in pairwise(blocks):
        if block.language == "text":
            shown = printed[cells.index(before)]
            for line in block.text.splitlines():
                assert re.search(expected(line), in_one_line(shown)), f"{line}\n\nwas not printed:\n\n{shown}"
    assert "Traceback" not in ran.stderr
