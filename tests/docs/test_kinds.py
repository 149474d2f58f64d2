"""docs/kinds.md and its pictures show the golden traces of the kinds."""

from __future__ import annotations

from joinery_devkit.kinds_page import KINDS, PICTURES, ROOT, TRACES, files


def test_page_and_pictures_are_those_of_the_traces() -> None:
    for path, text in files().items():
        assert (ROOT / path).read_text() == text, f"{path}: run `make crds`"


def test_every_trace_has_its_section_and_every_picture_its_trace() -> None:
    names = {kind.trace for kind in KINDS}
    assert names == {path.stem for path in TRACES.glob("*.yaml")} == {path.stem for path in (ROOT / PICTURES).glob("*")}
    assert len(names) == len(KINDS) >= 17
