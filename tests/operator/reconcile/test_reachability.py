"""From every state that a job can get into, some user action leads to a driver that runs.

The search goes through all states breadth first, with the real reconcile as the transition function: from each state it
takes everything that a person, a cluster or a driver may do next. Two states are the same where the rollout's table
sees the same in both, and pods and losses are the same.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import pytest

from budget import LARGE
from joinery_operator.decision import Observed
from joinery_operator.names import ChildNames
from joinery_operator.reconcile import context, rollout
from joinery_operator.reconcile.context import ReconcileContext
from joinery_operator.reconcile.desired import DesiredJob
from joinery_operator.reconcile.rollout_observation import classify
from joinery_operator.reconcile.rollout_table import (
    TABLE,
    NewDriver,
    RolloutObservation,
    RolloutStage,
    Transition,
    row_for,
)
from joinery_operator.revision import JobRevision
from joinery_runtime.job.crd import Status
from simulated_cluster.simulation import SimulatedCluster, resource

pytestmark = pytest.mark.search

FATAL = {"outcome": "failed", "kind": "SourceError", "error": "no topic orders", "retry": False}
MISFIT = {**FATAL, "kind": "IncompatibleState"}
TRANSIENT = {"outcome": "failed", "kind": "StoreUnavailable", "error": "connection refused", "retry": True}
POSTGRES = {"postgres": {"dsnSecretRef": {"name": "state-db", "key": "dsn"}}}
ELSEWHERE = {"postgres": {"dsnSecretRef": {"name": "state-db", "key": "dsn"}, "schema": "elsewhere"}}
IN_FILES = {"file": {"path": "joined"}, "format": "json"}

DEPTH = 5 if LARGE else 2
"""How many steps beyond the states that the search begins with."""

BEFORE_AN_ATTEMPT = [
    row for row in TABLE if row.stage is RolloutStage.STARTING and row.when.get("new_driver") == {NewDriver.NONE}
]
"""An operator leaves such a state behind only when it dies between two writes (test_rollout_table.py)."""

Action = Callable[[SimulatedCluster], object]


# What a person may do


def edits(**spec: Any) -> Action:
    return lambda cluster: cluster.edit(**spec)


PEOPLE: dict[str, Action] = {
    **{f"applies job {number}": edits(trigger={"maxRecordsPerEpoch": number}) for number in (4, 8)},
    "applies no job": edits(trigger={"maxRecordsPerEpoch": "many"}),
    "suspends": edits(suspend=True),
    "resumes": edits(suspend=False),
    **{f"mode {mode}": edits(upgrade={"mode": mode}) for mode in ("stateful", "stateless")},
    **{f"rollback {way}": edits(upgrade={"rollback": way}) for way in ("manual", "disabled")},
    "takes another store": edits(stateStore=ELSEWHERE),
    "takes a store in memory": edits(stateStore={"memory": {}}, output=IN_FILES),
    "gives the state up": edits(stateStore={"memory": {}}, output=IN_FILES, upgrade={"mode": "stateless"}),
}


# What a cluster may do, by what a pod is for


def _work(name: str, cluster: SimulatedCluster) -> None:
    """What the pod is there for."""
    if "-check-" in name:
        cluster.check_result(name, fits=True)
    else:
        cluster.get_ready(name)
        cluster.commit(name)
        cluster.tell(name)


def of_pods(cluster: SimulatedCluster) -> Iterator[tuple[str, Action]]:
    for name, pod in cluster.pods.items():
        check, first = "-check-" in name, pod["spec"].get("initContainers")
        match pod["status"]["phase"]:
            case "Pending":
                yield "starts", partial(_of, SimulatedCluster.run, name)
                if first:
                    yield "does not migrate", lambda c, name=name: c.fail_first(name, FATAL)  # type: ignore[misc]
                if "restore" in pod["spec"]["containers"][0]["args"]:
                    yield "fails for good", lambda c, name=name: c.end(name, FATAL)  # type: ignore[misc]
            case "Running":
                yield "works", partial(_work, name)
                yield "fails for good", lambda c, name=name: c.end(name, FATAL)  # type: ignore[misc]
                yield "fails", lambda c, name=name: c.end(name, TRANSIENT)  # type: ignore[misc]
                if check:
                    for answer in ({"fits": False}, {"fits": True, "there_is_state": False}):
                        yield f"says {answer}", lambda c, name=name, answer=answer: c.check_result(name, **answer)  # type: ignore[misc]
                    yield "rows differ", lambda c, name=name: c.check_result(name, fits=False, rows_differ=True)  # type: ignore[misc]
                    yield "says misfit", lambda c, name=name: c.end(name, MISFIT)  # type: ignore[misc]
                else:
                    yield "is ready", partial(_of, SimulatedCluster.get_ready, name)
                    yield "says misfit", lambda c, name=name: c.end(name, MISFIT)  # type: ignore[misc]
                    yield "commits unseen", partial(_of, SimulatedCluster.commit, name)
        if "deletionTimestamp" in pod["metadata"]:
            yield "is gone", partial(_of, SimulatedCluster.gone, name)


def _of(act: Callable[[SimulatedCluster, str], object], name: str, cluster: SimulatedCluster) -> None:
    act(cluster, name)


CLUSTER: dict[str, Action] = {
    "time passes": lambda cluster: cluster.pass_time(601),
    "pods are lost": lambda cluster: cluster.pods.clear(),
}
LOSSES: dict[str, Action] = {
    "nothing": lambda cluster: None,
    "images and ConfigMaps": lambda cluster: (cluster.missing_images.add("joinery:1"), cluster.config_maps.clear()),
}


# The search


def established(**spec: Any) -> SimulatedCluster:
    """A job that has run for a while."""
    cluster = SimulatedCluster(resource(spark={"image": "joinery:1"}, **spec))
    name = cluster.started(1)
    cluster.pods[name]["spec"]["terminationGracePeriodSeconds"] = 1080  # longer than a stage's deadline
    cluster.commit(name)
    cluster.tell(name)
    cluster.pass_time(60)
    cluster.step()
    return cluster


def rolling_out(rollback: str) -> Iterator[SimulatedCluster]:
    """At the beginning of each stage of a rollout."""
    cluster = established(upgrade={"rollback": rollback})
    cluster.edit(trigger={"maxRecordsPerEpoch": 9})
    cluster.step()
    yield cluster
    cluster.run(cluster.check())
    cluster.check_result(cluster.check(), fits=True)
    cluster.step()
    yield cluster
    cluster.stopped("orders-driver-1")
    cluster.step()
    yield cluster
    cluster.run("orders-driver-2")
    cluster.step()
    yield cluster
    cluster.pass_time(601)  # it is ready for so long, and commits nothing
    cluster.get_ready("orders-driver-2")
    cluster.step()
    yield cluster
    cluster.end("orders-driver-2", FATAL)
    cluster.step()
    yield cluster


def committed_unseen() -> SimulatedCluster:
    """The operator has not heard of the commit when the resource asks for another job."""
    *_, cluster = islice(rolling_out("automatic"), 5)
    cluster.commit("orders-driver-2")
    cluster.edit(trigger={"maxRecordsPerEpoch": 6})
    cluster.step()
    return cluster


def stuck_on_the_way_back() -> Iterator[SimulatedCluster]:
    """With the image in force, with the one that is asked for, and with one that was asked for before."""
    *_, cluster = rolling_out("automatic")
    cluster.end("orders-driver-3", FATAL)
    cluster.step()
    yield cluster
    for number in (6, 7):
        cluster.edit(trigger={"maxRecordsPerEpoch": number})
        cluster.step()
        cluster.step()
        cluster.end(cluster.driver(cluster.status.driver.number), FATAL)  # type: ignore[union-attr]
        yield cluster


@dataclass(frozen=True, slots=True)
class Reached:
    """A state: the cluster that it was first found as, and how it got there."""

    cluster: bytes
    path: tuple[str, ...]

    def copy(self) -> SimulatedCluster:
        cluster: SimulatedCluster = pickle.loads(self.cluster)
        return cluster


@dataclass
class Search:
    states: dict[Hashable, Reached] = field(default_factory=dict)
    todo: deque[Reached] = field(default_factory=deque)

    def begin(self, cluster: SimulatedCluster, *path: str) -> None:
        self._reach(pickle.loads(pickle.dumps(cluster)), path)

    def run(self, depth: int) -> None:
        while self.todo:
            state = self.todo.popleft()
            if len(state.path) > depth:
                continue
            for name, act in (*PEOPLE.items(), *CLUSTER.items(), *of_pods(state.copy())):
                cluster = state.copy()
                act(cluster)
                cluster.step()
                self._reach(cluster, (*state.path, name))

    def _reach(self, cluster: SimulatedCluster, path: tuple[str, ...]) -> None:
        key = what_counts(cluster)
        if key not in self.states:
            cluster.created.clear()
            cluster.events.clear()
            self.states[key] = Reached(pickle.dumps(cluster), path)
            self.todo.append(self.states[key])


def what_counts(cluster: SimulatedCluster) -> Hashable:
    """What tells two states apart."""
    status = cluster.status
    ctx = ReconcileContext(cluster.observed(), status)
    return (
        classify(ctx, status),
        ctx.suspended,
        status.held,
        frozenset((kind_of(pod), pod["status"]["phase"]) for pod in cluster.alive("")),
    )


def kind_of(pod: dict[str, Any]) -> str:
    if "-check-" in pod["metadata"]["name"]:
        return "check"
    return "restore" if "restore" in pod["spec"]["containers"][0]["args"] else "driver"


@pytest.fixture(scope="module", autouse=True)
def remembered() -> Iterator[None]:
    """Reading jobs takes longer than all else of a reconcile: each is read once, as are those of earlier revisions."""
    read, jobs_by_key = context.desired_job, {}
    read_stored = context.stored_revision
    revisions_by_key: dict[Hashable, JobRevision | None] = {}

    def desired(observed: Observed, status: Status) -> DesiredJob:
        on_its_way = status.rollout and (status.rollout.revision, status.rollout.image)
        key = (
            json.dumps([observed.resource["spec"], observed.resource["metadata"].get("annotations")]),
            status.revision,
            status.image,
            on_its_way,
        )
        if key not in jobs_by_key:
            jobs_by_key[key] = read(observed, status)
        return jobs_by_key[key]

    def stored(observed: Observed, name: str, image: str) -> JobRevision | None:
        config_map = observed.children.config_maps.get(ChildNames(observed.resource).config_map(name), {})
        key = (json.dumps([observed.resource["metadata"], config_map.get("data")]), name, image)
        if key not in revisions_by_key:
            revisions_by_key[key] = read_stored(observed, name, image)
        return revisions_by_key[key]

    context.desired_job, context.stored_revision = desired, stored
    yield
    context.desired_job, context.stored_revision = read, read_stored


@pytest.fixture(scope="module")
def row_counts() -> Iterator[Counter[int]]:
    """How often each row of the table was taken."""
    counts: Counter[int] = Counter()

    def noted(observation: RolloutObservation) -> Transition:
        row = row_for(observation)
        counts[TABLE.index(row)] += 1
        return row

    rollout.row_for = noted
    yield counts
    rollout.row_for = row_for


@pytest.fixture(scope="module")
def states(row_counts: Counter[int]) -> list[Reached]:
    search = Search()
    search.begin(SimulatedCluster(resource(spark={"image": "joinery:1"})), "new")
    search.begin(established(), "established")
    for rollback in ("automatic", "manual", "disabled"):
        for number, cluster in enumerate(rolling_out(rollback)):
            search.begin(cluster, f"{rollback}, stage {number}")
    for number, cluster in enumerate(stuck_on_the_way_back()):
        search.begin(cluster, f"stuck {number}")
    cluster = established(upgrade={"mode": "stateless"})
    cluster.edit(trigger={"maxRecordsPerEpoch": 9})
    cluster.step()
    cluster.run(cluster.check())
    search.begin(cluster, "stateless")
    search.begin(committed_unseen(), "committed unseen")
    search.run(DEPTH)
    return list(search.states.values())


def test_the_search_takes_every_row_of_the_table(states: list[Reached], row_counts: Counter[int]) -> None:
    assert len(states) > 200
    assert [row for i, row in enumerate(TABLE) if i not in row_counts] == [
        row for row in TABLE if row in BEFORE_AN_ATTEMPT
    ]


@pytest.mark.parametrize("loss", LOSSES)
def test_some_edit_leads_from_every_state_to_a_driver_that_runs(states: list[Reached], loss: str) -> None:
    for state in states:
        cluster = state.copy()
        LOSSES[loss](cluster)
        cluster.step()
        # A job that fits, whose image is there.
        cluster.edit(
            trigger={"maxRecordsPerEpoch": 5}, suspend=False, spark={"image": "joinery:3"}, stateStore=POSTGRES
        )
        for _ in range(60):
            cluster.goes_well()
            status = cluster.status
            if (status.phase, status.rollout, status.image) == ("Running", None, "joinery:3"):
                break
        else:
            pytest.fail(f"{state.path} does not lead to a driver that runs: {status.model_dump_json(indent=1)}")
