"""Connected clients and their log cursors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from skyward_core.node.agent.connection import Connection
from skyward_core.node.agent.log_tailing import LogTail
from skyward_core.protocol.frame_codec import Header, encode_frame

GOODBYE_TIMEOUT = 10.0  # seconds in which clients must take the rest of the logs, and a goodbye
LIVENESS_POLL = 1.0  # seconds
# Looks at which a client that speaks every two seconds has not: its machine is dead, or it is stopped.
MAX_MISSED_CHECKS = 15


class Client:
    """What the agent keeps of one client connection.

    Attributes:
        watches: it is told what others' calls come to.
        renews: it uses the pool, and does not only look on.
    """

    __slots__ = ("follower", "renews", "tail", "watches")

    def __init__(self) -> None:
        self.watches = False
        self.renews = False
        self.tail: LogTail | None = None
        self.follower: asyncio.Task[None] | None = None


class ClientRegistry:
    """All of them; several may use a pool at once, or watch it."""

    def __init__(self) -> None:
        self._open: dict[Connection, Client] = {}
        self._sent: dict[str, int] = {}  # log file -> bytes that a client which has left was sent

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
        """All clients but that one."""
        return (client for each, client in self._open.items() if each is not connection)

    @property
    def connections(self) -> list[Connection]:
        """Their connections."""
        return list(self._open)

    @property
    def is_in_use(self) -> bool:
        """Whether one of them is there to use the pool."""
        return any(client.renews for client in self._open.values())

    # -- what they are told ------------------------------------------------------------------------------

    def send_to_all(self, header: Mapping[str, Any]) -> None:
        for connection in list(self._open):
            connection.send(header)

    def send_to_watchers(
        self, header: Mapping[str, Any], skip: Connection | None = None, *, soon: bool = False
    ) -> None:
        """Tell those that watch; with ``soon`` it may wait a moment for what follows."""
        watching = [each for each, client in self._open.items() if client.watches and each is not skip]
        data = encode_frame(header) if watching else b""
        for connection in watching:
            (connection.write_batched if soon else connection.write)(data)

    def flush_logs(self, ends: dict[str, int]) -> None:
        """Have each get the logs up to there ahead of what is sent next."""
        for client in self._open.values():
            if client.tail is not None:
                client.tail.flush(ends)

    def wake_tails(self) -> None:
        """Have each look at the logs at once."""
        for client in self._open.values():
            if client.tail is not None:
                client.tail.wake()

    def sent_log_sizes(self) -> dict[str, int]:
        """How many bytes of each log file some client has been sent."""
        for client in self._open.values():
            self._note_sent(client)
        return self._sent

    def _note_sent(self, client: Client) -> None:
        for name, at in client.tail.cursors.items() if client.tail is not None else ():
            self._sent[name] = max(at, self._sent.get(name, 0))

    # -- how they end ------------------------------------------------------------------------------------

    async def drop_unresponsive(self) -> None:
        """Let go of clients that do not speak any more, and of what they hold; one that only slept comes back.

        Their connections may stay open for hours (an SSH server's, when a machine dies without a word). Counted in
        looks, so that an agent which was stopped itself blames nobody for that.
        """
        while True:
            await asyncio.sleep(LIVENESS_POLL)
            for connection in list(self._open):
                connection.missed_checks += 1
                if connection.missed_checks > MAX_MISSED_CHECKS:
                    connection.abort()

    async def close_all(self, unfetched: dict[str, int]) -> None:
        """Send each the rest of the logs and a goodbye, and wait until they have taken it: what this process has not
        given to the kernel ends with it.

        Args:
            unfetched: runs with results that nobody has confirmed, and bytes of those.
        """
        parted = list(self._open.items())  # who comes now gets no goodbye, and is not waited for
        for connection, client in parted:
            sizes = await client.tail.finish() if client.tail else {}
            connection.send({"t": "bye", "logs": sizes, "unfetched": unfetched})
            connection.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + GOODBYE_TIMEOUT
        while any(connection.is_open for connection, _ in parted) and loop.time() < deadline:
            await asyncio.sleep(0.002)


MIN_PHASE_SECONDS = 0.1  # seconds after which a phase is worth telling; most are over sooner
PHASES = ("", "starting", "importing", "joining", "running", "paused")  # "": idle, as far as is known


class RankPhases:
    """The phase of each rank, and since when.

    Args:
        tell: gets a frame for those who watch.
    """

    def __init__(self, tell: Callable[[Header], None]) -> None:
        self._publish = tell
        self._current: dict[int, tuple[str, float]] = {}
        self._published: dict[int, tuple[str, float]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def set_phase(self, rank: int, phase: str, age: float = 0.0) -> None:
        """A rank is in that phase, since ``age`` seconds."""
        if phase not in PHASES:
            return
        self._current[rank] = phase, time.monotonic() - age
        if rank not in self._timers:
            self._timers[rank] = asyncio.get_running_loop().call_later(MIN_PHASE_SECONDS, self._publish_due, rank)

    def frames(self) -> list[Header]:
        """Return what a client that comes now has to know: the phases that the others were told. It may never hear
        the end of a phase that is too short to be told."""
        return [self._frame(rank) for rank, (phase, _) in self._published.items() if phase]

    def _publish_due(self, rank: int) -> None:
        del self._timers[rank]
        phase, told = self._current[rank][0], self._published.get(rank, ("", 0.0))[0]
        if phase == told or (phase == "running" and not told):
            return  # that a call runs is told with the call
        self._published[rank] = self._current[rank]
        self._publish(self._frame(rank))

    def _frame(self, rank: int) -> Header:
        phase, since = self._published[rank]
        return {"t": "phase", "rank": rank, "phase": phase, "age": round(time.monotonic() - since, 3)}
