"""Functions that end the process that calls them: what names them, and how the rows are found (rule T8)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from joinery_runtime.core.pipeline.functions.base import BatchFailed
from joinery_runtime.core.pipeline.functions.declared import DeclaredFunction
from joinery_runtime.engine.function_calls import MAX_BLAMED, SeparateProcesses, calls_in
from joinery_runtime.errors import ExpressionError

MODULE = """
import ctypes, os

def double(numbers): return [n * 2 for n in numbers.to_pylist()]
def shorter(numbers): return numbers[1:]
def picky(numbers):
    print("a function prints")
    if 3 in numbers.to_pylist():
        raise ValueError("three")
    return numbers
def ends(numbers):
    if 3 in numbers.to_pylist():
        os._exit(7)
    return numbers
def ends_of_two(numbers): return os._exit(7) if len(numbers) > 1 else numbers
def always_ends(numbers): os._exit(7)
def crashes(numbers): ctypes.string_at(0)
"""
# A process that calls a function of the module as a worker does.
PROGRAM = """
import sys
import pyarrow as pa
from joinery_runtime.core.pipeline.functions.declared import DeclaredFunction
from joinery_runtime.engine.function_calls import FunctionCalls

class Work:
    careful = False

function = DeclaredFunction("mine", f"functions_of_test:{sys.argv[1]}", pa.int64())
with FunctionCalls().within(Work(), lambda: "orders, offsets 5 to 9"):
    print(function(pa.array([3])).to_pylist())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the module, which new processes find."""
    (tmp_path / "functions_of_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def processes(folder: Path) -> Iterator[SeparateProcesses]:
    processes = SeparateProcesses()
    yield processes
    processes.close()


def function(name: str) -> DeclaredFunction:
    return DeclaredFunction("mine", f"functions_of_test:{name}", pa.int64())


def running() -> list[psutil.Process]:
    """The processes that call functions for this one."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "joinery_runtime.engine.function_calls" in child.cmdline()]


class TestSeparateProcesses:
    def test_a_function_computes_and_fails_as_in_this_process(self, processes: SeparateProcesses) -> None:
        assert processes.call(function("double"), [pa.array([1, 2])]).to_pylist() == [2, 4]
        with pytest.raises(pa.ArrowInvalid, match=r"mine \(functions_of_test:picky\) raised ValueError: three"):
            processes.call(function("picky"), [pa.array([1, 3])])
        assert processes.call(function("picky"), [pa.array([1, 2])]).to_pylist() == [1, 2]
        with pytest.raises(BatchFailed, match="returned 1 values for 2 rows"):
            processes.call(function("shorter"), [pa.array([1, 2])])
        assert len(running()) == 6, "a process and its fork for each function"
        processes.close()
        assert running() == []

    def test_rows_that_end_it_fail(self, processes: SeparateProcesses) -> None:
        with pytest.raises(pa.ArrowInvalid, match=r"ended the process \(exit code 7\)$"):
            processes.call(function("ends"), [pa.array([1, 3])])
        with pytest.raises(pa.ArrowInvalid, match=r"ended the process \(exit code 7\) 2 times"):
            processes.call(function("ends"), [pa.array([3])])
        assert processes.call(function("ends"), [pa.array([1])]).to_pylist() == [1]

    def test_a_batch_that_ends_it_blames_no_row(self, processes: SeparateProcesses) -> None:
        with pytest.raises(pa.ArrowInvalid):
            processes.call(function("ends_of_two"), [pa.array([1, 3])])
        assert processes.call(function("ends_of_two"), [pa.array([3])]).to_pylist() == [3]

    def test_a_function_that_ends_it_on_many_rows_is_to_blame(self) -> None:
        processes = SeparateProcesses(("false",))  # ends at once, and so on every row
        for number in range(MAX_BLAMED):
            for _ in range(2):  # a row counts once
                with pytest.raises(pa.ArrowInvalid):
                    processes.call(function("double"), [pa.array([number])])
        with pytest.raises(ExpressionError, match=f"{MAX_BLAMED + 1} rows of this epoch"):
            processes.call(function("double"), [pa.array([MAX_BLAMED])])


class TestNotes:
    def run(self, folder: Path, name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, name]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)

    @pytest.mark.parametrize(("name", "code"), [("ends", 7), ("crashes", -11)])
    def test_the_call_that_ends_a_process_is_printed(self, folder: Path, name: str, code: int) -> None:
        ended = self.run(folder, name)
        file = folder / "functions_of_test.py"
        assert ended.returncode == code
        first, *stack = ended.stderr.splitlines()
        call = f"mine (functions_of_test:{name}, {file}) for rows of orders, offsets 5 to 9"
        assert first == f"joinery: This process ended while it called {call}"
        assert stack[-1:] == ([f'  File "{file}", line 17 in crashes'] if name == "crashes" else [])

    @pytest.mark.parametrize("name", ["double", "picky"])
    def test_a_call_that_returns_or_raises_is_not(self, folder: Path, name: str) -> None:
        ended = self.run(folder, name)
        assert ended.returncode == (0 if name == "double" else 1)
        assert "This process ended" not in ended.stderr

    def test_an_error_of_spark_s_has_each_call_once(self) -> None:
        crashed = "SparkException: Python worker exited unexpectedly (crashed): This process ended while it called"
        message = (
            f"{crashed} f (m:f, m.py) for rows of a\nThis process ended while it called g (m:g, m.py) for rows of b\n"
        )
        assert calls_in(f"{message}{message}") == "f (m:f, m.py) for rows of a; g (m:g, m.py) for rows of b"
        assert calls_in("Python worker exited unexpectedly (crashed)") == ""
