"""`reconcile`: what is to be done about a job, from what was observed of it. Pure: no clock, no API.

    base      what the resource asks for has changed: failures are forgiven, a refusal is forgotten
    attempts  what became of the driver's pod                         (`seen`)
    rollout   another revision on its way, one step further           (`rolled`)
    attempts  the next pod's number, when one is due                  (`advanced`)
    ensure    children made, repaired and deleted as the status says
    status    the phase, conditions and figures that tell of all that

Each step is a function from a status to a status, so that all of a decision is written before any of it is done.
"""

from __future__ import annotations

from joinery_operator.decision import Action, Decision
from joinery_operator.observed import Observed
from joinery_operator.reconcile import deletion
from joinery_operator.reconcile.attempts import advanced, forgiven, seen
from joinery_operator.reconcile.conditions import events, with_conditions
from joinery_operator.reconcile.ensure import ensured
from joinery_operator.reconcile.figures import reported, with_figures
from joinery_operator.reconcile.look import FINALIZER, Look, read_status
from joinery_operator.reconcile.plan import plan
from joinery_operator.reconcile.rollout import proved, refuses, rolled
from joinery_operator.reconcile.situation import deleting, situation
from joinery_operator.reconcile.timing import again_after
from joinery_runtime.job.crd import Status

__all__ = ["FINALIZER", "reconcile"]


def reconcile(observed: Observed) -> Decision:
    """Never raises for anything that a user, a cluster or another release may have written."""
    look = Look(observed, read_status(observed.resource))
    return _end(look) if look.metadata.get("deletionTimestamp") else _life(look)


def _life(look: Look) -> Decision:
    status = _asked(look, look.status)
    status = seen(look, status, plan(look, status))
    status = rolled(look, proved(look, status))
    status = advanced(look, status, plan(look, status))
    planned = plan(look, status)
    children = ensured(look, status, planned)
    told = with_conditions(look, status, situation(look, status, planned, children.blocked))
    actions = (*deletion.finalizers(look), *children.actions)
    return _decision(look, told, actions)


def _end(look: Look) -> Decision:
    if FINALIZER not in look.finalizers:
        return Decision(None)
    status, actions, trouble = deletion.deleted(look, look.status)
    told = with_conditions(look, status, deleting(trouble, deletion.WAY_OUT))
    return _decision(look, told, actions)


def _asked(look: Look, status: Status) -> Status:
    """What was given up is tried again, and at once, when something else is asked for."""
    target = look.target or status.target_revision
    generation = look.metadata.get("generation")
    if status.observed_generation not in {None, generation} or target != status.target_revision:
        status = forgiven(status)
    job = look.wanted.job
    if job is not None and not refuses(status, job, look.wanted.mode):
        status = status.model_copy(update={"refused": None})
    return status.model_copy(update={"target_revision": target})


def _decision(look: Look, status: Status, actions: tuple[Action, ...]) -> Decision:
    alive = any(pod.ended is None for pod in look.drivers.values())
    new = with_figures(look, status, alive=alive)
    written = reported(look, look.status, new)
    told = tuple(events(look.status, new)) if written is not None else ()
    return Decision(written, actions, told, again_after(look, new, written))
