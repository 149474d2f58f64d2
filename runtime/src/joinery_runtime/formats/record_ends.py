"""Finds where the records of a file of lines end.

A quote opens a field only where a field begins, and closes it only where the field ends (RFC 4180). Any other quote is
text: of `12" pipe`, say. A quote that opens a field without a quote that closes it is text too, so a broken line does
not take those behind it with it. The result does not depend on how a file is cut into chunks.

Lines end with LF or CRLF or, in files that have none of these, with CR.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from joinery_runtime.formats.batch import Cut
from joinery_runtime.formats.opened_files import Bytes

LF, CR = 10, 13
BOM = b"\xef\xbb\xbf"
SAMPLE = 64 * 2**10  # bytes that are looked at first
_BLANKS = (0x20, 0x09)
_LONGEST_FIELD = 16 * 2**20  # bytes between quotes
LONGEST_RECORD = 16 * 2**20
"""Bytes of a record. A longer one is a dead letter, of which no more than the beginning is taken into memory."""
_SCAN = 4 * 2**20  # bytes that are searched at a time

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def line_end_of(data: Bytes, cut: Cut) -> int:
    """Return the byte with which the file's lines end: CR only where a line ends with it and no line as long as any
    record ends with LF."""
    data, size = skip_bom(data), SAMPLE
    while True:
        sample = data[:size]
        complete = size >= len(data)
        if len(record_ends(sample, cut, LF, complete=complete)):
            return LF
        certain = complete or size > LONGEST_RECORD
        # The sample may end between a CR and its LF. An LF after it needs to be looked for only if there is one at all.
        by_cr = record_ends(sample if complete else sample[:-1], cut, CR, complete=complete)
        if len(by_cr) and (certain or not (data[: 2 * LONGEST_RECORD] == LF).any()):
            return CR
        if certain:
            return LF
        size *= 2


def next_line_end(data: Bytes, start: int, stop: int, line_end: int) -> int:
    """Return the end of the line that contains byte `start`: after its line end, or `stop`."""
    for at in range(start, stop, _SCAN):
        breaks = np.flatnonzero(data[at : min(at + _SCAN, stop)] == line_end)
        if len(breaks):
            return at + int(breaks[0]) + 1
    return stop


def has_quotes(data: Bytes, start: int, stop: int, cut: Cut) -> bool:
    if cut.quote is None:
        return False
    return any(bool((data[at : min(at + _SCAN, stop)] == cut.quote).any()) for at in range(start, stop, _SCAN))


def record_ends(chunk: Bytes, cut: Cut, line_end: int, *, complete: bool) -> Positions:
    """Where each record that begins in `chunk`, and certainly ends in it, does so: after its line end. A record begins
    at the chunk's start; if it is `complete`, one ends at its end."""
    breaks = np.flatnonzero(chunk == line_end)
    if cut.quote is None or not len(breaks):
        return breaks + 1
    quotes = np.flatnonzero(chunk == cut.quote)
    if not len(quotes):
        return breaks + 1
    before = quotes - 1
    if cut.blanks_after_separator:
        text = np.flatnonzero((chunk != _BLANKS[0]) & (chunk != _BLANKS[1]))
        at = np.searchsorted(text, quotes) - 1
        before = np.where(at < 0, -1, text[np.maximum(at, 0)])
    opens = _between_fields(chunk.take(before, mode="wrap"), cut)  # which quotes stand where a field begins
    if before[0] < 0:
        opens[before < 0] = True
    closes = _between_fields(chunk.take(quotes + 1, mode="wrap"), cut)  # which quotes stand where a field may end
    if quotes[-1] == len(chunk) - 1:
        closes[-1] = complete
    # Most quotes open and close fields by turns, where two at once stand for one in the text. The last field may be
    # open at the end of an incomplete chunk.
    doubled = np.diff(quotes) == 1
    is_first, is_second = np.append(doubled, False), np.append(False, doubled)
    ended = len(quotes) % 2 == 0 or not (complete or is_second[-1])
    if ended and (opens | is_second)[::2].all() and (closes | is_first)[1::2].all():
        ends: Positions = breaks[np.searchsorted(quotes, breaks) % 2 == 0] + 1
        if len(chunk) <= _LONGEST_FIELD or np.diff(ends, prepend=0, append=len(chunk)).max() <= _LONGEST_FIELD:
            return ends
    spans, certain = _find_quoted(quotes, opens, closes, len(chunk), complete=complete)
    edges = np.array(spans, np.int64).reshape(-1)
    outside = (breaks < certain) & (np.searchsorted(edges, breaks) % 2 == 0)
    return np.asarray(breaks[outside] + 1)


def skip_bom(data: Bytes) -> Bytes:
    return data[len(BOM) :] if data[: len(BOM)].tobytes() == BOM else data


def _between_fields(signs: Bytes, cut: Cut) -> Flags:
    return np.asarray((signs == ord(cut.separator)) | (signs == LF) | (signs == CR))


def _find_quoted(
    quotes: Positions, opens: Flags, closes: Flags, size: int, *, complete: bool
) -> tuple[list[tuple[int, int]], int]:
    """Return the first and the last quote of each quoted field, and up to which byte of the chunk that is certain."""
    spans: list[tuple[int, int]] = []
    at, positions, may_close = 0, quotes.tolist(), closes.tolist()
    for opening in np.flatnonzero(opens).tolist():
        if opening < at:
            continue
        closing = opening + 1
        while closing + 1 < len(positions) and positions[closing + 1] == positions[closing] + 1:
            closing += 2
        is_decided = closing < len(positions) and positions[closing] + 1 < size
        # The byte after a quote tells whether it closes the field.
        if not is_decided and not complete and size - positions[opening] <= _LONGEST_FIELD + 1:
            return spans, positions[opening]
        if (
            closing < len(positions)
            and may_close[closing]
            and positions[closing] - positions[opening] <= _LONGEST_FIELD
        ):
            spans.append((positions[opening], positions[closing]))
            at = closing + 1
    return spans, size
