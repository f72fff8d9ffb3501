"""Framework guides (excerpts of examples), and dashboard tunnels."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skyward_core.pool.dashboards import WELL_KNOWN, Dashboards

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "train"
EXAMPLES = ROOT / "skyward_tui" / "examples"
EXAMPLE_OF = {
    "huggingface.md": "finetune.py",
    "jax.md": "jax_mesh.py",
    "keras.md": "keras_fit.py",
    "torch.md": "ddp.py",
}

pages = pytest.mark.parametrize("page", EXAMPLE_OF)


def text_of(page: str) -> str:
    return (GUIDES / page).read_text(encoding="utf-8")


def excerpts(text: str) -> list[tuple[str, list[str]]]:
    """Return the name and the lines of every excerpt that names an example."""
    return [(name, body.splitlines()) for name, body in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.S)]


def stray_line(lines: list[str], source: list[str]) -> str | None:
    """Return the first line of an excerpt that does not follow in the source. A line ``...`` stands for omitted
    lines.
    """
    at, gap = 0, True
    for line in lines:
        if line == "...":
            gap = True
            continue
        if gap and line in source[at:]:
            at = source.index(line, at)
        if at >= len(source) or source[at] != line:
            return line
        at, gap = at + 1, False
    return None


@pages
def test_guide_excerpts_are_lines_of_the_example(page: str) -> None:
    found = excerpts(text_of(page))
    assert len(found) >= 3
    for name, lines in found:
        assert name == EXAMPLE_OF[page]
        source = (EXAMPLES / name).read_text(encoding="utf-8").splitlines()
        assert (stray := stray_line(lines, source)) is None, f"{name} has no such line there: {stray}"


# The way to a page of a pool's head is made once, however often is asked for it.


class Context:
    """Context of a pool whose head is reached by local listeners, as over SSH."""

    def __init__(self) -> None:
        self.servers: list[asyncio.Server] = []
        self.answer = b""
        self.links = [SimpleNamespace(up=True, node=0, transport=self)]

    async def forward_port(self, address: str, port: int) -> tuple[str, int]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(self.answer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.servers.append(server)
        host, here = server.sockets[0].getsockname()[:2]
        return host, here


async def test_dashboard_tunnel_is_kept_and_reopened_after_its_connection_ends() -> None:
    context: Any = Context()
    pages = Dashboards(context)
    for _ in range(3):
        assert await pages.find_available(()) == []
    assert len(context.servers) == len(WELL_KNOWN)
    context.answer = b"HTTP/1.0 200 OK\r\n\r\n"
    first = {each.name: each.address for each in await pages.find_available(())}
    assert first.keys() == {name for name, _, _ in WELL_KNOWN} and len(context.servers) == len(WELL_KNOWN)
    for server in context.servers:  # as the connection ends that they are of
        server.close()
        await server.wait_closed()
    later = {each.name: each.address for each in await pages.find_available(())}
    assert later.keys() == first.keys() and len(context.servers) == 2 * len(WELL_KNOWN)
    for server in context.servers:
        server.close()
