"""Draws the packages of the runtime as rooms, each above those that it imports: docs/pictures/rooms.svg.

`make crds` writes the picture from the imports of today, and tests/docs/test_rooms.py fails while the file differs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter

import grimp

PACKAGE = "joinery_runtime"
PURPOSES: Mapping[str, str] = {
    "cli": "parses and prints",
    "inspect": "answers about a job and its state",
    "hosts": "Spark, or this process",
    "engine": "plans, the epoch loop, tasks",
    "state": "what is stored, in memory or Postgres",
    "connectors": "source, sink and client of each system",
    "formats": "decoders and encoders of records",
    "core": "joins, sessions, watermarks",
    "job": "what a user writes, as models",
}
"""The rooms of the picture, and what each is for. The loose modules beside them are not drawn."""
_WIDTH, _ROW, _BOX = 900, 52, 36
_STYLE = """text{font:13px system-ui,sans-serif;fill:#24292f}.dim{fill:#6e7781}.b{font-weight:600}
  .box{fill:none;stroke:#8c959f;stroke-width:1.2}.inner{fill:#0969da;opacity:.12}
  .arrow{stroke:#8c959f;stroke-width:1.5;fill:none}
  @media (prefers-color-scheme:dark){text{fill:#e6edf3}.dim{fill:#9198a1}.inner{fill:#58a6ff;opacity:.2}}"""
_ARROW_HEAD = (
    '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#8c959f"/></marker></defs>'
)


@dataclass(frozen=True, slots=True)
class Room:
    """A package, the packages in it, and the rooms that it imports."""

    name: str
    packages: tuple[str, ...]
    imports: frozenset[str]


@cache
def rooms() -> tuple[Room, ...]:
    """Return the rooms, each before those that it imports. Raises CycleError if rooms import each other in a circle."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    imports: dict[str, set[str]] = {name: set() for name in PURPOSES}
    packages: dict[str, set[str]] = {name: set() for name in PURPOSES}
    for module in graph.modules:
        _, room, *inside = [*module.split("."), ""]
        if room not in PURPOSES:
            continue
        if len(inside) > 2:  # a module in a package of the room
            packages[room].add(inside[0])
        imported_rooms = {name.split(".")[1] for name in graph.find_modules_directly_imported_by(module)}
        imports[room] |= (imported_rooms & PURPOSES.keys()) - {room}
    names = reversed([*TopologicalSorter({name: sorted(imports[name]) for name in sorted(imports)}).static_order()])
    return tuple(Room(name, tuple(sorted(packages[name])), frozenset(imports[name])) for name in names)


def picture() -> str:
    """Return the SVG: a floor for each room, and in it the packages of the room."""
    return "\n".join(_picture_lines()) + "\n"


def _picture_lines() -> Iterator[str]:
    floors = rooms()
    height = 20 + _ROW * len(floors)
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    yield "<title>The runtime's packages; each imports only what is below it</title>"
    yield f"<style>\n  {_STYLE}\n</style>"
    yield _ARROW_HEAD
    for number, room in enumerate(floors):
        y = 10 + _ROW * number
        yield f'<rect class="box" x="10" y="{y}" width="{_WIDTH - 20}" height="{_BOX}" rx="5"/>'
        yield f'<text x="22" y="{y + 23}" class="b">{room.name}</text>'
        yield f'<text x="115" y="{y + 23}" class="dim">{PURPOSES[room.name]}</text>'
        right = _WIDTH - 18
        for package in reversed(room.packages):
            width = 12 + 7 * len(package)
            right -= width
            yield f'<rect class="inner" x="{right}" y="{y + 7}" width="{width}" height="22" rx="4"/>'
            yield f'<text x="{right + width / 2}" y="{y + 22}" text-anchor="middle">{package}</text>'
            right -= 6
        if room is not floors[-1]:
            yield f'<path class="arrow" d="M 60 {y + _BOX} V {y + _ROW - 2}" marker-end="url(#a)"/>'
    yield "</svg>"


if __name__ == "__main__":
    sys.stdout.write(picture())
