from __future__ import annotations

import pytest

from joinery_runtime.core.table import blob


@pytest.fixture(autouse=True)
def packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of a simulation are stored as those with many rows are."""
    monkeypatch.setattr(blob, "FEW_ROWS", 0)
