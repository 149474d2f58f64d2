"""`spec.outputs`: what they may be, and what each of them has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from job.sessions import document, load
from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.errors import JobError
from joinery_runtime.job import SessionWindow, definition, parse_job, same_rows, under_definition

FILE = {"name": "every", "file": {"path": "/out"}}
TABLE = {"name": "table", "postgres": {"table": "sessions"}}
TOPIC = {"name": "topic", "kafka": {"bootstrapServers": "k:1", "topic": "busy", "key": ["user_id"]}}


def outputs(*several: dict[str, Any], **spec: Any) -> SessionWindow:
    job = load(output=None, outputs=list(several), **spec)
    compile_job(job)
    return job


def problems(*several: dict[str, Any], **spec: Any) -> dict[str, str]:
    with pytest.raises(JobError) as rejected:
        outputs(*several, **spec)
    return {problem.path: problem.message for problem in rejected.value.problems}


def test_each_output_has_its_rows_and_columns() -> None:
    columns = [{"column": "user_id"}, {"column": "events", "as": "clicks"}]
    job = outputs(FILE, {**TOPIC, "when": "events > 1 AND user_id <> 'bot'", "select": columns})
    assert [output.name for output in job.outputs] == ["every", "topic"]
    every, topic = ([column.name for column in job.columns_of(output)] for output in job.outputs)
    assert every == [column.name for column in job.output_columns]
    assert topic == ["user_id", "clicks"]


def test_one_output_is_one_of_outputs() -> None:
    (output,) = load(output={"file": {"path": "/out"}}).outputs
    assert (output.name, output.file and output.file.path, output.when, output.select) == ("output", "/out", None, None)


def test_a_job_has_output_or_outputs() -> None:
    both = document(outputs=[FILE])
    with pytest.raises(JobError, match="output and outputs are both named; keep one"):
        parse_job(json.dumps(both), "job.json")
    with pytest.raises(JobError, match="name where rows go"):
        load(output=None)


@pytest.mark.parametrize(
    ("several", "path", "words"),
    [
        ([FILE, {**TOPIC, "name": "every"}], "spec.outputs[1].name", "two outputs are named 'every'"),
        ([FILE, {**FILE, "name": "again"}], "spec.outputs[1]", "writes to folder /out, as 'every' does"),
        ([TABLE, {**TABLE, "name": "again"}], "spec.outputs[1]", "a table sessions, as 'table' does"),
        ([TOPIC, {**TOPIC, "name": "again"}], "spec.outputs[1]", "topic busy, as 'topic' does"),
        ([{**FILE, "name": "output"}], "spec.outputs[0].name", "'output' is a table of its own"),
        ([{**FILE, "name": "state_sessions"}], "spec.outputs[0].name", "a table of its own"),
        ([{**FILE, "name": "Upper"}], "spec.outputs[0].name", "begins with a lower-case letter"),
        ([{"name": "nowhere"}], "spec.outputs[0]", "none of them is named"),
        ([{**FILE, "select": [{"column": "event"}]}], "spec.outputs[0].select[0].column", "did you mean 'events'?"),
        (
            [{**FILE, "select": [{"column": "events"}, {"column": "user_id", "as": "events"}]}],
            "spec.outputs[0].select[1]",
            "two columns are named 'events'",
        ),
        (
            [{**TOPIC, "select": [{"column": "events"}]}],
            "spec.outputs[0].kafka.key[0]",
            "'user_id' is not an output column; output columns are events",
        ),
        (
            [{**TABLE, "select": [{"column": "user_id"}]}],
            "spec.outputs[0].select",
            "session_id is left out; select it, or write outputs[0].postgres.upsertKey",
        ),
        ([FILE, {**TOPIC, "windowTimes": "timestamp"}], "spec.outputs[1].windowTimes", "not that of the first output"),
        ([{**FILE, "format": "avro"}], "spec.outputs[0].format", "avro is a format of Kafka"),
        ([{**FILE, "when": "clicks > 1"}], "spec.outputs[0].when", "unknown column 'every.clicks'"),
        ([{**FILE, "when": "events + 1"}], "spec.outputs[0].when", "is not a condition"),
        ([{**FILE, "when": "CAST(user_id AS BIGINT) > 1"}], "spec.outputs[0].when", "as a column of `select`"),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_what_outputs_may_not_say(several: list[dict[str, Any]], path: str, words: str) -> None:
    assert words in problems(*several)[path]


def test_every_output_can_tell_a_retraction() -> None:
    spec = {"lateData": "reopen", "emitRetractions": True}
    columns = [{"column": name} for name in ("user_id", "session_id", "events")]
    assert "add {column: retracted}" in problems({**TABLE, "select": columns}, **spec)["spec.outputs[0].select"]
    assert outputs({**TABLE, "select": [*columns, {"column": "retracted"}]}, **spec).outputs[0].select


def test_an_edit_of_outputs_is_another_definition_and_keeps_the_present_settings() -> None:
    kafka = {**TOPIC["kafka"], "properties": {"sasl.password": "old"}}
    before = outputs(FILE, {**TOPIC, "kafka": kafka})
    now = outputs({**TOPIC, "kafka": {**kafka, "properties": {"sasl.password": "new"}}, "when": "events > 1"})
    assert not same_rows(definition(before), definition(now))
    assert "sasl.password" not in json.dumps(definition(before))
    replayed = under_definition(now, definition(before))
    assert same_rows(definition(replayed), definition(before))
    every, topic = replayed.outputs
    assert (every.name, topic.name, topic.when) == ("every", "topic", None)
    assert topic.kafka is not None
    assert topic.kafka.properties == {"sasl.password": "new"}


def test_an_output_keeps_its_settings_under_another_name() -> None:
    """The plan of before the edit is replayed there, and its definition has no secrets."""
    dsn = "postgresql://other/db"
    table_output, file = {"postgres": {"table": "sessions", "dsn": dsn}}, {"name": "file", "file": {"path": "/out"}}
    one, renamed = load(output=table_output), outputs(file, {"name": "renamed", **table_output})
    named = outputs(
        {"name": "named", **table_output}, {"name": "other_table", "postgres": {"table": "others", "dsn": "x=y"}}
    )
    for before, now in ((one, renamed), (named, renamed), (renamed, named), (named, one)):
        tables = [output.postgres for output in under_definition(now, definition(before)).outputs]
        assert dsn in [table.dsn for table in tables if table is not None]
    assert under_definition(outputs(file), definition(one)).outputs[0].postgres == one.outputs[0].postgres.model_copy(
        update={"dsn": None}
    )


def test_a_job_changes_from_one_output_to_several() -> None:
    one, several = load(output={"file": {"path": "/out"}}), outputs(FILE, TOPIC)
    assert under_definition(several, definition(one)).spec.outputs is None
    assert under_definition(one, definition(several)).spec.output is None
