"""Local provider: nodes on this machine, each an agent process with its own folder. The default provider."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from skyward_core.model.errors import convert_errors
from skyward_core.model.machines_checks_and_gpu_use import Check, Machine
from skyward_core.model.misuse_guards import StrictKeywords
from skyward_core.model.specs import PoolSpec
from skyward_core.node.bootstrap.host_inspection import (
    find_node_processes,
    is_running,
    read_exit_reason,
    read_retained_facts,
)
from skyward_core.protocol.node_paths import RETAINED_PREFIX, NodePaths
from skyward_core.store.state_folder import LOCAL_FOLDER, ensure_socket_folder, remove_abandoned_folders, state_home
from skyward_core.transport.local_transport_and_environments import AgentStarter, LocalTransport

STOP_TIMEOUT = 3.0  # seconds for an agent and its processes to stop after SIGTERM


class Local(StrictKeywords):
    """Run the pool on this machine.

    The nodes are real processes with real sockets, without SSH: code that works locally works on remote machines. All
    nodes share this machine's cores. Each rank uses an equal share of the cores (``OMP_NUM_THREADS``, unless it is
    set).

    Attributes:
        name: Name of the provider in commands and settings.
        about: Short description, for forms.
        machine: Noun for one of its machines, for messages.
        runs_here: Whether its ranks use the interpreter of their script.
    """

    name = "local"
    about = "processes on this machine"
    machine = "local node"
    runs_here = True

    def __init__(self) -> None:
        self._starter = AgentStarter()

    def __repr__(self) -> str:
        return "Local()"

    async def create(self, spec: PoolSpec, token: str) -> list[Machine]:
        """Create one folder for each node; for a range of nodes, for the largest number."""
        remove_abandoned_folders()
        root = _pool_folder(spec.name, token)
        sockets = ensure_socket_folder(root)
        return [self._make_machine(root, sockets, node, str(node)) for node in range(spec.most_nodes)]

    async def replace(
        self, pool: str, token: str, node: int, machines: Sequence[Machine], former: Sequence[Machine]
    ) -> Machine:
        """Create another folder beside the folder of the lost node."""
        root = Path(former[-1].extra["folder"]).parent
        return self._make_machine(root, ensure_socket_folder(root), node, f"{node}-{token[:6]}")

    @staticmethod
    def _make_machine(root: Path, sockets: Path, node: int, name: str) -> Machine:
        folder = root / f"node-{name}"
        with convert_errors(f"cannot create {folder}, the folder of node {node}"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        extra = {"folder": str(folder), "socket": str(sockets / f"{name}.sock")}
        return Machine(str(folder), node, "127.0.0.1", "127.0.0.1", extra=extra)

    async def describe(self, pool: str, known: Sequence[Machine]) -> list[Machine]:
        return [self._update_machine(machine) for machine in known]

    @staticmethod
    def _update_machine(machine: Machine) -> Machine:
        paths, folder = NodePaths(machine.extra["folder"]), Path(machine.extra["folder"])
        if is_running(str(folder)):
            return machine
        if folder.exists():
            return replace(machine, state="orphaned")
        retained = Path(paths.retained_folder)
        if find_node_processes(str(folder)) or is_running(str(retained)):
            return replace(machine, state="ending")  # the agent or some of its workers have not ended yet
        reason, at = read_exit_reason(str(folder))
        details = {"why": reason, "kept": read_retained_facts(str(retained))} | ({"ended": at} if at else {})
        return replace(machine, state="gone", extra=machine.extra | details)

    async def terminate(self, pool: str, machines: Sequence[Machine]) -> None:
        from skyward_core.node.bootstrap.host_commands import end_agent

        places = ((Path(each.extra["folder"]), each.extra["socket"]) for each in machines)
        await asyncio.gather(*(asyncio.to_thread(end_agent, *place, STOP_TIMEOUT) for place in places))

    async def teardown(self, pool: str) -> None:
        for root in _local_folder().glob(f"{pool}.*"):
            with suppress(FileNotFoundError):  # another process removed the folder at the same time
                await _remove_pool_folder(root)
        remove_abandoned_folders()

    async def check(self) -> list[Check]:
        import shutil

        free = shutil.disk_usage(state_home()).free
        state = "ok" if free > 1 << 30 else "warn"
        return [
            Check("local", "ok", f"{os.cpu_count()} cores"),
            Check("local disk", state, f"{free / 1e9:.1f} GB free under {state_home()}"),  # type: ignore[arg-type]
        ]

    def transport(self, pool: str, machine: Machine) -> LocalTransport:
        return LocalTransport(Path(machine.extra["folder"]), Path(machine.extra["socket"]), self._starter)

    def warm(self, spec: PoolSpec) -> AgentStarter:
        return self._starter

    def to_json(self) -> dict[str, Any]:
        return {"provider": self.name}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Local:
        """Rebuild a provider from the JSON that ``to_json`` returned.

        Args:
            data: The JSON.
        """
        return cls()


def _local_folder() -> Path:
    path = state_home() / LOCAL_FOLDER
    path.mkdir(exist_ok=True, mode=0o700)
    return path


def _pool_folder(pool: str, token: str) -> Path:
    return _local_folder() / f"{pool}.{token}"


async def _remove_pool_folder(root: Path) -> None:
    """Remove the folder of an ended pool, except retained results."""
    if any(is_running(str(folder)) for folder in root.iterdir() if folder.is_dir()):
        return
    await asyncio.to_thread(_remove_tree, ensure_socket_folder(root))
    for part in root.iterdir():
        if not part.name.startswith(RETAINED_PREFIX):
            await asyncio.to_thread(_remove_tree, part)
    if not any(root.iterdir()):
        root.rmdir()


def _remove_tree(path: Path) -> None:
    import shutil  # imported late, because the import takes time and only the teardown needs it

    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        # another client has replaced the file by a folder, and will remove the folder itself
        with suppress(IsADirectoryError):
            path.unlink(missing_ok=True)


PROVIDER = Local
