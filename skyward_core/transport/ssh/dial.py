"""TCP connections to hosts, opened before what speaks SSH is imported: the hosts' servers get ready meanwhile."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from .route import resolve
from .target import Target

CONNECT_TIMEOUT = 15.0


class Dials:
    """Connections to those of some hosts that nothing but TCP leads to.

    Args:
        targets: the hosts.
    """

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets
        self._sockets: dict[Target, asyncio.Task[socket.socket | None]] = {}

    async def open(self) -> None:
        """Begin to connect."""
        for target in self._targets:
            self._sockets[target] = asyncio.create_task(_dial(target))

    async def take(self, target: Target) -> socket.socket | None:
        """The connection to a host, which is the caller's from now on; None if nobody opened one.

        Raises:
            OSError: the host was not reached.
            UsageError: as of :func:`.route.resolve`.
        """
        if target not in self._sockets:
            return None
        found = await self._sockets[target]
        del self._sockets[target]
        return found

    async def close(self) -> None:
        """Close those that nobody has taken."""
        for task in self._sockets.values():
            task.cancel()
        for found in await asyncio.gather(*self._sockets.values(), return_exceptions=True):
            if isinstance(found, socket.socket):
                found.close()
        self._sockets.clear()


async def _dial(target: Target) -> socket.socket | None:
    """Connect to a host that nothing but TCP leads to, to no other address family, and from no other address."""
    route = await resolve(target)
    if route.jump or route.proxy_command or route.option("addressfamily") or route.option("bindaddress"):
        return None
    loop = asyncio.get_running_loop()
    trouble: OSError | None = None
    async with asyncio.timeout(CONNECT_TIMEOUT):
        # Names of plain letters need no encoding, whose tables take as long to load as a key exchange.
        host = route.host.encode() if route.host.isascii() else route.host
        places = await loop.getaddrinfo(host, route.port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in places:
            found = socket.socket(family, kind, protocol)
            try:
                found.setblocking(False)
                await loop.sock_connect(found, address)
            except OSError as error:
                found.close()
                trouble = error
            except BaseException:
                found.close()
                raise
            else:
                return found
    raise trouble or OSError(f"{route.host} has no address")
