"""`make affected`: names the test files that a change touches, to run their fast tests before the whole suite.

A test file is affected if it has changed, or if it imports a changed module, directly or through others. Of a changed
file that is no module, the tests of its folder are affected. A change of what every test uses affects every test.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path, PurePath

import grimp

ROOT = Path(__file__).parents[3]
DISTRIBUTIONS = {"runtime": "joinery_runtime", "operator": "joinery_operator", "devkit": "joinery_devkit"}
TEST_PATHS = (PurePath("tests/operator"), PurePath("tests"))
"""The folders in which tests find modules, the first one first (`pythonpath` in pyproject.toml)."""
FOLDERS: Mapping[str, str] = {
    "tests/traces": "tests/test_traces.py",
    "docs": "tests/docs",
    "examples": "tests/docs",
    "charts": "tests/charts",
    "deploy": "tests/charts",
    "crds": "tests/job",
    "images": "tests/images",
    "bench": "tests/benchmarks",
}
"""The tests of files that are no modules, by folder."""
_IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|.*)|import (.*))", re.MULTILINE)
EVERYTHING = ("pyproject.toml", "Makefile", "requirements", "tests/conftest.py")


def main(base: str) -> int:
    """Print the affected test files, one per line. `base` is the commit with which the work tree is compared."""
    print("\n".join(sorted(affected_tests(changed_files(base)))))
    return 0


def changed_files(base: str) -> list[str]:
    """Return the files that differ from where this branch left `base`, new files included."""
    start = _run_git("merge-base", base, "HEAD").strip()
    return [
        *_run_git("diff", "--name-only", start).split(),
        *_run_git("ls-files", "--others", "--exclude-standard").split(),
    ]


def affected_tests(changed: Iterable[str]) -> set[str]:
    """Return the paths of test files, or of folders of tests, that a change of these files affects."""
    files = list(changed)
    if any(file.startswith(EVERYTHING) for file in files):
        return {"tests"}
    graph, tests = import_graph(), modules_of_tests()
    modules = {name for file in files if (name := module_name(PurePath(file))) in graph.modules}
    affected = modules.union(*(graph.find_downstream_modules(module) for module in modules))
    paths = {path.as_posix() for name, path in tests.items() if name in affected and path.name.startswith("test_")}
    return paths | {test for file in files for folder, test in FOLDERS.items() if file.startswith(f"{folder}/")}


def module_name(path: PurePath) -> str | None:
    """Return the name under which a Python file of this repository is imported; None for another file."""
    if path.suffix != ".py":
        return None
    roots = [*(PurePath(name, "src") for name in DISTRIBUTIONS), *TEST_PATHS]
    root = next((root for root in roots if path.is_relative_to(root)), None)
    return None if root is None else ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def modules_of_tests() -> dict[str, PurePath]:
    """Return the paths of all modules below tests/, by name."""
    paths = [PurePath(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py")]
    return {name: path for path in paths if (name := module_name(path)) is not None}


@cache
def import_graph() -> grimp.ImportGraph:
    """Return the imports of the distributions, and of the tests, which grimp takes for no package."""
    graph, tests = grimp.build_graph(*DISTRIBUTIONS.values(), cache_dir=None), modules_of_tests()
    for name in tests:
        graph.add_module(name)
    for name, path in tests.items():
        for imported_name in imported_names(ROOT / path):
            module = imported_name if imported_name in graph.modules else imported_name.rpartition(".")[0]
            if module in graph.modules:
                graph.add_import(importer=name, imported=module)
    return graph


def imported_names(file: Path) -> list[str]:
    """Return the names of modules, and of what may be modules, in the imports of a file. Parsing the files of all tests
    takes far longer than searching them."""
    names: list[str] = []
    for module, members, modules in _IMPORT.findall(re.sub("#.*", "", file.read_text())):
        names += [f"{module}.{name}" for name in re.findall(r"\w+|\*", members)]
        names += [part.split()[0] for part in modules.split(",") if part.strip()]
    return names


def _run_git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
