"""`make lint`: checks which modules name a kind of join. Only its own modules may, and the few that list the kinds.

Everything else asks `StepOperator` (core), `StepDescription` (inspect) or `StepKind` (job). Otherwise a new kind would
need an edit in every module with a case per kind, and a forgotten one would fail in production.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from joinery_runtime.job.join import steps

RUNTIME = Path(__file__).parents[3] / "runtime" / "src" / "joinery_runtime"
KINDS = (Path("core", "kinds"), Path("inspect", "kinds"), Path("job", "kinds"))
BASES = frozenset({"StepOperator", "Join", "StepDescription", "JoinDescription", "StepKind"})
# The modules that list the kinds: the fields of a step, the resources, and what users import. SQL has its own syntax
# for each kind of join, and translates it to fields of the resource.
LISTS = (
    Path("__init__.py"),
    Path("core", "compile"),
    Path("job", "__init__.py"),
    Path("job", "join", "steps.py"),
    Path("job", "sql"),
    # These map one of the two resources to what describes it.
    Path("job", "load.py"),
    Path("job", "definition.py"),
    Path("job", "signature.py"),
    Path("job", "explain.py"),
    Path("job", "key_order.py"),
    Path("job", "crd"),
)
YAML_FIELDS = frozenset(steps.FIELDS)
"""Fields of a step in YAML that name its kind: code that reads one of them asks which kind the step is."""
FIELDS = frozenset(
    {name for name, field in steps.JoinStep.model_fields.items() if (field.alias or name) in YAML_FIELDS}
    | {"hopping", "tumbling"}
)
"""The same as attributes, with forms of a window."""
RESOURCES = frozenset({"StreamJoin", "SessionWindow"})
TOLD_APART = {
    Path("cli", "progress.py"): "names the rows that are emitted, and the sides of a join's steps",
    Path("inspect", "state_key.py"): "reads a key of a join's input and step, or a group",
    Path("inspect", "why.py"): "writes a key as state_key reads it",
    Path("job", "join", "differences.py"): "compares two signatures, which are plain data",
}
"""Modules that may ask which of the resources a job is, and for what."""
OTHERS = frozenset({"exp", "trigger"})
"""Names of SQL and of the trigger, whose fields of the same name do not belong to a step."""


def main() -> int:
    lines = list(problems(RUNTIME))
    print("\n".join(lines), file=sys.stderr)
    return 1 if lines else 0


def problems(root: Path) -> Iterator[str]:
    """Yield lines such as `core/x.py:12 names WindowJoin`."""
    names = kind_names(root)
    if len(names) < len(KINDS):
        yield f"{root} has no kinds: the check reads the wrong folder"
    for file in sorted(root.rglob("*.py")):
        where = file.relative_to(root)
        if not any(where.is_relative_to(exempt) for exempt in (*KINDS, *LISTS)):
            tree = ast.parse(file.read_text())
            violations = [
                *_find_names(tree, names),
                *([] if where in TOLD_APART else _told_apart(tree, names | RESOURCES)),
            ]
            yield from (f"{where}:{line} {violation}" for line, violation in violations)


def kind_names(root: Path) -> frozenset[str]:
    """Return the classes of both packages that are kinds: subclasses of a base, direct or indirect, including resources
    that are jobs of one kind."""
    classes = [
        node
        for package in KINDS
        for file in (root / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    kinds = set(BASES | {"Job"})
    while more := {cls.name for cls in classes if cls.name not in kinds and kinds & set(map(_last_name, cls.bases))}:
        kinds |= more
    return frozenset(kinds - BASES - {"Job"})


def _find_names(tree: ast.AST, names: frozenset[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("joinery_runtime"):
            yield from ((node.lineno, f"names {alias.name}") for alias in node.names if alias.name in names)
        elif isinstance(node, ast.Attribute) and _last_name(node.value) not in OTHERS and node.attr in names | FIELDS:
            yield node.lineno, f"names {node.attr}" if node.attr in names else f"asks a step for its {node.attr}"
        else:
            match node:
                case (
                    ast.Subscript(slice=ast.Constant(key))  # step["asOf"]
                    | ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(key), *_])  # step.get("asOf")
                ) if key in YAML_FIELDS:
                    yield node.lineno, f"asks a step for its {key}"


def _told_apart(tree: ast.AST, names: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield classes in `isinstance` and `case`, and their names as strings in comparisons."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name("isinstance"), args=[_, classes]):
                compared = {_last_name(operand) for operand in ast.walk(classes) if isinstance(operand, ast.expr)}
            case ast.MatchClass(cls=cls):
                compared = {_last_name(cls)}
            case ast.Compare(left=first, comparators=others):
                compared = {
                    operand.value
                    for side in (first, *others)
                    for operand in ast.walk(side)
                    if isinstance(operand, ast.Constant) and isinstance(operand.value, str)
                }
            case _:
                continue
        yield from ((node.lineno, f"tells {name} apart") for name in sorted(compared & names))


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


if __name__ == "__main__":
    sys.exit(main())
