import csv
from pathlib import Path

import pytest

from joinery_runtime.core.compile import compile_job
from joinery_runtime.job import SessionWindow, explain, load_job

FOLDER = Path(__file__).parents[2] / "examples"
CLUSTER = (path for path in FOLDER.glob("kubernetes/*.yaml") if path.stem != "secrets")
EXAMPLES = sorted([*FOLDER.glob("*.yaml"), *FOLDER.glob("session-over-join/*.yaml"), *CLUSTER])


def test_the_examples_are_there():
    names = {path.name for path in EXAMPLES}
    assert {"orders-payments.yaml", "orders-shipments-files.yaml", "sql-chain-join.yaml"} <= names


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_loads_and_explains_itself(path):
    assert load_job(path).name in path.stem
    # A day of rows is much at 1,000 rows/s, what is in memory is lost, and sessions over joined rows need no order of
    # one customer's rows within an epoch: these warnings are right, any other would be a bad example.
    warned = {warning.split(":")[0] for warning in explain(load_job(path)).warnings}
    assert warned <= {
        "LARGE STATE",
        "MEMORY STORE",
        *(
            ["NO ORDER WITHIN AN EPOCH of records with one key (customer_id) in paid-orders"]
            if path.stem == "1-paid-orders"
            else []
        ),
    }


@pytest.mark.parametrize("path", sorted(FOLDER.glob("sql-*.yaml")), ids=lambda path: path.name)
def test_an_example_in_sql_is_the_job_of_the_example_that_it_names(path):
    job, same = load_job(path), load_job(path.with_name(path.name.removeprefix("sql-")))
    assert job.spec.sql is not None
    assert job.without_sql.get("inputs", job.inputs) == same.inputs
    if isinstance(job, SessionWindow):
        assert job.sessions.model_copy(update={"select": None}) == same.sessions
    elif job.aggregation is not None or job.ranking is not None:
        assert compile_job(job) == compile_job(same)
    else:
        assert (job.joins, job.select) == (same.joins, same.select)
    assert job.output_columns == same.output_columns


def test_the_file_example_describes_its_data():
    job = load_job(FOLDER / "orders-shipments-files.yaml")
    for side in job.spec.inputs:
        assert side.file is not None
        with Path(side.file.path).open(newline="", encoding="utf-8") as data:
            header, *rows = csv.reader(data)
        assert header == list(side.types)
        assert len(rows) == 3
    assert [column.name for column in job.output_columns] == [
        *("order_id", "customer_id", "total_amount", "shipment_id", "carrier", "tracking_number")
    ]
