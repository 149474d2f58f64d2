"""Which states in a database no resource of a cluster uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.commands import Joinery
from joinery_runtime.job.model.owner import OwnerCandidate, StateOwner
from joinery_runtime.state.postgres import PostgresStore
from state.values import run_epoch

pytestmark = pytest.mark.services

EAST = StateOwner(cluster="east", kind="StreamJoin", namespace="jobs", name="orders", uid="u-1")


def owned(store: PostgresStore, job: str, owner: StateOwner | None) -> None:
    run_epoch(store, store.acquire(job, None if owner is None else OwnerCandidate(owner=owner)), 1, ["a"])


def other(**fields: str) -> StateOwner:
    return EAST.model_copy(update=fields)


def resource(kind: str, name: str, uid: str) -> dict[str, Any]:
    metadata = {"namespace": "jobs", "name": name, "uid": uid, "resourceVersion": "7"}
    return {"apiVersion": "joinery.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": {}, "status": {}}


@pytest.fixture
def store_options(postgres_dsn: str, schema: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    owned(store, "jobs/orders", EAST)
    owned(store, "jobs/deleted", other(name="deleted", uid="u-2"))
    owned(store, "jobs/recreated", other(name="recreated", uid="u-3"))
    owned(store, "jobs/west", other(cluster="west", name="west", uid="u-4"))
    owned(store, "jobs/laptop", StateOwner())
    owned(store, "jobs/old", None)
    owned(store, "jobs/older", None)
    monkeypatch.setenv("JOINERY_STATE_DSN", postgres_dsn)
    return ["--schema", schema]


@pytest.fixture
def resources(tmp_path: Path) -> Path:
    """As kubectl prints them."""
    jobs = [("StreamJoin", "orders", "u-1"), ("StreamJoin", "recreated", "u-8"), ("SessionWindow", "old", "u-9")]
    path = tmp_path / "resources.json"
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [resource(*job) for job in jobs]}))
    return path


def verdicts(joinery: Joinery, *arguments: object) -> dict[str, str]:
    ended = joinery("state", "orphans", *arguments)
    assert (ended.code, ended.err) == (0, "")
    (document,) = ended.lines
    return {state["job"]: state["verdict"] for state in document["states"]}


def test_states_without_a_resource_are_named(joinery: Joinery, store_options: list[str], resources: Path) -> None:
    expected = {
        "jobs/orders": "used",
        "jobs/deleted": "orphan",
        "jobs/recreated": "used",
        "jobs/west": "unknown",
        "jobs/laptop": "unknown",
        "jobs/old": "used",
        "jobs/older": "unknown",
    }
    assert verdicts(joinery, *store_options, "--resources", resources) == expected
    assert verdicts(joinery, *store_options, "--resources", resources, "--cluster", "east") == expected
    of_west = verdicts(joinery, *store_options, "--resources", resources, "--cluster", "west")
    assert (of_west["jobs/deleted"], of_west["jobs/west"]) == ("unknown", "orphan")


def test_the_text_says_why_and_how_to_delete(
    joinery: Joinery, store_options: list[str], resources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    text = joinery("state", "orphans", *store_options, "--resources", resources).out
    assert "7 states in " in text
    assert "compared with 3 resources" in text
    assert "StreamJoin jobs/deleted (uid u-2) of cluster east was deleted" in text
    assert "of cluster west: another cluster" in text
    assert "joinery state delete JOB.yaml --yes" in text


def test_a_cluster_that_no_state_names_has_to_be_named(
    joinery: Joinery, store_options: list[str], tmp_path: Path
) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text('{"kind": "List", "items": []}')
    assert verdicts(joinery, *store_options, "--resources", empty)["jobs/orders"] == "unknown"
    assert verdicts(joinery, *store_options, "--resources", empty, "--cluster", "east")["jobs/orders"] == "orphan"


def test_without_a_cluster_it_tells_whose_each_state_is(
    joinery: Joinery, store_options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(verdicts(joinery, *store_options).values()) == {"unknown"}
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    text = joinery("state", "orphans", *store_options).out
    assert "kubectl get streamjoins,sessionwindows -A -o json | joinery state orphans --resources /dev/stdin" in text
    assert "unknown: jobs/laptop (" in text
    assert "it belongs to `joinery run`" in text
    assert "no owner is on record" in text


def test_it_changes_nothing(joinery: Joinery, store_options: list[str], store: PostgresStore, resources: Path) -> None:
    before = [store.record(job) for job in store.jobs()]
    verdicts(joinery, *store_options, "--resources", resources)
    assert [store.record(job) for job in store.jobs()] == before


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"items": [{"kind": "StreamJoin"}]}'])
def test_mistakes_say_what_to_do(joinery: Joinery, store_options: list[str], tmp_path: Path, text: str) -> None:
    path = tmp_path / "resources.json"
    path.write_text(text)
    ended = joinery("state", "orphans", *store_options, "--resources", path)
    assert ended.code == 1
    assert "Make it with: kubectl get streamjoins,sessionwindows -A -o json" in ended.err
    missing = joinery("state", "orphans", *store_options, "--resources", tmp_path / "missing")
    assert "No such file" in missing.err
    nowhere = joinery("state", "orphans", "--schema", "nowhere")
    assert "There is no state store" in nowhere.err
