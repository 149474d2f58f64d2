"""Reads a resource file and reports all of its mistakes at once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from joinery_runtime.errors import JobError, Problem
from joinery_runtime.job.join.stream_join import StreamJoin
from joinery_runtime.job.kinds.session.resource import SessionWindow
from joinery_runtime.job.model.document import Document, plain_json, read_documents
from joinery_runtime.job.model.draft import Finding, dig, path_text
from joinery_runtime.job.model.problems import findings
from joinery_runtime.job.model.resource import API_VERSION, RULES_BROKEN, Job
from joinery_runtime.job.model.wording import either, linked, suggestion

_MODELS: Mapping[str, type[Job]] = {model.__name__: model for model in (StreamJoin, SessionWindow)}


def load_job(path: str | PathLike[str]) -> Job:
    """The job in a YAML or JSON file. Relative file paths in it start from its folder, and `${NAME}` in it is replaced
    by the environment variable. Raises JobError."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}; check the path"
        raise JobError(str(path), [Problem("(file)", message)]) from error
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text (byte {error.start}); save it as UTF-8"
        raise JobError(str(path), [Problem("(file)", message)]) from error
    return parse_job(text, str(path), base=path.absolute().parent, environment=os.environ)


def job_from(data: Mapping[str, Any]) -> Job:
    """The job in a dictionary with the content of a job file. Relative file paths in it start from the working folder,
    and `${NAME}` in it is replaced by the environment variable. Raises JobError."""
    source = "the dictionary"
    try:
        text = json.dumps(data, default=os.fspath)
    except (TypeError, ValueError) as error:
        problem = Problem("(dictionary)", f"{error}; write numbers, text, paths, lists and dictionaries")
        raise JobError(source, [problem]) from error
    try:
        return parse_job(text, source, base=Path.cwd(), environment=os.environ)
    except JobError as error:
        raise JobError(source, [replace(problem, line=None) for problem in error.problems]) from None


def located(error: JobError, path: str | Path) -> JobError:
    """The same problems with the name of the file, and the lines of their paths in it. For an error that was found
    after `load_job`."""
    lines = lines_of(path)
    return JobError(str(path), [replace(problem, line=lines.get(problem.path)) for problem in error.problems])


def lines_of(path: str | Path) -> dict[str, int]:
    """The line of every place in a job file, by its path in the resource. Raises JobError."""
    document = _the_resource(read_documents(Path(path).read_text(encoding="utf-8"), str(path)), str(path))
    return {path_text(at): line for at, line in document.lines.items()}


def parse_job(text: str, source: str, *, base: Path | None = None, environment: Mapping[str, str] | None = None) -> Job:
    """The job in `text`. `source` names the text in messages. `base` is the folder from which relative file paths start
    (None: they stay as written), `environment` has the values of `${NAME}` (None: no replacement). Raises JobError with
    every problem, ordered by line."""
    # Valid JSON needs no line numbers: the YAML reader, which keeps them, takes ten times as long.
    plain = Document(plain_json(text))
    if not any(_identity(plain)) and isinstance(job := _validated(plain.data, base), Job):
        return job
    document = _the_resource(read_documents(text, source, environment), source)
    if document.unset:
        todo = "set the environment variable, or write"
        unset = [
            Problem(path_text(at), f"${{{name}}} is not set; {todo} ${{{name}:-a default}}", document.line(at))
            for at, name in document.unset
        ]
        raise JobError(source, unset)
    found = list(_identity(document))
    if not found:
        job = _validated(document.data, base)
        if isinstance(job, Job) and not document.repeated:
            return job
        found = job if isinstance(job, list) else []
    problems = [Problem(path_text(at), linked(message), document.line(at)) for at, message in found]
    for at, line, column in document.repeated:
        message = f"is written twice in one mapping (again at column {column}); keep one"
        problems.append(Problem(path_text(at), message, line))
    raise JobError(source, sorted(problems, key=lambda problem: problem.line or 0))


def _the_resource(documents: list[Document], source: str) -> Document:
    ours = [document for document in documents if _model(document.data) is not None]
    if len(documents) == 1:
        return documents[0]
    if len(ours) == 1:
        return ours[0]
    message = (
        "the file is empty" if not documents else f"there are {len(documents)} documents, none a {either(_MODELS)}"
    )
    line = None
    if ours:
        line = ours[1].lines[()]
        message = f"there are {len(ours)} Joinery resources (the second starts here); keep one per file"
    raise JobError(source, [Problem("(file)", message, line)])


def _identity(document: Document) -> Iterator[Finding]:
    """Yields mistakes in what must be right before the rest can be judged."""
    data = document.data
    if not isinstance(data, dict):
        yield (), "a resource is a mapping with apiVersion, kind, metadata and spec"
        return
    wanted = {"apiVersion": API_VERSION, "kind": either(_MODELS)}
    yield from (((name,), f"is missing; write {name}: {value}") for name, value in wanted.items() if name not in data)
    if "kind" in data and _model(data) is None:
        hint = suggestion(data["kind"], _MODELS)
        yield ("kind",), f"{data['kind']!r} is not allowed{hint}; write {either(_MODELS)}"


def _model(data: object) -> type[Job] | None:
    kind = dig(data, "kind")
    return _MODELS.get(kind) if isinstance(kind, str) else None


def _validated(data: Any, base: Path | None) -> Job | list[Finding]:
    model = _MODELS[data["kind"]]
    try:
        return model.model_validate(data, by_alias=True, by_name=False, context={"base": base})
    except ValidationError as error:
        errors = error.errors(include_url=False)
    found = list(findings(errors, model))
    if not any(error["type"] == RULES_BROKEN for error in errors):
        found += model.broken_rules(data)
    return found
