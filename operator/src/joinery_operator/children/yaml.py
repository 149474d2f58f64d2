"""YAML 1.2, as the runtime reads it."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from typing import Any

from ruamel.yaml import YAML


def to_yaml(document: Mapping[str, Any]) -> str:
    """Block style, without anchors, keys sorted. Only ASCII: line ends of Unicode would come back as spaces."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.width = 4096
    yaml.allow_unicode = False
    yaml.representer.ignore_aliases = lambda _: True
    text = StringIO()
    yaml.dump(document, text)
    return text.getvalue()


def from_yaml(text: str) -> object:
    """Plain values. Raises ruamel's YAMLError."""
    return YAML(typ="safe", pure=True).load(text)
