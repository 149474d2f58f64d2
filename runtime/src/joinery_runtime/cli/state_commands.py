"""`joinery state`: its commands. What they do is in the modules beside it, imported when it is needed."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from cyclopts import App, Parameter

from joinery_runtime.cli.common import Count, Flag, JobFile, load, say

state = App(name="state", help="Look into a job's state, go back in it, migrate, move and delete it.")


@state.command
def epochs(job_file: JobFile, *, after: Count = 0, limit: Count = 1000) -> None:
    """Prints the epoch log, one JSON object per committed epoch: its plan (ranges, watermarks) and its result."""
    from joinery_runtime.cli.state import epoch_lines  # noqa: PLC0415

    for line in epoch_lines(load(job_file), after, limit):
        say(json.dumps(line))


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
    reset_command(load(job_file), name, target, dry_run=dry_run, drop_planned=drop_planned, say=say)


@state.command
def ls(job_file: JobFile) -> None:
    """Prints where the job stands and its live segments."""
    from joinery_runtime.cli.state import listing  # noqa: PLC0415

    say(listing(load(job_file)))
