"""Connection of the agent to a client or worker: sends and receives frames, with flow control."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

from skyward_core.protocol import frame_codec

BUFFER_BYTES = 1 << 18
ACK_AGE_OFFSET = 56  # position of tcpi_last_ack_recv in Linux's struct tcp_info
BATCH_DELAY = 0.01  # seconds for which a frame waits for further ones; one large write is cheaper than many small ones
# maximum bytes of unsent frames; a peer that reads so slowly has probably stopped, and is disconnected
MAX_UNSENT_BYTES = 8 << 20

OnFrame = Callable[["Connection", frame_codec.AnyHeader, bytes], None]
OnLost = Callable[["Connection"], None]
ValidateHeader = Callable[[frame_codec.Header, int, int], None]


class Connection(asyncio.BufferedProtocol):
    """Connection that transfers frames over a byte stream. ``send`` never blocks; ``drain`` waits for a slow peer.

    Args:
        on_frame: Called for each frame. May raise ``WireError``, which is sent to the peer before the connection
            closes.
        on_lost: Called once the connection has ended.
        admit: Validates each frame; see ``frame_codec.Decoder``.
        of_strangers: Whether the peer is unauthenticated. An unauthenticated peer may send only short frames.
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
        self._decoder = (
            frame_codec.Decoder(admit, frame_codec.MAX_SHORT_TEXT) if of_strangers else frame_codec.Decoder(admit)
        )
        # Use one buffer for all reads: allocating a buffer per read costs more than decoding a small frame.
        self._buffer = memoryview(bytearray(frame_codec.MAX_SHORT_TEXT if of_strangers else BUFFER_BYTES))
        self._transport: asyncio.Transport | None = None
        self._writable: asyncio.Event = asyncio.Event()
        self._writable.set()
        self._batch: list[bytes] = []  # encoded frames that are sent together with the next frame, or after BATCH_DELAY
        self.is_write_paused = False  # whether writing is paused, because the peer reads too slowly
        self.is_open = False
        # Whether the peer closed the connection, for example by exiting. A cut or reset connection has no end of file.
        self.has_eof = False
        self.received_frames = 0
        self.missed_checks = 0  # number of liveness checks since the last received byte
        self.peer_name = ""  # name by which the peer identified itself in its hello frame

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            transport.set_write_buffer_limits(high=1 << 20)
        self.is_open = True

    def peer_pid(self, claimed: int) -> int:
        """Return the pid of the process that connected through a Unix socket, as verified by the kernel.

        Returns:
            ``claimed`` if the kernel confirms this pid or does not report one; 0 if the pid or the user differs.
        """
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is None or not hasattr(socket, "SO_PEERCRED"):
            return claimed
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid if uid == os.getuid() and pid == claimed else 0

    def acknowledgement_age(self) -> float | None:
        """Return the seconds since the peer's kernel last acknowledged data; None without an open TCP connection."""
        sock = self._transport.get_extra_info("socket") if self.is_open and self._transport is not None else None
        if sock is None:
            return None
        at = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, ACK_AGE_OFFSET + 4)
        return float(struct.unpack_from("=I", at, ACK_AGE_OFFSET)[0]) / 1000

    def eof_received(self) -> None:
        self.has_eof = True

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
        except frame_codec.WireError as error:
            self.send({"t": "error", "message": str(error)})
            self.close()

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self._writable.set()

    def send(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        self.write(frame_codec.encode_frame(header, body))

    def send_acknowledging(self, text: str, body: bytes = b"") -> None:
        """Send a frame that also acknowledges the received frames; see ``worker.agent_channel``.

        Args:
            text: The encoded header.
            body: The body.
        """
        self.write(frame_codec.encode_frame_text(f'{text[:-1]},"seen":{self.received_frames}}}', body))

    def write_batched(self, data: bytes) -> None:
        """Send an encoded frame together with the frames that follow within :data:`BATCH_DELAY`."""
        if not self._batch:
            asyncio.get_running_loop().call_later(BATCH_DELAY, self.flush)
        self._batch.append(data)

    def flush(self) -> None:
        """Send the batched frames now."""
        if self._batch:
            self.write(b"")

    def write(self, data: bytes) -> None:
        """Send an encoded frame."""
        if self._batch:
            data = b"".join([*self._batch, data])
            self._batch.clear()
        if self.is_open and self._transport is not None:
            self._transport.write(data)
            # Unsent frames occupy this node's memory. A disconnected peer requests the missed data when it reconnects.
            if self.is_write_paused and self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                self._transport.abort()

    async def drain(self) -> None:
        self.flush()
        await self._writable.wait()

    def close(self) -> None:
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Abort the TCP connection with a reset, so that the peer sees no end of file."""
        if self.is_open and self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()

    def abort(self) -> None:
        """Close the connection immediately and discard unsent frames."""
        if self._transport is not None:
            self._transport.abort()
