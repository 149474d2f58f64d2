"""JSON records, one object each, decoded in whole batches.

`JsonFallbackDecoder` defines what a record means, or `NestedJsonDecoder` where columns have paths. Most streams consist
of ordinary objects, which a kernel reads at a fifth of the cost or less. Records that the kernel gives up go to the
judge. The result is the same as if the judge had read all records (decision 21).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Self

import pyarrow as pa

from joinery_runtime.formats.compiled import kernels
from joinery_runtime.formats.json.compiled import JsonKernel, follows
from joinery_runtime.formats.json.fallback import JsonFallbackDecoder, NestedJsonDecoder, is_nested
from joinery_runtime.formats.records import ByValue, Decoded, FormatDecoder, merged
from joinery_runtime.job.model.inputs import Input
from joinery_runtime.job.model.paths import Path

_WORTHWHILE = 1_000  # a decoder loads the kernel after this many records: loading costs as much as decoding a million
_UNUSUAL = 8  # one in this many records may be given up; with more, the judge of flat records alone is cheaper
_PAUSE = 32  # if too many records of a batch were given up, this many times its records go straight to the judge


class JsonDecoder(ByValue, FormatDecoder):
    """Decodes JSON objects into rows of `schema`. `paths` maps columns to paths. Other columns are fields of the
    record."""

    tells_deletions: ClassVar[bool] = True

    @classmethod
    def of(cls, schema: pa.Schema, model: Input, /) -> Self:
        return cls(schema, {column.name: column.steps for column in model.columns})

    def __init__(self, schema: pa.Schema, paths: Mapping[str, Path] = MappingProxyType({})) -> None:
        self._schema, self._paths = schema, paths
        self._judge: ByValue = (
            NestedJsonDecoder(schema, paths) if is_nested(schema, paths) else JsonFallbackDecoder(schema)
        )
        self._followed = follows([paths.get(name, (name,)) for name in schema.names])
        self._kernel: JsonKernel | None = None
        self._pause = _WORTHWHILE  # records before the kernel is tried

    def decode(self, values: pa.BinaryArray) -> Decoded:
        if self._pause > 0:
            self._pause -= len(values)
            return self._judge.decode(values)
        if self._kernel is None:
            module = kernels("json") if self._followed else None
            if module is None:
                return self._judge.decode(values)
            self._kernel = JsonKernel(module, self._schema, self._paths)
        usual = self._kernel.decode(values)
        if isinstance(self._judge, JsonFallbackDecoder) and len(usual.rejected) * _UNUSUAL > len(values):
            self._pause = len(values) * _PAUSE
        decoded = Decoded(usual.rows, usual.accepted, [])
        if not len(usual.rejected):
            return decoded
        return merged(decoded, self._judge.decode(values.take(pa.array(usual.rejected))).at(usual.rejected))


DECODER = JsonDecoder
