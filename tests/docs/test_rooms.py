"""The picture of the runtime's rooms shows the imports of today."""

from __future__ import annotations

from joinery_devkit.affected import ROOT
from joinery_devkit.rooms import PURPOSES, picture, rooms


def test_the_picture_is_that_of_the_imports() -> None:
    assert (ROOT / "docs/pictures/rooms.svg").read_text() == picture(), "run `make crds`"


def test_every_package_of_the_runtime_is_a_room() -> None:
    packages = {path.parent.name for path in (ROOT / "runtime/src/joinery_runtime").glob("*/__init__.py")}
    assert packages == PURPOSES.keys() == {room.name for room in rooms()}


def test_a_room_imports_only_rooms_below_it() -> None:
    names = [room.name for room in rooms()]
    for number, room in enumerate(rooms()):
        assert room.imports <= set(names[number + 1 :])
