from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

from cli.commands import Joinery
from job import chains, sessions
from job.chains import as_of, document, step, time_only, window
from job.resources import DELAYED, edited
from joinery_runtime.cli.app import app
from joinery_runtime.errors import JoineryError
from joinery_runtime.job import Job
from joinery_runtime.job.explain import delay_warnings
from joinery_runtime.job.key_order import order_warnings

EXAMPLES = Path(__file__).parents[2] / "examples"
WITH_WHERE = ("      lateData: drop\n", '      lateData: drop\n      where: "orders.amuont > 10"\n')


def test_a_good_file_is_valid(joinery: Joinery, job_file: Path) -> None:
    job_file.write_text(edited(DELAYED))
    ended = joinery("validate", job_file)
    assert (ended.code, ended.out, ended.err) == (0, f"{job_file}: valid\n", "")


@pytest.mark.parametrize("command", ["validate", "explain"])
def test_an_input_from_kafka_that_names_no_delay_is_warned_about(
    joinery: Joinery, job_file: Path, command: str
) -> None:
    ended = joinery(command, job_file)
    warnings = [line for line in ended.out.splitlines() if "NO DELAY" in line]
    assert (ended.code, len(warnings)) == (0, 1)
    assert warnings[0].startswith("WARNING: NO DELAY on payments: ")


KAFKA = {"file": None, "kafka": {"bootstrapServers": "kafka:9092", "topic": "t"}}
ORDERS, PAYMENTS, RATES = (
    {k: v for k, v in (source | KAFKA).items() if v} for source in (chains.ORDERS, chains.PAYMENTS, chains.RATES)
)
CLICKS = {k: v for k, v in (sessions.CLICKS | KAFKA | {"watermark": None}).items() if v}


@pytest.mark.parametrize(
    ("job", "named"),
    [
        (chains.load(step(), inputs=[ORDERS, PAYMENTS]), ["orders", "payments"]),
        (chains.load(step(), inputs=[ORDERS, chains.PAYMENTS]), ["orders"]),
        (chains.load(step(), inputs=[ORDERS | {"watermark": {"delay": "0s"}}, PAYMENTS]), ["payments"]),
        (chains.load(step(), inputs=[ORDERS | {"watermark": {"idleTimeout": "5m"}}, PAYMENTS]), ["orders", "payments"]),
        (chains.load(step(allowedLateness="1m"), inputs=[ORDERS, PAYMENTS]), []),
        (chains.load(as_of(), inputs=[ORDERS, RATES]), []),
        (sessions.load(input=CLICKS), ["clicks"]),
        (sessions.load(input=CLICKS, allowedLateness="1m"), []),
    ],
)
def test_who_is_warned_about_a_delay(job: Job, named: list[str]) -> None:
    assert [words.split(":")[0] for words in delay_warnings(job)] == [f"NO DELAY on {name}" for name in named]


def into_topic(*key: str, **more: Any) -> Job:
    topic = {"kafka": {"bootstrapServers": "kafka:9092", "topic": "joined", "key": list(key)}}
    return chains.load(step(), output=topic, **more)


@pytest.mark.parametrize(
    ("job", "warned"),
    [
        (into_topic(), False),
        (into_topic("left_id"), False),
        (into_topic("right_order_id", "left_amount"), False),
        (into_topic("id", select=[{"column": "payments.order_id", "as": "id"}]), False),
        (into_topic("left_amount"), True),
        (into_topic("order_id", select=[{"column": "orders.amount", "as": "order_id"}]), True),
        (chains.load(step()), False),
    ],
)
def test_a_key_without_the_columns_of_the_join_is_warned_about(job: Job, warned: bool) -> None:
    words = list(order_warnings(job))
    assert len(words) == warned
    assert all(text.startswith("NO ORDER WITHIN AN EPOCH of records with one key (") for text in words)


def test_every_mistake_is_reported_with_file_line_and_path(joinery: Joinery, job_file: Path) -> None:
    job_file.write_text(
        edited(("eventTime: ts", "eventTime: tz"), ("upper: 1h", "uper: 1h"), ("type: int32", "type: int3"))
    )
    ended = joinery("validate", job_file)
    assert (ended.code, ended.out) == (2, "")
    head, *problems = ended.err.splitlines()
    assert head.startswith(f"joinery: {job_file}: {len(problems)} problem(s)")
    paths = {problem.split(": ")[1] for problem in problems}
    assert paths >= {"spec.inputs[0].eventTime", "spec.joins[0].interval.uper", "spec.inputs[0].schema[1].type"}
    lines = job_file.read_text().splitlines()
    for problem in problems:
        number, path = problem.strip().removeprefix("line ").split(": ")[:2]
        assert path.rpartition(".")[2] in lines[int(number) - 1] or "interval" in lines[int(number) - 1]


@pytest.mark.parametrize("command", ["validate", "explain", "run"])
def test_a_predicate_that_does_not_fit_is_reported_like_any_mistake(
    joinery: Joinery, job_file: Path, command: str
) -> None:
    job_file.write_text(edited(WITH_WHERE))
    line = job_file.read_text().splitlines().index('      where: "orders.amuont > 10"') + 1
    ended = joinery(command, job_file)
    assert (ended.code, ended.out) == (2, "")
    assert f"{job_file}: 1 problem(s)" in ended.err
    assert f"line {line}: spec.joins[0].where:" in ended.err
    assert "unknown column 'orders.amuont'" in ended.err


def test_a_predicate_in_one_of_several_documents(joinery: Joinery, job_file: Path) -> None:
    job_file.write_text("apiVersion: v1\nkind: ConfigMap\n---\n" + edited(WITH_WHERE))
    line = job_file.read_text().splitlines().index('      where: "orders.amuont > 10"') + 1
    assert f"line {line}: spec.joins[0].where:" in joinery("validate", job_file).err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("spec: [", ["line ", "not readable YAML"]),
        ("", ["the file is empty"]),
        ("apiVersion: joinery.dev/v1alpha1\nkind: SessionWindw\n", ["line 2: kind", "did you mean 'SessionWindow'?"]),
    ],
)
def test_what_is_no_job(joinery: Joinery, job_file: Path, text: str, says: list[str]) -> None:
    job_file.write_text(text)
    ended = joinery("validate", job_file)
    assert ended.code == 2
    assert not [words for words in [str(job_file), *says] if words not in ended.err]


def test_a_file_that_is_not_there(joinery: Joinery, tmp_path: Path) -> None:
    ended = joinery("validate", tmp_path / "nope.yaml")
    assert (ended.code, ended.out) == (2, "")
    assert str(tmp_path / "nope.yaml") in ended.err
    assert "No such file" in ended.err


@pytest.mark.parametrize("name", ["orders-payments.yaml", "orders-shipments-files.yaml"])
def test_explain_tells_the_plan(joinery: Joinery, name: str) -> None:
    ended = joinery("explain", EXAMPLES / name)
    assert (ended.code, ended.err) == (0, "")
    for words in ("inner interval join", "keys: orders.order_id", "bound: ", "rows are kept until", "expected state"):
        assert words in ended.out


TWO_STEPS = (step(), step("items", where="items.n > payments.m"))


@pytest.mark.parametrize("command", ["validate", "explain"])
def test_expressions_of_a_chain_are_reported_at_their_step(joinery: Joinery, tmp_path: Path, command: str) -> None:
    job_file = tmp_path / "chain.yaml"
    job_file.write_text(json.dumps(document(*TWO_STEPS), indent=1))
    line = job_file.read_text().splitlines().index('    "where": "items.n > payments.m"') + 1
    ended = joinery(command, job_file)
    assert (ended.code, ended.out) == (2, "")
    assert f"line {line}: spec.joins[1].where:" in ended.err
    assert "unknown column 'payments.m'" in ended.err


def test_an_expression_of_the_select_list_that_does_not_fit(joinery: Joinery, tmp_path: Path) -> None:
    job_file = tmp_path / "chain.yaml"
    select = [{"column": "orders.id"}, {"expression": "orders.id + 1", "as": "more"}]
    job_file.write_text(json.dumps(document(step(), select=select), indent=1))
    ended = joinery("validate", job_file)
    assert (ended.code, ended.out) == (2, "")
    assert "spec.select[1].expression:" in ended.err


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (
            [step(type="left"), step("items")],
            ["a chain of 2 joins", "step 2: inner interval join", "orders + payments"],
        ),
        ([window(tumbling="1h")], ["inner tumbling window join", "window: 1h long", "rows are kept until"]),
        ([window(session={"gap": "5m"})], ["inner session window join", "longer than 5m"]),
        ([as_of()], ["inner as-of join", "table: the version of rates", "1h [historyRetention]"]),
        ([time_only()], ["keys: none, a join on time only", "all rows of payments (broadcast)"]),
    ],
)
def test_explain_tells_every_form(joinery: Joinery, tmp_path: Path, steps: list[Any], says: list[str]) -> None:
    job_file = tmp_path / "job.yaml"
    job_file.write_text(json.dumps(document(*steps)))
    ended = joinery("explain", job_file)
    assert (ended.code, ended.err) == (0, "")
    assert [words for words in says if words not in ended.out] == []


@pytest.mark.parametrize("command", ["validate", "explain"])
@pytest.mark.parametrize(
    ("more", "path", "words"),
    [
        ({"where": "clicks.prize > 1"}, "spec.where", "unknown column 'clicks.prize'"),
        ({"where": "price"}, "spec.where", "is not a condition"),
        ({"compute": [{"expression": "LOWER(qty)", "as": "x"}]}, "spec.compute[0].expression", "LOWER"),
        ({"compute": [{"expression": f"{10**40}", "as": "x"}]}, "spec.compute[0].expression", "no column can hold"),
        (
            {
                "compute": [{"expression": "LOWER(page)", "as": "x"}],
                "aggregates": [sessions.aggregate_call("sum", "x")],
            },
            "spec.aggregates[0].column",
            "sum takes numbers, and 'x' is string",
        ),
    ],
)
def test_expressions_of_sessions_are_reported_at_their_place(
    joinery: Joinery, tmp_path: Path, command: str, more: dict[str, Any], path: str, words: str
) -> None:
    job_file = tmp_path / "sessions.yaml"
    job_file.write_text(json.dumps(sessions.document(**more), indent=1))
    ended = joinery(command, job_file)
    assert (ended.code, ended.out) == (2, "")
    assert f": {path}: " in ended.err
    assert words in ended.err
    assert "line " in ended.err


def test_an_expression_in_the_sql_of_sessions_is_reported_at_the_sql(joinery: Joinery, tmp_path: Path) -> None:
    job_file = tmp_path / "sessions.yaml"
    sql = "SELECT user_id, SUM(LOWER(page)) AS n FROM clicks GROUP BY user_id, SESSION(ts, INTERVAL '30' SECOND)"
    job_file.write_text(json.dumps(sessions.in_sql(sql), indent=1))
    ended = joinery("validate", job_file)
    assert (ended.code, ended.out) == (2, "")
    assert "spec.sql: line 1, column 21, `LOWER(page)`: sum takes numbers, and 'LOWER(page)' is string" in ended.err


def test_sessions_are_valid_and_explained(joinery: Joinery, tmp_path: Path) -> None:
    job_file = tmp_path / "sessions.yaml"
    job_file.write_text(json.dumps(sessions.document(where="qty > 1")))
    assert joinery("validate", job_file).out == f"{job_file}: valid\n"
    ended = joinery("explain", job_file)
    assert (ended.code, ended.err) == (0, "")
    for words in ("clicks: sessions of clicks", "groups: user_id", "emitted: each session once", "expected state"):
        assert words in ended.out


def test_explain_counts_only_what_is_stored(joinery: Joinery, tmp_path: Path) -> None:
    """customer_id goes out, so it is stored; without it in `select` a row is smaller."""
    text = (EXAMPLES / "orders-payments.yaml").read_text()
    full, less = tmp_path / "whole.yaml", tmp_path / "less.yaml"
    full.write_text(text)
    less.write_text(text.replace("    - {column: orders.customer_id}\n", ""))
    assert _row_bytes(joinery("explain", less).out) < _row_bytes(joinery("explain", full).out)


def _row_bytes(explanation: str) -> int:
    return int(explanation.partition("rows of about ")[2].split(" ")[0])


def commands(group: App, name: str = "joinery") -> Iterator[tuple[str, App]]:
    for word in group:
        if not word.startswith("-"):
            yield f"{name} {word}", group[word]
            yield from commands(group[word], f"{name} {word}")


def test_help_describes_every_option() -> None:
    options = {
        f"{name} {option.name}": option.parameter.help
        for name, command in commands(app)
        if command.default_command is not None
        for option in command.assemble_argument_collection(parse_docstring=True)
    }
    assert "joinery state epochs --limit" in options
    assert [name for name, text in options.items() if not text] == []


def test_help_names_every_command(joinery: Joinery) -> None:
    ended = joinery("--help")
    assert ended.code == 0
    assert not [name for name in ("run", "validate", "explain", "trace", "state", "--version") if name not in ended.out]


def test_version(joinery: Joinery) -> None:
    assert joinery("--version").out.strip() == version("joinery-runtime")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bogus"], "bogus"),
        (["validate"], "requires an argument"),
        (["trace", "job.yaml", "steps.jsonl", "--shards", "0"], "Must be >= 1"),
        (["trace", "job.yaml", "steps.jsonl", "--store", "oracle"], "postgres"),
        (["state", "epochs", "job.yaml", "--limit", "-1"], "Must be >= 0"),
        (["run", "job.yaml", "--shards", "2"], "--shards"),
    ],
)
def test_a_command_that_is_none_is_a_usage_error(joinery: Joinery, arguments: list[str], says: str) -> None:
    ended = joinery(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err


def test_an_error_of_the_job_ends_with_1(joinery: Joinery, job_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise JoineryError("what happened", facts="the facts", todo="What to do")

    monkeypatch.setattr("joinery_runtime.cli.run.run_job", fail)
    ended = joinery("run", job_file)
    assert (ended.code, ended.out, ended.err) == (1, "", "joinery: what happened: the facts. What to do\n")


def test_an_answer_that_nobody_reads_on_ends_quietly(job_file: Path) -> None:
    """`joinery explain job.yaml | head -1`"""
    reading, writing = os.pipe()
    os.close(reading)
    command = [Path(sys.executable).with_name("joinery"), "explain", job_file]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")
