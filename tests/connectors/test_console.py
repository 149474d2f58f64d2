from __future__ import annotations

import json

import pyarrow as pa
import pytest

from connectors.rows import attempt
from joinery_runtime.connectors.console import ConsoleSink
from joinery_runtime.connectors.outputs import Outputs
from joinery_runtime.job import parse_job
from traces.corpus import resource


def rows(*numbers: int) -> pa.Table:
    """A batch for each number."""
    return pa.Table.from_batches([pa.record_batch({"n": [number]}) for number in numbers])


def test_the_first_rows_of_an_epoch_are_shown_after_its_commit(capsys: pytest.CaptureFixture[str]) -> None:
    sink = ConsoleSink(3)
    receipts = [
        sink.writer().write(attempt(shard=0), rows(1, 2)),
        sink.writer().write(attempt(shard=1), rows(*range(5))),
    ]
    assert capsys.readouterr().out == ""
    sink.publish(7, json.loads(json.dumps(receipts)))
    assert capsys.readouterr().out.splitlines() == ['{"n":1}', '{"n":2}', '{"n":0}', "... and 4 more rows of epoch 7"]
    sink.publish(8, [receipts[0]])
    assert capsys.readouterr().out.splitlines() == ['{"n":1}', '{"n":2}']


def test_a_job_names_it() -> None:
    job = parse_job(
        json.dumps(
            resource({"joins": [{"interval": {"lower": 0, "upper": 0}}], "output": {"console": {"rows": 5}}}, "shown")
        ),
        "job.yaml",
    )
    assert Outputs.of(job).sink(None) == ConsoleSink(5)
