"""`reconcile_blue_green`: decides what to do about a BlueGreenJob. Pure, like `reconcile`.

Each of its jobs is a resource of its own, with its own state, driver, consumer groups and outputs, which `reconcile`
runs as any other. Here is decided which jobs there are, and which of them readers read:

    active     the job whose outputs are to be read; an edit that leaves its outputs where they are changes it
    candidate  runs beside it for an edit that gives every output another place, until the switch
    old        was active before a switch, and runs until `keepOld` is over
    retired    ended, and its state is deleted; its outputs stay

A switch is one write of the status. A job that has none of the first three roles is deleted with its state.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from pydantic import ValidationError

from joinery_operator.decision import Action, Decision, Delete, Manifest, ObservedBlueGreen, Patch
from joinery_operator.names import SWITCH_ANNOTATION
from joinery_operator.reconcile.blue_green_conditions import blue_green_events, with_conditions, with_pause
from joinery_operator.reconcile.blue_green_jobs import (
    DELETE_STATE,
    RETAIN_STATE,
    BlueGreenContext,
    RequestedJob,
    conflict,
    desired_spec,
    has_caught_up,
    is_healthy,
    job_action,
    lags_no_more,
    outputs_of,
)
from joinery_operator.reconcile.context import FINALIZER
from joinery_runtime.job.crd import BlueGreenState, CandidateJob, OldJob, RetiredJob

_LOOK_SECONDS = 30.0
"""How often a transition is looked at, even if no watch reports anything."""
_SOONEST_SECONDS = 0.5
_MOST_OLD, _MOST_RETIRED = 4, 16


def reconcile_blue_green(observed: ObservedBlueGreen) -> Decision:
    """Decides. Never raises for anything that a user, a cluster or another release may have written."""
    resource = observed.resource
    if resource["metadata"].get("deletionTimestamp"):
        return Decision(None)  # Kubernetes deletes the jobs, each with its state if its `cleanup` says so
    ctx = BlueGreenContext(observed, _read(resource))
    if ctx.pause_scope == "everything":
        return _decision(ctx, with_pause(ctx, ctx.state), ())
    state, job = _without_ended(ctx, _with_active(ctx, ctx.state)), ctx.requested
    if isinstance(job, RequestedJob) and job.name not in _running(state):
        fault = conflict(job, state, observed.jobs)
        job = job if fault is None else (fault,)
    if isinstance(job, RequestedJob):
        state = _with_stability(ctx, _with_requested(ctx, state, job))
        if (candidate := state.candidate) is not None and _is_due(ctx, candidate, job):
            state = _switched(ctx, state, candidate.name)
    actions = tuple(_actions(ctx, state, job if isinstance(job, RequestedJob) else None))
    if (active := observed.jobs.get(state.active or "")) is not None:
        state = state.model_copy(update={"outputs": outputs_of(active)})
    elif isinstance(job, RequestedJob) and job.name == state.active:
        state = state.model_copy(update={"outputs": job.outputs})
    return _decision(ctx, with_conditions(ctx, state, job, actions), actions)


def _decision(ctx: BlueGreenContext, state: BlueGreenState, actions: tuple[Action, ...]) -> Decision:
    reported = tuple(blue_green_events(ctx, state))
    return Decision(None if state == ctx.state else state, actions, reported, _again_after(ctx, state))


def _again_after(ctx: BlueGreenContext, state: BlueGreenState) -> float | None:
    if ctx.pause_scope == "everything":
        return None
    named = {state.active, *(old.name for old in state.old)}
    if state.candidate is None and named >= set(ctx.observed.jobs) and not state.old:
        return None
    moments = [old.until for old in state.old]
    if state.candidate is not None and (stable_at := ctx.stable_at(state.candidate)) is not None:
        moments.append(stable_at)
    delays = [(moment - ctx.now).total_seconds() for moment in moments]
    return max(min([delay for delay in delays if delay > 0] + [_LOOK_SECONDS]), _SOONEST_SECONDS)


# --- which job has which role -----------------------------------------------------------------------------------------


def _with_active(ctx: BlueGreenContext, state: BlueGreenState) -> BlueGreenState:
    """The status with an active job. The first one is what the resource asks for. If the status was lost, it is the
    job that keeps its state, else the oldest one."""
    if state.active is not None:
        return state
    live = [job for job in ctx.observed.jobs.values() if not job["metadata"].get("deletionTimestamp")]
    if live:
        first = min(
            live,
            key=lambda job: (
                job["spec"].get("cleanup") == DELETE_STATE,
                str(job["metadata"].get("creationTimestamp", "")),
            ),
        )
        return state.model_copy(update={"active": first["metadata"]["name"]})
    job = ctx.requested
    return state.model_copy(update={"active": job.name}) if isinstance(job, RequestedJob) else state


def _without_ended(ctx: BlueGreenContext, state: BlueGreenState) -> BlueGreenState:
    """The status without old jobs whose time is over, or whose resource somebody has deleted."""
    for old in state.old:
        job = ctx.observed.jobs.get(old.name)
        if old.until <= ctx.now or job is None or job["metadata"].get("deletionTimestamp"):
            state = _retired(ctx, state, old.name)
    return state


def _running(state: BlueGreenState) -> tuple[str, ...]:
    """The jobs that run, the active one first."""
    candidate = () if state.candidate is None else (state.candidate.name,)
    active = () if state.active is None else (state.active,)
    return (*active, *candidate, *(old.name for old in state.old))


def _with_requested(ctx: BlueGreenContext, state: BlueGreenState, job: RequestedJob) -> BlueGreenState:
    """The status once a job of the resource's choice is active or a candidate."""
    candidate = state.candidate
    if candidate is not None and candidate.name != job.name:
        state, candidate = _retired(ctx, state, candidate.name), None
    if job.name == state.active or candidate is not None or ctx.pause_scope == "rollouts":
        return state
    if any(old.name == job.name for old in state.old):
        # It never stopped, so its outputs are whole.
        return _switched(ctx, state, job.name)
    if ctx.suspended:
        return state
    return state.model_copy(update={"candidate": CandidateJob(name=job.name, since=ctx.now)})


def _with_stability(ctx: BlueGreenContext, state: BlueGreenState) -> BlueGreenState:
    """The status with the time since which the candidate is ready and caught up. Another attempt of its driver, or
    another generation of its resource, begins that time again."""
    candidate = state.candidate
    if candidate is None or ctx.spec is None:
        return state
    job, active = ctx.observed.jobs.get(candidate.name), ctx.status_of(state.active)
    status, limit = ctx.status_of(candidate.name), timedelta(milliseconds=ctx.spec.caught_up)
    stable_since, attempt = None, None if status.driver is None else status.driver.number
    generation = None if job is None else job["metadata"].get("generation")
    if job is not None and is_healthy(job) and has_caught_up(status, active, limit):
        continues = (candidate.attempt, candidate.generation) == (attempt, generation)
        if candidate.stable_since is not None and continues:
            return state
        stable_since = ctx.now if lags_no_more(status, active) else None
    update = {"stable_since": stable_since, "attempt": attempt, "generation": generation}
    return state.model_copy(update={"candidate": candidate.model_copy(update=update)})


def _is_due(ctx: BlueGreenContext, candidate: CandidateJob, job: RequestedJob) -> bool:
    """Whether readers are to switch to the candidate, which is what the resource asks for now."""
    stable_at = ctx.stable_at(candidate)
    is_stable = candidate.name == job.name and stable_at is not None and stable_at <= ctx.now
    annotation = (ctx.metadata.get("annotations") or {}).get(SWITCH_ANNOTATION)
    is_asked = annotation == candidate.name or (ctx.spec is not None and ctx.spec.switch == "automatic")
    return is_stable and is_asked and ctx.pause_scope == "nothing"


def _switched(ctx: BlueGreenContext, state: BlueGreenState, name: str) -> BlueGreenState:
    assert state.active is not None, "a switch ends the role of an active job"
    assert ctx.spec is not None, "a valid resource asks for the switch"
    ended = OldJob(name=state.active, until=ctx.now + timedelta(milliseconds=ctx.spec.keep_old))
    old = (*(job for job in state.old if job.name != name), ended)
    state = state.model_copy(update={"active": name, "candidate": None, "old": old})
    for surplus in old[:-_MOST_OLD]:
        state = _retired(ctx, state, surplus.name)
    return state


def _retired(ctx: BlueGreenContext, state: BlueGreenState, name: str) -> BlueGreenState:
    """The status without a job in its role, which therefore ends."""
    job = ctx.observed.jobs.get(name)
    outputs = () if job is None else outputs_of(job)
    others = tuple(past for past in state.retired if past.name != name)
    retired = (*others, RetiredJob(name=name, outputs=outputs, ended=ctx.now))
    candidate = None if state.candidate is not None and state.candidate.name == name else state.candidate
    old = tuple(job for job in state.old if job.name != name)
    return state.model_copy(update={"candidate": candidate, "old": old, "retired": retired[-_MOST_RETIRED:]})


# --- what follows for the jobs ----------------------------------------------------------------------------------------


def _actions(ctx: BlueGreenContext, state: BlueGreenState, requested: RequestedJob | None) -> Iterator[Action]:
    running = _running(state)
    for name in running:
        job = ctx.observed.jobs.get(name)
        if job is not None and job["metadata"].get("deletionTimestamp"):
            continue  # created again once it has ended
        if requested is not None and requested.name == name:
            kind, spec = requested.kind, requested.spec
        elif job is not None:
            kind, spec = job["kind"], job["spec"]
        else:
            continue
        cleanup = DELETE_STATE
        if name == state.active:
            cleanup = (spec if requested is None else requested.spec).get("cleanup", RETAIN_STATE)
        desired = desired_spec(spec, job, suspended=ctx.suspended, cleanup=cleanup)
        if (action := job_action(ctx.observed, kind, name, desired, job)) is not None:
            yield action
    for name, job in ctx.observed.jobs.items():
        metadata = job["metadata"]
        if name in running or metadata.get("deletionTimestamp"):
            continue
        if job["spec"].get("cleanup") != DELETE_STATE:
            yield Patch(job["kind"], name, {"spec": {"cleanup": DELETE_STATE}})
        elif FINALIZER in (metadata.get("finalizers") or ()):
            # `reconcile` sets it for `deleteState`. Without it the state would stay.
            yield Delete(job["kind"], name, metadata["uid"])


def _read(resource: Manifest) -> BlueGreenState:
    """The status; empty if another release wrote one that this release cannot read."""
    try:
        return BlueGreenState.model_validate(resource.get("status") or {})
    except ValidationError:
        return BlueGreenState()
