"""`joinery state check`: tells whether a job, and this release, can continue with the stored state."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.engine.assembly import identity
from joinery_runtime.engine.plan import EpochPlan, input_states
from joinery_runtime.errors import IncompatibleState, Moved
from joinery_runtime.hosts.secrets import with_secrets
from joinery_runtime.hosts.stores import operator_candidate
from joinery_runtime.hosts.worker_builder import JobInputs
from joinery_runtime.inspect.shadow import Clock, shadow
from joinery_runtime.inspect.stored_state import open_durable
from joinery_runtime.job import Job, compare, under_definition, with_stored_names
from joinery_runtime.job.crd import MESSAGE_BYTES
from joinery_runtime.job.crd.driver import StateCheck
from joinery_runtime.job.model.duration import format_duration
from joinery_runtime.job.model.owner import check_candidate
from joinery_runtime.state import migrations
from joinery_runtime.state.postgres import ReadOnlyStore
from joinery_runtime.state.store import JobRecord, StateReader
from joinery_runtime.state.upgrade import Rehearsal, outdated_segments, rehearse_migration

_LISTS = ("refused", "warnings")
# If the texts together are too long: how many of each list stay, and how many characters of each. JSON takes at most
# six bytes per character.
_TEXTS = 8
_SHORTER = (1000, 200, 40)

_CLOCK = Clock(time.monotonic, time.sleep)


def check_job(job: Job, clock: Clock = _CLOCK) -> StateCheck:
    """Check the job, and write nothing. With `upgrade.mode: shadow`, also compares a job that fits with the one that
    runs, for as long as that one takes for its epochs. Raises JoineryError if the state cannot be read."""
    target = migrations.CURRENT_STATE_VERSION
    if job.spec.state_store.memory is not None:
        return StateCheck(
            fits=True, warnings=("stateStore is memory: every start is from the beginning",), target_version=target
        )
    job = with_secrets(job)
    with _open_for_reading(job) as store:
        try:
            record = store.record(job.name)
        except Moved as error:
            return StateCheck(fits=False, refused=(str(error),), target_version=target)
        if record is None:
            return StateCheck(fits=True, target_version=target)
        if (candidate := operator_candidate()) is not None:
            check_candidate(job.name, record.owner, candidate)
        if job.spec.upgrade.mode == "stateless":
            words = (
                "upgrade.mode is stateless: the job starts from the beginning; the rollout's savepoint keeps the state"
            )
            return _state_check(record, target, (), (words,))
        outcome = _compare_with_state(job, store, record, target)
        if job.spec.upgrade.mode == "shadow" and outcome.fits:
            seen = shadow(job, store, lambda version: JobInputs(version.inputs), clock)
            text = seen.text(format_duration(job.spec.upgrade.shadow.within))[:MESSAGE_BYTES]
            if seen.is_equal:
                return outcome.model_copy(update={"warnings": (*outcome.warnings, text)})
            return outcome.model_copy(update={"fits": False, "rows_differ": True, "refused": (text,)})
        return outcome


@contextmanager
def _open_for_reading(job: Job) -> Iterator[StateReader]:
    postgres = job.spec.state_store.postgres
    if postgres is None or postgres.dsn is None:  # an embedded store, which nobody else uses
        with open_durable(job) as store:
            yield store
        return
    with closing(ReadOnlyStore(postgres.dsn, postgres.schema_name)) as store:
        yield store


def _compare_with_state(job: Job, store: StateReader, record: JobRecord, target: int) -> StateCheck:
    try:
        job = with_stored_names(job, record.definition)
    except IncompatibleState as error:
        return _state_check(record, target, [str(error)], ())
    job_identity = identity(job, compile_job(job), lambda _: None)  # the comparison returns the warnings
    refused, warnings = [], []
    if record.signature is not None:
        comparison = compare(record.signature, job_identity.signature)
        refused, warnings = list(comparison.refused), list(comparison.warnings)
    try:
        # What else is stored that this release or this job could not take over.
        input_states((side.name for side in job.inputs), record)
        if record.plan is not None:
            EpochPlan.from_json(record.plan)
        if record.definition is not None and not job_identity.defines(record):
            under_definition(job, record.definition)
    except IncompatibleState as error:
        refused.append(str(error))
    try:
        rehearsal = rehearse_migration(store, record, migrations.MIGRATIONS, target)
    except IncompatibleState as error:
        refused.append(str(error))
        return _state_check(record, target, refused, warnings)
    return _state_check(record, target, refused, warnings, rehearsal)


def _state_check(
    record: JobRecord,
    target: int,
    refused: Sequence[str],
    warnings: Sequence[str],
    rehearsal: Rehearsal | None = None,
) -> StateCheck:
    return StateCheck(
        fits=not refused,
        refused=tuple(text[:MESSAGE_BYTES] for text in refused),
        warnings=tuple(text[:MESSAGE_BYTES] for text in warnings),
        epoch=record.epoch,
        state_versions=tuple(sorted({meta.state_version for meta in record.segments})),
        target_version=target,
        to_migrate=len(outdated_segments(record, migrations.MIGRATIONS, target))
        if rehearsal is None
        else rehearsal.to_migrate,
    )


def message(check: StateCheck) -> str:
    """Return the check as JSON of at most MESSAGE_BYTES. If it is longer, leaves out the last texts and shortens the
    others."""
    text = check.model_dump_json(by_alias=True)
    for length in _SHORTER:
        if len(text.encode()) <= MESSAGE_BYTES:
            break
        shorter = {
            name: tuple(
                sentence if len(sentence) <= length else f"{sentence[: length - 3]}..."
                for sentence in getattr(check, name)[:_TEXTS]
            )
            for name in _LISTS
        }
        text = check.model_copy(update=shorter).model_dump_json(by_alias=True)
    return text


def check_lines(job: Job, check: StateCheck) -> Iterator[str]:
    verdict = "fits its state" if check.fits else "does not fit its state"
    if check.rows_differ:
        verdict = "fits its state, and its rows differ from those of the job that runs"
    yield f"job {job.name}: {verdict}"
    for text in check.refused:
        yield f"  rejected: {text}"
    for text in check.warnings:
        yield f"  warning: {text}"
    if check.epoch is not None:
        versions = ", ".join(map(str, check.state_versions)) or "none"
        yield f"  epoch {check.epoch}, state versions {versions}, this release writes {check.target_version}"
    if check.to_migrate:
        tried = "; that was tried and works" if check.fits else ""
        yield f"  {check.to_migrate} segments are to be migrated{tried}"
