"""A number without a unit is no duration where a person writes a job: 30 may mean seconds to them (0 apart)."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from job import chains, sessions
from joinery_runtime import explain, trace
from joinery_runtime.errors import JobError
from joinery_runtime.job import STORED_JOB, Job, Watermark, definition, job_from, load_job, load_stored, parse_job
from joinery_runtime.job.crd import KINDS, custom_resource_definition
from joinery_runtime.job.load import JobWithWarnings

FIELDS_OF_EVERY_KIND = {
    "trigger": {"interval": 30},
    "autoscale": {"maxInstances": 2, "targetLag": 30, "upAfter": 30, "downAfter": 30},
    "upgrade": {"progressDeadline": 600, "shadow": {"within": 30}},
    "stateStore": {
        "postgres": {"dsn": "x", "epochLogRetention": 30},
        "checkpointInterval": 30,
        "savepoints": {"every": 30},
    },
    "output": {"file": {"path": "out", "rollSize": "64Mi", "rollInterval": 30}},
    "deadLetter": {"file": {"path": "dead", "rollInterval": 30}},
}
WATERMARK = {"delay": 30, "idleTimeout": 30, "maxFuture": 30}
STREAM = chains.stream("orders", "id", "currency", watermark=WATERMARK)
JOBS: Mapping[str, dict[str, Any]] = {
    "interval": chains.document(
        chains.step(interval={"of": "orders", "lower": -30, "upper": 30}, allowedLateness=30),
        inputs=[STREAM, chains.PAYMENTS],
        **FIELDS_OF_EVERY_KIND,
    ),
    "tumbling": chains.document(chains.window(tumbling=30)),
    "hopping": chains.document(chains.window(hopping={"size": 30, "slide": 30})),
    "session": chains.document(chains.window(session={"gap": 30})),
    "asOf": chains.document(chains.as_of(asOf={"historyRetention": 3000, "grace": 30})),
    "aggregate": chains.document(
        chains.step(),
        aggregate={
            "groupBy": ["orders.currency"],
            "window": {"cumulative": {"size": 300, "step": 30, "offset": 30}},
            "aggregates": [{"function": "count", "as": "n"}],
        },
    ),
    "SessionWindow": sessions.document(
        gap=30,
        maxDuration=3000,
        allowedLateness=30,
        input={**sessions.CLICKS, "watermark": WATERMARK},
        **FIELDS_OF_EVERY_KIND,
    ),
}
every_job = pytest.mark.parametrize("written", JOBS.values(), ids=JOBS)


def numbers(value: Any, at: str = "spec") -> Iterator[tuple[str, int]]:
    """Where a job of JOBS has a duration without a unit."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers(inner, f"{at}.{name}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from numbers(inner, f"{at}[{number}]")
    elif isinstance(value, int) and not at.endswith("maxInstances"):
        yield at, value


def with_units(value: Any, unit: str = "ms") -> Any:
    if isinstance(value, dict):
        return {name: inner if name == "maxInstances" else with_units(inner, unit) for name, inner in value.items()}
    if isinstance(value, list):
        return [with_units(inner, unit) for inner in value]
    return f"{value}{unit}" if isinstance(value, int) else value


def refused(written: Mapping[str, Any]) -> dict[str, str]:
    with pytest.raises(JobError) as caught:
        job_from(written)
    return {problem.path: problem.message for problem in caught.value.problems}


@every_job
def test_every_duration_needs_a_unit_and_the_error_shows_two(written: dict[str, Any]) -> None:
    expected = {at: f"{n} has no unit; write {n}s or {n}ms" for at, n in numbers(written["spec"])}
    assert {at: message.removesuffix(", or off") for at, message in refused(written).items()} == expected


def test_no_field_is_forgotten() -> None:
    """Every duration of the definitions has the API server's rule, and a job here that writes a number there."""
    durations = {}
    for kind in KINDS:
        schema = custom_resource_definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for name, field in of_durations(schema["properties"]["spec"]):
            durations[name] = [rule["rule"] for rule in field.get("x-kubernetes-validations", ())]
    assert all(any(rule.startswith("type(self) != int || self == 0") for rule in rules) for rules in durations.values())
    written = {at.rpartition(".")[2] for job in JOBS.values() for at, _ in numbers(job["spec"])}
    assert written == set(durations)


def of_durations(schema: dict[str, Any], name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if "(ns|us|" in schema.get("pattern", ""):
        yield name, schema
    for inner_name, inner in schema.get("properties", {}).items():
        yield from of_durations(inner, inner_name)
    if "items" in schema:
        yield from of_durations(schema["items"], name)


@pytest.mark.parametrize("zero", [0, "0", "-0", "0s"])
def test_nothing_needs_no_unit(zero: Any) -> None:
    assert sessions.load(allowedLateness=zero).spec.allowed_lateness == 0


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (1.5, "1.5 has no unit; write 1.5s"),
        ("30", "30 has no unit; write 30s or 30ms"),
        (-30, "must be more than 0, not the number -30"),
        ("-30", "-30 has no unit; write it like 1h30m, 10s or 250ms"),
        (10**18, "is longer than the longest duration"),
    ],
)
def test_other_numbers_are_named_as_they_are(value: Any, says: str) -> None:
    assert says in refused(sessions.document(gap=value))["spec.gap"]


WRONG = [-30, 30, -1.5, 1.5, 0.0, "0.0", "30", "-30", "1h30", "3d", "-2d", "2d12h", "1.0000000001d", "5min", "", "x"]
PROPOSED = re.compile(r"[-+]?(?:\d+\.?\d*(?:ms|[hms]))+(?![\w.])")


@every_job
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_each_field_accepts_the_durations_that_its_message_proposes(written: dict[str, Any], wrong: Any) -> None:
    """Rules about several fields may have more to say."""
    valid = {**written, "spec": with_units(written["spec"])}
    messages = _messages(_with(valid, {at: wrong for at, _ in numbers(written["spec"])}))
    # A proposal follows the facts, in which the wrong value stands.
    proposals = {at: PROPOSED.findall(message.partition("; ")[2]) for at, message in messages.items()}
    for number in range(max(map(len, proposals.values()), default=0)):
        proposed = {at: durations[number] for at, durations in proposals.items() if number < len(durations)}
        answers = _messages(_with(valid, proposed))
        faults = re.compile("unit|is not a|must (not )?be")
        rejected = {at: answers[at] for at in proposed if faults.search(answers.get(at, ""))}
        assert not rejected, proposed


def _messages(written: Mapping[str, Any]) -> dict[str, str]:
    try:
        job_from(written)
    except JobError as error:
        return {problem.path: problem.message for problem in error.problems}
    return {}


def _with(written: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The job with other values at paths such as `spec.joins[0].interval.lower`."""
    changed = deepcopy(dict(written))
    for at, value in values.items():
        *above, last = [int(step) if step.isdecimal() else step for step in re.findall(r"[^.\[\]]+", at)]
        inner: Any = changed
        for step in above:
            inner = inner[step]
        inner[last] = value
    return changed


def test_a_model_in_python_needs_a_unit_too() -> None:
    with pytest.raises(ValueError, match="30 has no unit; write 30s or 30ms"):
        Watermark(delay=30)
    assert Watermark(delay="30ms").delay == 30


@pytest.mark.parametrize("option", ["join.lower_bound", "join.allowed_lateness"])
def test_options_of_sql_need_a_unit(option: str) -> None:
    sql = f"SELECT o.id FROM orders o JOIN payments p ON o.id = p.order_id WITH ('{option}' = '30')"
    messages = chains.messages_of(chains.document(inputs=[chains.ORDERS, chains.PAYMENTS], sql=sql))
    assert "30 has no unit; write 30s or 30ms" in messages["spec.sql"]


def test_a_number_that_an_api_server_filled_in_is_nobodys_mistake() -> None:
    written = sessions.document(input={**sessions.CLICKS, "watermark": {"delay": "10s", "maxFuture": 86_400_000}})
    assert sessions.parsed(written) == sessions.parsed(
        {**written, "spec": {**written["spec"], "input": sessions.CLICKS}}
    )


# --- a stored job goes on ---------------------------------------------------------------------------------------------


@every_job
def test_a_stored_resource_goes_on_with_a_warning_per_field(written: dict[str, Any]) -> None:
    stored = load_stored(written)
    assert stored.job == parsed(with_units(written))
    assert set(stored.warnings) == {
        f"{at}: {n} has no unit; write {n}s or {n}ms. It counts as milliseconds" for at, n in numbers(written["spec"])
    }


def parsed(resource: Mapping[str, Any]) -> Job:
    return parse_job(json.dumps(resource), "job.json")


def test_a_resource_with_units_has_no_warnings() -> None:
    assert load_stored(sessions.document()) == JobWithWarnings(sessions.load(), ())


def test_other_mistakes_of_a_stored_resource_are_told_alone() -> None:
    with pytest.raises(JobError) as caught:
        load_stored(sessions.document(gap=30, lateData="maybe"))
    assert [problem.path for problem in caught.value.problems] == ["spec.lateData"]


@every_job
def test_a_stored_revision_goes_on_in_its_pod(
    written: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(written))
    with pytest.raises(JobError):
        load_job(path)
    monkeypatch.setenv(STORED_JOB, "true")
    with caplog.at_level(logging.WARNING):
        job = load_job(path)
    assert definition(job) == definition(load_job(tmp_path_with(path, with_units(written))))
    assert [record.message for record in caplog.records] == [
        f"{path}: {warning}" for warning in load_stored(written).warnings
    ]


def test_a_stored_revision_keeps_patterns_of_earlier_releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.yaml"
    job = sessions.document()
    columns = [*sessions.CLICKS["schema"], {"name": "at", "type": "timestamp", "format": "%H:%M:%S"}]
    job["spec"]["input"] = {**sessions.CLICKS, "schema": columns}
    path.write_text(yaml.safe_dump(job))
    with pytest.raises(JobError, match="%H:%M:%S"):
        load_job(path)
    monkeypatch.setenv(STORED_JOB, "true")
    assert load_job(path).inputs


def tmp_path_with(path: Path, written: dict[str, Any]) -> Path:
    other = path.with_name("other.yaml")
    other.write_text(yaml.safe_dump(written))
    return other


def test_a_trace_keeps_plain_numbers(caplog: pytest.LogCaptureFixture) -> None:
    written = deepcopy(sessions.document(gap=30))
    written["spec"] |= {"stateStore": {"memory": {}}}
    written["spec"]["input"] = {**written["spec"]["input"], "watermark": {}}
    rows = [{"user_id": "a", "ts": ts} for ts in (0, 30, 61)]
    traced = trace(written, [{"input": "clicks", "rows": rows}, {"end": True}])
    assert [row["events"] for step in traced for row in step["output"]] == [2, 1]
    assert "spec.gap: 30 has no unit" in caplog.text
    with pytest.raises(JobError, match="30 has no unit"):
        explain(written)
