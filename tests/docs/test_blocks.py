"""Every block of code on every page is of a kind that is checked: YAML is valid, SQL is understood, Python imports what
exists, and commands have the sub-commands, options, targets, values and files that they name."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import takewhile
from typing import Any

import pytest
import yaml
from cyclopts import App
from cyclopts.exceptions import CycloptsError, MissingArgumentError

from docs.blocks import PAGES, ROOT, Block, blocks_of, command_lines, inline_code, prose, simple_commands
from joinery_devkit.kubernetes.binaries import program
from joinery_operator.plugin.app import app as plugin
from joinery_runtime import trace
from joinery_runtime.cli.app import app as joinery
from joinery_runtime.errors import JobError
from joinery_runtime.job import Input, StreamJoinSpec, parse_job
from joinery_runtime.job.crd import RESOURCE_KINDS

RUN_ELSEWHERE = {
    ROOT / "docs/kinds.md",  # its YAML is that of golden traces
    ROOT / "docs/questions.md",  # test_questions.py runs each block
}
BLOCKS = [block for page in PAGES if page not in RUN_ELSEWHERE for block in blocks_of(page)]
RESOURCES = {"StreamJoin", "SessionWindow"}


def each_block_in(*languages: str) -> pytest.MarkDecorator:
    chosen = [block for block in BLOCKS if block.language in languages]
    return pytest.mark.parametrize("block", chosen, ids=[block.location for block in chosen])


# --- kinds ------------------------------------------------------------------------------------------------------------

# `text` is for pictures, formulas and what programs print.
LANGUAGES = {"yaml", "sql", "python", "json", "sh", "console", "cron", "mermaid", "text"}


def unclear(block: Block) -> str | None:
    """Why nothing checks it."""
    if block.language not in LANGUAGES:
        return f"write one of {sorted(LANGUAGES)} after ``` instead of {block.language!r}"
    if block.language == "text" and re.search(r"^\$? ?(joinery|make|kubectl|helm|docker|pip) [a-z-]", block.text, re.M):
        return "has a command: write sh or console"
    if block.language == "text" and re.search(r"^(apiVersion|kind|spec|inputs): ?", block.text, re.M):
        return "has YAML: write yaml"
    return None


def test_every_block_has_a_kind_that_is_checked() -> None:
    assert [(block.location, why) for page in PAGES for block in blocks_of(page) if (why := unclear(block))] == []
    for page in PAGES:
        outside = prose(page)
        assert "```" not in outside, f"{page}: a fence that does not end, or is indented otherwise than it began"
        indented = re.findall(r"\n\n {4}\S.*", outside)
        assert not indented, f"{page}: an indented block: put it between ``` with its language"


def test_what_is_not_checked_is_found() -> None:
    def why(text: str) -> str | None:
        (block,) = blocks_of(ROOT / "README.md", text)
        return unclear(block)

    assert why("```text\na -> b\n```\n") is None
    assert "instead of 'toml'" in str(why("```toml\na = 1\n```\n"))
    assert "instead of ''" in str(why("```\njoinery run\n```\n"))
    assert "has a command" in str(why("```text\n$ joinery run a.yaml\n```\n"))
    assert "has YAML" in str(why("```text\nspec:\n  joins: []\n```\n"))


# --- YAML -------------------------------------------------------------------------------------------------------------

# What fragments are parts of.
TS = {"name": "ts", "type": "timestamp"}
ORDERS: dict[str, Any] = {
    "name": "orders",
    "kafka": {"bootstrapServers": "kafka:9092", "topic": "orders"},
    "format": "json",
    "schema": [{"name": name, "type": "string"} for name in ("order_id", "tenant", "source", "currency")]
    + [{"name": "amount", "type": "double"}, TS],
}
CLICKS = {
    **ORDERS,
    "name": "clicks",
    "schema": [{"name": name, "type": "string"} for name in ("user_id", "page")] + [TS],
}
MEASURED = {
    **CLICKS,
    "schema": [*CLICKS["schema"], *({"name": name, "type": "double"} for name in ("price", "latency"))],
}
OUTPUT = {"postgres": {"table": "joined"}}
ELSEWHERE = {"Application", "Kustomization"}  # resources of Argo CD and Flux
VALUES = yaml.safe_load((ROOT / "charts/joinery/values.yaml").read_text())


def with_event_time(source: dict[str, Any]) -> dict[str, Any]:
    complete = {**ORDERS, **source}
    if "file" in source:
        del complete["kafka"]
    if "eventTime" not in complete:
        times = [column["name"] for column in complete["schema"] if column["type"] == "timestamp"]
        assert times, "the schema has no timestamp"
        complete["eventTime"] = times[0]
    return complete


def around_input(source: dict[str, Any]) -> dict[str, Any]:
    """The spec of a join of this input with one that has its first column, or, if it is a table, its key."""
    ours = with_event_time(source)
    table = ours.get("table")
    first = next(column["name"] for column in ours["schema"] if column["type"] != "timestamp")
    keys = table.get("key", []) if table else [first]
    shared = [{"name": column["name"], "type": column["type"]} for column in ours["schema"] if column["name"] in keys]
    theirs = with_event_time({"name": "payments", "schema": [*shared, {"name": "method", "type": "string"}, TS]})
    left, right = (theirs, ours) if table else (ours, theirs)
    how = (
        {"asOf": {"historyRetention": "1h"}}
        if table
        else {"interval": {"of": ours["name"], "lower": "0s", "upper": "1h"}}
    )
    pairs = {f"{left['name']}.{key}": f"{right['name']}.{key}" for key in keys}
    return {"inputs": [left, right], "joins": [{"right": right["name"], "keys": pairs, **how}], "output": OUTPUT}


def completed(fragment: Any) -> dict[str, Any]:
    """The resource that the fragment is a part of. Raises AssertionError for a fragment of nothing that is known."""
    kind, metadata, spec = "StreamJoin", {"name": "page"}, around_input({})
    if isinstance(fragment, list):
        (fragment,) = fragment
        return completed({"inputs": [fragment]})
    fragment = {name: value for name, value in fragment.items() if value != ["..."]}
    fields = set(fragment)
    if fields == {"metadata"}:
        metadata |= fragment["metadata"]
    elif fields == {"spec"} and "input" in fragment["spec"]:
        kind, spec = "SessionWindow", {**fragment["spec"], "input": with_event_time(CLICKS), "output": OUTPUT}
    elif fields == {"spec"}:
        return completed(fragment["spec"])
    elif {"aggregates"} <= fields <= {"aggregates", "having"}:
        sessions = {"groupBy": ["user_id"], "gap": "30s", "maxDuration": "2h", "input": with_event_time(MEASURED)}
        kind, spec = "SessionWindow", {**sessions, **fragment, "output": OUTPUT}
    elif fields == {"limits"}:
        spec["joins"][0] |= fragment
    elif fields <= input_fields:
        spec = around_input(fragment)
    elif "sql" in fields:
        payments = with_event_time({"name": "payments", "schema": [*CHOICES["payments"], TS]})
        spec = {**fragment, "inputs": [with_event_time({}), payments], "output": OUTPUT}
    elif fields == {"inputs"}:
        spec = around_input(fragment["inputs"][0])
    elif fields == {"unions"}:
        branches = [branch["input"] for union in fragment["unions"] for branch in union["branches"]]
        schemas = {name: CHOICES[name] if name == "orders_eu" else [*CHOICES[name], TS] for name in branches}
        united = [with_event_time({"name": name, "schema": schema}) for name, schema in schemas.items()]
        spec = {**fragment, "inputs": united, "output": OUTPUT}
    else:
        assert fields <= spec_fields, f"fields of neither a job, an input nor the chart: {fields - spec_fields}"
        chosen = [f"orders.{name}" for name in ("order_id", "tenant", "source")] + ["payments.method"]
        spec |= {"select": [{"column": column} for column in chosen]} | fragment
        if "outputs" in fields:
            del spec["output"]
        if len(spec["inputs"]) == 1:
            del spec["joins"]
    return {"apiVersion": "joinery.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


input_fields = {field.alias or name for name, field in Input.model_fields.items()}
spec_fields = {field.alias or name for name, field in StreamJoinSpec.model_fields.items()}


def assert_values(values: dict[str, Any], defaults: dict[str, Any], at: str = "") -> None:
    """The chart has these values. Below one that is empty by default any name may stand."""
    for name, value in values.items():
        assert name in defaults, f"the chart has no value {at}{name}"
        if isinstance(value, dict) and defaults[name]:
            assert_values(value, defaults[name], f"{at}{name}.")


def assert_fits(value: Any, schema: dict[str, Any], at: str) -> None:
    """By names, required fields and enumerations of the schema of a custom resource."""
    if schema.get("type") == "object" and "properties" in schema:
        assert set(value) <= set(schema["properties"]), at
        assert set(schema.get("required", ())) <= set(value), at
        for name, field in value.items():
            assert_fits(field, schema["properties"][name], f"{at}.{name}")
    assert "enum" not in schema or value in schema["enum"], at


def check_yaml(text: str, location: str) -> None:
    data = yaml.safe_load(text)
    if isinstance(data, dict) and data.get("kind") in RESOURCES:
        assert parse_job(text, location, environment={"KAFKA": "kafka:9092"}).spec
    elif isinstance(data, dict) and data.get("kind") in {"Savepoint", "BlueGreenJob"}:
        (path,) = ROOT.glob(f"crds/*_{data['kind'].lower()}s.yaml")
        definition = yaml.safe_load(path.read_text())
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        assert_fits(data["spec"], schema["properties"]["spec"], location)
    elif isinstance(data, dict) and "kind" in data:
        assert data["kind"] in ELSEWHERE, data["kind"]
        assert_values(data["spec"].get("source", {}).get("helm", {}).get("valuesObject", {}), VALUES)
    elif isinstance(data, dict) and set(data) <= set(VALUES):
        assert_values(data, VALUES)
    else:
        job_text = yaml.safe_dump(completed(data))
        assert parse_job(job_text, f"{location} completed", environment={"KAFKA": "kafka:9092"}).spec


@each_block_in("yaml")
def test_yaml_is_valid(block: Block) -> None:
    if block.page.is_relative_to(ROOT / "tests/traces"):
        assert set(yaml.safe_load(block.text))  # the form of a trace, which tests/traces/corpus.py reads
    else:
        check_yaml(block.text, block.location)


@pytest.mark.parametrize(
    "text",
    [
        "inputs:\n- {name: orders, formt: json}",
        "output: {postgres: {table: a, upsertKeys: [order_id]}}",
        "spec: {autoscale: {minInstances: 1, maxInstance: 8}}",
        "limits: {maxRecord: 1}",
        "jobPage: {ingress: {enable: true}}",
        "colour: red",
        "schema: [{name: ts, type: timestmp}]",
        "- {name: users, table: {keys: [order_id]}}",
        "kind: Application\nspec: {source: {helm: {valuesObject: {runtime: {imag: {}}}}}}",
        "kind: Savepoint\nspec: {job: {kind: StreamJoin, name: a}, cleanup: keep}",
        "kind: Deployment",
    ],
)
def test_mistakes_in_yaml_are_found(text: str) -> None:
    with pytest.raises((AssertionError, JobError)):
        check_yaml(text, "page")


# --- SQL, Python, JSON ------------------------------------------------------------------------------------------------

CHOICES: dict[str, list[dict[str, str]]] = {
    name: [{"name": column, "type": "string"} for column in columns]
    for name, columns in {
        "payments": ("order_id", "method"),
        "deliveries": ("order_id", "id", "driver"),
        "returns": ("delivery_id", "reason"),
        "shipments": ("order_id", "shipment_id"),
        "rates": ("currency",),
        "bids": ("auction", "bidder"),
        "orders_eu": ("id",),
        "orders_us": ("order_id",),
    }.items()
}
CHOICES["rates"].append({"name": "rate", "type": "double"})
CHOICES["bids"].append({"name": "price", "type": "int64"})
CHOICES["orders_eu"] += [{"name": "total", "type": "double"}, {"name": "created", "type": "timestamp"}]
CHOICES["orders_us"].append({"name": "amount", "type": "double"})
CHOICES["orders"] = [*ORDERS["schema"][:-1], {"name": "customer", "type": "string"}]


def check_sql(sql: str, location: str) -> None:
    of_queries = re.findall(r"\b(\w+) AS \(\s*SELECT", sql)
    names = [name for name in re.findall(r"(?:\bFROM|\bJOIN|\(TABLE) (\w+)", sql) if name not in {*of_queries, "TABLE"}]
    schemas = {name: [*CHOICES[name], TS] for name in names}
    inputs = [with_event_time({"name": name, "schema": schema}) for name, schema in schemas.items()]
    for source in inputs:
        if source["name"] == "rates":
            source["table"] = {"key": ["currency"]}
    resource = completed({"output": OUTPUT})
    resource["spec"] = {"sql": sql, "inputs": inputs, "output": {"file": {"path": "out"}}}
    assert parse_job(yaml.safe_dump(resource), location).spec


@each_block_in("sql")
def test_sql_is_understood(block: Block) -> None:
    if "SELECT" in block.text:
        check_sql(block.text, block.location)
    else:  # conditions, one a line
        for condition in block.text.splitlines():
            source = "FROM orders o JOIN payments p ON o.order_id = p.order_id"
            check_sql(f"SELECT o.order_id {source} AND {condition}", block.location)


def check_python(text: str) -> None:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("joinery"):
            module = importlib.import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)]
            tops = {name.split(".")[0] for name in names} - {"airflow"}  # not installed here
            assert all(importlib.util.find_spec(top) for top in tops), names
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("joinery "):
            check_command(shlex.split(node.value))


@each_block_in("python")
def test_python_imports_what_there_is(block: Block) -> None:
    check_python(block.text)


@each_block_in("json")
def test_json_is_what_a_trace_prints(block: Block) -> None:
    job = parse_job(yaml.safe_dump(completed({"output": OUTPUT})), "page")
    (printed,) = trace(job, [{"input": "orders", "rows": []}])
    for line in block.text.splitlines():
        assert set(json.loads(line)) == set(printed)


# --- commands ---------------------------------------------------------------------------------------------------------

# What every system has, or a page says to install.
PROGRAMS = {
    ".",
    "cat",
    "cd",
    "cp",
    "echo",
    "export",
    "git",
    "kafka-consumer-groups",
    "kafka-get-offsets",
    "mkdir",
    "mv",
    "openssl",
    "printf",
    "psql",
    "python3.11",
    "sed",
    "spark-submit",
}
# Files that a page has its reader write.
READERS = {"savepoint.yaml", "cluster.yaml", "kind.yaml", "paid.yaml"}
BUILT_IN = {"serviceaccount", "role", "rolebinding", "namespace", "configmap", "pods", "ns", "secret"}


def check_cli(app: App, words: list[str], complete: bool) -> None:
    """Its sub-commands, options and values are those of the real command. Not whole: arguments may be missing."""
    tokens = ["1" if word in {"N", "EPOCH", "PORT"} else word for word in words if word != "..."]
    try:
        app.parse_args(tokens, exit_on_error=False, print_error=False)
    except MissingArgumentError:
        assert not complete, f"arguments are missing: {words}"
    except CycloptsError as error:
        raise AssertionError(str(error)) from error


def check_joinery(words: list[str], complete: bool = True) -> None:
    check_cli(joinery, words, complete)


def check_plugin(words: list[str], complete: bool = True) -> None:
    check_cli(plugin, words, complete)
    if words[0] == "state" and len(words) > 2:
        job, command, *more = words[1 : words.index("-n") if "-n" in words else None]  # kubectl's own flags come last
        check_cli(joinery, ["state", command, job, *more], complete)


def check_make(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        name, is_variable, _ = word.partition("=")
        assert re.search(rf"\$[({{](?:if )?{name}\b" if is_variable else rf"^{name}:", makefile, re.M), word


def files_of(words: list[str], *options: str) -> Iterator[str]:
    yield from (words[number + 1] for number, word in enumerate(words) if word in options)


def check_files(names: Iterator[str]) -> None:
    for name in names:
        assert name in READERS or (ROOT / name).exists(), name


def check_kubectl(words: list[str]) -> None:
    if words[0] == "joinery":
        check_plugin(words[1:])
        return
    check_files(files_of(words, "-f", "-k", "--patch-file"))
    if words[0] in {"get", "create", "wait", "patch"}:
        named = [word for word in words[1:] if not word.startswith("-")][:1]
        ours = {"joinery", *(name for kind in RESOURCE_KINDS for name in (kind.short, kind.plural))}
        resources = ours | BUILT_IN
        assert {resource for word in named for resource in word.split("/")[0].split(",")} <= resources, words


def check_helm(words: list[str]) -> None:
    for word in words:
        assert not word.startswith("charts/") or (ROOT / word).is_dir(), word
    for setting in files_of(words, "--set"):
        value: Any = VALUES
        for step in setting.partition("=")[0].split("."):
            assert step in value, setting
            value = value[step]


def check_pip(words: list[str]) -> None:
    requirements = list(files_of(words, "-r"))
    check_files(iter(requirements))
    for word in words[1:]:
        if word.startswith("-") or word in requirements:
            continue
        name, _, extra = word.partition("[")
        if name.startswith("pyspark=="):
            continue
        if not name.startswith("build/"):
            projects = [
                tomllib.loads((ROOT / folder / "pyproject.toml").read_text()) for folder in ("runtime", "operator")
            ]
            named = {pyproject["project"]["name"]: pyproject["project"] for pyproject in projects}
            assert name in named, name
            project = named[name]
            assert not extra or extra.rstrip("]") in project["optional-dependencies"], word
        else:  # what `make release` leaves
            wheels = [
                f"{package.replace('-', '_')}-{version(package)}" for package in ("joinery-runtime", "joinery-operator")
            ]
            assert name in [f"build/release/{wheel}-py3-none-any.whl" for wheel in wheels], word


def check_python_command(words: list[str]) -> None:
    assert words[0] == "-m", words
    assert importlib.util.find_spec(words[1]), words


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "joinery": check_joinery,
    "make": check_make,
    "kubectl": check_kubectl,
    "helm": check_helm,
    "docker": lambda words: check_files(files_of(words, "-f")),
    "pip": check_pip,
    "python": check_python_command,
}


def check_command(words: list[str]) -> None:
    name, *rest = words
    if name == "flock":
        check_command(rest[2:])
    else:
        assert name in PROGRAMS | set(CHECKS), f"{name} is not a program that is known here"
        if name in CHECKS:
            CHECKS[name](rest)


def check_line(line: str) -> None:
    for words in simple_commands(line):
        check_command(words)


@each_block_in("mermaid")
def test_a_flowchart_is_the_one_of_an_example(block: Block) -> None:
    assert block.text in [chart.read_text() for chart in (ROOT / "tests/job/flowcharts").glob("*.mmd")]


@each_block_in("sh", "console", "cron")
def test_commands_have_what_they_name(block: Block) -> None:
    lines = command_lines(block)
    assert lines
    for line in lines:
        check_line(re.sub(r"^(\S+ ){5}", "", line) if block.language == "cron" else line)


@pytest.mark.parametrize(
    "line",
    [
        "joinery runn JOB.yaml",
        "joinery run JOB.yaml --onc",
        "joinery state savepoint",
        "cat a | joinery trace JOB.yaml",
        "joinery why JOB.yaml [--untill EPOCH]",
        "make demos",
        "make demo SORT=joins",
        "kubectl joinery stat JOB",
        "kubectl joinery state JOB savepoints --list",
        "kubectl apply -f deploy/nothing.yaml",
        "kubectl get sjs",
        "helm install joinery charts/joinery --set runtime.imag.tag=1",
        "helm install joinery charts/other",
        "docker build -f images/none.Dockerfile .",
        "pip install joinery",
        "pip install 'joinery-runtime[motor]'",
        "python -m joinery_devkit.none",
        "jonery run JOB.yaml",
        "flock -n /lock joinery run JOB.yaml --twice",
    ],
)
def test_mistakes_in_commands_are_found(line: str) -> None:
    with pytest.raises((AssertionError, FileNotFoundError, ModuleNotFoundError)):
        check_line(line)


def check_inline(code: str) -> None:
    name, _, rest = code.partition(" ")
    if "COMMAND" in rest:  # any
        return
    if name == "joinery" and rest:
        for words in simple_commands(code):
            check_joinery(words[1:], complete=False)
    elif code.startswith("kubectl joinery "):
        check_plugin(shlex.split(code)[2:], complete=False)
    elif name in {"make", "docker"} and rest:
        CHECKS[name](shlex.split(rest))


def test_commands_in_the_prose_exist() -> None:
    for code, site in {code: page for page in PAGES for code in inline_code(page)}.items():
        try:
            check_inline(code)
        except (AssertionError, FileNotFoundError) as error:
            error.add_note(f"{site}: `{code}`")
            raise


# --- with the real kubectl and helm -----------------------------------------------------------------------------------


@pytest.mark.services
def test_kubectl_and_helm_have_the_options() -> None:
    """`services` for the programs, which they bring along."""

    def output_of(name: str, *words: str) -> str:
        return subprocess.run([program(name), *words], capture_output=True, text=True, check=True).stdout

    everywhere = {"kubectl": output_of("kubectl", "options"), "helm": output_of("helm", "--help")}
    checked = 0
    for block in BLOCKS:
        for line in command_lines(block) if block.language in {"sh", "console"} else ():
            for name, *words in simple_commands(line):
                if name in everywhere and words[0] != "joinery":
                    verb = words.pop(0)
                    kind = words[: 2 if words[0] == "secret" else 1] if verb == "create" else []
                    help_text = output_of(name, verb, *kind, "--help") + everywhere[name]
                    own = takewhile(lambda word: word != "--", words)  # what follows runs in a container
                    for option in (word.partition("=")[0] for word in own if word.startswith("-")):
                        assert re.search(rf"(?<![\w-]){option}\b", help_text), f"{block.location}: {line}: {option}"
                        checked += 1
    assert checked > 10
