"""Byte pipes to an agent in an SSH connection: a forwarded socket, or a command that stands in for one."""

from __future__ import annotations

import asyncio
import time

from ..base import Flow, OnData, OnLost
from .asyncssh_import import asyncssh
from .keepalive import AnswerWait

MOST_NOISE = 1 << 20  # bytes before the relay's word


class _Pipe(Flow):
    """What both have in common; see :class:`~skyward_core.transport.base.Pipe`."""

    def __init__(self, on_data: OnData, on_lost: OnLost) -> None:
        super().__init__()
        self._on_data = on_data
        self._on_lost: OnLost | None = on_lost
        self._chan: asyncssh.SSHUNIXChannel[bytes] | asyncssh.SSHClientChannel[bytes]

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if datatype is None:
            self._on_data(data)

    def eof_received(self) -> bool:
        """An agent ends its connection as a whole; a server between us and it may never say more than that no more
        comes from there."""
        self._chan.close()
        self.connection_lost(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.resume_writing()
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            on_lost(exc)

    def write(self, data: bytes) -> None:
        if not self._chan.is_closing():
            self._chan.write(data)

    def close(self) -> None:
        self._chan.close()


class Forwarded(_Pipe, asyncssh.SSHUNIXSession[bytes]):
    """The agent's socket, forwarded by the SSH server."""

    def connection_made(self, chan: asyncssh.SSHUNIXChannel[bytes]) -> None:
        self._chan = chan


class Relayed(AnswerWait, _Pipe, asyncssh.SSHClientSession[bytes]):
    """The agent's socket, through :mod:`skyward_core.node.boot.relay`; ``joined`` resolves when it is reached.

    What comes before the line with the relay's word is a login shell's noise.
    """

    def __init__(self, on_data: OnData, on_lost: OnLost, word: bytes) -> None:
        super().__init__(on_data, on_lost)
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._word = b"\n" + word
        self._before: bytearray | None = bytearray(b"\n")

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._chan = chan

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self.joined.cancelled():
            return  # nobody waits for it any more
        if self._before is None or datatype is not None:
            super().data_received(data, datatype)
            return
        self.heard_at = time.monotonic()
        self._before += data
        at = self._before.find(self._word)
        end = self._before.find(b"\n", at + len(self._word))
        if at < 0 or end < 0:
            if len(self._before) > MOST_NOISE:
                self._before.clear()
                self._chan.close()  # no login shell says so much
            return
        trouble = bytes(self._before[at + len(self._word) : end]).decode(errors="replace").strip()
        rest, self._before = bytes(self._before[end + 1 :]), None
        if trouble:
            self.joined.set_exception(ConnectionRefusedError(f"no agent answers: {trouble}"))
            self._on_lost = None
        else:
            self.joined.set_result(None)
            if rest:
                self._on_data(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.joined.done():
            said = bytes(self._before or b"").decode(errors="replace").strip()[-500:]
            self.joined.set_exception(ConnectionError(f"the relay ended before it reached the agent: {said}"))
            self._on_lost = None
        super().connection_lost(exc)
