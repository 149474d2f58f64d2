"""Reads a resource file and reports all of its mistakes at once."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from joinery_runtime.errors import JobError, Problem
from joinery_runtime.job.join.stream_join import StreamJoin
from joinery_runtime.job.kinds.session.resource import SessionWindow
from joinery_runtime.job.model.base import AS_STORED, NO_UNIT, PLAIN_NUMBERS
from joinery_runtime.job.model.document import NO_CHARACTER, Document, plain_json, read_documents
from joinery_runtime.job.model.draft import Finding, dig, path_text
from joinery_runtime.job.model.problems import findings
from joinery_runtime.job.model.resource import API_VERSION, RULES_BROKEN, Job
from joinery_runtime.job.model.wording import either, linked, suggestion
from joinery_runtime.job.sql import placed

logger = logging.getLogger("joinery.job")

STORED_JOB = "JOINERY_STORED_JOB"
"""The environment variable that says that the file of the job is a revision which an operator has stored. Such a file
may be older than the rules of this release (`AS_STORED`): a duration without a unit counts as milliseconds, with a
warning, and all patterns of times that earlier releases accepted are read as those releases read them."""

_SQL = ("spec", "sql")
_RESOURCE = ("apiVersion", "kind", "metadata", "spec")
_MODELS: Mapping[str, type[Job]] = {model.__name__: model for model in (StreamJoin, SessionWindow)}


@dataclass(frozen=True, slots=True)
class JobWithWarnings:
    """A job that a cluster stores, and what its author should change in it."""

    job: Job
    warnings: tuple[str, ...]


def load_job(path: str | PathLike[str], *, plain_numbers: bool = False) -> Job:
    """Read the job in a YAML or JSON file. Relative file paths in it start from its folder, and `${NAME}` in it is
    replaced by the environment variable. With `plain_numbers`, as for a trace, durations may be numbers of
    milliseconds, and a warning is logged. Raises JobError."""
    stored = bool(os.environ.get(STORED_JOB))
    return _parse_file(Path(path), plain_numbers=plain_numbers or stored, as_stored=stored)


def load_own_job(path: Path) -> Job:
    """Read the file of the very job that runs, which was judged when it was loaded first: it may have what only
    earlier releases took, and no warning is repeated. Raises JobError."""
    return _parse_file(path, as_stored=True)


def _parse_file(path: Path, *, plain_numbers: bool = False, as_stored: bool = False) -> Job:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}; check the path"
        raise JobError(str(path), [Problem("(file)", message)]) from error
    except UnicodeDecodeError as error:
        message = f"is not UTF-8 text (byte {error.start}); save it as UTF-8"
        raise JobError(str(path), [Problem("(file)", message)]) from error
    base = path.absolute().parent
    return parse_job(
        text, str(path), base=base, environment=os.environ, plain_numbers=plain_numbers, as_stored=as_stored
    )


def job_from(data: Mapping[str, Any], *, plain_numbers: bool = False) -> Job:
    """Read the job in a dictionary with the content of a job file. Relative file paths in it start from the working
    folder; `${NAME}` and `plain_numbers` are as in `load_job`. Raises JobError."""
    source = "the dictionary"
    try:
        text = json.dumps(data, default=os.fspath)
    except RecursionError as error:
        problem = Problem("(dictionary)", "lists and dictionaries are nested too deep; no resource needs that")
        raise JobError(source, [problem]) from error
    except (TypeError, ValueError) as error:
        problem = Problem("(dictionary)", f"{error}; write numbers, text, paths, lists and dictionaries")
        raise JobError(source, [problem]) from error
    try:
        return parse_job(text, source, base=Path.cwd(), environment=os.environ, plain_numbers=plain_numbers)
    except JobError as error:
        raise JobError(source, [replace(problem, line=None) for problem in error.problems]) from None


def located(error: JobError, path: str | Path) -> JobError:
    """Return the same problems with the name of the file, and the lines of their paths in it. For an error that was
    found after `load_job`."""
    lines = lines_of(path)
    return JobError(str(path), [replace(problem, line=lines.get(problem.path)) for problem in error.problems])


def lines_of(path: str | Path) -> dict[str, int]:
    """Return the line of every place in a job file, by its path in the resource. Raises JobError."""
    document = _the_resource(read_documents(Path(path).read_text(encoding="utf-8"), str(path)), str(path))
    return {path_text(at): line for at, line in document.lines.items()}


def parse_job(
    text: str,
    source: str,
    *,
    base: Path | None = None,
    environment: Mapping[str, str] | None = None,
    plain_numbers: bool = False,
    as_stored: bool = False,
) -> Job:
    """Read the job in `text`. `source` names the text in messages. `base` is the folder from which relative file paths
    start (None: they stay as written), `environment` has the values of `${NAME}` (None: no replacement),
    `plain_numbers` is as in `load_job`, and `as_stored` accepts what any earlier release accepted (`AS_STORED`), by
    itself without a warning. Raises JobError with every problem, ordered by line."""
    # Valid JSON needs no line numbers: the YAML reader, which keeps them, takes ten times as long.
    plain = Document(plain_json(text))
    plain_rules = PLAIN_NUMBERS if plain_numbers and not as_stored else {}
    if not any(_check_identity(plain)) and isinstance(job := _validate(plain.data, base, plain_rules), Job):
        if plain_numbers:
            _warn_of_plain_numbers(plain.data, source)
        return job
    document = _the_resource(read_documents(text, source, environment), source)
    if document.unset:
        todo = "set the environment variable, or write"
        unset = [
            Problem(path_text(at), f"${{{name}}} is not set; {todo} ${{{name}:-a default}}", document.line(at))
            for at, name in document.unset
        ]
        raise JobError(source, unset)
    mistakes = list(_check_identity(document))
    mistakes += ((at, NO_CHARACTER) for at in document.halves)
    if not mistakes:
        rules = AS_STORED if as_stored else PLAIN_NUMBERS if plain_numbers else {}
        job = _validate(document.data, base, rules)
        if plain_numbers and isinstance(job, Job):
            _warn_of_plain_numbers(document.data, source)
        if isinstance(job, Job) and not document.repeated:
            return job
        mistakes = job if isinstance(job, list) else []
    sql, sessions = dig(document.data, "spec", "sql"), dig(document.data, "kind") == SessionWindow.__name__
    if isinstance(sql, str):
        mistakes = [(at, placed(text, sql, sessions=sessions) if at == _SQL else text) for at, text in mistakes]
    problems = [Problem(path_text(at), linked(message), document.line(at)) for at, message in mistakes]
    for at, line, column in document.repeated:
        message = f"is written twice in one mapping (again at column {column}); keep one"
        problems.append(Problem(path_text(at), message, line))
    raise JobError(source, sorted(problems, key=lambda problem: problem.line or 0))


def _warn_of_plain_numbers(data: Any, source: str) -> None:
    for at, message in _without_units(data):
        logger.warning("%s: %s: %s. It counts as milliseconds", source, path_text(at), message)


def _the_resource(documents: list[Document], source: str) -> Document:
    resources = [document for document in documents if _model_of(document.data) is not None]
    if len(documents) == 1:
        return documents[0]
    if len(resources) == 1:
        return resources[0]
    message = (
        "the file is empty" if not documents else f"there are {len(documents)} documents, none a {either(_MODELS)}"
    )
    line = None
    if resources:
        line = resources[1].lines[()]
        message = f"there are {len(resources)} Joinery resources (the second starts here); keep one per file"
    raise JobError(source, [Problem("(file)", message, line)])


def _check_identity(document: Document) -> Iterator[Finding]:
    """Yield mistakes in what must be right before the rest can be judged."""
    data = document.data
    if not isinstance(data, dict):
        yield (), "a resource is a mapping with apiVersion, kind, metadata and spec"
        return
    required_fields = {"apiVersion": API_VERSION, "kind": either(_MODELS)}
    yield from (
        ((name,), f"is missing; write {name}: {value}") for name, value in required_fields.items() if name not in data
    )
    if "kind" in data and _model_of(data) is None:
        hint = suggestion(data["kind"], _MODELS)
        yield ("kind",), f"{data['kind']!r} is not allowed{hint}; write {either(_MODELS)}"


def _model_of(data: object) -> type[Job] | None:
    kind = dig(data, "kind")
    return _MODELS.get(kind) if isinstance(kind, str) else None


def load_stored(resource: Mapping[str, Any]) -> JobWithWarnings:
    """Validate a resource as a cluster has stored it, perhaps under an earlier release: durations may be numbers of
    milliseconds, and then there are warnings. Raises JobError."""
    document = Document({name: resource[name] for name in _RESOURCE if name in resource})
    mistakes = list(_check_identity(document))
    job = mistakes or _validate(document.data, None)
    if isinstance(job, Job):
        return JobWithWarnings(job, ())
    job = mistakes or _validate(document.data, None, PLAIN_NUMBERS)
    if isinstance(job, Job):
        texts = (f"{path_text(at)}: {message}. It counts as milliseconds" for at, message in _without_units(resource))
        return JobWithWarnings(job, tuple(texts))
    name = "/".join(str(part) for field in ("namespace", "name") if (part := dig(resource, "metadata", field)))
    raise JobError(name, [Problem(path_text(at), linked(text)) for at, text in job])


def _without_units(data: Mapping[str, Any]) -> list[Finding]:
    """Find the durations that are numbers."""
    model = _MODELS[data["kind"]]
    try:
        model.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        return list(
            findings([mistake for mistake in error.errors(include_url=False) if mistake["type"] == NO_UNIT], model)
        )
    return []


def _validate(data: Any, base: Path | None, rules: Mapping[str, bool] = MappingProxyType({})) -> Job | list[Finding]:
    """Validate a resource. `rules` are those of what is stored (PLAIN_NUMBERS, AS_STORED); without them, what a person
    writes is judged."""
    model = _MODELS[data["kind"]]
    try:
        job = model.model_validate(data, by_alias=True, by_name=False, context={"base": base, **rules})
        # What a person writes: jobs that are stored, perhaps under an earlier release, continue.
        unwise = [] if rules else list(job.unwise_settings())
        return unwise or job
    except ValidationError as error:
        errors = error.errors(include_url=False)
    except RecursionError:
        return [(("spec",), "is nested too deep to be checked; write it in a simpler way")]
    mistakes = list(findings(errors, model))
    if not any(error["type"] == RULES_BROKEN for error in errors):
        mistakes += model.broken_rules(data)
    return mistakes
