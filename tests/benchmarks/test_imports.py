"""mypy leaves the bench out, so what it imports of the product is tried here."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import bench
import pytest

MODULES = sorted(file.stem for file in Path(*bench.__path__).glob("*.py") if not file.stem.startswith("__"))


@pytest.mark.parametrize("module", MODULES)
def test_what_a_module_imports_exists(module: str) -> None:
    import_module(f"bench.{module}")
