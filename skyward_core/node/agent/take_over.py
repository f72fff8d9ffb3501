"""Going on where an agent that died in this folder stopped: its results, its workers, their calls."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from .around_app import PLACE
from .call_desk import CallDesk
from .calls import Call, Register
from .node_state import NodeState
from .slots import Slots
from .spawn import left_behind

if TYPE_CHECKING:
    from ...wire.agent_frame_types import AgentOutcome

SOON = 1.0  # seconds in which workers greet that are free to; it takes them a twentieth


async def take_over(state: NodeState, slots: Slots, desk: CallDesk) -> None:
    """Know what the other agent knew, and let its workers greet before any client is heard: they know of the gang, and
    a client would form another."""
    left = left_behind(state.config)
    for slot in slots.all:
        slot.logs.open()
        if pid := left.get((slot.rank, slot.number)):
            slot.adopt(pid)
    if pid := left.get(PLACE):
        slots.apps.adopt(pid)
    _read_journal(state, desk)
    for call in list(state.register.calls.values()):
        if call.outcome is None and call.width > 1:
            slots.blocks.adopt(call)
        elif call.outcome is None:
            next(s for s in slots.all if (s.rank, s.number) == (call.rank, call.slot)).adopt_call(call)
    with suppress(TimeoutError):
        async with asyncio.timeout(SOON):
            while any(slot.process and not slot.process.connection for slot in slots.all):
                slots.news.clear()
                await slots.news.wait()
    if slots.waits is not None:
        slots.waits.adopted()


def _read_journal(state: NodeState, desk: CallDesk) -> None:
    register = state.register
    for header, body in state.journal.read():
        if header["t"] == "ack":
            register.acknowledge(header["calls"])
            continue
        if header["t"] == "ended":
            _read_part(register, header["outcome"], body)
            continue
        told = header["call"] if header["t"] == "given" else header
        key = (told["run"], told["i"])
        known = register.calls.get(key)
        if header["t"] == "given" and known is not None and header["call"].get("width", 1) > 1:
            part = Call(*key, header["call"], b"", None, rank=header["rank"], slot=header["slot"])
            part.given_at, part.log_start = asyncio.get_running_loop().time(), header.get("log", {})
            known.parts.append(part)
        elif header["t"] == "given":
            call = Call(*key, header["call"], b"", None, rank=header["rank"], slot=header["slot"])
            call.given_at, call.log_start = asyncio.get_running_loop().time(), header.get("log", {})
            register.add(call)
            desk.open_yields(call)
        elif known is not None and known.outcome is None:
            known.result = body
            register.end(known, header)


def _read_part(register: Register, outcome: AgentOutcome, body: bytes) -> None:
    """A part of a block's call has ended."""
    whole = register.calls.get((outcome["run"], outcome["i"]))
    for part in whole.parts if whole is not None else ():
        if part.rank == outcome["rank"]:
            part.outcome, part.result = outcome, body
