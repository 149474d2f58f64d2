"""Record keys that may begin with a registry's frame: what JSON has for their values, whatever they are written in.

A framed key that is a JSON object is that; of any other one the registry says whether it is Avro or JSON. A topic whose
producers have changed has keys with a frame and without.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.job.model.inputs import Input
from joinery_runtime.sources.foreign import FRAME
from joinery_runtime.sources.formats.avro import read_record
from joinery_runtime.sources.one_by_one import RefusedRecord
from joinery_runtime.sources.records import BadRecord, ByValue, Decoded, json_text, with_bad
from joinery_runtime.sources.schema_registry import Schemas, UnknownSchema, schema_number


class FramedKeys:
    """Of an input that names a registry, which is asked no earlier than it has to be."""

    def __init__(self, model: Input) -> None:
        self._model = model
        self._schemas: Schemas | None = None

    def json(self, decoder: ByValue) -> ByValue:
        """Has `decoder` read keys that are objects, as JSON."""
        return _Unframed(decoder, self._json)

    def text(self, decoder: ByValue) -> ByValue:
        """Has `decoder` read keys that are one value, as text; of an object it is JSON."""
        return _Unframed(decoder, self._text)

    def _json(self, key: bytes) -> bytes:
        """Raises RefusedRecord."""
        value = key[FRAME:]
        if value.startswith(b"{") and _is_json(value):
            return value
        self._schemas = self._schemas or Schemas.of(self._model)
        try:
            number = schema_number(key)
            kind = self._schemas.kind(number)
            if kind == "AVRO":
                found = json_text(read_record(key, FRAME, self._schemas.avro(number)))
                return found.encode("utf-8", "surrogatepass")
        except UnknownSchema as unknown:
            raise RefusedRecord(str(unknown)) from unknown
        if kind != "JSON":
            raise RefusedRecord(f"schema {number} is of {kind}, in which keys are not read")
        return value

    def _text(self, key: bytes) -> bytes:
        found = self._json(key)
        if not found.startswith(b'"'):
            return found
        try:
            return str(json.loads(found)).encode("utf-8", "surrogatepass")
        except ValueError as error:
            raise RefusedRecord(f"not JSON: {error}") from error


class _Unframed(ByValue):
    """Takes the frame off where a key has one, and leaves the rest to `decoder`."""

    def __init__(self, decoder: ByValue, read: Callable[[bytes], bytes]) -> None:
        self._decoder, self._read = decoder, read

    def decode(self, values: pa.BinaryArray) -> Decoded:
        framed = pc.and_(pc.starts_with(values, "\0"), pc.greater_equal(pc.binary_length(values), FRAME))
        places = np.flatnonzero(pc.fill_null(framed, False).to_numpy(zero_copy_only=False)).tolist()
        if not places:
            return self._decoder.decode(values)
        keys = values.to_pylist()
        bad: list[BadRecord] = []
        for place in places:
            try:
                keys[place] = self._read(keys[place])
            except RefusedRecord as refused:
                bad.append(BadRecord(place, str(refused)))
        fine = np.setdiff1d(np.arange(len(keys)), [each.index for each in bad])
        return with_bad(self._decoder.decode(pa.array(keys, pa.binary()).take(pa.array(fine))).at(fine), bad)


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
