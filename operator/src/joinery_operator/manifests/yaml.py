"""YAML with one meaning everywhere: the runtime and Spark read version 1.2, kubectl and most tools 1.1."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from datetime import date, datetime
from functools import lru_cache
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_SIZE = 5_000_000  # of a document, see `_size`: whoever walks through it meets each alias as often as it stands
_MOST_DEPTH = 200  # PyYAML's recursion ends at 320
_NODE = 50  # the size of a node beside its characters
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def to_yaml(document: Mapping[str, Any]) -> str:
    """Write a mapping of what JSON has in block style, without anchors, with sorted keys. Only ASCII: Unicode line ends
    would come back as spaces. What YAML alone has, such as a date in a pod template, becomes its text."""
    return str(yaml.dump(document, Dumper=_Dumper, default_flow_style=False, sort_keys=False, width=-1))


class _Dumper(yaml.CSafeDumper):
    """libyaml, with text that no version of YAML takes for anything else (docs/decisions/0136)."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_text(self, value: object) -> yaml.Node:
        # The API server, too, replaces half of a pair of surrogates, which UTF-8 does not have.
        text = _SURROGATE.sub("\ufffd", str(value))
        is_plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')

    def represent_sorted(self, value: Mapping[Any, Any]) -> yaml.Node:
        return self.represent_mapping(
            "tag:yaml.org,2002:map", dict(sorted(value.items(), key=lambda item: str(item[0])))
        )


for _kind in (str, bytes, date, datetime, set):
    _Dumper.add_representer(_kind, _Dumper.represent_text)
_Dumper.add_representer(dict, _Dumper.represent_sorted)
_Dumper.add_multi_representer(Mapping, _Dumper.represent_sorted)  # type: ignore[type-abstract]
_Dumper.add_multi_representer(object, _Dumper.represent_text)


def from_yaml(text: str) -> object:
    """Parse to plain values, which belong to the caller. Raises ruamel's YAMLError, also if aliases make a short text
    too large."""
    return deepcopy(_parse(text))


# Every reconcile of a job reads its ConfigMaps again, which hardly ever change: parsing took half of its time.
@lru_cache(maxsize=500)
def _parse(text: str) -> object:
    parser = YAML(typ="safe", pure=True)
    try:
        node = parser.compose(text)
        # Before anything is made of the nodes: a merge key copies what its aliases stand for.
        if _size(node, {}) > _MOST_SIZE:
            raise YAMLError("it is too large, each alias counted as often as it stands, or nested too deep")
        document: object = None if node is None else parser.constructor.construct_document(node)
    except YAMLError:
        raise
    except Exception as error:  # of a key that is a list, `!!int ''`, or nesting without end
        raise YAMLError(f"{type(error).__name__}: {error}") from error
    return document


def _size(node: Node | None, sizes: dict[int, int], depth: int = 0) -> int:
    """Return the size of a node in characters, and _NODE for each node, with an alias at each place where it stands.
    `sizes` has those of the lists and mappings so far, by identity. A node within itself, or below _MOST_DEPTH others,
    is too large."""
    if isinstance(node, ScalarNode):
        return _NODE + len(node.value)
    if not isinstance(node, CollectionNode):
        return _NODE
    if depth > _MOST_DEPTH:
        return _MOST_SIZE
    if id(node) not in sizes:
        sizes[id(node)] = _MOST_SIZE
        below = (part for pair in node.value for part in pair) if isinstance(node, MappingNode) else node.value
        sizes[id(node)] = _NODE + sum(_size(part, sizes, depth + 1) for part in below)
    return sizes[id(node)]
