"""Where machine code is kept and found again, and that whatever goes wrong with it costs time only."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
import zipimport
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from numba import types

from joinery_runtime.formats import compiled

SOURCE = """
from numba import types
from joinery_runtime.formats.kernels import kernel, part

@part
def twice(number):
    return 2 * number

@kernel(types.int64)
def twice_and_one(number):
    return twice(number) + 1
"""
TOTALS = """
from numba import types
from joinery_runtime.formats.kernels import kernel, part

@part
def at(numbers, row):
    return numbers[row]

@kernel(types.Array(types.int64, 1, "C"))
def total(numbers):
    found = 0
    for row in range(len(numbers)):
        found += at(numbers, row)
    return found
"""
Load = Callable[[], Any]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "joinery" / "kernels"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "sums.py").write_text(SOURCE)
    return tmp_path / "code"


@pytest.fixture
def load(folder: Path, home: Path) -> Load:
    """What a new process would get: the kernel, from a module that is imported anew."""

    return lambda: imported(folder / "sums.py").twice_and_one


def imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def came_from_cache(kernel: Any) -> bool:
    assert kernel(20) == 41
    return bool(kernel.stats.cache_hits)


def kernel_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.kernel"))


def test_machine_code_is_kept_beside_the_module(load: Load, folder: Path, home: Path) -> None:
    assert not came_from_cache(load())
    assert came_from_cache(load())

    (file,) = kernel_files(folder / "__pycache__")
    assert file.stat().st_mode & 0o444 == 0o444, "who runs an image did not build it"
    assert [path for path in (folder / "__pycache__").iterdir() if path.suffix != ".pyc"] == [file]
    assert not home.exists()


def test_where_the_code_is_read_only_the_users_cache_keeps_it(load: Load, folder: Path, home: Path) -> None:
    (folder / "__pycache__").write_text("a file, so that nothing can be written below it")

    assert not came_from_cache(load())
    assert came_from_cache(load())
    assert len(kernel_files(home)) == 1


def test_the_users_cache_keeps_the_code_of_a_zip(folder: Path, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As spark-submit sends one to executors."""
    archive = folder.with_name("sent.zip")

    def sent() -> Any:
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("sent/kernels/sums.py", (folder / "sums.py").read_text())
        zipimport.zipimporter(str(archive)).invalidate_caches()
        spec = zipimport.zipimporter(f"{archive}/sent/kernels").find_spec("sums")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.twice_and_one

    assert not came_from_cache(sent())
    assert came_from_cache(sent())
    assert caplog.records == []
    (folder / "sums.py").write_text(f"{SOURCE}# edited")
    assert not came_from_cache(sent())
    assert len(kernel_files(home)) == 1


def test_with_nothing_writable_each_process_compiles(load: Load, folder: Path, home: Path) -> None:
    (folder / "__pycache__").write_text("")
    home.parent.parent.write_text("")

    assert not came_from_cache(load())
    assert not came_from_cache(load())


def test_a_user_without_a_home_has_no_cache(load: Load, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    (folder / "__pycache__").write_text("")

    assert not came_from_cache(load())


def test_what_cannot_be_written_to_is_read(load: Load, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image's folders: written at its build, by another user."""

    def refused(path: Path, content: bytes) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    load()
    monkeypatch.setattr(Path, "write_bytes", refused)
    assert came_from_cache(load())


def test_a_change_beside_a_kernel_counts_as_one_of_its_own(load: Load, folder: Path) -> None:
    load()
    earlier = kernel_files(folder / "__pycache__")
    (folder / "parts.py").write_text("# what the kernel may be made of")

    assert not came_from_cache(load())
    assert came_from_cache(load())
    assert len(kernel_files(folder / "__pycache__")) == 1
    assert kernel_files(folder / "__pycache__") != earlier


def test_a_damaged_file_is_written_anew(load: Load, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    load()
    (file,) = kernel_files(folder / "__pycache__")
    file.write_bytes(file.read_bytes()[:1000])

    assert not came_from_cache(load())
    assert str(file) in caplog.text
    assert came_from_cache(load())


def test_without_numba_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in [name for name in sys.modules if name.startswith("joinery_runtime.formats.kernels")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    compiled.kernels.cache_clear()
    try:
        assert compiled.kernels("json") is None
        assert compiled.kernels("json") is None
    finally:
        compiled.kernels.cache_clear()
    assert [record.message.partition(":")[0] for record in caplog.records] == ["Kernel json is not used"]
    assert "numba" in caplog.text


def test_what_cannot_be_compiled_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(name: str) -> ModuleType:
        raise ValueError("as a compiler's internal errors may be")

    monkeypatch.setattr(compiled, "import_module", failing)
    compiled.kernels.cache_clear()
    try:
        assert compiled.kernels("json") is None
    finally:
        compiled.kernels.cache_clear()


def test_kernels_count_no_references(folder: Path, home: Path) -> None:
    """Counting took a third of the time of reading, and threads waited for each other's counts."""
    (folder / "totals.py").write_text(TOTALS)
    signature = (types.Array(types.int64, 1, "C"),)
    assert "NRT_incref" not in imported(folder / "totals.py").total.inspect_llvm(signature)
