"""One open connection of the agent: frames in, frames out, and whether the other side keeps up."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

from skyward_core.protocol.frame_codec import (
    MAX_SHORT_TEXT,
    AnyHeader,
    Decoder,
    Header,
    WireError,
    encode_frame,
    encode_frame_text,
)

BUFFER_BYTES = 1 << 18
BATCH_DELAY = 0.01  # seconds that a frame may wait for others: a write of its own costs more than a small one
MAX_UNSENT_BYTES = 8 << 20  # bytes unsent to a peer above which it does not read any more: a stopped process, say

OnFrame = Callable[["Connection", AnyHeader, bytes], None]
OnLost = Callable[["Connection"], None]
ValidateHeader = Callable[[Header, int, int], None]


class Connection(asyncio.BufferedProtocol):
    """Frames over a byte stream. ``send`` never blocks; ``drain`` waits while the peer is slow.

    Args:
        admit: what frames must be like; see ``frame_codec.Decoder``. ``on_frame`` may raise ``WireError`` as
            well: whoever sent the frame is told, and not heard any more.
        of_strangers: whether anybody may be on the other side: then little is taken in.
    """

    def __init__(
        self,
        on_frame: OnFrame,
        on_lost: OnLost,
        admit: ValidateHeader | None = None,
        *,
        of_strangers: bool = False,
    ) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._decoder = Decoder(admit, MAX_SHORT_TEXT) if of_strangers else Decoder(admit)
        # One buffer for all reads: a fresh one of asyncio's size for each costs more than a small frame.
        self._buffer = memoryview(bytearray(MAX_SHORT_TEXT if of_strangers else BUFFER_BYTES))
        self._transport: asyncio.Transport | None = None
        self._writable: asyncio.Event = asyncio.Event()
        self._writable.set()
        self._batch: list[bytes] = []  # frames that are sent with the next one, or soon
        self.is_write_paused = False  # the peer is behind with reading
        self.is_open = False
        self.received_frames = 0  # frames that have come
        self.missed_checks = 0  # looks of the agent since a byte came
        self.peer_name = ""  # what the other side calls itself

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            transport.set_write_buffer_limits(high=1 << 20)
        self.is_open = True

    def peer_pid(self, claimed: int) -> int:
        """The process that connected through a Unix socket, by the kernel's word; ``claimed`` where it has none, and
        0, which is no process's, where the process is another user's."""
        kept = self._transport.get_extra_info("socket") if self._transport is not None else None
        if kept is None or not hasattr(socket, "SO_PEERCRED"):
            return claimed
        pid, uid, _ = struct.unpack("3i", kept.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid if uid == os.getuid() and pid == claimed else 0

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self.resume_writing()
        self._on_lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.missed_checks = 0
        try:
            for header, body in self._decoder.feed(self._buffer[:nbytes]):
                self.received_frames += 1
                self._on_frame(self, header, body)
        except WireError as error:
            self.send({"t": "error", "message": str(error)})
            self.close()

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self._writable.set()

    def send(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        self.write(encode_frame(header, body))

    def send_acknowledging(self, text: str, body: bytes = b"") -> None:
        """Send, and tell how much has been heard, so that the other side may forget it; see
        ``worker.agent_channel``.

        Args:
            text: the encoded header.
        """
        self.write(encode_frame_text(f'{text[:-1]},"seen":{self.received_frames}}}', body))

    def write_batched(self, data: bytes) -> None:
        """Send a frame that is made already with those that follow it within :data:`BATCH_DELAY`."""
        if not self._batch:
            asyncio.get_running_loop().call_later(BATCH_DELAY, self.flush)
        self._batch.append(data)

    def flush(self) -> None:
        """Send what waits."""
        if self._batch:
            self.write(b"")

    def write(self, data: bytes) -> None:
        """Send a frame that is made already."""
        if self._batch:
            data = b"".join([*self._batch, data])
            self._batch.clear()
        if self.is_open and self._transport is not None:
            self._transport.write(data)
            # It may come back, and asks for what it misses then; what waits here is this node's memory.
            if self.is_write_paused and self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                self._transport.abort()

    async def drain(self) -> None:
        self.flush()
        await self._writable.wait()

    def close(self) -> None:
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End it at once: the other side takes nothing any more."""
        if self._transport is not None:
            self._transport.abort()
