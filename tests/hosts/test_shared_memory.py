from __future__ import annotations

from joinery_runtime.hosts.shared_memory import serve
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.store import Standing


def test_a_task_sees_who_owns_the_job() -> None:
    with serve(MemoryStore()) as (store, address):
        task = address.connect()
        assert task.standing("job") is None
        store.acquire("job")
        assert task.standing("job") == Standing(1, 0, planned=None)
        store.acquire("job")
        assert task.standing("job") == Standing(2, 0, planned=None)
