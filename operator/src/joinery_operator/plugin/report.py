"""Prints a job's status for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from joinery_operator.plugin.kubectl import JobResource

_BAD = {"Ready": "False", "Valid": "False", "StateCompatible": "False", "Degraded": "True"}


def status_lines(job: JobResource) -> Iterator[str]:
    status = job.status
    yield f"{job.resource['kind']} {job.name}: {status.get('phase', 'not seen by the operator yet')}"
    if status.get("observedGeneration") not in {None, -1, job.resource["metadata"].get("generation")}:
        yield "  The operator has not seen the last change yet: what follows is about the one before."
    yield from _summary_lines(status)
    if inputs := status.get("inputs"):
        rows = [["INPUT", "LAG", "ROWS/S", "WATERMARK", "BEHIND", "STATE"]]
        for input_status in inputs:
            state = "ended" if input_status.get("ended") else "idle" if input_status.get("idle") else ""
            cells = (input_status.get(name) for name in ("lag", "rowsPerSecond", "watermark", "watermarkDelay"))
            rows.append([input_status["name"], *("-" if cell is None else str(cell) for cell in cells), state])
        yield from align_columns(rows)
    yield from _condition_lines(status)
    if refused := status.get("refused"):
        yield f"  rejected: revision {refused['revision']} ({refused['reason']}): {refused['message']}"
    if status.get("lastError"):
        yield f"  last error: {status['lastError']}"


def _summary_lines(status: Mapping[str, Any]) -> Iterator[str]:
    driver, savepoint = status.get("driver") or {}, status.get("lastSavepoint") or {}
    rollout, candidate = status.get("rollout") or {}, status.get("candidate") or {}
    counts = {"rowsIn": "in", "rowsOut": "out", "late": "late"}
    summary = {
        "image": status.get("image"),
        "revision": status.get("revision"),
        "rollout": rollout and f"{rollout['stage']} of revision {rollout['revision']}, image {rollout['image']}",
        "active": status.get("active"),
        "candidate": candidate.get("name"),
        "driver": driver and f"attempt {driver['number']}, {driver.get('failures', 0)} failures in a row",
        "executors": status.get("executors"),
        "epoch": status.get("epoch"),
        "rows": ", ".join(f"{status[name]:,} {word}" for name, word in counts.items() if status.get(name) is not None),
        "state": _bytes_text(status.get("stateBytes")),
        "savepoint": savepoint and f"{savepoint['name']} at epoch {savepoint['epoch']}, {savepoint['time']}",
    }
    for name, value in summary.items():
        if value not in (None, "", {}):
            yield f"  {name + ':':12}{value}"


def _bytes_text(count: int | None) -> str | None:
    if count is None:
        return None
    size, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.4g} {unit}"


def _condition_lines(status: Mapping[str, Any]) -> Iterator[str]:
    conditions = status.get("conditions") or ()
    if not conditions:
        return
    rows = [["CONDITION", "", "SINCE", "REASON"]]
    for condition in conditions:
        warning = "!" if _BAD.get(condition["type"]) == condition["status"] else ""
        rows.append(
            [f"{warning}{condition['type']}", condition["status"], condition["lastTransitionTime"], condition["reason"]]
        )
    lines = list(align_columns(rows))
    yield lines[0]
    for line, condition in zip(lines[1:], conditions, strict=True):
        yield line
        yield from (f"      {part}" for part in condition["message"].splitlines())


def align_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
