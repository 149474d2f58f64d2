"""What a container says when it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from cli.commands import Joinery
from joinery_runtime.cli.ending import ending_bytes, failed_ending, writing_ending
from joinery_runtime.engine.loop import JobListener
from joinery_runtime.errors import (
    DuplicateJobName,
    ExpressionError,
    Fenced,
    IncompatibleState,
    JobError,
    JoineryError,
    LimitReached,
    Problem,
    SourceError,
    StoreUnavailable,
)
from joinery_runtime.job.crd import MESSAGE_BYTES, Ending


@pytest.fixture
def ending_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "termination-log"
    monkeypatch.setenv("JOINERY_ENDING_FILE", str(path))
    return path


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Puts `body` in the place of the run itself."""

    def replace(body: Callable[[], None]) -> None:
        def run_job(_job: Any, _listener: JobListener, _stop: Event, **_: Any) -> None:
            body()

        monkeypatch.setattr("joinery_runtime.cli.run.run_job", run_job)

    return replace


def read(path: Path) -> Ending:
    return Ending.model_validate_json(path.read_bytes())


def raising(error: Exception) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


def test_a_job_whose_inputs_have_ended_is_finished(
    joinery: Joinery, job_file: Path, running: Any, ending_file: Path
) -> None:
    ending_file.write_text("of an earlier run")
    running(lambda: None)
    assert joinery("run", job_file).code == 0
    assert read(ending_file) == Ending(outcome="finished")


def test_a_run_that_is_told_to_end_is_stopped(
    joinery: Joinery, job_file: Path, running: Any, ending_file: Path
) -> None:
    running(lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert joinery("run", job_file).code == 0
    assert read(ending_file) == Ending(outcome="stopped")


@pytest.mark.parametrize(
    ("error", "code", "retry"),
    [
        (JobError("job.yaml", [Problem("spec", "is wrong")]), 2, False),
        (ExpressionError("no such function"), 2, False),
        (IncompatibleState("the keys were others"), 1, False),
        (LimitReached("the state is over its limits"), 1, False),
        (StoreUnavailable("the store is away"), 1, True),
        (Fenced("a newer driver"), 1, True),
        (SourceError("the broker is away", todo="Wait"), 1, True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_a_failure_has_its_kind_and_whether_to_try_again(
    joinery: Joinery, job_file: Path, running: Any, ending_file: Path, error: JoineryError, code: int, retry: bool
) -> None:
    running(raising(error))
    assert joinery("run", job_file).code == code
    ending = Ending(outcome="failed", error=str(error), kind=type(error).__name__, retry=retry)
    assert read(ending_file) == ending


def test_an_error_that_is_not_ours_is_told_by_its_last_line(
    joinery: Joinery, job_file: Path, running: Any, ending_file: Path
) -> None:
    running(raising(KeyError("x")))
    with pytest.raises(KeyError):
        joinery("run", job_file)
    assert read(ending_file) == Ending(outcome="failed", error="KeyError: 'x'", kind="KeyError", retry=True)


def test_an_option_that_this_release_lacks_fails_for_good(joinery: Joinery, job_file: Path, ending_file: Path) -> None:
    assert joinery("run", job_file, "--no-such-option", "1").code != 0
    ending = read(ending_file)
    assert (ending.outcome, ending.kind, ending.retry) == ("failed", "Usage", False)


def test_other_commands_tell_their_ending_too(joinery: Joinery, job_file: Path, ending_file: Path) -> None:
    assert joinery("validate", job_file).code == 0
    assert read(ending_file) == Ending(outcome="finished")
    assert joinery("validate", job_file.with_name("none.yaml")).code == 2
    assert read(ending_file).kind == "JobError"


def test_what_a_command_has_said_itself_stays(ending_file: Path) -> None:
    with writing_ending() as report:
        ending_file.write_text("the answer")
        report(None)
    assert ending_file.read_text() == "the answer"


def test_sigterm_ends_a_command_that_has_no_way_of_its_own(ending_file: Path) -> None:
    def command() -> None:
        with writing_ending():
            os.kill(os.getpid(), signal.SIGTERM)
            Event().wait(10)

    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 143
    assert read(ending_file) == Ending(outcome="stopped")


def test_without_a_file_nothing_is_told(joinery: Joinery, job_file: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    assert joinery("validate", job_file).code == 0
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_that_cannot_be_written_is_said_and_changes_nothing_else(
    joinery: Joinery, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOINERY_ENDING_FILE", "/nowhere/at/all")
    ended = joinery("validate", job_file)
    assert ended.code == 0
    assert "/nowhere/at/all, which JOINERY_ENDING_FILE names, cannot be written" in ended.err


@pytest.mark.parametrize("character", ["x", "ä", "\u20ac", '"', "\x01", "\U0001f600"])
def test_a_long_error_loses_its_middle_and_fits(character: str) -> None:
    ending = failed_ending(JoineryError("begins" + character * 9_000 + "ends"))
    data = ending_bytes(ending)
    assert len(data) <= MESSAGE_BYTES
    error = Ending.model_validate_json(data).error
    assert error.startswith("begins")
    assert error.endswith("ends")
    assert " [...] " in error
    assert len(data) > MESSAGE_BYTES // 2, "more was cut than had to be"


def test_two_jobs_of_one_name_keep_the_kind_that_conditions_have() -> None:
    assert failed_ending(DuplicateJobName("Two jobs")).kind == "NamesakeFound"
    assert failed_ending(JoineryError("It failed")).kind == "JoineryError"
    assert failed_ending(ValueError("It failed")).kind == "ValueError"
