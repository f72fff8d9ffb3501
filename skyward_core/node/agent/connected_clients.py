"""Registry of the clients that are connected to the agent, and of the log bytes that each of them received."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from skyward_core.node.agent.frame_connection import Connection
from skyward_core.node.agent.log_tailing_and_size_limits import LogTail
from skyward_core.protocol.frame_codec import encode_frame

GOODBYE_TIMEOUT = 10.0  # seconds for clients to receive the remaining logs and the final frame when the agent ends
LIVENESS_POLL = 2.0  # seconds between checks whether each client is alive
# Consecutive liveness checks without a byte from a client before the agent disconnects it. Clients send at least one
# frame every two seconds, unless their machine is dead or suspended.
MAX_MISSED_CHECKS = 4


class Client:
    """State of one client connection.

    Attributes:
        watches: Whether the client receives the outcomes of other clients' calls.
        renews: Whether the client uses the pool (and renews the lease) instead of only observing.
    """

    __slots__ = ("follower", "renews", "tail", "watches")

    def __init__(self) -> None:
        self.watches = False
        self.renews = False
        self.tail: LogTail | None = None
        self.follower: asyncio.Task[None] | None = None


class ClientRegistry:
    """Connected clients of one agent. Several clients can use or watch a pool at the same time."""

    def __init__(self) -> None:
        self._open: dict[Connection, Client] = {}
        self._sent: dict[str, int] = {}  # log file -> number of bytes that disconnected clients received

    def __len__(self) -> int:
        return len(self._open)

    def __getitem__(self, connection: Connection) -> Client:
        return self._open[connection]

    def add(self, connection: Connection) -> None:
        self._open[connection] = Client()

    def remove(self, connection: Connection) -> None:
        client = self._open.pop(connection, None)
        if client is not None:
            if client.follower is not None:
                client.follower.cancel()
            self._note_sent(client)

    def others(self, connection: Connection) -> Iterator[Client]:
        """Return all clients except one."""
        return (client for each, client in self._open.items() if each is not connection)

    @property
    def is_in_use(self) -> bool:
        """Whether a connected client uses the pool."""
        return any(client.renews for client in self._open.values())

    # -- broadcasting ------------------------------------------------------------------------------------

    def send_to_all(self, header: Mapping[str, Any]) -> None:
        for connection in list(self._open):
            connection.send(header)

    def send_to_watchers(
        self, header: Mapping[str, Any], skip: Connection | None = None, *, soon: bool = False
    ) -> None:
        """Send a frame to all clients that watch the pool. With ``soon``, it may be batched with later frames."""
        watching = [each for each, client in self._open.items() if client.watches and each is not skip]
        data = encode_frame(header) if watching else b""
        for connection in watching:
            (connection.write_batched if soon else connection.write)(data)

    def flush_logs(self, ends: dict[str, int]) -> None:
        """Send the logs up to the given sizes to each client, ahead of later frames."""
        for client in self._open.values():
            if client.tail is not None:
                client.tail.flush(ends)

    def wake_tails(self) -> None:
        """Make each client's log tail read the log files immediately."""
        for client in self._open.values():
            if client.tail is not None:
                client.tail.wake()

    def sent_log_sizes(self) -> dict[str, int]:
        """Return for each log file the number of bytes that at least one client has received."""
        for client in self._open.values():
            self._note_sent(client)
        return self._sent

    def _note_sent(self, client: Client) -> None:
        for name, at in client.tail.cursors.items() if client.tail is not None else ():
            self._sent[name] = max(at, self._sent.get(name, 0))

    # -- end of connections ------------------------------------------------------------------------------

    async def drop_unresponsive(self) -> None:
        """Disconnect clients that have stopped sending. If a client was only suspended, it reconnects.

        An SSH server does not notice that a client's machine died, and would hold the connection open for hours.
        Silence is counted in checks, not in seconds, because the agent itself may have been suspended.
        """
        while True:
            await asyncio.sleep(LIVENESS_POLL)
            for connection in list(self._open):
                connection.missed_checks += 1
                if connection.missed_checks > MAX_MISSED_CHECKS:
                    connection.abort()

    async def close_all(self, unfetched: dict[str, int]) -> None:
        """Send the remaining logs and a final frame to each client, and wait until all are delivered.

        Bytes that are still in this process when it exits are lost.

        Args:
            unfetched: Bytes of unconfirmed results, by run.
        """
        closing = list(self._open.items())  # A copy, so that clients which connect during the shutdown are ignored.
        for connection, client in closing:
            sizes = await client.tail.finish() if client.tail else {}
            connection.send({"t": "bye", "logs": sizes, "unfetched": unfetched})
            connection.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + GOODBYE_TIMEOUT
        while any(connection.is_open for connection, _ in closing) and loop.time() < deadline:
            await asyncio.sleep(0.002)
