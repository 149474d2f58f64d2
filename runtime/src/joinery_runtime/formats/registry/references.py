"""The schemas of a registry that a schema refers to, directly or by others, within limits.

Whoever may register a schema decides what it refers to: to itself, to thousands of others, to very long ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

MOST_REFERENCES = 100
"""How many schemas one schema may refer to in all."""
DEEPEST_REFERENCES = 20
"""How many schemas there may be on the way from a schema to one that it refers to."""
MOST_CHARACTERS = 1 << 20
"""How long a schema may be, with all that it refers to."""


class UnusableReferences(Exception):
    """A schema, with what it refers to, is over a limit, or refers to itself. The text says which."""


def references_of(root: Any, referenced: Callable[[Any], Iterable[tuple[str, Any]]]) -> list[tuple[str, Any]]:
    """The schemas that `root` refers to, each once with the name that is used for it, those first that others need.
    `referenced` yields the schemas that a schema refers to, with their names. Raises UnusableReferences."""
    names: dict[str, Any] = {}
    length = _add_length(root, 0)

    def visit_schema(schema: Any, way: tuple[str, ...]) -> None:
        nonlocal length
        if len(way) > DEEPEST_REFERENCES:
            raise UnusableReferences(
                f"its references are more than {DEEPEST_REFERENCES} deep: {' -> '.join(way[:4])} ..."
            )
        if len(schema.references or ()) > MOST_REFERENCES:
            raise UnusableReferences(f"it refers to more than {MOST_REFERENCES} schemas")
        for name, other in referenced(schema):
            if name in way:
                raise UnusableReferences(f"its references lead in a circle: {' -> '.join((*way, name))}")
            if name in names:
                continue
            length = _add_length(other, length)
            visit_schema(other, (*way, name))
            names[name] = other
            if len(names) > MOST_REFERENCES:
                raise UnusableReferences(f"it refers to more than {MOST_REFERENCES} schemas")

    visit_schema(root, ())
    return list(names.items())


def _add_length(schema: Any, before: int) -> int:
    length = before + len(schema.schema_str)
    if length > MOST_CHARACTERS:
        raise UnusableReferences(f"it has more than {MOST_CHARACTERS:,} characters, with what it refers to")
    return length
