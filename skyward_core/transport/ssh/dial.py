"""TCP connections to hosts, opened before what speaks SSH is imported: the hosts' servers get ready meanwhile."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

from .target import SSH_PORT, Target

CONNECT_TIMEOUT = 15.0


class Dials:
    """Connections to those of some hosts that nothing but TCP leads to.

    Args:
        targets: the hosts.
    """

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = [target for target in targets if _is_plain(target)]
        self._sockets: dict[Target, asyncio.Task[socket.socket]] = {}

    async def open(self) -> None:
        """Begin to connect."""
        for target in self._targets:
            self._sockets[target] = asyncio.create_task(_dial(target))

    async def take(self, target: Target) -> socket.socket | None:
        """The connection to a host, which is the caller's from now on; None if nobody opened one.

        Raises:
            OSError: the host was not reached.
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


def _is_plain(target: Target) -> bool:
    """Whether no configuration can have another address, port or way for the host."""
    return not (target.jump or target.via) and not (
        target.config and Path("~/.ssh/config").expanduser().exists()
    )


async def _dial(target: Target) -> socket.socket:
    loop = asyncio.get_running_loop()
    trouble: OSError | None = None
    async with asyncio.timeout(CONNECT_TIMEOUT):
        port = SSH_PORT if target.port is None else target.port
        # Names of plain letters need no encoding, whose tables take as long to load as a key exchange.
        host = target.host.encode() if target.host.isascii() else target.host
        places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
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
    raise trouble or OSError(f"{target.host} has no address")
