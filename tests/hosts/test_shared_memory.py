from __future__ import annotations

import pytest

from joinery_runtime.errors import Fenced
from joinery_runtime.hosts.shared_memory import serve
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.store import Standing


def test_a_task_claims_its_part_while_its_driver_owns_the_job() -> None:
    with serve(MemoryStore()) as (store, address):
        task = address.connect()
        store.acquire("job")
        store.write_plan("job", 1, {"epoch": 1}, {})
        assert task.claim("job", Standing(1, 0, 1), "job-0", "me") is None
        assert store.claims("job") == {"job-0": "me"}
        store.acquire("job")
        with pytest.raises(Fenced):
            task.claim("job", Standing(1, 0, 1), "job-0", "me")
