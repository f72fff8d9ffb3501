"""Web pages that the head of a pool has on its loopback, brought to this machine's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from skyward_core.model.errors import PoolError
from skyward_core.pool.agent_link import Link
from skyward_core.pool.pool_context import PoolContext
from skyward_core.util.light_dataclass import Value, value

WELL_KNOWN = (("tensorboard", 6006, ""), ("jupyter", 8888, ""))
"""What people start on a head themselves, at the ports that these take."""
HTTP_TIMEOUT = 3.0  # seconds for a page to say something


@value
class Dashboard(Value):
    """One that answers.

    Attributes:
        name: the plugin's, or the program's.
        address: here, for as long as this process is connected to the pool.
    """

    name: str
    address: str


class Dashboards:
    """Of one pool, as long as this process is connected to it."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._forwards: dict[int, tuple[str, int]] = {}  # that were made, by the head's port

    async def find_available(self, known: Iterable[tuple[str, int, str]]) -> list[Dashboard]:
        """Those that answer now.

        Args:
            known: of plugins: name, port on the head's loopback, and path there.

        Raises:
            PoolError: the head cannot be reached.
        """
        head = self._context.links[0]
        if not head.up:
            raise PoolError(f"there is no connection to node {head.node}, on which its pages would be")
        found = []
        for name, port, path in (*known, *WELL_KNOWN):
            if await self._is_available(head, port):
                host, here = self._forwards[port]
                found.append(Dashboard(name, f"http://{host}:{here}/{path}"))
        return found

    async def _is_available(self, head: Link, port: int) -> bool:
        if port in self._forwards and (answers := await _speaks_http(*self._forwards[port])) is not None:
            return answers
        # The connection that a way was of is gone, perhaps. Where it is not there is no other: each would stay.
        try:
            self._forwards[port] = await head.transport.forward_port("127.0.0.1", port)
        except OSError as error:
            raise PoolError(f"there is no way to node {head.node}: {error}") from error
        return bool(await _speaks_http(*self._forwards[port]))


async def _speaks_http(host: str, port: int) -> bool | None:
    """Whether somebody speaks HTTP there; None where nothing can be connected to."""
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
