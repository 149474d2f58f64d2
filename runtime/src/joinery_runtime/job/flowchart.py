"""Draws a job as a flowchart in Mermaid's language: inputs, steps, filters, outputs and dead letters.

The words are those of `joinery explain`. Nodes are named after inputs, steps and outputs, so the texts of two versions
of a job differ in the lines that an edit changes.
"""

from __future__ import annotations

from collections.abc import Iterator

from joinery_runtime.job.explain import explain, output_place
from joinery_runtime.job.model.resource import Job

_CONDITIONS = ("filter", "having")
# What a picture leaves to the text of `joinery explain`.
_NOT_DRAWN = {
    *_CONDITIONS,
    *("late rows", "limits", "unmatched", "event time", "emitted", "rows"),
    *("a window", "kept as", "cap", "inside a capped session"),
}
_DEAD_LETTERS = "dead_letters"


def flowchart(job: Job) -> str:
    """Return the flowchart of a valid job, without a line break at its end."""
    return "\n".join(["flowchart LR", *(f"  {line}" for line in _lines(job))])


def _lines(job: Job) -> Iterator[str]:
    plan = explain(job)
    rights = {step.right for step in plan.steps}
    ends: dict[str, str] = {}  # of the nodes of each input: the last
    for one in plan.inputs:
        ends[one.name] = node = f"input_{one.name}"
        yield f"{node}[/{_label(one.name, one.source)}/]"
        for branch in one.branches:
            yield f"branch_{branch.name}[/{_label(branch.name, branch.source)}/]"
            yield f"branch_{branch.name} --> {node}"
        if (where := job.input_filters.get(one.name)) is not None:
            ends[one.name] = f"where_{one.name}"
            yield from _condition(node, f"where_{one.name}", where)
    left = [node for name, node in ends.items() if name not in rights]
    for number, step in enumerate(plan.steps, start=1):
        node, right = f"step_{number}", () if step.right is None else (ends[step.right],)
        drawn = (f"{name}: {text}" for name, text in step.lines if name not in _NOT_DRAWN)
        yield f"{node}[{_label(step.title, *drawn)}]"
        yield from (f"{before} --> {node}" for before in (*left, *right))
        left = [node]
        for name, text in step.lines:
            if name in _CONDITIONS:
                condition = f"{name}_{number}"
                yield from _condition(node, condition, text.rpartition("; ")[0])
                left = [condition]
    for number, output in enumerate(job.outputs, start=1):
        node = f"output_{number}"
        title = () if job.spec.outputs is None else (output.name,)
        yield f"{node}[/{_label(*title, output_place(output))}/]"
        when = "" if output.when is None else f"|{_label(f'where {output.when}')}|"
        yield from (f"{before} -->{when} {node}" for before in left)
    if job.spec.dead_letter is not None:
        yield f"{_DEAD_LETTERS}[/{_label('dead letters', plan.dead_letters.removeprefix('go to '))}/]"
        yield from (f"input_{one.name} -.-> {_DEAD_LETTERS}" for one in plan.inputs)
        for number, step in enumerate(plan.steps, start=1):
            if "dead letters" in dict(step.lines).get("late rows", ""):
                yield f"step_{number} -.->|{_label('late rows')}| {_DEAD_LETTERS}"


def _condition(before: str, node: str, text: str) -> Iterator[str]:
    yield f"{node}{{{{{_label(text)}}}}}"
    yield f"{before} --> {node}"


def _label(*lines: str) -> str:
    """Quote a text for Mermaid, which takes `#quot;` and `#lt;` for characters that end a text or begin a tag."""
    codes = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;"}
    texts = ("".join(codes.get(character, character) for character in " ".join(line.split())) for line in lines)
    return f'"{"<br>".join(texts)}"'
