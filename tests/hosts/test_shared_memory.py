"""The memory store of the driver, as tasks of this machine reach it; and the masters on which they cannot."""

from __future__ import annotations

import gc
import pickle
import stat
import weakref
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.managers import RemoteError
from pathlib import Path

import psutil
import pytest

from hosts.visits import JOB
from joinery_runtime.errors import EnvironmentProblem, Fenced, JobError
from joinery_runtime.hosts.shared_memory import check_memory_store, serve
from joinery_runtime.hosts.worker_builder import WorkerBuilder
from joinery_runtime.job import parse_job
from joinery_runtime.state.memory import MemoryStore
from joinery_runtime.state.store import OwnershipToken


def test_a_task_claims_its_part_while_its_driver_owns_the_job() -> None:
    store = MemoryStore()
    with serve(store) as address:
        task = address.connect()
        store.acquire("job")
        store.write_plan("job", 1, {"epoch": 1}, {})
        assert task.claim("job", OwnershipToken(1, 0, 1), "job-0", "me") is None
        assert store.claims("job") == {"job-0": "me"}
        store.acquire("job")
        with pytest.raises(Fenced):
            task.claim("job", OwnershipToken(1, 0, 1), "job-0", "me")


def test_only_who_may_read_the_key_is_let_in(tmp_path: Path) -> None:
    guessed = tmp_path / "guessed"
    guessed.write_bytes(bytes(32))
    with serve(MemoryStore()) as address:
        assert stat.S_IMODE(address.key_file.stat().st_mode) == 0o600
        assert stat.S_IMODE(address.key_file.parent.stat().st_mode) == 0o700
        assert address.key_file.read_bytes() not in pickle.dumps(address)
        with pytest.raises(AuthenticationError):
            replace(address, key_file=guessed).connect()
    with pytest.raises(EnvironmentProblem, match=r"cannot reach the state .* No such file .* stateStore\.postgres"):
        address.connect()


def test_the_store_listens_on_loopback() -> None:
    with serve(MemoryStore()) as address:
        listening = {at.laddr for at in psutil.Process().net_connections() if at.status == psutil.CONN_LISTEN}
        assert {at.ip for at in listening if at.port == address.port} == {"127.0.0.1"}


@pytest.mark.parametrize("master", ["spark://there:7077", "k8s://https://there", "yarn"])
def test_a_master_with_other_machines_is_rejected_by_name(master: str) -> None:
    job = parse_job(JOB + "  stateStore: {memory: {}}\n", "job.yaml")
    with pytest.raises(JobError, match=r"spec\.stateStore\.memory: .*stateStore\.postgres") as rejected:
        check_memory_store(job, master)
    assert master in str(rejected.value)
    check_memory_store(parse_job(JOB, "job.yaml"), master)


@pytest.mark.parametrize("master", ["local", "local[2]", "local-cluster[2,1,1024]", ""])
def test_a_master_of_this_machine_has_a_memory_store(master: str) -> None:
    check_memory_store(parse_job(JOB + "  stateStore: {memory: {}}\n", "job.yaml"), master)


def test_a_store_that_is_no_longer_served_is_let_go() -> None:
    """A notebook runs job after job, and a server of multiprocessing has no end of its own."""
    store = MemoryStore()
    reference = weakref.ref(store)
    with serve(store) as address:
        task = address.connect()
    del store
    gc.collect()
    assert reference() is None
    with pytest.raises(RemoteError):
        task.read_segments("job", [])


def test_workers_tell_two_runs_of_one_job_apart_by_their_stores() -> None:
    """Spark keeps a worker for a minute, with the store of the run that built it."""
    job = parse_job(JOB, "job.yaml")
    with serve(MemoryStore()) as first, serve(MemoryStore()) as second:
        builders = [WorkerBuilder(job, None, address) for address in (first, second, first)]
    assert builders[0].digest == builders[2].digest != builders[1].digest
