"""`joinery state`: its commands. What they do is in the modules beside it, imported when it is needed."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from joinery_runtime.cli.common import (
    AsJson,
    Count,
    JobFile,
    Switch,
    in_memory,
    job_with_lines,
    load,
    print_answer,
    print_text,
)
from joinery_runtime.errors import JoineryError
from joinery_runtime.job import Job

state = App(name="state", help="Inspect, reset, restore, migrate, move or delete a job's state.")


@state.command
def epochs(job_file: JobFile, *, after: Count = 0, limit: Count = 1000, as_json: AsJson = False) -> None:
    """Print the epoch log: on a terminal a line for each committed epoch; elsewhere one JSON object each, with its plan
    (ranges, watermarks) and its result.

    Parameters
    ----------
    after
        Start after this epoch.
    limit
        Maximum number of epochs, oldest first.
    """
    from joinery_runtime.inspect.stored_state import epoch_line, epoch_log, epoch_text  # noqa: PLC0415

    log, none_yet = epoch_log(load(job_file), after, limit)
    if none_yet is not None:
        print(none_yet, file=sys.stderr)  # noqa: T201 - an empty log is no error
    for entry in log:
        print_text(json.dumps(epoch_line(entry)) if as_json or not sys.stdout.isatty() else epoch_text(entry))


@state.command
def reset(
    job_file: JobFile,
    *,
    name: Annotated[str | None, Parameter(name="--input")] = None,
    to: Literal["earliest", "latest"] | None = None,
    to_time: str | None = None,
    to_offset: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
    watermark: str | None = None,
    dry_run: Switch = False,
    drop_planned: Switch = False,
) -> None:
    """Reset the offsets of a Kafka input and print, per partition, what is read again or skipped. With --watermark,
    lower watermarks instead; with --drop-planned alone, only drop the planned epoch.

    Fences a running driver. Does not change the state.

    Parameters
    ----------
    name
        The input to reset.
    to
        All partitions: the first record that the broker has, or the next one to come.
    to_time
        All partitions: the first record with this Kafka timestamp or a later one; RFC 3339 or milliseconds since 1970.
    to_offset
        PARTITION=OFFSET, or TOPIC:PARTITION=OFFSET if the input has several topics. Other partitions do not change.
    watermark
        [INPUT=]TIME: lower the watermark of this input, or of all, to this time. Evicted rows do not come back.
    dry_run
        Print what would change, and change nothing.
    drop_planned
        Drop the epoch that is planned and not committed. Its rows may repeat in a Kafka output.
    """
    from joinery_runtime.inspect.admin.reset import drop_plan_command, reset_command, reset_watermark_command  # noqa: PLC0415
    from joinery_runtime.inspect.admin.reset_target import parse_target  # noqa: PLC0415

    if watermark is not None and (name, to, to_time, to_offset) == (None, None, None, ()):
        reset_watermark_command(load(job_file), watermark, dry_run=dry_run, drop_planned=drop_planned, say=print_text)
        return
    if drop_planned and (name, to, to_time, to_offset, watermark) == (None, None, None, (), None):
        drop_plan_command(load(job_file), dry_run=dry_run, say=print_text)
        return
    if watermark is not None or name is None:
        raise JoineryError(
            "It is not clear what is to be reset",
            todo="Give --input with one of --to, --to-time and --to-offset, or --watermark [INPUT=]TIME alone, or "
            "--drop-planned alone",
        )
    target = parse_target(to, to_time, to_offset)
    reset_command(load(job_file), name, target, dry_run=dry_run, drop_planned=drop_planned, say=print_text)


@state.command
def ls(job_file: JobFile | None = None) -> None:
    """Print the job's progress and its live segments. Without a job, list the jobs whose state is in the embedded
    Postgres."""
    from joinery_runtime.inspect.stored_state import embedded_listing, listing  # noqa: PLC0415

    print_text(embedded_listing() if job_file is None else listing(load(job_file)))


@state.command
def orphans(
    *,
    dsn: str | None = None,
    schema: str = "joinery",
    resources: Path | None = None,
    cluster: str | None = None,
    as_json: AsJson = False,
) -> None:
    """List the states in a database, and which of them no resource of a cluster uses. Changes nothing.

    Pipe all jobs of the cluster into it: kubectl get streamjoins,sessionwindows -A -o json. Without them, it prints
    what the database alone tells: whose each state is, and when it was last written.

    Parameters
    ----------
    dsn
        DSN of the database. Better in JOINERY_STATE_DSN, which no list of processes shows.
    schema
        Schema of the state store.
    resources
        File with the jobs of a cluster as kubectl prints them in JSON; /dev/stdin is standard input.
    cluster
        The cluster's name in state stores: the uid of its namespace kube-system, unless the chart sets `cluster`.
        Default: that of the states whose owner is among the resources.
    """
    from joinery_runtime.inspect.admin.orphans import DSN_VARIABLE, list_states, read_resources  # noqa: PLC0415

    address = dsn or os.environ.get(DSN_VARIABLE)
    if not address:
        raise JoineryError("No database is named", todo=f"Give --dsn DSN, or set {DSN_VARIABLE}")
    listing = list_states(address, schema, None if resources is None else read_resources(resources), cluster)
    print_answer(listing.document(), listing.lines(), as_json=as_json)


@state.command
def show(
    job_file: JobFile,
    *,
    key: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())],
    step: Count | None = None,
    as_json: AsJson = False,
) -> None:
    """Print the rows or sessions that the state has for a key, with their times and when each will be evicted.

    Parameters
    ----------
    key
        COLUMN=VALUE for each column of the key. In sessions, COLUMN alone means null.
    step
        Only this step of the job; 1 is the first. Default: all steps that have this key.
    """
    from joinery_runtime.inspect.state_show import show as show_rows  # noqa: PLC0415
    from joinery_runtime.inspect.stored_state import open_durable  # noqa: PLC0415

    job = load(job_file)
    with open_durable(job) as store:
        shown = show_rows(job, store, key, step)
    print_answer(shown.document(), shown.lines(), as_json=as_json)


@state.command
def stats(job_file: JobFile, *, as_json: AsJson = False) -> None:
    """Print the size of the state, what the next epoch evicts, the plan, and the savepoints."""
    from joinery_runtime.inspect.state_stats import stats as stats_of  # noqa: PLC0415
    from joinery_runtime.inspect.stored_state import open_durable  # noqa: PLC0415

    job = load(job_file)
    with open_durable(job) as store:
        figures = stats_of(job, store)
    print_answer(figures.document(), figures.lines(), as_json=as_json)


@state.command
def savepoint(
    job_file: JobFile,
    name: str | None = None,
    *,
    listing: Annotated[bool, Parameter(name="--list", negative=())] = False,
    delete: Switch = False,
    idempotent: Switch = False,
    as_json: AsJson = False,
) -> None:
    """Create a savepoint: pin the current state under a name. Copies nothing, and does not disturb a running driver.

    Parameters
    ----------
    name
        Name of the savepoint.
    listing
        List all savepoints instead.
    delete
        Delete the savepoint, and the segments that nothing else needs.
    idempotent
        Succeed if the savepoint exists already or, with --delete, if there is none.
    """
    from joinery_runtime.cli.ending import leave_answer  # noqa: PLC0415
    from joinery_runtime.hosts.stores import require_own_state  # noqa: PLC0415
    from joinery_runtime.inspect.admin import savepoints  # noqa: PLC0415
    from joinery_runtime.inspect.stored_state import open_durable, record_of, savepoint_document, savepoint_line  # noqa: PLC0415

    job = load(job_file)
    with open_durable(job) as store:
        require_own_state(store, job.name)
        if listing:
            record_of(job, store)
            for pin in store.savepoints(job.name):
                print_answer(savepoint_document(pin), [savepoint_line(pin)], as_json=as_json)
        elif name is None:
            raise JoineryError("No savepoint is named", todo="Give its name after the job, or --list")
        elif delete:
            savepoints.delete(store, job, name, idempotent=idempotent)
            print_answer({"deleted": name}, [f"savepoint {name} deleted"], as_json=as_json)
        else:
            created = savepoints.create(store, job, name, idempotent=idempotent)
            if idempotent:  # as the operator's pods call it
                leave_answer(savepoints.savepoint_result(created).model_dump_json(by_alias=True))
            print_answer(savepoint_document(created), [savepoint_line(created)], as_json=as_json)


@state.command
def restore(
    job_file: JobFile,
    *,
    savepoint: str,
    before_first_commit: Switch = False,
    yes: Switch = False,
    as_json: AsJson = False,
) -> None:
    """Restore state and offsets from a savepoint. Fences a running driver.

    First prints which output will repeat. Restores only with --yes.

    Parameters
    ----------
    savepoint
        The savepoint to restore.
    before_first_commit
        Only undo a migration by a new release; rejected once that release has committed an epoch. No output repeats.
    yes
        Confirm.
    """
    from joinery_runtime.hosts.stores import require_own_state  # noqa: PLC0415
    from joinery_runtime.inspect.admin import savepoints  # noqa: PLC0415
    from joinery_runtime.inspect.stored_state import open_durable  # noqa: PLC0415

    job = load(job_file)
    if before_first_commit and in_memory(job):
        _in_memory(job, as_json=as_json)
        return
    with open_durable(job) as store:
        require_own_state(store, job.name)
        if before_first_commit:
            back = savepoints.roll_back(store, job.name, savepoint)
            print_answer(asdict(back), back.lines(), as_json=as_json)
        elif yes:
            done = savepoints.restore(store, job, savepoint)
            print_answer(done.document(restored=True), [*done.lines(), "Done. Start the job to continue from there."],
                   as_json=as_json)  # fmt: skip
        else:
            would = savepoints.repeats(store, job, savepoint)
            print_answer(would.document(restored=False), would.lines(), as_json=as_json)
            raise JoineryError("Nothing was changed", todo="Give --yes to go back")


@state.command
def migrate(
    job_file: JobFile,
    *,
    dry_run: Switch = False,
    savepoint: str | None = None,
    anew: Switch = False,
    as_json: AsJson = False,
) -> None:
    """Migrate the state to this release's version, and pin the former state as a savepoint. Fences a running driver.

    Run it again if it was interrupted.

    Parameters
    ----------
    dry_run
        Migrate every segment in memory, print the result, and change nothing.
    savepoint
        Name of the savepoint. Default: a name with version and epoch.
    anew
        Drop the state after pinning it, so that the job starts from the beginning. A second call drops nothing.
    """
    from joinery_runtime.hosts.status.server import migration_served  # noqa: PLC0415
    from joinery_runtime.hosts.stores import operator_candidate  # noqa: PLC0415
    from joinery_runtime.inspect.admin import migrate as admin  # noqa: PLC0415
    from joinery_runtime.inspect.stored_state import open_durable  # noqa: PLC0415

    job = load(job_file)
    if in_memory(job):
        _in_memory(job, as_json=as_json)
        return
    with open_durable(job) as store:
        if dry_run:
            would = admin.dry_run(job, store)
            print_answer(asdict(would), admin.rehearsal_lines(job.name, would), as_json=as_json)
        else:
            with migration_served() as report:
                done = admin.migrate_job(
                    store, job.name, savepoint, drop_state=anew, report=report, candidate=operator_candidate()
                )
            print_answer(done.document(), done.lines(), as_json=as_json)


@state.command
def check(job_file: JobFile, *, as_json: AsJson = False) -> None:
    """Check whether this job and this release can continue with the stored state. Exit code 1 if not.

    Changes nothing, and does not disturb a running driver.
    """
    from joinery_runtime.cli.ending import leave_answer  # noqa: PLC0415
    from joinery_runtime.inspect.admin.check import check_job, check_lines, message  # noqa: PLC0415

    with job_with_lines(job_file) as job:
        outcome = check_job(job)
    print_answer(json.loads(message(outcome)), check_lines(job, outcome), as_json=as_json)
    leave_answer(message(outcome))
    if not outcome.fits:
        raise SystemExit(1)


@state.command
def delete(job_file: JobFile, *, yes: Switch = False, as_json: AsJson = False) -> None:
    """Delete the job from the store: state, offsets, savepoints, epoch log, staged output. Fences a running driver.
    Published output stays.

    Parameters
    ----------
    yes
        Confirm. Without it, print what would be deleted.
    """
    from joinery_runtime.connectors.outputs import forget_output  # noqa: PLC0415
    from joinery_runtime.hosts.stores import require_own_state  # noqa: PLC0415
    from joinery_runtime.inspect.admin.savepoints import stored_text  # noqa: PLC0415
    from joinery_runtime.inspect.stored_state import durable, open_also_moved  # noqa: PLC0415
    from joinery_runtime.job.explain import outputs_place  # noqa: PLC0415

    job = load(job_file)
    if in_memory(job):
        _in_memory(job, as_json=as_json)
        return
    job = durable(job)
    with open_also_moved(job) as store:
        text = stored_text(store, job.name)
        # What a job has staged and holds goes with it where it was moved to.
        moved = store.moved_to(job.name) is not None
        record = None if moved else store.record(job.name)
        if not moved:
            require_own_state(store, job.name)
        if yes:
            store.delete_job(job.name)
            incarnation = record.incarnation if record is not None else None
            outputs = (job.outputs, job.spec.dead_letter)
            if not moved and (remaining := forget_output(job.name, *outputs, store, incarnation)):
                print(f"joinery: {remaining}", file=sys.stderr)  # noqa: T201 - an answer may be JSON
        if text is None:
            print_answer({"job": job.name, "deleted": False}, [f"there is no state of job {job.name}"], as_json=as_json)
            return
        output_name, lines = outputs_place(job), [f"job {job.name}: {text}{' (deleted)' if yes else ''}"]
        if yes and not moved and any(output.console is None for output in job.outputs):
            repeats = "the next start writes rows there a second time, unless the output is emptied before"
            lines.append(f"output stays: {output_name}; {repeats}")
        print_answer({"job": job.name, "deleted": yes, "state": text, "output": output_name}, lines, as_json=as_json)
        if not yes:
            raise JoineryError("Nothing was deleted", todo="Give --yes to delete it")


@state.command
def move(
    job_file: JobFile,
    *,
    to: str | None = None,
    to_schema: str | None = None,
    dry_run: Switch = False,
    stay: Switch = False,
    as_json: AsJson = False,
) -> None:
    """Move the job's state to another Postgres, where the job then continues. Fences a running driver.

    Run it again if it was interrupted. The job no longer starts at the old place.

    Parameters
    ----------
    to
        DSN of the other database. Better in JOINERY_MOVE_DSN, which no list of processes shows.
    to_schema
        Schema in the other database. Default: the same.
    dry_run
        Print what would be moved, and move nothing.
    stay
        Cancel an interrupted move: the job continues where it was.
    """
    from joinery_runtime.inspect.admin import migrate as admin  # noqa: PLC0415
    from joinery_runtime.inspect.stored_state import durable, open_also_moved  # noqa: PLC0415

    job = durable(load(job_file))
    with open_also_moved(job) as store:
        if stay:
            admin.stay(job, store)
            print_answer({"job": job.name, "moved": False}, [f"job {job.name} stays where it was"], as_json=as_json)
            return
        done = admin.move(job, store, to, to_schema, dry_run=dry_run)
    print_answer(done.document(), done.lines(), as_json=as_json)


def _in_memory(job: Job, *, as_json: bool) -> None:
    text = f"job {job.name} keeps its state in memory: there is nothing to do"
    print_answer({"job": job.name, "note": text}, [text], as_json=as_json)
