"""Rows as Kafka records in two buffers."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinery_runtime.connectors.kafka.records import Records, Texts

TEXTS = st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=30)


@given(TEXTS, st.integers(0, 30), st.integers(0, 30), st.booleans())
def test_keys_are_the_column_s_texts_also_of_a_slice(
    texts: list[str | None], start: int, length: int, table: bool
) -> None:
    rows = pa.table({"k": pa.array(texts, pa.string())}).slice(start, length)
    expected = [None if text is None else text.encode() for text in texts[start : start + length]]
    records = Records.of(rows if table else _one_batch(rows), ("k",))
    assert [message["key"] for message in records.messages()] == expected
    assert [json.loads(message["value"])["k"] for message in records.messages()] == texts[start : start + length]
    assert [message["key"] for message in records.messages(1, 3)] == expected[1:3]


def _one_batch(rows: pa.Table) -> pa.RecordBatch:
    batches = rows.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], rows.schema)


def test_a_table_of_several_chunks() -> None:
    rows = pa.table({"k": pa.chunked_array([["a"], [], [None, "c"]], pa.string())})
    assert [message["key"] for message in Records.of(rows, ("k",)).messages()] == [b"a", None, b"c"]


@pytest.mark.parametrize("texts", [[], [b""], [b"", b"a", b"", b"bc", b""]])
def test_texts_of_a_list_and_of_lines(texts: list[bytes]) -> None:
    for buffer in (Texts.of_list(texts), Texts.of_lines(b"".join(text + b"\n" for text in texts))):
        assert len(buffer) == len(texts)
        assert buffer.to_pylist(0, len(texts)) == texts
