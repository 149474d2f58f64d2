from __future__ import annotations

from pathlib import Path

from ruamel.yaml import YAML

from cli.commands import Joinery

CRDS = Path(__file__).parents[2] / "crds"


def test_it_prints_every_definition(joinery: Joinery) -> None:
    ended = joinery("crds")
    assert (ended.code, ended.err) == (0, "")
    printed = list(YAML(typ="safe").load_all(ended.out))
    assert [definition["kind"] for definition in printed] == ["CustomResourceDefinition"] * len(list(CRDS.iterdir()))
    assert sorted(ended.out.split("---\n")) == sorted(path.read_text() for path in CRDS.iterdir())


def test_it_writes_one_file_per_kind(joinery: Joinery, tmp_path: Path) -> None:
    assert joinery("crds", "--folder", tmp_path / "new").code == 0
    written = {path.name: path.read_text() for path in (tmp_path / "new").iterdir()}
    assert written == {path.name: path.read_text() for path in CRDS.iterdir()}


def test_a_folder_that_cannot_be_written_is_named(joinery: Joinery, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = joinery("crds", "--folder", tmp_path / "file")
    assert ended.code == 3
    assert "joinery.dev_streamjoins.yaml cannot be written" in ended.err
