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
from cyclopts.validators import Number

from joinery_runtime.errors import EnvironmentProblem, JobError, JoineryError
from joinery_runtime.job import StreamJoin, load_job, located
from joinery_runtime.job import explain as explain_job

app = App(name="joinery", help="Streaming joins on Spark, state and offsets together in Postgres.",
          version=version("joinery-runtime"), result_action="return_value")  # fmt: skip
state = App(name="state", help="Look into a job's state and its epoch log, and reset its offsets.")
app.command(state)

JobFile = Annotated[Path, Parameter(help="The job: a StreamJoin as YAML or JSON.")]
Shards = Annotated[int, Parameter(validator=Number(gte=1, lte=4096))]
Count = Annotated[int, Parameter(validator=Number(gte=0))]
Flag = Annotated[bool, Parameter(negative=())]
Stored = dict[str, tuple[str, ...]] | None  # columns that are stored, per input; None without the engine

_GET_ENGINE = "Install joinery-runtime[engine]"


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
    return f"the Python package {error.name} is not installed. {_GET_ENGINE}"


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - the command line's own answer


def _load(job_file: Path) -> StreamJoin:
    return _checked(job_file)[0]


def _checked(job_file: Path) -> tuple[StreamJoin, Stored]:
    """The job, and what its segments keep: to know that, `where` is compiled. Without the engine neither is done."""
    job = load_job(job_file)
    try:
        from joinery_runtime.core.compile import compile_join, stored_columns  # noqa: PLC0415
    except ModuleNotFoundError:
        return job, None
    try:
        return job, stored_columns(compile_join(job))
    except JobError as error:
        raise located(error, job_file) from error


@app.command
def validate(job_file: JobFile) -> None:
    """Checks a job file and reports every mistake at once, each with its path. Exit code 2 when there is one."""
    job, stored = _checked(job_file)
    unchecked = "" if stored is not None or job.step.where is None else f", but `where` was not checked: {_GET_ENGINE}"
    _say(f"{job_file}: valid{unchecked}")


@app.command
def explain(job_file: JobFile) -> None:
    """Prints the plan: inputs, keys, bounds, how long rows are kept, and the state that is to be expected."""
    job, stored = _checked(job_file)
    _say(explain_job(job, stored).render())


@app.command
def run(job_file: JobFile, *, master: str | None = None) -> None:
    """Runs the job until it is stopped (SIGTERM, Ctrl-C: after the running epoch) or all inputs have ended.

    Parameters
    ----------
    master
        Spark master URL. Without it: the job's spark.conf, what spark-submit set, or local[*].
    """
    from joinery_runtime.cli.run import run_command  # noqa: PLC0415

    run_command(_load(job_file), master)


@app.command
def trace(
    job_file: JobFile,
    steps: Path,
    *,
    store: Literal["memory", "postgres"] = "memory",
    shards: Shards | None = None,
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

    for line in trace_command(_load(job_file), steps, store, shards):
        _say(json.dumps(line))


@app.command
def crds(*, folder: Path | None = None) -> None:
    """Prints the CustomResourceDefinitions, for `kubectl apply --server-side -f -`.

    Parameters
    ----------
    folder
        Write one file per kind there instead.
    """
    from joinery_runtime.job.crd import KINDS, custom_resource_definition, file_name, to_yaml  # noqa: PLC0415

    texts = {file_name(kind): to_yaml(custom_resource_definition(kind)) for kind in KINDS}
    if folder is None:
        _say("---\n".join(texts.values()).rstrip("\n"))
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


@state.command
def epochs(job_file: JobFile, *, after: Count = 0, limit: Count = 1000) -> None:
    """Prints the epoch log, one JSON object per committed epoch: its plan (ranges, watermarks) and its result."""
    from joinery_runtime.cli.state import epoch_lines  # noqa: PLC0415

    for line in epoch_lines(_load(job_file), after, limit):
        _say(json.dumps(line))


@state.command
def reset(
    job_file: JobFile,
    *,
    name: Annotated[str, Parameter(name="--input")],
    to: Literal["earliest", "latest"] | None = None,
    to_time: str | None = None,
    to_offset: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
    dry_run: Flag = False,
    drop_planned: Flag = False,
) -> None:
    """Sets where a Kafka input is read on from, and says per partition what is read again or skipped.

    A running driver is fenced. Watermark and state stay as they are.

    Parameters
    ----------
    name
        The input.
    to
        All partitions: the first record that the broker has, or what comes next.
    to_time
        All partitions: the first record whose Kafka timestamp is this or later; RFC 3339 or milliseconds since 1970.
    to_offset
        PARTITION=OFFSET, or TOPIC:PARTITION=OFFSET if the input has several topics; others stay where they are.
    dry_run
        Only say what would change.
    drop_planned
        Drop an epoch that is planned and not committed: rows of it may repeat in a Kafka output.
    """
    from joinery_runtime.cli.reset import reset_command  # noqa: PLC0415
    from joinery_runtime.cli.reset_target import parse_target  # noqa: PLC0415

    target = parse_target(to, to_time, to_offset)
    reset_command(_load(job_file), name, target, dry_run=dry_run, drop_planned=drop_planned, say=_say)


@state.command
def ls(job_file: JobFile) -> None:
    """Prints where the job stands and its live segments."""
    from joinery_runtime.cli.state import listing  # noqa: PLC0415

    _say(listing(_load(job_file)))
