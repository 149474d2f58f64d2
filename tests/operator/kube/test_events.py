"""What the operator tells of itself: Events, metrics, probes, log lines; and what it asks for before it starts."""

import asyncio
import io
import json
import logging
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import aiohttp
import kopf
import pytest
import structlog

from joinery_devkit.processes import free_port
from joinery_operator.decision import Event
from joinery_operator.kube import process
from joinery_operator.kube.events import EventRecorder
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.probes import Health, ProbeServer
from joinery_operator.kube.process import PERMISSIONS, check_environment, log_json
from joinery_operator.kube.resources import INGRESS, OWNERS, PAGE_KINDS, WATCHED
from joinery_operator.kube.watches import SELECTOR, kopf_settings, load_connection, registry
from joinery_operator.settings import Settings
from joinery_runtime.errors import EnvironmentProblem
from simulated_cluster.memory_server import MemoryApi, MemoryServer
from simulated_cluster.small_reconcile import job


def tell(server, *events, forget=(), every=1):
    """One event `every` so many seconds."""
    resource = server.add(job())
    clock = [datetime(2026, 1, 1, tzinfo=UTC)]

    async def run():
        async with MemoryApi(server) as api:
            recorder = EventRecorder(api, "operator-0", lambda: clock[0])
            for event in events:
                clock[0] += timedelta(seconds=every)
                if event in forget:
                    for name in server.names("Event"):
                        server.remove("Event", "shop", name)
                await recorder.record(resource, event)

    asyncio.run(run())
    return sorted(
        (manifest for manifest in server.objects.values() if manifest["kind"] == "Event"),
        key=lambda manifest: manifest["reason"],
    )


def test_an_event_that_is_told_again_is_counted():
    started, failed = Event("Normal", "Started", "Attempt 1"), Event("Warning", "Failed", "x" * 2000)
    first, second = tell(MemoryServer(), started, failed, started, failed, failed)[::-1]
    assert (first["reason"], first["count"], first["involvedObject"]["name"]) == ("Started", 2, "orders")
    assert (second["type"], second["count"], len(second["message"])) == ("Warning", 3, 1024)
    assert first["lastTimestamp"] > first["firstTimestamp"]


def test_an_event_that_has_expired_is_told_anew():
    server = MemoryServer()
    event = Event("Normal", "Started", "Attempt 1")
    (recorded,) = tell(server, event, Event("Normal", "Started", "Attempt 1"), forget=(event,))
    assert recorded["count"] == 1


@pytest.mark.parametrize(("every", "recorded"), [(1, 25), (60, 34), (300, 50)])
def test_what_flaps_is_not_told_for_ever(every, recorded):
    """Each time in other words: a driver that waits says since when."""
    events = [Event("Warning", "WaitingForInput", f"since {number}") for number in range(50)]
    assert len(tell(MemoryServer(), *events, every=every)) == recorded


def test_an_event_that_is_refused_stops_nothing():
    server = MemoryServer()
    server.before = lambda method, path: (403, {"reason": "Forbidden"}) if path.endswith("/events") else None
    assert tell(server, Event("Normal", "Started", "Attempt 1")) == []


async def fetch(port, path):
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


def test_probes_and_metrics():
    metrics, port = Metrics(), free_port()
    health = Health(dict, lambda: 0.0)

    async def run():
        async with ProbeServer(port, health, metrics, lambda: metrics.queue_depth.set(3)):
            assert await fetch(port, "/readyz") == (503, "the objects of the cluster have not been read yet\n")
            assert await fetch(port, "/healthz") == (200, "ok\n")
            health.synced = True
            health.ended.append("worker 1 has ended")
            assert await fetch(port, "/readyz") == (200, "ok\n")
            assert await fetch(port, "/healthz") == (503, "worker 1 has ended\n")
            status, text = await fetch(port, "/metrics")
            assert status == 200
            assert "joinery_operator_queue_depth 3.0" in text

    asyncio.run(run())


def test_a_port_that_is_taken_is_named():
    metrics, port = Metrics(), free_port()
    health = Health(dict, lambda: 0.0)

    async def run():
        async with ProbeServer(port, health, metrics, lambda: None), ProbeServer(port, health, metrics, lambda: None):
            pass

    with pytest.raises(EnvironmentProblem, match=f"Port {port} .*JOINERY_OPERATOR_METRICS_PORT"):
        asyncio.run(run())


def test_a_job_is_told_by_phase_condition_and_attempts_until_it_is_deleted():
    metrics = Metrics()
    count = metrics.registry.get_sample_value
    job = {"job_kind": "StreamJoin", "job_namespace": "shop", "job_name": "orders"}
    conditions = [{"type": "Ready", "status": "False"}, {"type": "Degraded", "status": "True"}]
    conditions.append({"type": "StateCompatible", "status": "Unknown"})
    status = {"phase": "Starting", "conditions": conditions, "driver": {"number": 4, "failures": 3}}
    new = {"kind": "StreamJoin", "metadata": {"namespace": "shop", "name": "new"}}
    sick = {"kind": "StreamJoin", "metadata": {"namespace": "shop", "name": "orders"}, "status": status}
    metrics.set_jobs([new, sick])
    assert count("joinery_operator_jobs", {"kind": "StreamJoin", "phase": "Starting"}) == 1
    assert count("joinery_operator_jobs", {"kind": "StreamJoin", "phase": "New"}) == 1
    assert count("joinery_operator_job_condition", {**job, "type": "Ready"}) == 0
    assert count("joinery_operator_job_condition", {**job, "type": "Degraded"}) == 1
    assert count("joinery_operator_job_condition", {**job, "type": "StateCompatible"}) is None
    assert count("joinery_operator_job_attempts", job) == 4
    assert count("joinery_operator_job_failures", job) == 3
    assert count("joinery_operator_job_interruptions", job) == 0
    metrics.set_jobs([new])
    assert count("joinery_operator_jobs", {"kind": "StreamJoin", "phase": "Starting"}) is None
    assert count("joinery_operator_job_attempts", job) is None


def check(server, *namespaces, metrics=None):
    async def run():
        async with MemoryApi(server) as api:
            return await check_environment(api, namespaces, metrics or Metrics())

    return asyncio.run(run())


def test_missing_rights_are_named_all_at_once():
    server = MemoryServer()
    served = server.serve

    def serve(method, address, body):
        attributes = (body or {}).get("spec", {}).get("resourceAttributes", {})
        refused = (attributes.get("namespace"), attributes.get("verb"), attributes.get("resource")) in {
            ("shop", "delete", "pods"),
            ("shop", "update", "sessionwindows"),
        }
        return (201, {"status": {"allowed": False}}) if refused else served(method, address, body)

    server.serve = serve
    with pytest.raises(EnvironmentProblem) as caught:
        check(server, "shop", "farm")
    assert "update sessionwindows.joinery.dev/status in namespace shop; delete pods in namespace shop." in str(
        caught.value
    )
    check(server)
    check(server, "farm")


def without_rights_in(*namespaces):
    server = MemoryServer()
    served = server.serve

    def serve(method, address, body):
        attributes = (body or {}).get("spec", {}).get("resourceAttributes", {})
        refused = attributes.get("namespace") in namespaces
        return (201, {"status": {"allowed": False}}) if refused else served(method, address, body)

    server.serve = serve
    return server


def test_a_deleted_namespace_is_left_out_with_a_warning_and_a_metric(log_lines):
    metrics = Metrics()
    assert check(without_rights_in("gone"), "shop", "gone", "farm", metrics=metrics) == ("shop", "farm")
    (line,) = log_lines()
    assert (line["level"], line["namespace"]) == ("warning", "gone")
    count = metrics.registry.get_sample_value
    assert count("joinery_operator_namespace_left_out", {"namespace": "gone"}) == 1
    assert count("joinery_operator_namespace_left_out", {"namespace": "shop"}) == 0


def test_a_namespace_is_regained_with_all_rights_and_not_before(monkeypatch, log_lines):
    monkeypatch.setattr(process, "REGAIN_SECONDS", 0.001)
    server, reviews = MemoryServer(), Counter()
    served = server.serve

    def serve(method, address, body):
        right = body["spec"]["resourceAttributes"]
        reviews[right["namespace"]] += 1
        if reviews.total() <= 4:
            return 500, {}
        # Its role is made in two steps.
        complete = reviews["back"] > len(PERMISSIONS)
        if right["namespace"] == "gone" or (right["resource"] == "pods" and not complete):
            return 201, {"status": {"allowed": False}}
        return served(method, address, body)

    server.serve = serve

    async def run():
        async with MemoryApi(server) as api:
            api._sleep = lambda seconds: asyncio.sleep(0)
            return await process.wait_until_regained(api, ["gone", "back"], Settings())

    assert asyncio.run(run()) == ("back",)
    assert reviews["back"] > len(PERMISSIONS)


def test_an_operator_without_rights_anywhere_does_not_start():
    with pytest.raises(EnvironmentProblem, match=r"list pods in namespace shop;.*list pods in namespace farm"):
        check(without_rights_in("shop", "farm"), "shop", "farm")
    with pytest.raises(EnvironmentProblem, match="list pods in all namespaces"):
        check(without_rights_in(""))


INGRESSED = Settings(page_url="https://{name}.x/", page_ingress="{}")
ROUTED = Settings(page_url="https://{name}.x/", page_route='{"parentRefs": [{"name": "a"}]}')


def page_kinds(server, settings):
    async def run():
        async with MemoryApi(server) as api:
            return await process.watched_page_kinds(api, settings)

    return asyncio.run(run())


def without_api(group):
    server = MemoryServer()
    server.before = lambda method, path: (404, {"reason": "NotFound"}) if group in path else None
    return server


def without_rights_on_pages():
    server = MemoryServer()
    served = server.serve

    def serve(method, address, body):
        attributes = (body or {}).get("spec", {}).get("resourceAttributes", {})
        lacks = attributes.get("resource") in {"ingresses", "httproutes"}
        return (201, {"status": {"allowed": False}}) if lacks else served(method, address, body)

    server.serve = serve
    return server


def test_routes_are_watched_where_they_can_be_and_missed_where_they_are_wanted():
    assert page_kinds(MemoryServer(), ROUTED) == PAGE_KINDS
    assert page_kinds(MemoryServer(), Settings()) == PAGE_KINDS, "those of an earlier setting go"
    assert page_kinds(without_api("gateway.networking.k8s.io"), Settings()) == (INGRESS,)
    facts, remedy = (
        r"httproutes\.gateway\.networking\.k8s\.io \(v1\) is missing",
        "Install the Gateway API, or turn jobPage",
    )
    with pytest.raises(EnvironmentProblem, match=f"{facts}.*{remedy}"):
        page_kinds(without_api("gateway.networking.k8s.io"), ROUTED)
    assert page_kinds(without_rights_in("shop"), Settings(namespaces=("shop",))) == ()
    with pytest.raises(EnvironmentProblem, match=r"httproutes\.gateway\.networking\.k8s\.io in namespace shop"):
        page_kinds(without_rights_in("shop"), replace(ROUTED, namespaces=("shop", "farm")))


def test_an_api_server_without_ingresses_is_not_told_to_install_the_gateway_api():
    with pytest.raises(EnvironmentProblem) as raised:
        page_kinds(without_api("/networking.k8s.io"), INGRESSED)
    assert "ingresses.networking.k8s.io (v1) is missing" in str(raised.value)
    assert "turn jobPage.ingress of the chart off" in str(raised.value)
    assert "Gateway" not in str(raised.value)


def test_an_installation_without_pages_needs_no_permission_on_what_leads_to_them():
    server = without_rights_on_pages()
    assert check(server, "shop") == ("shop",)
    assert page_kinds(server, Settings()) == ()
    message = r"ingresses\.networking\.k8s\.io in all namespaces.*turn jobPage\.ingress of the chart off"
    with pytest.raises(EnvironmentProblem, match=message):
        page_kinds(server, INGRESSED)


def test_all_namespaces_are_none_by_name():
    assert check(MemoryServer()) == ()


def test_missing_definitions_are_named():
    server = MemoryServer()
    server.before = lambda method, path: (404, {"reason": "NotFound"}) if path.endswith("v1alpha1") else None
    with pytest.raises(
        EnvironmentProblem, match=r"streamjoins\.joinery\.dev .*, sessionwindows\.joinery\.dev .*joinery crds"
    ):
        check(server)


def test_no_api_server_is_said():
    server = MemoryServer()
    server.before = lambda method, path: (0, {"reason": "ClientConnectorError", "message": "refused"})
    with pytest.raises(EnvironmentProblem, match=r"does not answer.*no answer ClientConnectorError: refused"):
        check(server)


def test_no_login_is_said(monkeypatch, tmp_path):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(EnvironmentProblem, match=r"not in a pod, and no kubeconfig is given.*--kubeconfig"):
        asyncio.run(load_connection(None))
    with pytest.raises(EnvironmentProblem, match=r"kubeconfig .*absent"):
        asyncio.run(load_connection(tmp_path / "absent"))


@pytest.fixture
def log_lines():
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    log_json(stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_log_lines_are_json_those_of_kopf_too_and_quiet(log_lines):
    structlog.get_logger("joinery-operator").info("a reconcile", job="shop/orders")
    logging.getLogger("kopf.objects").info("Handler 'x' succeeded.")
    logging.getLogger("kopf.objects").warning("something is wrong")
    try:
        raise ZeroDivisionError("told")
    except ZeroDivisionError:
        structlog.get_logger("joinery-operator").exception("failed")
    ours, kopfs, failed = log_lines()
    assert (ours["event"], ours["job"], ours["level"]) == ("a reconcile", "shop/orders", "info")
    assert (kopfs["event"], kopfs["level"], kopfs["logger"]) == ("something is wrong", "warning", "kopf.objects")
    assert "ZeroDivisionError: told" in failed["exception"]


def test_kopf_keeps_nothing_on_objects_and_sees_only_ours():
    """Handlers other than on.event would have it write finalizers and annotations."""

    async def nothing(*_):
        pass

    kopf_registry = registry(nothing, nothing, nothing)
    for kind in (kopf_registry._changing, kopf_registry._spawning, kopf_registry._indexing, kopf_registry._webhooks):
        assert kind.get_all_handlers() == []
    assert len(kopf_registry._watching.get_all_handlers()) == len(WATCHED)
    settings = kopf_settings(Settings(job_class="blue", job_selector="team=risk").owner_selector)
    pods = kopf._cogs.structs.references.Resource("", "v1", "pods", kind="Pod", namespaced=True)
    assert settings.watching.label_selectors.collect(pods) == [SELECTOR]
    for owner in OWNERS:
        watched = kopf._cogs.structs.references.Resource(owner.group, owner.version, owner.plural, namespaced=True)
        assert settings.watching.label_selectors.collect(watched) == ["joinery.dev/class=blue,team=risk"]


def test_each_watch_passes_its_events_on_whatever_else_kopf_says_of_them():
    passed = []

    async def on_event(*event):
        passed.append(event)

    async def pass_all():
        for handler in registry(on_event, on_event, on_event)._watching.get_all_handlers():
            # kopf gives handlers many arguments by name, its own `resource` among them.
            words = dict.fromkeys(("resource", "body", "meta", "spec", "status", "name", "uid", "logger", "memo"))
            await handler.fn(event={"type": "DELETED", "object": {"of": handler.id}}, **words)

    asyncio.run(pass_all())
    assert passed == [(kind, {"of": f"{kind.plural}-event"}, True) for kind in WATCHED]
