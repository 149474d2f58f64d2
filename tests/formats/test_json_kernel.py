"""The kernel for usual JSON against the judge: the same rows of the same records, and the same reasons for the rest."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget import LARGE, examples
from joinery_runtime.formats.compiled import kernels
from joinery_runtime.formats.json import decoder as json_format
from joinery_runtime.formats.json.decoder import JsonDecoder, JsonKernel, follows
from joinery_runtime.formats.json.fallback import JsonFallbackDecoder, NestedJsonDecoder, is_nested
from joinery_runtime.formats.json.texts import WantedValue, wanted_tree
from joinery_runtime.formats.records import Decoded
from joinery_runtime.job.model.references import Path

TIMESTAMP = pa.timestamp("ms", tz="UTC")
TYPES = [
    pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.date32(), TIMESTAMP,
    pa.decimal128(12, 2), pa.decimal128(38, 10), pa.decimal128(5, 5),
]  # fmt: skip
NAMES = [
    "a",
    "b",
    "ts",
    "id",
    "amount",
    "customer",
    "identity",
    "a_name_of_24_characters_",
    "é",
    "x y",
    'q"',
    "",
    "$delete",
]


@pytest.fixture(autouse=True)
def from_the_first_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_format, "_WORTHWHILE", 0)


def kernel(schema: pa.Schema) -> JsonKernel:
    module = kernels("json")
    assert module is not None, "numba is a dependency"
    return JsonKernel(module, schema)


def same(actual: Decoded, expected: Decoded, records: Sequence[bytes | None]) -> None:
    """Fails with the first record that is not the same; values by their text, in which 0.0 and -0.0 differ."""
    assert actual.rows.schema == expected.rows.schema
    bad = {record.index: record.reason for record in actual.bad}
    expected_bad = {record.index: record.reason for record in expected.bad}
    rows = dict(zip(actual.index.tolist(), map(repr, actual.rows.to_pylist()), strict=True))
    expected_rows = dict(zip(expected.index.tolist(), map(repr, expected.rows.to_pylist()), strict=True))
    for at, record in enumerate(records):
        assert (rows.get(at), bad.get(at)) == (expected_rows.get(at), expected_bad.get(at)), record
    assert actual.index.tolist() == expected.index.tolist()
    assert [record.index for record in actual.bad] == [record.index for record in expected.bad]
    actual.rows.validate(full=True)


# --- records at random ------------------------------------------------------------------------------------------------

Make = Callable[[Random], str]


def _digits(random: Random, most: int) -> str:
    return "".join(random.choices("0123456789", k=random.randint(1, most)))


def integer(random: Random) -> str:
    edges = [2**31, 2**53, 2**63, 2**64, 10**18, 10**19, 62_135_596_800_000, 253_402_300_800_000]
    near = [str(sign * edge + by) for edge in edges for sign in (1, -1) for by in (-1, 0, 1)]
    size = random.choice([1, 3, 6, 13, 18, 19, 20, 25])
    return random.choice(
        [*random.choices(near, k=4), str(random.randrange(10**size)), f"-{random.randrange(10**size)}"]
    )


def fraction(random: Random) -> str:
    number = struct.unpack("d", random.randbytes(8))[0]
    return random.choice(
        [
            repr(random.random()),
            repr(random.uniform(-1e6, 1e6)),
            f"{random.randrange(10**8) / 100}",
            f"{_digits(random, 19)}.{_digits(random, 19)}",
            f"-{random.randrange(10 ** random.randint(1, 17))}.{_digits(random, 6)}",
            f"{random.randrange(10 ** random.randint(1, 19))}e{random.randint(-70, 70)}",
            f"{random.random() * 10 ** random.randint(0, 40)!r}",
            repr(number) if number == number and abs(number) != float("inf") else "1e400",
            halfway(random),
        ]
    )


def halfway(random: Random) -> str:
    """What lies between two doubles, or just beside: where rounding is hardest."""
    low = abs(random.uniform(1, 2 ** random.randint(1, 60)))
    between = (Fraction(low) + Fraction(float(np.nextafter(low, np.inf)))) / 2
    digits = random.randint(15, 20)
    scaled = int(between * 10**digits)
    text = str(scaled + random.choice([-1, 0, 0, 1]))
    return f"{text[:-digits] or '0'}.{text[-digits:]}"[: random.randint(17, 24)].rstrip(".")


ODD_NUMBERS = [
    *[
        "-0",
        "0.0",
        "-0.0",
        "00",
        "01",
        "-",
        "1.",
        ".5",
        "+1",
        "1.0",
        "1e5",
        "1E-2",
        "1e",
        "1e+",
        "0e0",
        "NaN",
        "Infinity",
    ],
    *["1e22", "1e23", "1e999", "-1e-999", "1e99999999999999999999", "0x1", "1_000", "9" * 400, f"0.{'0' * 30}1"],
    *["3.4028235677973366e38", "3.4028235677973362e38", "340282346638528860000000000000000000000", "9007199254740993"],
]


def number(random: Random) -> str:
    return random.choice([integer, integer, fraction, fraction, lambda random: random.choice(ODD_NUMBERS)])(random)


CHARACTERS = "ab01 {}[]:,/'-ÿéß中文😀\u2028\u007f\u0080"
ESCAPES = [r"\"", r"\\", r"\/", r"\b", r"\f", r"\n", r"\r", r"\t", r"\u00e9", r"\u4E2D", r"\ud83d\ude00", r"\u0041"]
WRONG_ESCAPES = [
    r"\u0000",
    r"\ud83d",
    r"\ude00",
    r"\ud83dx",
    r"\ud83d\u0041",
    r"\ud83d\ude0",
    r"\x",
    r"\u12",
    "\\",
    "\n",
    "\t",
    "\0",
]


def string(random: Random) -> str:
    pool: list[str] = list(CHARACTERS)
    kind = random.random()
    if kind < 0.3:
        pool = list("abcdefgh0123-")
    elif kind > 0.6:
        pool += ESCAPES * 2
    if kind > 0.93:
        pool += WRONG_ESCAPES
    return f'"{"".join(random.choices(pool, k=random.choice([0, 1, 3, 7, 8, 9, 16, 40])))}"'


def moment(random: Random) -> str:
    year = random.choice([1, 1970, 2024, 2000, 1900, 9999, random.randint(0, 9999)])
    day = random.choice([1, 28, 29, 30, 31, random.randint(0, 32)])
    text = f"{year:04}-{random.choice([1, 2, 2, 12, random.randint(0, 13)]):02}-{day:02}"
    clock = f"{random.choice([0, 23, 24, 12]):02}:{random.choice([0, 59, 60]):02}:{random.choice([0, 59, 60, 61]):02}"
    if random.random() < 0.8:
        clock = f"{random.randint(0, 23):02}:{random.randint(0, 59):02}:{random.randint(0, 59):02}"
    part = random.choice(["", "", ".", f".{_digits(random, 11)}", ".999", ".9999999"])
    zone = random.choice(["Z", "Z", "z", "+00:00", "-00:00", "+05:30", "-23:59", "+24:00", "+5:30", "+0530", "", "Z "])
    return f'"{random.choice([text, text + random.choice("TTTt _") + clock + part + zone])}"'


def nested(random: Random, depth: int = 0) -> str:
    if depth > 3 or random.random() < 0.4:
        return random.choice([number, string, lambda random: random.choice(["true", "false", "null"])])(random)
    inner = [nested(random, depth + 1) for _ in range(random.randint(0, 3))]
    if random.random() < 0.5:
        return f"[{random.choice([',', ' , '])[0].join(inner)}]"
    return "{" + ",".join(f"{string(random)}:{value}" for value in inner) + "}"


OTHER: list[Make] = [
    number,
    string,
    moment,
    nested,
    lambda random: random.choice(
        ["true", "false", "null", "True", "nul", "[]", "{}", "[1", '{"a":}', "", '"17000000"']
    ),
]


def usual(random: Random, arrow: pa.DataType) -> str:
    if pa.types.is_integer(arrow):
        return str(random.randrange(-(2**31), 2**31))
    if pa.types.is_floating(arrow):
        return random.choice(
            [repr(random.uniform(-1e3, 1e3)), str(random.randrange(1000)), f"{random.randrange(10**6) / 100}"]
        )
    if pa.types.is_boolean(arrow):
        return random.choice(["true", "false"])
    if pa.types.is_timestamp(arrow):
        return random.choice(
            [str(random.randrange(2**41)), '"2024-05-06T12:00:00.123Z"', '"1969-12-31 23:59:59.9995+01:00"']
        )
    if pa.types.is_date(arrow):
        return f'"{random.randint(1, 9999):04}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"'
    if pa.types.is_decimal(arrow):
        text = (
            f"0.{random.randrange(10**5):05}"
            if arrow.precision == arrow.scale
            else f"{random.randrange(10**9)}.{random.randrange(100):02}"
        )
        return random.choice([text, f'"{text}"', f"-{text}"])
    return string(random)


def record(random: Random, schema: pa.Schema, *, strange: float) -> bytes | None:
    """A record as a producer may write it; each of its values is anything at all by this chance."""
    fields = [(json.dumps(field.name, ensure_ascii=False), field.type) for field in schema]
    if random.random() < strange:
        fields.insert(
            random.randint(0, len(fields)),
            (random.choice(['"other"', '"identitx"', '"\\u0061"', string(random)]), None),
        )
    if random.random() < strange:
        random.shuffle(fields)
    if random.random() < strange and fields:
        fields = random.choices(fields, k=random.randint(0, len(fields)))
    space = random.choice(["", "", " ", "\n", " \t\r\n"])
    written = []
    for name, arrow in fields:
        odd = random.random() < strange or arrow is None
        value = random.choice(OTHER)(random) if odd else usual(random, arrow)
        written.append(f"{name}{random.choice(['', space])}:{space}{random.choice([value] * 20 + ['null'])}")
    text = f"{random.choice(['', space])}{{{space}{f',{space}'.join(written)}{space}}}{random.choice(['', space])}"
    encoded = text.encode("utf-8", "surrogatepass")
    return mutated(random, encoded) if random.random() < strange else encoded


def mutated(random: Random, text: bytes) -> bytes | None:
    at = random.randrange(len(text) + 1)
    byte = random.choice(
        [*b'"\\{}[],:0-.eE \n\t\x00\x1f\x7f\x80\xbf\xc0\xc3\xe0\xed\xf0\xf4\xff', random.randrange(256)]
    )
    return random.choice(
        [
            text[:at],
            text[at:],
            text[:at] + bytes([byte]) + text[at:],
            text[:at] + bytes([byte]) + text[at + 1 :],
            text[:at] + text[at + 1 :],
            text + text,
            text + b"\x00",
            b"\xef\xbb\xbf" + text,
            random.randbytes(random.randint(0, 12)),
            None,
        ]
    )


def schema_of(random: Random) -> pa.Schema:
    names = random.sample(NAMES, random.randint(1, 6))
    return pa.schema([(name, random.choice(TYPES * 5 + [pa.binary()])) for name in names])


@pytest.mark.parametrize("strange", [0.02, 0.2])
@settings(max_examples=examples(400), deadline=None)
@given(seed=st.integers(0, 2**64), size=st.sampled_from([1, 3, 8, 40, 300 if LARGE else 40]))
def test_the_kernel_and_the_judge_agree(strange: float, seed: int, size: int) -> None:
    random = Random(seed)
    schema = schema_of(random)
    records = [record(random, schema, strange=strange) for _ in range(size)]
    values = pa.array([b"before", *records, b"after"], pa.binary())[1:-1]
    same(JsonDecoder(schema).decode(values), JsonFallbackDecoder(schema).decode(values), records)


# --- paths ------------------------------------------------------------------------------------------------------------

STEPS: list[str | int] = ["a", "b", "é", "x.y", "ts", 0, 1, 3]


def paths_of(random: Random, schema: pa.Schema) -> dict[str, Path]:
    """Some columns have a path, of which several begin alike."""
    paths: dict[str, Path] = {}
    for name in schema.names:
        if random.random() < 0.8:
            rest = [random.choice(STEPS) for _ in range(random.choice([0, 1, 1, 2, 3]))]
            paths[name] = (random.choice(["p", "q", name]), *rest)
    return paths


def around(random: Random, node: WantedValue, schema: pa.Schema, *, strange: float) -> str:
    """A value that has what is wanted of it, and by this chance something else."""
    if random.random() < strange:
        return random.choice(OTHER)(random)
    if node.columns:
        return usual(random, schema.field(node.columns[0]).type)
    space = random.choice(["", "", " ", "\n"])
    if any(isinstance(step, int) for step in node.inner):
        size = random.randint(0, max(step for step in node.inner if isinstance(step, int)) + 2)
        listed = [around(random, node.inner.get(i, WantedValue()), schema, strange=strange) for i in range(size)]
        return f"[{space}{f'{space},{space}'.join(listed)}{space}]"
    names = [step for step in node.inner if isinstance(step, str)]
    if random.random() < strange:
        names = random.choices([*names, "other"], k=random.randint(0, len(names) + 1))
    fields = [
        f'"{name}":{around(random, node.inner.get(name, WantedValue()), schema, strange=strange)}' for name in names
    ]
    return f"{{{space}{f',{space}'.join(fields)}{space}}}"


@pytest.mark.parametrize("strange", [0.02, 0.2])
@settings(max_examples=examples(400), deadline=None)
@given(seed=st.integers(0, 2**64), size=st.sampled_from([1, 3, 8, 40]))
def test_the_kernel_finds_what_the_judge_finds_by_paths(strange: float, seed: int, size: int) -> None:
    random = Random(seed)
    schema = schema_of(random)
    paths = paths_of(random, schema)
    root = wanted_tree([paths.get(name, (name,)) for name in schema.names])
    texts = [around(random, root, schema, strange=strange).encode("utf-8", "surrogatepass") for _ in range(size)]
    records = [mutated(random, text) if random.random() < strange else text for text in texts]
    values = pa.array([b"before", *records, b"after"], pa.binary())[1:-1]

    judge = NestedJsonDecoder(schema, paths) if is_nested(schema, paths) else JsonFallbackDecoder(schema)
    same(JsonDecoder(schema, paths).decode(values), judge.decode(values), records)


def test_the_kernel_reads_nested_records_itself() -> None:
    schema = pa.schema({"id": pa.string(), "n": pa.int64(), "sku": pa.string(), "raw": pa.string()})
    paths: dict[str, Path] = {"id": ("p", "id"), "n": ("p", "after", "n"), "sku": ("items", 1, "sku"), "raw": ("raw",)}
    module = kernels("json")

    decoded = JsonKernel(module, schema, paths).decode(
        pa.array(
            [
                b'{"p":{"x":[{"id":0}],"after":{"n":5},"id":"a"},"items":[{},{"sku":"yes"}],"raw":{"a": 1.10}}',
                b'{"p":{"after":null,"id":"b"},"items":[],"raw":[]}',
                b'{"p":null,"items":[{}]}',
            ],
            pa.binary(),
        )
    )

    assert not len(decoded.rejected)
    assert [list(row.values()) for row in decoded.rows.to_pylist()] == [
        ["a", 5, "yes", '{"a": 1.10}'],
        ["b", None, None, "[]"],
        [None, None, None, None],
    ]


@pytest.mark.parametrize(
    "paths", [[("a",), ("a", "b")], [("a", "b"), ("a", "b")], [("a", 0), ("a", "b")]], ids=["inside", "twice", "both"]
)
def test_paths_that_the_kernel_cannot_follow_are_the_judges(paths: list[Path]) -> None:
    schema = pa.schema({"one": pa.string(), "two": pa.string()})

    decoded = JsonDecoder(schema, dict(zip(schema.names, paths, strict=True))).decode(
        pa.array([b'{"a":{"b":"x"}}'], pa.binary())
    )

    assert not follows(paths)
    assert decoded.rows["two"].to_pylist() == ["x"]


# --- what is read, and what is given up -------------------------------------------------------------------------------

ORDERS = pa.schema(
    {
        "id": pa.int64(),
        "lines": pa.int32(),
        "customer": pa.string(),
        "amount": pa.float64(),
        "weight": pa.float32(),
        "price": pa.decimal128(12, 2),
        "paid": pa.bool_(),
        "day": pa.date32(),
        "ts": TIMESTAMP,
    }
)
USUAL = [
    b'{"id":9223372036854775807,"lines":-3,"customer":"c-1","amount":0.30000000000000004,"weight":1.5,"price":12.5,'
    b'"paid":true,"day":"2024-02-29","ts":1700000000000}',
    b' { "ts" : "2024-05-06T12:00:00.5+02:00" , "day":"1969-12-31", "paid":false, "price":"-0.99" } \r\n',
    b'{"amount":1e-7}',
    b'{"customer":"a \\"quote\\" \\u00e9 \\ud83d\\ude00 \xc3\xa9\xe4\xb8\xad","amount":-17,"id":0}',
    b'{"customer":12.50,"other":{"a":[1,{"b":"}"},[]],"c":null},"another":"x","paid":null}',
    b"{}",
]
UNUSUAL = [
    None,
    b"",
    b"[]",
    b'{"id":1}x',
    b'{"id":1,"id":1}',
    b'{"\\u0069d":1}',
    b'{"id":1.0}',
    b'{"id":"1"}',
    b'{"lines":3000000000}',
    b'{"amount":[1]}',
    b'{"customer":[1,\n2]}',
    b'{"customer":"\xff"}',
    b'{"customer":"\t"}',
    b'{"customer":"\\ud83d"}',
    b'{"amount":12345678901234567890}',
    b'{"amount":"1"}',
    b'{"amount":1e300}',
    b'{"weight":1e39}',
    b'{"price":1.234}',
    b'{"paid":1}',
    b'{"day":"2023-02-29"}',
    b'{"ts":"2024-05-06"}',
    b'{"ts":-99999999999999}',
    b'{"other":01}',
    b'{"id":-0}',
    b'{"id":1,}',
    b'{"id" 1}',
    b'{"id":1',
]


def test_usual_records_are_not_given_up() -> None:
    decoded = kernel(ORDERS).decode(pa.array(USUAL, pa.binary()))

    assert decoded.accepted.tolist() == list(range(len(USUAL)))
    assert not len(decoded.rejected)
    assert decoded.rows.equals(JsonFallbackDecoder(ORDERS).decode(pa.array(USUAL, pa.binary())).rows)


@pytest.mark.parametrize("unusual", UNUSUAL, ids=repr)
def test_an_unusual_record_is_given_up_and_its_neighbours_are_not(unusual: bytes | None) -> None:
    values = pa.array([USUAL[0], unusual, USUAL[1]], pa.binary())

    decoded = kernel(ORDERS).decode(values)

    assert decoded.accepted.tolist() == [0, 2]
    assert decoded.rejected.tolist() == [1]
    same(JsonDecoder(ORDERS).decode(values), JsonFallbackDecoder(ORDERS).decode(values), values.to_pylist())


def test_the_judges_rows_are_put_where_their_records_were() -> None:
    records = [b'{"id":%d}' % number for number in range(5_000)]
    judged = range(7, 5_000, 11)
    for at in judged:
        records[at] = b'{"\\u0069d":%d}' % at
    records[18] = b"bad"

    decoded = JsonDecoder(ORDERS).decode(pa.array(records, pa.binary()))

    assert decoded.rows["id"].to_pylist() == decoded.index.tolist() == [at for at in range(5_000) if at != 18]
    assert [bad.index for bad in decoded.bad] == [18]


@pytest.mark.parametrize("types", [[pa.string()] * 40, [pa.int64()] * 300], ids=["texts", "more than are predicted"])
def test_many_columns_in_any_order(types: list[pa.DataType]) -> None:
    schema = pa.schema([(f"c{number}", arrow) for number, arrow in enumerate(types)])
    random = Random(1)
    records = []
    for _ in range(20):
        names = random.sample(schema.names, random.randint(1, len(schema)))
        records.append(json.dumps({name: number for number, name in enumerate(names)}).encode())
    values = pa.array(records, pa.binary())

    decoded = kernel(schema).decode(values)

    assert not len(decoded.rejected)
    assert decoded.rows.equals(JsonFallbackDecoder(schema).decode(values).rows)


def test_nothing_to_read_and_nothing_to_read_it_into() -> None:
    empty = pa.array([], pa.binary())
    assert kernel(ORDERS).decode(empty).rows.equals(ORDERS.empty_table())
    decoded = kernel(pa.schema([])).decode(pa.array([b"{}", b'{"a":1}'], pa.binary()))
    assert decoded.accepted.tolist() == [0, 1]


# --- when the kernel is used ------------------------------------------------------------------------------------------


class Counting:
    """Stands between a decoder and its judge, and counts the records that get there."""

    def __init__(self, decoder: JsonDecoder) -> None:
        self._judge: Any = decoder._judge
        self.records: list[int] = []
        decoder._judge = self  # type: ignore[assignment]

    def decode(self, values: pa.BinaryArray) -> Decoded:
        self.records.append(len(values))
        decoded: Decoded = self._judge.decode(values)
        return decoded


def batch(size: int, unusual: int) -> pa.BinaryArray:
    """So many records, of which the first ones are given up, though they are good."""
    return pa.array([b'{"id":-0}'] * unusual + [b'{"id":1}'] * (size - unusual), pa.binary())


def test_the_kernel_is_loaded_once_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_format, "_WORTHWHILE", 100)
    loaded: list[str] = []
    monkeypatch.setattr(json_format, "kernels", lambda name: loaded.append(name) or kernels(name))
    decoder = JsonDecoder(ORDERS)
    judge = Counting(decoder)

    for _ in range(4):
        decoder.decode(batch(50, 0))

    assert loaded == ["json"]
    assert judge.records == [50, 50]


def test_a_stream_of_unusual_records_goes_to_the_judge_with_a_try_now_and_then() -> None:
    decoder = JsonDecoder(ORDERS)
    judge = Counting(decoder)

    decoder.decode(batch(80, 11))
    for _ in range(32):
        decoder.decode(batch(80, 80))
    decoder.decode(batch(80, 10))
    decoder.decode(batch(80, 10))

    assert judge.records == [11, *[80] * 32, 10, 10]


def test_the_kernel_stops_where_nearly_all_is_unusual() -> None:
    decoder = JsonDecoder(ORDERS)
    judge = Counting(decoder)

    decoded = decoder.decode(batch(10_000, 5_000))

    assert judge.records == [10_000]
    assert decoded.index.tolist() == list(range(10_000))


def test_without_a_kernel_the_judge_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_format, "kernels", lambda name: None)
    decoder = JsonDecoder(ORDERS)
    judge = Counting(decoder)

    assert decoder.decode(batch(10, 1)).index.tolist() == list(range(10))
    assert judge.records == [10]
