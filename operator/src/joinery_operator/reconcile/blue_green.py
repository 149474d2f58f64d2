"""`reconcile_blue_green`: decides what to do about a BlueGreenJob. Pure, like `reconcile`.

Each of its jobs is a resource of its own, with its own state, driver, consumer groups and outputs, which `reconcile`
runs as any other. Here is decided which jobs there are, and which of them readers read:

    active     the job whose outputs are to be read; an edit that leaves its outputs where they are changes it
    candidate  runs beside it for an edit that gives every output another place, until the switch
    old        was active before a switch, and runs until `keepOld` is over
    retired    ended, and its state is deleted; its outputs stay

The status is written before anything else is done, and these rules keep rows from being written twice, wherever the
operator dies:

- A job is created suspended. Its driver starts once the status lists the job's uid, so a job that the status does not
  list has written nothing.
- A switch is one write of the status, and changes nothing at the jobs: each job with a role has the template's
  `cleanup`. Only a retired job is given `cleanup: deleteState`, and no job returns from there.
- The status says that a state is deleted with its job before the job says so. A listed job that was deleted with its
  state is not created again, because it would write all rows again.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from joinery_operator.decision import Action, Decision, Delete, Manifest, ObservedBlueGreen, Patch
from joinery_operator.names import CHILD_ROLE_LABEL, SWITCH_ANNOTATION
from joinery_operator.reconcile.blue_green_conditions import blue_green_events, with_conditions, with_pause
from joinery_operator.reconcile.blue_green_jobs import (
    DELETE_STATE,
    MOST_JOBS,
    RETAIN_STATE,
    BlueGreenContext,
    RequestedJob,
    conflict,
    create_action,
    desired_spec,
    differs,
    has_caught_up,
    has_room,
    is_healthy,
    lags_no_more,
    outputs_of,
    patch_action,
    pause_action,
    place_digests,
    running,
)
from joinery_operator.reconcile.context import FINALIZER, pause_scope, read_known_fields
from joinery_runtime.job.crd import BlueGreenSpec, BlueGreenState, CandidateJob, ChildJob, OldJob, RetiredJob

_LOOK_SECONDS = 30.0
"""How often a transition is looked at, even if no watch reports anything."""
_SOONEST_SECONDS = 0.5
_MOST_OLD, _MOST_RETIRED = 4, 16


def reconcile_blue_green(observed: ObservedBlueGreen) -> Decision:
    """Decide. Never raises for anything that a user, a cluster or another release may have written."""
    resource = observed.resource
    if resource["metadata"].get("deletionTimestamp"):
        return Decision(None)  # Kubernetes deletes the jobs, each with its state if its `cleanup` says so
    # A status that cannot be read must not count as a lost one: nobody would know where earlier jobs wrote.
    ctx = BlueGreenContext(observed, read_known_fields(BlueGreenState, resource))
    if ctx.pause_scope == "everything":
        pauses = (pause_action(ctx, job) for job in ctx.jobs.values())
        state = ctx.state
        if state.candidate is not None:  # nobody looks at whether it stays stable
            unstable = state.candidate.model_copy(update={"stable_since": None})
            state = state.model_copy(update={"candidate": unstable})
        state = with_pause(ctx, state)
        return _decision(ctx, state, tuple(action for action in pauses if action is not None))
    state, job = _with_jobs(ctx, _with_active(ctx, ctx.state)), ctx.requested
    if ctx.pause_scope == "nothing":
        state = _without_ended(ctx, state)
    if isinstance(job, RequestedJob) and job.name not in running(state):
        fault = conflict(job, state)
        job = job if fault is None else (fault,)
    if isinstance(job, RequestedJob):
        if ctx.pause_scope == "nothing":
            state = _with_requested(ctx, state, job)
        state = _with_stability(ctx, state, job)
        if (candidate := state.candidate) is not None and _is_due(ctx, candidate, job):
            state = _switched(ctx, state, candidate.name)
    actions = tuple(_actions(ctx, state, job if isinstance(job, RequestedJob) else None))
    with_state = {action.name for action in actions if isinstance(action, Patch) and _deletes_state(action.body)}
    jobs = (
        listed.model_copy(update={"deletes_state": True}) if listed.name in with_state else listed
        for listed in state.jobs
    )
    state = state.model_copy(update={"jobs": tuple(jobs)})
    active = next((listed for listed in state.jobs if listed.name == state.active), None)
    if active is not None:
        state = state.model_copy(update={"outputs": active.outputs})
    elif isinstance(job, RequestedJob) and job.name == state.active:
        state = state.model_copy(update={"outputs": job.outputs})
    return _decision(ctx, with_conditions(ctx, state, job, actions), actions)


def _decision(ctx: BlueGreenContext, state: BlueGreenState, actions: tuple[Action, ...]) -> Decision:
    reported = tuple(blue_green_events(ctx, state))
    waits = ctx.pause_scope != "everything" and (
        state.candidate is not None
        or bool(state.old)
        or bool(ctx.observed.shared_places)  # no watch reports that another job leaves a place
        or not running(state).keys() >= ctx.jobs.keys()
    )
    moments: list[datetime] = [old.until for old in state.old]
    if state.candidate is not None and (stable_at := ctx.stable_at(state.candidate)) is not None:
        moments.append(stable_at)
    delays = [(moment - ctx.now).total_seconds() for moment in moments]
    again_after = max(min([delay for delay in delays if delay > 0] + [_LOOK_SECONDS]), _SOONEST_SECONDS)
    return Decision(None if state == ctx.state else state, actions, reported, again_after if waits else None)


# --- which job has which role -----------------------------------------------------------------------------------------


def _with_active(ctx: BlueGreenContext, state: BlueGreenState) -> BlueGreenState:
    """Return the status with an active job. The first one is what the resource asks for. If the status was lost, the
    jobs' labels have the roles; a job that is neither read nor asked for then is an old one."""
    job = ctx.requested
    requested = job.name if isinstance(job, RequestedJob) else None
    if state.active is not None:
        # The first job may not have been created yet, because its name is taken or a quota is used up.
        exists = state.jobs or ctx.jobs or state.candidate is not None
        return state if exists or requested is None else state.model_copy(update={"active": requested})
    roles = {
        name: manifest["metadata"].get("labels", {}).get(CHILD_ROLE_LABEL)
        for name, manifest in ctx.jobs.items()
        if not manifest["metadata"].get("deletionTimestamp")
    }
    live = [name for name, role in roles.items() if role != "retired"]
    if not live:
        return state.model_copy(update={"active": requested})
    active = min(
        live,
        key=lambda name: (roles[name] != "active", str(ctx.jobs[name]["metadata"].get("creationTimestamp", "")), name),
    )
    until = ctx.now + timedelta(milliseconds=(ctx.spec or BlueGreenSpec.model_construct()).keep_old)
    old = [OldJob(name=name, until=until) for name in live if name not in {active, requested}]
    state = state.model_copy(update={"active": active, "old": tuple(old[:_MOST_OLD])})
    for name in {*roles} - {*live} | {job.name for job in old[_MOST_OLD:]}:
        state = _retired(ctx, state, name)
    return state


def _with_jobs(ctx: BlueGreenContext, state: BlueGreenState) -> BlueGreenState:
    """Return the status with the jobs that there are. One that is missing stays listed while it has a role."""
    before = {listed.name: listed for listed in ctx.state.jobs}
    roles = running(state)
    jobs = {name: listed for name, listed in before.items() if name in roles}
    for name, manifest in ctx.jobs.items():
        metadata = manifest["metadata"]
        if name not in before and metadata.get("deletionTimestamp"):
            continue  # it was deleted before it had a driver
        deletes_state = _deletes_state(manifest) or FINALIZER in (metadata.get("finalizers") or ())
        listed = ChildJob(
            kind=manifest["kind"],
            name=name,
            uid=metadata["uid"],
            deletes_state=deletes_state,
            outputs=outputs_of(manifest),
        )
        jobs[name] = listed
    ordered = sorted(jobs.values(), key=lambda listed: (listed.name not in roles, listed.name))
    return state.model_copy(update={"jobs": tuple(ordered[:MOST_JOBS])})


def _deletes_state(manifest: Manifest) -> bool:
    return bool(manifest.get("spec", {}).get("cleanup") == DELETE_STATE)


def _without_ended(ctx: BlueGreenContext, state: BlueGreenState) -> BlueGreenState:
    """Return the status without old jobs whose time is over, without old jobs that somebody has deleted, and without a
    candidate that was deleted with its state."""
    if state.candidate is not None and ctx.is_lost(state.candidate.name):
        state = _retired(ctx, state, state.candidate.name)
    for old in state.old:
        job = ctx.jobs.get(old.name)
        is_over = old.until <= ctx.now and (job is None or pause_scope(job) != "everything")
        if is_over or job is None or job["metadata"].get("deletionTimestamp"):
            state = _retired(ctx, state, old.name)
    return state


def _with_requested(ctx: BlueGreenContext, state: BlueGreenState, job: RequestedJob) -> BlueGreenState:
    """Return the status once a job of the resource's choice is active or a candidate."""
    candidate = state.candidate
    if candidate is not None and candidate.name != job.name:
        state, candidate = _retired(ctx, state, candidate.name), None
    if job.name == state.active or candidate is not None:
        return state
    if any(old.name == job.name for old in state.old):
        # It never stopped, so its outputs are whole.
        return _switched(ctx, state, job.name)
    if ctx.suspended or not has_room(ctx, state):
        return state
    return state.model_copy(update={"candidate": CandidateJob(name=job.name, since=ctx.now)})


def _with_stability(ctx: BlueGreenContext, state: BlueGreenState, requested: RequestedJob) -> BlueGreenState:
    """Return the status with the time since which the candidate is ready and caught up. Another attempt of its driver,
    or another generation of its resource, begins that time again; so does an edit that its resource does not have
    yet."""
    candidate = state.candidate
    if candidate is None or ctx.spec is None:
        return state
    job, active = ctx.jobs.get(candidate.name), ctx.status_of(state.active)
    status, limit = ctx.status_of(candidate.name), timedelta(milliseconds=ctx.spec.caught_up)
    stable_since, attempt = None, None if status.driver is None else status.driver.number
    generation = None if job is None else job["metadata"].get("generation")
    is_edited = job is not None and candidate.name == requested.name and differs(job, _desired(ctx, requested, job))
    if job is not None and not is_edited and is_healthy(job) and has_caught_up(status, active, limit):
        continues = (candidate.attempt, candidate.generation) == (attempt, generation)
        if candidate.stable_since is not None and continues:
            return state
        stable_since = ctx.now if lags_no_more(status, active) else None
    update = {"stable_since": stable_since, "attempt": attempt, "generation": generation}
    return state.model_copy(update={"candidate": candidate.model_copy(update=update)})


def _is_due(ctx: BlueGreenContext, candidate: CandidateJob, job: RequestedJob) -> bool:
    """Return whether readers are to switch to the candidate, which is what the resource asks for now."""
    stable_at = ctx.stable_at(candidate)
    is_stable = candidate.name == job.name and stable_at is not None and stable_at <= ctx.now
    name, _, generation = (ctx.metadata.get("annotations") or {}).get(SWITCH_ANNOTATION, "").partition("@")
    is_confirmed = name == candidate.name and generation in {"", str(ctx.metadata.get("generation"))}
    is_asked = is_confirmed or (ctx.spec is not None and ctx.spec.switch == "automatic")
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
    """Return the status without a job in its role, which therefore ends. One that was never created leaves its places
    to others."""
    listed = next((listed for listed in (*state.jobs, *ctx.state.jobs) if listed.name == name), None)
    retired = tuple(past for past in state.retired if past.name != name)
    if listed is not None:
        retired = (*retired, RetiredJob(name=name, outputs=listed.outputs, ended=ctx.now))
    dropped = [digest for past in retired[:-_MOST_RETIRED] for digest in place_digests(past.outputs)]
    update: dict[str, object] = {"retired": retired[-_MOST_RETIRED:]}
    if dropped:
        update["earlier_places"] = tuple(sorted({*state.earlier_places, *dropped}))
    candidate = None if state.candidate is not None and state.candidate.name == name else state.candidate
    old = tuple(job for job in state.old if job.name != name)
    return state.model_copy(update={**update, "candidate": candidate, "old": old})


# --- what follows for the jobs ----------------------------------------------------------------------------------------


def _actions(ctx: BlueGreenContext, state: BlueGreenState, requested: RequestedJob | None) -> Iterator[Action]:
    roles = running(state)
    for name, role in roles.items():
        if (job := ctx.jobs.get(name)) is None:
            is_wanted = requested is not None and requested.name == name and name not in ctx.foreign_jobs
            if requested is not None and is_wanted and not ctx.is_lost(name):
                suspended_spec = {**_desired(ctx, requested, None), "suspend": True}
                yield create_action(ctx, requested.kind, name, role, suspended_spec)
        elif not _is_left_alone(job):
            spec = requested.spec if requested is not None and requested.name == name else job["spec"]
            desired = desired_spec(spec, job, suspended=ctx.suspended, cleanup=_cleanup(ctx, job))
            if (patch := patch_action(ctx, job, role, desired)) is not None:
                yield patch
    for name, job in ctx.jobs.items():
        if name in roles or _is_left_alone(job):
            continue
        if (patch := patch_action(ctx, job, "retired", {**job["spec"], "cleanup": DELETE_STATE})) is not None:
            yield patch
        elif FINALIZER in (job["metadata"].get("finalizers") or ()):
            # `reconcile` sets it for `deleteState`. Without it the state would stay.
            yield Delete(job["kind"], name, job["metadata"]["uid"])


def _desired(ctx: BlueGreenContext, requested: RequestedJob, job: Manifest | None) -> dict[str, object]:
    return desired_spec(requested.spec, job, suspended=ctx.suspended, cleanup=_cleanup(ctx, job))


def _cleanup(ctx: BlueGreenContext, job: Manifest | None) -> str:
    """Return what the template says becomes of the state of each job that has a role. An invalid value changes
    nothing."""
    template = ctx.observed.resource["spec"]["template"]["spec"]
    written = template.get("cleanup", RETAIN_STATE)
    if written in {RETAIN_STATE, DELETE_STATE}:
        return str(written)
    return RETAIN_STATE if job is None else str(job["spec"].get("cleanup", RETAIN_STATE))


def _is_left_alone(job: Manifest) -> bool:
    """Return whether a job is being deleted, after which it may be created again, or somebody has paused all work on
    it."""
    return bool(job["metadata"].get("deletionTimestamp")) or pause_scope(job) == "everything"
