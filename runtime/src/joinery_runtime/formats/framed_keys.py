"""Record keys that may begin with a registry's frame. Their values are read as JSON, whatever their format.

A framed key that is a JSON object counts as such. For any other one, the registry says whether it is Avro or JSON. A
topic whose producers have changed has keys with and without a frame.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from joinery_runtime.formats.avro.decoder import read_record
from joinery_runtime.formats.records import FRAME, BadRecord, ByValue, Decoded, is_framed, is_json, json_text, with_bad
from joinery_runtime.formats.registry.schemas import Schemas, UnknownSchema, schema_number
from joinery_runtime.formats.row_decoder import RejectedRecord
from joinery_runtime.job.model.inputs import Input


class FramedKeys:
    """The framed keys of an input that names a registry. The registry is asked no earlier than necessary."""

    def __init__(self, model: Input) -> None:
        self._model = model
        self._schemas: Schemas | None = None

    def json(self, decoder: ByValue) -> ByValue:
        """Return a decoder that gives keys that are objects to `decoder`, as JSON."""
        return _Unframed(decoder, self._unframe_json)

    def text(self, decoder: ByValue) -> ByValue:
        """Return a decoder that gives keys that are single values to `decoder`, as text. An object's text is JSON."""
        return _Unframed(decoder, self._unframe_text)

    def _unframe_json(self, key: bytes) -> bytes:
        """Return a framed key as JSON. Raises RejectedRecord."""
        value = key[FRAME:]
        if value.startswith(b"{") and is_json(value):
            return value
        self._schemas = self._schemas or Schemas.of(self._model)
        try:
            number = schema_number(key)
            kind = self._schemas.kind(number)
            if kind == "AVRO":
                text = json_text(read_record(key, FRAME, self._schemas.avro(number)))
                return text.encode("utf-8", "surrogatepass")
        except UnknownSchema as unknown:
            raise RejectedRecord(str(unknown)) from unknown
        if kind != "JSON":
            raise RejectedRecord(f"schema {number} is of {kind}, in which keys are not read")
        return value

    def _unframe_text(self, key: bytes) -> bytes:
        text = self._unframe_json(key)
        if not text.startswith(b'"'):
            return text
        try:
            return str(json.loads(text)).encode("utf-8", "surrogatepass")
        except ValueError as error:
            raise RejectedRecord(f"not JSON: {error}") from error


class _Unframed(ByValue):
    """Removes the frame from keys that have one, and gives the keys to `decoder`."""

    def __init__(self, decoder: ByValue, read: Callable[[bytes], bytes]) -> None:
        self._decoder, self._read = decoder, read

    def decode(self, values: pa.BinaryArray) -> Decoded:
        positions = np.flatnonzero(is_framed(values).to_numpy(zero_copy_only=False)).tolist()
        if not positions:
            return self._decoder.decode(values)
        keys = values.to_pylist()
        bad: list[BadRecord] = []
        for position in positions:
            try:
                keys[position] = self._read(keys[position])
            except RejectedRecord as rejected:
                bad.append(BadRecord(position, str(rejected)))
        fine = np.setdiff1d(np.arange(len(keys)), [record.index for record in bad])
        return with_bad(self._decoder.decode(pa.array(keys, pa.binary()).take(pa.array(fine))).at(fine), bad)
