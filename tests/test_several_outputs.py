"""A job with several outputs, run in this process: rows, `verify`, `sql`, the trace, and the result in Python."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from joinery_runtime import run
from joinery_runtime.errors import JoineryError
from joinery_runtime.inspect.trace import run_trace
from joinery_runtime.job import explain, load_job
from joinery_runtime.state.memory import MemoryStore

EXAMPLES = Path(__file__).parents[1] / "examples"
SHIPPED = [
    {"order_id": "ORD-001", "shipment": "SHIP-001", "carrier": "UPS"},
    {"order_id": "ORD-002", "shipment": "SHIP-002", "carrier": "FedEx"},
]
NOT_SHIPPED = [{"order_id": "ORD-003", "total_amount": "350.00"}]


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLES / "data", tmp_path / "data")
    return Path(shutil.copy(EXAMPLES / "two-outputs.yaml", tmp_path))


def test_each_output_has_its_rows(job_file: Path) -> None:
    with pytest.warns(UserWarning, match="stateStore is memory"):
        result = run(job_file, local=True)
    shipped, not_shipped = (
        [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
        for folder in (job_file.parent / "two-outputs-shipped", job_file.parent / "two-outputs-not-shipped")
    )
    assert (sorted(shipped, key=str), not_shipped) == (SHIPPED, NOT_SHIPPED)
    assert sorted(result.output("shipped").to_arrow().to_pylist(), key=str) == SHIPPED
    with pytest.raises(JoineryError, match="has several outputs: its outputs are shipped, not_shipped"):
        result.output()
    with pytest.raises(JoineryError, match="has no output lost"):
        result.output("lost")
    assert [line.partition(":")[0] for line in result.where.splitlines()] == ["shipped", "not_shipped"]


def test_a_trace_shows_the_rows_of_each_output() -> None:
    at = 1_768_471_200_000
    order = {"order_id": "o", "customer_id": "c", "total_amount": "1.00", "event_time": at}
    shipment = {"order_id": "o", "shipment_id": "s", "carrier": "UPS", "tracking_number": "1", "event_time": at}
    orders = [order, {**order, "order_id": "p"}]
    steps = [{"rows": {"orders": orders}}, {"rows": {"shipments": [shipment]}}, {"end": True}]
    printed = [line["outputs"] for line in run_trace(load_job(EXAMPLES / "two-outputs.yaml"), steps, MemoryStore(), 2)]
    shipped = [{"order_id": "o", "shipment": "s", "carrier": "UPS"}]
    assert printed == [
        {"shipped": [], "not_shipped": []},
        {"shipped": shipped, "not_shipped": []},
        {"shipped": [], "not_shipped": [{"order_id": "p", "total_amount": "1.00"}]},
    ]


def test_explain_names_each_output() -> None:
    lines = explain(load_job(EXAMPLES / "two-outputs.yaml")).render().splitlines()
    assert "  rows: order_id, shipment_id, carrier, total_amount" in lines
    (not_shipped,) = (line for line in lines if line.startswith("  output not_shipped: "))
    assert "rows where shipment_id IS NULL; JSON lines under " in not_shipped
    assert not_shipped.endswith("exactly once; columns order_id, total_amount")
