"""A record that ends the process that decodes it, on Spark's executors: the third driver names it (rule T8)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
COUNT, DEADLY = 500, 321
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


def test_the_third_driver_names_it(postgres_dsn: str, tmp_path: Path) -> None:
    for name, column in (("orders", "id"), ("payments", "order")):
        rows = [{column: f"o{number}", "ts": 1_000 + number} for number in range(COUNT)]
        if name == "orders":
            rows[DEADLY]["note"] = "deadly"
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "job.yaml").write_text(JOB.replace("DSN", postgres_dsn))
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(DIES)
    environment = {**os.environ, "JOINERY_WAIT_FOR_SPARK": "1", "PYTHONPATH": str(modules)}
    executors = ("--master", "local-cluster[1,1,1024]")

    def run(*where: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "joinery_runtime", "run", "job.yaml", *where]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    assert run("--local").returncode == -signal.SIGSEGV
    ended = run(*executors)
    assert ended.returncode == 1, ended.stderr
    assert "Python worker exited unexpectedly" in ended.stderr
    ended = run(*executors)
    assert ended.returncode == 0, ended.stderr
    ids = {f"o{number}" for number in range(COUNT)} - {f"o{DEADLY}"}
    assert sorted(row["id"] for row in lines_of(tmp_path / "out")) == sorted(ids)
    (letter,) = lines_of(tmp_path / "dead")
    assert '"note": "deadly"' in letter["text"]
    assert letter["reason"].startswith("reading it ended the process (SIGSEGV) 2 times")
