"""`joinery why` and `joinery verify`: where the log and the records come from, the job's own or those of a trace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from joinery_runtime.cli.state import durable, record_of, without_epochs
from joinery_runtime.cli.trace import read_steps
from joinery_runtime.cli.verify import Verdict, verify
from joinery_runtime.cli.why import Answer, explain_records
from joinery_runtime.errors import JoineryError
from joinery_runtime.hosts.stores import OpenStore, open_store
from joinery_runtime.hosts.trace import run_trace
from joinery_runtime.hosts.trace_environment import StepInputs
from joinery_runtime.hosts.trace_steps import StepLog, rows_by_input
from joinery_runtime.hosts.worker_builder import JobInputs
from joinery_runtime.job import Job, with_stored_names
from joinery_runtime.state.memory import MemoryStore

_PLACE = re.compile(r"(?P<topic>.+):(?P<partition>\d+)=(?P<offset>\d+)")

_EPOCHS = re.compile(r"(\d*)\.\.(\d*)")


def why_command(job: Job, key: Sequence[str], record: str | None, until: int | None, steps: Path | None) -> Answer:
    """Raises JoineryError that says what is wrong with the question, or why there is no answer."""
    if bool(key) == (record is not None):
        raise JoineryError("It is not clear what is asked for", todo="Give either --key COLUMN=VALUE or --record")
    at = None if record is None else _parse_position(record)
    if steps is not None:
        return _why_in_trace(job, steps, key, at, until)
    with _reading(job) as (filled, opened, inputs):
        return explain_records(filled, opened.store, inputs, key, at, until)


def verify_command(job: Job, epochs: str | None) -> Verdict:
    """`epochs` is FIRST..LAST, either may be left out."""
    match = _EPOCHS.fullmatch(epochs or "..")
    first, last = (int(text) if text else None for text in match.groups()) if match is not None else (None, None)
    if match is None or (first is not None and last is not None and first > last):
        raise JoineryError(f"--epochs {epochs} are no epochs", todo="Give FIRST..LAST, FIRST.. or ..LAST")
    with _reading(job) as (filled, opened, inputs):
        return verify(filled, opened.store, inputs, first, last, opened.address)


@contextmanager
def _reading(job: Job) -> Iterator[tuple[Job, OpenStore, JobInputs]]:
    """The job with its secrets, its store and its inputs. Raises JoineryError if there is no state of the job."""
    job = durable(job)
    with open_store(job, lambda _: None) as opened, closing(JobInputs(job)) as inputs:
        if not (record := record_of(job, opened.store)).epoch:
            raise without_epochs(record)
        yield with_stored_names(job, record.definition), opened, inputs


def _why_in_trace(
    job: Job, steps: Path, key: Sequence[str], at: tuple[str, int, int] | None, until: int | None
) -> Answer:
    store, trace_steps = MemoryStore(), [step for _, step in read_steps(steps)]
    for _ in run_trace(job, trace_steps, store):
        """What the steps put out is asked for afterwards."""
    logs = {side.name: StepLog(side) for side in job.inputs}
    for step in trace_steps:
        for name, rows in rows_by_input(step).items():
            logs[name].append(rows)
    return explain_records(job, store, StepInputs(job, logs), key, at, until)


def _parse_position(text: str) -> tuple[str, int, int]:
    match = _PLACE.fullmatch(text)
    if match is None:
        raise JoineryError(
            f"--record {text} names no record",
            facts="a record is TOPIC:PARTITION=OFFSET, of a file PATH:0=BYTE, of a trace INPUT:PARTITION=NUMBER",
            todo="Take it from a dead letter, from `joinery state show`, or from the topic",
        )
    return match["topic"], int(match["partition"]), int(match["offset"])
