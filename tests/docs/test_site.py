"""The site builds: every page is in the navigation, and no link or picture is missing."""

from __future__ import annotations

from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).parents[2]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    joins = (tmp_path / "joins/index.html").read_text()
    assert 'href="../files/examples/chain-join.yaml"' in joins
    assert (tmp_path / "files/examples/chain-join.yaml").read_text() == (ROOT / "examples/chain-join.yaml").read_text()
