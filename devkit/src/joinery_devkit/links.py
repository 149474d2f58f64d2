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
    place: str
    """`docs/sql.md:12`."""
    url: str

    @property
    def local(self) -> bool:
        """Whether the link points to the reader's own machine."""
        return urlsplit(self.url).hostname in {"localhost", "127.0.0.1"}

    def malformed(self) -> str | None:
        """What is wrong with the link's text; None if nothing is."""
        found = urlsplit(self.url)
        if found.scheme != "https":
            return f"begins with {found.scheme}://; write https://"
        if not _HOST.fullmatch(found.netloc):
            return f"{found.netloc!r} is no name of a site"
        return "ends in punctuation" if self.url[-1] in ".,;:" else None


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def links(page: Path) -> Iterator[PageLink]:
    """Yields the page's links to other sites, in order."""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for found in _LINK.finditer(line):
            place = f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page}:{number}"
            link = PageLink(place, found["inline"] or found["plain"])
            if not link.local:
                yield link


def answer(url: str) -> int | str:
    """The status code of the site's answer, or why there is no answer."""
    asked = urllib.request.Request(url, headers={"User-Agent": "joinery-links"})
    try:
        with urllib.request.urlopen(asked, timeout=_SECONDS) as got:
            return int(got.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return str(error)


def check(found: Iterable[PageLink]) -> tuple[list[str], list[str]]:
    """The broken links, and those that could not be checked, each with its place and the reason."""
    each = list(found)
    urls = sorted({link.url for link in each})
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        answers = dict(zip(urls, threads.map(answer, urls), strict=True))
    gone = [f"{link.place}: {link.url}: {answers[link.url]}" for link in each if answers[link.url] in _GONE]
    untried = [f"{url}: {why}" for url, why in answers.items() if isinstance(why, str)]
    return gone, untried


def main() -> int:
    found = [link for page in pages() for link in links(page)]
    gone, untried = check(found)
    print(*(f"not tried: {line}" for line in untried), *(f"leads nowhere: {line}" for line in gone), sep="\n")
    print(
        f"{len({link.url for link in found})} links to other sites: {len(gone)} lead nowhere, {len(untried)} not tried"
    )
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main())
