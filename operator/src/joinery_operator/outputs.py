"""Which outputs of jobs are one place, as far as their resources say. Pure, and made for any resource: the API server
has checked the fields, but perhaps by another release's definition."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from urllib.parse import parse_qsl

from joinery_operator.decision import Manifest
from joinery_operator.names import digest_of
from joinery_runtime.job.model.draft import dig
from joinery_runtime.job.model.outputs import Output

# As libpq reads them.
_HOST = r"(?:\[[^\]]*\]|[^\[\]:,/?@]*)(?::\d*)?"
_URL = re.compile(
    rf"postgres(?:ql)?://(?:(?P<user>[^@/]*)@)?(?P<hosts>{_HOST}(?:,{_HOST})*)(?P<path>/[^?@]*)?(?:\?(?P<query>.*))?",
    re.DOTALL,
)
_PAIR = re.compile(r"\s*(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^'\s\\]|\\.)(?:[^\s\\]|\\.)*)")
_LONGEST_DSN = 4096
"""Characters, as many as the definition allows."""
_MOST_PLACES = 1024
"""Of one job. Every change of a job that a watch brings is compared, before anything has checked the job."""


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """A place that a job writes. `system` is where it is: equal for two jobs only if it is one for both."""

    kind: str
    system: str
    target: str


def written_places(job: Manifest) -> frozenset[OutputPlace]:
    """Return the places that a job writes; for a topic one with each of its brokers. A host without a dot, a path
    without a scheme and a secret mean something in one namespace only. What a secret has is unknown: two secrets are
    two systems. Of a job with very many places, only the first 1,024 are returned, out of as many outputs."""
    spec, namespace = job.get("spec"), job["metadata"]["namespace"]
    outputs = dig(spec, "outputs")
    database = _database(dig(spec, "stateStore", "postgres"))
    output_places = (
        output_place
        for output in [dig(spec, "output"), *(outputs[:_MOST_PLACES] if isinstance(outputs, list) else ())]
        for kind in Output.KINDS
        if isinstance(fields := dig(output, kind), Mapping)
        for output_place in _output_places(kind, fields, database, namespace)
    )
    return frozenset(islice(output_places, _MOST_PLACES))


def _output_places(kind: str, fields: Mapping[str, object], database: str, namespace: str) -> Iterator[OutputPlace]:
    """`database` is the state store's, in which a table is whose output names no other."""
    target = fields.get({"kafka": "topic", "postgres": "table", "iceberg": "table"}.get(kind, "path"))
    if not isinstance(target, str):
        return
    if kind == "kafka":
        for broker in str(fields.get("bootstrapServers")).split(","):
            address = broker.strip().lower()
            yield OutputPlace(kind, address if "." in address else f"{namespace}/{address}", target)
        return
    normal_target, system = place_of(kind, target), namespace
    if kind == "postgres":
        identity = _database(fields) if "dsn" in fields or "dsnSecretRef" in fields else database
        system = f"{namespace}/{identity}"
    elif kind == "iceberg":
        catalog = [fields.get("catalog"), dig(fields, "properties", "uri"), fields.get("propertiesSecretRef")]
        system = f"{namespace}/{json.dumps(catalog)}"
    elif "://" in normal_target:
        system = ""
    yield OutputPlace(kind, system, normal_target)


def _database(fields: object) -> str:
    dsn = dig(fields, "dsn")
    return database_identity(dsn) if isinstance(dsn, str) else json.dumps(dig(fields, "dsnSecretRef"))


def place_of(kind: str, target: str) -> str:
    """Return the same text for each spelling of a place: `/out/a/`, `/out/./a` and `file:///out/a` are one folder, `t`
    and `public.t` one table. Of another schema on a role's search_path, and of links between folders, the resource says
    nothing."""
    if kind == "postgres":
        return target.removeprefix("public.")
    if kind not in ("file", "delta"):
        return target
    scheme, separator, path = target.rpartition("://")
    path = posixpath.normpath(re.sub("/+", "/", path))
    return path if scheme in ("", "file") else f"{scheme}{separator}{path}"


def database_identity(dsn: str) -> str:
    """Return the parts of a libpq dsn that say which database it is. A dsn in no known form may hold its password
    anywhere, so a digest stands for it, and for one of more than 4,096 characters. Nothing has checked the dsn, so the
    work must not grow faster than its length."""
    if len(dsn) > _LONGEST_DSN:
        return f"a dsn of digest {digest_of(dsn)}"
    if url := _URL.fullmatch(dsn):
        user, hosts, path, query = (url[name] or "" for name in ("user", "hosts", "path", "query"))
        fields = {"user": user.partition(":")[0], **dict(parse_qsl(query))}
        path = path if path.strip("/") else ""
        return " ".join([f"postgresql://{hosts}{path}", *_identifying_fields(fields, named=bool(path))])
    pairs, end = {}, 0
    # Pair by pair: a search would try again at each letter of a word that is no name.
    while pair := _PAIR.match(dsn, end):
        pairs[pair[1]], end = pair[2], pair.end()
    if not pairs or dsn[end:].strip():
        return f"a dsn of digest {digest_of(dsn)}"
    return " ".join(_identifying_fields(pairs))


def _identifying_fields(fields: Mapping[str, str], *, named: bool = False) -> Iterator[str]:
    """Without a dbname, libpq takes the user's name for it."""
    for name in ("service", "host", "hostaddr", "port", "dbname", "user"):
        if fields.get(name) and not (name == "user" and (named or "dbname" in fields)):
            yield f"{name}={fields[name]}"
