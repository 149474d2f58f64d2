"""Amounts of memory as Kubernetes writes them: `10Gi`, `500M`, or plain bytes."""

from __future__ import annotations

import re
from decimal import Decimal

_BINARY = {unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), start=1)}
_DECIMAL = {unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T", "P"), start=1)}
_UNITS = {"": 1, **_BINARY, **_DECIMAL}
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P|)")
MAX_BYTES = 2**63 - 1


def parse_bytes(value: object) -> int:
    """The bytes in `10Gi`, `1.5G`, `1024` or an integer. Raises ValueError, which says how to write a size."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _in_range(value)
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is no number of bytes; write it as 10Gi, 500M or 1073741824")
    size = Decimal(match[1]) * _UNITS[match[2]]
    if size != int(size):
        raise ValueError(f"{value!r} is not a whole number of bytes; write it without the fraction")
    return _in_range(int(size))


def format_bytes(size: int) -> str:
    """The shortest text from which `parse_bytes` gets the size: with the largest binary unit that divides it."""
    for unit, factor in reversed(_BINARY.items()):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def _in_range(size: int) -> int:
    if size > MAX_BYTES:
        raise ValueError(f"{size} bytes are over {MAX_BYTES}; write less")
    return size
