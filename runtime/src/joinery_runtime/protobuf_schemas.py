"""Schemas of Protobuf, compiled from their text by protoc."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool

_FILE = "schema.proto"  # what a schema is called for protoc, unless another file that it imports is
_SECONDS = 60  # protoc takes 0.05


class InvalidSchema(Exception):
    """The text says what protoc refuses, with line and column."""


class ProtobufSchema:
    """One compiled file. Messages are numbered as Confluent's serializers do: the position of the message in its file,
    then of the one inside of it, and so on."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def at(self, places: Sequence[int]) -> Any:
        """The descriptor of the message at these positions. Raises LookupError where there is none."""
        within, found = list(self._file.message_types_by_name.values()), None
        for place in places:
            if not 0 <= place < len(within):
                raise LookupError(f"the schema has no message {list(places)}")
            found = within[place]
            within = list(found.nested_types)
        return found

    def named(self, name: str | None) -> Any:
        """The descriptor of the message of that name, with its package or without; None is the first of the file.
        Raises LookupError where there is none."""
        known = self._file.message_types_by_name
        if name is None:
            return self.at([0])
        first, *inner = name.removeprefix(f"{self._file.package}.").split(".")
        found = known.get(first)
        for part in inner:
            found = found and found.nested_types_by_name.get(part)
        if found is None:
            raise LookupError(f"the schema has no message {name}; it has {', '.join(known) or 'none'}")
        return found


def compiled(text: str, imports: Mapping[str, str]) -> ProtobufSchema:
    """`imports` are texts by the names under which files import them; those of google/protobuf/ are known. Raises
    InvalidSchema."""
    return _compiled(text, tuple(sorted(imports.items())))


def imports_of(found: Any, referenced: Callable[[Any], Iterable[tuple[str, Any]]]) -> dict[str, str]:
    """The texts that a registry's schema imports, by their names, with those that these import; `referenced` gives the
    schemas that one names, by the names that it has for them."""
    files: dict[str, str] = {}
    waiting = [found]
    while waiting:
        for name, schema in referenced(waiting.pop()):
            if name not in files:
                files[name] = schema.schema_str
                waiting.append(schema)
    return files


@functools.lru_cache(maxsize=256)
def _compiled(text: str, imports: tuple[tuple[str, str], ...]) -> ProtobufSchema:
    files = dict(imports)
    name = next(each for each in (_FILE, *(f"schema{n}.proto" for n in range(len(files)))) if each not in files)
    with tempfile.TemporaryDirectory(prefix="joinery-protobuf-") as folder:
        for path, content in (files | {name: text}).items():
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                raise InvalidSchema(f"{path!r} is no name of a file to import")
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_text(content, "utf-8")
        # A process of its own: protoc prints faults to the process's standard error.
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--include_imports", "--descriptor_set_out=.set"]
        ran = subprocess.run([*command, name], cwd=folder, capture_output=True, timeout=_SECONDS, check=False)
        if ran.returncode != 0:
            raise InvalidSchema(ran.stderr.decode(errors="replace").strip().replace("\n", "; ")[:500])
        found = descriptor_pb2.FileDescriptorSet.FromString((Path(folder) / ".set").read_bytes())
    # Schemas of several versions have messages of the same names: each has a pool to itself.
    pool = descriptor_pool.DescriptorPool()
    for file in found.file:
        pool.Add(file)
    return ProtobufSchema(pool.FindFileByName(name))
