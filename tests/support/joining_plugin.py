"""Plugin that all ranks must enter together, like a framework's process group, but without import time."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import skyward_core as sky
from skyward_core.plugins.plugin import Plugin
from skyward_core.runtime.framework_rendezvous_and_thread_limits import claim_port

joined: list[int] = []  # the world sizes that this process has joined


@dataclass(frozen=True)
class Joins(Plugin):
    """Plugin that fails on request. A file ``fails.WORLD.RANK`` in the folder makes that rank raise, exit, or wait
    until the file is removed.
    """

    folder: str
    name: ClassVar[str] = "joins"
    needs_peers = "a meeting"

    @contextmanager
    def around_process(self, info: sky.InstanceInfo) -> Iterator[None]:
        port = claim_port(info)
        here = Path(self.folder, f"fails.{info.world_size}.{info.rank}")
        if here.exists() and (how := here.read_text()) in ("raise", "exit"):
            if how == "raise":
                raise ValueError("cannot be entered")
            os._exit(3)
        Path(self.folder, f"enters.{info.world_size}.{info.rank}").touch()
        while here.exists():
            threading.Event().wait(0.01)
        with ExitStack() as held:
            if info.rank == 0:
                server = held.enter_context(socket.create_server((info.head_addr, port)))
                others = [held.enter_context(server.accept()[0]) for _ in range(info.world_size - 1)]
                for other in others:
                    other.sendall(b".")
            else:
                held.enter_context(_meet(info.head_addr, port)).recv(1)
            joined.append(info.world_size)
            yield


def _meet(address: str, port: int) -> socket.socket:
    while True:
        try:
            return socket.create_connection((address, port))
        except ConnectionRefusedError:
            threading.Event().wait(0.01)
