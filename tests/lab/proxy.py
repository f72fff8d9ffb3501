"""TCP proxy that delays and jitters, for kernels without netem."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import Future
from types import TracebackType

_CHUNK = 64 * 1024
_IN_FLIGHT = 256  # chunks held back per direction; more waits at the sender, as on a long wire


class DelayProxy:
    """Slower copy of a service, at ``proxy.port`` inside ``with DelayProxy(host.address, 22, delay=0.05) as proxy``.

    Args:
        address, port: Destination of the connections.
        delay: Seconds that every chunk takes in each direction.
        jitter: Maximum of additional random seconds. The order of bytes is kept.
        seed: Seed of the jitter.

    Attributes:
        address, port: Loopback address and free port of the proxy.
    """

    address = "127.0.0.1"
    port = 0

    def __init__(self, address: str, port: int, delay: float, jitter: float = 0.0, seed: int = 0) -> None:
        self.delay = delay
        self.jitter = jitter
        self._target = (address, port)
        self._random = random.Random(seed)
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="delay-proxy", daemon=True)

    def __enter__(self) -> DelayProxy:
        self._thread.start()
        self._do(self._start()).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._stop()).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _do(self, work: Coroutine[None, None, None]) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.address, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        await self._cut()

    async def _cut(self) -> None:
        ending = list(self._connections)
        for connection in ending:
            connection.cancel()
        await asyncio.gather(*ending)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, ends = asyncio.current_task(), [writer]
        if task is not None:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._target)
            ends.append(there_writer)
            await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))
        except (OSError, asyncio.CancelledError):
            for end in ends:  # one end is gone, or both are to go: neither may take it for an orderly end
                linger = struct.pack("ii", 1, 0)
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        finally:
            for end in ends:
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire: deque[tuple[float, bytes]] = deque()
        room, news = asyncio.Semaphore(_IN_FLIGHT), asyncio.Semaphore(0)
        receiving = asyncio.create_task(self._receive(reader, wire, room, news))
        try:
            while True:
                await news.acquire()
                due, data = wire.popleft()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                if not data:
                    writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()
                room.release()
        finally:
            receiving.cancel()

    async def _receive(
        self,
        reader: asyncio.StreamReader,
        wire: deque[tuple[float, bytes]],
        room: asyncio.Semaphore,
        news: asyncio.Semaphore,
    ) -> None:
        due, data = 0.0, b" "
        while data:
            await room.acquire()
            try:
                data = await reader.read(_CHUNK)
            except OSError:
                data = b""
            # Never before what came first: bytes keep their order whatever the jitter.
            due = max(due, self._loop.time() + self.delay + self.jitter * self._random.random())
            wire.append((due, data))
            news.release()
