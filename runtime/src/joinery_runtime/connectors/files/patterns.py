"""Path patterns for repeated look-ups: which directories to look into, and which files match."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Iterable
from pathlib import Path

Rest = frozenset[tuple[str, ...]]
"""What may follow a directory: alternatives, each made of pattern parts. The last part matches a file name."""

_ANY_DIRECTORIES = "**"


class FilePattern:
    """A directory, which stands for all of its files, or a pattern with `*`, `?`, `[abc]` and `**` (any directories, or
    none). Names that begin with a dot or an underscore are hidden. `root` is the directory above all files."""

    def __init__(self, path: str) -> None:
        parts = Path(path).parts
        fixed = next((index for index, part in enumerate(parts) if glob.has_magic(part)), len(parts))
        self.root = str(Path(*parts[:fixed])) if fixed < len(parts) else path
        self.below: Rest = frozenset([parts[fixed:] or ("*",)])

    def follows(self, file: str) -> bool:
        """Whether the file would match if it existed."""
        if not Path(file).is_relative_to(self.root):
            return False
        *directories, name = Path(file).relative_to(self.root).parts or ("",)
        rest = self.below
        for directory in directories:
            rest = inside(rest, directory)
        return is_file_of(rest, name)


def inside(rest: Rest, directory: str) -> Rest:
    """What may follow a directory with this name; nothing if it does not match."""
    if _hidden(directory):
        return frozenset()
    remaining = set()
    for parts in _steps(rest):
        if parts[0] == _ANY_DIRECTORIES:
            remaining.add(parts)
        elif len(parts) > 1 and fnmatch.fnmatchcase(directory, parts[0]):
            remaining.add(parts[1:])
    return frozenset(remaining)


def is_file_of(rest: Rest, name: str) -> bool:
    fitting = (fnmatch.fnmatchcase(name, "*" if part == _ANY_DIRECTORIES else part) for part in _last(rest))
    return not _hidden(name) and any(fitting)


def _last(rest: Rest) -> Iterable[str]:
    return (parts[0] for parts in _steps(rest) if len(parts) == 1)


def _steps(rest: Rest) -> set[tuple[str, ...]]:
    """Adds the alternatives in which a leading `**` stands for no directory."""
    shorter = {parts[1:] for parts in rest if len(parts) > 1 and parts[0] == _ANY_DIRECTORIES}
    return set(rest) | (_steps(frozenset(shorter)) if shorter else shorter)


def _hidden(name: str) -> bool:
    return name[:1] in ("", ".", "_")
