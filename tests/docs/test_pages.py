"""What the pages name is there: links, headings and files. What their code names: test_blocks.py."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / f"{name}/src/joinery_{name}" for name in ("runtime", "operator", "devkit")]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        ROOT / "tests/traces/README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "devkit").rglob("*.md"),
    ]
)


@cache
def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings, and those that are written out."""
    text = page.read_text()
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"<[^>]*>|[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)) for title in titles]
    return {title.strip().lower().replace(" ", "-") for title in plain} | set(re.findall(r'<a id="([^"]+)"', text))


def leads_somewhere(page: Path, link: str) -> bool:
    target, _, anchor = link.partition("#")
    file = (page.parent / target).resolve() if target else page
    return file.exists() and (not anchor or anchor in anchors(file))


def test_links_lead_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]
    assert len(links) > 500
    assert not [(page, link) for page, link in links if "://" not in link and not leads_somewhere(page, link)]


def test_files_that_are_named_exist() -> None:
    named_file = r"`([\w.-]+(?:/[\w.-]+)*/[\w.-]*\.(?:py|md|yaml|jsonl|sh|Dockerfile))`"
    named = {(page, name) for page in PAGES for name in re.findall(named_file, page.read_text())}
    packages = [*PACKAGES, *(package.parent for package in PACKAGES)]
    missing = [
        (page, name)
        for page, name in named
        if not any((folder / name).exists() for folder in (ROOT, page.parent, *packages))
    ]
    assert not missing


def test_some_files_are_named() -> None:
    assert sum("tests/" in page.read_text() for page in PAGES) > 5


def test_the_index_of_decisions_lists_each_once_by_its_title() -> None:
    folder = ROOT / "docs/decisions"
    listed = re.findall(r"^- \[(.*?)\]\((0.*?)\)", (folder / "README.md").read_text(), re.MULTILINE)
    titles = [(page.read_text().partition("\n")[0].removeprefix("# "), page.name) for page in folder.glob("0*.md")]
    assert sorted(listed) == sorted(titles)


def test_each_decision_has_a_number_of_its_own() -> None:
    counts = Counter(path.name[:4] for path in (ROOT / "docs/decisions").glob("0*.md"))
    assert [number for number, count in counts.items() if count > 1] == []


def test_a_link_to_a_decision_follows_its_reason() -> None:
    """A page says in a clause why, and the record has the rest. Pages of measurements and comparisons link to figures,
    the semantics page and that of sessions to what rules leave open."""
    exempt = {"performance", "operators", "semantics", "sessions", "index"}
    pages = [ROOT / "README.md", *(page for page in (ROOT / "docs").glob("*.md") if page.stem not in exempt)]
    bare = []
    for page in pages:
        text = page.read_text()
        for link in re.finditer(r"\]\((?:docs/)?decisions/0", text):
            before = re.split(r"\n\n|\n- |\.\s", text[: link.start()])[-2:]
            if "because" not in " ".join(before):
                bare.append(f"{page.name}: {text[link.start() - 60 : link.end() + 40]!r}")
    assert bare == []
