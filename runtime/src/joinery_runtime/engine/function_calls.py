"""Calls the functions that a job declares (rule V4) in a worker. A function may end the process that calls it: with
`os._exit`, by a crash in C, or by taking all memory.

A process notes each call in a file before the call, and clears the note after it. If the process ends, another one
reads the note. In a Python worker of Spark the file is the one that Spark adds to the error about a worker that ended
(`spark.python.worker.faulthandler.enabled`). Elsewhere a small process waits for the end of this one, and then prints
the note. In both cases, Python itself adds its stack if a signal ends the process.

If two drivers have died in an epoch, the epoch calls functions in another process (rule T8). When that process ends,
its rows are halved, as they are when a function raises, until one row is left that ends the process: that row has
failed.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import re
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import pyarrow as pa

from joinery_runtime.connectors.trial import name_of_death, trial_environment, volunteer_for_oom_killer
from joinery_runtime.core.pipeline.functions import declared
from joinery_runtime.core.pipeline.functions.base import BatchFailed
from joinery_runtime.core.pipeline.functions.declared import DeclaredFunction, called_by, imported
from joinery_runtime.core.pipeline.spec import StepSpec
from joinery_runtime.engine.messages import EpochWork
from joinery_runtime.errors import ExpressionError
from joinery_runtime.formats.batch import PartitionRef, RawBatch

_NOTE = "This process ended while it called "
ENDED_TODO = (
    "Nothing of the epoch was committed. Correct the function; the third start finds the record "
    "(docs/how-to/python-functions.md#when-a-function-fails)"
)
MAX_BLAMED = 16  # rows that a function may end a process on, before the function itself is to blame
_SHOWN_RANGES = 3
_TRIES = 2  # of a row alone, before it is blamed
_COMMAND = (sys.executable, "-m", __name__)
_LENGTH = struct.Struct(">Q")

_YIELDED = TypeVar("_YIELDED")
_RETURNED = TypeVar("_RETURNED")


class FunctionCalls:
    """How a worker calls functions: in this process, with a note, or in processes of their own."""

    def __init__(self) -> None:
        self._own_processes = SeparateProcesses()

    @contextmanager
    def within(self, work: EpochWork, rows: Callable[[], str]) -> Iterator[None]:
        """Within the block, functions are called for rows that `rows` names."""
        if not work.careful:
            self.close()  # the processes of an earlier epoch
        processes = _shared_processes.get() or (self._own_processes if work.careful else None)
        with called_by(partial(_call_with_note, rows) if processes is None else processes.call):
            yield

    def close(self) -> None:
        self._own_processes.close()

    def during(
        self, work: EpochWork, rows: Callable[[], str], generator: Generator[_YIELDED, None, _RETURNED]
    ) -> Generator[_YIELDED, None, _RETURNED]:
        """Yield the same, while a generator runs, and not between: its reader may run others on this thread."""
        while True:
            try:
                with self.within(work, rows):
                    item = next(generator)
            except StopIteration as stop:
                result: _RETURNED = stop.value
                return result
            yield item


def records_text(raw: RawBatch) -> str:
    """Name the records of a batch."""
    span = f", offsets {raw.offsets[0]} to {raw.offsets[-1]}" if len(raw.offsets) else ""
    return f"{_partition_text(raw.partition)}{span}"


def step_text(step: StepSpec, shard: int, work: EpochWork) -> str:
    """Name the rows of a step: its inputs, and what the epoch reads of them."""
    inputs = {name for side in step.sides for name in side.inputs}
    ranges = [
        f"{_partition_text(planned.partition)} from offset {planned.start} to before {planned.end_exclusive}"
        for planned in work.plan.ranges
        if planned.partition.input in inputs
    ]
    more = f" and {len(ranges) - _SHOWN_RANGES} partitions more" if len(ranges) > _SHOWN_RANGES else ""
    words = f"step {step.number + 1} ({', '.join(sorted(inputs))}), shard {shard} of {work.plan.shards}"
    return f"{words}, epoch {work.plan.epoch}, which reads {', '.join(ranges[:_SHOWN_RANGES]) or 'nothing'}{more}"


def _partition_text(ref: PartitionRef) -> str:
    return f"{ref.input} ({ref.topic}, partition {ref.partition})"


# --- notes ------------------------------------------------------------------------------------------------------------


class _Notes:
    """The file of this process, with a line for each call that its threads are in."""

    def __init__(self, path: Path, watch: subprocess.Popen[bytes] | None = None) -> None:
        """`watch` waits for the end of this process, which closes the pipe to it."""
        self._calls: dict[int, str] = {}
        self._lock, self._watch = threading.Lock(), watch
        self._file = path.open("ab", buffering=0)

    def open_stack(self) -> None:
        """Have Python write its stack behind the notes when a signal ends the process."""
        faulthandler.enable(file=self._file, all_threads=False)

    @contextmanager
    def note_call(self, words: str) -> Iterator[None]:
        thread = threading.get_ident()
        self._write(thread, words)
        try:
            yield
        finally:
            self._write(thread, None)

    def _write(self, thread: int, words: str | None) -> None:
        with self._lock:
            if words is None:
                self._calls.pop(thread, None)
            else:
                self._calls[thread] = words
            os.ftruncate(self._file.fileno(), 0)
            self._file.write("".join(f"{_NOTE}{call}\n" for call in self._calls.values()).encode())


_notes: dict[int, _Notes] = {}  # by process: a fork has its own
_notes_lock = threading.Lock()

_ABOVE_CALL = f'  File "{declared.__file__}"'

# Waits for the end of the other process, which closes standard input, whatever signals a terminal sends to both.
_WATCH = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
sys.stdin.buffer.read()
path = sys.argv[1]
text = open(path, encoding="utf-8", errors="replace").read()
os.remove(path)
if text:
    # The stack above the call is Joinery's own.
    sys.stderr.write("joinery: " + text.partition(sys.argv[2])[0])
"""


def _open_notes() -> _Notes:
    folder = os.environ.get("PYTHON_FAULTHANDLER_DIR")
    if folder is not None and (path := Path(folder, str(os.getpid()))).exists():
        notes = _Notes(path)
        notes.open_stack()
        return notes
    descriptor, name = tempfile.mkstemp(prefix="joinery-calls-")
    os.close(descriptor)
    command = [sys.executable, "-I", "-S", "-c", _WATCH, name, _ABOVE_CALL]
    notes = _Notes(Path(name), subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL))
    if not faulthandler.is_enabled():  # the user may want the stack elsewhere
        notes.open_stack()
    return notes


def _call_with_note(rows: Callable[[], str], function: DeclaredFunction, columns: Sequence[pa.Array]) -> pa.Array:
    imported(function.python)
    module = sys.modules.get(function.python.partition(":")[0])
    where = getattr(module, "__file__", None) or "a module without a file"
    with _notes_lock:
        if os.getpid() not in _notes:
            _notes.clear()
            _notes[os.getpid()] = _open_notes()
        notes = _notes[os.getpid()]
    with notes.note_call(f"{function.name} ({function.python}, {where}) for rows of {rows()}"):
        return function.compute(columns)


def calls_in(message: str) -> str:
    """Return the calls that a process was in, from the notes in an error about its end; empty if there are none."""
    return "; ".join(dict.fromkeys(re.findall(f"{_NOTE}(.*)", message)))


# --- processes of their own -------------------------------------------------------------------------------------------


class SeparateProcesses:
    """Calls each function in a process of its own, which may end without this one."""

    def __init__(self, command: Sequence[str] = _COMMAND, max_blamed: int = MAX_BLAMED) -> None:
        self._command, self._max_blamed = command, max_blamed
        self._processes: dict[DeclaredFunction, subprocess.Popen[bytes]] = {}
        self._deadly: dict[DeclaredFunction, dict[bytes, str]] = {}  # arguments of a row, and how the process ended
        self._lock = threading.Lock()

    def call(self, function: DeclaredFunction, columns: Sequence[pa.Array]) -> pa.Array:
        """Compute a batch. Raises ArrowInvalid if the function raises or ends its process, BatchFailed for a wrong
        result, and ExpressionError if it ends its process on too many rows."""
        with self._lock:
            if len(columns[0]) == 1:
                return self._call_for_one_row(function, columns)
            answer = self._answer(function, columns)
            if isinstance(answer, str):
                raise pa.ArrowInvalid(f"{function.name} ({function.python}) ended the process ({answer})")
            return _result(answer, function)

    def close(self) -> None:
        if self._processes or self._deadly:
            with self._lock:
                self._deadly.clear()
                while self._processes:
                    _, process = self._processes.popitem()
                    process.communicate()  # its standard input ends

    def _call_for_one_row(self, function: DeclaredFunction, columns: Sequence[pa.Array]) -> pa.Array:
        deadly, row = self._deadly.setdefault(function, {}), pickle.dumps([column.to_pylist() for column in columns])
        if row not in deadly:
            answers = [self._answer(function, columns)]
            while isinstance(answers[-1], str) and len(answers) < _TRIES:
                answers.append(self._answer(function, columns))
            if not isinstance(answers[-1], str):
                return _result(answers[-1], function)
            deadly[row] = answers[-1]
        words = f"{function.name} ({function.python}) ended the process ({deadly[row]})"
        if len(deadly) > self._max_blamed:
            facts = f"{len(deadly)} rows of this epoch did so, each of them {_TRIES} times"
            raise ExpressionError(words, facts=facts, todo="Correct the function; nothing of the epoch was committed")
        raise pa.ArrowInvalid(f"{words} {_TRIES} times, and the job's own process before")

    def _answer(self, function: DeclaredFunction, columns: Sequence[pa.Array]) -> Answer | str:
        """Return what the process answers; a text says how it ended instead."""
        process = self._processes.get(function)
        if process is None:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=trial_environment()
            )
            self._processes[function] = process
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        with suppress(BrokenPipeError):
            _send(process.stdin, (function, list(columns)))
        answer = _receive(process.stdout)
        if answer is None:  # the process itself has ended
            del self._processes[function]
            with suppress(BrokenPipeError):
                process.communicate()
            return name_of_death(process.returncode)
        return cast("Answer | str", answer)


_shared_processes: ContextVar[SeparateProcesses | None] = ContextVar(
    "processes of `calling_in_own_processes`", default=None
)


@contextmanager
def calling_in_own_processes(epochs: int) -> Iterator[None]:
    """Within the block, on this thread, workers and all others call functions in the same processes of their own. The
    rows that end these are rows of at most so many epochs."""
    processes = SeparateProcesses(max_blamed=MAX_BLAMED * epochs)
    token = _shared_processes.set(processes)
    try:
        with called_by(processes.call):
            yield
    finally:
        _shared_processes.reset(token)
        processes.close()


Answer = tuple[str, Any]  # "values" and an array, or what was raised and its text


def _result(answer: Answer, function: DeclaredFunction) -> pa.Array:
    kind, content = answer
    if kind == "values":
        return content
    if kind == "batch":
        raise BatchFailed(content, function.returns)
    raise ExpressionError(content) if kind == "expression" else pa.ArrowInvalid(content)


def serve() -> None:
    """Run the other process: answer calls from standard input, until that ends. Forks of it call the functions, because
    a fork starts at once, and this process takes a second. No thread pool runs in it (see hosts.worker_daemon)."""
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a function prints is no answer
    fork: _Fork | None = None
    while (call := _receive(calls)) is not None:
        fork = fork or _Fork()
        answer = fork.answer(call)
        if answer is None:
            answer, fork = fork.death(), None
        _send(answers, answer)


class _Fork:
    """A fork of this process, which answers calls until one ends it."""

    def __init__(self) -> None:
        (its_calls, calls), (answers, its_answers) = os.pipe(), os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(calls)
            os.close(answers)
            _answer_calls(os.fdopen(its_calls, "rb"), os.fdopen(its_answers, "wb"))
            os._exit(0)
        os.close(its_calls)
        os.close(its_answers)
        self._calls, self._answers = os.fdopen(calls, "wb"), os.fdopen(answers, "rb")

    def answer(self, call: object) -> Answer | str | None:
        with suppress(BrokenPipeError):
            _send(self._calls, call)
        return cast("Answer | str | None", _receive(self._answers))

    def death(self) -> str:
        with suppress(BrokenPipeError):
            self._calls.close()
        self._answers.close()
        return name_of_death(os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1]))


def _answer_calls(calls: IO[bytes], answers: IO[bytes]) -> None:
    volunteer_for_oom_killer()
    while (call := _receive(calls)) is not None:
        function, columns = call
        try:
            answer: Answer = "values", function.compute(columns)
        except BatchFailed as error:
            answer = "batch", str(error)
        except ExpressionError as error:
            answer = "expression", str(error)
        except pa.ArrowInvalid as error:
            answer = "rows", str(error)
        _send(answers, answer)


def _send(stream: IO[bytes], value: object) -> None:
    data = pickle.dumps(value)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    """Return the next value; None if the stream ends before or within it."""
    length = stream.read(_LENGTH.size)
    if len(length) < _LENGTH.size:
        return None
    size = _LENGTH.unpack(length)[0]
    data = stream.read(size)
    return pickle.loads(data) if len(data) == size else None


if __name__ == "__main__":
    serve()
