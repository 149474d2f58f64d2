"""The code of the pages: fenced blocks, each with its language and place, and the command lines in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(set(ROOT.glob("*.md")) - {ROOT / "CHANGELOG.md"}),  # which tells also what was
    ROOT / "tests/traces/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
_FENCED = re.compile(r"^(?P<margin> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=margin)```$", re.MULTILINE | re.DOTALL)
_HERE_DOCUMENT = re.compile(r"<<'(\w+)'\n.*?^\1$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    """Of its first line of code, from 1."""
    language: str
    text: str

    @property
    def location(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path, text: str | None = None) -> Iterator[Block]:
    """In order. `text` stands for what is in the file."""
    text = page.read_text() if text is None else text
    for fence in _FENCED.finditer(text):
        code = re.sub(f"^{fence['margin']}", "", fence["text"], flags=re.MULTILINE)
        yield Block(page, text.count("\n", 0, fence.start()) + 2, fence["language"], code)


def prose(page: Path) -> str:
    """The page without its blocks."""
    return _FENCED.sub("", page.read_text())


def inline_code(page: Path) -> list[str]:
    """What stands in backticks in the prose, each in one line."""
    return [re.sub(r"\s+", " ", code) for code in re.findall(r"`([^`]+)`", prose(page))]


def command_lines(block: Block) -> list[str]:
    """The lines that a shell would run: after the prompts of a `console` block, all of a `sh` block. A line that goes
    on after a backslash is one; what a here-document holds is left out."""
    text = _HERE_DOCUMENT.sub("", block.text).replace("\\\n", "")
    lines = [line.strip() for line in text.splitlines()]
    if block.language == "console":
        return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [line for line in lines if line and not line.startswith("#")]


def simple_commands(line: str) -> list[list[str]]:
    """The words of each command in the line: `a && b | c > file` has three, without redirections and variables that are
    set for one command. In a line of usage, `[...]` is taken as given, and of `one|other` the first."""
    if re.search(r"(?:^|\s)\[", line):
        line = re.sub(r"\|\w+", "", line).replace("[", " ").replace("]", " ")
    line = re.sub(r"\b\d>&\d", "", line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    words = iter(lexer)
    for word in words:
        if set(word) <= set("|&;"):
            commands.append([])
        elif set(word) <= set("<>&"):
            next(words)
        elif commands[-1] or not re.match(r"[A-Z_]+=", word):
            commands[-1].append(word)
    return [command for command in commands if command]
