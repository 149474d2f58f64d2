"""Paths into nested records: `payload.after.items[0].sku`."""

from __future__ import annotations

import json
import re

Path = tuple[str | int, ...]
"""Names of fields in objects and positions in arrays, from the outermost inwards. The first step is a name."""

_STEP = re.compile(r'(?P<dot>\.)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^."\[\]]+))|\[(?P<index>\d{1,6})\]')
_FORM = 'a path is names and positions, for example payload.after.id, items[0].sku or "a.b".c (a name with dots)'


def parse_path(text: str) -> Path:
    """The steps of a path. Raises ValueError, which shows the form."""
    if text.startswith("$"):
        raise ValueError(f"{text!r} begins with $; leave it out: {_FORM}")
    steps: list[str | int] = []
    at = 0
    while at < len(text) or not steps:
        match = _STEP.match(text, at)
        # A dot separates two steps if the second one is a name.
        if match is None or (match["index"] is None and bool(match["dot"]) != bool(steps)):
            raise ValueError(f"{text!r} is not a path (see character {at + 1}): {_FORM}")
        if match["index"] is None:
            name = match["plain"]
            if (quoted := match["quoted"]) is not None:
                try:
                    name = str(json.loads(f'"{quoted}"'))
                except ValueError as error:
                    raise ValueError(f'"{quoted}" is not a name in quotes as JSON has it') from error
            steps.append(name)
        elif steps:
            steps.append(int(match["index"]))
        else:
            raise ValueError(f"{text!r} begins with a position, and a record is an object: {_FORM}")
        at = match.end()
    return tuple(steps)
