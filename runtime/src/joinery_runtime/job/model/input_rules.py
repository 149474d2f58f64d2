"""Cross-field rules of `spec.inputs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from joinery_runtime.job.model.base import ColumnType
from joinery_runtime.job.model.draft import (
    Finding,
    InputDraft,
    JobDraft,
    dig,
    exactly_one,
    items,
    moment,
    no_key,
    repeats,
    unknown_column,
)
from joinery_runtime.job.model.time_formats import ISO, TEXT, is_pattern, needs_zone
from joinery_runtime.job.model.wording import listed

_EVENT_TIME_TYPES = ("timestamp", "int64")
_FLAT_FORMATS = ("csv",)
_ORIGIN_TYPES = {
    "timestamp": ("timestamp", "int64"),
    "partition": ("int32", "int64"),
    "offset": ("int64",),
    "topic": ("string",),
}
_AVRO = ("avro", "debezium-avro")
_PROTOBUF = ("protobuf",)
_SCHEMAS = {
    "schemaRegistry": (*_AVRO, *_PROTOBUF, "json", "debezium-json"),
    "avroSchema": _AVRO,
    "protobufSchema": _PROTOBUF,
}
_TEXT_TYPES = ("boolean", "int32", "int64", "float", "double")
_TEXT_KEY_TYPES = ("string", "int32", "int64")

GROUP_SETTINGS = ("group.id", "group.instance.id")
"""Kafka's settings that make two consumers one: the members of a group divide the partitions among them."""


def _check_number_and_names(draft: JobDraft) -> Iterator[Finding]:
    spec = dig(draft.data, "spec")
    written = isinstance(dig(spec, "inputs"), list | tuple)
    if written and not draft.inputs:
        yield ("spec", "inputs"), "there is no input; write at least one"
    elif written and len(draft.inputs) == 1 and dig(spec, "joins"):
        yield ("spec", "inputs"), "a join needs two inputs: there are 1, write at least two"
    for i, name in repeats([source.name for source in draft.sources]):
        yield ("spec", "inputs", i, "name"), f"two inputs are named {name!r}; give each its own name"
    for source in draft.sources:
        columns = items(source.data, "schema")
        for i, name in repeats([dig(column, "name") for column in columns]):
            yield (*source.at, "schema", i, "name"), f"the schema has two columns named {name!r}; rename or drop one"


def _check_event_time(draft: JobDraft) -> Iterator[Finding]:
    for source in draft.sources:
        name = source.data.get("eventTime")
        if source.types is None or not isinstance(name, str) or not name:
            continue
        at = (*source.at, "eventTime")
        kind = source.types.get(name)
        if name not in source.types:
            yield at, unknown_column(name, source)
        elif kind is not None and kind.name not in _EVENT_TIME_TYPES:
            yield at, f"column {name!r} is {kind}; event time must be timestamp, or int64 milliseconds since 1970"


def _check_flat_formats(draft: JobDraft) -> Iterator[Finding]:
    for source in draft.sources:
        kind = source.data.get("format")
        for i, column in enumerate(items(source.data, "schema")):
            if dig(column, "path") is not None and dig(column, "from") is None and kind in _FLAT_FORMATS:
                yield (*source.at, "schema", i, "path"), f"records of format {kind} are flat; leave the path out"
        if kind == "parquet" and "kafka" in source.data:
            yield (*source.at, "format"), "parquet is a format of files; name file: {path: ...} instead of kafka"
        if kind != "csv" and source.data.get("csv") is not None:
            yield (*source.at, "csv"), "csv says how CSV is written, and the format is another one; leave it out"
        if (
            kind == "csv"
            and dig(source.data, "csv", "header") is not False
            and dig(source.data, "file", "watch") is True
        ):
            todo = "write csv: {header: false}, with the schema in the order of the fields, or another format"
            yield (
                (*source.at, "file", "watch"),
                f"CSV with a header is not read from a directory that is watched; {todo}",
            )


def _check_schemas(draft: JobDraft) -> Iterator[Finding]:
    for source in draft.sources:
        kind, named = source.data.get("format"), [name for name in _SCHEMAS if source.data.get(name) is not None]
        fitting = [name for name, kinds in _SCHEMAS.items() if kind in kinds]
        if kind in (*_AVRO, *_PROTOBUF):
            if (count := len([name for name in named if name in fitting])) != 1:
                advice = "both are named; keep one" if count else "name where its schema is"
                yield (*source.at, "format"), f"{kind} needs one of {listed(fitting)}: {advice}"
            if "file" in source.data:
                format_name = "Avro" if kind in _AVRO else "Protobuf"
                todo = "read a topic, or write the file as JSON"
                yield (*source.at, "format"), f"files of {format_name} are not supported yet; {todo}"
        for name in named:
            if isinstance(kind, str) and name not in fitting:
                yield (*source.at, name), f"{name} belongs to format {listed(_SCHEMAS[name])}; leave it out"
        if "schemaRegistry" in named and "file" in source.data and kind not in (*_AVRO, *_PROTOBUF):
            yield (*source.at, "schemaRegistry"), "only records of Kafka begin with their schema's number; leave it out"
        if source.data.get("protobufMessage") is not None and "protobufSchema" not in named:
            todo = "leave it out: records name it" if "schemaRegistry" in named else "leave it out"
            yield (*source.at, "protobufMessage"), f"protobufMessage is a message of protobufSchema; {todo}"


def _check_history(draft: JobDraft) -> Iterator[Finding]:
    for source in draft.sources:
        history, at = source.data.get("history"), (*source.at, "history")
        if history is None:
            continue
        if source.data.get("kafka") is None:
            yield at, "a history is what comes before a topic; name kafka, or leave the history out"
        if dig(history, "csv") is not None and dig(history, "format") != "csv":
            yield (*at, "csv"), "csv says how CSV is written, and the format is another one; leave it out"
        start, until = dig(source.data, "kafka", "startFrom"), moment(dig(history, "until"))
        begin = moment(dig(start, "timestamp"))
        if start == "latest" or (begin is not None and until is not None and begin > until):
            todo = "name a time that is not later than `until`, or leave startFrom out"
            facts = "what comes between the end of the history and this would be missing"
            yield (*source.at, "kafka", "startFrom"), f"{facts}; {todo}"


def _type_of(source: InputDraft, column: object) -> ColumnType | None:
    name = dig(column, "name")
    return (source.types or {}).get(name) if isinstance(name, str) else None


def _check_metadata(draft: JobDraft) -> Iterator[Finding]:
    for source in draft.sources:
        for i, column in enumerate(items(source.data, "schema")):
            origin, at = dig(column, "from"), (*source.at, "schema", i)
            if not isinstance(origin, str):
                continue
            allowed = _ORIGIN_TYPES.get(origin)
            kind = _type_of(source, column)
            if origin == "envelope":
                if not str(source.data.get("format")).startswith("debezium"):
                    yield (*at, "from"), "only change events of Debezium have an envelope; leave `from` out"
                elif dig(column, "path") is None:
                    yield (*at, "path"), "is missing; write what of the envelope the column is, as source.ts_ms"
                continue
            if "file" in source.data:
                yield (*at, "from"), "only records of Kafka have that; leave `from` out"
            elif allowed is not None and kind is not None and kind.name not in allowed:
                yield (*at, "type"), f"from: {origin} is {' or '.join(allowed)}, not {kind}"
            if dig(column, "path") is not None and origin != "key":
                yield (*at, "path"), f"from: {origin} has no parts; leave the path out"


def _check_formats(draft: JobDraft) -> Iterator[Finding]:
    for source in draft.sources:
        for i, column in enumerate(items(source.data, "schema")):
            written, zone, at = dig(column, "format"), dig(column, "zone"), (*source.at, "schema", i)
            kind = _type_of(source, column)
            if zone is not None and (not isinstance(written, str) or not (written == ISO or is_pattern(written))):
                yield (*at, "zone"), "a zone belongs to times as text; write format: iso or a pattern beside it"
            if not isinstance(written, str) or kind is None:
                continue
            if str(dig(column, "from")) in _ORIGIN_TYPES:
                yield (*at, "format"), f"from: {dig(column, 'from')} is no text; leave the format out"
            elif written == TEXT and kind.name not in _TEXT_TYPES:
                yield (*at, "format"), f"column {dig(column, 'name')!r} is {kind}; text is for {listed(_TEXT_TYPES)}"
            elif written != TEXT and kind.name != "timestamp" and not (kind.name == "date" and is_pattern(written)):
                yield (*at, "format"), f"column {dig(column, 'name')!r} is {kind}; {written} is a format of timestamp"
            elif kind.name == "timestamp" and is_pattern(written) and needs_zone(written) and zone is None:
                yield (*at, "format"), "the pattern has no offset (%z); write zone: UTC, or the zone of the times"


_SEVERAL_TOPICS = {"topics": "topics names several", "topicPattern": "topicPattern may match many"}


def _check_sources(draft: JobDraft) -> Iterator[Finding]:
    for source in draft.sources:
        kafka, at = source.data.get("kafka"), (*source.at, "kafka")
        yield from exactly_one(source.data, source.at, ("kafka", "file"))
        yield from exactly_one(kafka, at, ("topic", "topics", "topicPattern"))
        several = [facts for field, facts in _SEVERAL_TOPICS.items() if dig(kafka, field) is not None]
        for name in ("startFrom", "stopAt"):
            if several and dig(kafka, name, "offsets") is not None:
                facts = f"offsets belong to one topic, {several[0]}"
                yield (*at, name), f"{facts}; write a word or {{timestamp: ...}} here, or name one topic"
        for i, name in repeats(items(kafka, "topics")):
            facts = f"topic {name!r} is named twice, and each record counts once"
            yield (*at, "topics", i), f"{facts} (rule U1); drop one"
    # The members of a group divide the partitions, so each of two inputs would read only some of its topic's.
    for name in GROUP_SETTINGS:
        values = [dig(source.data, "kafka", "properties", name) for source in draft.sources]
        for i, value in repeats(values):
            facts = f"two inputs have {name} {value!r}; each input is a group of its own"
            path = (*draft.sources[i].at, "kafka", "properties", name)
            yield path, f"{facts}: give each another name, or leave it out"


def _check_tables(draft: JobDraft) -> Iterator[Finding]:
    for source in draft.sources:
        if source.data.get("where") is not None and source.data.get("table") is not None:
            facts = "a table's version that is left out would leave an older one valid"
            yield (*source.at, "where"), f"{facts} (rule A1); write the condition into the step's `where`"
        kind, at = str(source.data.get("format")), (*source.at, "table", "deletedBy")
        deletes = dig(source.data, "table", "deletedBy") is not None
        if deletes and kind.startswith("debezium"):
            yield at, "change events of Debezium say themselves what they delete; leave deletedBy out"
        elif deletes and kind in _FLAT_FORMATS:
            yield at, "records of format csv have no field that marks deletions; leave deletedBy out"


def _check_table_keys(draft: JobDraft) -> Iterator[Finding]:
    for source in draft.sources:
        at, names = (*source.at, "table", "key"), items(source.data, "table", "key")
        for i, name in repeats(names):
            yield (*at, i), f"the key names column {name!r} twice; drop one"
        for i, name in enumerate(names):
            if source.types is not None and isinstance(name, str) and name and name not in source.types:
                yield (*at, i), unknown_column(name, source)
            elif source.types is not None and isinstance(name, str) and (text := no_key(name, source.types)):
                yield (*at, i), text
            elif isinstance(name, str) and name == source.data.get("eventTime"):
                yield (*at, i), f"{name!r} is the event time, which tells versions of one key apart; drop it"
        if dig(source.data, "table", "keyFormat") == "string" and names:
            kind = (source.types or {}).get(names[0]) if isinstance(names[0], str) else None
            problem = None
            if len(names) > 1:
                problem = f"string keys hold one column, the key has {len(names)}"
            elif kind is not None and kind.name not in _TEXT_KEY_TYPES:
                problem = f"column {names[0]!r} is {kind}; a string key holds {listed(_TEXT_KEY_TYPES)}"
            if problem is not None:
                yield (*source.at, "table", "keyFormat"), f"{problem}; write json"


def _check_change_events(draft: JobDraft) -> Iterator[Finding]:
    for source in draft.sources:
        if source.data.get("debezium") is None:
            continue
        at, history = (*source.at, "debezium"), dig(source.data, "history", "format")
        if not any(str(kind).startswith("debezium") for kind in (source.data.get("format"), history)):
            yield at, "only change events of Debezium have ops; leave debezium out"
        elif dig(source.data, "debezium", "ops") is not None and source.data.get("table") is not None:
            yield (*at, "ops"), "a table takes every change of its rows; leave ops out"


RULES: tuple[Callable[[JobDraft], Iterator[Finding]], ...] = (
    _check_number_and_names,
    _check_event_time,
    _check_schemas,
    _check_flat_formats,
    _check_history,
    _check_metadata,
    _check_formats,
    _check_sources,
    _check_tables,
    _check_table_keys,
    _check_change_events,
)
