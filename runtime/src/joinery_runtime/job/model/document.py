"""YAML (or JSON) text as plain values, with the line of every key and list item."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from joinery_runtime.errors import JobError, Problem
from joinery_runtime.job.model.draft import Loc

# Far more than any resource holds; stops a file that refers to itself by an alias, or multiplies by aliases.
MAX_VALUES = 100_000
_VARIABLE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
_SURROGATE = re.compile("[\ud800-\udfff]")
NO_CHARACTER = "has half of a surrogate pair, as of a variable that is not UTF-8; write whole characters"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


@dataclass(slots=True)
class Document:
    """One YAML document. `lines` are 1-based, by path. `repeated` lists keys that a mapping holds twice, as path, line
    and column. `unset` are environment variables that a value names but that are not set, with the value's path.
    `halves` are the paths of texts with half of a surrogate pair, which nothing stores or prints: U+FFFD is there
    instead."""

    data: Any = None
    lines: dict[Loc, int] = field(default_factory=dict)
    repeated: list[tuple[Loc, int, int]] = field(default_factory=list)
    unset: list[tuple[Loc, str]] = field(default_factory=list)
    halves: list[Loc] = field(default_factory=list)

    def line(self, at: Loc) -> int | None:
        """Return the line of the place, or of the innermost part of its path that the file has."""
        return next((self.lines[at[:n]] for n in range(len(at), -1, -1) if at[:n] in self.lines), None)


def read_documents(text: str, source: str, environment: Mapping[str, str] | None = None) -> list[Document]:
    """Return all documents that are not empty. Raises JobError with line and column if the text is not YAML. With an
    `environment`, values may refer to its variables: `${NAME}`, or `${NAME:-default}`; `$${` stands for `${`."""
    if "\t" in text:
        # YAML does not allow tabs as indentation, but JSON does. JSON's strings cannot hold a bare tab.
        with suppress(ValueError):
            json.loads(text)
            text = text.replace("\t", " ")
    yaml = YAML(typ="safe", pure=True)
    try:
        nodes = [node for node in yaml.compose_all(text) if node is not None]
        return [_Reader(yaml, environment).document(node) for node in nodes]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        while_doing = f" {error.context}" if error.context else ""
        todo = "fix the text here or just above"
        if mark is not None and text.splitlines()[mark.line : mark.line + 1]:
            line = text.splitlines()[mark.line]
            if line[max(0, mark.column - 1) :].startswith("${"):  # a mapping begins there, to YAML
                todo = 'inside {...} or [...], quote a value that has a variable: "${NAME}"'
        message = f"this is not readable YAML: {error.problem or 'broken'}{while_doing}; {todo}"
        problem = Problem("(file)", message)
        if mark is not None:
            problem = Problem("(file)", f"column {mark.column + 1}: {message}", mark.line + 1)
        raise JobError(source, [problem]) from error
    except RecursionError as error:
        problem = Problem("(file)", "this is not readable YAML: it is nested too deep, or an alias refers to itself")
        raise JobError(source, [problem]) from error
    except (YAMLError, ValueError) as error:
        problem = Problem("(file)", f"this is not readable YAML: {' '.join(str(error).split())}")
        raise JobError(source, [problem]) from error


def plain_json(text: str) -> dict[str, Any] | None:
    """Return the JSON object in the text, if YAML would read the same: no repeated key, NaN or environment variable, no
    half of a surrogate pair. Else None."""
    if not text.startswith("{") or "${" in text:
        return None
    try:
        document = json.loads(text, object_pairs_hook=_mapping_without_repeats, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return None
    if "\\u" in text and _SURROGATE.search(json.dumps(document, ensure_ascii=False)):
        return None
    return document if isinstance(document, dict) else None


def _mapping_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError("a key is there twice")
    return mapping


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is text in YAML")


class _Reader:
    def __init__(self, yaml: YAML, environment: Mapping[str, str] | None) -> None:
        self._yaml, self._environment = yaml, environment
        self._document = Document()
        self._values = 0

    def document(self, node: Node) -> Document:
        self._document.lines[()] = node.start_mark.line + 1
        self._document.data = self._read_value(node, ())
        return self._document

    def _read_value(self, node: Node, at: Loc) -> Any:
        self._values += 1
        if self._values > MAX_VALUES:
            raise ValueError(f"it expands to more than {MAX_VALUES} values; do not nest aliases")
        if isinstance(node, MappingNode):
            return dict(self._read_pairs(node, at))
        if isinstance(node, SequenceNode):
            for i, child in enumerate(node.value):
                self._document.lines[*at, i] = child.start_mark.line + 1
            return [self._read_value(child, (*at, i)) for i, child in enumerate(node.value)]
        if self._environment is not None and isinstance(node, ScalarNode) and "${" in node.value:
            node = self._fill_variables(node, at, self._environment)
        # An unquoted date stays text: the models parse times themselves.
        value = node.value if node.tag == _TIMESTAMP else self._yaml.constructor.construct_object(node)
        return self._join_pairs(value, at) if isinstance(value, str) else value

    def _join_pairs(self, text: str, at: Loc) -> str:
        """Join surrogate pairs, which JSON writes as two escapes."""
        if not _SURROGATE.search(text):
            return text
        units = text.encode("utf-16", "surrogatepass")
        try:
            return units.decode("utf-16")
        except UnicodeDecodeError:
            self._document.halves.append(at)
            return units.decode("utf-16", "replace")

    def _fill_variables(self, node: ScalarNode, at: Loc, environment: Mapping[str, str]) -> ScalarNode:
        """Return the node with variables replaced. Without quotes the value may be a number or boolean, as if written
        there."""

        def value(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            name, default = match["name"], match["default"]
            if name not in environment and default is None:
                self._document.unset.append((at, name))
            return environment.get(name, default or "")

        text = _VARIABLE.sub(value, node.value)
        tag = self._yaml.resolver.resolve(ScalarNode, text, (node.style is None, node.style is not None))
        return ScalarNode(tag, text, node.start_mark, node.end_mark, style=node.style)

    def _read_pairs(self, node: MappingNode, at: Loc) -> Iterator[tuple[str, Any]]:
        seen: set[str] = set()
        for key_node, value_node in node.value:
            # Resources are JSON objects: keys are text, even where YAML would read a number (`offsets: {0: 5}`).
            key = str(key_node.value) if isinstance(key_node, ScalarNode) else "(a list or mapping as key)"
            key = self._join_pairs(key, at)
            path, mark = (*at, key), key_node.start_mark
            if key in seen:
                self._document.repeated.append((path, mark.line + 1, mark.column + 1))
            seen.add(key)
            self._document.lines.setdefault(path, mark.line + 1)
            yield key, self._read_value(value_node, path)
