"""When rows that are dropped as late are worth a warning. One rule feeds the terminal, the job's page, `/status`, the
metric behind the alert, the resource's condition and `joinery verify`; `watermark.lateWarning` sets the share."""

from __future__ import annotations

LATE_SHARE = "1%"
"""The share of an input's newest records from which on late rows are warned about, unless the job says otherwise."""

LATE_RECORDS = 10_000
LATE_WINDOW_MS = 5 * 60_000
"""The newest records are the last LATE_RECORDS, or those of the last LATE_WINDOW_MS if these are more."""
