"""YAML with one meaning everywhere: the runtime and Spark read version 1.2, kubectl and most tools 1.1."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter

_TEXT = "tag:yaml.org,2002:str"
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
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
    """Parses to plain values, which belong to the caller. Raises ruamel's YAMLError."""
    return deepcopy(_parse(text))


# Every reconcile of a job reads its ConfigMaps again, which hardly ever change: parsing took half of its time.
@lru_cache(maxsize=500)
def _parse(text: str) -> object:
    return YAML(typ="safe", pure=True).load(text)
