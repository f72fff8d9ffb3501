"""Web pages of a head, found by a client that did not make the pool."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass
from typing import ClassVar

from skyward_core.client.session import Session
from skyward_core.plugins.plugin import Plugin

from . import Lab
from .pools import pool, ssh, until

PORT, SECRET = 6789, "known-to-who-made-it"


@dataclass(frozen=True)
class Pages(Plugin):
    """Has a page on the head's loopback."""

    name: ClassVar[str] = "pages"

    def dashboard_at(self, pool: str) -> tuple[int, str]:
        return PORT, f"{SECRET}/status"


SERVER = """
import http.server, sys

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())
    do_HEAD = do_GET

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Page).serve_forever()
"""


def test_pages_of_the_head_are_brought_here(lab: Lab) -> None:
    head = lab.hosts[0]
    (head.home / "serve.py").write_text(SERVER)
    with pool(lab, ssh(lab, [head]), plugins=[Pages()]) as compute:
        looking = Session()
        try:
            assert looking.dashboards(compute.name).result() == [], "nobody listens yet"
            ports = (PORT, 6006)
            serve = "python3 serve.py {} >/dev/null 2>&1 & echo $!"
            running = [int(head.run(serve.format(port))) for port in ports]
            until(lambda: len(looking.dashboards(compute.name).result()) == 2, "both")
            found = {each.name: each.address for each in looking.dashboards(compute.name).result()}
            assert found.keys() == {"pages", "tensorboard"}
            assert found["pages"].startswith("http://127.0.0.1:") and f":{PORT}/" not in found["pages"]
            for name, path in (("pages", f"/{SECRET}/status"), ("tensorboard", "/")):
                with urllib.request.urlopen(found[name], timeout=10) as page:
                    assert page.read().decode() == path
            for pid in running:
                head.run(f"kill {pid}")
            until(lambda: looking.dashboards(compute.name).result() == [], "they are gone")
        finally:
            looking.detach()
