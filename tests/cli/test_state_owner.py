"""The commands of an operator's pods leave the state of another resource alone; a person's do as they are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.commands import Joinery
from cli.stored_state import commit_rows
from job.resources import edited
from joinery_runtime.job import StreamJoin
from joinery_runtime.job.crd.driver import Ending
from joinery_runtime.job.model.owner import STATE_OWNER, OwnerCandidate, StateOwner
from joinery_runtime.state.postgres import PostgresStore

JOB = "orders-payments"
OUTPUT = "    postgres: {table: joined}\n"
EAST = StateOwner(cluster="east", kind="StreamJoin", namespace="jobs", name=JOB, uid="u-1")
WEST = EAST.model_copy(update={"cluster": "west", "uid": "u-2"})

pytestmark = pytest.mark.services


@pytest.fixture
def job_file(postgres_dsn: str, tmp_path: Path, schema: str) -> Path:
    path = tmp_path / "job.yaml"
    text = f'{OUTPUT}  stateStore: {{postgres: {{dsn: "{postgres_dsn}", schema: "{schema}"}}}}\n'
    path.write_text(edited((OUTPUT, text)))
    return path


@pytest.fixture
def of_east(job: StreamJoin, store: PostgresStore) -> None:
    record = store.acquire(JOB, OwnerCandidate(owner=EAST))
    orders = [{"order_id": "o-1", "country": 49, "amount": None, "ts": 1_000}]
    commit_rows(store, record, job, 1, (orders, []), rows_out=0)
    store.create_savepoint(JOB, "sp")


COMMANDS = {
    "check": ("check",),
    "migrate": ("migrate", "--savepoint", "rollout-abc-1"),
    "anew": ("migrate", "--savepoint", "rollout-abc-1", "--anew"),
    "restore": ("restore", "--savepoint", "rollout-abc-1", "--before-first-commit"),
    "savepoint": ("savepoint", "another", "--idempotent"),
    "unpin": ("savepoint", "sp", "--delete", "--idempotent"),
    "delete": ("delete", "--yes"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_pod_of_another_cluster_changes_nothing(
    joinery: Joinery,
    job_file: Path,
    store: PostgresStore,
    of_east: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
) -> None:
    monkeypatch.setenv("JOINERY_ENDING_FILE", str(tmp_path / "ending"))
    monkeypatch.setenv(STATE_OWNER, OwnerCandidate(owner=WEST).model_dump_json(exclude_defaults=True))
    before = store.record(JOB), store.savepoints(JOB)
    command, *arguments = COMMANDS[name]
    assert joinery("state", command, job_file, *arguments).code == 1
    ending = Ending.model_validate_json((tmp_path / "ending").read_bytes())
    assert (ending.kind, ending.retry) == ("StateTaken", False)
    assert "belongs to StreamJoin jobs/orders-payments (uid u-1) of cluster east" in ending.error
    assert (store.record(JOB), store.savepoints(JOB)) == before


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "delete"])
@pytest.mark.parametrize("pod", [True, False])
def test_its_own_pod_and_a_person_do(
    joinery: Joinery,
    job_file: Path,
    store: PostgresStore,
    of_east: None,
    monkeypatch: pytest.MonkeyPatch,
    pod: bool,
    name: str,
) -> None:
    if pod:
        monkeypatch.setenv(STATE_OWNER, OwnerCandidate(owner=EAST).model_dump_json(exclude_defaults=True))
    command, *arguments = COMMANDS[name]
    assert joinery("state", command, job_file, *arguments).code == 0
    record = store.record(JOB)
    assert record is not None
    assert record.owner is not None
    assert record.owner.owner == EAST


def test_a_person_deletes_a_state_that_lost_its_owner(
    joinery: Joinery, job_file: Path, store: PostgresStore, of_east: None
) -> None:
    assert joinery("state", "delete", job_file, "--yes").code == 0
    assert store.record(JOB) is None
