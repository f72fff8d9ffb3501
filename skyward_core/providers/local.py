"""Nodes on this machine: each an agent process in a folder of its own. The embedded default."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..agent import kept
from ..agent.processes import orphans, writes_under
from ..config import home, socket_dir
from ..errors import PoolError
from ..spec import PoolSpec
from ..transport.local import LocalTransport
from ..transport.starter import Starter
from .base import Check, Machine

PATIENCE = 3.0  # seconds that a process may take to be gone after SIGKILL


class Local:
    """Run the pool on this machine.

    Real processes and real sockets, no SSH: what works here works on machines elsewhere. All nodes share this
    machine's cores; each rank may use its part of them (``OMP_NUM_THREADS``, unless it is set).
    """

    name = "local"

    def __init__(self) -> None:
        self._starter = Starter()

    def __repr__(self) -> str:
        return "Local()"

    async def create(self, spec: PoolSpec, token: str) -> list[Machine]:
        root = _root(spec.name, token)
        return [self._make(root, node, str(node)) for node in range(spec.nodes)]

    async def replace(
        self, pool: str, token: str, node: int, machines: Sequence[Machine], former: Sequence[Machine]
    ) -> Machine:
        """Another folder beside the lost one."""
        root = Path(former[-1].extra["folder"]).parent
        return self._make(root, node, f"{node}-{token[:6]}")

    @staticmethod
    def _make(root: Path, node: int, name: str) -> Machine:
        folder = root / f"node-{name}"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise PoolError(f"node {node} needs the folder {folder}: {error}") from error
        extra = {"folder": str(folder), "socket": str(socket_dir(root) / f"{name}.sock")}
        return Machine(str(folder), node, "127.0.0.1", "127.0.0.1", extra=extra)

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        return [self._look(machine) for machine in known]

    @staticmethod
    def _look(machine: Machine) -> Machine:
        folder = Path(machine.extra["folder"])
        if _agent_runs(folder):
            return machine
        if folder.exists():
            return replace(machine, state="orphaned")
        left = Path(kept.kept_name(str(folder)))
        if writes_under(folder) or _agent_runs(left):
            return replace(machine, state="ending")  # its agent, or a worker, has not quite ended
        try:
            why = folder.with_name(f"ended.{folder.name}").read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            why = ""
        return replace(machine, state="gone", extra=machine.extra | {"why": why, "kept": kept.facts(left)})

    async def terminate(self, pool: str, machines: Sequence[Machine]) -> None:
        await asyncio.gather(*(self._end(machine) for machine in machines))

    async def _end(self, machine: Machine) -> None:
        folder = Path(machine.extra["folder"])
        if _agent_runs(folder):
            pid = _agent_pid(folder)
            for number in (signal.SIGTERM, signal.SIGKILL):
                if pid is None or not _agent_runs(folder):
                    break
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
                    os.kill(pid, signal.SIGCONT)  # a stopped process acts on none but this and SIGKILL
                await _until(lambda: not _agent_runs(folder), PATIENCE)
        for pid in _orphans(machine):
            _kill_group(pid)
        await _until(lambda: not _orphans(machine), PATIENCE)
        if folder.exists():
            seconds = max(kept.seconds_told(folder), kept.AT_LEAST)
            await asyncio.to_thread(kept.settle, folder, seconds)

    async def teardown(self, pool: str) -> None:
        for root in (home() / "local").glob(f"{pool}.*"):
            if any(_agent_runs(folder) for folder in root.iterdir() if folder.is_dir()):
                continue
            await asyncio.to_thread(shutil.rmtree, socket_dir(root), True)
            for part in root.iterdir():
                if not part.name.startswith(kept.PREFIX):  # what nobody has fetched stays
                    await asyncio.to_thread(_remove, part)
            if not any(root.iterdir()):
                root.rmdir()

    async def check(self) -> list[Check]:
        free = shutil.disk_usage(home()).free
        state = "ok" if free > 1 << 30 else "warn"
        return [
            Check("local", "ok", f"{os.cpu_count()} cores"),
            Check("local disk", state, f"{free / 2**30:.1f} GB free under {home()}"),  # type: ignore[arg-type]
        ]

    def transport(self, pool: str, machine: Machine) -> LocalTransport:
        return LocalTransport(Path(machine.extra["folder"]), Path(machine.extra["socket"]), self._starter)

    def warm(self, spec: PoolSpec) -> Starter:
        return self._starter

    def to_json(self) -> dict[str, Any]:
        return {"provider": self.name}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Local:
        return cls()


def _root(pool: str, token: str) -> Path:
    return home() / "local" / f"{pool}.{token}"


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _agent_runs(folder: Path) -> bool:
    """Whether an agent holds this folder: it keeps a lock for as long as it lives, however it ends."""
    try:
        with open(folder / "agent.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _agent_pid(folder: Path) -> int | None:
    try:
        return int(json.loads((folder / "agent.json").read_text(encoding="utf-8"))["pid"])
    except (OSError, ValueError, KeyError):
        return None


def _orphans(machine: Machine) -> list[int]:
    """Workers of this node that run without an agent."""
    return list(orphans(machine.extra["socket"] + ".w").values())


def _kill_group(pid: int) -> None:
    try:
        os.killpg(os.getpgid(pid), signal.SIGKILL)
    except ProcessLookupError:
        return


async def _until(done: Any, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not done() and loop.time() < deadline:
        await asyncio.sleep(0.01)
