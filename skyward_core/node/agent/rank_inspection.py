"""Stacks, profiles and debuggers of ranks."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from skyward_core.node import stack_sampling
from skyward_core.node.stack_sampling import Places, RankProcess, take

if TYPE_CHECKING:
    from skyward_core.node.agent.agent_state import NodeState
    from skyward_core.node.agent.connection import Connection
    from skyward_core.node.agent.slot_dispatcher import Slots
    from skyward_core.node.agent.worker_slot import Slot
    from skyward_core.protocol.frame_types import ClientDebug, ClientProfile, ClientStacks
    from skyward_core.util.redaction import Redactor


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
        slots = [slot for slot in self._slots.all if (wanted is None or slot.rank in wanted) and not _is_beside(slot)]
        program = await asyncio.to_thread(stack_sampling.find, self._state.config.python)
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
        from skyward_core.node.stack_sampling import record

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
                program = await asyncio.to_thread(stack_sampling.find, self._state.config.python)
                data = await asyncio.to_thread(record, program, process.pid, header["seconds"], file)
            except (stack_sampling.CannotRead, OSError) as error:
                told = {"error": str(error)}
            finally:
                self._profiles -= 1
        connection.send({"t": "known", "id": header["id"]} | told, self._state.redactor.data(self._places.in_raw(data)))


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


PATIENCE = 15.0  # seconds without a question after which a person has left: their client may have died
GONE = 3.0  # the same once their connection is lost: they may come back by another one
LOOK = 1.0  # seconds that an answer waits for something to be printed
PIECE = 1 << 16


class DebugDesk:
    """One agent's. A rank has one visitor at a time."""

    def __init__(self, state: NodeState, slots: Slots) -> None:
        self._state, self._slots = state, slots
        self._visits: dict[int, _Visit] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def debug(self, connection: Connection, header: ClientDebug) -> None:
        task = asyncio.get_running_loop().create_task(self._debug(connection, header))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def leave(self, connection: Connection) -> None:
        """A client's connection is lost."""
        for visit in self._visits.values():
            if visit.connection is connection:
                visit.wait(GONE)

    async def _debug(self, connection: Connection, header: ClientDebug) -> None:
        told: dict[str, Any] = {}
        data, rank = b"", header["rank"]
        visit = self._visits.get(rank)
        if visit is not None and visit.over:
            del self._visits[rank]
            visit = visit if visit.who == header["who"] else None
        if visit is None:
            visit = self._visits[rank] = _Visit(header["who"])
            await visit.begin(self._places(rank))
            if visit.over:
                self._visits.pop(rank, None)
                told = {"error": f"rank {rank} waits at no breakpoint"}
        elif visit.who != header["who"]:
            told = {"error": f"somebody else debugs rank {rank} already"}
        if not told:
            visit.connection = connection
            if "text" in header or header.get("eof"):
                visit.type(header.get("text", ""), end=header.get("eof", False))
            else:
                data = visit.blanked(await visit.read(), self._state.redactor)
            told = {"over": visit.over}
        connection.send({"t": "known", "id": header["id"]} | told, data)

    def _places(self, rank: int) -> list[str]:
        paths = self._state.config.paths
        return [paths.debugger(rank, slot.number) for slot in self._slots.all if slot.rank == rank]


class _Visit:
    """A person at a rank's breakpoint.

    Attributes:
        connection: by which they spoke last.
        over: whether the rank goes on without them.
    """

    def __init__(self, who: str) -> None:
        self.who = who
        self.connection: Connection | None = None
        self.over = False
        self._line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()
        self._said = self._held = b""  # the last of what was given out, and what may be the beginning of a secret
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self.end)

    async def begin(self, places: list[str]) -> None:
        """Connect to the first of these places where a rank waits; it is over where none does."""
        async with self._turn:
            for place in places:
                folder, _, name = place.rpartition("/")
                at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # a socket's path may hold about 100 bytes
                try:
                    self._line = await asyncio.open_unix_connection(f"/proc/self/fd/{at}/{name}", limit=PIECE)
                    return
                except OSError:
                    continue
                finally:
                    os.close(at)
            self.end()

    def type(self, text: str, *, end: bool) -> None:
        self.wait(PATIENCE)
        if self._line is not None and not self.over:
            _, writer = self._line
            writer.write(text.encode())
            if end and not writer.is_closing():
                writer.write_eof()

    async def read(self) -> bytes:
        """What has been printed, as soon as there is something."""
        async with self._turn:
            self.wait(PATIENCE)
            if self._line is None or self.over:
                return b""
            try:
                async with asyncio.timeout(LOOK):
                    data = await self._line[0].read(PIECE)
            except TimeoutError:
                return b""
            except OSError:
                data = b""
            if not data:
                self.end()
            return data

    def blanked(self, data: bytes, redactor: Redactor) -> bytes:
        """What may be given out of what has been printed, with secrets blanked, those over two pieces too.

        The beginning of one is held back as long as more comes; then it goes out, and its rest is blanked all the same.
        """
        whole, before = self._said + self._held + data, len(self._said)
        held = redactor.begun(whole) if data and not self.over else 0
        end = max(before, len(whole) - held)
        self._held, self._said = whole[end:], whole[max(0, end - redactor.reach) : end]
        return redactor.data(whole)[before:end]

    def wait(self, seconds: float) -> None:
        """Take it as over unless they are heard of within that time."""
        self._timer.cancel()
        if not self.over:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.end)

    def end(self) -> None:
        self.over = True
        self._timer.cancel()
        if self._line is not None:
            self._line[1].close()
