from __future__ import annotations

import pickle
from multiprocessing import AuthenticationError

import pytest

from joinery_runtime.errors import EnvironmentProblem, Fenced
from joinery_runtime.hosts.shared_memory import serve
from joinery_runtime.hosts.spark_security import ENV_SECRET
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.store import Standing


def test_a_task_claims_its_part_while_its_driver_owns_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_SECRET, "application")
    store = MemoryStore()
    with serve(store, "application") as address:
        task = address.connect()
        store.acquire("job")
        store.write_plan("job", 1, {"epoch": 1}, {})
        assert task.claim("job", Standing(1, 0, 1), "job-0", "me") is None
        assert store.claims("job") == {"job-0": "me"}
        store.acquire("job")
        with pytest.raises(Fenced):
            task.claim("job", Standing(1, 0, 1), "job-0", "me")


def test_only_who_knows_the_applications_secret_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(MemoryStore(), "application") as address:
        assert b"application" not in pickle.dumps(address)
        monkeypatch.setenv(ENV_SECRET, "guessed")
        with pytest.raises(AuthenticationError):
            address.connect()
        monkeypatch.delenv(ENV_SECRET)
        with pytest.raises(EnvironmentProblem, match="Workers cannot reach the state in the driver's memory"):
            address.connect()
    with pytest.raises(EnvironmentProblem), serve(MemoryStore(), None):
        pass
