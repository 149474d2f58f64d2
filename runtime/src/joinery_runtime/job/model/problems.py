"""Turns pydantic's findings into messages for people: what, the facts, what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from joinery_runtime.job.model.draft import Finding, Loc, path_text
from joinery_runtime.job.model.resource import RULES_BROKEN, Job
from joinery_runtime.job.model.wording import either, listed, suggestion

_BOUND = "; a one-sided bound would keep state for ever (rule J8): write both lower and upper"
_CAP = "; sessions need a hard cap, so that none is kept for ever (rule S2): write for example maxDuration: 2h"
_MISSING = {"lower": _BOUND, "upper": _BOUND, "maxDuration": _CAP}
_NO_MODEL = {"model_type", "model_attributes_type"}
_INPUT_NAME = "an input name has letters, digits and '_', and does not start with a digit"
_PATTERNS = {
    **dict.fromkeys(("topic", "topics"), "a topic name has 1 to 249 letters, digits, '.', '_' and '-'"),
    "metadata": "a name has lower-case letters, digits, '-' and '.', and starts and ends with a letter or digit",
    "input": _INPUT_NAME,
    "inputs": _INPUT_NAME,
    "outputs": "the name of an output begins with a lower-case letter, and has lower-case letters, digits and '_'",
    "schema": "a column name does not start with `$` (engine columns do) and holds no control characters",
}


def findings(errors: Sequence[ErrorDetails], model: type[Job]) -> Iterator[Finding]:
    """Yield every error of validating a resource of this kind, as (path, message). A list of which all entries have
    errors is not empty."""
    below = {error["loc"][:end] for error in errors for end in range(len(error["loc"]))}
    for error in errors:
        if error["type"] == RULES_BROKEN:
            yield from error["ctx"]["found"]
        elif error["type"] == "too_short" and error["loc"] in below:
            continue
        else:
            say = _SAY.get(error["type"])
            if error["type"] == "extra_forbidden":
                message = _unknown_field_text(error, model)
            elif error["type"] in _NO_MODEL:
                fields = listed(_field_names(error["loc"], model))
                message = f"must be a mapping, not {_value_text(error['input'])}; fields here are {fields}"
            elif say is not None:
                message = say(error)
            else:
                message = error["msg"][:1].lower() + error["msg"][1:]
            yield _location_of(error), message


def _location_of(error: ErrorDetails) -> Loc:
    return tuple(step for step in error["loc"] if not (isinstance(step, str) and step[:1] in {"<", "["}))


def _unknown_field_text(error: ErrorDetails, model: type[Job]) -> str:
    at, name = error["loc"], error["loc"][-1]
    path = ".".join(str(step) for step in at[1:] if not isinstance(step, int))
    if at[0] == "spec" and path in model.no_fields:
        return f"is not a field: {model.no_fields[path]}"
    fields = _field_names(at[:-1], model)
    meant = suggestion(name, fields)
    # Below a position or a branch of a union there is no model one level up.
    if not meant and len(at) > 3 and not str(at[-2]).startswith(("<", "[")) and name in _field_names(at[:-2], model):
        return f"is not a field; {name} is one of {path_text(at[:-2])}: write it beside {at[-2]}, not in it"
    return f"is not a field{meant}; fields here are {listed(fields)}"


def _literal_text(error: ErrorDetails) -> str:
    allowed = [word.strip("'") for word in re.split(r", | or ", error["ctx"]["expected"])]
    return f"{error['input']!r} is not allowed{suggestion(error['input'], allowed)}; write {either(allowed)}"


def _needs_text(expected: str) -> Callable[[ErrorDetails], str]:
    return lambda error: f"must be {expected}, not {_value_text(error['input'])}"


def _limit_text(words: str, key: str) -> Callable[[ErrorDetails], str]:
    def say(error: ErrorDetails) -> str:
        value = error["input"]
        # Text that was read as a duration or a size can be shown.
        shown = repr(value) if isinstance(value, str) else _value_text(value)
        return f"must be {words} {error['ctx'][key]}, not {shown}"

    return say


def _pattern_text(error: ErrorDetails) -> str:
    location = _location_of(error)
    rule = next(
        (_PATTERNS[step] for step in reversed(location) if step in _PATTERNS), f"must match {error['ctx']['pattern']}"
    )
    return f"{error['input']!r} is not allowed: {rule}"


def _value_text(value: object) -> str:
    """Describe a value, and never show its text: it may be a secret."""
    if value is None:
        return "empty"
    if isinstance(value, bool | int | float):
        return str(value).lower() if isinstance(value, bool) else f"the number {value}"
    words: dict[type, str] = {str: "text", list: "a list", dict: "a mapping"}
    return words.get(type(value), type(value).__name__)


_SAY: dict[str, Callable[[ErrorDetails], str]] = {
    "missing": lambda error: f"is missing{_MISSING.get(str(error['loc'][-1]), '')}",
    "literal_error": _literal_text,
    "value_error": lambda error: str(error["ctx"]["error"]),
    "string_pattern_mismatch": _pattern_text,
    "string_type": _needs_text("text (put it in quotes if it looks like something else)"),
    "int_type": _needs_text("a whole number"),
    "int_parsing": _needs_text("a whole number"),
    "int_from_float": _needs_text("a whole number"),
    "bool_type": _needs_text("true or false"),
    "tuple_type": _needs_text("a list"),
    "dict_type": _needs_text("a mapping"),
    "string_too_short": lambda _: "is empty; write a value",
    "too_short": lambda _: "is empty; write at least one entry",
    "greater_than_equal": _limit_text("at least", "ge"),
    "greater_than": _limit_text("more than", "gt"),
    "less_than_equal": _limit_text("at most", "le"),
}


def _field_names(at: Loc, model: type[Job]) -> list[str]:
    """Return the YAML names of the fields that the model at this place has."""
    kind: Any = model
    for step in at:
        if isinstance(step, int):  # `_nested_models` has taken lists off already
            continue
        options = _nested_models(kind) if isinstance(kind, tuple) else [kind]
        if step.startswith("<"):  # the branch of a union
            kind = next(option for option in options if step.strip("<>") in option.model_fields)
            continue
        field = next(info for name, info in options[0].model_fields.items() if step in {name, info.alias})
        models = _nested_models(field.annotation)
        kind = models[0] if len(models) == 1 else tuple(models)
    return [info.alias or name for name, info in kind.model_fields.items()]


def _nested_models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is Annotated:
        return _nested_models(get_args(annotation)[0])
    inner = annotation if isinstance(annotation, tuple) else get_args(annotation)
    return [model for argument in inner for model in _nested_models(argument)]
