"""A kubectl that answers from a folder of files and notes what it was asked."""

from __future__ import annotations

import json
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from joinery_operator.plugin import rollout
from joinery_operator.plugin.app import main
from joinery_runtime.job.crd import KINDS

# The shell of a program that reads `answers.json` beside it: a list of [words that must occur, exit code, out, err].
_KUBECTL = f"""#!{sys.executable} -S
import json, pathlib, sys
here = pathlib.Path(__file__).parent
asked = sys.argv[1:]
with (here / "asked").open("a") as log:
    log.write(json.dumps(asked) + "\\n")
if "create" in asked:
    (here / "created").write_text(sys.stdin.read())
for words, code, out, err in json.loads((here / "answers.json").read_text()):
    if all(word in asked for word in words):
        sys.stdout.write(out)
        sys.stderr.write(err)
        sys.exit(code)
sys.exit("no answer for " + repr(asked))
"""

Manifest = dict[str, Any]


@dataclass(slots=True)
class FakeKubectl:
    folder: Path

    def __post_init__(self) -> None:
        program = self.folder / "kubectl"
        program.write_text(_KUBECTL)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self._write([])

    def answer(self, *words: str, out: str | Manifest = "", code: int = 0, err: str = "") -> None:
        """What is said to a call that has all these words. The first answer that fits is given."""
        text = out if isinstance(out, str) else json.dumps(out)
        answers = json.loads((self.folder / "answers.json").read_text())
        self._write([*answers, [words, code, text, err]])

    def knows(self, *jobs: Manifest) -> None:
        """Jobs of any kinds; whoever asks for others, by name or kind, is told that there are none."""
        plurals = [kind.plural for kind in KINDS]
        for requested_plurals in [plurals, *([plural] for plural in plurals)]:
            words = ",".join(f"{plural}.joinery.dev" for plural in requested_plurals)
            kinds = {kind.name for kind in KINDS if kind.plural in requested_plurals}
            for name in {job["metadata"]["name"] for job in jobs}:
                matching = [job for job in jobs if job["metadata"]["name"] == name and job["kind"] in kinds]
                self.answer("get", f"--field-selector=metadata.name={name}", words, out={"items": matching})
            self.answer("get", words, out={"items": []})

    def has_pod(self, name: str, phase: str = "Running", **metadata: str) -> None:
        pod = {"metadata": {"name": name, **metadata}, "status": {"phase": phase}}
        self.answer("get", "pods", f"--field-selector=metadata.name={name}", out={"items": [pod]})

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "asked").read_text().splitlines()]

    @property
    def created(self) -> Manifest:
        """What was last handed to `kubectl create`."""
        manifest: Manifest = json.loads((self.folder / "created").read_text())
        return manifest

    def _write(self, answers: list[Any]) -> None:
        (self.folder / "answers.json").write_text(json.dumps(answers))


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    monkeypatch.setenv("PATH", str(tmp_path))
    return FakeKubectl(tmp_path)


@pytest.fixture
def plugin(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        out, err = capfd.readouterr()
        return Ended(ended.value.code, out, err)

    return run


def sleep_by(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    """Have `rollout status` sleep by this function. Other threads of the process keep the real one: they would run the
    function beside the test."""
    monkeypatch.setattr(rollout, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
