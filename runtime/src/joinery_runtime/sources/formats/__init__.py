"""The formats of input records: one module each, named like the input's `format` (with `_` for `-`).

A module here holds all that the runtime knows about a format: `DECODER` is its `FormatDecoder`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from joinery_runtime.errors import SourceError
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.sources.records import FormatDecoder


def format_names() -> list[str]:
    """The formats that have a module here: the same as those of `Input.format` (tests/sources/test_factory.py)."""
    return sorted(module.name.replace("_", "-") for module in iter_modules(__path__))


def format_of(model: Input) -> type[FormatDecoder]:
    """The decoder class for the input's format. Raises SourceError for a format without a module here."""
    names = format_names()
    if model.format not in names:
        raise SourceError(
            f"Input {model.name} has format {model.format}, and no decoder reads it", todo=f"Write {' or '.join(names)}"
        )
    decoder: type[FormatDecoder] = import_module(f"{__name__}.{model.format.replace('-', '_')}").DECODER
    return decoder
