"""The way to a node that is a folder of this machine: the agent is a process here, its files are our files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...model.errors import PoolError
from ...store.loggers import logger, timed
from ...store.user_files import exists
from ...wire.node_paths import NodePaths
from ..base import Flow, Gate, OnData, OnLost, Report, check_python, installs
from .agent_starter import Starter
from .ground import Ground, entries, ground, packages_of

_log = logger("local")

BUFFER = 1 << 18


class SocketPipe(Flow, asyncio.BufferedProtocol):
    """A Unix socket as a :class:`..base.Pipe`."""

    def __init__(self, on_data: OnData, on_lost: OnLost) -> None:
        super().__init__()
        self._on_data = on_data
        self._buffer = memoryview(bytearray(BUFFER))
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._on_data(self._buffer[:nbytes])

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._read_rest()
        self.resume_writing()
        self._on_lost(exc)

    def _read_rest(self) -> None:
        """Read what the peer sent before it closed: after a failed write asyncio drops the unread bytes."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        with suppress(OSError):  # reset, or nothing more for now
            while sock is not None and (data := os.read(sock.fileno(), BUFFER)):
                self._on_data(memoryview(data))

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class LocalTransport:
    """See :class:`..base.Transport`."""

    shares_files = True
    direct = None
    sent: dict[str, tuple[int, int]] | None = None

    def __init__(self, folder: Path, socket: Path, starter: Starter) -> None:
        self.folder = folder
        self.socket = socket
        self._starter = starter
        self._there: Ground | None = None

    async def prepare(
        self, config: dict[str, Any], report: Report, gate: Gate | None = None, *, first: bool = False
    ) -> dict[str, str] | None:
        report("running", f"starting an agent in {self.folder}")
        image = config.get("image") or {}
        check_python(image, config.get("interpreter"))
        there = self._there = await self._ground(config, report, gate)
        python, detail, behind = there.python, "", list(there.behind)
        installed: dict[str, str] | None = None
        asked = installs(image)
        if asked:
            for phase in ("connected", "synced"):
                report(phase)
            report("installed", detail="looking at the environment")
            python, detail, installed = await self._interpreter(there, config, report, gate)
            if python != there.python:
                behind += await asyncio.to_thread(entries, there)
        request = config | {
            "folder": str(self.folder),
            "socket": str(self.socket),
            "bundle": there.first,
            "path_before": self._entries(list(there.before)),
            "path": self._entries(behind),
            "python": python,
            "cwd": config.get("cwd") or str(Path.cwd()),
            "env": self._threads(config) | config.get("env", {}),
        }
        with timed(_log, f"{self.folder}: starting an agent"):
            await self._starter.start(request)
        for phase in () if asked else ("connected", "synced"):
            report(phase)
        report("installed", detail=detail)
        if there.made is not None:
            from ...node.boot.environment import installed_with

            return await asyncio.to_thread(installed_with, there.python) | (installed or {})
        return installed

    async def installed(self) -> dict[str, str] | None:
        if self._there is None:
            return None
        return await asyncio.to_thread(packages_of, self._there)

    @staticmethod
    async def _ground(config: dict[str, Any], report: Report, gate: Gate | None) -> Ground:
        """The same for all nodes of a start."""
        loop = asyncio.get_running_loop()

        def said(line: str) -> None:
            loop.call_soon_threadsafe(report, "running", line)

        if gate is None:
            return await ground(config, said)
        return await gate.share("ground", lambda: asyncio.ensure_future(ground(config, said)))

    async def _interpreter(
        self, there: Ground, config: dict[str, Any], report: Report, gate: Gate | None
    ) -> tuple[str, str, dict[str, str] | None]:
        """The same for all nodes of a start."""
        from .image import interpreter

        async def work() -> tuple[str, str, dict[str, str] | None]:
            image, cwd = config["image"], config.get("cwd") or str(Path.cwd())
            try:
                return await interpreter(
                    image, config.get("env", {}), cwd, lambda line: report("installed", detail=line), there
                )
            except OSError as error:
                raise PoolError(
                    f"The environment of the image cannot be had on this machine: {error}"
                ) from error

        if gate is None:
            return await work()
        return await gate.share("interpreter", lambda: asyncio.ensure_future(work()))

    @staticmethod
    def _entries(path: list[str]) -> list[str]:
        """Those of an import path that are there; "" is our working folder."""
        return list(dict.fromkeys(str(Path(entry).absolute()) for entry in path if exists(entry)))

    @staticmethod
    def _threads(config: dict[str, Any]) -> dict[str, str]:
        """All nodes share this machine's cores: every rank gets its part of them, not all."""
        if "OMP_NUM_THREADS" in os.environ:
            return {}
        per_node = config["ranks_per_node"]
        ranks = config["nodes"] * (per_node if isinstance(per_node, int) else 1)  # "gpu": told once it runs
        return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // max(1, ranks)))}

    async def send_folder(
        self, cwd: str, image: Mapping[str, Any], gate: Gate, said: Callable[[str], None]
    ) -> None:
        return None

    async def way_to(self, address: str, port: int) -> tuple[str, int]:
        return address, port

    async def settle(self) -> None:
        return None

    async def open(self, on_data: OnData, on_lost: OnLost) -> SocketPipe:
        loop = asyncio.get_running_loop()
        with timed(_log, f"{self.folder}: connecting to its agent"):
            _, pipe = await loop.create_unix_connection(
                lambda: SocketPipe(on_data, on_lost), str(self.socket)
            )
        return pipe

    async def put(self, source: Path, name: str) -> None:
        target = Path(NodePaths(str(self.folder)).blobs, name)
        if target.exists():
            return
        try:
            await asyncio.to_thread(os.link, source, target)
        except FileExistsError:
            return
        except OSError:
            await asyncio.to_thread(self._copy, source, target)  # another file system

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        import shutil

        partial = target.with_suffix(f".{os.getpid()}.part")
        shutil.copyfile(source, partial)
        partial.replace(target)

    async def fetch(self, name: str, target: Path, offset: int, size: int) -> bool:
        if offset:
            return False
        try:
            await asyncio.to_thread(os.link, Path(NodePaths(str(self.folder)).spool, name), target)
        except OSError:
            return False
        return True

    async def close(self) -> None:
        return None
