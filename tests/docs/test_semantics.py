"""docs/semantics.md has an anchor for every rule that code, messages and traces name, and for no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from joinery_runtime.errors import JobError
from joinery_runtime.job import parse_job
from joinery_runtime.job.model.wording import linked

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "semantics.md").read_text()
ANCHORS = re.findall(r'^###? <a id="([a-z-]+\d*)"></a>(\w+)', PAGE, re.MULTILINE)
RULES = [title for anchor, title in ANCHORS if anchor == title.lower() and re.fullmatch(r"[A-Z]\d+", title)]
# A letter of a rule and a number, not part of a word, a path, a version or a time (T14:30).
CITED = re.compile(rf"(?<![\w#/-])([{''.join(sorted({rule[0] for rule in RULES}))}][1-9]\d?)(?![\w.-]|:\d)")
WITHOUT_TRACES = {"M1", "M2", "M3"}
RESOURCES = ("runtime", "src", "joinery_runtime", "job")


def texts() -> Iterator[tuple[Path, str]]:
    """All that cites rules in prose or code; of traces only their README, since their rows hold such values too."""
    for folder in ("runtime/src", "operator/src", "devkit/src", "tests", "docs", "crds"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".md"} or (folder == "crds" and path.suffix == ".yaml"):
                yield path, path.read_text()


def covered() -> set[str]:
    lines = [
        re.search(r"^covers: \[(.*)\]$", path.read_text(), re.MULTILINE)
        for path in (ROOT / "tests" / "traces").rglob("*.yaml")
    ]
    assert len(lines) > 400
    assert all(lines)
    return {rule for line in lines if line is not None for rule in line[1].split(", ")}


def test_every_rule_that_is_cited_has_its_anchor() -> None:
    assert len(RULES) == len(set(RULES)) > 40
    unknown = {(str(path.relative_to(ROOT)), rule) for path, text in texts() for rule in CITED.findall(text)}
    assert {citation for citation in unknown if citation[1] not in RULES} == set()


def test_the_index_lists_each_rule() -> None:
    rows = re.findall(r"^\| \[([A-Z])(\d+)(?: to \1|, \1)(\d+)\]\(#", PAGE, re.MULTILINE)
    assert [f"{letter}{n}" for letter, first, last in rows for n in range(int(first), int(last) + 1)] == RULES


def test_every_anchor_has_a_trace_and_every_trace_an_anchor() -> None:
    assert covered() == set(RULES) - WITHOUT_TRACES


def test_links_to_anchors_lead_somewhere() -> None:
    anchors = {anchor for anchor, _ in ANCHORS}
    named = {anchor for _, text in texts() for anchor in re.findall(r"(?<=semantics\.md#)[a-z-]+\d*", text)}
    assert named | set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= anchors
    assert len(named) > 5


def test_files_that_the_page_names_exist() -> None:
    targets = re.findall(r"\]\(([^)#]+)", PAGE)
    assert len(targets) > 40
    assert [target for target in targets if not (ROOT / "docs" / target).exists()] == []


def messages(code: str, *, unlinked: bool = False) -> list[str]:
    """Strings that cite a rule: no docstrings, nor what an assertion says to developers. `unlinked` are those outside
    of a call of `linked`."""
    tree = ast.parse(code)
    skipped = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    skipped = [node for node in skipped if isinstance(node, ast.Constant)]
    skipped += [text for node in ast.walk(tree) if isinstance(node, ast.Assert) for text in ast.walk(node)]
    if unlinked:
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        calls = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "linked"]
        skipped += [text for node in calls for text in ast.walk(node)]
    passed = set(map(id, skipped))
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in passed)
    return [text for node in strings if isinstance(text := node.value, str) and CITED.search(text)]


# --- messages ---------------------------------------------------------------------------------------------------------


def test_a_message_that_names_rules_says_where_they_stand() -> None:
    assert linked("x (rule J8); write y") == "x (rule J8); write y; see docs/semantics.md#j8"
    assert linked("rule V2, rule J1") == "rule V2, rule J1; see docs/semantics.md#v2 and docs/semantics.md#j1"
    assert linked("no rule") == "no rule"


def test_a_refused_job_shows_no_rule_without_its_place() -> None:
    job = (ROOT / "examples" / "orders-shipments-files.yaml").read_text()
    with pytest.raises(JobError) as refused:
        parse_job(re.sub(r"keys: \{.*\}", "keys: {}", job), "job.yaml")
    assert "(rule J9)" in str(refused.value)
    assert "; see docs/semantics.md#j9" in str(refused.value)


def test_messages_are_found_by_the_rules_that_they_cite() -> None:
    assert messages('def f():\n    """By T5."""\n    assert x, "by T5"\n    yield "kept (T5)"\n') == ["kept (T5)"]
    assert messages('yield linked("kept (rule T5)"), "gone (T5)"', unlinked=True) == ["gone (T5)"]


def test_a_message_cites_a_rule_in_the_words_that_make_its_link() -> None:
    products = [text for path, text in texts() if path.suffix == ".py" and "src" in path.parts]
    product_messages = {text for code in products for text in messages(code)}
    assert len(product_messages) > 20
    assert {
        text for text in product_messages if set(CITED.findall(text)) != set(re.findall(r"\brule (\w+)", text))
    } == set()


def test_only_messages_that_are_linked_name_rules() -> None:
    """`linked` sees what refuses a job and the CRDs' rules, all of which is in `job`; others call it where they are."""
    for path in (ROOT / "crds").glob("*.yaml"):
        lines = [line for line in path.read_text().splitlines() if re.search(r"\brules? [A-Z]\d", line)]
        assert lines or path.name in {"joinery.dev_savepoints.yaml", "joinery.dev_bluegreenjobs.yaml"}
        assert [line for line in lines if "see docs/semantics.md#" not in line] == []
    products = [(path, text) for path, text in texts() if path.suffix == ".py" and "src" in path.parts]
    named = {path for path, text in products if messages(text, unlinked=True)}
    assert named
    assert {path for path in named if path.relative_to(ROOT).parts[:4] != RESOURCES} == set()
