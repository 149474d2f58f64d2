"""The whole shell on an API server in memory, without kopf: the test is the watch."""

import asyncio

import pytest

from joinery_devkit.processes import free_port
from joinery_operator.decision import Create, Decision, Event, ObservedEnd
from joinery_operator.kube.controller import Controller
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.resources import ObjectKey
from joinery_operator.names import owner_reference
from joinery_operator.settings import Settings
from simulated_cluster.memory_server import MemoryApi, MemoryServer, controller_on, settled, tell
from simulated_cluster.small_reconcile import job, reconcile

JOB = ObjectKey("StreamJoin", "shop", "orders")


def pod_status(phase):
    return lambda pod: pod.update(status={"phase": phase})


def test_what_was_there_before_it_started_is_brought_about():
    server = MemoryServer()
    server.add(job())

    async def run():
        async with controller_on(server) as controller:
            await settled(controller)
            assert controller.health.ready() == []

    asyncio.run(run())
    assert server.names("Pod") == ["orders-driver-1"]
    assert server.names("ConfigMap") == ["orders-job-r1"]
    assert server.get("StreamJoin", "shop", "orders")["status"]["driver"]["number"] == 1
    assert [call.split()[0] for call in server.calls if call.startswith("P")] == ["PUT", "POST", "POST", "POST", "POST"]
    assert "PUT streamjoins/status" in server.calls


def test_an_operator_that_stands_by_tells_no_old_conditions():
    """Its process goes on, and another replica's words count."""
    server = MemoryServer()
    server.add(job())
    labels = {"job_kind": "StreamJoin", "job_namespace": "shop", "job_name": "orders"}

    async def run():
        async with controller_on(server) as controller:
            await settled(controller)
            controller._collect()
            sample = controller._metrics.registry.get_sample_value
            assert sample("joinery_operator_healthy") == 1
            assert sample("joinery_operator_job_attempts", labels) == 1
        assert sample("joinery_operator_healthy") == 0
        assert sample("joinery_operator_job_attempts", labels) is None

    asyncio.run(run())


def test_nothing_is_decided_before_all_is_known():
    """Else a driver that is not listed yet would be taken for deleted."""
    server = MemoryServer()
    server.add(job())
    observed_pods = []

    def decide(observed):
        observed_pods.append(dict(observed.children.pods))
        return reconcile(observed)

    async def first():
        async with controller_on(server) as controller:
            await settled(controller)

    async def second():
        async with controller_on(server, decide) as controller:
            await settled(controller)

    asyncio.run(first())
    calls = len(server.calls)
    asyncio.run(second())
    assert list(observed_pods[0]) == ["orders-driver-1"]
    assert all(call.startswith("GET") for call in server.calls[calls:])


def test_a_watch_event_leads_to_a_look_with_what_it_told():
    server = MemoryServer()

    async def run():
        async with controller_on(server) as controller:
            await tell(controller, server.add(job()))
            await settled(controller)
            failed = server.change("Pod", "shop", "orders-driver-1", pod_status("Failed"))
            await tell(controller, failed)
            await settled(controller)

    asyncio.run(run())
    assert server.names("Pod") == ["orders-driver-1", "orders-driver-2"]
    assert server.names("Event") != []


def test_events_that_tell_nothing_new_cost_nothing():
    server = MemoryServer()

    async def run():
        async with controller_on(server) as controller:
            resource = server.add(job())
            await tell(controller, resource)
            await settled(controller)
            calls = len(server.calls)
            await tell(controller, resource)
            await tell(controller, server.get("Pod", "shop", "orders-driver-1"))
            await settled(controller)
            assert server.calls[calls:] == []

    asyncio.run(run())


def test_the_next_look_never_works_on_an_older_status_than_was_written():
    server = MemoryServer()
    seen = []

    def decide(observed):
        seen.append((observed.resource.get("status") or {}).get("driver", {}).get("number"))
        return reconcile(observed)

    async def run():
        async with controller_on(server, decide) as controller:
            resource = server.add(job())
            await tell(controller, resource)
            await settled(controller)
            # The watch is late: it tells the state before the status was written.
            await tell(controller, resource)
            controller.feed.add(JOB)
            await settled(controller)

    asyncio.run(run())
    assert seen == [None, 1]


def test_an_edit_between_look_and_write_is_seen():
    server = MemoryServer()
    edited = []

    def decide(observed):
        if not edited:
            edited.append(
                server.change("StreamJoin", "shop", "orders", lambda manifest: manifest["spec"].update(suspend=True))
            )
        return reconcile(observed)

    async def run():
        async with controller_on(server, decide) as controller:
            await tell(controller, server.add(job()))
            await settled(controller)
            assert server.names("Pod") == []
            while controller.feed.queue.next_due() is not None and not server.get("StreamJoin", "shop", "orders").get(
                "status"
            ):
                await asyncio.sleep(0.05)

    asyncio.run(run())
    assert server.get("StreamJoin", "shop", "orders")["status"]["phase"] == "Suspended"
    assert server.names("Pod") == []


def test_a_job_that_fails_does_not_keep_others_from_going_on_and_tells_why():
    server = MemoryServer()
    full = ("POST", "/api/v1/namespaces/small/pods")
    server.before = lambda *call: (403, {"reason": "Forbidden", "message": "exceeded quota"}) if call == full else None

    async def run():
        async with controller_on(server) as controller:
            await tell(controller, server.add(job(namespace="small")))
            await tell(controller, server.add(job()))
            await settled(controller)
            assert controller.feed.queue.next_due() is not None

    asyncio.run(run())
    assert [key for key in server.objects if key[0] == "pods"] == [("pods", "shop", "orders-driver-1")]
    events = [
        event for (plural, namespace, _), event in server.objects.items() if (plural, namespace) == ("events", "small")
    ]
    # What the status says by now is told as well, which no later reconcile would.
    assert sorted(event["reason"] for event in events) == ["ReconcileFailed", "Started"]
    (event,) = [event for event in events if event["type"] == "Warning"]
    assert event["message"] == "POST /api/v1/namespaces/small/pods (orders-driver-1): 403 Forbidden: exceeded quota"


def test_a_mistake_in_reconcile_is_tried_again_and_counted():
    server = MemoryServer()

    def decide(observed):
        raise ZeroDivisionError

    async def run():
        async with controller_on(server, decide) as controller:
            await tell(controller, server.add(job()))
            await settled(controller)
            labels = {"kind": "StreamJoin", "outcome": "error"}
            value = controller._metrics.registry.get_sample_value("joinery_operator_reconciles_total", labels)
            assert value == 1
            assert controller.feed.queue.next_due() is not None
            assert controller.health.live() == []

    asyncio.run(run())


def test_a_child_that_lost_its_label_is_not_taken_for_gone():
    """The watch tells a DELETED for what no longer matches its selector."""
    server = MemoryServer()

    async def run():
        async with controller_on(server) as controller:
            await tell(controller, server.add(job()))
            await settled(controller)
            robbed = server.change("Pod", "shop", "orders-driver-1", lambda pod: pod["metadata"].pop("labels"))
            await tell(controller, robbed, deleted=True)
            await settled(controller)
            cached = controller.cache.get(ObjectKey("Pod", "shop", "orders-driver-1"))
            assert "labels" not in cached["metadata"]
            removed = server.remove("Pod", "shop", "orders-driver-1")
            await tell(controller, removed, deleted=True)
            await settled(controller)

    asyncio.run(run())
    assert server.calls.count("POST pods") == 2


def config_map(name, data=None, owner=None):
    metadata = {"name": name, "namespace": "shop", "ownerReferences": [owner_reference(owner)] if owner else []}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data or {}}


def test_templates_are_read_for_jobs_that_name_them_only():
    """Of a resource, and of its earlier revisions, which may have to be started again."""
    server = MemoryServer()
    server.add(config_map("mine"))
    server.add(config_map("older"))
    templates = {}

    def decide(observed):
        templates[observed.resource["metadata"]["name"]] = dict(observed.templates)
        return Decision(None)

    async def run():
        async with controller_on(server, decide) as controller:
            mine = {"podTemplate": {"name": "mine", "key": "pod.yaml"}}
            resource = server.add(job("with", spark={"driver": mine, "executor": mine}))
            text = "spec: {spark: {executor: {podTemplate: {name: older}}}}"
            await tell(controller, resource)
            await tell(controller, server.add(config_map("with-job-r1", {"job.yaml": text}, resource)))
            await tell(controller, server.add(config_map("with-job-r0", {"job.yaml": "{ podTemplate"}, resource)))
            await tell(controller, server.add(job("without")))
            await tell(controller, server.add(job("astray", spark={"driver": {"podTemplate": {"name": "none"}}})))
            await tell(controller, server.add(job("wrong", spark={"driver": "podTemplate"})))
            await settled(controller)

    asyncio.run(run())
    assert templates["with"]["mine"]["metadata"]["name"] == "mine"
    assert templates["with"]["older"]["metadata"]["name"] == "older"
    assert templates["without"] == {}
    assert templates["astray"] == {"none": None}
    assert templates["wrong"] == {}


def left_behind(observed):
    if isinstance(observed, ObservedEnd):
        return Decision(None, events=(Event("Warning", "LeftBehind", observed.resource["spec"]["what"]),))
    return reconcile(observed)


@pytest.mark.parametrize("seen", ["before", "with its end", "by a reconcile"])
def test_what_a_job_that_is_gone_leaves_behind_is_told_by_its_last_copy(seen):
    """Watches may report a job's end alone: kopf drops what an object was in between. A reconcile may meet it first."""
    server = MemoryServer()

    async def run():
        async with controller_on(server, left_behind) as controller:
            resource = server.add(job(what="first"))
            if seen == "before":
                await tell(controller, resource)
                await settled(controller)
            elif seen == "by a reconcile":
                controller.cache.put(resource, "StreamJoin")
                controller.feed.add(JOB)
            server.change("StreamJoin", "shop", "orders", lambda manifest: manifest["spec"].update(what="edited"))
            last = server.remove("StreamJoin", "shop", "orders")
            await settled(controller)
            assert controller.cache.get(JOB) is None or seen != "by a reconcile"
            await tell(controller, last, deleted=True)
            assert controller.cache.get(JOB) is None
            return last

    last = asyncio.run(run())
    (event,) = [event for event in server.objects.values() if event.get("reason") == "LeftBehind"]
    assert (event["type"], event["message"]) == ("Warning", "edited")
    assert event["involvedObject"]["uid"] == last["metadata"]["uid"]


def test_what_a_savepoint_that_is_gone_leaves_behind_is_told_too():
    server = MemoryServer()
    spec = {"job": {"kind": "StreamJoin", "name": "orders"}}

    async def run():
        async with controller_on(server, left_behind) as controller:
            server.add({**job(what="it", **spec), "kind": "Savepoint"})
            await tell(controller, server.remove("Savepoint", "shop", "orders"), deleted=True)

    asyncio.run(run())
    assert [event["message"] for event in server.objects.values() if event.get("reason") == "LeftBehind"] == ["it"]


def test_closing_lets_looks_end_and_begins_no_new_ones():
    server = MemoryServer()
    entered, go_on = [], []

    class Slow(MemoryApi):
        async def _send(self, method, address, headers, body):
            if method == "POST" and "pods" in address:
                entered.append(address)
                while not go_on:
                    await asyncio.sleep(0)
            return await super()._send(method, address, headers, body)

    async def run():
        metrics = Metrics()
        async with Slow(server, metrics) as api:
            settings = Settings(metrics_port=free_port())
            async with Controller(settings, api, reconcile, metrics) as controller:
                await tell(controller, server.add(job()))
                while not entered:
                    await asyncio.sleep(0)
                closing = asyncio.create_task(controller.close())
                await asyncio.sleep(0)
                await tell(controller, server.add(job("second")))
                go_on.append(True)
                await closing

    asyncio.run(run())
    assert server.names("Pod") == ["orders-driver-1"]
    assert server.names("Event") != []


def test_a_reconcile_that_hangs_is_reported_by_the_liveness_probe():
    server = MemoryServer()
    now = [0.0]

    class Hanging(MemoryApi):
        async def _send(self, method, address, headers, body):
            if method == "PUT":
                await asyncio.Event().wait()
            return await super()._send(method, address, headers, body)

    async def run():
        metrics = Metrics()
        async with Hanging(server, metrics) as api:
            controller = Controller(Settings(metrics_port=free_port()), api, reconcile, metrics, clock=lambda: now[0])
            async with controller:
                await tell(controller, server.add(job()))
                while not controller.feed.queue.running():
                    await asyncio.sleep(0)
                assert controller.health.live() == []
                now[0] = 601.0
                assert controller.health.live() == ["the reconcile of StreamJoin shop/orders has run for 601 s"]
                for worker in controller._workers:
                    worker.cancel()

    asyncio.run(run())


def test_a_part_that_ended_is_told_to_the_liveness_probe():
    async def run():
        async with controller_on(MemoryServer()) as controller:
            controller._workers[0].cancel()
            await asyncio.wait([controller._workers[0]])
            assert controller.health.live() == ["worker 0 has ended"]

    asyncio.run(run())


async def a_life(server):
    """From the job to its second attempt."""
    if not server.names("StreamJoin"):
        server.add(job())
    async with controller_on(server) as controller:
        await settled(controller)
        first = server.get("Pod", "shop", "orders-driver-1")
        if "status" not in first:
            first = server.change("Pod", "shop", "orders-driver-1", pod_status("Failed"))
        await tell(controller, first)
        await settled(controller)


class KilledAfter(MemoryServer):
    """Serves so many calls that change something, then no call comes through."""

    def __init__(self, writes):
        super().__init__()
        self.left, self.dead = writes, asyncio.Event()

    def serve(self, method, address, body):
        if self.dead.is_set():
            raise asyncio.CancelledError
        answer = super().serve(method, address, body)
        self.left -= method != "GET"
        if method != "GET" and self.left == 0:
            self.dead.set()
            raise asyncio.CancelledError
        return answer


async def a_life_cut_short(server):
    life = asyncio.create_task(a_life(server))
    await server.dead.wait()
    life.cancel()
    await asyncio.wait([life])
    server.dead.clear()


def test_killed_after_each_call_and_started_again_it_ends_with_the_same():
    """As the test on a real API server, which kills the process."""
    undisturbed = MemoryServer()
    asyncio.run(a_life(undisturbed))
    expected = {kind: undisturbed.names(kind) for kind in ("Pod", "ConfigMap", "Service")}
    writes = [call for call in undisturbed.calls if not call.startswith("GET")]
    assert len(writes) == 8
    for number in range(1, len(writes) + 1):
        server = KilledAfter(number)
        asyncio.run(a_life_cut_short(server))
        asyncio.run(a_life(server))
        assert {kind: server.names(kind) for kind in expected} == expected, number
        assert [answer for answer in server.calls if answer == "POST pods"] == ["POST pods"] * 2, number
        assert server.get("StreamJoin", "shop", "orders")["status"]["driver"]["number"] == 2


def test_create_of_a_name_that_another_has_is_told():
    server = MemoryServer()
    foreign_pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "orders-driver-1", "namespace": "shop"}}
    server.add(foreign_pod)

    async def run():
        async with controller_on(server) as controller:
            await tell(controller, server.add(job()))
            await settled(controller)

    asyncio.run(run())
    warnings = [event for event in server.objects.values() if event["kind"] == "Event" and event["type"] == "Warning"]
    assert ["Pod shop/orders-driver-1 is not this job's" in warning["message"] for warning in warnings] == [True]


@pytest.mark.parametrize("manifest", [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}])
def test_actions_are_carried_out_in_their_order_after_the_status(manifest):
    server = MemoryServer()
    first = {**manifest, "metadata": {"name": "first", "ownerReferences": []}}

    def decide(observed):
        return Decision(reconcile(observed).status, (Create(first), Create(manifest)))

    async def run():
        async with controller_on(server, decide) as controller:
            await tell(controller, server.add(job()))
            await settled(controller)

    asyncio.run(run())
    assert [key[2] for key in server.objects if key[0] == "pods"] == ["first", "x"]
    assert next(call for call in server.calls if not call.startswith("GET")) == "PUT streamjoins/status"
