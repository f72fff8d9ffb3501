"""A file that comes from an agent in pieces."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ...wire.agent_frame_types import AgentData


class Arriving(Protocol):
    """Where the bytes of a file go as they come."""

    size: int
    at: int

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class Download:
    """A file on its way here."""

    def __init__(self, landing: Arriving) -> None:
        self.sha256 = ""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._landing = landing

    def take(self, header: AgentData, body: bytes) -> bool:
        if header.get("error"):
            self.fail(OSError(header["error"]))
            return True
        try:
            self._landing.write(body)
            if not header["last"]:
                return False
            self.sha256 = header.get("sha256", "")
            self._landing.close()
            if self._landing.at < self._landing.size:
                raise OSError(f"only {self._landing.at:,} bytes came of {self._landing.size:,}")
        except OSError as error:
            self.fail(error)
            return True
        if not self.done.done():
            self.done.set_result(None)
        return True

    def fail(self, error: Exception) -> None:
        self._landing.close()
        if not self.done.done():
            self.done.set_exception(error)
