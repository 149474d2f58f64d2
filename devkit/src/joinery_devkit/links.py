"""`make links`: checks the pages' links to other sites.

A link fails the check if its site answers that the page does not exist. A site that does not answer is reported, but
does not fail the check: this machine may not be able to reach it.
"""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[3]
_LINK = re.compile(r"\]\((?P<inline>[a-z]+://(?:[^()\s]|\([^()\s]*\))*)\)|<(?P<plain>https?://[^>\s]+)>")
_HOST = re.compile(r"([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}")
_GONE = {404, 410}
_SECONDS = 10.0
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class PageLink:
    location: str
    """`docs/sql.md:12`."""
    url: str

    def malformed(self) -> str | None:
        """Return what is wrong with the link's text; None if nothing is."""
        parts = urlsplit(self.url)
        if parts.scheme != "https":
            return f"begins with {parts.scheme}://; write https://"
        if not _HOST.fullmatch(parts.netloc):
            return f"{parts.netloc!r} is no name of a site"
        return "ends in punctuation" if self.url[-1] in ".,;:" else None


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def links(page: Path) -> Iterator[PageLink]:
    """Yield the page's links to other sites, in order."""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for match in _LINK.finditer(line):
            location = f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page}:{number}"
            link = PageLink(location, match["inline"] or match["plain"])
            if urlsplit(link.url).hostname not in {"localhost", "127.0.0.1"}:
                yield link


def answer(url: str) -> int | str:
    """Return the status code of the site's answer, or why there is no answer."""
    request = urllib.request.Request(url, headers={"User-Agent": "joinery-links"})
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as got:
            return int(got.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return str(error)


def check(page_links: Iterable[PageLink]) -> tuple[list[str], list[str]]:
    """Return the broken links, and those that could not be checked, each with its place and the reason."""
    checked = list(page_links)
    urls = sorted({link.url for link in checked})
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        answers = dict(zip(urls, threads.map(answer, urls), strict=True))
    broken = [f"{link.location}: {link.url}: {answers[link.url]}" for link in checked if answers[link.url] in _GONE]
    untried = [f"{url}: {reason}" for url, reason in answers.items() if isinstance(reason, str)]
    return broken, untried


def main() -> int:
    page_links = [link for page in pages() for link in links(page)]
    broken, untried = check(page_links)
    print(*(f"not tried: {line}" for line in untried), *(f"leads nowhere: {line}" for line in broken), sep="\n")
    urls = {link.url for link in page_links}
    print(f"{len(urls)} links to other sites: {len(broken)} lead nowhere, {len(untried)} not tried")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
