"""Another machine for a node whose own is gone, as ``Options(on_loss="replace")`` asks for.

One client sees to a node, by an entry in the ledger that outlives it; others, and observers, join the machine once
it is ready. It is asked for again, ever more rarely, until ``start_timeout`` is over.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from ...model.errors import LedgerError, PoolError, SkywardError, UsageError, what_of
from ...model.machine import Machine
from ...providers.told import hearing, told
from ...store.archive import rank_of
from ...store.ledger_rows import Replacement
from ...views import events as ev
from ..context import PoolContext
from ..news import News
from .machine_python import with_python
from .roster import Roster
from .startup import Startup

PAUSES = (1.0, 30.0)  # seconds before the second attempt, and at most between later ones
POLL = 0.5  # seconds between looks at what another client makes of it
GLANCE = 30.0  # seconds for a provider to say how it is with a machine
ENDING = 60.0  # seconds for it to end one that is of no use; the teardown has it ended again
FAREWELL = 5.0  # seconds that an attempt may take to be broken off


class _TornDown(Exception):
    """The pool ends: no machine is wanted any more."""


class Replacements:
    """Those of one pool, as one client sees to them.

    Args:
        renewed: called when a node is back on another machine, with whether this client brought it up.
    """

    def __init__(
        self,
        context: PoolContext,
        news: News,
        roster: Roster,
        startup: Startup,
        renewed: Callable[[bool], Awaitable[None]],
    ) -> None:
        self._context = context
        self._news = news
        self._roster = roster
        self._startup = startup
        self._renewed = renewed

    def begin(self, node: int) -> None:
        """Have another machine take a node's place, where the pool's options ask for that."""
        tasks = self._roster.tasks
        if self._context.options.on_loss == "replace" and node not in tasks:
            task = tasks[node] = asyncio.get_running_loop().create_task(self._see_to(node))
            task.add_done_callback(lambda done: tasks.get(node) is done and tasks.pop(node))

    def resume(self) -> None:
        """After coming to a pool: go on with what others left, and forget what they finished."""
        context = self._context
        for each in context.ledger.replacements(context.token):
            if not (context.observer or each.is_alive) and context.links[each.node].up:
                context.ledger.end_replacement(context.token, each.node)
        for link in context.links:
            if link.gone:
                self.begin(link.node)

    async def stop(self) -> None:
        """Break off what is under way; the ledger keeps how far it came."""
        tasks = list(self._roster.tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=FAREWELL)

    # -- one node ----------------------------------------------------------------------------------------

    async def _see_to(self, node: int) -> None:
        pool, token = self._context, self._context.token
        self._roster.given_up.pop(node, None)
        deadline = time.monotonic() + pool.options.start_timeout
        try:
            while why := await self._once(node):
                if time.monotonic() > deadline:
                    return self._give_up(node, why, late=True)
                self._tell(node, why, time.time() + POLL)
                await asyncio.sleep(POLL)
        except _TornDown:
            return
        except (SkywardError, OSError) as error:
            self._give_up(node, what_of(error))
        finally:
            with suppress(LedgerError):  # it is taken over once this process is gone
                pool.ledger.release_replacement(token, node, self._roster.owner)

    async def _once(self, node: int) -> str:
        """See to a node; gives why the ledger kept us from it, "" if it did not."""
        try:
            found = await self._turn(node)
            if found is not None:
                await self._insist(node, found)
        except LedgerError as error:  # in another process's hands for a moment, or its disk is full
            return str(error)
        return ""

    async def _turn(self, node: int) -> Replacement | None:
        """Wait until it is for us to see to a node; None once another client has."""
        pool, token = self._context, self._context.token
        while pool.view.is_live:
            if self._roster.superseded(node):
                entry = self._roster.entry(node)
                if (entry is None or not entry.is_alive) and await self._joined(node):
                    return None
            elif not pool.observer:
                found = pool.ledger.intend_replacement(token, node, secrets.token_hex(8), self._roster.owner)
                if found is not None and (found.made or not self._roster.superseded(node)):
                    return found
                if found is not None:  # another client was done with it just now
                    pool.ledger.end_replacement(token, node)
            await asyncio.sleep(POLL)
        raise _TornDown

    async def _insist(self, node: int, found: Replacement) -> None:
        """Try until a node is back, or its time is over."""
        pool, token = self._context, self._context.token
        deadline = time.monotonic() + pool.options.start_timeout
        pause, longest = PAUSES
        while why := await self._attempt(node, found, deadline):
            if time.monotonic() + pause > deadline:
                pool.ledger.end_replacement(token, node)
                return self._give_up(node, why, late=True)
            self._tell(node, f"{why}; asked again in {pause:.0f} s", time.time() + pause)
            await asyncio.sleep(pause)
            pause = min(longest, pause * random.uniform(1.7, 2.3))
            entry = self._roster.entry(node)
            if entry is None:
                raise _TornDown
            found = entry
        pool.ledger.end_replacement(token, node)
        await self._back(node, brought=True)

    async def _attempt(self, node: int, found: Replacement, deadline: float) -> str:
        """Try once; gives why it failed, "" if it did not."""
        pool, token = self._context, self._context.token
        limit = asyncio.timeout(max(0.0, deadline - time.monotonic()))
        try:
            async with limit:
                await self._get(node, found)
                await self._startup.take_over(pool.machines[node])
        except (PoolError, UsageError, OSError) as error:
            # Providers and the system have time limits, too: only our own limit gets our message. An error without a
            # message is still a failure.
            ours = limit.expired() and isinstance(error, TimeoutError)
            late = f"it was not up after {pool.options.start_timeout:g} s"
            why = late if ours else what_of(error) or type(error).__name__
        else:
            why = "it was lost again" if pool.links[node].gone else ""
            # Somebody may end the pool meanwhile, and have seen nothing of this machine.
            if pool.ledger.pool(token).state in ("stopping", "gone"):
                await self._end(pool.machines[node])
                raise _TornDown
        entry = self._roster.entry(node)
        if why and entry is not None and entry.made:
            # It exists and is of no use. It stays in the ledger, among the former ones once there is another.
            await self._end(pool.machines[node])
            pool.ledger.renew_replacement(token, node, secrets.token_hex(8))
        return why

    async def _end(self, machine: Machine) -> None:
        """Have a machine ended that is not wanted; one that cannot be ended now is left to the pool's teardown."""
        pool = self._context
        with suppress(PoolError, UsageError, OSError):  # the log tells of it
            work = asyncio.wait_for(pool.provider.terminate(pool.name, [machine]), ENDING)
            await told("terminate", pool.name, work)

    async def _get(self, node: int, found: Replacement) -> None:
        """Have a machine, and have it in the ledger."""
        pool, token = self._context, self._context.token
        machines = pool.ledger.machines(token)
        if found.made:  # by a client that went away meanwhile
            pool.machines[node] = machines[node]
            return
        # First, as long as nothing is paid: nobody could make use of a machine that cannot be told what it is for.
        await self._startup.learn()
        self._tell(node, "another machine is asked for")
        others = [machine for machine in machines if machine.node != node]
        former = [*pool.ledger.former(token), machines[node]]
        with hearing(lambda text: self._tell(node, text)):
            machine = await told(
                "replace", pool.name, pool.provider.replace(pool.name, found.intent, node, others, former)
            )
        machine = replace(with_python(machine, pool.row), logs_from=self._end_logs(node))
        if not pool.ledger.replaced(token, machine):
            raise _TornDown
        pool.machines[node] = machine

    def _end_logs(self, node: int) -> dict[str, int]:
        """End what the lost machine printed, mid-line perhaps; log file -> where the next one goes on."""
        pool = self._context
        ends = {}
        for name, size in pool.archive.sizes().items():
            if rank_of(name) in pool.ranks_of(node):
                if size and pool.archive.tail(name, 1) != b"\n":
                    self._news.intake.take(name, size, b"\n")
                    size += 1
                ends[name] = size
        return ends

    async def _joined(self, node: int) -> bool:
        """Come to the machine that another client has put in a node's place; says whether that worked."""
        pool, before = self._context, self._context.machines[node]
        machine = pool.ledger.machines(pool.token)[node]
        try:
            await self._startup.join(machine)
        except (PoolError, UsageError, OSError) as error:
            self._tell(node, what_of(error), time.time() + POLL)
            # Of a machine that is there we are only cut off; another one is put in the place of one that is not.
            pool.machines[node] = before if await self._may_be_there(machine) else machine
            return False
        await self._back(node, brought=False)
        return True

    async def _may_be_there(self, machine: Machine) -> bool:
        """Whether a machine lives, by its provider's word, or nothing can be said of it now."""
        pool = self._context
        try:
            work = asyncio.wait_for(pool.provider.describe(pool.name, [machine]), GLANCE)
            (seen,) = await told("describe", pool.name, work)
        except (PoolError, UsageError, OSError):  # the log tells of it
            return True
        return seen.state in ("running", "unreachable")

    async def _back(self, node: int, *, brought: bool) -> None:
        """A node is there again: runs may start. Were we to try again what the ledger refuses now, it would get
        another machine although it has one that works."""
        self._roster.tasks.pop(node, None)
        try:
            await self._renewed(brought)
        except LedgerError as error:
            self._news.mention(self._context.links[node], f"that it is back is not written down: {error}")
            self._roster.tell()

    # -- what is said ------------------------------------------------------------------------------------

    def _tell(self, node: int, detail: str, retry_at: float | None = None) -> None:
        pool = self._context
        self._news.emit(
            ev.NodePhase(pool=pool.name, node=node, phase="requested", detail=detail, retry_at=retry_at)
        )
        self._news.emit(
            ev.PoolState(pool=pool.name, state="degraded", detail=f"node {node} is gone: {detail}")
        )

    def _give_up(self, node: int, why: str, *, late: bool = False) -> None:
        """A node gets no other machine. ``late``: the time for that is over."""
        pool = self._context
        within = f" within {pool.options.start_timeout:g} s" if late else ""
        said = f"no other machine{within}: {why}"
        self._roster.given_up[node] = said
        self._news.emit(ev.NodePhase(pool=pool.name, node=node, phase="gone", detail=said))
        detail = f"node {node} is gone, and there was {said}; whoever attaches to the pool has it tried anew"
        self._news.emit(ev.PoolState(pool=pool.name, state="degraded", detail=detail))
