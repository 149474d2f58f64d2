"""What `make house` counts, and that no budget is exceeded."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from joinery_devkit.house import (
    BUDGETS,
    ROOT,
    SOURCES,
    WORD_BUDGETS,
    Figures,
    bound_names,
    helpers_used_once,
    main,
    measure,
    over_budget,
    prose_files,
    retired_words,
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder for one module, `house.py`."""
    return tmp_path


def write(source: Path, code: str) -> Path:
    file = source / "house.py"
    file.write_text(code)
    return file


@pytest.mark.parametrize(
    "code",
    [
        "found = 1",
        "def read(found): ...",
        "def read(*, found=1): ...",
        "def found(): ...",
        "async def _found(): ...",
        "class A:\n    found: int",
        "class A:\n    def read(self):\n        self._found = 1",
        "for found in (): ...",
        "a, (b, found) = 1, (2, 3)",
        "rows = [1 for found in ()]",
        "with open('') as found: ...",
        "if (found := 1): ...",
    ],
)
def test_a_vague_name_is_counted_wherever_it_is_bound(source: Path, code: str) -> None:
    write(source, code)
    assert [name.name.strip("_") for name in bound_names(source) if name.is_vague] == ["found"]


@pytest.mark.parametrize(
    "code",
    [
        "print(found)",
        "a.found",
        "# found",
        "'found'",
        "read(found=1)",
        "founder = 1",
        "class A:\n    def of(self): ...",
    ],
)
def test_uses_and_constructors_are_not_counted(source: Path, code: str) -> None:
    write(source, code)
    assert not [name for name in bound_names(source) if name.is_vague]


def test_the_figures_of_a_source(source: Path) -> None:
    write(source, "def read_rows(found):\n    return _first(found)\n\n\ndef _first(rows):\n    return rows\n")
    figures = measure(source)
    assert figures == (1, 6, 250.0, 50.0, 50.0, 1)


def test_a_private_helper_is_counted_in_its_own_file(source: Path) -> None:
    for name in ("one.py", "two.py"):
        (source / name).write_text("def read():\n    return _first()\n\n\ndef _first():\n    return 1\n")
    assert measure(source).used_once == 50.0


@pytest.mark.parametrize(
    ("code", "helpers"),
    [
        ("def _first(): ...\n_first()", ["_first"]),
        ("def _first(): ...\nread(_first)", ["_first"]),
        ("class A:\n    async def _first(self): ...\n    def read(self): self._first()", ["_first"]),
        ("def _first(): ...\n_first()\n_first()", []),
        ("def _first(): ...", []),
        ("def first(): ...\nfirst()", []),
        ("class A:\n    def __init__(self): ...\n    def read(self): super().__init__()", []),
        ("def _first(): ...\nTABLE = {'a': _first}", []),
        ("def _first(): ...\nTABLE = [('a', _first)]", []),
        ("def _first(): ...\nTABLE = {'a': _first()}", ["_first"]),
        ("@TEXT.define('a')\ndef _first(): ...\n_first()", []),
        ("@cache\ndef _first(): ...\n_first()", ["_first"]),
        ("class A:\n    @abstractmethod\n    def _first(self): ...\n    def read(self): self._first()", []),
        ("class A:\n    def _a(self): ...\n    def read(self): self._a()\nclass B(A):\n    def _a(self): ...", []),
    ],
)
def test_a_private_function_used_once_is_a_helper(source: Path, code: str, helpers: list[str]) -> None:
    assert [helper.name for helper in helpers_used_once(write(source, code))] == helpers


def test_the_helpers_used_once_are_listed(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(source, "\ndef _first(): ...\n_first()\n")
    assert main(["--once", str(source)]) == 0
    assert capsys.readouterr().out == f"{file}:2 _first\n"


def test_functions_that_python_calls_are_no_part_of_the_percentage(source: Path) -> None:
    write(
        source, "class A:\n    def __init__(self): self._first()\n    def _first(self): ...\n    def read(self): ...\n"
    )
    assert measure(source).used_once == 50.0


def test_a_folder_without_sources_is_no_success(source: Path) -> None:
    with pytest.raises(FileNotFoundError, match="reads the wrong folder"):
        measure(source)


def test_retired_words_are_found_in_docstrings_comments_and_messages_only(source: Path) -> None:
    file = write(source, '"""It goes out."""\nrefuse = f"in force {refuse}"  # made anew\n')
    words = Counter(occurrence.word for occurrence in retired_words([file]))
    assert words == {"go out": 1, "in force": 1, "anew": 1}
    assert [occurrence.line for occurrence in retired_words([file])] == [1, 2, 2]


def test_names_in_backticks_are_not_retired(source: Path) -> None:
    file = write(source, '"""Starts `--anew`, and stores `status.refused`; then it\ngoes on."""\n')
    assert [(occurrence.word, occurrence.line) for occurrence in retired_words([file])] == [("go on", 2)]


def test_names_of_fields_and_options_are_not_retired(source: Path) -> None:
    file = write(source, 'FIELD = "refused"\nTEXT = "give --anew; connection refused"\nOTHER = "it refused"\n')
    assert [(occurrence.word, occurrence.line) for occurrence in retired_words([file])] == [("refuse", 3)]


def test_the_glossary_names_what_it_retires(source: Path) -> None:
    page = source / "page.md"
    page.write_text("# Page\n\n## Words\n\n| anew | again |\n\n## Recipes\n\nMade anew.\n")
    assert [(occurrence.word, occurrence.line) for occurrence in retired_words([page])] == [("anew", 9)]


def test_history_keeps_its_words() -> None:
    files = {file.relative_to(ROOT) for file in prose_files(ROOT)}
    assert Path("README.md") in files
    assert Path("docs/semantics.md") in files
    assert Path("CHANGELOG.md") not in files
    assert not [file for file in files if Path("docs/decisions") in file.parents]


def test_a_figure_above_its_budget_is_named() -> None:
    """That no figure is: `make lint`, which reads all files."""
    assert set(BUDGETS) == set(SOURCES)
    within = {name: Figures(1, 1, 0, 0, 0, 0) for name in SOURCES}
    assert not list(over_budget(within, WORD_BUDGETS))
    vague = {**within, "devkit": Figures(1, 1, 1000, 0, 0, 0)}
    assert [line.partition(" is ")[0] for line in over_budget(vague, {})] == ["devkit: vague"]
    words = {word: budget + 1 for word, budget in WORD_BUDGETS.items()}
    assert [line.split('"')[1] for line in over_budget(within, words)] == list(WORD_BUDGETS)
