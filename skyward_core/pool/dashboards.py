"""Port forwarding for web pages (dashboards) that programs serve on the head node's loopback interface."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from skyward_core.model.errors import PoolError, convert_errors
from skyward_core.pool.agent_link import Link
from skyward_core.pool.pool_context import PoolContext
from skyward_core.util.light_dataclass import Value, value

# Dashboard programs that users themselves may start on the head node: name, default port, path.
WELL_KNOWN = (("tensorboard", 6006, ""), ("jupyter", 8888, ""))
HTTP_TIMEOUT = 3.0  # seconds to wait for the HTTP response of a dashboard


@value
class Dashboard(Value):
    """Dashboard (web page) on the head node that answers HTTP requests now.

    Attributes:
        name: Name of the plugin or program.
        address: Local URL, valid while this process is connected to the pool.
    """

    name: str
    address: str


class Dashboards:
    """Forwarded ports of one pool's head node, kept while this process is connected."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._forwards: dict[int, tuple[str, int]] = {}  # port on the head node -> forwarded address on this machine

    async def find_available(self, known: Iterable[tuple[str, int, str]]) -> list[Dashboard]:
        """Return the pages that answer now.

        Args:
            known: Pages of plugins: name, port on the head's loopback interface, path.

        Raises:
            PoolError: If the head cannot be reached.
        """
        head = self._context.links[0]
        if not head.up:
            raise PoolError(f"Cannot list the dashboards: node {head.node}, which serves them, is not connected.")
        found = []
        for name, port, path in (*known, *WELL_KNOWN):
            if await self._is_available(head, port):
                host, here = self._forwards[port]
                found.append(Dashboard(name, f"http://{host}:{here}/{path}"))
        return found

    async def _is_available(self, head: Link, port: int) -> bool:
        if port in self._forwards and (answers := await _speaks_http(*self._forwards[port])) is not None:
            return answers
        # A forward may have died with its connection. Create a second forward only then, because forwards are never
        # closed.
        with convert_errors(f"Cannot reach the dashboards of node {head.node}"):
            self._forwards[port] = await head.transport.forward_port("127.0.0.1", port)
        return bool(await _speaks_http(*self._forwards[port]))


async def _speaks_http(host: str, port: int) -> bool | None:
    """Check whether a server speaks HTTP at an address. None: no connection is possible."""
    try:
        async with asyncio.timeout(HTTP_TIMEOUT):
            reader, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return None
    try:
        async with asyncio.timeout(HTTP_TIMEOUT):
            writer.write(b"HEAD / HTTP/1.0\r\n\r\n")
            return (await reader.read(5)).startswith(b"HTTP")
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()
