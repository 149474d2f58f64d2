"""Reads a resource file and reports all of its mistakes at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from joinery_runtime.errors import JobError, Problem
from joinery_runtime.job.document import Document, read_documents
from joinery_runtime.job.parts import Finding, dig, path_text
from joinery_runtime.job.problems import findings
from joinery_runtime.job.resource import API_VERSION, RULES_BROKEN
from joinery_runtime.job.rules import broken_rules
from joinery_runtime.job.stream_join import StreamJoin

_KINDS = ("StreamJoin", "SessionWindow")


def load_job(path: str | Path) -> StreamJoin:
    """The job in a YAML or JSON file; relative file paths in it count from its folder. Raises JobError."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}; check the path"
        raise JobError(str(path), [Problem("(file)", message)]) from error
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text (byte {error.start}); save it as UTF-8"
        raise JobError(str(path), [Problem("(file)", message)]) from error
    return parse_job(text, str(path), base=path.absolute().parent)


def located(error: JobError, path: str | Path) -> JobError:
    """The same problems with the name of their file and the lines of their paths in it: for an error that was found in
    a job after `load_job`."""
    document = _the_resource(read_documents(Path(path).read_text(encoding="utf-8"), str(path)), str(path))
    lines = {path_text(at): line for at, line in document.lines.items()}
    return JobError(str(path), [replace(problem, line=lines.get(problem.path)) for problem in error.problems])


def parse_job(text: str, source: str, *, base: Path | None = None) -> StreamJoin:
    """The job in `text`. `source` names it in messages; `base` is the folder that relative file paths count from
    (None: they stay as written). Raises JobError with every problem, ordered by line."""
    document = _the_resource(read_documents(text, source), source)
    found = list(_identity(document))
    if not found:
        job = _validated(document, base)
        if isinstance(job, StreamJoin) and not document.repeated:
            return job
        found = job if isinstance(job, list) else []
    problems = [_problem(document, finding) for finding in found] + list(_repeated_keys(document))
    raise JobError(source, sorted(problems, key=lambda problem: problem.line or 0))


def _the_resource(documents: list[Document], source: str) -> Document:
    ours = [document for document in documents if dig(document.data, "kind") in _KINDS]
    if len(documents) == 1:
        return documents[0]
    if len(ours) == 1:
        return ours[0]
    message = "the file is empty" if not documents else f"there are {len(documents)} documents, none a StreamJoin"
    line = None
    if ours:
        line = ours[1].lines[()]
        message = f"there are {len(ours)} Joinery resources (the second starts here); keep one per file"
    raise JobError(source, [Problem("(file)", message, line)])


def _identity(document: Document) -> Iterator[Finding]:
    """What must be right before the rest can be judged."""
    data = document.data
    if not isinstance(data, dict):
        yield (), "a resource is a mapping with apiVersion, kind, metadata and spec"
    elif data.get("kind") == "SessionWindow":
        yield ("kind",), "SessionWindow is not supported yet; this release runs StreamJoin"
    else:
        wanted = {"apiVersion": API_VERSION, "kind": "StreamJoin"}
        yield from (
            ((name,), f"is missing; write {name}: {value}") for name, value in wanted.items() if name not in data
        )


def _validated(document: Document, base: Path | None) -> StreamJoin | list[Finding]:
    try:
        return StreamJoin.model_validate(document.data, by_alias=True, by_name=False, context={"base": base})
    except ValidationError as error:
        errors = error.errors(include_url=False)
    found = list(findings(errors))
    if not any(error["type"] == RULES_BROKEN for error in errors):
        found += broken_rules(document.data)
    return found


def _problem(document: Document, finding: Finding) -> Problem:
    at, message = finding
    return Problem(path_text(at), message, document.line(at))


def _repeated_keys(document: Document) -> Iterator[Problem]:
    for at, line, column in document.repeated:
        yield Problem(path_text(at), f"is written twice in one mapping (again at column {column}); keep one", line)
