import asyncio
import pickle

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from joinery_operator.kube.api import Api, ApiError, Conflict, NotFound
from joinery_operator.kube.metrics import Metrics
from joinery_operator.kube.resources import JOBS, POD
from simulated_cluster.memory_server import MemoryApi, MemoryServer
from simulated_cluster.small_reconcile import job

STREAM_JOIN = JOBS[0]


def call(server, act):
    api = MemoryApi(server)

    async def run():
        async with api:
            return await act(api)

    return api, lambda: asyncio.run(run())


@pytest.mark.parametrize("status", [0, 401, 429, 500, 503])
def test_what_may_pass_is_tried_again(status):
    server = MemoryServer()
    answers = iter([(status, {}), (status, {}), None])
    server.before = lambda method, path: next(answers)
    server.objects["pods", "shop", "a"] = {"kind": "Pod", "metadata": {"name": "a"}}
    api, run = call(server, lambda api: api.get(POD, "shop", "a"))
    assert run()["metadata"]["name"] == "a"
    assert api.pauses == [0.2, 1.0]


def test_the_last_try_raises_what_the_server_said():
    server = MemoryServer()
    server.before = lambda method, path: (500, {"reason": "InternalError", "message": "etcd is away"})
    _, run = call(server, lambda api: api.get(POD, "shop", "a"))
    with pytest.raises(ApiError, match="GET /api/v1/namespaces/shop/pods/a: 500 InternalError: etcd is away"):
        run()
    assert server.calls == ["GET pods"] * 4


def test_a_refusal_is_not_tried_again_and_says_what_to_do():
    server = MemoryServer()
    message = 'User "x" cannot create resource "pods"'
    server.before = lambda method, path: (403, {"reason": "Forbidden", "message": message})
    _, run = call(server, lambda api: api.create(POD, "shop", {}))
    with pytest.raises(ApiError, match=r"cannot create.*Give the operator's role that permission"):
        run()
    assert server.calls == ["POST pods"]


def test_refusals_have_their_types_and_cross_processes():
    server = MemoryServer()
    _, run = call(server, lambda api: api.get(POD, "shop", "a"))
    with pytest.raises(NotFound) as caught:
        run()
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.code, again.reason) == (404, "NotFound")
    created = server.add(job())
    stale = {**created, "metadata": {**created["metadata"], "resourceVersion": "0"}, "status": {}}
    _, run = call(server, lambda api: api.replace_status(STREAM_JOIN, stale))
    with pytest.raises(Conflict):
        run()


def test_calls_are_counted_by_verb_and_code():
    metrics = Metrics()
    api = MemoryApi(MemoryServer(), metrics)

    async def run():
        async with api:
            await api.list(POD, None)
            with pytest.raises(NotFound):
                await api.get(POD, "shop", "a")

    asyncio.run(run())
    count = metrics.registry.get_sample_value
    assert count("joinery_operator_api_calls_total", {"verb": "list", "kind": "Pod", "code": "200"}) == 1
    assert count("joinery_operator_api_calls_total", {"verb": "get", "kind": "Pod", "code": "404"}) == 1


def over_http(handler, act):
    """`act(api)` against a real HTTP server with one handler for all; the pauses that it made."""
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)

    async def run():
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        configuration = Configuration()
        configuration.host = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        configuration.api_key["BearerToken"] = "bearer secret"
        async with Api(configuration, Metrics(), sleep) as api:
            try:
                return await act(api)
            finally:
                await runner.cleanup()

    return asyncio.run(run()), pauses


def test_requests_are_what_kubernetes_wants():
    seen = []

    async def handler(request):
        seen.append((request.method, request.path_qs, dict(request.headers), await request.text()))
        return web.json_response({"metadata": {}, "items": []})

    async def act(api):
        await api.list(POD, "shop", "a=b", metadata_only=True)
        await api.patch(POD, "shop", "a", {"metadata": {"labels": {}}})
        await api.delete(POD, "shop", "a", "uid-1", grace_seconds=3)

    over_http(handler, act)
    (listed, patched, deleted) = seen
    assert listed[:2] == ("GET", "/api/v1/namespaces/shop/pods?labelSelector=a%3Db&resourceVersion=0")
    assert listed[2]["Accept"].startswith("application/json;as=PartialObjectMetadataList")
    assert listed[2]["Authorization"] == "bearer secret"
    assert patched[2]["Content-Type"] == "application/merge-patch+json"
    assert '"preconditions": {"uid": "uid-1"}' in deleted[3]
    assert '"gracePeriodSeconds": 3' in deleted[3]


def test_a_server_that_asks_to_wait_is_given_time():
    answers = iter([web.json_response({}, status=429, headers={"Retry-After": "7"}), web.json_response({"items": []})])

    async def handler(request):
        return next(answers)

    _, pauses = over_http(handler, lambda api: api.list(POD, None))
    assert pauses == [7.0]


def test_no_answer_is_an_error_that_names_the_call():
    configuration = Configuration()
    configuration.host = "http://127.0.0.1:1"

    async def sleep(seconds):
        pass

    async def run():
        async with Api(configuration, Metrics(), sleep) as api:
            await api.list(POD, None)

    with pytest.raises(ApiError, match="GET /api/v1/pods: no answer ClientConnectorError") as caught:
        asyncio.run(run())
    assert caught.value.code == 0
