"""How the watches of one set of namespaces end."""

import asyncio
from types import SimpleNamespace

from joinery_operator.kube import process
from joinery_operator.settings import Settings


async def nothing(*_):
    pass


def test_a_namespace_that_is_back_is_worked_on_although_kopf_does_not_end(monkeypatch):
    """kopf 1.45 may wait for ever: that must not end the operator."""

    async def never_ends(**_):
        await asyncio.Event().wait()

    async def back():
        return ("shop",)

    monkeypatch.setattr(process.kopf, "operator", never_ends)
    monkeypatch.setattr(process, "_KOPF_STOP_SECONDS", 0.01)
    controller = SimpleNamespace(on_watch_event=nothing, close=nothing, watched=())

    async def watch():
        return await process._watch(Settings(namespaces=("mill",)), controller, nothing, back(), asyncio.Future())

    ended = asyncio.run(watch())
    assert ended == ("shop",)
