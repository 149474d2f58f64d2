"""The whole operator, or two of them, through lives of edits, failures, refusals and deaths at any moment; what is
asked for at the end is what there is."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

import pytest

from budget import examples, rest_in_search
from joinery_operator.kube.api import ApiResponse
from joinery_operator.kube.controller import Controller
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.resources import PAGE_KINDS, WATCHED, ObjectKey
from joinery_operator.reconcile import reconcile
from joinery_runtime.errors import JoineryError
from simulated_cluster.memory_server import Id, MemoryApi, MemoryServer
from simulated_cluster.simulation import Manifest, resource
from simulated_cluster.whole_operator import BROKEN_TRIGGER, FATAL, Trouble, WholeOperator
from test_refused_writes import ANSWERS, SAVEPOINT, SETTINGS

AWAY = {"outcome": "failed", "kind": "StoreUnavailable", "error": "connection refused", "retry": True}
EDITS: list[Manifest] = [
    *({"trigger": {"maxRecordsPerEpoch": most}} for most in (4, 8, 9, BROKEN_TRIGGER, "many")),
    {"cleanup": "deleteState"},
    {"cleanup": "retainState"},
    {"upgrade": {"mode": "stateless"}},
    {"upgrade": {"mode": "stateful"}},
    {"upgrade": {"rollback": "manual"}},
    {"shards": 16},
    {"suspend": True},
    {"suspend": False},
    {"spark": {"image": "joinery:2"}},
]
LONG = 3000.0
"""Seconds after which what fails for ever has been tried often enough."""


class Died(BaseException):
    """An operator's process, between two calls."""


class MortalApi(MemoryApi):
    """`calls_left`: after so many the operator dies. Others get their turn between any two calls."""

    def __init__(self, server: MemoryServer, random: Random) -> None:
        super().__init__(server)
        self._random = random
        self.calls_left: int | None = None

    async def _send(self, method: str, address: str, headers: dict[str, str], body: Manifest | None) -> ApiResponse:
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise Died
        for _ in range(self._random.randrange(3)):
            await asyncio.sleep(0)
        return await super()._send(method, address, headers, body)


@dataclass
class Operator:
    controller: Controller
    api: MortalApi
    reported: dict[Id, tuple[str, str]]


class Lives(WholeOperator):
    def __init__(self, seed: int) -> None:
        super().__init__(None, settings=SETTINGS)
        self.random = Random(seed)
        self.operators: list[Operator] = []
        self.fails = 0.0
        self.happened: list[str] = []

    # Operators

    async def start(self, skew: int = 0) -> None:
        """`skew`: seconds by which its clock is ahead."""
        api = MortalApi(self.server, self.random)
        await api.__aenter__()
        controller = Controller(
            self.settings,
            api,
            reconcile,
            Metrics(),
            clock=lambda: self.seconds,
            now=lambda: self.now + timedelta(seconds=skew),
            watched=(*WATCHED, *PAGE_KINDS),
        )
        controller.poller.last_status = lambda _: self._said() if self.resource else None  # type: ignore[method-assign]
        await controller.auditor.fill()
        listed = {key: stored for key, stored in self.server.objects.items() if key[0] != "events"}
        reported = {key: (stored["metadata"]["uid"], json.dumps(stored)) for key, stored in listed.items()}
        self.operators.append(Operator(controller, api, reported))

    async def stop(self, operator: Operator) -> None:
        self.operators.remove(operator)
        await operator.api.__aexit__()

    async def watches_tell(self, operator: Operator) -> None:
        self.controller, self._told = operator.controller, operator.reported
        await self._watch()

    async def reconcile(self, operator: Operator, calls_left: int | None = None) -> None:
        queue = operator.controller.feed.queue
        key = queue.take(self.seconds)
        if key is None:
            return
        operator.api.calls_left = calls_left
        try:
            result = await operator.controller._reconciler.run(key)
        except JoineryError:
            queue.retry(key, self.seconds)
        except Died:
            await self.stop(operator)
            await self.start()
        else:
            end = queue.retry if result.failed else queue.finish
            end(key, self.seconds, result.again_after)
        operator.api.calls_left = None
        self._pull()

    async def calm(self) -> None:
        """One operator, and all goes well."""
        for operator in self.operators[1:]:
            await self.stop(operator)
        self.fails, self.server.trouble = 0.0, None
        await self.watches_tell(self.operators[0])
        end = self.seconds + LONG
        await self.settle(lambda: self.seconds > end)

    # Pods

    def a_pod_goes_on(self) -> None:
        if not self.pods:
            return
        name = self.random.choice([*self.pods])
        pod = self.pods[name]
        before = json.dumps(pod)
        if "deletionTimestamp" in pod["metadata"]:
            self.gone(name)
        elif pod["status"]["phase"] == "Pending":
            self.run(name)
        elif pod["status"]["phase"] == "Running" and self.random.random() < self.fails:
            self.random.choice(
                [partial(self.end, name, AWAY), partial(self.end, name, FATAL), partial(self.evict, name)]
            )()
        elif pod["status"]["phase"] == "Running":
            self._works(name)
        if name in self.pods and json.dumps(pod) != before:
            self.server._touched(pod)

    def _reports(self, name: str, uid: str) -> None:
        before = self.driver_statuses.get(uid)
        self.tell(name)
        if before != self.driver_statuses[uid] and self.resource is not None:
            for operator in self.operators:
                operator.controller.feed.add(ObjectKey(self.resource["kind"], "shop", "orders"))

    # What may happen

    async def something_happens(self) -> None:
        operator = self.random.choice(self.operators)
        await self.random.choices(
            [
                partial(self.watches_tell, operator),
                partial(self.reconcile, operator),
                partial(self.reconcile, operator, self.random.randint(0, 6)),
                self._operators_overlap,
                self._pods,
                self._person,
                self._time,
                self._refusal,
            ],
            [25, 25, 5, 5, 30, 10, 3, 2],
        )[0]()

    async def _operators_overlap(self) -> None:
        if len(self.operators) == 1:
            await self.start(skew=self.random.choice([-60, 0, 60]))
        elif self.random.random() < 0.3:
            await self.stop(self.operators[0])
        else:
            await asyncio.gather(*map(self.reconcile, self.operators))

    async def _pods(self) -> None:
        self.a_pod_goes_on()

    async def _time(self) -> None:
        self.pass_time(self.random.choice([1, 10, 60, 301, 700]))

    async def _refusal(self) -> None:
        write = len(self.server.writes) + self.random.randrange(4)
        code, takes_effect = self.random.choice([*ANSWERS.values()])
        self.server.trouble = Trouble(write, code, self.random.choice([1, 5, 20]), takes_effect)

    async def _person(self) -> None:
        job, savepoint = self.resource, self.savepoint
        if job is not None and self.random.random() < 0.7:
            edit = self.random.choice(EDITS)
            self.happened.append(str(edit))
            self.edit(**edit)
            self.server._touched(job)
        elif savepoint is None:
            self.apply(SAVEPOINT)
        else:
            kind, deleted = self.random.choice([("StreamJoin", job), ("Savepoint", savepoint)])
            if deleted is not None:
                self.happened.append(f"{kind} is deleted")
                self.delete_owner(kind, deleted["metadata"]["name"])
                self.server._touched(deleted)
        self._pull()

    def holds(self) -> None:
        uid = self.resource["metadata"]["uid"] if self.resource else ""
        drivers = [
            pod["metadata"]["name"]
            for pod in self.alive("driver")
            if pod["metadata"]["ownerReferences"][0]["uid"] == uid and "deletionTimestamp" not in pod["metadata"]
        ]
        assert len(drivers) < 2, self.happened
        assert not self.database.misread, self.happened


async def live(seed: int) -> None:
    lives = Lives(seed)
    await lives.start()
    lives.apply(resource(cleanup=lives.random.choice(["deleteState", "retainState"])))
    if lives.random.random() < 0.7:
        await lives.calm()
    lives.fails = lives.random.choice([0.0, 0.1, 0.3])
    for _ in range(lives.random.randint(5, 60)):
        await lives.something_happens()
        lives.holds()
    await lives.calm()
    lives.holds()
    _savepoint_is_settled(lives.savepoint)
    if lives.resource is not None:
        assert "deletionTimestamp" not in lives.resource["metadata"], lives.status
        edit: dict[str, Any] = {"trigger": {"maxRecordsPerEpoch": 5}, "suspend": False, "upgrade": {}}
        lives.edit(**edit, spark={"image": "joinery:3"})
        lives.server._touched(lives.resource)
        await lives.calm()
        lives.holds()
        status = lives.status
        assert (status.phase, status.revision) == ("Running", status.target_revision), status
    await lives.stop(lives.operators[0])


def _savepoint_is_settled(savepoint: Manifest | None) -> None:
    if savepoint is None:
        return
    assert "deletionTimestamp" not in savepoint["metadata"], savepoint
    (reason,) = [condition["reason"] for condition in savepoint["status"]["conditions"] if condition["type"] == "Ready"]
    assert reason in {"Completed", "JobMissing", "JobNotStarted", "StateDeleted"}, savepoint


@pytest.mark.parametrize("seed", rest_in_search(range(examples(300)), range(6)))
def test_a_life(seed: int) -> None:
    asyncio.run(live(seed))
