"""YAML with one meaning everywhere: the runtime and Spark read version 1.2, kubectl and most tools 1.1."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode
from ruamel.yaml.representer import SafeRepresenter

_TEXT = "tag:yaml.org,2002:str"
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_MOST_SIZE = 5_000_000  # of a document, see `_size`: whoever walks through it meets each alias as often as it stands
_NODE = 50  # the size of a node beside its characters
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


class _Representer(SafeRepresenter):
    """Quotes text unless it is a word that every version reads as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def text(self, value: str) -> ScalarNode:
        plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return self.represent_scalar(_TEXT, value, style=None if plain else '"')


_Representer.add_representer(str, _Representer.text)


def to_yaml(document: Mapping[str, Any]) -> str:
    """Dump in block style, without anchors, with sorted keys. Only ASCII: Unicode line ends would come back as
    spaces."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = False
    yaml.width = 4096
    yaml.allow_unicode = False
    text = StringIO()
    yaml.dump(document, text)
    return text.getvalue()


def from_yaml(text: str) -> object:
    """Parse to plain values, which belong to the caller. Raises ruamel's YAMLError, also if aliases make a short text
    too large."""
    return deepcopy(_parse(text))


# Every reconcile of a job reads its ConfigMaps again, which hardly ever change: parsing took half of its time.
@lru_cache(maxsize=500)
def _parse(text: str) -> object:
    yaml = YAML(typ="safe", pure=True)
    try:
        node = yaml.compose(text)
        # Before anything is made of the nodes: a merge key copies what its aliases stand for.
        if _size(node, {}) > _MOST_SIZE:
            raise YAMLError("it is too large, each alias counted as often as it stands")
        document: object = None if node is None else yaml.constructor.construct_document(node)
    except YAMLError:
        raise
    except Exception as error:  # of a key that is a list, `!!int ''`, or nesting without end
        raise YAMLError(f"{type(error).__name__}: {error}") from error
    return document


def _size(node: Node | None, sizes: dict[int, int]) -> int:
    """Return the size of a node in characters, and _NODE for each node, with an alias at each place where it stands.
    `sizes` has those of the lists and mappings so far, by identity; one within itself is too large."""
    if isinstance(node, ScalarNode):
        return _NODE + len(node.value)
    if not isinstance(node, CollectionNode):
        return _NODE
    if id(node) not in sizes:
        sizes[id(node)] = _MOST_SIZE
        below = (part for pair in node.value for part in pair) if isinstance(node, MappingNode) else node.value
        sizes[id(node)] = _NODE + sum(_size(part, sizes) for part in below)
    return sizes[id(node)]
