"""The settings of an installation, from environment variables that the chart sets."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from string import Formatter
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from joinery_operator.pod_defaults import pod_defaults
from joinery_runtime.errors import EnvironmentProblem
from joinery_runtime.job.crd import STATUS_PORT

_PREFIX = "JOINERY_OPERATOR_"
CLASS_LABEL = "joinery.dev/class"
"""The label of a job or savepoint with the class of operators that works on it."""
_LABEL = 63
"""Characters of a label of a host name."""


Pattern = Annotated[str, StringConstraints(min_length=1)]


class AllowedByInstallation(BaseModel):
    """`jobs.allow` of the chart: what jobs may ask for beside what every job may (`manifests.policy` has both, and the
    form of patterns)."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)

    images: tuple[Pattern, ...] = ()
    service_accounts: tuple[Pattern, ...] = ()
    spark_conf: tuple[Pattern, ...] = ()
    pod_template: tuple[Pattern, ...] = ()
    properties: tuple[Pattern, ...] = ()
    input_files: tuple[Pattern, ...] = ()


@lru_cache(maxsize=4)
def allowed_by(text: str) -> AllowedByInstallation:
    """Parse `Settings.jobs_allow`. Raises ValidationError."""
    return AllowedByInstallation.model_validate_json(text or "{}")


_REQUIREMENT = re.compile(
    r"(?P<absent>!)?\s*(?P<key>[\w./-]+)\s*"
    r"((?P<sign>==?|!=)\s*(?P<value>[\w.-]*)|(?P<word>in|notin)\s*\((?P<values>[\w.,\s-]*)\))?"
)


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A selector as `kubectl get -l` takes it: the API server's, for objects that are read by name."""

    requirements: tuple[tuple[str, frozenset[str] | None, bool], ...]
    """The label, its values (None: any), and whether it must have one of them or must not."""

    @classmethod
    @lru_cache(maxsize=4)
    def parsed(cls, text: str) -> LabelSelector:
        """Raise ValueError, with the requirement that is wrong."""
        requirements: list[tuple[str, frozenset[str] | None, bool]] = []
        for requirement in re.split(r",(?![^(]*\))", text) if text else ():
            parts = _REQUIREMENT.fullmatch(requirement.strip())
            if parts is None or (parts["absent"] and (parts["sign"] or parts["word"])):
                raise ValueError(requirement.strip())
            if parts["sign"]:
                requirements.append((parts["key"], frozenset({parts["value"]}), parts["sign"] != "!="))
            elif parts["word"]:
                values = frozenset(value.strip() for value in parts["values"].split(","))
                requirements.append((parts["key"], values, parts["word"] == "in"))
            else:
                requirements.append((parts["key"], None, not parts["absent"]))
        return cls(tuple(requirements))

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(
            (key in labels and (values is None or labels[key] in values)) == wants
            for key, values, wants in self.requirements
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """Each field is the environment variable `JOINERY_OPERATOR_<FIELD>`. Times are seconds; `namespaces` are separated
    by commas (none: all of the cluster). `job_class` is the value of the label joinery.dev/class of the jobs and
    savepoints that this operator works on ("": those without the label), and `job_selector` selects among these.
    `status_from` lists, in JSON, the NetworkPolicyPeers that may reach the status ports of drivers; "" makes no
    NetworkPolicies. `jobs_allow` is `AllowedByInstallation` as JSON, and `pod_defaults` is `PodDefaults`. `page_url`
    is the address of a job's page for browsers, with {namespace} and {name}. `page_ingress` has, as a JSON object,
    className, annotations and tlsSecretName of the Ingress that each job gets for its page; "" makes none.
    `page_route` has parentRefs and annotations of an HTTPRoute in the same way. `figures_seconds` is how often mere
    figures of a job are written to its status. `cluster` names the cluster to state stores; "" takes the uid of its
    namespace kube-system. `lease` is the Lease (namespace/name) that several replicas share; ""
    if there is one replica. `pod` is the operator's own pod (namespace/name/uid): Events about namespaces that end are
    Events of it. `metrics_port` serves /metrics and the probes."""

    runtime_image: str = field(default="")
    service_account: str = "joinery-driver"
    namespaces: tuple[str, ...] = ()
    job_class: str = ""
    job_selector: str = ""
    status_port: int = STATUS_PORT
    status_from: str = ""
    jobs_allow: str = ""
    pod_defaults: str = ""
    page_url: str = ""
    page_ingress: str = ""
    page_route: str = ""
    lease: str = ""
    pod: str = ""
    cluster: str = ""
    metrics_port: int = 8080
    poll_seconds: float = 5.0
    figures_seconds: float = 15.0
    stuck_seconds: float = 300.0
    stop_grace_seconds: int = 120
    backoff_first_seconds: float = 10.0
    backoff_last_seconds: float = 300.0
    healthy_seconds: float = 600.0

    @property
    def owner_selector(self) -> str:
        """Selects the jobs and savepoints that this operator works on."""
        class_selector = f"{CLASS_LABEL}={self.job_class}" if self.job_class else f"!{CLASS_LABEL}"
        return f"{class_selector},{self.job_selector}" if self.job_selector else class_selector

    def selects(self, resource: Mapping[str, Any]) -> bool:
        """Return whether this operator works on a job or savepoint."""
        return LabelSelector.parsed(self.owner_selector).matches(resource["metadata"].get("labels") or {})


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings. Raises EnvironmentProblem, which names the variable."""
    arguments: dict[str, Any] = {}
    for setting in fields(Settings):
        name = _PREFIX + setting.name.upper()
        if text := environment.get(name, "").strip():
            arguments[setting.name] = _parse_setting(name, text, setting.default)
    way = next((name for name in ("page_ingress", "page_route") if arguments.get(name)), None)
    if way and not arguments.get("page_url"):
        raise EnvironmentProblem(
            f"{_PREFIX}{way.upper()} is set, and {_PREFIX}PAGE_URL is not",
            facts="it needs a host",
            todo="Set jobPage.url of the chart, or the operator's environment",
        )
    return Settings(**arguments)


def _parse_setting(name: str, text: str, default: object) -> object:
    if isinstance(default, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    setting = name.removeprefix(_PREFIX).lower()
    if (form := _FORMS.get(setting)) is not None and not form.fits(text):
        raise EnvironmentProblem(f"{name} is {text!r}", facts=form.words, todo=form.todo)
    if (parse := _PARSERS.get(setting)) is not None:
        parse(name, text)
    if isinstance(default, str):
        return text
    try:
        value = type(default)(text)  # type: ignore[call-arg]
        if value <= 0:  # type: ignore[operator]
            raise ValueError("not positive")
    except ValueError:
        raise EnvironmentProblem(
            f"{name} is {text!r}", facts="it must be a positive number", todo="Correct the operator's environment"
        ) from None
    return value


class _PageIngress(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)

    class_name: Any = None
    annotations: Any = None
    tls_secret_name: Any = None


class _Gateway(BaseModel):
    """A ParentReference, of which only the name is required."""

    name: Pattern


class _PageRoute(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)

    parent_refs: Annotated[list[_Gateway], Field(min_length=1)]
    annotations: Any = None


def _is_json_of(kind: Any, text: str) -> bool:
    """Return whether the text is JSON of a type that pydantic knows."""
    try:
        TypeAdapter(kind).validate_json(text)
    except ValidationError:
        return False
    return True


def _is_page_url(text: str) -> bool:
    parts = urlsplit(text)
    try:
        placeholders = {field for _, field, _, _ in Formatter().parse(text) if field is not None}
        fits = "name" in placeholders <= {"name", "namespace"} and parts.port is None
        # What a job's name makes too long is shortened, but not the installation's own labels.
        fits = fits and all(len(label.format(name="", namespace="")) <= _LABEL for label in parts.netloc.split("."))
    except ValueError:
        return False
    return bool(fits and parts.scheme in {"http", "https"} and parts.netloc and not parts.query and text[-1:] == "/")


class _Form(NamedTuple):
    """The form of a setting's text: what tells it, the form in words, and what to do if the text has another one."""

    fits: Callable[[str], object]
    words: str
    todo: str


_FORMS: Mapping[str, _Form] = {
    "lease": _Form(
        re.compile(r"[^/]+/[^/]+").fullmatch, "it must be NAMESPACE/NAME", "Correct the operator's environment"
    ),
    "job_class": _Form(
        re.compile(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?").fullmatch,
        f"it must be a value of the label {CLASS_LABEL}: at most 63 letters, digits, hyphens and dots",
        "Correct watch.class of the chart, or the operator's environment",
    ),
    "status_from": _Form(
        partial(_is_json_of, list[dict[str, Any]]),
        "it must be a JSON list of NetworkPolicyPeers",
        "Correct networkPolicy.jobs of the chart, or the operator's environment",
    ),
    "page_url": _Form(
        _is_page_url,
        "it must be like https://joinery.example.com/{namespace}/{name}/: with {name} and perhaps {namespace}, without "
        "a port, with labels of at most 63 characters, and with a slash at its end",
        "Correct jobPage.url of the chart, or the operator's environment",
    ),
    "page_ingress": _Form(
        partial(_is_json_of, _PageIngress),
        "it must be a JSON object with className, annotations and tlsSecretName at most",
        "Correct jobPage.ingress of the chart, or the operator's environment",
    ),
    "page_route": _Form(
        partial(_is_json_of, _PageRoute),
        "it must be a JSON object with parentRefs (one or more, each with a name) and annotations at most",
        "Name the Gateway in jobPage.httpRoute.parentRefs of the chart, or correct the operator's environment",
    ),
}
"""By setting."""


def _check_selector(name: str, text: str) -> None:
    try:
        LabelSelector.parsed(text)
    except ValueError as error:
        raise EnvironmentProblem(
            f"{name} is {text!r}",
            facts=f"{str(error)!r} is no requirement of a label selector, such as team=risk, team in (a, b) or !test",
            todo="Correct watch.selector of the chart, or the operator's environment",
        ) from None


def _check_model(parse: Callable[[str], object], name: str, text: str, chart_value: str) -> None:
    try:
        parse(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise EnvironmentProblem(
            f"{name} is {text!r}",
            facts=f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}",
            todo=f"Correct {chart_value} of the chart, or the operator's environment",
        ) from None


_PARSERS: Mapping[str, Callable[[str, str], None]] = {
    "job_selector": _check_selector,
    "jobs_allow": lambda name, text: _check_model(allowed_by, name, text, "jobs.allow"),
    "pod_defaults": lambda name, text: _check_model(pod_defaults, name, text, "drivers"),
}
"""By setting whose parser says what is wrong: checks its environment variable's name and text. Raises
EnvironmentProblem."""
