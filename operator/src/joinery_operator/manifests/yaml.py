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
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter

_TEXT = "tag:yaml.org,2002:str"
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_MOST_ENTRIES = 10_000  # of a document: whoever walks through it meets each alias as often as it stands
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
    """Dumps in block style, without anchors, with sorted keys. Only ASCII: Unicode line ends would come back as
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
    """Parses to plain values, which belong to the caller. Raises ruamel's YAMLError, also if aliases make a short text
    too large."""
    return deepcopy(_parse(text))


# Every reconcile of a job reads its ConfigMaps again, which hardly ever change: parsing took half of its time.
@lru_cache(maxsize=500)
def _parse(text: str) -> object:
    document: object = YAML(typ="safe", pure=True).load(text)
    if _count_entries(document, {}) > _MOST_ENTRIES:
        raise YAMLError(f"it has more than {_MOST_ENTRIES:,} entries, each alias counted as often as it stands")
    return document


def _count_entries(value: object, counted: dict[int, int]) -> int:
    """Count a document's entries, those of an alias at each place where it stands. `counted` has the ones so far, by
    the identity of their list or mapping; one within itself has too many."""
    if not isinstance(value, Mapping | list):
        return 1
    if id(value) not in counted:
        counted[id(value)] = _MOST_ENTRIES
        below = value.values() if isinstance(value, Mapping) else value
        counted[id(value)] = 1 + sum(_count_entries(entry, counted) for entry in below)
    return counted[id(value)]
