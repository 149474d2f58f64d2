"""A record that ends the process that decodes it, or that calls a function with it, on Spark's executors: the third
driver names it (rule T8)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
COUNT, DEADLY = 500, 321
EXECUTORS = ("--master", "local-cluster[1,1,1024]")
# Every Python process of the job loads this module at its start: a decoder that dies of a record, as one in C may.
DIES = """
import importlib.abc, importlib.util, os, signal, sys
NAME = "joinery_runtime.formats.json.decoder"

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            decode = module.JsonDecoder.decode

            def dies(self, values):
                if any(b"deadly" in value for value in values.to_pylist()):
                    os.kill(os.getpid(), signal.SIGSEGV)
                return decode(self, values)

            module.JsonDecoder.decode = dies

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""
JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {name: deadly-record}
spec:
  inputs:
    - name: orders
      file: {path: orders.jsonl}
      format: json
      schema: [{name: id, type: string}, {name: ts, type: timestamp}]
      eventTime: ts
    - name: payments
      file: {path: payments.jsonl}
      format: json
      schema: [{name: order, type: string}, {name: ts, type: timestamp}]
      eventTime: ts
  joins: [{right: payments, keys: {orders.id: payments.order}, interval: {of: orders, lower: 0s, upper: 1h}}]
  select: [{column: orders.id}]
  output: {file: {path: out}}
  deadLetter: {file: {path: dead}}
  stateStore: {postgres: {dsn: "DSN", schema: deadly_record}}
  shards: 4
  spark: {conf: {spark.task.maxFailures: "1"}}
"""


def lines_of(folder: Path) -> list[dict[str, str]]:
    files = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def run_job(folder: Path, environment: dict[str, str], *where: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "joinery_runtime", "run", "job.yaml", *where],
        cwd=folder,
        env={**os.environ, "JOINERY_WAIT_FOR_SPARK": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def write_inputs(folder: Path) -> None:
    for name, column in (("orders", "id"), ("payments", "order")):
        rows = [{column: f"o{number}", "ts": 1_000 + number} for number in range(COUNT)]
        if name == "orders":
            rows[DEADLY]["note"] = "deadly"
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_the_third_driver_names_it(postgres_dsn: str, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB.replace("DSN", postgres_dsn))
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(DIES)
    environment = {"PYTHONPATH": str(modules)}

    assert run_job(tmp_path, environment, "--local").returncode == -signal.SIGSEGV
    ended = run_job(tmp_path, environment, *EXECUTORS)
    assert ended.returncode == 1, ended.stderr
    assert "Python worker exited unexpectedly" in ended.stderr
    ended = run_job(tmp_path, environment, *EXECUTORS)
    assert ended.returncode == 0, ended.stderr
    ids = {f"o{number}" for number in range(COUNT)} - {f"o{DEADLY}"}
    assert sorted(row["id"] for row in lines_of(tmp_path / "out")) == sorted(ids)
    (letter,) = lines_of(tmp_path / "dead")
    assert '"note": "deadly"' in letter["text"]
    assert letter["reason"].startswith("reading it ended the process (SIGSEGV) 2 times")


def test_each_driver_names_the_function_and_the_third_the_record(postgres_dsn: str, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    (tmp_path / "code.py").write_text(
        f"import os\n\ndef tag(ids):\n    return os._exit(7) if 'o{DEADLY}' in ids.to_pylist() else ids\n"
    )
    function = "  functions: [{name: tag, python: 'code:tag', returns: string}]\n"
    job = JOB.replace("DSN", postgres_dsn).replace("deadly_record", "deadly_function")
    (tmp_path / "job.yaml").write_text(
        job.replace("{column: orders.id}", "{expression: tag(orders.id), as: id}") + function
    )
    named = r"called tag \(code:tag, .*code\.py\) for rows of orders \(.*orders\.jsonl, partition 0\), offsets 0 to "

    ended = run_job(tmp_path, {}, "--local", "--py-files", "code.py")
    assert ended.returncode == 7
    assert re.search(named, ended.stderr), ended.stderr
    ended = run_job(tmp_path, {}, *EXECUTORS, "--py-files", "code.py")
    assert ended.returncode == 1, ended.stderr
    assert re.search(f"A function ended a Python process of Spark in epoch 1: {named[7:]}", ended.stderr), ended.stderr
    ended = run_job(tmp_path, {}, *EXECUTORS, "--py-files", "code.py")
    assert ended.returncode == 0, ended.stderr
    assert len(lines_of(tmp_path / "out")) == COUNT - 1
    (letter,) = lines_of(tmp_path / "dead")
    assert '"note": "deadly"' in letter["text"]
    assert "tag (code:tag) ended the process (exit code 7) 2 times" in letter["reason"]
