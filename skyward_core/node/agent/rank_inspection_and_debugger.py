"""Inspection of ranks: stack dumps, profiles, and a relay between a client and the debugger at a breakpoint."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

from skyward_core.node import stack_dumps_and_profiles
from skyward_core.node.agent.worker_processes import describe_shortage, run_in_thread
from skyward_core.node.stack_dumps_and_profiles import PathMapping, RankProcess, capture_stacks

if TYPE_CHECKING:
    from skyward_core.node.agent.agent_state_lease_deadman_and_network_info import NodeState
    from skyward_core.node.agent.frame_connection import Connection
    from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
    from skyward_core.node.agent.worker_slot_queue_and_process import Slot
    from skyward_core.protocol.frame_types import ClientDebug, ClientProfile, ClientStacks
    from skyward_core.util.redaction import Redactor


STACKS_TIMEOUT = 12.0  # seconds to dump the stacks of all ranks of a node; the client's timeout is slightly longer
MAX_PROFILES = 2  # maximum number of concurrent profiles per node; each occupies a thread until it ends


class DiagnosticsHandler:
    """Handlers of clients' requests for stack dumps and profiles of one agent's ranks.

    Clients run as the same user as the ranks, so no further permission is needed. Secrets in names are redacted.
    """

    def __init__(self, state: NodeState, slots: SlotDispatcher) -> None:
        self._state, self._slots = state, slots
        self._sample_limit = asyncio.Semaphore(max(2, os.cpu_count() or 1))
        self._active_profiles = 0
        # Concurrent dumps of one process would mix their stacks in one file.
        self._slot_locks: dict[tuple[int, int], asyncio.Lock] = {}

    @property
    def _path_mapping(self) -> PathMapping:
        config = self._state.config
        return PathMapping(config.paths.sources, config.cwd, config.client_cwd)

    async def send_stacks(self, connection: Connection, header: ClientStacks) -> None:
        ranks = header.get("ranks")
        slots = [
            slot for slot in self._slots.slots if (ranks is None or slot.rank in ranks) and not _is_idle_twin(slot)
        ]
        until = asyncio.get_running_loop().time() + STACKS_TIMEOUT
        stacks = await asyncio.gather(
            *(self._sample_slot(slot, until, signal=header.get("signal", False)) for slot in slots)
        )
        connection.send({"t": "known", "id": header["id"], "ranks": self._state.redactor.redact_json(list(stacks))})

    async def _sample_slot(self, slot: Slot, until: float, *, signal: bool) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "rank": slot.rank,
            "number": slot.number,
            "at": _slot_status(slot),
            "runs": sorted({call.run for call in slot.running.values()}),
        }
        process = slot.process
        if process is None or process.connection is None:
            return fields
        paths, place = self._state.config.paths, (slot.rank, slot.number)
        target = RankProcess(process.pid, paths.stacks(*place), self._path_mapping, paths.worker(*place))
        lock = self._slot_locks.setdefault(place, asyncio.Lock())
        try:
            async with asyncio.timeout_at(until), lock, self._sample_limit:
                program = await run_in_thread(stack_dumps_and_profiles.find_py_spy, self._state.config.python)
                stacks = await run_in_thread(capture_stacks, target, program, signal=signal)
        except TimeoutError:
            return fields | {"why": f"timed out after {STACKS_TIMEOUT:g} s"}
        except OSError as error:  # The system has no free processes, or the agent has no free descriptors.
            return fields | {"why": describe_shortage(error)}
        if slot.process is not process:
            return fields | {"at": "gone", "why": "its process exited during the stack dump"}
        return fields | {"pid": process.pid} | stacks

    async def send_profile(self, connection: Connection, header: ClientProfile) -> None:
        from skyward_core.node.stack_dumps_and_profiles import record_profile

        paths, fields, data = self._state.config.paths, {}, b""
        slot = next((each for each in self._slots.slots if each.rank == header["rank"] and not each.number), None)
        if slot is not None and slot.twin is not None and slot.twin.running:
            slot = slot.twin
        process = slot.process if slot is not None else None
        if process is None or process.connection is None:
            fields = {"error": f"rank {header['rank']} has no running process"}
        elif self._active_profiles >= MAX_PROFILES:
            fields = {"error": f"{MAX_PROFILES} profiles are already running on its node. Try again later."}
        else:
            file = f"{paths.folder}/profile.{header['rank']}.{header['id']}.{time.monotonic_ns()}"
            self._active_profiles += 1
            try:
                program = await run_in_thread(stack_dumps_and_profiles.find_py_spy, self._state.config.python)
                data = await run_in_thread(record_profile, program, process.pid, header["seconds"], file)
            except (stack_dumps_and_profiles.PySpyError, OSError) as error:
                fields = {"error": describe_shortage(error)}
            finally:
                self._active_profiles -= 1
        connection.send(
            {"t": "known", "id": header["id"]} | fields,
            self._state.redactor.redact_bytes(self._path_mapping.map_raw_profile(data)),
        )


def _is_idle_twin(slot: Slot) -> bool:
    """Check whether an idle slot is omitted from answers, because the other slot of its rank represents the rank."""
    return slot.twin is not None and not slot.running and (slot.is_task_slot or bool(slot.twin.running))


def _slot_status(slot: Slot) -> str:
    """Return the state of a slot's process."""
    process = slot.process
    if process is None:
        return "gone"
    if process.connection is None:
        return "starting"
    if process.kill_reason:
        return "ending"
    return "running" if slot.running else "idle"


# seconds without a client's request after which the debugger session ends, because the client may have died
SESSION_TIMEOUT = 15.0
# seconds that a debugger session survives the loss of its client's connection, so that the client can reconnect
RECONNECT_TIMEOUT = 3.0
READ_TIMEOUT = 1.0  # seconds that a request for the debugger's output waits for new output
READ_BYTES = 1 << 16


class DebuggerRelay:
    """Debugger sessions of one agent, at most one per rank."""

    def __init__(self, state: NodeState, slots: SlotDispatcher) -> None:
        self._state, self._slots = state, slots
        self._sessions: dict[int, _DebuggerSession] = {}

    def on_client_gone(self, connection: Connection) -> None:
        """Shorten the timeout of a disconnected client's sessions."""
        for session in self._sessions.values():
            if session.connection is connection:
                session.extend_timeout(RECONNECT_TIMEOUT)

    async def answer(self, connection: Connection, header: ClientDebug) -> None:
        """Answer a client's request to a debugger session: connect it, send input, read output, or end it."""
        fields: dict[str, Any] = {}
        data, rank = b"", header["rank"]
        session = self._sessions.get(rank)
        if session is not None and session.is_closed:
            del self._sessions[rank]
            session = session if session.who == header["who"] else None
        if session is None:
            session = self._sessions[rank] = _DebuggerSession(header["who"])
            paths = self._state.config.paths
            await session.connect(
                [paths.debugger(rank, each.number) for each in self._slots.slots if each.rank == rank]
            )
            if session.is_closed:
                self._sessions.pop(rank, None)
                fields = {"error": f"rank {rank} is not at a breakpoint"}
        elif session.who != header["who"]:
            fields = {"error": f"another client is already debugging rank {rank}"}
        if not fields:
            session.connection = connection
            if "text" in header or header.get("eof"):
                session.write(header.get("text", ""), end=header.get("eof", False))
            else:
                data = session.redact(await session.read(), self._state.redactor)
            fields = {"over": session.is_closed}
        connection.send({"t": "known", "id": header["id"]} | fields, data)


class _DebuggerSession:
    """A user's debugger session at a rank's breakpoint.

    Attributes:
        connection: Connection of the latest request.
        is_closed: Whether the session has ended.
    """

    def __init__(self, who: str) -> None:
        self.who = who
        self.connection: Connection | None = None
        self.is_closed = False
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._lock = asyncio.Lock()
        # ``_sent_tail`` is the end of the sent output. ``_held`` is unsent output that may be the beginning of a
        # secret.
        self._sent_tail = self._held = b""
        self._timer = asyncio.get_running_loop().call_later(SESSION_TIMEOUT, self.close)

    async def connect(self, paths: list[str]) -> None:
        """Connect to the first of these sockets at which a rank waits. If no rank waits, close the session."""
        async with self._lock:
            for path in paths:
                folder, _, name = path.rpartition("/")
                # Connect through the folder's descriptor, because socket paths are limited to about 100 bytes.
                at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    self._streams = await asyncio.open_unix_connection(f"/proc/self/fd/{at}/{name}", limit=READ_BYTES)
                    return
                except OSError:
                    continue
                finally:
                    os.close(at)
            self.close()

    def write(self, text: str, *, end: bool) -> None:
        self.extend_timeout(SESSION_TIMEOUT)
        if self._streams is not None and not self.is_closed:
            _, writer = self._streams
            writer.write(text.encode())
            if end and not writer.is_closing():
                writer.write_eof()

    async def read(self) -> bytes:
        """Wait for output of the debugger and return it."""
        async with self._lock:
            self.extend_timeout(SESSION_TIMEOUT)
            if self._streams is None or self.is_closed:
                return b""
            try:
                async with asyncio.timeout(READ_TIMEOUT):
                    data = await self._streams[0].read(READ_BYTES)
            except TimeoutError:
                return b""
            except OSError:
                data = b""
            if not data:
                self.close()
            return data

    def redact(self, data: bytes, redactor: Redactor) -> bytes:
        """Return the output that may be sent, with secrets redacted, even if they span two reads.

        Withholds output that may be the beginning of a secret until the following output is known.
        """
        whole, before = self._sent_tail + self._held + data, len(self._sent_tail)
        held = redactor.partial_secret_length(whole) if data and not self.is_closed else 0
        end = max(before, len(whole) - held)
        self._held, self._sent_tail = whole[end:], whole[max(0, end - redactor.reach) : end]
        return redactor.redact_bytes(whole)[before:end]

    def extend_timeout(self, seconds: float) -> None:
        """Close the session unless a request arrives within the given time."""
        self._timer.cancel()
        if not self.is_closed:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.close)

    def close(self) -> None:
        self.is_closed = True
        self._timer.cancel()
        if self._streams is not None:
            self._streams[1].close()
