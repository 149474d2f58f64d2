import csv
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from budget import examples
from job.chains import messages_of
from job.join.test_step_rules import spoilt
from joinery_runtime.core.compile.jobs import compile_job
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
    elif job.aggregation is not None or job.rankings:
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


RESOURCES = {path.stem: YAML(typ="safe").load(path) for path in EXAMPLES if path.parent == FOLDER}


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("orders-payments", ("joins", 0, "interval", "of"), []),
        ("session-window-files", ("groupBy", 0), [[{}]]),
        ("top-products", ("aggregate", "groupBy", 0), {"x": None}),
        ("early-results", ("aggregate", "aggregates", 0, "function"), {}),
        ("early-results", ("aggregate", "aggregates", 0, "column"), ["x"]),
        ("sql-deduplicate-files", ("deduplicate",), 5),
    ],
)
def test_a_value_of_another_kind_is_a_mistake_at_its_place(
    name: str, path: tuple[str | int, ...], value: object
) -> None:
    resource = deepcopy(RESOURCES[name])
    node = resource["spec"]
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    written = ".".join(map(str, ("spec", *path)))
    assert any(at.replace("[", ".").replace("]", "").startswith(written) for at in messages_of(resource))


@settings(max_examples=examples(1000), deadline=None)
@given(st.data())
def test_no_value_in_an_example_gives_anything_but_mistakes(data: st.DataObject) -> None:
    written = spoilt(data.draw(st.sampled_from([*RESOURCES.values()])), data)
    assert all(at and message for at, message in messages_of(written).items())
