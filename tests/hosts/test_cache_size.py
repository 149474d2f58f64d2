"""How large the segment cache of an executor may be."""

from __future__ import annotations

import pytest

from joinery_runtime.engine.cache import DEFAULT_MAX_BYTES
from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.hosts.worker_builder import CACHE_BYTES, cache_bytes


def test_the_environment_says_how_large_the_cache_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_BYTES, raising=False)
    assert cache_bytes() == DEFAULT_MAX_BYTES
    monkeypatch.setenv(CACHE_BYTES, "20Gi")
    assert cache_bytes() == 20 << 30


def test_a_size_that_is_none_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_BYTES, "lots")
    with pytest.raises(EnvironmentProblem, match="JOINERY_CACHE_BYTES holds no size: 'lots' is no number of bytes"):
        cache_bytes()
