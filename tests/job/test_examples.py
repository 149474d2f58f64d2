import csv
from pathlib import Path

import pytest

from joinery_runtime.job import explain, load_job

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.yaml"))


def test_the_examples_are_there():
    assert {"orders-payments.yaml", "orders-shipments-files.yaml"} <= {path.name for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_loads_and_explains_itself(path):
    assert path.stem.startswith(load_job(path).name)
    # A day of rows is much at 1,000 rows/s; that warning is right, any other would be a bad example.
    assert {warning.split(":")[0] for warning in explain(load_job(path)).warnings} <= {"LARGE STATE"}


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
