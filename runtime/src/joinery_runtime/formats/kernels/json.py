"""Decodes JSON objects into columns: reads ordinary records, and gives up all others, record by record.

A record is given up unless everything in it certainly means here what it means to `formats.json.fallback`, which
decodes it instead. Given up are: text that is not JSON, a declared name that occurs twice or has an escape, an array or
an object in a column other than a string, anything that a path cannot go through, a value that its column cannot hold,
numbers of more than 19 digits, a double whose rounding needs more than 128 bits, binary, decimals of more than 18
digits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from joinery_runtime.formats.kernels import inlined, kernel, part
from joinery_runtime.formats.kernels.memory import (
    bits_of,
    copy16,
    high_product,
    is_below,
    load8,
    load64,
    shift_right,
    store8,
    zeros_above,
)
from joinery_runtime.formats.kernels.scan import (
    CLOSE,
    CLOSE_ARRAY,
    COLON,
    COMMA,
    FALSE,
    GIVEN_UP,
    LETTER_F,
    LETTER_N,
    LETTER_T,
    LETTER_Z,
    LOWER_CASE,
    MINUS,
    NEWLINE,
    NULL,
    OPEN,
    OPEN_ARRAY,
    PLUS,
    POINT,
    QUOTE,
    SPACE,
    TRUE,
    ZERO,
    integer,
    is_space,
    number,
    skip_space,
    skip_value,
    skip_word,
    string_end,
    unescape,
)

Words = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

BOOL, INT32, INT64, FLOAT, DOUBLE, STRING, DECIMAL, DATE, TIMESTAMP, OTHER = range(10)
BUCKETS = 256
MAX_POWER = 60  # the greatest power of ten, of either sign, in a double
TOLERATED = 64  # this many records, plus every eighth, may be given up before the rest is not looked at

_UNKNOWN = -1
_ROOT = 0  # the node of a record itself
DEEPEST = 32  # levels of objects and arrays around a value
PREDICTED = 256  # fields of a record whose names are predicted from the record before
_EXACT = 1 << 53
_SIGN = -(1 << 63)
_YEAR_1, _YEAR_9999_END = -62_135_596_800_000, 253_402_300_799_999  # as in `convert`, in milliseconds
_SECONDS_2000, _SECONDS_2100 = 946_684_800, 4_102_444_800  # as in `convert`: such numbers count seconds
_FLOAT_MAX = 3.4028235677973366e38  # from here on, a double becomes infinite as a float


class Tables(NamedTuple):
    """What a schema wants of a record.

    Node 0 is the record. Other nodes are the objects and arrays around wanted values. What is wanted is a column or,
    from the number of columns on, a node.
    """

    names: int
    """The address of the names in objects, each with a closing quote and 8 bytes of room."""
    table: Words
    """For each name: where it begins there, its length with the quote, the next entry in its bucket (-1: none), its
    node, and what is wanted of it."""
    buckets: Words
    """The first entry of each of BUCKETS."""
    items: Words
    """For arrays: the node, a position, and what is wanted of it."""
    arrays: Words
    """Which nodes are arrays."""
    kinds: Words
    """The kind, precision and scale of each column."""
    powers: Words
    """The upper 128 bits of powers of ten, lower word first, from -MAX_POWER on."""
    exact: Doubles
    """The powers of ten that are doubles."""


class Memory(NamedTuple):
    """The records' bytes, and what the kernel remembers while it reads them."""

    data: int
    """The address of the records' bytes."""
    limit: int
    """The end of the records' bytes."""
    arena: int
    """The address of room for all of the records."""
    predicted: Words
    """For each of PREDICTED fields of earlier records: the address of its name, the name's length with the closing
    quote, its node, and what it stands for. Zeros at first."""
    around: Words
    """The node and the position around each node, for DEEPEST levels."""
    seen: Words
    """The number of the last record that had this column or node; -1 at first."""


class KernelRows(NamedTuple):
    """Columns x n values. A slot holds a column's value by kind: a number, the bits of a double, milliseconds or days
    since 1970, or the unscaled value of a decimal. For a text, bits 32 to 62 hold its place, counted from `Memory.data`
    or, if the slot is negative, from `Memory.arena`, and bits 0 to 31 hold its length."""

    slots: Words
    valid: npt.NDArray[np.uint8]
    """1, or 0 for null."""


@inlined
def _is_name(at: int, begin: int, size: int, last: int, limit: int) -> bool:
    """Return whether the name at `begin`, of `size` bytes with its closing quote, is also at this address. Reads whole
    words of the name at `begin`."""
    if at + size > last:
        return False
    if at + size + 8 > limit:
        for offset in range(size):
            if load8(at + offset) != load8(begin + offset):
                return False
        return True
    while size >= 8:
        if load64(at) != load64(begin):
            return False
        at, begin, size = at + 8, begin + 8, size - 8
    return size == 0 or (load64(at) ^ load64(begin)) << (64 - 8 * size) == 0


@part
def _digits(at: int, count: int) -> int:
    """Read `count` digits; negative if one of them is not a digit."""
    value = 0
    for offset in range(count):
        digit = load8(at + offset) - ZERO
        if not 0 <= digit <= 9:
            return -1
        value = value * 10 + digit
    return value


@part
def _day(at: int) -> tuple[bool, int]:
    """Read YYYY-MM-DD in the years 1 to 9999. Returns whether it is valid, and the days since 1970."""
    year = _digits(at, 4)
    if year < 1 or load8(at + 4) != MINUS:
        return False, 0
    month = _digits(at + 5, 2)
    if not 1 <= month <= 12 or load8(at + 7) != MINUS:
        return False, 0
    day = _digits(at + 8, 2)
    last = 30 + ((month + (month >> 3)) & 1)
    if month == 2:
        last = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    if not 1 <= day <= last:
        return False, 0
    # If years begin in March, the leap day is at their end.
    shifted = year - 1 if month <= 2 else year
    in_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return True, 365 * shifted + shifted // 4 - shifted // 100 + shifted // 400 + in_year - 719468


@part
def _clock(at: int) -> int:
    """Read HH:MM:SS as seconds; negative if it is not valid, or a leap second."""
    hour = _digits(at, 2)
    if not 0 <= hour < 24 or load8(at + 2) != COLON:
        return -1
    minute = _digits(at + 3, 2)
    if not 0 <= minute < 60 or load8(at + 5) != COLON:
        return -1
    second = _digits(at + 6, 2)
    return hour * 3600 + minute * 60 + second if 0 <= second < 60 else -1


@part
def _instant(at: int, end: int) -> tuple[bool, int]:
    """Read an RFC 3339 time. Returns whether it is valid, and the milliseconds since 1970. Digits below a millisecond
    are cut off."""
    if end - at < 20:
        return False, 0
    fine, day = _day(at)
    between = load8(at + 10)
    if not fine or not (between | LOWER_CASE == LETTER_T or between == SPACE):
        return False, 0
    second = _clock(at + 11)
    if second < 0:
        return False, 0
    at += 19
    milliseconds = 0
    if load8(at) == POINT:
        at += 1
        begin = at
        digit = load8(at) - ZERO
        while 0 <= digit <= 9:
            if at < begin + 3:
                milliseconds = milliseconds * 10 + digit
            at += 1
            digit = load8(at) - ZERO
        count = at - begin
        if count == 0:
            return False, 0
        while count < 3:
            milliseconds *= 10
            count += 1
    byte = load8(at)
    if byte | LOWER_CASE == LETTER_Z:
        if at + 1 != end:
            return False, 0
    else:
        if (byte != PLUS and byte != MINUS) or at + 6 != end or load8(at + 3) != COLON:
            return False, 0
        hours, minutes = _digits(at + 1, 2), _digits(at + 4, 2)
        if not 0 <= hours < 24 or not 0 <= minutes < 60:
            return False, 0
        offset = hours * 3600 + minutes * 60
        second += offset if byte == MINUS else -offset
    return True, (day * 86_400 + second) * 1000 + milliseconds


@inlined
def _double(digits: int, power: int, powers: Words, exact: Doubles) -> tuple[bool, int]:
    """Find the double nearest to digits * 10**power by the method of Eisel and Lemire (Number Parsing at a Gigabyte
    per Second, 2021). Returns whether it is certain, and the double's bits. `digits` is unsigned. `powers[2*i]` and the
    next one are the upper 128 bits, lower word first, of 10**(i - MAX_POWER)."""
    if digits == 0:
        return True, 0
    if 0 < digits <= _EXACT and -22 <= power <= 22:
        # Both numbers are exact doubles, so their product or quotient is rounded only once.
        return True, bits_of(digits / exact[-power] if power < 0 else digits * exact[power])
    if not -MAX_POWER <= power <= MAX_POWER:
        return False, 0
    low_power, high_power = powers[2 * (power + MAX_POWER)], powers[2 * (power + MAX_POWER) + 1]
    zeros = zeros_above(digits)
    scaled = digits << zeros
    exponent = ((217_706 * power) >> 16) + 64 + 1023 - zeros
    high, low = high_product(scaled, high_power), scaled * high_power
    if high & 0x1FF == 0x1FF and is_below(low + scaled, scaled):
        upper, lower = high_product(scaled, low_power), scaled * low_power
        merged = low + upper
        if is_below(merged, low):
            high += 1
        if high & 0x1FF == 0x1FF and merged == -1 and is_below(lower + scaled, scaled):
            return False, 0
        low = merged
    top = shift_right(high, 63)
    mantissa = shift_right(high, top + 9)
    exponent -= 1 - top
    if low == 0 and high & 0x1FF == 0 and mantissa & 3 == 1:
        return False, 0  # perhaps half-way between two doubles
    mantissa = (mantissa + (mantissa & 1)) >> 1
    if mantissa >> 53:
        mantissa >>= 1
        exponent += 1
    return True, exponent << 52 | mantissa & (_EXACT // 2 - 1)


@part
def _decimal(digits: int, count: int, power: int, precision: int, scale: int) -> tuple[bool, int]:
    """Return whether the number fits a decimal column with up to 18 digits, and its unscaled value."""
    if power > 0 or -power > scale or count + scale + power > 18:
        return False, 0
    for _ in range(scale + power):
        digits *= 10
    limit = 1
    for _ in range(min(precision, 18)):
        limit *= 10
    return digits < limit, digits


@inlined
def _number_value(at: int, tables: Tables, memory: Memory, kind: int, precision: int, scale: int) -> tuple[int, int]:
    """Read a number for a column of this kind. Returns the address after it, and the value of the column's slot."""
    if kind == INT64 or kind == TIMESTAMP or kind == INT32:
        integer_value, end = integer(at, memory.limit)
        if kind == TIMESTAMP and (
            not _YEAR_1 <= integer_value <= _YEAR_9999_END or _SECONDS_2000 <= integer_value < _SECONDS_2100
        ):
            return GIVEN_UP, 0
        if kind == INT32 and not -(1 << 31) <= integer_value < 1 << 31:
            return GIVEN_UP, 0
        return end, integer_value
    digits, count, power, end = number(at)
    negative = load8(at) == MINUS
    if end == GIVEN_UP:
        return GIVEN_UP, 0
    if kind == DOUBLE or kind == FLOAT:
        fine, bits = _double(digits, power, tables.powers, tables.exact)
        fine = fine and (kind == DOUBLE or bits < bits_of(_FLOAT_MAX))
        if negative:
            bits |= _SIGN
    elif kind == DECIMAL:
        fine, bits = _decimal(digits, count, power, precision, scale)
        if negative:
            bits = -bits
    else:
        return GIVEN_UP, 0
    return end if fine else GIVEN_UP, bits


@inlined
def _string_value(
    at: int, last: int, scratch: int, memory: Memory, kind: int, precision: int, scale: int
) -> tuple[int, int, int]:
    """Read a string for a column of this kind, from its opening quote. Returns the address after it, the value of the
    column's slot, and the end of the used scratch memory."""
    begin = at + 1
    end, escapes = string_end(begin, last, memory.limit)
    if end == GIVEN_UP:
        return GIVEN_UP, 0, scratch
    if kind == STRING:
        if not escapes:
            return end + 1, begin - memory.data << 32 | end - begin, scratch
        written = unescape(begin, end, scratch)
        if written == GIVEN_UP:
            return GIVEN_UP, 0, scratch
        return end + 1, _SIGN | scratch - memory.arena << 32 | written - scratch, written
    if escapes:
        return GIVEN_UP, 0, scratch
    fine, value = False, 0
    if kind == TIMESTAMP:
        fine, value = _instant(begin, end)
        fine = fine and _YEAR_1 <= value <= _YEAR_9999_END
    elif kind == DATE:
        if end - begin == 10:
            fine, value = _day(begin)
    elif kind == DECIMAL:
        digits, count, power, stopped = number(begin)
        if stopped == end:
            fine, value = _decimal(digits, count, power, precision, scale)
            if load8(begin) == MINUS:
                value = -value
    return (end + 1 if fine else GIVEN_UP), value, scratch


@inlined
def _field(at: int, last: int, scratch: int, tables: Tables, memory: Memory, column: int) -> tuple[int, int, int, bool]:
    """Read the value of a declared column. Returns the address after it, the value of the column's slot, the end of
    the used scratch memory, and whether the value is null."""
    kind, precision, scale = tables.kinds[column, 0], tables.kinds[column, 1], tables.kinds[column, 2]
    byte = load8(at)
    if byte == QUOTE:
        end, slot, scratch = _string_value(at, last, scratch, memory, kind, precision, scale)
        return end, slot, scratch, False
    if byte == LETTER_N:
        return skip_word(at, NULL, 4), 0, scratch, True
    if byte == LETTER_T or byte == LETTER_F:
        end = skip_word(at, TRUE, 4) if byte == LETTER_T else skip_word(at, FALSE, 5)
        if kind == BOOL:
            return end, 1 if byte == LETTER_T else 0, scratch, False
        return (end if kind == STRING else GIVEN_UP), at - memory.data << 32 | end - at, scratch, False
    if kind == STRING:
        if byte == OPEN or byte == OPEN_ARRAY:
            end = skip_value(at, last, memory.limit, scratch)
            for position in range(at, end):
                if load8(position) == NEWLINE:
                    return GIVEN_UP, 0, scratch, False
        else:
            end = number(at)[3]
        return end, at - memory.data << 32 | end - at, scratch, False
    end, slot = _number_value(at, tables, memory, kind, precision, scale)
    return end, slot, scratch, False


@inlined
def _named(node: int, at: int, size: int, last: int, limit: int, tables: Tables) -> int:
    """Return what this node, an object, has under the name at this address (`size` bytes with the closing quote)."""
    entry = tables.buckets[((load8(at) + 31 * load8(at + size - 2) + 7 * size) & (BUCKETS - 1))]
    while entry != _UNKNOWN:
        if (
            tables.table[entry, 1] == size
            and tables.table[entry, 3] == node
            and _is_name(at, tables.names + tables.table[entry, 0], size, last, limit)
        ):
            return tables.table[entry, 4]
        entry = tables.table[entry, 2]
    return _UNKNOWN


@inlined
def _item(node: int, position: int, items: Words) -> int:
    """Return what this node, an array, has at this position."""
    for entry in range(len(items)):
        if items[entry, 0] == node and items[entry, 1] == position:
            return items[entry, 2]
    return _UNKNOWN


@inlined
def _read_name(at: int, last: int, field: int, node: int, tables: Tables, memory: Memory) -> tuple[int, int]:
    """Read the name at this address and the colon behind it, of a record's `field`th name. Returns the address of the
    value, or GIVEN_UP, and what this node, an object, has under the name."""
    if load8(at) != QUOTE:
        return GIVEN_UP, _UNKNOWN
    at += 1
    predicted, prediction = memory.predicted, field & (PREDICTED - 1)
    size = predicted[prediction, 1]
    if (
        size != 0
        and predicted[prediction, 2] == node
        and _is_name(at, predicted[prediction, 0], size, last, memory.limit)
    ):
        target = predicted[prediction, 3]
        at += size
    else:
        end, escapes = string_end(at, last, memory.limit)
        if end == GIVEN_UP or escapes:
            return GIVEN_UP, _UNKNOWN
        size = end + 1 - at
        target = _named(node, at, size, last, memory.limit, tables)
        predicted[prediction, 0], predicted[prediction, 1] = at, size
        predicted[prediction, 2], predicted[prediction, 3] = node, target
        at = end + 1
    at = skip_space(at)
    if load8(at) != COLON:
        return GIVEN_UP, _UNKNOWN
    return skip_space(at + 1), target


@inlined
def _begin_object(at: int, end: int) -> tuple[int, int]:
    """Return the address of the first name of a record, or GIVEN_UP if it is no object, and that of its last brace."""
    last = end - 1
    while last > at and is_space(load8(last)):
        last -= 1
    if last <= at or load8(last) != CLOSE:
        return GIVEN_UP, last
    at = skip_space(at)
    if load8(at) != OPEN:
        return GIVEN_UP, last
    at = skip_space(at + 1)
    return (at if load8(at) != CLOSE or at == last else GIVEN_UP), last


@inlined
def _end_nodes(
    at: int, last: int, node: int, position: int, depth: int, arrays: Words, around: Words
) -> tuple[int, int, int, int]:
    """Pass what ends behind a value: objects, arrays and, at the depth of -1, the record. Returns the address of the
    comma or of the record's end, or GIVEN_UP, and the node, the position and the depth there."""
    while load8(at) != COMMA:
        if load8(at) != (CLOSE_ARRAY if arrays[node] else CLOSE):
            return GIVEN_UP, node, position, depth
        at += 1
        depth -= 1
        if depth < 0:
            return (at if at == last + 1 else GIVEN_UP), node, position, depth
        if at > last:
            return GIVEN_UP, node, position, depth
        at = skip_space(at)
        node, position = around[2 * depth], around[2 * depth + 1]
    return at, node, position, depth


@inlined
def _record(
    at: int, end: int, scratch: int, tables: Tables, memory: Memory, rows: KernelRows, record: int, row: int
) -> int:
    """Decode the record with this number into a row. Returns the end of the used scratch memory, or GIVEN_UP."""
    arrays, around, seen = tables.arrays, memory.around, memory.seen
    columns, seen_columns, field = len(tables.kinds), 0, 0
    node, position, depth = _ROOT, 0, 0
    at, last = _begin_object(at, end)
    if at == GIVEN_UP:
        return GIVEN_UP
    is_empty = load8(at) == CLOSE
    while not is_empty:
        if arrays[node]:
            target = _item(node, position, tables.items)
        else:
            at, target = _read_name(at, last, field, node, tables, memory)
            if at == GIVEN_UP:
                return GIVEN_UP
            field += 1
        if target == _UNKNOWN:
            at = skip_value(at, last, memory.limit, scratch)
        else:
            if seen[target] == record:
                return GIVEN_UP
            seen[target] = record
            if target < columns:
                seen_columns += 1
                at, slot, scratch, null = _field(at, last, scratch, tables, memory, target)
                rows.slots[target, row] = slot
                rows.valid[target, row] = not null
            elif load8(at) == LETTER_N:
                at = skip_word(at, NULL, 4)
            else:
                inner = target - columns
                opening = OPEN_ARRAY if arrays[inner] else OPEN
                if load8(at) != opening or depth == DEEPEST:
                    return GIVEN_UP
                at = skip_space(at + 1)
                if load8(at) == opening + 2:
                    at += 1
                else:
                    around[2 * depth], around[2 * depth + 1] = node, position
                    node, position, depth = inner, 0, depth + 1
                    continue
        if at == GIVEN_UP:
            return GIVEN_UP
        at = skip_space(at)
        if load8(at) != COMMA:
            at, node, position, depth = _end_nodes(at, last, node, position, depth, arrays, around)
            if at == GIVEN_UP:
                return GIVEN_UP
            if depth < 0:
                break
        at = skip_space(at + 1)
        position += 1
    if seen_columns < columns:
        for column in range(columns):
            if seen[column] != record:
                rows.slots[column, row] = 0
                rows.valid[column, row] = 0
    return scratch


_READ_ONLY_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_READ_ONLY_OFFSETS = types.Array(types.int32, 1, "C", readonly=True)
_WORDS = types.int64[::1]
_TABLE = types.int64[:, ::1]


_TABLES = types.NamedTuple([types.int64, _TABLE, _WORDS, _TABLE, _WORDS, _TABLE, _WORDS, types.float64[::1]], Tables)
_MEMORY = types.NamedTuple([types.int64, types.int64, types.int64, _TABLE, _WORDS, _WORDS], Memory)
_ROWS = types.NamedTuple([_TABLE, types.uint8[:, ::1]], KernelRows)


@kernel(_READ_ONLY_OFFSETS, _READ_ONLY_BYTES, _TABLES, _MEMORY, _ROWS, _WORDS, _WORDS)
def decode(
    offsets: npt.NDArray[np.int32],
    missing: npt.NDArray[np.uint8],
    tables: Tables,
    memory: Memory,
    rows: KernelRows,
    accepted: Words,
    rejected: Words,
) -> tuple[int, int]:
    """Read n records into the first of n rows. Returns the number of records that were looked at (all, unless too many
    are given up), and the number of rows. Row i comes from record `accepted[i]`; `rejected` has the others in order.
    `offsets` (n+1) says where each record begins, `missing` (n, or empty) which have no value."""
    count, row, scratch = len(offsets) - 1, 0, memory.arena
    for record in range(count):
        begin, end = memory.data + offsets[record], memory.data + offsets[record + 1]
        after = GIVEN_UP
        if len(missing) == 0 or missing[record] == 0:
            after = _record(begin, end, scratch, tables, memory, rows, record, row)
        if after != GIVEN_UP:
            scratch = after
            accepted[row] = record
            row += 1
        else:
            rejected[record - row] = record
            if record - row >= TOLERATED + record // 8:
                return record + 1, row
    return count, row


@kernel(_WORDS, types.int32[::1])
def lay_out(slots: Words, offsets: npt.NDArray[np.int32]) -> int:
    """Write where each of n texts begins, and where the last one ends (n+1). Returns their total length."""
    total = 0
    offsets[0] = 0
    for row in range(len(slots)):
        total += slots[row] & 0x7FFFFFFF
        offsets[row + 1] = total
    return total


@kernel(types.int64, types.int64, types.int64, _WORDS, types.int32[::1], types.int64)
def gather(data: int, limit: int, arena: int, slots: Words, offsets: npt.NDArray[np.int32], target: int) -> None:
    """Copy the texts that these slots name to `target`, each to its offset. There is room for 16 more bytes. `limit`
    is the end of the records' bytes."""
    for row in range(len(slots)):
        slot = slots[row]
        source = arena + (slot >> 32 & 0x7FFFFFFF) if slot < 0 else data + (slot >> 32)
        at, end = target + offsets[row], target + offsets[row + 1]
        while at < end:
            if source + 16 <= limit or slot < 0:
                copy16(at, source)
                at, source = at + 16, source + 16
            else:
                store8(at, load8(source))
                at, source = at + 1, source + 1
