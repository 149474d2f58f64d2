"""A path in the job that leads nowhere is named with its line by the commands that read the inputs, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.commands import Joinery

pytestmark = pytest.mark.services

_JOB = """
apiVersion: joinery.dev/v1alpha1
kind: StreamJoin
metadata: {{name: moved}}
spec:
  inputs:
    - name: orders
      file:
        path: orders.csv
      format: csv
      schema: [{{name: id, type: int64}}, {{name: ts, type: timestamp}}]
      eventTime: ts
    - name: payments
      file:
        path: payments.csv
      format: csv
      schema: [{{name: order, type: int64}}, {{name: ts, type: timestamp}}]
      eventTime: ts
  joins: [{{right: payments, keys: {{orders.id: payments.order}}, interval: {{of: orders, lower: 0, upper: 10ms}}}}]
  output: {{file: {{path: out}}}}
  stateStore: {{postgres: {{dsn: "{dsn}", schema: "{schema}"}}}}
"""


def test_a_path_that_leads_nowhere_is_named_with_its_line(
    joinery: Joinery, postgres_dsn: str, schema: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(_JOB.format(dsn=postgres_dsn, schema=schema))
    for name, text in (("orders", "id,ts\n1,5\n"), ("payments", "order,ts\n1,6\n")):
        (tmp_path / f"{name}.csv").write_text(text)
    run = [sys.executable, "-m", "joinery_runtime", "run", "--local", str(path)]
    subprocess.run(run, check=True, capture_output=True)
    assert joinery("verify", path).code == 0

    path.write_text(path.read_text().replace("path: payments.csv", "path: typo.csv"))
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "typo" in text)
    wrong = f"the input file {tmp_path / 'typo.csv'} cannot be read: No such file or directory"
    message = f"joinery: {path}: line {line}: input payments: {wrong}. Check file.path in the job\n"
    assert joinery("verify", path).err == message
    assert joinery("why", path, "--key", "id=1").err == message
