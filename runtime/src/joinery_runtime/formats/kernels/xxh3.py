"""xxh3_64 with seed 0, for texts of at most 128 bytes, by xxHash's specification (github.com/Cyan4973/xxHash,
doc/xxhash_spec.md, "XXH3 Algorithm"). The library hashes longer texts, which are rare among keys."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from joinery_runtime.formats.kernels import inlined, kernel, part
from joinery_runtime.formats.kernels.memory import high_product, load8, load32, load64, reversed_bytes, shift_right

LONGEST = 128


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


# The first words of the specification's default secret.
_SECRET = tuple(
    _signed(word)
    for word in (
        0xBE4BA423396CFEB8,
        0x1CAD21F72C81017C,
        0xDB979083E96DD4DE,
        0x1F67B3B7A4A44072,
        0x78E5C0CC4EE679CB,
        0x2172FFCC7DD05A82,
        0x8E2443F7744608B8,
        0x4C263A81E69035E0,
        0xCB00C391BB52283C,
        0xA32E531B8B65D088,
        0x4EF90DA297486471,
        0xD8ACDEA946EF1938,
        0x3F349CE33F76FAA8,
        0x1D4F0BC7C7BBDCF9,
        0x3159B4CD4BE0518A,
        0x647378D9C97E9FC8,
    )
)
_PRIME64_1, _PRIME64_2, _PRIME64_3 = map(_signed, (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
_PRIME_MX1, _PRIME_MX2 = _signed(0x165667919E3779F9), _signed(0x9FB21C651E98DF25)
_FLIP_0 = _SECRET[7] ^ _SECRET[8]
_FLIP_1_TO_3 = (_SECRET[0] ^ _SECRET[0] >> 32) & 0xFFFFFFFF
_FLIP_4_TO_8 = _SECRET[1] ^ _SECRET[2]
_FLIP_LOW, _FLIP_HIGH = _SECRET[3] ^ _SECRET[4], _SECRET[5] ^ _SECRET[6]


@inlined
def _avalanche(h: int) -> int:
    h = (h ^ shift_right(h, 37)) * _PRIME_MX1
    return h ^ shift_right(h, 32)


@inlined
def _avalanche_of_xxh64(h: int) -> int:
    h = (h ^ shift_right(h, 33)) * _PRIME64_2
    h = (h ^ shift_right(h, 29)) * _PRIME64_3
    return h ^ shift_right(h, 32)


@inlined
def _folded(a: int, b: int) -> int:
    return (a * b) ^ high_product(a, b)


@inlined
def _mixed(at: int, secret: int) -> int:
    """Mix 16 bytes with two words of the secret."""
    return _folded(load64(at) ^ _SECRET[secret], load64(at + 8) ^ _SECRET[secret + 1])


@inlined
def _of_4_to_8(at: int, size: int) -> int:
    h = (load32(at + size - 4) + (load32(at) << 32)) ^ _FLIP_4_TO_8
    h ^= ((h << 49) | shift_right(h, 15)) ^ ((h << 24) | shift_right(h, 40))
    h *= _PRIME_MX2
    h ^= shift_right(h, 35) + size
    h *= _PRIME_MX2
    return h ^ shift_right(h, 28)


@inlined
def _of_9_to_16(at: int, size: int) -> int:
    low, high = load64(at) ^ _FLIP_LOW, load64(at + size - 8) ^ _FLIP_HIGH
    return _avalanche(size + reversed_bytes(low) + high + _folded(low, high))


@part  # if it is inlined into the loop, LLVM 20 generates wrong code; each process checks the results before using any
def _of_17_to_128(at: int, size: int) -> int:
    """Mix 16 bytes at a time, from both ends inwards."""
    end, h = at + size, size * _PRIME64_1
    h += _mixed(at, 0) + _mixed(end - 16, 2)
    if size > 32:
        h += _mixed(at + 16, 4) + _mixed(end - 32, 6)
    if size > 64:
        h += _mixed(at + 32, 8) + _mixed(end - 48, 10)
    if size > 96:
        h += _mixed(at + 48, 12) + _mixed(end - 64, 14)
    return _avalanche(h)


@inlined
def _of_1_to_3(at: int, size: int) -> int:
    middle, last = load8(at + (size >> 1)), load8(at + size - 1)
    return _avalanche_of_xxh64((load8(at) << 16 | middle << 24 | last | size << 8) ^ _FLIP_1_TO_3)


_HASHES = types.Array(types.int64, 1, "C")


@kernel(types.int64, types.int64, _HASHES)
def hash_texts(offsets: int, data: int, hashes: npt.NDArray[np.int64]) -> bool:
    """Fill `hashes` with the hashes of as many texts. Text i lies between the int32 at `offsets` + 4i and the next
    one, counted from `data`. Returns False if a text is too long; the hashes are then undefined."""
    end = load32(offsets)
    for i in range(len(hashes)):
        start = end
        end = load32(offsets + 4 * (i + 1))
        at, size = data + start, end - start
        if size > 16:
            if size > LONGEST:
                return False
            hashes[i] = _of_17_to_128(at, size)
        elif size > 8:
            hashes[i] = _of_9_to_16(at, size)
        elif size > 3:
            hashes[i] = _of_4_to_8(at, size)
        elif size > 0:
            hashes[i] = _of_1_to_3(at, size)
        else:
            hashes[i] = _avalanche_of_xxh64(_FLIP_0)
    return True
