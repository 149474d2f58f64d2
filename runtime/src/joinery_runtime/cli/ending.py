"""Writes how a command ended to the file that JOINERY_ENDING_FILE names. In a pod that is the termination message,
which the operator reads."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Literal

from joinery_runtime.errors import (
    AggregateError,
    CommittedSince,
    EnvironmentProblem,
    ExpressionError,
    IncompatibleState,
    JobError,
    JoineryError,
    LimitReached,
    RolloutOver,
    StateTaken,
)
from joinery_runtime.job.crd import ENDING_FILE, MESSAGE_BYTES, Ending

_CUT = " [...] "
_LONGEST_ERROR = 4000  # characters
_PERMANENT = (
    AggregateError,
    JobError,
    ExpressionError,
    IncompatibleState,
    RolloutOver,
    CommittedSince,
    LimitReached,
    StateTaken,
)  # errors that another try would meet again

Outcome = Literal["finished", "stopped"]


class Stopped(BaseException):
    """Raised when a signal asks this process to end, and nothing has to be finished first."""


@contextmanager
def writing_ending() -> Iterator[Callable[[object], None]]:
    """Write how the block ends, if a file is named: the error that leaves the block, or else the result that the block
    passes to the yielded function ("stopped"; anything else means "finished"). Keeps an answer that the block has put
    in the file."""
    ending_file = os.environ.get(ENDING_FILE)
    if not ending_file:
        yield lambda _: None
        return
    path = Path(ending_file)
    _write_file(path, b"")
    outcomes: list[Outcome] = []
    with sigterm_stops():
        try:
            yield lambda result: outcomes.append("stopped" if result == "stopped" else "finished")
        except Stopped:
            _write_file(path, ending_bytes(Ending(outcome="stopped")))
            sys.exit(128 + signal.SIGTERM)
        except Exception as error:
            _write_file(path, ending_bytes(failed_ending(error)))
            raise
        except SystemExit as end:
            if end.code and not _has_text(path):  # `state check` ends with 1 and its own message
                usage = Ending(outcome="failed", error="The command line was not understood", kind="Usage", retry=False)
                _write_file(path, ending_bytes(usage))
            raise
        if outcomes and not _has_text(path):
            _write_file(path, ending_bytes(Ending(outcome=outcomes[-1])))


def leave_answer(text: str) -> None:
    """Write a command's answer to the file of its ending, if a file is named."""
    ending_file = os.environ.get(ENDING_FILE)
    if ending_file:
        try:
            Path(ending_file).write_text(text, encoding="utf-8")
        except OSError as error:
            raise EnvironmentProblem(f"{ending_file} cannot be written", facts=error.strerror or str(error)) from error


def failed_ending(error: Exception) -> Ending:
    text = str(error) if isinstance(error, JoineryError) else traceback.format_exception_only(error)[-1].strip()
    retry = not isinstance(error, _PERMANENT)
    kind = error.kind if isinstance(error, JoineryError) else type(error).__name__
    return Ending(outcome="failed", error=_shorten(text, _LONGEST_ERROR), kind=kind, retry=retry)


def ending_bytes(ending: Ending) -> bytes:
    """Return the ending as JSON of at most MESSAGE_BYTES. Leaves out the middle of a longer error."""
    length = len(ending.error)
    while len(data := ending.model_dump_json(by_alias=True).encode()) > MESSAGE_BYTES:
        length = length * 9 // 10
        ending = ending.model_copy(update={"error": _shorten(ending.error, length)})
    return data


def _shorten(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    head = max(0, length - len(_CUT)) // 2
    return f"{text[:head]}{_CUT}{text[len(text) - head :]}"


@contextmanager
def sigterm_stops() -> Iterator[None]:
    """Raise Stopped at a SIGTERM. The first process of a container has no default action for it, and elsewhere the
    default action skips the block's cleanup. Commands may install handlers of their own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _has_text(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def _write_file(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        print(f"joinery: {path}, which {ENDING_FILE} names, cannot be written: {error.strerror}", file=sys.stderr)  # noqa: T201
