import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joinery_runtime.job.model.duration import MAX_MS, format_duration, format_time, parse_duration


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("1h30m", 5_400_000),
        ("250ms", 250),
        ("-1m", -60_000),
        ("+2s", 2_000),
        ("1.5s", 1_500),
        (".5s", 500),
        ("1500us", None),
        ("2000us", 2),
        ("2000µs", 2),
        ("3000000ns", 3),
        ("0", 0),
        ("0s", 0),
        ("-0", 0),
        (" 10s ", 10_000),
        (1234, 1234),
        (-5, -5),
        (0, 0),
    ],
)
def test_reads_go_style_and_integers(value, ms):
    if ms is None:
        with pytest.raises(ValueError, match="whole number of milliseconds"):
            parse_duration(value)
    else:
        assert parse_duration(value) == ms


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1d", "write hours: 24h"),
        ("100000d", "write hours: 2400000h"),
        ("0.7d", "write hours: 16h48m"),
        ("2d12h", "write hours: 60h"),
        ("-1d", "write hours: -24h"),
        ("999999999d", "which Go durations lack; write it like 1h30m"),
        ("2w", "write hours: 336h"),
        ("10", "10 has no unit; write 10s or 10ms"),
        ("1h30", "1h30 has no unit; write 1h30s or 1h30ms"),
        ("1.5.5", "1.5.5 has no unit; write it like 1h30m"),
        ("", "is not a duration"),
        ("-", "is not a duration"),
        ("orders.deadline", "is not a duration"),
        ("1 h", "is not a duration"),
        ("5 minutes", "is not a duration"),
        ("5min", "unknown unit 'min'"),
        ("1H", "unknown unit 'H'"),
        ("1h-5m", "is not a duration"),
        ("99999999h", "longer than the longest duration"),
        (MAX_MS + 1, "longer than the longest duration"),
        (True, "must be text"),
        (1.5, "1.5 has no unit; write 1.5s"),
        (None, "must be text"),
    ],
)
def test_refuses_with_a_reason(value, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_duration(value)


@given(st.integers(-MAX_MS, MAX_MS))
def test_format_reads_back(ms):
    assert parse_duration(format_duration(ms)) == ms
    assert parse_duration(ms) == ms


@given(st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(["h", "m", "s", "ms"])), min_size=1, max_size=5))
def test_parts_add_up(parts):
    sizes = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
    text = "".join(f"{count}{unit}" for count, unit in parts)
    assert parse_duration(text) == sum(count * sizes[unit] for count, unit in parts)
    assert parse_duration("-" + text) == -parse_duration(text)


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused_with_value_error(text):
    try:
        ms = parse_duration(text)
    except ValueError:
        return
    assert abs(ms) <= MAX_MS


@pytest.mark.parametrize(("ms", "text"), [(0, "0s"), (5_400_000, "1h30m"), (-60_000, "-1m"), (1_500, "1s500ms")])
def test_formats_whole_units(ms, text):
    assert format_duration(ms) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (-62_135_596_800_000, "0001-01-01T00:00:00.000Z"),
        (-62_135_596_800_001, "-62135596800001 ms"),
        (2**63 - 2, "9223372036854775806 ms"),
    ],
)
def test_times_of_all_years_are_told_to_the_millisecond(ms, text):
    assert format_time(ms) == text
