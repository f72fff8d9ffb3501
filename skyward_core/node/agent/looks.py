"""What clients ask about the inside of ranks: stacks and profiles. Loaded when one first asks."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ..stacks import py_spy
from ..stacks.taking import RankProcess, take
from ..stacks.texts import Places

if TYPE_CHECKING:
    from ...wire.inside_frame_types import ClientProfile, ClientStacks
    from .connection import Connection
    from .node_state import NodeState
    from .slot import Slot
    from .slots import Slots

LONGEST = 12.0  # seconds for all ranks of a node; the client waits a little longer
PROFILES = 2  # of a node at a time: each holds a thread for as long as it takes


class LookDesk:
    """One agent's. Whoever may speak to the agent is the ranks' own user; what names hold of secrets is blanked."""

    def __init__(self, state: NodeState, slots: Slots) -> None:
        self._state, self._slots = state, slots
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(max(2, os.cpu_count() or 1))
        self._profiles = 0  # that are being made
        self._busy: dict[tuple[int, int], asyncio.Lock] = {}  # two answers at once would be one text

    @property
    def _places(self) -> Places:
        config = self._state.config
        return Places(config.paths.sources, config.cwd, config.client_cwd)

    def stacks(self, connection: Connection, header: ClientStacks) -> None:
        self._spawn(self._stacks(connection, header))

    def profile(self, connection: Connection, header: ClientProfile) -> None:
        self._spawn(self._profile(connection, header))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stacks(self, connection: Connection, header: ClientStacks) -> None:
        wanted = header.get("ranks")
        slots = [
            slot
            for slot in self._slots.all
            if (wanted is None or slot.rank in wanted) and not _is_beside(slot)
        ]
        program = await asyncio.to_thread(py_spy.find, self._state.config.python)
        until = asyncio.get_running_loop().time() + LONGEST
        told = await asyncio.gather(
            *(self._stack(slot, program, until, signal=header.get("signal", False)) for slot in slots)
        )
        connection.send({"t": "known", "id": header["id"], "ranks": self._state.redactor.json(list(told))})

    async def _stack(self, slot: Slot, program: str, until: float, *, signal: bool) -> dict[str, Any]:
        about: dict[str, Any] = {
            "rank": slot.rank,
            "number": slot.number,
            "at": _at(slot),
            "runs": sorted({call.run for call in slot.running.values()}),
        }
        process = slot.process
        if process is None or process.connection is None:
            return about
        file = self._state.config.paths.stacks(slot.rank, slot.number)
        lock = self._busy.setdefault((slot.rank, slot.number), asyncio.Lock())
        try:
            async with asyncio.timeout_at(until), lock, self._turns:
                found = await asyncio.to_thread(
                    take, RankProcess(process.pid, file, self._places), program, signal=signal
                )
        except TimeoutError:
            return about | {"why": f"its node has not come to it within {LONGEST:g} s"}
        if slot.process is not process:
            return about | {"at": "gone", "why": "its process has ended meanwhile"}
        return about | {"pid": process.pid} | found

    async def _profile(self, connection: Connection, header: ClientProfile) -> None:
        from ..stacks.profiling import record

        paths, told, data = self._state.config.paths, {}, b""
        of_rank = (each for each in self._slots.all if each.rank == header["rank"] and not each.number)
        slot = next(of_rank, None)
        if slot is not None and slot.twin is not None and slot.twin.running:
            slot = slot.twin
        process = slot.process if slot is not None else None
        if process is None or process.connection is None:
            told = {"error": f"rank {header['rank']} has no process that could be looked at"}
        elif self._profiles >= PROFILES:
            told = {"error": f"{PROFILES} ranks of its node are being looked at: wait for one of them"}
        else:
            file = f"{paths.folder}/profile.{header['rank']}.{header['id']}.{time.monotonic_ns()}"
            self._profiles += 1
            try:
                program = await asyncio.to_thread(py_spy.find, self._state.config.python)
                data = await asyncio.to_thread(record, program, process.pid, header["seconds"], file)
            except (py_spy.CannotRead, OSError) as error:
                told = {"error": str(error)}
            finally:
                self._profiles -= 1
        connection.send(
            {"t": "known", "id": header["id"]} | told, self._state.redactor.data(self._places.in_raw(data))
        )


def _is_beside(slot: Slot) -> bool:
    """Check whether the rank's other process is the one to show, of those that take turns."""
    return slot.twin is not None and not slot.running and (slot.lone or bool(slot.twin.running))


def _at(slot: Slot) -> str:
    """What a slot's process is at."""
    process = slot.process
    if process is None:
        return "gone"
    if process.connection is None:
        return "starting"
    if process.killed:
        return "ending"
    return "running" if slot.running else "idle"
