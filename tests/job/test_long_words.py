"""Messages do not repeat a text that nobody can read."""

from __future__ import annotations

import pytest

from joinery_runtime.errors import JobError, Problem


@pytest.mark.parametrize("size", [299, 300, 100_000])
def test_a_long_word_of_a_message_is_cut(size: int) -> None:
    text = str(JobError("job.yaml", [Problem("spec.where", f"cannot evaluate 'a b {'x' * size} c': a\nb", 7)]))
    assert text.startswith("job.yaml: 1 problem(s): \n  line 7: spec.where: cannot evaluate 'a b xxx")
    assert text.endswith("xxx c': a\nb")
    assert ("..." in text) == (size >= 300)
    assert len(text) < 400
