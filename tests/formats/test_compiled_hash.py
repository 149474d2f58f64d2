from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from joinery_runtime.core.table.keyhash import key_hash
from joinery_runtime.formats.compiled import compiled_key_hash, kernels
from joinery_runtime.formats.kernels import xxh3

compiled = compiled_key_hash()


def test_it_is_compiled() -> None:
    assert kernels("xxh3") is not None
    assert compiled is not key_hash


@pytest.mark.parametrize("fill", [b"\x00", b"\xff", b"k"])
def test_texts_of_every_length(fill: bytes) -> None:
    texts = pa.array([fill * size for size in range(xxh3.LONGEST + 1)])
    hashes = np.empty(len(texts), np.uint64)
    _, offsets, data = texts.buffers()
    assert xxh3.hash_texts(offsets.address, data.address, hashes.view(np.int64))
    assert hashes.tolist() == [xxhash.xxh3_64_intdigest(text) for text in texts.to_pylist()]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=140)), max_size=20), st.integers(0, 5))
def test_it_gives_the_same_numbers(texts: list[bytes | None], skipped: int) -> None:
    column = pa.array(texts, pa.binary())[skipped:]
    assert compiled([column]).tolist() == key_hash([column]).tolist()


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
@pytest.mark.parametrize("longest", [40, xxh3.LONGEST, xxh3.LONGEST + 1])
def test_strings_of_every_kind(kind: pa.DataType, longest: int) -> None:
    values = [None, "", "a", "customer-17", "x" * longest]
    column = pa.array(values * 100, kind)
    assert compiled([column]).tolist() == key_hash([column]).tolist()


@pytest.mark.parametrize("size", [0, 2, 7, 13, 60, xxh3.LONGEST])
def test_a_kernel_whose_hashes_differ_is_not_used(
    size: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is as the real one otherwise: what that leaves to the library would not be compared."""

    def wrong(offsets: int, data: int, hashes: np.ndarray) -> bool:
        short = xxh3.hash_texts(offsets, data, hashes)
        hashes[size] ^= 1
        return short

    broken = SimpleNamespace(hash_texts=wrong, LONGEST=xxh3.LONGEST)
    monkeypatch.setattr("joinery_runtime.formats.compiled.kernels", lambda _: broken)
    assert compiled_key_hash.__wrapped__() is key_hash
    assert "its hashes are not those of xxHash" in caplog.text


def test_keys_of_several_columns() -> None:
    keys = [pa.array(["a", None]), pa.array([1, 2]), pa.array([None, None], pa.string())]
    assert compiled(keys).tolist() == key_hash(keys).tolist()
