"""Take facts from ksqlDB's query-validation cases: which rows go in, and which must come out of a job of ours.

    python -m joinery_devkit.ksql_cases KSQL/ksqldb-functional-tests/src/test/resources/query-validation-tests \\
        > tests/ksql/cases.json

KSQL is a checkout of `confluentinc/ksql`, whose licence does not allow copies: what is written are the names of cases,
jobs of ours, and values. A case is in scope if it joins streams within a time, aggregates a stream, or filters and
computes its rows, over columns of types that both have. ksqlDB emits each update of a row: what counts here is the last
row of each key and window, and a row of an outer join that later has a partner does not count without it.

- A stream-stream join of more than two inputs counts `WITHIN` from the later time of the rows that are joined before.
- Without `GRACE PERIOD` ksqlDB waits for a day.
- An aggregate without a window is taken over one window that holds all records.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from joinery_runtime.core.compile.jobs import compile_job
from joinery_runtime.errors import JobError
from joinery_runtime.job import Job, parse_job
from joinery_runtime.job.model.function_calls import JoinerySql

FILES = (
    *("joins", "multi-joins", "tumbling-windows", "hopping-windows", "session-windows", "window-bounds", "suppress"),
    *("count", "count-distinct", "sum", "average-udaf", "min-group-by", "max-group-by", "standarddeviation", "having"),
    *("earliest-offset-udaf", "latest-offset-udaf"),
    *("where", "project-filter", "between", "in", "like", "comparison-expression", "case-expression", "operators"),
)
TIME = "event_time"
ROWS = list[tuple[str, dict[str, Any]]]
_GRACE_MS = 86_400_000
_UNITS = {"MILLISECOND": 1, "SECOND": 1_000, "MINUTE": 60_000, "HOUR": 3_600_000, "DAY": 86_400_000}
_TYPES = {
    **{"INT": "int32", "INTEGER": "int32", "BIGINT": "int64", "DOUBLE": "double", "BOOLEAN": "boolean"},
    **{"STRING": "string", "VARCHAR": "string", "TIMESTAMP": "timestamp"},
}
_FUNCTIONS = {
    **{"COUNT": "count_col", "COUNT_DISTINCT": "count_distinct", "SUM": "sum", "AVG": "avg", "MIN": "min"},
    **{"MAX": "max", "EARLIEST_BY_OFFSET": "first", "LATEST_BY_OFFSET": "last"},
    **{"STDDEV_SAMP": "var_samp", "STDDEV_SAMPLE": "stddev_samp"},  # ksqlDB's STDDEV_SAMP is a variance
}
_CREATE = re.compile(r"CREATE (STREAM|TABLE) (\w+) \((.*?)\) WITH \((.*)\);?$", re.I | re.S)
_SELECT = re.compile(r"CREATE (?:STREAM|TABLE) (\w+)(?: WITH \(.*?\))? AS SELECT (.+?) FROM (.+?);?$", re.I | re.S)
_JOIN = re.compile(r"\b(?:(INNER|LEFT|RIGHT|FULL)\s+)?(?:OUTER\s+)?JOIN\b", re.I)
_JOINED = re.compile(
    r"(\w+)(?:\s+(?:AS\s+)?(?!WITHIN\b)(\w+))?\s+WITHIN\s+(\(.*?\)|\d+\s+\w+)(?:\s+GRACE\s+PERIOD\s+(\d+\s+\w+))?"
    r"\s+ON\s+(.+?)\s+=\s+(.+)$",
    re.I | re.S,
)
_WINDOWED = re.compile(
    r"(\w+)(?:\s+WINDOW\s+(TUMBLING|HOPPING|SESSION)\s*\((.*?)\))?(?:\s+WHERE\s+(.+?))?\s+GROUP\s+BY\s+([\w.]+)"
    r"(?:\s+HAVING\s+(.+?))?(?:\s+EMIT\s+(FINAL|CHANGES))?$",
    re.I | re.S,
)
_PROJECTED = re.compile(
    r"(\w+)(?:\s+(?:AS\s+)?(?!WHERE\b|EMIT\b)(\w+))?(?:\s+WHERE\s+(.+?))?(?:\s+EMIT\s+CHANGES)?$", re.I | re.S
)
_GROUPED = re.compile(r"\bGROUP\s+BY\b", re.I)
_CALL = re.compile(r"(\w+)\(\s*([\w.*]*)\s*(?:,\s*true\s*)?\)$", re.I)  # true: values that are NULL do not count


class OutOfScopeError(Exception):
    """Why a case is none of ours."""


@dataclass(frozen=True, slots=True)
class SourceStream:
    """`columns` by name with our types. `key` is the column that a record's key holds, None without one."""

    topic: str
    value_format: str
    columns: Mapping[str, str]
    key: str | None


@dataclass(slots=True)
class KsqlCase:
    """`rows` go in one after the other; `output` is what must come out, in no order. `ends`: the inputs end after the
    rows."""

    name: str
    spec: dict[str, Any]
    rows: ROWS
    output: list[dict[str, Any]]
    ends: bool


def read_cases(folder: Path) -> Iterator[KsqlCase | tuple[str, str]]:
    """Yield each case that runs: a `KsqlCase`, or its name and why it is out of scope."""
    for file in FILES:
        text = re.sub(r"^\s*//.*$", "", (folder / f"{file}.json").read_text(), flags=re.M)
        for test in json.loads(text)["tests"]:
            if "expectedException" in test:
                continue  # a statement that ksqlDB rejects
            name = f"{file}: {test['name']}"
            try:
                yield _case(name, test)
            except OutOfScopeError as error:
                yield name, str(error)


def _case(name: str, test: Mapping[str, Any]) -> KsqlCase:
    statements = [" ".join(statement.split()) for statement in test["statements"]]
    sources = dict(_source(match) for statement in statements if (match := _CREATE.match(statement)))
    selects = [match for statement in statements if (match := _SELECT.match(statement))]
    if len(selects) != 1 or len(sources) + 1 != len(statements):
        raise OutOfScopeError("several statements, or one that is no SELECT of streams")
    _, items, rest = selects[0].groups()
    read = _read_join if _JOIN.search(rest) else _read_aggregate if _GROUPED.search(rest) else _read_projection
    case = read(name, items, rest, sources)
    by_topic = {source.topic: (alias, source) for alias, source in _aliased(case, sources)}
    for record in test["inputs"]:
        if record["topic"] not in by_topic:
            raise OutOfScopeError("records of topics that it does not read")
        alias, source = by_topic[record["topic"]]
        if (row := _row(record, source)) is not None:
            case.rows.append((alias, row))
    outputs = [record for record in test["outputs"] if record["topic"].upper() == selects[0][1].upper()]
    case.output = _last_rows(outputs, case) if "aggregate" in case.spec else _joined_rows(outputs, case)
    if not case.output and "having" not in case.spec.get("aggregate", {}):
        raise OutOfScopeError("no row comes out")
    formats = {*(source.value_format for source in sources.values()), *test.get("format", ())[:1]}
    if case.spec.get("joins") == [] and _rejected(case):
        raise OutOfScopeError("an expression that a job rejects: types that do not compare, a list, or a function")
    if "PROTOBUF" in formats:
        raise OutOfScopeError("Protobuf, in which ksqlDB writes a value that is missing as 0 or as an empty text")
    return case


# --- sources ----------------------------------------------------------------------------------------------------------


def _source(match: re.Match[str]) -> tuple[str, SourceStream]:
    kind, name, columns_text, options = match.groups()
    if kind.upper() == "TABLE":
        raise OutOfScopeError("a table, of which ksqlDB takes the row that was read last, whatever its time")
    if "timestamp" in options.lower() or "window_type" in options.lower():
        raise OutOfScopeError("a source with windows or a time column")
    columns, key = {}, None
    for text in re.split(r",(?![^()<]*[)>])", columns_text):
        column, kind_text, *more = text.split(None, 2)
        sql_type = re.sub(r"\s", "", " ".join([kind_text, *more]).upper()).removesuffix("KEY")
        decimal = re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", sql_type)
        if sql_type not in _TYPES and not decimal:
            raise OutOfScopeError(f"a column of type {sql_type.partition('<')[0].partition('(')[0]}")
        columns[column.strip("`").upper()] = f"decimal({decimal[1]},{decimal[2]})" if decimal else _TYPES[sql_type]
        if more and more[-1].upper().endswith("KEY"):
            key = column.strip("`").upper()
    topic = re.search(r"kafka_topic\s*=\s*'(\w+)'", options, re.I)
    value_format = re.search(r"(?<!key_)format\s*=\s*'([\w{}]+)'", options, re.I)
    if topic is None or value_format is None:
        raise OutOfScopeError("a source without a topic or a format")
    return name.upper(), SourceStream(topic[1], value_format[1].upper(), columns, key)


def _aliased(case: KsqlCase, sources: Mapping[str, SourceStream]) -> Iterator[tuple[str, SourceStream]]:
    """Yield the job's inputs by name, each with its stream, and write them into the job."""
    names = {source["name"]: source.pop("stream") for source in case.spec["inputs"]}
    if len({sources[stream].topic for stream in names.values()}) != len(names):
        raise OutOfScopeError("a topic that is read twice")
    for source in case.spec["inputs"]:
        columns = sources[names[source["name"]]].columns
        source |= {
            "file": {"path": f"{source['name']}.jsonl"},
            "format": "json",
            "schema": [{"name": column, "type": kind} for column, kind in columns.items()]
            + [{"name": TIME, "type": "timestamp"}],
            "eventTime": TIME,
            "watermark": {"delay": "0s"},
        }
        yield source["name"], sources[names[source["name"]]]


def _row(record: Mapping[str, Any], source: SourceStream) -> dict[str, Any] | None:
    """Return the record as a row; None for a record without a value, which ksqlDB skips."""
    value = record.get("value")
    if value is None:
        return None
    columns = [name for name in source.columns if name != source.key]
    if isinstance(value, Mapping):
        values = {name.upper(): content for name, content in value.items()}
    elif source.value_format == "DELIMITED":
        texts = [text or None for text in str(value).split(",")]
        values = dict(zip(columns, map(_plain, texts, (source.columns[name] for name in columns)), strict=True))
    else:
        values = {columns[0]: value}
    if source.key is not None:
        key = record.get("key")
        if isinstance(key, Mapping):
            raise OutOfScopeError("a key with columns of its own")
        values[source.key] = key
    values |= {name: _plain(text, source.columns[name]) for name, text in values.items() if isinstance(text, str)}
    return {name: values.get(name) for name in source.columns} | {TIME: record.get("timestamp") or 0}


def _plain(text: str | None, kind: str) -> Any:
    if text is None or kind == "string" or kind.startswith("decimal"):
        return text
    return text.lower() == "true" if kind == "boolean" else json.loads(text)


# --- joins ------------------------------------------------------------------------------------------------------------


def _read_join(name: str, items: str, rest: str, sources: Mapping[str, SourceStream]) -> KsqlCase:
    rest, where = _partition(rest, r"\s+WHERE\s+")
    first, *parts = _JOIN.split(rest)
    stream, *alias = re.sub(r"\s+AS\s+", " ", first.strip(), flags=re.I).split()
    inputs = {(alias[0] if alias else stream).upper(): stream.upper()}
    joins, within = [], 0
    for kind, text in zip(parts[::2], parts[1::2], strict=True):
        match = _JOINED.match(text.strip())
        if match is None:
            raise OutOfScopeError("a condition that is no equality, or a table")
        right = (match[2] or match[1]).upper()
        inputs[right] = match[1].upper()
        keys = [_expression(text, inputs, sources) for text in match.groups()[4:]]
        left_key, right_key = keys if re.search(rf"\b{right}\.", keys[1]) else keys[::-1]
        before, after = _within(match[3])
        earlier = [*inputs][:-1]
        step: dict[str, Any] = {
            "right": right,
            "type": (kind or "inner").lower(),
            "keys": {left_key: right_key},
            "interval": {"of": earlier[0], "lower": f"{-before - within}ms", "upper": f"{after + within}ms"},
            "allowedLateness": f"{_ms(match[4]) if match[4] else _GRACE_MS}ms",
        }
        if len(earlier) > 1:
            latest = f"GREATEST({', '.join(f'{other}.{TIME}' for other in earlier)})"
            step["where"] = (
                f"{right}.{TIME} BETWEEN {latest} - INTERVAL '{before}' MILLISECOND "
                f"AND {latest} + INTERVAL '{after}' MILLISECOND"
            )
        joins.append(step)
        within += max(before, after)
    if where:
        joins[-1]["filter"] = _expression(where, inputs, sources)
    spec = {
        "inputs": [{"name": alias_name, "stream": source} for alias_name, source in inputs.items()],
        "joins": joins,
        "select": _selected(items, inputs, sources, joins),
    }
    if any(source not in sources for source in inputs.values()):
        raise OutOfScopeError("a stream that another statement makes")
    return KsqlCase(name, spec, [], [], ends=True)


def _selected(
    items: str, inputs: Mapping[str, str], sources: Mapping[str, SourceStream], joins: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    selected: list[dict[str, str]] = []
    for item in _items(items):
        text, alias = _partition(item, r"\s+(?:AS\s+)?(?=\w+$)")
        stars = [*inputs] if text == "*" else [text[:-2].upper()] if text.endswith(".*") else []
        for other in stars:
            names = sources[inputs[other]].columns
            selected += [{"column": f"{other}.{column}", "as": f"{other}_{column}"} for column in names]
        if not stars:
            column = _column(text, inputs, sources)
            clashing = sum(column[1] in sources[source].columns for source in inputs.values()) > 1
            name = f"{column[0]}_{column[1]}" if clashing else column[1]
            selected.append({"column": ".".join(column), "as": (alias or name).upper()})
    if joins[0]["type"] == "right":  # the row's key is in the column of either side
        keys = dict(joins[0]["keys"])
        for chosen in selected:
            if (right := keys.get(chosen["column"])) is not None:
                chosen["expression"] = f"COALESCE({chosen.pop('column')}, {right})"
    return selected


def _expression(text: str, inputs: Mapping[str, str], sources: Mapping[str, SourceStream]) -> str:
    """Return the text with columns as our jobs name them."""
    names = r"\b(?:[A-Za-z]\w*\.\w+|[A-Za-z]\w*(?=$|\s*[=<>]))"
    text = re.sub(names, lambda name: ".".join(_column(name[0], inputs, sources)), text)
    return text.strip().removeprefix("(").removesuffix(")") if text.startswith("(CASE") else text


def _column(reference: str, inputs: Mapping[str, str], sources: Mapping[str, SourceStream]) -> tuple[str, str]:
    """Return the input and the column that a reference names."""
    alias, _, column = reference.upper().strip("`").rpartition(".")
    owners = [
        name
        for name, source in inputs.items()
        if source in sources and column in sources[source].columns and alias in {"", name, source}
    ]
    if len(owners) != 1:
        raise OutOfScopeError("an item that is neither a column nor an aggregate of one")
    return owners[0], column


def _within(text: str) -> tuple[int, int]:
    """How long before and after a row its partner may be, in milliseconds."""
    both = [_ms(part) for part in text.strip("()").split(",")]
    return both[0], both[-1]


# --- aggregates -------------------------------------------------------------------------------------------------------


def _read_aggregate(name: str, items: str, rest: str, sources: Mapping[str, SourceStream]) -> KsqlCase:
    match = _WINDOWED.match(rest)
    if match is None:
        raise OutOfScopeError("neither a join nor an aggregate by one column")
    stream, kind, window_text, where, group, having, emitted = match.groups()
    inputs = {stream.upper(): stream.upper()}
    ends = (emitted or "").upper() != "FINAL"
    window, grace = _window(kind, window_text or "", _GRACE_MS if ends else 0)
    columns: dict[str, dict[str, Any]] = {}
    selected = []
    for item in _items(items):
        text, alias = _partition(item, r"\s+(?:AS\s+)?(?=\w+$)")
        call = _CALL.match(text)
        bound = {"WINDOWSTART": "window_start", "WINDOWEND": "window_end"}.get(text.upper())
        output_name = (alias or (f"KSQL_COL_{len(columns)}" if call else text.rpartition(".")[2])).upper()
        if bound:
            selected.append({"column": bound, "as": output_name})
        elif call is None:
            selected.append({"column": ".".join(_column(text, inputs, sources)), "as": output_name})
        else:
            columns[output_name] = _aggregate(call, inputs, sources) | {"as": output_name}
            selected.append({"column": output_name})
    condition = {"where": _expression(where, inputs, sources)} if where else {}
    condition_of_groups = {"having": _having(having, columns, inputs, sources)} if having else {}
    spec = {
        "inputs": [{"name": stream.upper(), "stream": stream.upper(), **condition}],
        "aggregate": {
            "groupBy": [".".join(_column(group, inputs, sources))],
            "window": window,
            "aggregates": list(columns.values()),
            **condition_of_groups,
            "allowedLateness": f"{grace}ms",
        },
        "select": [*selected, {"column": "window_start"}, {"column": "window_end"}],
    }
    return KsqlCase(name, spec, [], [], ends)


def _having(
    text: str,
    columns: dict[str, dict[str, Any]],
    inputs: Mapping[str, str],
    sources: Mapping[str, SourceStream],
) -> str:
    """Return the condition, in which each aggregate is the column that has it; one that has none is added to
    `columns`."""

    def named(match: re.Match[str]) -> str:
        call = _CALL.match(match[0])
        if call is None:
            raise OutOfScopeError("an item that is neither a column nor an aggregate of one")
        entry = _aggregate(call, inputs, sources)
        name = next((name for name, column in columns.items() if {**column, "as": ""} == {**entry, "as": ""}), None)
        if name is None:
            name = f"HAVING_{len(columns)}"
            columns[name] = entry | {"as": name}
        return name

    return re.sub(r"\b\w+\([\w.*]*\)", named, text)


def _aggregate(call: re.Match[str], inputs: Mapping[str, str], sources: Mapping[str, SourceStream]) -> dict[str, Any]:
    function, argument = call[1].upper(), call[2]
    if function == "COUNT" and (argument in {"", "*"} or argument.isdigit()):
        return {"function": "count"}
    if function not in _FUNCTIONS:
        raise OutOfScopeError(f"the aggregate {function}")
    return {"function": _FUNCTIONS[function], "column": ".".join(_column(argument, inputs, sources))}


def _window(kind: str | None, text: str, default_grace: int) -> tuple[dict[str, Any], int]:
    """`aggregate.window`, and the grace in milliseconds."""
    lengths = {
        (words[0] if words[0] in {"SIZE", "ADVANCE", "GRACE"} else "GAP"): _ms(" ".join(words[-2:]))
        for part in text.upper().split(",")
        if (words := part.split())
    }
    grace = lengths.get("GRACE", default_grace)
    match (kind or "").upper():
        case "TUMBLING":
            return {"tumbling": {"size": f"{lengths['SIZE']}ms"}}, grace
        case "HOPPING":
            return {"hopping": {"size": f"{lengths['SIZE']}ms", "slide": f"{lengths['ADVANCE']}ms"}}, grace
        case "SESSION":
            return {"session": {"gap": f"{lengths['GAP']}ms", "maxDuration": "8760h"}}, grace
    return {"tumbling": {"size": "8760h"}}, 0


# --- rows of one stream -----------------------------------------------------------------------------------------------


def _read_projection(name: str, items: str, rest: str, sources: Mapping[str, SourceStream]) -> KsqlCase:
    match = _PROJECTED.match(rest)
    if match is None or match[1].upper() not in sources:
        raise OutOfScopeError("neither a join nor an aggregate by one column, nor the rows of one stream")
    stream, where = match[1].upper(), match[3]
    inputs = {stream: stream}
    select: list[dict[str, str]] = []
    for position, item in enumerate(_items(items)):
        if item == "*":
            select += [{"column": f"{stream}.{column}", "as": column} for column in sources[stream].columns]
            continue
        tree = _tree(item, inputs, sources, match[2])
        value = tree.unalias()
        plain = isinstance(value, exp.Column)
        named = (tree.alias if isinstance(tree, exp.Alias) else value.name if plain else f"KSQL_COL_{position}").upper()
        select.append({"column" if plain else "expression": value.sql(), "as": named})
    source = {"name": stream, "stream": stream}
    if where:
        source["where"] = _tree(where, inputs, sources, match[2]).sql()
    return KsqlCase(name, {"inputs": [source], "joins": [], "select": select}, [], [], ends=True)


def _tree(text: str, inputs: Mapping[str, str], sources: Mapping[str, SourceStream], alias: str | None) -> exp.Expr:
    """Parse an expression, with columns as our jobs name them."""
    try:
        tree = sqlglot.parse_one(text, dialect=JoinerySql)
    except SqlglotError as error:
        raise OutOfScopeError("an expression over lists, maps or structures") from error
    for column in list(tree.find_all(exp.Column)):
        written = column.sql().removeprefix(f"{alias}.") if alias else column.sql()
        owner, name = _column(written, inputs, sources)
        column.set("table", exp.to_identifier(owner))
        column.set("this", exp.to_identifier(name))
    return tree


def job_of(spec: Mapping[str, Any]) -> Job:
    """Load our job of a case. Raises JobError."""
    spec = {**spec, "output": {"file": {"path": "unused.jsonl"}}, "stateStore": {"memory": {}}}
    resource = {"apiVersion": "joinery.dev/v1alpha1", "kind": "StreamJoin", "metadata": {"name": "k"}, "spec": spec}
    return parse_job(json.dumps(resource), "ksql.yaml")


def _rejected(case: KsqlCase) -> bool:
    """Whether our job of the case is rejected when it is loaded."""
    try:
        compile_job(job_of(case.spec))
    except JobError:
        return True
    return False


# --- outputs ----------------------------------------------------------------------------------------------------------


def _joined_rows(outputs: Sequence[Mapping[str, Any]], case: KsqlCase) -> list[dict[str, Any]]:
    rows = [_output_row(record, case) for record in outputs]
    for step in case.spec["joins"]:
        if step["type"] != "inner":
            rows = [row for row in rows if not any(_is_padded(row, other) for other in rows)]
    return rows


def _is_padded(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a row is what `other` is, but for values that are missing."""
    return row != other and all(value is None or value == other[name] for name, value in row.items())


def _last_rows(outputs: Sequence[Mapping[str, Any]], case: KsqlCase) -> list[dict[str, Any]]:
    last: dict[str, dict[str, Any] | None] = {}
    for record in outputs:
        window = record.get("window", {})
        at = json.dumps([record.get("key"), window.get("start"), window.get("end")])
        last[at] = None if record.get("value") is None else _output_row(record, case)
    return [row for row in last.values() if row is not None]


def _output_row(record: Mapping[str, Any], case: KsqlCase) -> dict[str, Any]:
    names = [item["as"] if "as" in item else item["column"] for item in case.spec["select"]]
    window = record.get("window")
    bounds = {"window_start": window["start"], "window_end": window["end"]} if window else {}
    if not window and "aggregate" in case.spec:
        names = [name for name in names if name not in {"window_start", "window_end"}]
    value = record["value"]
    keyed = [name for name in names if name not in bounds]
    if isinstance(value, Mapping):
        values = {name.upper(): content for name, content in value.items()}
        missing = [name for name in keyed if name not in values]
        if len(missing) > 1 or (missing and isinstance(record.get("key"), Mapping)):
            raise OutOfScopeError("a key with columns of its own")
        values |= dict.fromkeys(missing, record.get("key"))
    else:
        texts = [text or None for text in str(value).split(",")] if isinstance(value, str) else [value]
        values = dict(zip(keyed, [record.get("key"), *texts], strict=False))
    if set(values) != set(keyed):
        raise OutOfScopeError("columns that ksqlDB adds")
    return {name: values[name] for name in keyed} | bounds


# --- texts ------------------------------------------------------------------------------------------------------------


def _items(text: str) -> list[str]:
    return [item.strip() for item in re.split(r",(?![^()]*\))", text)]


def _partition(text: str, pattern: str) -> tuple[str, str]:
    """Return the text before the first match of the pattern, and what follows the match; without a match, nothing."""
    before, *after = re.split(pattern, text.strip(), maxsplit=1, flags=re.I)
    return before.strip(), after[0].strip() if after else ""


def _ms(text: str) -> int:
    number, unit = text.upper().split()
    return int(number) * _UNITS[unit.removesuffix("S")]


def main() -> None:
    read = list(read_cases(Path(sys.argv[1])))
    cases = [json.dumps(asdict(case), separators=(",", ":")) for case in read if isinstance(case, KsqlCase)]
    reasons = [json.dumps(case, separators=(",", ":")) for case in read if not isinstance(case, KsqlCase)]
    print('{"cases":[', ",\n".join(cases), '],"outOfScope":[', ",\n".join(reasons), "]}", sep="\n")


if __name__ == "__main__":
    main()
