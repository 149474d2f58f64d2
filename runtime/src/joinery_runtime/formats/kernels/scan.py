"""Scans the parts of a JSON text: strings, numbers, and values that are skipped.

Each function begins at an address `at` and returns the address after what it has read. It returns GIVEN_UP for anything
that is not strict JSON, or so rare that the caller handles it. A text ends with a brace at address `last`, where the
scan of anything but a string stops by itself. `limit` is the end of memory: words are read up to it, beyond `last`.
"""

from __future__ import annotations

from joinery_runtime.formats.kernels import inlined, part
from joinery_runtime.formats.kernels.memory import load8, load64, shift_right, store8, zeros_below

GIVEN_UP = 0
_DEEPEST = 16  # levels of objects and arrays in a value that is skipped

_ONES = 0x0101010101010101
_SPACES = 0x2020202020202020
_QUOTES = 0x2222222222222222
_BACKSLASHES = 0x5C5C5C5C5C5C5C5C
_TOP_BITS = -0x7F7F7F7F7F7F7F80  # 0x80 in each byte
_UPPER_HALVES = -0x0F0F0F0F0F0F0F10  # 0xF0 in each byte
_LOWER_HALVES = 0x0F0F0F0F0F0F0F0F
_SIXES = 0x0606060606060606
_DIGITS = 0x3333333333333333  # a digit has 3 in the upper half, and adding six does not change that

# Bytes of JSON. A closing bracket is two more than its opening one.
QUOTE, COMMA, COLON, OPEN, CLOSE, OPEN_ARRAY, CLOSE_ARRAY = map(ord, '",:{}[]')
MINUS, PLUS, POINT, ZERO, SPACE, NEWLINE = map(ord, "-+.0 \n")
_BACKSLASH, _SLASH, _NINE, _RETURN, _TAB, _BACKSPACE, _FORM_FEED = map(ord, "\\/9\r\t\b\f")
LETTER_F, LETTER_N, LETTER_T, LETTER_Z = map(ord, "fntz")
_LETTER_A, _LETTER_B, _LETTER_E, _LETTER_R, _LETTER_U = map(ord, "aberu")
LOWER_CASE = 0x20  # the bit that small letters have
_BEYOND_ASCII = 0x80
TRUE, FALSE, NULL = (int.from_bytes(word, "little") for word in (b"true", b"false", b"null"))


@inlined
def is_space(byte: int) -> bool:
    return byte == SPACE or byte == NEWLINE or byte == _RETURN or byte == _TAB


@inlined
def skip_space(at: int) -> int:
    """Skip white space."""
    while is_space(load8(at)):
        at += 1
    return at


@part
def skip_word(at: int, word: int, size: int) -> int:
    """Skip a word of up to 8 letters. The first letter is the lowest byte of `word`."""
    for letter in range(size):
        if load8(at + letter) != (word >> (8 * letter)) & 0xFF:
            return GIVEN_UP
    return at + size


@inlined
def plain_end(at: int, last: int, limit: int) -> int:
    """Return the address of the next quote, backslash, control character or byte beyond ASCII; `last` or more without
    one."""
    while at + 8 <= limit:
        word = load64(at)
        quotes, backslashes = word ^ _QUOTES, word ^ _BACKSLASHES
        matches = ((word - _SPACES) & ~word) | ((quotes - _ONES) & ~quotes) | ((backslashes - _ONES) & ~backslashes)
        matches = (matches | word) & _TOP_BITS
        if matches != 0:
            return at + (zeros_below(matches) >> 3)
        at += 8
        if at >= last:
            return at
    while at < last:
        byte = load8(at)
        if byte < SPACE or byte >= _BEYOND_ASCII or byte == QUOTE or byte == _BACKSLASH:
            return at
        at += 1
    return at


@part
def skip_character(at: int) -> int:
    """Skip one UTF-8 character beyond ASCII."""
    first, second = load8(at), load8(at + 1)
    if second & 0xC0 != 0x80 or first < 0xC2:
        return GIVEN_UP
    if first < 0xE0:
        return at + 2
    if load8(at + 2) & 0xC0 != 0x80:
        return GIVEN_UP
    if first < 0xF0:
        # Rejects characters that fit two bytes, and halves of surrogate pairs.
        return GIVEN_UP if (first == 0xE0 and second < 0xA0) or (first == 0xED and second >= 0xA0) else at + 3
    if load8(at + 3) & 0xC0 != 0x80 or first > 0xF4:
        return GIVEN_UP
    return GIVEN_UP if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second >= 0x90) else at + 4


@part
def string_end(at: int, last: int, limit: int) -> tuple[int, bool]:
    """Return, from after a string's opening quote, the address of the closing one, and whether there are escapes in
    between. `unescape` judges these."""
    escapes = False
    while True:
        at = plain_end(at, last, limit)
        if at >= last:
            return GIVEN_UP, escapes
        byte = load8(at)
        if byte == QUOTE:
            return at, escapes
        if byte == _BACKSLASH:
            escapes = True
            at += 2
        elif byte < SPACE:
            return GIVEN_UP, escapes
        else:
            at = skip_character(at)
            if at == GIVEN_UP:
                return GIVEN_UP, escapes


@part
def _hexadecimal(at: int) -> int:
    """Read four hexadecimal digits; negative if one of them is not a digit."""
    number = 0
    for offset in range(4):
        byte = load8(at + offset)
        letter = byte | LOWER_CASE
        if ZERO <= byte <= _NINE:
            number = number * 16 + byte - ZERO
        elif _LETTER_A <= letter <= LETTER_F:
            number = number * 16 + letter - _LETTER_A + 10
        else:
            return -1
    return number


@part
def _escaped(letter: int) -> int:
    r"""Return the character for a backslash and this letter; negative for \u or an unknown escape."""
    if letter == LETTER_N:
        return NEWLINE
    if letter == LETTER_T:
        return _TAB
    if letter == _LETTER_R:
        return _RETURN
    if letter == _LETTER_B:
        return _BACKSPACE
    if letter == LETTER_F:
        return _FORM_FEED
    return letter if letter == QUOTE or letter == _BACKSLASH or letter == _SLASH else -1


@part
def _encode(code: int, target: int) -> int:
    """Write a code point in UTF-8 and return the address after it."""
    if code < 0x80:
        store8(target, code)
        return target + 1
    if code < 0x800:
        store8(target, 0xC0 | code >> 6)
        store8(target + 1, 0x80 | code & 0x3F)
        return target + 2
    if code < 0x10000:
        store8(target, 0xE0 | code >> 12)
        store8(target + 1, 0x80 | code >> 6 & 0x3F)
        store8(target + 2, 0x80 | code & 0x3F)
        return target + 3
    store8(target, 0xF0 | code >> 18)
    store8(target + 1, 0x80 | code >> 12 & 0x3F)
    store8(target + 2, 0x80 | code >> 6 & 0x3F)
    store8(target + 3, 0x80 | code & 0x3F)
    return target + 4


@part
def unescape(at: int, end: int, target: int) -> int:
    r"""Write the string between these addresses, which `string_end` has accepted, to `target`, with escapes resolved.
    It never grows. Returns the address after what was written. Gives up half of a surrogate pair, and \u0000."""
    while at < end:
        byte = load8(at)
        if byte != _BACKSLASH:
            store8(target, byte)
            at, target = at + 1, target + 1
            continue
        letter = load8(at + 1)
        if letter != _LETTER_U:
            code = _escaped(letter)
            if code < 0:
                return GIVEN_UP
            store8(target, code)
            at, target = at + 2, target + 1
            continue
        code = _hexadecimal(at + 2)
        at += 6
        if 0xD800 <= code < 0xDC00:
            low = _hexadecimal(at + 2) if load8(at) == _BACKSLASH and load8(at + 1) == _LETTER_U else -1
            code = 0x10000 + (code - 0xD800 << 10) + low - 0xDC00 if 0xDC00 <= low < 0xE000 else -1
            at += 6
        if code <= 0 or 0xDC00 <= code < 0xE000 or at > end:
            return GIVEN_UP
        target = _encode(code, target)
    return target


@inlined
def integer(at: int, limit: int) -> tuple[int, int]:
    """Read a whole number that fits int64. Returns it, and the address after it."""
    negative = load8(at) == MINUS
    if negative:
        at += 1
    begin, number = at, 0
    if at + 8 <= limit:
        word = load64(at)
        if (word & _UPPER_HALVES) | shift_right(word + _SIXES & _UPPER_HALVES, 4) == _DIGITS:
            # Eight digits at once, with one product each for tens, hundreds and ten thousands.
            word = shift_right((word & _LOWER_HALVES) * 2561, 8) & 0x00FF00FF00FF00FF
            word = shift_right(word * 6553601, 16) & 0x0000FFFF0000FFFF
            number = shift_right(word * 42949672960001, 32)
            at += 8
    digit = load8(at) - ZERO
    while 0 <= digit <= 9:
        number = number * 10 + digit
        at += 1
        digit = load8(at) - ZERO
    digits = at - begin
    if digits == 0 or digits > 19 or (digits > 1 and load8(begin) == ZERO):
        return 0, GIVEN_UP
    # 19 digits fit 64 bits, but one bit is the sign.
    if number < 0 or (negative and number == 0):
        return 0, GIVEN_UP
    return -number if negative else number, at


@part
def number(at: int) -> tuple[int, int, int, int]:
    """Read any number of up to 19 digits. Returns the digits as an unsigned word without sign, how many there are, the
    power of ten by which they are multiplied (exponent -99 to 99), and the address after it. Gives up -0."""
    negative = load8(at) == MINUS
    if negative:
        at += 1
    begin, digits, power = at, 0, 0
    digit = load8(at) - ZERO
    while 0 <= digit <= 9:
        digits = digits * 10 + digit
        at += 1
        digit = load8(at) - ZERO
    count = at - begin
    if count == 0 or (count > 1 and load8(begin) == ZERO):
        return 0, 0, 0, GIVEN_UP
    if load8(at) == POINT:
        at += 1
        begin = at
        digit = load8(at) - ZERO
        while 0 <= digit <= 9:
            digits = digits * 10 + digit
            at += 1
            digit = load8(at) - ZERO
        if at == begin:
            return 0, 0, 0, GIVEN_UP
        power = begin - at
        count -= power
    if count > 19 or (negative and digits == 0):
        return 0, 0, 0, GIVEN_UP
    if load8(at) | LOWER_CASE == _LETTER_E:
        exponent, at = _exponent(at + 1)
        power += exponent
    return digits, count, power, at


@part
def _exponent(at: int) -> tuple[int, int]:
    sign = load8(at)
    if sign == MINUS or sign == PLUS:
        at += 1
    begin, exponent = at, 0
    digit = load8(at) - ZERO
    while 0 <= digit <= 9 and at < begin + 3:
        exponent = exponent * 10 + digit
        at += 1
        digit = load8(at) - ZERO
    if at == begin or at == begin + 3:
        return 0, GIVEN_UP
    return -exponent if sign == MINUS else exponent, at


@part
def skip_scalar(at: int, last: int, limit: int, scratch: int) -> int:
    """Skip a string, a number, true, false or null."""
    byte = load8(at)
    if byte == QUOTE:
        end, escapes = string_end(at + 1, last, limit)
        if end == GIVEN_UP or (escapes and unescape(at + 1, end, scratch) == GIVEN_UP):
            return GIVEN_UP
        return end + 1
    if byte == LETTER_T:
        return skip_word(at, TRUE, 4)
    if byte == LETTER_F:
        return skip_word(at, FALSE, 5)
    if byte == LETTER_N:
        return skip_word(at, NULL, 4)
    return number(at)[3]


@part
def skip_name(at: int, last: int, limit: int) -> int:
    """Skip a name without escapes, from its opening quote, and the colon after it."""
    if load8(at) != QUOTE:
        return GIVEN_UP
    end, escapes = string_end(at + 1, last, limit)
    if end == GIVEN_UP or escapes:
        return GIVEN_UP
    at = skip_space(end + 1)
    return at + 1 if load8(at) == COLON else GIVEN_UP


@part
def skip_value(at: int, last: int, limit: int, scratch: int) -> int:
    """Skip any value. At `scratch` there is room for a copy of it."""
    depth, objects = 0, 0  # the lowest bit of `objects`: the innermost level is an object; the next bit: the one around
    while True:
        byte = load8(at)
        if byte == OPEN or byte == OPEN_ARRAY:
            closing = byte + 2
            at = skip_space(at + 1)
            if load8(at) == closing:
                at += 1
            else:
                objects = objects << 1 | (closing == CLOSE)
                depth += 1
                if depth > _DEEPEST:
                    return GIVEN_UP
                if closing == CLOSE:
                    at = skip_name(at, last, limit)
                    if at == GIVEN_UP:
                        return GIVEN_UP
                    at = skip_space(at)
                continue
        else:
            at = skip_scalar(at, last, limit, scratch)
            if at == GIVEN_UP:
                return GIVEN_UP
        while depth > 0:
            at = skip_space(at)
            byte = load8(at)
            at += 1
            if byte == COMMA:
                break
            if byte != (CLOSE if objects & 1 else CLOSE_ARRAY) or at > last:
                return GIVEN_UP
            objects >>= 1
            depth -= 1
        if depth == 0:
            return at
        at = skip_space(at)
        if objects & 1:
            at = skip_name(at, last, limit)
            if at == GIVEN_UP:
                return GIVEN_UP
            at = skip_space(at)
