"""Two clusters with the same job and the same Postgres: the state belongs to one of them."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from joinery_runtime.engine.loop import JobListener
from joinery_runtime.errors import StateTaken
from joinery_runtime.hosts.run import run_job
from joinery_runtime.job import job_from
from joinery_runtime.job.model.owner import REPLACES_OWNER, STATE_OWNER, OwnerCandidate, RecordedOwner, StateOwner
from joinery_runtime.state.postgres import PostgresStore

pytestmark = pytest.mark.services

SCHEMA = [{"name": "k", "type": "string"}, {"name": "ts", "type": "timestamp"}]
_schemas = (f"state_owner_{number}" for number in count())


class Scene:
    """A join whose state is in Postgres, and the places that run it."""

    def __init__(self, folder: Path, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        self._place = {"dsn": dsn, "schema": next(_schemas)}
        for name in ("l", "r"):
            (folder / f"{name}.jsonl").write_text(json.dumps({"k": "a", "ts": 100}) + "\n")

    def owner(self) -> RecordedOwner | None:
        store = PostgresStore(self._place["dsn"], self._place["schema"])
        record = store.record("jobs/orders")
        store.close()
        assert record is not None
        return record.owner

    def runs_in(self, cluster: str, replaces: str = "") -> list[str]:
        """As a driver's pod of that cluster; "": as `joinery run`. Returns the warnings."""
        if cluster:
            owner = StateOwner(
                cluster=cluster, kind="StreamJoin", namespace="jobs", name="orders", uid=f"uid-{cluster}"
            )
            text = OwnerCandidate(owner=owner, replaces=replaces).model_dump_json()
            self._monkeypatch.setenv(STATE_OWNER, text)
        else:
            self._monkeypatch.delenv(STATE_OWNER, raising=False)
        return self._run({REPLACES_OWNER: replaces, "other.example/number": 7} if replaces and not cluster else None)

    def runs_in_a_pod_of_an_earlier_operator(self) -> None:
        self._monkeypatch.delenv(STATE_OWNER, raising=False)
        self._monkeypatch.setenv("JOINERY_REVISION", "abc")
        self._run(None)

    def _run(self, annotations: dict[str, Any] | None) -> list[str]:
        inputs = [
            {"name": name, "file": {"path": f"{name}.jsonl"}, "format": "json", "schema": SCHEMA, "eventTime": "ts"}
            for name in ("l", "r")
        ]
        interval = {"of": "l", "lower": "0s", "upper": "10ms"}
        document: dict[str, Any] = {
            "apiVersion": "joinery.dev/v1alpha1",
            "kind": "StreamJoin",
            "metadata": {"name": "orders", "namespace": "jobs", "annotations": annotations},
            "spec": {
                "inputs": inputs,
                "joins": [{"right": "r", "keys": {"l.k": "r.k"}, "interval": interval}],
                "output": {"file": {"path": "out"}},
                "stateStore": {"postgres": self._place},
            },
        }
        warnings: list[str] = []
        hears = JobListener(lambda _: None, lambda _: None, lambda error, _: pytest.fail(str(error)))
        run_job(job_from(document), hears, Event(), warn=warnings.append, local=True)
        return [words for words in warnings if "belonged to" in words]

    def id_of_owner(self) -> str:
        owner = self.owner()
        assert owner is not None
        return owner.id


@pytest.fixture
def scene(tmp_path: Path, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)
    return Scene(tmp_path, postgres_dsn, monkeypatch)


def test_the_second_cluster_ends_before_it_fences_the_first(scene: Scene) -> None:
    assert scene.runs_in("east") == []
    before = scene.owner()
    with pytest.raises(StateTaken, match=r"jobs/orders \(uid uid-east\) of cluster east"):
        scene.runs_in("west")
    assert scene.owner() == before
    assert scene.runs_in("east") == []
    (warning,) = scene.runs_in("west", replaces=scene.id_of_owner())
    assert "belonged to StreamJoin jobs/orders (uid uid-east) of cluster east until now" in warning
    with pytest.raises(StateTaken):
        scene.runs_in("east")


def test_joinery_run_is_an_owner_of_its_own(scene: Scene) -> None:
    assert scene.runs_in("") == scene.runs_in("") == []
    with pytest.raises(StateTaken, match="belongs to `joinery run`"):
        scene.runs_in("east")
    scene.runs_in("east", replaces=scene.id_of_owner())
    with pytest.raises(StateTaken, match=r"into metadata\.annotations of the file"):
        scene.runs_in("")
    (warning,) = scene.runs_in("", replaces=scene.id_of_owner())
    assert "cluster east" in warning


def test_an_operator_that_names_no_owners_yet_takes_nothing_from_its_next_release(scene: Scene) -> None:
    scene.runs_in_a_pod_of_an_earlier_operator()
    assert scene.owner() is None
    scene.runs_in("east")
    scene.runs_in_a_pod_of_an_earlier_operator()
    assert scene.id_of_owner().startswith("east/")
