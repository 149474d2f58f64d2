"""Which tests a change affects."""

from __future__ import annotations

from pathlib import Path, PurePath

import pytest

from joinery_devkit.affected import FOLDERS, ROOT, affected_tests, imported_names, module_name


def test_a_module_affects_the_tests_that_import_it_also_through_others() -> None:
    direct = "runtime/src/joinery_runtime/formats/registry/avro_bounds.py"
    tests = affected_tests([direct])
    assert "tests/formats/test_avro_decoder.py" in tests  # imports the decoder, which imports the module
    assert "tests/core/pipeline/test_watermark.py" not in tests


def test_a_module_of_tests_affects_those_that_import_it() -> None:
    tests = affected_tests(["tests/connectors/rows.py"])
    assert "tests/connectors/kafka/test_sink.py" in tests
    assert "tests/connectors/rows.py" not in tests
    assert "tests/formats/test_csv_decoder.py" not in tests
    assert (ROOT / "tests/formats/test_csv_decoder.py").exists()


def test_imports_of_every_form_are_found(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(
        "import a.b, c as d\nfrom e import f as g\nfrom h import *\n"
        "from i import (  # some (of them)\n    j,\n    k,\n)\n"
        "def l():\n    from m import n\n"
    )
    names = imported_names(tmp_path / "file.py")
    assert {"a.b", "c", "e.f", "h.*", "i.j", "i.k", "m.n"} <= set(names)


def test_a_test_affects_itself() -> None:
    assert affected_tests(["tests/devkit/test_affected.py"]) == {"tests/devkit/test_affected.py"}


@pytest.mark.parametrize("file", ["pyproject.toml", "requirements/dev.txt", "tests/conftest.py"])
def test_what_every_test_uses_affects_every_test(file: str) -> None:
    assert affected_tests([file]) == {"tests"}


@pytest.mark.parametrize(("folder", "tests"), FOLDERS.items())
def test_other_files_affect_the_tests_of_their_folder(folder: str, tests: str) -> None:
    assert (ROOT / folder).is_dir()
    assert (ROOT / tests).exists()
    assert tests in affected_tests([f"{folder}/a-new-file.json"])


def test_modules_are_named_as_they_are_imported() -> None:
    names = {
        "runtime/src/joinery_runtime/core/__init__.py": "joinery_runtime.core",
        "operator/src/joinery_operator/main.py": "joinery_operator.main",
        "tests/operator/cluster.py": "cluster",
        "tests/connectors/rows.py": "connectors.rows",
        "bench/joins.py": None,
        "docs/index.md": None,
    }
    assert {path: module_name(PurePath(path)) for path in names} == names
