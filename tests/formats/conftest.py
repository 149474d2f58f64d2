"""What the tests of formats share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from joinery_runtime.formats.json import decoder as json_format


@pytest.fixture(scope="module", params=["compiled", "judged"])
def json_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways to read JSON: with the kernel from the first record on, and without a kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_format, "_WORTHWHILE", 0)
        if request.param == "judged":
            patch.setattr(json_format, "kernels", lambda name: None)
        yield
