"""Which namespaces end, on an API server in memory."""

import asyncio

from structlog.testing import capture_logs

from joinery_operator.kube.audit import EndingNamespaces
from joinery_operator.kube.cache import ObjectCache
from joinery_operator.kube.resources import ObjectKey
from simulated_cluster.memory_server import MemoryApi, MemoryServer
from simulated_cluster.small_reconcile import job

JOB = ObjectKey("StreamJoin", "shop", "orders")
ENDS = {"metadata": {"name": "shop", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
FORBIDDEN = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": 'User "operator" cannot get namespaces'}


def rounds(*answers, finalizers=("joinery.dev/delete-state",)):
    """What is asked, queued and known after each round, while the API server answers so about the namespace."""
    server, cache, queued, ended = MemoryServer(), ObjectCache(), [], []
    manifest = job()
    manifest["metadata"]["finalizers"] = list(finalizers)
    cache.put(server.add(manifest), JOB.kind)
    paths = []

    async def run():
        async with MemoryApi(server) as api:
            namespaces = EndingNamespaces(api, ["shop", "other"], cache, queued.append)
            for answer in answers:
                server.before = lambda method, path, answer=answer: paths.append(f"{method} {path}") or answer
                await namespaces.round()
                ended.append("shop" in namespaces)

    asyncio.run(run())
    return paths, queued, ended


LIVES = {"metadata": {"name": "shop"}}


def test_its_jobs_are_queued_once_when_it_begins_to_end():
    paths, queued, ended = rounds((200, LIVES), (200, ENDS), (200, ENDS))
    assert paths == ["GET /api/v1/namespaces/shop"] * 3, "and nothing is asked of the one without jobs"
    assert queued == [JOB]
    assert ended == [False, True, True]


def test_and_once_more_when_it_is_there_again():
    _, queued, ended = rounds((200, ENDS), (404, {"reason": "NotFound"}), (403, FORBIDDEN), (200, LIVES))
    assert queued == [JOB, JOB]
    assert ended == [True, True, True, False]


def test_nothing_is_asked_where_no_finalizer_is_the_operators():
    assert rounds((200, ENDS), finalizers=("foregroundDeletion",)) == ([], [], [False])


def test_one_that_may_not_be_read_is_warned_of_once():
    with capture_logs() as lines:
        _, queued, ended = rounds((403, FORBIDDEN), (403, FORBIDDEN))
    assert (queued, ended) == ([], [False, False])
    (line,) = lines
    assert (line["namespace"], "may not see" in line["event"]) == ("shop", True)
