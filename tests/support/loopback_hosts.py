"""Loopback hosts served by a thread, for tests that are not coroutines."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import skyward_core as sky
from tests.support.sshd import Host


class Hosts:
    """Two loopback hosts with separate homes, served by a thread."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.slots = [Host(folder / f"host{number}") for number in range(2)]
        self.slots[0].client_key.chmod(0o600)  # else OpenSSH refuses it
        self.slots[1].authorized.write_bytes(self.slots[0].authorized.read_bytes())
        for host in self.slots:
            self._run(host.start())
        self.known = folder / "known"
        self.known.write_text("".join(host.known_line() for host in self.slots))

    def _run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def provider(self, number: int = 2) -> sky.SSH:
        addresses = [f"127.0.0.1:{host.port}" for host in self.slots[:number]]
        key = str(self.slots[0].client_key)
        return sky.SSH(addresses, keys=key, known_hosts=str(self.known), config=False)

    def cut(self) -> None:
        def abort() -> None:
            for host in self.slots:
                for connection in list(host.connections):
                    connection.abort()

        self.loop.call_soon_threadsafe(abort)

    def stop(self) -> None:
        for host in self.slots:
            self._run(host.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
