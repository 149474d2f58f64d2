"""Phase and conditions of a BlueGreenJob, and the Events of its transitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from joinery_operator.decision import Action, Create, Event, Patch
from joinery_operator.names import PAUSE_ANNOTATION, SWITCH_ANNOTATION
from joinery_operator.reconcile.blue_green_jobs import MOST_JOBS, BlueGreenContext, RequestedJob, has_room, running
from joinery_operator.reconcile.children import deletion_fault
from joinery_operator.reconcile.context import pause_scope
from joinery_operator.reconcile.reasons import (
    CREATE_REFUSED,
    PATCH_REFUSED,
    Aspect,
    Fault,
    cut,
    find_condition,
    listed,
    sentence,
)
from joinery_runtime.job.crd import BlueGreenState, CandidateJob, Condition, OutputStatus, Status
from joinery_runtime.job.crd.blue_green import BlueGreenPhase
from joinery_runtime.job.model.duration import format_duration

BESIDE, AWAITING_SWITCH, KEEPING_OLD = "Beside", "AwaitingSwitch", "KeepingOld"
_PAUSED, _ROLLOUTS_PAUSED, _JOB_MISSING = "Paused", "RolloutsPaused", "JobMissing"
_UNPAUSE = f"The annotation {PAUSE_ANNOTATION} says so: `kubectl joinery rollout resume` removes it"
_SHARED = "OutputsShared"
_SETTLED = {"Running", "Suspended", "Finished", "Failed", KEEPING_OLD}


def with_conditions(
    ctx: BlueGreenContext, state: BlueGreenState, job: RequestedJob | tuple[str, ...], actions: Iterable[Action]
) -> BlueGreenState:
    """Return the status with phase, conditions, and the generation to which they apply. `job` is what the resource asks
    for, or why it asks for nothing that can run; `actions` are about to be carried out."""
    actions = tuple(actions)
    active = ctx.status_of(state.active)
    phase = _phase(ctx, state, active)
    valid, degraded = _valid_aspect(ctx, job), _degraded_aspect(ctx, state, actions)
    up_to_date = _up_to_date_aspect(ctx, state, active, job, actions)
    candidate = ctx.status_of(None if state.candidate is None else state.candidate.name)
    is_lost = state.candidate is None and state.active is not None and ctx.is_lost(state.active)
    stalled = valid.status == "False" or is_lost or "Failed" in {active.phase, candidate.phase}
    going = not stalled and (phase not in _SETTLED or up_to_date.status == "False")
    missing = _missing_text(ctx, state, actions)
    not_ready = Aspect("Ready", "False", "Starting", f"job {state.active} starts")
    if missing is not None:
        not_ready = Aspect("Ready", "False", _JOB_MISSING, missing)
    aspects = (
        _mirrored("Ready", active.conditions, not_ready),
        Aspect("Progressing", str(phase not in _SETTLED), phase, _progress_text(ctx, state)),
        degraded,
        valid,
        Aspect("Reconciling", str(going), up_to_date.reason, up_to_date.message if going else ""),
        Aspect("Stalled", str(stalled), degraded.reason, (valid.message or degraded.message) if stalled else ""),
        up_to_date,
        *_shared_aspects(ctx, state),
        *_pause_aspects(ctx),
    )
    generation = ctx.metadata.get("generation")
    conditions = tuple(aspect.as_condition(ctx.state.conditions, generation, ctx.now) for aspect in aspects)
    return state.model_copy(update={"phase": phase, "conditions": conditions, "observed_generation": generation})


def with_pause(ctx: BlueGreenContext, state: BlueGreenState) -> BlueGreenState:
    """Return the status with the condition that says why the operator leaves it so."""
    other_conditions = tuple(condition for condition in state.conditions if condition.type != _PAUSED)
    generation = ctx.metadata.get("generation")
    added = (aspect.as_condition(state.conditions, generation, ctx.now) for aspect in _pause_aspects(ctx))
    return state.model_copy(update={"conditions": (*other_conditions, *added)})


def blue_green_events(ctx: BlueGreenContext, state: BlueGreenState) -> Iterator[Event]:
    """Yield what has changed, for people who watch the resource."""
    before, candidate = ctx.state, state.candidate
    former_candidate = before.candidate.name if before.candidate is not None else None
    if candidate is not None and candidate.name != former_candidate:
        yield Event("Normal", "CandidateStarted", f"job {candidate.name} runs beside {state.active}")
    if before.active is not None and state.active != before.active:
        message = f"job {state.active} is active instead of {before.active}: read {_outputs_text(state.outputs)}"
        yield Event("Normal", "Switched", cut(message))
    known_ends = {(past.name, past.ended) for past in before.retired}
    for past in state.retired:
        if (past.name, past.ended) not in known_ends:
            message = (
                f"job {past.name} ends, and its state is deleted. What it wrote stays: {_outputs_text(past.outputs)}"
            )
            yield Event("Normal", "JobRetired", cut(message))
    for type_, reported in (("Valid", "False"), ("Degraded", "True"), ("Progressing", "True"), (_SHARED, "True")):
        old, new = find_condition(before.conditions, type_), find_condition(state.conditions, type_)
        if new is not None and new.status == reported and (old is None or old.reason != new.reason):
            kind = "Normal" if type_ == "Progressing" else "Warning"
            yield Event(kind, new.reason, cut(new.message))  # type: ignore[arg-type]


def _phase(ctx: BlueGreenContext, state: BlueGreenState, active: Status) -> BlueGreenPhase:
    if ctx.suspended:
        return "Suspended" if active.phase == "Suspended" else "Stopping"
    if state.candidate is not None and active.phase != "Failed":
        return "AwaitingSwitch" if _awaits_switch(ctx, state.candidate) else "Beside"
    if state.old and active.phase in {"Running", "Finished"}:
        return "KeepingOld"
    return "Pending" if active.phase in {None, "Suspended"} else active.phase


def _awaits_switch(ctx: BlueGreenContext, candidate: CandidateJob) -> bool:
    stable_at = ctx.stable_at(candidate)
    return stable_at is not None and stable_at <= ctx.now


def _mirrored(type_: str, conditions: Iterable[Condition], otherwise: Aspect) -> Aspect:
    """Return the condition of a job as one of its BlueGreenJob."""
    condition = find_condition(conditions, type_)
    return otherwise if condition is None else Aspect(type_, condition.status, condition.reason, condition.message)


def _progress_text(ctx: BlueGreenContext, state: BlueGreenState) -> str:
    candidate, spec = state.candidate, ctx.spec
    if candidate is None or spec is None:
        return "; ".join(f"job {old.name} runs until {old.until:%Y-%m-%d %H:%M:%S} UTC" for old in state.old)
    text = f"job {candidate.name} runs beside {state.active}"
    job = ctx.jobs.get(candidate.name)
    if job is not None and pause_scope(job) != "nothing":
        return (
            f"{text}, and is paused by its own annotation: `kubectl joinery rollout resume {candidate.name}` ends that"
        )
    if _awaits_switch(ctx, candidate):
        annotation = (ctx.metadata.get("annotations") or {}).get(SWITCH_ANNOTATION, "")
        earlier = " The annotation is of an earlier edit." if annotation.startswith(f"{candidate.name}@") else ""
        name = ctx.metadata["name"]
        return (
            f"{text} and is stable.{earlier} To switch, run `kubectl joinery rollout switch {name}`, or set the "
            f"annotation {SWITCH_ANNOTATION}: {candidate.name}. To give it up, run "
            f"`kubectl joinery rollout undo {name}`"
        )
    if candidate.stable_since is not None:
        stable_for = format_duration(spec.stable_for)
        return (
            f"{text}, and is ready and caught up since {candidate.stable_since:%H:%M:%S} UTC; stableFor is {stable_for}"
        )
    ready = find_condition(ctx.status_of(candidate.name).conditions, "Ready")
    if ready is None or ready.status != "True":
        return sentence(text, "it is not ready", ready.reason if ready else "it starts", ready.message if ready else "")
    return f"{text}, and is not within caughtUp ({format_duration(spec.caught_up)}) of it, or has more unread records"


def _valid_aspect(ctx: BlueGreenContext, job: RequestedJob | tuple[str, ...]) -> Aspect:
    if isinstance(job, tuple):
        return Aspect("Valid", "False", "Invalid", listed(job))
    status = ctx.status_of(job.name)
    own = find_condition(status.conditions, "Valid")
    if own is not None and own.status == "False":
        return Aspect("Valid", "False", own.reason, sentence(f"job {job.name}", own.message))
    return Aspect("Valid", "True", "Valid", "")


def _degraded_aspect(ctx: BlueGreenContext, state: BlueGreenState, actions: tuple[Action, ...]) -> Aspect:
    faults = []
    if ctx.observed.create_refused:
        faults.append(Fault(CREATE_REFUSED, ctx.observed.create_refused))
    refused = {
        action.name: ctx.observed.patch_refused[action.name]
        for action in actions
        if isinstance(action, Patch) and action.name in ctx.observed.patch_refused
    }
    if refused:
        faults.append(Fault(PATCH_REFUSED, "; ".join(refused.values())))
    if (stays := deletion_fault(actions, ctx.observed.delete_refused)) is not None:
        faults.append(stays)
    roles = running(state)
    for name in (*roles, *(name for name in ctx.jobs if name not in roles)):
        status = ctx.status_of(name)
        degraded = find_condition(status.conditions, "Degraded")
        if degraded is not None and degraded.status == "True":
            faults.append(Fault(degraded.reason, sentence(f"job {name}", degraded.message)))
        elif status.phase == "Failed":
            faults.append(Fault("Failed", sentence(f"job {name} has failed", status.last_error or "")))
    if (missing := _missing_text(ctx, state, actions)) is not None:
        faults.append(Fault(_JOB_MISSING, missing))
    for name, job in ctx.foreign_jobs.items():
        message = (
            f"{job['kind']} {name} claims by its owner reference to be a job of this resource, which has not created "
            "it. The operator runs it as any other job, and no reader is told of it. Remove the owner reference, or "
            "delete it"
        )
        faults.append(Fault("ForeignJob", message))
    if not faults:
        return Aspect("Degraded", "False", "AsExpected", "")
    return Aspect("Degraded", "True", faults[0].reason, "\n".join(fault.message for fault in faults))


def _missing_text(ctx: BlueGreenContext, state: BlueGreenState, actions: Iterable[Action]) -> str | None:
    """Return why the active job does not run and is not created again, and what to do; None if it exists or is
    created."""
    name = state.active
    if name is None:
        return None
    if ctx.is_lost(name):
        return (
            f"job {name} was deleted together with its state. It is not created again, because it would write "
            "all rows again where readers read them: give every output of spec.template another place"
        )
    created = [action.manifest["metadata"]["name"] for action in actions if isinstance(action, Create)]
    if name in ctx.jobs or name in created:
        return None
    if isinstance(ctx.requested, RequestedJob) and ctx.requested.name == name:
        return f"job {name} was deleted, and is not created again while another job has its name: delete that one"
    todo = f"write its outputs ({_outputs_text(state.outputs)}) into the template again"
    if state.candidate is not None:
        todo += f", or wait until readers switch to job {state.candidate.name}"
    return f"job {name} was deleted, and spec.template, which would create it again, does not ask for it: {todo}"


def _up_to_date_aspect(
    ctx: BlueGreenContext,
    state: BlueGreenState,
    active: Status,
    job: RequestedJob | tuple[str, ...],
    actions: tuple[Action, ...],
) -> Aspect:
    """Return whether readers read what the resource asks for."""
    if isinstance(job, tuple):
        return Aspect("UpToDate", "False", "Invalid", listed(job))
    if ctx.pause_scope == "rollouts" and job.name not in running(state):
        return Aspect("UpToDate", "False", _ROLLOUTS_PAUSED, f"job {job.name} waits. {_UNPAUSE}")
    if state.candidate is not None:
        reason = AWAITING_SWITCH if _awaits_switch(ctx, state.candidate) else BESIDE
        return Aspect("UpToDate", "False", reason, _progress_text(ctx, state))
    if job.name != state.active:
        if not ctx.suspended and not has_room(ctx, state):
            ending = [name for name in ctx.jobs if name not in running(state)]
            message = (
                f"job {job.name} starts once one of these jobs is deleted, of which the status lists at most "
                f"{MOST_JOBS}: {', '.join(ending)}. They have ended, and wait until their states are deleted"
            )
            return Aspect("UpToDate", "False", "TooManyJobs", cut(message))
        reason = "Suspended" if ctx.suspended else BESIDE
        return Aspect("UpToDate", "False", reason, f"job {job.name} starts once the others are resumed")
    manifest = ctx.jobs.get(job.name)
    seen = manifest is not None and active.observed_generation == manifest["metadata"].get("generation")
    changes = any(isinstance(action, Patch) and action.name == job.name and "spec" in action.body for action in actions)
    pending = Aspect("UpToDate", "False", "Pending", f"job {job.name} is yet to see its last change")
    return _mirrored("UpToDate", active.conditions, pending) if seen and not changes else pending


def _shared_aspects(ctx: BlueGreenContext, state: BlueGreenState) -> Iterator[Aspect]:
    """Yield a condition while somebody else writes where a job writes. It is no fault: the rows may be meant to be
    together. A job that has ended writes no more."""
    texts = []
    for shared in ctx.observed.shared_places:
        other = shared.other["metadata"]
        if shared.job not in running(state) or other.get("deletionTimestamp"):
            continue
        owners = other.get("ownerReferences") or ()
        blue_green = next((owner["name"] for owner in owners if owner.get("kind") == "BlueGreenJob"), None)
        owner_text = "" if blue_green is None else f", a job of BlueGreenJob {blue_green},"
        texts.append(
            f"{shared.other['kind']} {other['namespace']}/{other['name']}{owner_text} writes to {shared.place_text} as "
            f"well as job {shared.job}: readers get the rows of both"
        )
    if texts:
        todo = "If that is not intended, give one of them another output"
        yield Aspect(_SHARED, "True", _SHARED, f"{listed(sorted(texts))}\n{todo}")


def _pause_aspects(ctx: BlueGreenContext) -> Iterator[Aspect]:
    if ctx.pause_scope == "rollouts":
        message = (
            "no job starts beside the active one, none is switched to and none ends; those that run keep running, and "
            "no rollout begins in them"
        )
        yield Aspect(_PAUSED, "True", "Rollouts", f"{message}. {_UNPAUSE}")
    elif ctx.pause_scope == "everything":
        message = "the operator leaves the resource and its jobs alone, and sees no edit; their drivers keep running"
        refused = "".join(f". But {text}" for text in ctx.observed.patch_refused.values())
        yield Aspect(_PAUSED, "True", "Everything", f"{message}. {_UNPAUSE}{refused}")


def _outputs_text(outputs: tuple[OutputStatus, ...]) -> str:
    return ", ".join(f"{output.kind} {output.target}" for output in outputs if output.target) or "nothing"
