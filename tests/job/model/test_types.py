import re

import pytest

from joinery_runtime.job.model import base
from joinery_runtime.job.model.base import SIMPLE_TYPES, ColumnType, parse_type


@pytest.mark.parametrize("name", [*SIMPLE_TYPES, "decimal(1,0)", "decimal(12,2)", "decimal(38,38)"])
def test_every_type_reads_back(name):
    assert str(parse_type(name)) == name


def test_decimal_carries_precision_and_scale():
    assert parse_type("decimal( 12 , 2 )") == ColumnType("decimal", 12, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("decimal", "needs its precision and scale"),
        ("decimal(0,0)", "1 <= precision <= 38"),
        ("decimal(39,2)", "1 <= precision <= 38"),
        ("decimal(5,6)", "0 <= scale <= precision"),
        ("strin", "did you mean 'string'?"),
        ("int", "'int' is not a column type (write int32)"),
        ("BIGINT", "(write int64)"),
        ("varchar(255)", "(write string)"),
        ("number", "(write double or decimal(p,s))"),
        ("", "types are boolean, int32"),
        ("decimal(5,-1)", "is not a column type"),
        ("decimal(12", 'inside of {...} it needs quotes: type: "decimal(12,2)"'),
        ("array<string>", "a json column takes an object or an array, a string column its text"),
    ],
)
def test_refuses_what_is_no_type(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_type(text)


def test_the_types_of_other_systems_have_one_here():
    for name in set(base._TYPES_ELSEWHERE.values()) - {"decimal(p,s)", "double or decimal(p,s)"}:
        assert str(parse_type(name)) == name
    for name in base._TYPES_ELSEWHERE:
        with pytest.raises(ValueError, match=re.escape(f"(write {base._TYPES_ELSEWHERE[name]})")):
            parse_type(name)


def test_simple_types_take_no_precision():
    with pytest.raises(ValueError, match="takes no precision"):
        ColumnType("string", 5)


def test_key_type_makes_the_integers_one():
    assert parse_type("int32").key_type == parse_type("int64").key_type
    assert parse_type("float").key_type != parse_type("double").key_type
    assert parse_type("decimal(5,2)").key_type != parse_type("decimal(5,3)").key_type
