"""Machines that were bought are looked at before they count as ready; one that is not what was paid for is exchanged,
once for each node."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...model.arrival import CLOCK, Arrived, Bought, lie
from ...model.capabilities import Sells
from ...model.errors import NoCapacity, PoolError, SkywardError, what_of
from ...model.machine import Machine
from ...providers.told import answered, hearing, told
from ...store.loggers import logger
from ...transport.base import TakesErrands
from ...views import events as ev
from ...wire.safe_text import field as safe
from ..context import PoolContext
from ..news import News
from .machine_python import with_python
from .roster import Roster

if TYPE_CHECKING:
    from ...transport.base import Errands
    from ...wire.host_fact_types import ProbeDone, SendDone

_log = logger("pool")

ALONE, IN_ALL = 11.0, 15.0  # seconds in which each node measures itself, and for all that is measured

TakeOver = Callable[[Machine], Awaitable[Any]]


class Arrivals:
    """One pool's."""

    def __init__(self, context: PoolContext, news: News, roster: Roster) -> None:
        self._context = context
        self._news = news
        self._owner = roster.owner

    def bought(self, node: int) -> Bought | None:
        """What was bought of a node's machine; None where that is not to be looked at."""
        context = self._context
        return (
            context.provider.paid_for(context.machines[node]) if isinstance(context.provider, Sells) else None
        )

    async def see(self, nodes: Iterable[int], take_over: TakeOver) -> None:
        """Look at machines that were bought, exchange those that are not what was paid for, and call them ready.

        Args:
            nodes: those that are looked at, where they were bought.
            take_over: brings a node up on another machine.

        Raises:
            NoCapacity: there is no other machine for one.
            PoolError: the other one is not what was paid for, either.
        """
        bought = {node: what for node in nodes if (what := self.bought(node)) is not None}
        lies = await self._look(bought)
        for node, why in lies.items():
            await self._exchange(node, why, take_over)
        again = await self._look({node: bought[node] for node in lies})
        for node, why in again.items():
            raise PoolError(
                f"{self._named(node)} took the place of one that was not what was bought ({lies[node]}), and is not "
                f"either: {why}; try again, in another zone or with another type"
            )

    async def approve(self, node: int) -> None:
        """Look at a machine that took another one's place, and call it ready.

        Raises:
            PoolError: it is not what was bought.
        """
        bought = self.bought(node)
        lies = await self._look({} if bought is None else {node: bought})
        if lies:
            self._nothing_there(self._context.machines[node])
            raise PoolError(f"{self._named(node)} is not what was bought: {lies[node]}")
        if bought is None:
            self._phase(node, "ready", "")

    async def _look(self, bought: Mapping[int, Bought]) -> dict[int, str]:
        """Look at nodes; gives what is not as it was bought, and calls the others ready."""
        if not bought:
            return {}
        for node in bought:
            self._phase(node, "installed", "measuring what was bought")
        found = await self._measured(bought)
        cut_off = self._cut_off(found)
        lies = {}
        for node, arrived in found.items():
            why = lie(bought[node], arrived) or cut_off.get(node, "")
            _log.debug(
                "node %d: %s%s", node, arrived, f"; {why}" if why else "", extra={"pool": self._context.name}
            )
            if abs(arrived.offset or 0.0) > CLOCK:
                self._news.complain(f"{self._named(node)}: its clock is off by {arrived.offset:.0f} s")
            if why:
                lies[node] = why
            else:
                self._phase(node, "ready", str(arrived))
        return lies

    def _cut_off(self, found: Mapping[int, Arrived]) -> dict[int, str]:
        """Nodes that nobody reaches and that reach nobody, where others do; of two, nobody can say which it is."""
        lost = {(node, each.neighbour) for node, each in found.items() if each.rate == 0.0}
        works = any(each.rate for each in found.values())
        into = {neighbour: node for node, neighbour in lost}
        return {
            node: f"it reaches neither node {neighbour} nor does node {into[node]} reach it"
            for node, neighbour in lost
            if works and node in into and into[node] != neighbour
        }

    # -- measuring ---------------------------------------------------------------------------------------

    async def _measured(self, bought: Mapping[int, Bought]) -> dict[int, Arrived]:
        """Have nodes measure themselves, all at once, and then the network between them, in a ring."""
        until = time.monotonic() + IN_ALL
        word = secrets.token_hex(16)
        nodes = sorted(bought)
        channels: dict[int, Errands] = {}
        try:
            told = await asyncio.gather(
                *(self._alone(node, bought[node], word if len(nodes) > 1 else "", channels) for node in nodes)
            )
            ports = {node: port for node, (_, port) in zip(nodes, told, strict=True)}
            found = {node: arrived for node, (arrived, _) in zip(nodes, told, strict=True)}
            turns = [(node, nodes[(at + 1) % len(nodes)]) for at, node in enumerate(nodes) if len(nodes) > 1]
            turns = [(one, other) for one, other in turns if one in channels and ports[other]]
            left = max(0.0, until - time.monotonic())
            sent = await asyncio.gather(
                *(self._to(channels[one], other, ports[other], word, left) for one, other in turns)
            )
        finally:
            for channel in channels.values():
                channel.close()
        for (node, neighbour), (rate, why) in zip(turns, sent, strict=True):
            notes = (*found[node].notes, *([f"to node {neighbour}: {why}"] if why else []))
            found[node] = replace(found[node], neighbour=neighbour, rate=rate, notes=notes)
        return found

    async def _alone(
        self, node: int, bought: Bought, word: str, channels: dict[int, Errands]
    ) -> tuple[Arrived, int]:
        """What a node finds of itself, and the port at which it listens for its neighbour."""
        transport = self._context.links[node].transport
        if not isinstance(transport, TakesErrands):
            return Arrived(notes=("not measured",)), 0
        address = self._address(node) if word and not self._context.alone else ""
        try:
            async with asyncio.timeout(ALONE):
                channel = channels[node] = await transport.channel()
                begun = time.time()
                told: ProbeDone = await channel.ask(
                    "probe", gpus=bool(bought.count), python=transport.interpreter, address=address, word=word
                )
        except (SkywardError, OSError, TimeoutError) as error:
            if (broken := channels.pop(node, None)) is not None:
                broken.close()
            return Arrived(notes=(f"not measured: {what_of(error) or f'it took more than {ALONE:g} s'}",)), 0
        return _arrived(told, begun, bought), told["port"]

    async def _to(
        self, channel: Errands, neighbour: int, port: int, word: str, left: float
    ) -> tuple[float | None, str]:
        try:
            async with asyncio.timeout(left):
                told: SendDone = await channel.ask(
                    "send", address=self._address(neighbour), port=port, word=word
                )
        except (SkywardError, OSError, TimeoutError) as error:
            return None, f"not measured: {what_of(error) or 'there was no time'}"
        return told["rate"], safe(told["why"])

    def _address(self, node: int) -> str:
        return self._context.machines[node].private_address

    # -- another machine ---------------------------------------------------------------------------------

    async def _exchange(self, node: int, why: str, take_over: TakeOver) -> None:
        """Put another machine in a node's place; what is asked for is written down first, as for a lost one."""
        context, ledger, token = self._context, self._context.ledger, self._context.token
        liar = context.machines[node]
        self._news.complain(f"{self._named(node)} is not what was bought: {why}; another one is asked for")
        self._phase(
            node, "requested", f"{liar.id} is not what was bought: {why}; another machine is asked for"
        )
        entry = ledger.intend_replacement(token, node, secrets.token_hex(8), self._owner)
        if entry is None:
            raise PoolError(f"another client has taken over pool {context.name} while it was starting")
        others = [each for each in context.machines if each.node != node]
        former = [*ledger.former(token), liar]
        asked = context.provider.replace(context.name, entry.intent, node, others, former)
        try:
            with hearing(lambda text: self._phase(node, "requested", text)):
                machine = await told("replace", context.name, asked)
        except NoCapacity as error:
            raise NoCapacity(
                f"{self._named(node)} is not what was bought: {why}; and {what_of(error)}"
            ) from error
        machine = with_python(machine, context.row)
        if not ledger.replaced(token, machine):
            await answered("terminate", context.name, context.provider.terminate(context.name, [machine]))
            raise PoolError(f"pool {context.name} was torn down by another client while it was starting")
        self._nothing_there(liar)
        context.links[node].lose()  # nobody shall look for what ends now
        await answered("terminate", context.name, context.provider.terminate(context.name, [liar]))
        await take_over(machine)
        ledger.end_replacement(token, node)

    def _nothing_there(self, machine: Machine) -> None:
        """Nothing has run on it: the teardown need not ask it for what nobody has fetched."""
        from ..rescue import nothing_there  # few starts need it

        nothing_there(self._context, machine)

    # -- what is said ------------------------------------------------------------------------------------

    def _named(self, node: int) -> str:
        machine = self._context.machines[node]
        return f"machine {machine.id} of node {node} ({machine.address})"

    def _phase(self, node: int, phase: Any, detail: str) -> None:
        context = self._context
        address = context.machines[node].address
        self._news.emit(
            ev.NodePhase(pool=context.name, node=node, phase=phase, detail=detail, address=address)
        )


def _arrived(told: ProbeDone, begun: float, bought: Bought) -> Arrived:
    whys = told["whys"]
    clock = told["time"]
    return Arrived(
        gpus=None
        if "gpus" in whys or not bought.count
        else [(safe(n), mib / 1024) for n, mib in told["gpus"]],
        disk=None if "disk" in whys else told["disk"],
        tflops=told["tflops"] or None,
        # It was asked some time between the two: only beyond them it is off, however slow the answer.
        offset=clock - min(max(clock, begun), time.time()),
        notes=[f"{name} not measured: {safe(why)}" for name, why in sorted(whys.items())],
    )
