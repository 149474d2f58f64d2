"""The store of images in the user's cache: what it keeps and what it removes."""

from __future__ import annotations

from pathlib import Path

import pytest

from joinery_devkit.images.build import KINDS, dockerfile, last_stages
from joinery_devkit.images.store import ImageStore, require_programs

STAGES = """FROM scratch AS base
COPY base /
FROM base AS dependencies
COPY dependencies /
FROM base AS assembled
COPY --from=dependencies /dependencies /
LABEL title=x
FROM base AS code
COPY --from=dependencies /dependencies /
COPY code /
FROM assembled
COPY --from=code /code /
"""


def test_the_stages_that_keep_all_layers_are_those_without_a_later_one() -> None:
    assert last_stages(STAGES) == ["dependencies", "code", ""]
    for kind in KINDS:
        assert {"dependencies", "code", ""} <= set(last_stages(dockerfile(kind).read_text()))


@pytest.mark.node
@pytest.mark.slow
def test_layers_that_no_current_stage_has_are_removed_and_others_are_not_built_again(tmp_path: Path) -> None:
    require_programs()
    store, context = ImageStore(tmp_path / "store"), tmp_path / "context"
    for folder in (store.folder, context):
        folder.mkdir()
    (context / "Dockerfile").write_text(STAGES)

    def build(**files: str) -> list[str]:
        """Builds each of the stages, and returns their ids."""
        for name, content in files.items():
            (context / name).write_text(content)
        return [
            store.build(
                context / "Dockerfile",
                context,
                tmp_path / "log",
                f"--tag=localhost/stage:{stage or 'last'}",
                *([f"--target={stage}"] if stage else []),
            )
            for stage in last_stages(STAGES)
        ]

    def images() -> set[str]:
        return {folder.name for folder in (store.folder / "storage" / "overlay-images").iterdir() if folder.is_dir()}

    dependencies, _, _ = build(base="1", dependencies="1", code="1")
    first = images()
    same_dependencies, *_ = build(code="2")
    assert same_dependencies == dependencies
    second = images()
    store.prune()
    remaining = images()
    assert len(remaining) == len(first) < len(second)
    assert len(first - remaining) == 2, "the code of the first build, and the image with it"
    assert dependencies in remaining
