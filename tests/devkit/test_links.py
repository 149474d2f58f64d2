"""Links to other sites: what counts as one, as well-formed, as gone, and as not tried."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from joinery_devkit.links import PageLink, check, links, pages


def test_the_links_of_all_pages_are_well_formed() -> None:
    page_links = [link for page in pages() for link in links(page)]
    assert [f"{link.location}: {link.url} {why}" for link in page_links if (why := link.malformed())] == []
    assert len(page_links) > 20


def test_links_are_found_with_their_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](https://a.org/x_(y))\n<http://localhost:8998/>\n[c](ftp://a.org) <https://b.org/>\n"
    )
    assert [(link.location.rpartition(":")[2], link.url) for link in links(page)] == [
        ("1", "https://a.org/x_(y)"),
        ("3", "ftp://a.org"),
        ("3", "https://b.org/"),
    ]


@pytest.mark.parametrize(
    "url", ["http://a.org", "https://a_b.org/", "https://nowhere/x", "https://a.org/x.", "https:///x"]
)
def test_malformed_links_are_found(url: str) -> None:
    assert PageLink("page.md:1", url).malformed()


@pytest.fixture
def site() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error({"/gone": 404, "/busy": 503}.get(self.path, 200))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_only_what_a_site_says_is_gone_fails(site: str) -> None:
    closed = "http://127.0.0.1:1/x"
    dead_links, untried = check(
        PageLink(f"page.md:{n}", url) for n, url in enumerate([f"{site}/there", f"{site}/gone", f"{site}/busy", closed])
    )
    assert dead_links == [f"page.md:1: {site}/gone: 404"]
    (line,) = untried
    assert line.startswith(closed)
