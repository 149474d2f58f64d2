"""A MkDocs hook that makes links from the documentation out of docs/, to examples, traces and code, work on the site.

On GitHub such links are relative paths. A linked file becomes a file of the site, below `files/`. A linked folder
becomes a page that lists the files in it that git knows.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[3]
_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")


def _path_outside_docs(page: str, link: str) -> str | None:
    """Return the path from the repository's root, if the link in this page of docs/ leads out of docs/, or to a
    folder."""
    if "://" in link or link.startswith("mailto:"):
        return None
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith("docs/") and not (ROOT / path).is_dir() else path


def _site_path(path: str) -> str:
    """Return the path on the site. Markdown becomes plain text there, whose links are not followed."""
    source = ROOT / path
    return f"files/{path}/index.md" if source.is_dir() else f"files/{path}{'.txt' if source.suffix == '.md' else ''}"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Append the decisions to the navigation: their index, then each by number."""
    assert config.nav is not None
    folder = Path(config.docs_dir, "decisions")
    pages = [folder / "README.md", *sorted(folder.glob("0*"))]
    decisions = [page.relative_to(config.docs_dir).as_posix() for page in pages]
    config.nav.append({"Decisions": decisions})
    return config


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the files and folders outside docs/ that pages link to."""
    outside = {
        path
        for page in files.documentation_pages()
        for link, _ in _LINK.findall(page.content_string)
        if (path := _path_outside_docs(page.src_uri, link)) is not None
    }
    for path in sorted(outside):
        if (ROOT / path).is_dir():
            command = ["git", "ls-files", "--", path]
            names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
            content = f"# {path}\n\n" + "".join(f"- {name}\n" for name in names)
        else:
            content = (ROOT / path).read_text()
        files.append(File.generated(config, _site_path(path), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite these links to the paths on the site."""
    page_path = page.file.src_uri

    def led(link: re.Match[str]) -> str:
        path = _path_outside_docs(page_path, link[1])
        if path is None:
            return link[0]
        return f"]({posixpath.relpath(_site_path(path), posixpath.dirname(page_path) or '.')})"

    return markdown if page_path.startswith("files/") else _LINK.sub(led, markdown)
