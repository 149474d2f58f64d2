"""Fictional releases of the runtime: the checkout's sources with a higher state version, made by checked edits."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

SOURCES = Path(__file__).parents[4] / "runtime" / "src" / "joinery_runtime"
INSTALLED = "opt/joinery/lib/python3.11/site-packages/joinery_runtime"

_VERSION = re.compile(r"^STATE_VERSION = (\d+)$", re.MULTILINE)
_CHAIN = re.compile(r"^MIGRATIONS: Mapping\[int, Migration\] = \{(.+)\}$", re.MULTILINE)
_START = re.compile(r"^def start_context\((.|\n)*\Z", re.MULTILINE)

_STEP = """
def _to_next(blob: bytes) -> bytes:
    from joinery_runtime.core.table.blob import from_blob
    from joinery_runtime.core.table.segment import encode

    batch = from_blob(blob)
    {work}


MIGRATIONS: Mapping[int, Migration] = {{{before}, STATE_VERSION - 1: _to_next}}"""
_WORKS = 'return encode(batch.replace_schema_metadata({"state_version": str(STATE_VERSION)}))'
_FAILS = 'raise ValueError(f"a segment of {batch.num_rows} rows cannot be brought to the next version")'
_NO_START = """

def start_context(*_: object) -> SparkContext:
    raise JoineryError("This release does not start", facts="a test asked for that", todo="Go back")
"""

Edit = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Variant:
    """Edits by the source file's path inside the package."""

    edits: Mapping[str, Edit]


def _replaced(pattern: re.Pattern[str], replacement: Callable[[re.Match[str]], str]) -> Edit:
    def edit(source: str) -> str:
        edited, count = pattern.subn(replacement, source)
        if count != 1:
            raise ValueError(f"{pattern.pattern!r} is {count} times in the source, not once: adapt image_variants.py")
        return edited

    return edit


_NEXT_VERSION = _replaced(_VERSION, lambda match: f"STATE_VERSION = {int(match[1]) + 1}")
_WORKING = _replaced(_CHAIN, lambda match: _STEP.format(work=_WORKS, before=match[1]))
_FAILING = _replaced(_CHAIN, lambda match: _STEP.format(work=_FAILS, before=match[1]))
_ENDING = _replaced(_START, lambda match: match[0] + _NO_START)

MIGRATING = Variant({"core/table/segment.py": _NEXT_VERSION, "state/migrations.py": _WORKING})
FAILING_MIGRATION = Variant({"core/table/segment.py": _NEXT_VERSION, "state/migrations.py": _FAILING})
FAILING_START = Variant({**MIGRATING.edits, "hosts/spark.py": _ENDING})
# By the tag of the runtime's image. Each has the next state version: with a migration that works, with one that fails
# (even in a dry run), and with one that works, followed by a driver that ends before its first epoch.
RELEASES: Mapping[str, Variant] = MappingProxyType(
    {"migrating": MIGRATING, "failing-migration": FAILING_MIGRATION, "failing-start": FAILING_START}
)


def files_of(variant: Variant) -> dict[str, bytes]:
    """The edited files by their path in the image."""
    return {f"{INSTALLED}/{path}": edit((SOURCES / path).read_text()).encode() for path, edit in variant.edits.items()}
