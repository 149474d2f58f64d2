"""docs/reference.md has every field of the resources, as the models say them."""

from __future__ import annotations

from pathlib import Path

from joinery_devkit.reference import page

PAGE = Path(__file__).parents[2] / "docs/reference.md"


def test_the_page_is_what_the_models_say():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make crds` and commit docs/reference.md"


def test_fields_at_every_depth_are_on_it_with_type_default_and_whether_they_are_required():
    rows = {line.split(" | ")[0]: line for line in page().splitlines() if line.startswith("| `")}
    assert "| duration | `1m` |" in rows["| `watermark.idleTimeout`"]
    assert "| *required* |" in rows["| `kafka.propertiesSecretRef.name`"]
    assert "| `exactlyOnce` \\| `atLeastOnce` |" in rows["| `delivery`"]
    assert "| bytes | `64Mi` |" in rows["| `maxBytesPerEpoch`"]
