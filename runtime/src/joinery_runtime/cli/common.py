"""What the commands share: arguments, reading a job file, and printing an answer."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from joinery_runtime.errors import JobError, SourceError
from joinery_runtime.job import Job, lines_of, load_job, located

JobFile = Annotated[Path, Parameter(help="The job: a StreamJoin or a SessionWindow, as YAML or JSON.")]
Count = Annotated[int, Parameter(validator=Number(gte=0))]
Switch = Annotated[bool, Parameter(negative=())]
AsJson = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON, also on a terminal.")]
PyFiles = Annotated[tuple[str, ...], Parameter(name="--py-files", negative=())]
Stored = dict[str, tuple[str, ...]] | None  # the stored columns, per input; None without the engine


def print_text(text: str) -> None:
    try:
        print(text, flush=True)  # noqa: T201 - the command line's own answer
    except BrokenPipeError:
        # As in `joinery explain job.yaml | head`, the reader has gone. Python would fail again on closing its output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None


def print_answer(document: Mapping[str, Any], text: Iterable[str], *, as_json: bool) -> None:
    """Print an answer: the text on a terminal, one line of JSON elsewhere or with `as_json`."""
    if as_json or not sys.stdout.isatty():
        print_text(json.dumps(document))
    else:
        print_text("\n".join(text))


def imported_files(texts: Sequence[str]) -> AbstractContextManager[tuple[Path, ...]]:
    """Return the files of `--py-files`, see `py_files`."""
    from joinery_runtime.hosts.python_functions import py_files  # noqa: PLC0415 - needs the engine

    return py_files([Path(path) for text in texts for path in text.split(",") if path])


def in_memory(job: Job) -> bool:
    """Return whether the job keeps its state in memory, so that nothing of it outlives the job."""
    return job.spec.state_store.memory is not None


def load(job_file: Path, *, plain_numbers: bool = False) -> Job:
    return load_with_columns(job_file, plain_numbers=plain_numbers)[0]


@contextmanager
def job_with_lines(job_file: Path, *, plain_numbers: bool = False) -> Iterator[Job]:
    """Yield the job, for a command that reads its inputs: see `with_line`."""
    job = load(job_file, plain_numbers=plain_numbers)
    with with_line(job, job_file):
        yield job


def load_with_columns(job_file: Path, *, plain_numbers: bool = False) -> tuple[Job, Stored]:
    """Load the job (see `load_job`), and return it with the columns that its segments store."""
    job = load_job(job_file, plain_numbers=plain_numbers)
    return job, stored_by(job, job_file)


def stored_by(job: Job, job_file: Path) -> Stored:
    """See `stored`. Raises JobError, with its place in the file, if an expression of the job is wrong."""
    try:
        return stored(job)
    except JobError as error:
        raise located(error, job_file) from error


@contextmanager
def with_line(job: Job, job_file: Path) -> Iterator[None]:
    """Add the file and the line to a SourceError of the block whose likely cause is a field of the job."""
    try:
        yield
    except SourceError as error:
        if error.field is None or not job_file.is_file():  # from a pipe the text is gone
            raise
        name, field = error.field
        source = job.repeats.get(name, name)
        index = next(number for number, model in enumerate(job.declared_inputs) if model.name == source)
        lines = lines_of(job_file)
        line = lines.get(f"spec.inputs[{index}].{field}", lines.get(f"spec.input.{field}", 1))
        if line == 1:  # the operator writes a resource into one line
            raise
        summary = f"{job_file}: line {line}: {error.summary[:1].lower()}{error.summary[1:]}"
        raise type(error)(summary, facts=error.facts, todo=error.todo) from error


def stored(job: Job) -> Stored:
    """Return the columns that the job's segments store, which follow from the compiled `where`; None without the
    engine."""
    try:
        from joinery_runtime.core.compile.jobs import compile_job, stored_columns  # noqa: PLC0415
    except ModuleNotFoundError:
        return None
    return stored_columns(compile_job(job))
