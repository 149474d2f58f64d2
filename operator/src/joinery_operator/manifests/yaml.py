"""YAML with one meaning everywhere: the runtime and Spark read version 1.2, kubectl and most tools 1.1."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_UNREADABLE = re.compile(r"[^\x20-\x7e]")
_SPECIAL = {"Infinity": ".inf", "-Infinity": "-.inf", "NaN": ".nan"}
_LONGEST_KEY = 120  # readers of YAML look for the colon so far
_MOST_SIZE = 5_000_000  # of a document, see `_size`: whoever walks through it meets each alias as often as it stands
_NODE = 50  # the size of a node beside its characters
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def to_yaml(document: Mapping[str, Any]) -> str:
    """Write a mapping of what JSON has in block style, without anchors, with sorted keys. Only ASCII: Unicode line ends
    would come back as spaces. What YAML alone has, such as a date in a pod template, becomes its text."""
    return "".join(f"{line}\n" for line in _block_lines(document))


def _block_lines(value: object) -> list[str]:
    """Return the lines of a value. ruamel writes the same, which took most of the time of a reconcile."""
    if isinstance(value, list | tuple) and value:
        return [line for item in value for line in _marked_lines("-", _block_lines(item))]
    if not isinstance(value, Mapping) or not value:
        return [_scalar_text(value)]
    lines: list[str] = []
    for name in sorted(value, key=str):
        key, inner = _scalar_text(name), _block_lines(value[name])
        if len(key) > _LONGEST_KEY:
            lines += [f"? {key}", *_marked_lines(":", inner)]
        elif value[name] and isinstance(value[name], Mapping | list | tuple):
            margin = "  " if isinstance(value[name], Mapping) else ""
            lines += [f"{key}:", *(margin + line for line in inner)]
        else:
            lines.append(f"{key}: {inner[0]}")
    return lines


def _marked_lines(mark: str, lines: Sequence[str]) -> list[str]:
    return [f"{mark} {lines[0]}", *(f"  {line}" for line in lines[1:])]


def _scalar_text(value: object) -> str:
    """Return what stands in one line. Text is quoted unless it is a word that every version reads as text."""
    if value is None or isinstance(value, bool | int):
        return "null" if value is None else str(value).lower()
    if isinstance(value, float):
        text = json.dumps(value)
        text = _SPECIAL.get(text, text)
        return text if "." in text else text.replace("e", ".0e")  # version 1.1 takes 1e3 for text
    if isinstance(value, Mapping | list | tuple):
        return "{}" if isinstance(value, Mapping) else "[]"
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    # YAML has JSON's escapes, but reads half a character from each of a pair.
    quoted = json.dumps(text, ensure_ascii=False)
    return _UNREADABLE.sub(lambda at: ("\\u%04X" if at[0] < "\U00010000" else "\\U%08X") % ord(at[0]), quoted)


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
