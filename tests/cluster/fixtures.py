"""The fixtures of the tests that need a Kubernetes; tests/conftest.py names this module as a plugin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.api_server import ApiServer


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    """The API server tier; each test makes a namespace of its own (`api_namespace`)."""
    with ApiServer() as server:
        yield server


@pytest.fixture
def api_namespace(api_server: ApiServer) -> Iterator[str]:
    """The name of a namespace of this test's own on `api_server`."""
    with api_server.kubectl.namespace() as name:
        yield name
