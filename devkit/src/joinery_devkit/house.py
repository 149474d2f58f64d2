"""`make house`: measures how the code is written, and `make lint` fails if a figure is above its budget.

What is counted, in each distribution's sources (tests are not counted):

* vague names: variables, parameters, fields and functions named by one of `VAGUE_WORDS`, per 1,000 such names;
* helpers used once: private functions and methods (`_name`) whose name occurs once in their own file outside the
  definition. A public function that is used once connects two files, and is no helper. Neither are entries of a table
  (an item of a dict, list, tuple or set, or a function that a decorator such as `@TEXT.define` registers): whoever
  looks them up needs them as functions. Nor are methods that subclasses write (`@abstractmethod`, or two definitions
  in one file): which one is called is decided at run time. Callbacks that are passed as arguments do count. The
  percentage is of all functions and methods except those that Python calls (`__init__`);
* function names of one word;
* files shorter than 100 lines, without those that are empty;
* retired words in docs, docstrings, comments and messages (`RETIRED_WORDS`; the glossary in CONTRIBUTING.md has what
  to write, and is not counted itself).

Helpers used once, counted like this on 2026-11-30: kopf 1.45.2 has 6.4 %, pydantic 2.14.3 7.9 %, psycopg 3.3.9 9.5 %,
sqlglot 30.30.0 16.6 %. With entries of tables and methods of subclasses, as counted until then: kopf 6.4 %, pydantic
8.3 %, zarr 3.1.6 8.5 %, psycopg 9.5 %, sqlglot 22.3 %, and Joinery had 23.8 % (runtime) and 24.3 % (operator) on
2026-11-29. A review named 5 % for kopf, 11 % for psycopg, 15 % for zarr, 23 % for sqlglot, and 24 to 25 % for Joinery:
that measure gave the same to 1.5 points, except for zarr.

A budget is lowered when the figure falls, and not raised for new code.
"""

from __future__ import annotations

import argparse
import ast
import gc
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
# fmt: off
VAGUE_WORDS = frozenset({
    "asked", "away", "each", "found", "given", "gone", "held", "kept", "known", "made", "of", "others", "place",
    "places", "said", "taken", "there", "told", "wanted", "whole", "about", "again", "alone", "anew", "apart",
    "here", "how", "mine", "one", "ones", "ours", "same", "some", "such", "theirs", "thing", "things", "took",
    "what", "which", "who", "why",
})
# fmt: on
"""Names that do not say what they hold."""
CONSTRUCTOR = "of"
"""`Thing.of(source)` is a usual name for a constructor."""
SHORT_FILE_LINES = 100
RETIRED_WORDS: Mapping[str, str] = {
    "anew": r"(?<!--)anew",
    "away (not available)": r"(?:is|are|was|were|be|been) away",
    "go on": r"(?:go|goes|going|went|gone) on",
    "go out": r"(?:go|goes|going|went|gone) out",
    "in force": r"in force",
    "refuse": r"(?<!connection )refus(?:e|es|ed|ing|al|als)",
}
"""Regular expressions of words that the glossary retires. The option `--anew` and refused connections keep theirs."""


class Figures(NamedTuple):
    """What is measured in one distribution. `vague` is per 1,000 names; `used_once` and `one_word` are percentages of
    all functions."""

    files: int
    lines: int
    vague: float
    used_once: float
    one_word: float
    short_files: int


BUDGETS: Mapping[str, Mapping[str, float]] = {
    "runtime": {"vague": 0.6, "used_once": 15, "one_word": 35.5, "short_files": 28},
    "operator": {"vague": 0.2, "used_once": 15.0, "one_word": 32.2, "short_files": 9},
    "devkit": {"vague": 0.2, "used_once": 15, "one_word": 52.7, "short_files": 27},
    "bench": {"vague": 0, "used_once": 8, "one_word": 47.4, "short_files": 8},
}
"""The highest figure allowed for each distribution. Two changes of what `used_once` counts lowered it without a change
of the code: public functions counted until 2026-11-29 (runtime 33.7 to 23.8 %, operator 37.6 to 24.3 %), and entries of
tables and methods of subclasses until 2026-11-30 (runtime 16.9 to 14.9 %, operator 19.0 to 18.8 %). 47 % of kopf's
functions are of one word, 41 % of psycopg's, 18 % of pydantic's and 14 % of sqlglot's. Then 400 private helpers of
several words were inlined: that alone raised the budgets of `one_word` by 1.1 to 2.1, and 21 more in the operator by
0.5."""
WORD_BUDGETS: Mapping[str, int] = {
    "anew": 1,
    "away (not available)": 0,
    "go on": 0,
    "go out": 0,
    "in force": 0,
    "refuse": 0,
}
"""How often each retired word may still occur: the docstring of `joinery state migrate` names its option `anew`."""
SOURCES: Mapping[str, Path] = {
    "runtime": Path("runtime/src"),
    "operator": Path("operator/src"),
    "devkit": Path("devkit/src"),
    "bench": Path("bench"),
}


@dataclass(frozen=True, slots=True)
class BoundName:
    """A place in a file that gives a name to a variable, parameter, field or function."""

    file: Path
    line: int
    name: str

    @property
    def is_vague(self) -> bool:
        return self.name.strip("_") in VAGUE_WORDS

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="joinery_devkit.house", description="Measures how the code is written.")
    parser.add_argument("--check", action="store_true", help="print only figures above their budget, and fail on them")
    parser.add_argument("--names", metavar="PATH", type=Path, help="list the vague names in this file or folder")
    parser.add_argument("--once", metavar="PATH", type=Path, help="list the helpers used once in this file or folder")
    parser.add_argument("--words", metavar="PATH", type=Path, help="list the retired words in this file or folder")
    options = parser.parse_args(arguments)
    if options.names is not None:
        print(*(name for name in bound_names(options.names) if name.is_vague), sep="\n")
        return 0
    if options.once is not None:
        print(*(helper for file in python_files(options.once) for helper in helpers_used_once(file)), sep="\n")
        return 0
    if options.words is not None:
        print(*retired_words(prose_files(options.words)), sep="\n")
        return 0
    figures = {name: measure(ROOT / source) for name, source in SOURCES.items()}
    words = Counter(occurrence.word for occurrence in retired_words(prose_files(ROOT)))
    excesses = list(over_budget(figures, words))
    if not options.check:
        print(report(figures, words))
    print(*excesses, sep="\n", end="\n" if excesses else "", file=sys.stderr)
    return 1 if excesses else 0


def measure(source: Path) -> Figures:
    """Measure all Python files below `source`."""
    files = python_files(source)
    if not files:
        raise FileNotFoundError(f"{source} has no Python files: the check reads the wrong folder")
    lines = [len(file.read_text().splitlines()) for file in files]
    names = list(bound_names(source))
    functions = [function for file in files for function in functions_of(file)]
    return Figures(
        files=len(files),
        lines=sum(lines),
        vague=1000 * sum(name.is_vague for name in names) / len(names),
        used_once=100 * sum(len(helpers_used_once(file)) for file in files) / max(1, len(functions)),
        one_word=100 * sum("_" not in function.name.strip("_") for function in functions) / max(1, len(functions)),
        short_files=sum(0 < count < SHORT_FILE_LINES for count in lines),
    )


def python_files(source: Path) -> list[Path]:
    return [source] if source.is_file() else sorted(source.rglob("*.py"))


@cache
def _nodes_of(file: Path) -> Sequence[ast.AST]:
    """Return all nodes of the file's syntax tree. To walk one takes longer than to parse it: each is walked once."""
    return list(ast.walk(ast.parse(file.read_text())))


def bound_names(source: Path) -> Iterator[BoundName]:
    """Yield the names of all variables, parameters, fields and functions, in the order of files and lines."""
    for file in python_files(source):
        names = []
        for node in _nodes_of(file):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                    names.append(BoundName(file, node.lineno, name))
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name != CONSTRUCTOR:
                    names.append(BoundName(file, node.lineno, name))
        yield from sorted(names, key=lambda name: name.line)


def functions_of(file: Path) -> list[BoundName]:
    """Return all functions and methods except those that Python calls (`__init__`)."""
    return [
        BoundName(file, node.lineno, node.name)
        for node in _nodes_of(file)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not re.fullmatch("__.*__", node.name)
    ]


def helpers_used_once(file: Path) -> list[BoundName]:
    """Return the private functions and methods whose name occurs once in the file outside their definition, without
    entries of tables and methods that subclasses write (the module's docstring says why)."""
    uses: Counter[str] = Counter()
    definitions = Counter(function.name for function in functions_of(file))
    entries: set[str] = set()
    for node in _nodes_of(file):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                uses[name] += 1
            case ast.Dict(values=items) | ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                entries.update(_names_in(items))
            case ast.FunctionDef(decorator_list=decorators) if any(map(_registers, decorators)):
                entries.add(node.name)
    return [
        function
        for function in functions_of(file)
        if function.name.startswith("_")
        and uses[function.name] == definitions[function.name] == 1
        and function.name not in entries
    ]


def _names_in(items: Iterable[ast.expr | None]) -> Iterator[str]:
    """Yield the names that are items themselves (`{"and": _and}`), not those that items call (`[_and()]`)."""
    for item in items:
        match item:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name


def _registers(decorator: ast.expr) -> bool:
    """Return whether a decorator puts the function into a table (`@TEXT.define("TRIM")`) or leaves it to subclasses."""
    match decorator:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=table), attr=name)):
            return table.isupper() or name == "register"
        case ast.Name(id="abstractmethod"):
            return True
    return False


class Occurrence(NamedTuple):
    """A retired word in a file's prose."""

    file: Path
    line: int
    word: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.word}: {self.text.strip()[:120]}"


def prose_files(root: Path) -> list[Path]:
    """Return the pages and sources with prose that people read now. Decision records and the changelog are history, and
    this module has to name the words."""
    root = root.resolve()
    if root.is_file():
        return [root]
    excluded = {ROOT / "docs" / "decisions", ROOT / "CHANGELOG.md", Path(__file__).resolve()}
    pages, parts = [], [root]
    if root == ROOT:
        pages = [*ROOT.glob("*.md")]
        parts = [ROOT / part for part in (*SOURCES.values(), Path("docs"), Path("charts"))]
    files = [*pages, *(file for part in parts for ending in ("*.py", "*.md", "*.yaml") for file in part.rglob(ending))]
    return sorted(file for file in files if not excluded & {file, *file.parents})


def retired_words(files: Iterable[Path]) -> Iterator[Occurrence]:
    """Yield the retired words in pages, and in docstrings, comments and other text of sources."""
    pattern = re.compile("|".join(rf"(?P<w{i}>\b{word}\b)" for i, word in enumerate(RETIRED_WORDS.values())), re.I)
    names = list(RETIRED_WORDS)
    for file in files:
        content = file.read_text()
        if not pattern.search(content):  # most files: cutting all of them into tokens took half of the time
            continue
        for start, text in _prose_of(file, content):
            for match in pattern.finditer(text):
                line = text.count("\n", 0, match.start())
                word = names[int(str(match.lastgroup)[1:])]
                yield Occurrence(file, start + line, word, text.split("\n")[line])


def _prose_of(file: Path, content: str) -> Iterator[tuple[int, str]]:
    """Yield pieces of text with the number of their first line, without the names in backticks: a flag or a field that
    users type keeps its name."""
    if file.suffix != ".py":
        # The section `Words` becomes empty lines: the glossary has to name what it retires.
        section = re.compile(r"^## Words\n.*?(?=^## |\Z)", re.M | re.S)
        prose = section.sub(lambda match: "\n" * match[0].count("\n"), content)
        if file.suffix == ".yaml":
            prose = re.sub(r"^( *)[\w-]+:", r"\1", prose, flags=re.M)  # the names of fields last
        yield 1, _without_code(prose)
        return
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type in {tokenize.STRING, tokenize.COMMENT} or token.type == getattr(tokenize, "FSTRING_MIDDLE", -1):
            if token.string.strip("\"'").isidentifier():
                continue  # a field or a value of one, which lasts
            text = token.string
            if re.match(r"[rR]?[fF]", text):  # an f-string, without what it computes
                text = re.sub(r"{[^{}]*}", "{}", text)
            yield token.start[0], _without_code(text)


def _without_code(text: str) -> str:
    return re.sub(r"(?<!`)`[^`\n]+`(?!`)", "``", text)


def over_budget(figures: Mapping[str, Figures], words: Mapping[str, int]) -> Iterator[str]:
    """Yield a line for each figure that is above its budget."""
    for distribution, budgets in BUDGETS.items():
        for figure, budget in budgets.items():
            value = getattr(figures[distribution], figure)
            if value > budget:
                yield f"{distribution}: {figure} is {value:.1f}, above the budget of {budget:g} (`make house`)"
    for word, limit in WORD_BUDGETS.items():
        if words.get(word, 0) > limit:
            yield (
                f'"{word}" occurs {words[word]} times, the budget is {limit}. CONTRIBUTING.md says what to write, and '
                "`python -m joinery_devkit.house --words .` where the word is"
            )


def report(figures: Mapping[str, Figures], words: Mapping[str, int]) -> str:
    """Return the figures as a table, and the retired words with how often they still occur."""
    columns = ("", "files", "lines", "vague names per 1,000", "used once %", "one word %", "files < 100 lines")
    rows = [
        (
            name,
            str(f.files),
            str(f.lines),
            f"{f.vague:.1f}",
            f"{f.used_once:.1f}",
            f"{f.one_word:.1f}",
            str(f.short_files),
        )
        for name, f in figures.items()
    ]
    widths = [max(len(row[at]) for row in (columns, *rows)) for at in range(len(columns))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (columns, *rows)]
    counts = [f"{word}: {words.get(word, 0)}" for word in RETIRED_WORDS]
    return "\n".join([*table, "", "retired words: " + ", ".join(counts)])


if __name__ == "__main__":
    gc.disable()  # no node of a tree is garbage: looking for some was a third of the time
    sys.exit(main())
