"""Commands and their exit codes: 0 done, 1 failed, 2 the file is wrong, 3 the machine lacks something.

Engine modules are imported inside the commands that need them: `joinery validate` works with the base dependencies.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from joinery_runtime.cli.common import AsJson, JobFile, answer, checked, load, say, stored_by
from joinery_runtime.cli.ending import Stopped, sigterm_stops, writing_ending
from joinery_runtime.cli.state_commands import state
from joinery_runtime.errors import EnvironmentProblem, JoineryError
from joinery_runtime.job import explain as explain_job
from joinery_runtime.job import load_job
from joinery_runtime.job.model.duration import parse_duration
from joinery_runtime.state.embedded import embedded_directory, started_ahead

app = App(name="joinery", help="Streaming joins on Spark, state and offsets together in Postgres.",
          version=version("joinery-runtime"), result_action="return_value")  # fmt: skip
app.command(state)
app.register_install_completion_command()

Shards = Annotated[int, Parameter(validator=Number(gte=1, lte=4096))]

_GET_ENGINE = "Install joinery-runtime[engine]"


def main(tokens: list[str] | None = None) -> None:
    """The console script."""
    try:
        with writing_ending() as report:
            report(app(tokens))
    except Stopped:
        sys.exit(128 + signal.SIGTERM)
    except JoineryError as error:
        print(f"joinery: {error}", file=sys.stderr)  # noqa: T201 - the command line's own answer
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        text = f"the Python package {error.name} is not installed. {_GET_ENGINE}"
        print(f"joinery: {text}", file=sys.stderr)  # noqa: T201
        sys.exit(EnvironmentProblem.exit_code)


@app.command
def validate(job_file: JobFile) -> None:
    """Checks a job file and reports every mistake at once, each with its path. Exit code 2 when there is one."""
    job, stored = checked(job_file)
    unchecked = stored is None and job.has_expressions
    say(f"{job_file}: valid{f', but expressions were not checked: {_GET_ENGINE}' if unchecked else ''}")


@app.command
def explain(job_file: JobFile) -> None:
    """Prints the plan: inputs, keys, bounds, how long rows are kept, and the state that is to be expected."""
    job, stored = checked(job_file)
    say(explain_job(job, stored).render())


@app.command
def run(
    job_file: JobFile,
    *,
    master: str | None = None,
    once: Annotated[bool, Parameter(negative=())] = False,
    status_port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 0,
    status_host: Annotated[str, Parameter(env_var="JOINERY_STATUS_HOST")] = "127.0.0.1",
    stalled_after: str = "15m",
) -> str:
    """Runs the job until it is stopped (SIGTERM, Ctrl-C: after the running epoch) or all inputs have ended.

    Parameters
    ----------
    master
        Spark master URL. Without it: the job's spark.conf, what spark-submit set, or local[*].
    once
        Read to where the inputs end now, commit, and exit; the next run goes on there. No input ends by that: windows
        and unmatched rows stay open. For cron and Airflow.
    status_port
        Where to serve /status, /metrics, /healthz and /readyz; 0: nowhere. With it, a state store that is away at the
        start is waited for.
    status_host
        The address to serve them on. Everybody who reaches it can read them; 0.0.0.0: all interfaces.
    stalled_after
        For how long nothing may move (no epoch, task, poll or retry) until /healthz answers 503.
    """
    stalled_after_ms = _duration("--stalled-after", stalled_after)
    job = load_job(job_file)
    # A new server takes as long as the engine's modules do.
    embedded = job.spec.state_store.kind == "embedded"
    with sigterm_stops(), started_ahead(embedded_directory()) if embedded else nullcontext():
        stored_by(job, job_file)
        from joinery_runtime.cli.run import run_command  # noqa: PLC0415

        return run_command(job, master, status_port or None, status_host, stalled_after_ms, once=once)


def _duration(option: str, text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise JoineryError(f"{option} {text}", facts=str(error)) from error


@app.command
def trace(
    job_file: JobFile,
    steps: Path,
    *,
    store: Literal["memory", "postgres"] = "memory",
    shards: Shards | None = None,
    verbose: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Runs steps through the job's core and prints a line of JSON per step: unit tests for a job.

    Parameters
    ----------
    steps
        A file with one JSON object per line.
    store
        Where state is kept meanwhile; postgres is the job's own or an embedded one, under a name of its own.
    shards
        How many shards; without it, as the job says.
    verbose
        Add stepWatermarks: what each step of the job hands on, per input.
    """
    from joinery_runtime.cli.trace import trace_command  # noqa: PLC0415

    for line in trace_command(load(job_file), steps, store, shards, verbose=verbose):
        say(json.dumps(line))


@app.command
def why(
    job_file: JobFile,
    *,
    key: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
    record: str | None = None,
    until: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    steps: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Says what became of records: in which epoch and under which watermarks each was read, what went out because of
    it, what it waits for, or by which rule it was dropped. Reads the inputs, the epoch log and the state; changes
    nothing.

    Parameters
    ----------
    key
        COLUMN=VALUE, for each column of the key; of sessions COLUMN alone where it has no value.
    record
        One record instead: TOPIC:PARTITION=OFFSET; of a file PATH:0=BYTE.
    until
        Only what was so after this epoch.
    steps
        Ask of a trace: the job's records are those of this file, as of `joinery trace`.
    """
    from joinery_runtime.cli.replay_commands import why_command  # noqa: PLC0415

    found = why_command(load(job_file), key, record, until, steps)
    answer(found.document(), found.lines(), as_json=as_json)


@app.command
def verify(job_file: JobFile, *, epochs: str | None = None, as_json: AsJson = False) -> None:
    """Computes committed epochs again, from the inputs and the epoch log, and compares them with the output, row
    by row. Exit code 1 when a row is missing, extra or different, or none could be judged. Changes nothing.

    Parameters
    ----------
    epochs
        FIRST..LAST, or either of them alone with the dots; without it, all that can be computed again.
    """
    from joinery_runtime.cli.replay_commands import verify_command  # noqa: PLC0415

    found = verify_command(load(job_file), epochs)
    answer(found.document(), found.lines(), as_json=as_json)
    if not found.right:
        raise SystemExit(1)


@app.command
def sql(
    job_file: JobFile,
    query: str,
    *,
    rows: Annotated[int, Parameter(validator=Number(gte=1))] = 100,
    as_json: AsJson = False,
) -> None:
    """Runs a SELECT over what the job has written and what it keeps: `output` (files, a topic or a table), `epochs`
    (the epoch log) and the state's parts (`state_left`, `state_right`, `state_left_2`, ...; `state_sessions`). Of an
    output as much is read as the query needs; the other tables that it names are read into memory. Changes nothing.

    Parameters
    ----------
    query
        In the dialect of polars, which is close to that of Postgres; over `output` alone, where that is a table in
        Postgres, Postgres answers it.
    rows
        How many rows are shown at most on a terminal.
    """
    from joinery_runtime.cli.sql import json_values, run_query, shown  # noqa: PLC0415

    job = load(job_file)
    found, notes = run_query(job, query)
    if as_json or not sys.stdout.isatty():
        for row in found.iter_rows(named=True):
            say(json.dumps(json_values(row)))
    else:
        say(shown(found, rows))
    for note in notes:
        print(f"joinery: {note}", file=sys.stderr)  # noqa: T201 - an answer may be JSON


@app.command
def crds(*, folder: Path | None = None) -> None:
    """Prints the CustomResourceDefinitions, for `kubectl apply --server-side -f -`.

    Parameters
    ----------
    folder
        Write one file per kind there instead.
    """
    from joinery_runtime.job.crd import KINDS, SAVEPOINT, custom_resource_definition, file_name, to_yaml  # noqa: PLC0415

    texts = {file_name(kind): to_yaml(custom_resource_definition(kind)) for kind in (*KINDS, SAVEPOINT)}
    if folder is None:
        say("---\n".join(texts.values()).rstrip("\n"))
        return
    for name, text in texts.items():
        _write(folder / name, text)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(
            f"{path} cannot be written", facts=error.strerror or str(error), todo="Name another --folder"
        ) from error
