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

from joinery_runtime.cli.common import (
    AsJson,
    JobFile,
    PyFiles,
    Switch,
    imported_files,
    job_with_lines,
    load,
    load_with_columns,
    print_answer,
    print_text,
    stored_by,
    with_line,
)
from joinery_runtime.cli.ending import Stopped, sigterm_stops, writing_ending
from joinery_runtime.cli.state_commands import state
from joinery_runtime.errors import EnvironmentProblem, JobError, JoineryError, Problem
from joinery_runtime.job import explain as explain_job
from joinery_runtime.job import load_job
from joinery_runtime.job.explain import delay_warnings, flowchart, update_warnings
from joinery_runtime.job.key_order import order_warnings
from joinery_runtime.job.model.duration import parse_duration
from joinery_runtime.state.embedded import embedded_directory, start_ahead

app = App(name="joinery", help="Streaming joins on Spark, state and offsets together in Postgres.",
          version=version("joinery-runtime"), result_action="return_value")  # fmt: skip
app.command(state)
app.register_install_completion_command()

Shards = Annotated[int, Parameter(validator=Number(gte=1, lte=4096))]

_GET_ENGINE = "Install joinery-runtime[engine]"


def main(tokens: list[str] | None = None) -> None:
    """Run the console script."""
    try:
        words = sys.argv[1:] if tokens is None else tokens
        for option in ("-", "-f"):
            if option in words:
                rule = (
                    "a job is named by its path alone, /dev/stdin is standard input: joinery run /dev/stdin < job.yaml"
                )
                raise JobError(option, [Problem("(file)", rule)])
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
    """Check a job file and report all mistakes at once, each with its path. Exit code 2 if there is one."""
    job, stored = load_with_columns(job_file)
    unchecked = stored is None and job.has_expressions
    print_text(f"{job_file}: valid{f', but expressions were not checked: {_GET_ENGINE}' if unchecked else ''}")
    for text in (*update_warnings(job), *delay_warnings(job), *order_warnings(job)):
        print_text(f"WARNING: {text}")


@app.command
def explain(job_file: JobFile, *, sample: Switch = False, mermaid: Switch = False) -> None:
    """Print the plan: inputs, keys, bounds, how long each side is kept, and the expected size of the state.

    Parameters
    ----------
    mermaid
        Print a flowchart of the job in Mermaid's language instead, which GitHub, GitLab and many editors draw.
    sample
        Also read some records of each input (the newest of a topic, the first of files), and propose a watermark.delay
        from how far they are out of order. Joins no consumer group.
    """
    job, stored = load_with_columns(job_file)
    print_text(flowchart(job) if mermaid else explain_job(job, stored).render())
    if sample:
        from joinery_runtime.hosts.secrets import with_secrets  # noqa: PLC0415
        from joinery_runtime.inspect.sample import sample as sample_inputs  # noqa: PLC0415

        with with_line(job, job_file):
            for disorder in sample_inputs(with_secrets(job)):
                print_text(f"SAMPLE: {disorder.words()}")


@app.command
def run(
    job_file: JobFile,
    *,
    master: str | None = None,
    local: Annotated[bool, Parameter(negative=())] = False,
    once: Annotated[bool, Parameter(negative=())] = False,
    status_port: Annotated[int | None, Parameter(validator=Number(gte=0, lte=65535))] = None,
    status_host: Annotated[str, Parameter(env_var="JOINERY_STATUS_HOST")] = "127.0.0.1",
    stalled_after: str = "15m",
    py_files: PyFiles = (),
) -> str:
    """Run the job until all inputs have ended, or until SIGTERM or Ctrl-C (after the running epoch).

    Parameters
    ----------
    master
        Spark master URL. Default: the job's spark.conf, then what spark-submit set, then local[*].
    local
        Run all epochs in this process, without Spark and Java: for tries, tests and small jobs.
    once
        Read what is there now, commit, and exit, for cron and Airflow. The next run continues from there. Inputs do not
        end, so windows and unmatched rows stay open.
    status_port
        Port for the job's page, /status, /metrics, /healthz and /readyz. Default: a free one, which the first lines
        name; 0: none. With a port of your own, the job also waits for a state store that is down at the start.
    status_host
        Address of that port; 0.0.0.0: all interfaces. Whoever can reach it can read the status.
    stalled_after
        /healthz answers 503 after this long without an epoch, task, poll or retry.
    py_files
        Modules (.py) and archives (.zip, .whl, .egg) that the job's Python functions are imported from, here and in
        Spark's workers. Repeat the option, or write commas.
    """
    try:
        stalled_after_ms = parse_duration(stalled_after)
    except ValueError as error:
        raise JoineryError(f"--stalled-after {stalled_after}", facts=str(error)) from error
    if local and master is not None:
        raise EnvironmentProblem(
            "joinery run was given --local and --master",
            facts=f"with --local, all epochs run in this process and not on {master}",
            todo="Leave one of the two out",
        )
    job = load_job(job_file)
    # A new server takes as long as the engine's modules do.
    embedded = job.spec.state_store.kind == "embedded"
    with sigterm_stops(), start_ahead(embedded_directory()) if embedded else nullcontext() as server:
        stored_by(job, job_file)
        from joinery_runtime.cli.run import check_master, run_command, share_imports  # noqa: PLC0415

        if not local:
            check_master(job, job_file, master)
        shared = nullcontext() if local else share_imports(job, master, server)
        with shared, with_line(job, job_file), imported_files(py_files) as copies:
            return run_command(
                job, master, status_port, status_host, stalled_after_ms, once=once, local=local, py_files=copies
            )


@app.command
def trace(
    job_file: JobFile,
    steps: Path,
    *,
    store: Literal["memory", "postgres"] = "memory",
    shards: Shards | None = None,
    verbose: Annotated[bool, Parameter(negative=())] = False,
    py_files: PyFiles = (),
) -> None:
    """Run steps through the job's core and print one line of JSON per step: unit tests for a job.

    Parameters
    ----------
    steps
        A file with one JSON object per line.
    store
        Where to keep the state of the steps. postgres: the job's own database, or an embedded one; the steps have a job
        name of their own there.
    shards
        Number of shards. Default: that of the job.
    verbose
        Add stepWatermarks: the watermarks that each step of the job passes on, per input.
    py_files
        As in `joinery run`.
    """
    from joinery_runtime.cli.replay_commands import trace_command  # noqa: PLC0415

    job = load(job_file, plain_numbers=True)
    with imported_files(py_files):
        for line in trace_command(job, steps, store, shards, verbose=verbose):
            print_text(json.dumps(line))


@app.command
def why(
    job_file: JobFile,
    *,
    key: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
    record: str | None = None,
    until: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    steps: Path | None = None,
    as_json: AsJson = False,
    py_files: PyFiles = (),
) -> None:
    """Explain what happened to records: the epoch and watermarks under which each was read, the rows it produced, what
    it waits for, or the rule that dropped it. Reads the inputs, the epoch log and the state; changes nothing.

    Parameters
    ----------
    key
        COLUMN=VALUE for each column of the key. In sessions, COLUMN alone means null.
    record
        One record instead of a key: TOPIC:PARTITION=OFFSET, or PATH:0=BYTE for a file.
    until
        Ignore later epochs: answer as of the commit of this one.
    steps
        Take the records from this file of steps, as `joinery trace` does, instead of the inputs.
    py_files
        As in `joinery run`.
    """
    from joinery_runtime.cli.replay_commands import why_command  # noqa: PLC0415

    with job_with_lines(job_file, plain_numbers=steps is not None) as job, imported_files(py_files):
        explanation = why_command(job, key, record, until, steps)
    print_answer(explanation.document(), explanation.lines(), as_json=as_json)


@app.command
def verify(job_file: JobFile, *, epochs: str | None = None, as_json: AsJson = False, py_files: PyFiles = ()) -> None:
    """Recompute committed epochs from the inputs and the epoch log, and compare each row with the output. Exit code 1
    if a row is missing, extra or different, or if no row could be compared. Changes nothing.

    Parameters
    ----------
    epochs
        FIRST..LAST, FIRST.. or ..LAST. Default: all epochs that can be recomputed.
    py_files
        As in `joinery run`.
    """
    from joinery_runtime.cli.replay_commands import verify_command  # noqa: PLC0415

    with job_with_lines(job_file) as job, imported_files(py_files):
        verdict = verify_command(job, epochs)
    print_answer(verdict.document(), verdict.lines(), as_json=as_json)
    if not verdict.right:
        raise SystemExit(1)


@app.command
def sql(
    job_file: JobFile,
    query: str,
    *,
    rows: Annotated[int, Parameter(validator=Number(gte=1))] = 100,
    as_json: AsJson = False,
) -> None:
    """Query a job's output and state with SELECT. Tables: `output`, `epochs` (the epoch log), and the state as
    `state_left`, `state_right`, `state_left_2`, ... or `state_sessions`. Reads only what the query needs of the output,
    and loads the other tables into memory. Changes nothing.

    Parameters
    ----------
    query
        SQL of Polars, which is close to that of Postgres. Postgres itself answers a query of `output` alone if the
        output is a table in Postgres.
    rows
        Maximum number of rows to show on a terminal.
    """
    from joinery_runtime.inspect.sql import json_rows, run_query, shown  # noqa: PLC0415

    job = load(job_file)
    frame, notes = run_query(job, query)
    if as_json or not sys.stdout.isatty():
        for row in json_rows(frame):
            print_text(json.dumps(row))
    else:
        print_text(shown(frame, rows))
    for note in notes:
        print(f"joinery: {note}", file=sys.stderr)  # noqa: T201 - an answer may be JSON


@app.command
def crds(*, folder: Path | None = None) -> None:
    """Print the CustomResourceDefinitions, for `kubectl apply --server-side -f -`.

    Parameters
    ----------
    folder
        Write one file per kind to this folder instead.
    """
    from joinery_runtime.job.crd import RESOURCE_KINDS, custom_resource_definition, file_name, to_yaml  # noqa: PLC0415

    texts = {file_name(kind): to_yaml(custom_resource_definition(kind)) for kind in RESOURCE_KINDS}
    if folder is None:
        print_text("---\n".join(texts.values()).rstrip("\n"))
        return
    for name, text in texts.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise EnvironmentProblem(
                f"{path} cannot be written", facts=error.strerror or str(error), todo="Name another --folder"
            ) from error
