"""Functions of hashes and encodings. A text is hashed as its bytes in UTF-8."""

from __future__ import annotations

import polars as pl
import polars_hash  # noqa: F401  # gives expressions of Polars their `nchash` and `chash`
import pyarrow as pa
import pyarrow.compute as pc

from joinery_runtime.core.pipeline.functions.base import (
    Family,
    Parameter,
    by_polars,
    computed_by_polars,
    constant,
    integer,
    require,
    string,
)
from joinery_runtime.core.pipeline.operators import Value

HASHING = Family("Hashes and encodings")
_VALUE = Parameter("value", "bytes")
_SHA2 = (224, 256, 384, 512)


def _sha2(value: pl.Expr, bits: int) -> pl.Expr:
    hashed: pl.Expr = getattr(value.chash, f"sha2_{bits}")()  # type: ignore[attr-defined]
    return hashed


HASHING.define(
    "MD5",
    _VALUE,
    returns="string",
    meaning="the MD5 hash in hexadecimal",
    example="MD5('a')",
    result="'0cc175b9c0f1b6a831c399e269772661'",
)(by_polars(lambda value: value.nchash.md5()))
HASHING.define(
    "SHA1 SHA",
    _VALUE,
    returns="string",
    meaning="the SHA-1 hash in hexadecimal",
    example="LEFT(SHA1('a'), 8)",
    result="'86f7e437'",
)(by_polars(lambda value: value.nchash.sha1()))
for _bits, _result in ((224, "abd37534"), (256, "ca978112"), (384, "54a59b9f"), (512, "1f40fc92")):
    HASHING.define(
        f"SHA{_bits}",
        _VALUE,
        returns="string",
        meaning=f"the SHA-2 hash of {_bits} bits in hexadecimal",
        example=f"LEFT(SHA{_bits}('a'), 8)",
        result=f"'{_result}'",
    )(by_polars(lambda value, bits=_bits: _sha2(value, bits)))


@HASHING.define(
    "SHA2",
    _VALUE,
    constant(integer("bits")),
    returns="string",
    meaning="the SHA-2 hash of 224, 256, 384 or 512 bits (0 is 256)",
    example="SHA2('a', 256) = SHA256('a')",
    result="TRUE",
)
def _sha2_of(value: Value, bits: int) -> Value:
    if bits not in {0, *_SHA2}:
        raise pa.ArrowTypeError(f"its bits must be 224, 256, 384 or 512, found {bits}")
    return computed_by_polars(lambda value: _sha2(value, bits or 256), value)


HASHING.define(
    "XXHASH64",
    _VALUE,
    returns="int64",
    meaning="the xxHash of 64 bits with seed 0, as a signed number",
    example="XXHASH64('')",
    result="-1205034819632174695",
)(by_polars(lambda value: value.nchash.xxhash64().reinterpret(signed=True)))
HASHING.define(
    "HEX TO_HEX",
    _VALUE,
    returns="string",
    meaning="its bytes in hexadecimal, with capital letters",
    example="HEX('aé')",
    result="'61C3A9'",
)(by_polars(lambda value: value.bin.encode("hex").str.to_uppercase()))
HASHING.define(
    "TO_BASE64 BASE64",
    _VALUE,
    returns="string",
    meaning="its bytes in base64",
    example="TO_BASE64('aé')",
    result="'YcOp'",
)(by_polars(lambda value: value.bin.encode("base64")))


def _decoded(text: Value, encoding: str) -> Value:
    decoded = computed_by_polars(
        lambda text: text.str.decode("hex" if encoding == "hexadecimal" else "base64", strict=False), text
    )
    require(pc.or_(pc.is_valid(decoded), pc.is_null(text)), f"the text is not {encoding}")
    return decoded


HASHING.define(
    "UNHEX FROM_HEX",
    string("text"),
    returns="binary",
    meaning="the bytes of hexadecimal text; fails for other text",
    example="HEX(UNHEX('61c3a9'))",
    result="'61C3A9'",
    fails=True,
)(lambda text: _decoded(text, "hexadecimal"))
HASHING.define(
    "FROM_BASE64 UNBASE64",
    string("text"),
    returns="binary",
    meaning="the bytes of text in base64; fails for other text",
    example="HEX(FROM_BASE64('YcOp'))",
    result="'61C3A9'",
    fails=True,
)(lambda text: _decoded(text, "base64"))
HASHING.define(
    "TO_UTF8",
    string("text"),
    returns="binary",
    meaning="the bytes of a text in UTF-8",
    example="HEX(TO_UTF8('é'))",
    result="'C3A9'",
)(lambda text: text.cast(pa.binary()))
HASHING.define(
    "FROM_UTF8",
    Parameter("bytes", "bytes"),
    returns="string",
    meaning="the text of bytes in UTF-8; fails for other bytes",
    example="FROM_UTF8(UNHEX('C3A9'))",
    result="'é'",
    fails=True,
)(lambda value: value.cast(pa.string()))
