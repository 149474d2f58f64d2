"""Prints a job's status for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from joinery_operator.plugin.kubectl import JobResource
from joinery_runtime.job.model.wording import size_text

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
    if conditions := status.get("conditions"):
        rows = [["CONDITION", "", "SINCE", "REASON"]]
        for condition in conditions:
            name = f"{'!' if _BAD.get(condition['type']) == condition['status'] else ''}{condition['type']}"
            rows.append([name, condition["status"], condition["lastTransitionTime"], condition["reason"]])
        heading, *lines = align_columns(rows)
        yield heading
        for line, condition in zip(lines, conditions, strict=True):
            yield line
            yield from (f"      {part}" for part in condition["message"].splitlines())
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
        "state": size_text(status["stateBytes"]) if status.get("stateBytes") is not None else None,
        "savepoint": savepoint and f"{savepoint['name']} at epoch {savepoint['epoch']}, {savepoint['time']}",
    }
    for name, value in summary.items():
        if value not in (None, "", {}):
            yield f"  {name + ':':12}{value}"


def align_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
