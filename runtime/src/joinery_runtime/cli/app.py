"""Commands and their exit codes: 0 done, 1 failed, 2 the file is wrong, 3 the machine lacks something.

Engine modules are imported inside the commands that need them: `joinery validate` works with the base dependencies.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from joinery_runtime.errors import EnvironmentProblem, JoineryError
from joinery_runtime.job import StreamJoin, load_job
from joinery_runtime.job import explain as explain_job

app = App(name="joinery", help="Streaming joins on Spark, state and offsets together in Postgres.",
          version=version("joinery-runtime"), result_action="return_value")  # fmt: skip
state = App(name="state", help="Look into a job's state and its epoch log.")
app.command(state)

JobFile = Annotated[Path, Parameter(help="The job: a StreamJoin as YAML or JSON.")]


def main(tokens: list[str] | None = None) -> None:
    """The console script."""
    try:
        app(tokens)
    except JoineryError as error:
        print(f"joinery: {error}", file=sys.stderr)  # noqa: T201 - the command line's own answer
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        print(f"joinery: {_missing(error)}", file=sys.stderr)  # noqa: T201
        sys.exit(EnvironmentProblem.exit_code)


def _missing(error: ModuleNotFoundError) -> str:
    return f"the Python package {error.name} is not installed. Install joinery-runtime[engine] to run jobs"


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - the command line's own answer


@app.command
def validate(job_file: JobFile) -> None:
    """Checks a job file and reports every mistake at once, each with its path. Exit code 2 when there is one."""
    job = load_job(job_file)
    unchecked = "" if _stored(job) is not None or job.step.where is None else ", but `where` was not checked"
    _say(f"{job_file}: valid{unchecked}")


def _stored(job: StreamJoin) -> dict[str, tuple[str, ...]] | None:
    """What the job's segments keep, or None where the engine is not installed: then `explain` counts every column."""
    try:
        from joinery_runtime.core.compile import compile_join, stored_columns  # noqa: PLC0415
    except ModuleNotFoundError:
        return None
    return stored_columns(compile_join(job))


@app.command
def explain(job_file: JobFile) -> None:
    """Prints the plan: inputs, keys, bounds, how long rows are kept, and the state that is to be expected."""
    job = load_job(job_file)
    _say(explain_job(job, _stored(job)).render())


@app.command
def run(job_file: JobFile, *, master: str | None = None) -> None:
    """Runs the job until it is stopped (SIGTERM, Ctrl-C: after the running epoch) or all inputs have ended.

    Parameters
    ----------
    master
        Spark master URL. Without it: the job's spark.conf, what spark-submit set, or local[*].
    """
    from joinery_runtime.cli.run import run_command  # noqa: PLC0415

    run_command(load_job(job_file), master)


@app.command
def trace(
    job_file: JobFile,
    steps: Path,
    *,
    store: Literal["memory", "postgres"] = "memory",
    shards: int | None = None,
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
    """
    from joinery_runtime.cli.trace import trace_command  # noqa: PLC0415

    for line in trace_command(load_job(job_file), steps, store, shards):
        _say(json.dumps(line))


@state.command
def epochs(job_file: JobFile, *, after: int = 0, limit: int = 1000) -> None:
    """Prints the epoch log, one JSON object per committed epoch: its plan (ranges, watermarks) and its result."""
    from joinery_runtime.cli.state import epoch_lines  # noqa: PLC0415

    for line in epoch_lines(load_job(job_file), after, limit):
        _say(json.dumps(line))


@state.command
def ls(job_file: JobFile) -> None:
    """Prints where the job stands and its live segments."""
    from joinery_runtime.cli.state import listing  # noqa: PLC0415

    _say(listing(load_job(job_file)))
