"""Web pages that the head of a pool has on its loopback, brought to this machine's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from ..model.errors import PoolError
from ..model.value import Value, value
from .context import PoolContext

USUAL = (("tensorboard", 6006, ""), ("jupyter", 8888, ""))
"""What people start on a head themselves, at the ports that these take."""
PATIENCE = 3.0  # seconds for a page to say something

_ways: WeakKeyDictionary[PoolContext, dict[int, tuple[str, int]]] = (
    WeakKeyDictionary()
)  # those that were made


@value
class Dashboard(Value):
    """One that answers.

    Attributes:
        name: the plugin's, or the program's.
        address: here, for as long as this process is connected to the pool.
    """

    name: str
    address: str


async def dashboards(context: PoolContext, known: Iterable[tuple[str, int, str]]) -> list[Dashboard]:
    """Those that answer.

    Args:
        known: of plugins: name, port on the head's loopback, and path there.

    Raises:
        PoolError: the head cannot be reached.
    """
    head = context.links[0]
    if not head.up:
        raise PoolError(f"there is no connection to node {head.node}, on which its pages would be")
    ways = _ways.setdefault(context, {})
    found = []
    for name, port, path in (*known, *USUAL):
        answers = await _answers(*ways[port]) if port in ways else None
        if (
            answers is None
        ):  # the connection that it was of is gone, perhaps; else there would be one more each time
            try:
                ways[port] = await head.transport.way_to("127.0.0.1", port)
            except OSError as error:
                raise PoolError(f"there is no way to node {head.node}: {error}") from error
            answers = await _answers(*ways[port])
        if not answers:
            continue
        host, here = ways[port]
        found.append(Dashboard(name, f"http://{host}:{here}/{path}"))
    return found


async def _answers(host: str, port: int) -> bool | None:
    """Whether somebody speaks HTTP there; None where nothing can be connected to."""
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return None
    try:
        async with asyncio.timeout(PATIENCE):
            writer.write(b"HEAD / HTTP/1.0\r\n\r\n")
            return (await reader.read(5)).startswith(b"HTTP")
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()
