"""The end of a bounded file is committed, whatever else the job does (T7): lines that are added later are not read."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from joinery_runtime.engine.loop import JobListener
from joinery_runtime.hosts.run import run_job
from joinery_runtime.job import job_from

SCHEMA = [{"name": "k", "type": "string"}, {"name": "ts", "type": "timestamp"}]

_schemas = (f"committed_ends_{number}" for number in count())


class Scene:
    """A join of the files `l` and `r`, whose state is kept."""

    def __init__(self, folder: Path, dsn: str, kind: str) -> None:
        self._folder, self._dsn, self._kind, self._schema = folder, dsn, kind, next(_schemas)

    def add(self, name: str, *times: int) -> None:
        with (self._folder / f"{name}.jsonl").open("a") as file:
            file.writelines(json.dumps({"k": "a", "ts": ts}) + "\n" for ts in times)

    def run(self, *, once: bool = False) -> list[str]:
        """Returns the warnings."""
        inputs = [
            {"name": name, "file": {"path": f"{name}.jsonl"}, "format": "json", "schema": SCHEMA, "eventTime": "ts"}
            for name in ("l", "r")
        ]
        interval = {"of": "l", "lower": "0s", "upper": "10ms"}
        document: dict[str, Any] = {
            "apiVersion": "joinery.dev/v1alpha1",
            "kind": "StreamJoin",
            "metadata": {"name": f"ends-{self._kind}"},
            "spec": {
                "inputs": inputs,
                "joins": [{"right": "r", "type": self._kind, "keys": {"l.k": "r.k"}, "interval": interval}],
                "output": {"file": {"path": "out"}},
                "stateStore": {"postgres": {"dsn": self._dsn, "schema": self._schema}},
            },
        }
        warnings: list[str] = []
        hears = JobListener(
            lambda _: None, lambda _: None, lambda error, _: pytest.fail(str(error)), warned=warnings.append
        )
        run_job(job_from(document), hears, Event(), warn=warnings.append, once=once, local=True)
        return [words for words in warnings if words.startswith("The end of input")]

    def rows(self) -> int:
        return sum(len(file.read_text().splitlines()) for file in (self._folder / "out").glob("*.jsonl"))


@pytest.fixture(params=["inner", "left", "full"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Of an inner join nothing closes at the end, of a left or full one rows do: that takes another epoch."""
    monkeypatch.chdir(tmp_path)
    return Scene(tmp_path, postgres_dsn, request.param)


def test_lines_that_are_added_to_a_file_that_has_ended_are_not_read_and_named(scene: Scene) -> None:
    scene.add("l", 100, 1_000)
    scene.add("r", 105)
    assert scene.run() == []
    rows = scene.rows()
    scene.add("l", 2_000)
    scene.add("r", 2_001)
    left, right = scene.run()
    assert left.startswith("The end of input l is committed, and more was added since: to ")
    assert "l.jsonl. It is not read." in left
    assert right.startswith("The end of input r is committed")
    assert scene.rows() == rows


def test_a_run_once_reads_them(scene: Scene) -> None:
    for number in range(2):
        scene.add("l", 1_000 * number)
        scene.add("r", 1_000 * number + 1)
        assert scene.run(once=True) == []
    assert scene.rows() == 2
