"""Stack dumps and profiles of ranks."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

from skyward_core.node import stack_dumps_and_profiles
from skyward_core.node.agent.worker_processes import describe_shortage, run_in_thread
from skyward_core.node.stack_dumps_and_profiles import PathMapping, RankProcess, capture_stacks

if TYPE_CHECKING:
    from skyward_core.node.agent.agent_state_and_lease import NodeState
    from skyward_core.node.agent.connection import Connection
    from skyward_core.node.agent.slot_dispatcher import SlotDispatcher
    from skyward_core.node.agent.worker_slot_and_plugin_process import Slot
    from skyward_core.protocol.frame_types import ClientProfile, ClientStacks


STACKS_TIMEOUT = 12.0  # seconds for all ranks of a node; the client's timeout is slightly longer
MAX_PROFILES = 2  # per node; each occupies a thread for its whole duration


class DiagnosticsHandler:
    """Handlers of requests for stacks and profiles of one agent.

    Clients run as the same user as the ranks, so no further permission is needed. Secrets in names are redacted.
    """

    def __init__(self, state: NodeState, slots: SlotDispatcher) -> None:
        self._state, self._slots = state, slots
        self._sample_limit = asyncio.Semaphore(max(2, os.cpu_count() or 1))
        self._active_profiles = 0
        self._slot_locks: dict[tuple[int, int], asyncio.Lock] = {}  # concurrent dumps would mix in one file

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
                stacks = await run_in_thread(self._capture_stacks, target, signal=signal)
        except TimeoutError:
            return fields | {"why": f"timed out after {STACKS_TIMEOUT:g} s"}
        except OSError as error:  # no free processes or descriptors
            return fields | {"why": describe_shortage(error)}
        if slot.process is not process:
            return fields | {"at": "gone", "why": "its process exited during the stack dump"}
        return fields | {"pid": process.pid} | stacks

    def _capture_stacks(self, target: RankProcess, *, signal: bool) -> dict[str, Any]:
        program = stack_dumps_and_profiles.find_py_spy(self._state.config.python)
        return capture_stacks(target, program, signal=signal)

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
    """Check whether to omit an idle slot, because its rank has another slot that represents the rank."""
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
