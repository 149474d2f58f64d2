"""Environment variables in a job file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from job.resources import GOOD
from joinery_runtime.errors import JobError
from joinery_runtime.job import load_job, parse_job


def edited(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, 1)


def test_a_variable_stands_for_its_value_also_in_a_part_of_a_text() -> None:
    text = edited("topic: orders\n", "topic: ${STAGE}.orders-${REGION:-eu}\n") + "  shards: ${SHARDS}\n"
    job = parse_job(text, "job.yaml", environment={"STAGE": "test", "SHARDS": "5"})
    assert job.inputs[0].kafka is not None
    assert job.inputs[0].kafka.topic == "test.orders-eu"
    assert job.spec.shards == 5


def test_json_has_variables_too() -> None:
    document = YAML(typ="safe", pure=True).load(GOOD)
    document["spec"]["inputs"][0]["kafka"]["topic"] = "${STAGE}.orders"
    job = parse_job(json.dumps(document), "job.json", environment={"STAGE": "test"})
    assert job.inputs[0].kafka is not None
    assert job.inputs[0].kafka.topic == "test.orders"


def test_a_value_in_quotes_stays_text_and_a_doubled_dollar_stays_a_dollar() -> None:
    text = edited("topic: orders\n", 'topic: "${TOPIC}"\n        properties: {client.id: "$${X}"}\n')
    job = parse_job(text, "job.yaml", environment={"TOPIC": "7"})
    assert job.inputs[0].kafka is not None
    assert (job.inputs[0].kafka.topic, job.inputs[0].kafka.properties) == ("7", {"client.id": "${X}"})


@pytest.mark.parametrize(
    ("written", "environment"),
    [
        ('"\\ud83d"', {}),  # half of a pair
        ('"\\ude00\\ud83d"', {}),  # a pair in the wrong order
        ("${NAME}", {"NAME": os.fsdecode(b"Z\xfcrich")}),  # Latin-1, which is not UTF-8
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_half_of_a_character_is_refused_where_it_is(written: str, environment: dict[str, str], as_json: bool) -> None:
    text = edited("topic: orders\n", f"topic: {written}\n")
    if as_json:
        document = YAML(typ="safe", pure=True).load(edited("topic: orders\n", "topic: HERE\n"))
        text = json.dumps(document).replace('"HERE"', written if written[0] == '"' else f'"{written}"')
    with pytest.raises(JobError) as caught:
        parse_job(text, "job", environment=environment)
    assert [problem.path for problem in caught.value.problems] == ["spec.inputs[0].kafka.topic"]
    assert "half of a surrogate pair" in str(caught.value).encode().decode()


def test_a_character_that_json_writes_as_two_escapes_is_one_in_yaml_too() -> None:
    text = edited("topic: orders\n", 'topic: orders\n        properties: {client.id: "\\ud83d\\ude00"}\n')
    job = parse_job(text, "job.yaml")
    assert job.inputs[0].kafka is not None
    assert job.inputs[0].kafka.properties == {"client.id": "\U0001f600"}


def test_every_variable_that_is_not_set_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH", raising=False)
    path = tmp_path / "job.yaml"
    path.write_text(edited("topic: orders\n", "topic: ${NO_SUCH}\n") + "  shards: ${NO_SUCH_EITHER}\n")
    with pytest.raises(JobError) as caught:
        load_job(path)
    first, second = caught.value.problems
    assert (first.path, first.message) == (
        "spec.inputs[0].kafka.topic",
        "${NO_SUCH} is not set; set the environment variable, or write ${NO_SUCH:-a default}",
    )
    assert first.line == 1 + GOOD[: GOOD.index("topic: orders\n")].count("\n")
    assert second.path == "spec.shards"
