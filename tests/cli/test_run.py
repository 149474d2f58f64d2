from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from cli.commands import Joinery
from joinery_runtime.engine.loop import Listener


class _Driver:
    generation, epoch, replays = 3, 7, False


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Listener, Event], None]], None]:
    """Puts `body` in the place of the run itself."""

    def replace(body: Callable[[Listener, Event], None]) -> None:
        def run_job(_job: Any, listener: Listener, stop: Event, **_: Any) -> None:
            body(listener, stop)

        monkeypatch.setattr("joinery_runtime.cli.run.run_job", run_job)

    return replace


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("when", ["before the start", "after it"])
def test_a_signal_lets_the_epoch_end(
    joinery: Joinery, job_file: Path, running: Any, number: signal.Signals, when: str
) -> None:
    def body(listener: Listener, stop: Event) -> None:
        if when == "after it":
            signal.signal(signal.SIGINT, signal.default_int_handler)  # as the Spark context does
            listener.started(_Driver())  # type: ignore[arg-type]
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        assert stop.wait(10)

    running(body)
    ended = joinery("run", job_file)
    assert (ended.code, ended.err) == (0, "")
    assert ended.lines[-1]["event"] == "ended"
    assert ended.lines[-1]["reason"] == "stopped"


def test_the_second_signal_ends_the_job_at_once(joinery: Joinery, job_file: Path, running: Any) -> None:
    def body(_: Listener, stop: Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(10)
        # What is there by default would end this process.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        handler = signal.getsignal(signal.SIGTERM)
        with pytest.MonkeyPatch.context() as patch:
            raised: list[int] = []
            patch.setattr(signal, "raise_signal", raised.append)
            assert callable(handler)
            handler(signal.SIGTERM, None)
        assert raised == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    running(body)
    assert joinery("run", job_file).code == 0
