"""Operations on memory and words that numba lacks.

An address is an int64, and so is every word, even an unsigned one: numba turns a mix of signed and unsigned into a
double. Nothing here is checked: the caller guarantees that the bytes exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_BYTE, _HALF, _WORD, _TWO_WORDS = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.IntType(128)
_NOT_OF_ZERO = ir.Constant(ir.IntType(1), 0)  # whether the result for 0 is undefined
_NOT_VOLATILE = ir.Constant(ir.IntType(1), 0)


def _instruction(name: str, result: Any, arguments: list[Any], emit: Callable[..., Any]) -> Any:
    """Make a function that kernels can call. `emit(builder, *values)` generates its instructions."""

    def written(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        value = emit(builder, *values)
        return context.get_dummy_value() if result is types.none else value

    def unary(_typing: Any, _a: Any) -> Any:
        return result(*arguments), written

    def binary(_typing: Any, _a: Any, _b: Any) -> Any:
        return result(*arguments), written

    def ternary(_typing: Any, _a: Any, _b: Any, _c: Any) -> Any:
        return result(*arguments), written

    typed = (unary, binary, ternary)[len(arguments) - 1]
    typed.__name__ = name
    return intrinsic(typed)


def _pointer(builder: Any, address: Any, to: Any) -> Any:
    return builder.inttoptr(address, to.as_pointer())


def _high_product(builder: Any, a: Any, b: Any) -> Any:
    product = builder.mul(builder.zext(a, _TWO_WORDS), builder.zext(b, _TWO_WORDS))
    return builder.trunc(builder.lshr(product, ir.Constant(_TWO_WORDS, 64)), _WORD)


def _copy16(builder: Any, target: Any, source: Any) -> None:
    both = builder.load(_pointer(builder, source, _TWO_WORDS), align=1)
    builder.store(both, _pointer(builder, target, _TWO_WORDS), align=1)


def _copy(builder: Any, target: Any, source: Any, size: Any) -> None:
    pointers = [_pointer(builder, address, _BYTE) for address in (target, source)]
    memcpy = builder.module.declare_intrinsic("llvm.memcpy", [argument.type for argument in (*pointers, size)])
    builder.call(memcpy, [*pointers, size, _NOT_VOLATILE])


def _call(builder: Any, function: Any, a: Any, b: Any) -> Any:
    return builder.call(_pointer(builder, function, ir.FunctionType(_WORD, [_WORD, _WORD])), [a, b])


_word = types.int64

load8 = _instruction("load8", _word, [_word], lambda b, at: b.zext(b.load(_pointer(b, at, _BYTE)), _WORD))
"""load8(address): the byte there, 0 to 255."""
load32 = _instruction("load32", _word, [_word], lambda b, at: b.zext(b.load(_pointer(b, at, _HALF), align=1), _WORD))
"""load32(address): the 4 bytes from there, the first one lowest; aligned or not."""
load64 = _instruction("load64", _word, [_word], lambda b, at: b.load(_pointer(b, at, _WORD), align=1))
"""load64(address): the 8 bytes from there as one word, the first one lowest; aligned or not."""
store8 = _instruction(
    "store8", types.none, [_word, _word], lambda b, at, byte: b.store(b.trunc(byte, _BYTE), _pointer(b, at, _BYTE))
)
"""store8(address, byte): stores the lowest 8 bits."""
copy16 = _instruction("copy16", types.none, [_word, _word], _copy16)
"""copy16(target, source): copies 16 bytes; aligned or not."""
copy = _instruction("copy", types.none, [_word, _word, _word], _copy)
"""copy(target, source, size): copies `size` bytes, which must not overlap."""
call = _instruction("call", _word, [_word, _word, _word], _call)
"""call(function, a, b): calls the C function at this address. A function of one word ignores the second."""
zeros_below = _instruction("zeros_below", _word, [_word], lambda b, word: b.cttz(word, _NOT_OF_ZERO))
"""zeros_below(word): the number of bits below the lowest set bit; 64 if none is set."""
zeros_above = _instruction("zeros_above", _word, [_word], lambda b, word: b.ctlz(word, _NOT_OF_ZERO))
"""zeros_above(word): the number of bits above the highest set bit; 64 if none is set."""
shift_right = _instruction("shift_right", _word, [_word, _word], lambda b, word, bits: b.lshr(word, bits))
"""shift_right(word, bits): shifts an unsigned word by 0 to 63 bits."""
high_product = _instruction("high_product", _word, [_word, _word], _high_product)
"""high_product(a, b): the upper 64 of the 128 bits of the product of two unsigned words."""
is_below = _instruction("is_below", types.boolean, [_word, _word], lambda b, x, y: b.icmp_unsigned("<", x, y))
"""is_below(a, b): whether a < b, as unsigned words."""
reversed_bytes = _instruction("reversed_bytes", _word, [_word], lambda b, word: b.bswap(word))
"""reversed_bytes(word): the word with its bytes in reverse order."""
bits_of = _instruction("bits_of", _word, [types.float64], lambda b, number: b.bitcast(number, _WORD))
"""bits_of(number): a double's 64 bits."""
