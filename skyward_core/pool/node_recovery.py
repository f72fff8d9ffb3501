"""Silent and lost nodes: suspicion, revival, replacement."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from skyward_core.model.errors import LedgerError, PoolError, SkywardError, UsageError, what_of
from skyward_core.model.machines import Machine
from skyward_core.model.provider_capabilities import notices_of
from skyward_core.pool.agent_link import Link
from skyward_core.pool.event_log import News
from skyward_core.pool.node_roster import Roster, taken_back
from skyward_core.pool.pool_context import Background, PoolContext, PoolEnd
from skyward_core.pool.reconciliation import with_python
from skyward_core.pool.runs.run_registry import RunBook
from skyward_core.pool.startup import Startup
from skyward_core.pool.teardown import Endings
from skyward_core.providers.provider import answered, hearing, told
from skyward_core.store.debug_log import logger
from skyward_core.store.ledger_rows import Replacement
from skyward_core.store.pool_folder import rank_of
from skyward_core.views import events

REPLACEMENT_PAUSES = (1.0, 30.0)  # seconds before the second attempt, and at most between later ones
POLL = 0.5  # seconds between looks at what another client makes of it
MACHINE_STATE_TIMEOUT = 30.0  # seconds for a provider to say how it is with a machine
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
        pause, longest = REPLACEMENT_PAUSES
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
            work = asyncio.wait_for(pool.provider.describe(pool.name, [machine]), MACHINE_STATE_TIMEOUT)
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
            events.NodePhase(pool=pool.name, node=node, phase="requested", detail=detail, retry_at=retry_at)
        )
        self._news.emit(events.PoolState(pool=pool.name, state="degraded", detail=f"node {node} is gone: {detail}"))

    def _give_up(self, node: int, why: str, *, late: bool = False) -> None:
        """A node gets no other machine. ``late``: the time for that is over."""
        pool = self._context
        within = f" within {pool.options.start_timeout:g} s" if late else ""
        said = f"no other machine{within}: {why}"
        self._roster.given_up[node] = said
        self._news.emit(events.NodePhase(pool=pool.name, node=node, phase="gone", detail=said))
        detail = f"node {node} is gone, and there was {said}; whoever attaches to the pool has it tried anew"
        self._news.emit(events.PoolState(pool=pool.name, state="degraded", detail=detail))


STARTS = 3  # agents that a node may get within the window; more than that is no accident
WINDOW = 60.0  # seconds
FAILURES = 4  # starts that may fail in a row
PAUSE = 0.5  # seconds after the first of them; twice as long after each further one


class Revivals:
    """Of the nodes of one pool.

    Args:
        clock: seconds; for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started: dict[int, list[float]] = {}
        self._failed: dict[int, list[tuple[float, str]]] = {}  # since one came up: when, and why

    def refused(self, node: int) -> str:
        """Why the node gets no further agent; "" if it may have one."""
        failed = self._failed.get(node, [])
        if len(failed) >= FAILURES:
            return f"{len(failed)} attempts to start a new agent failed; the last: {failed[-1][1]}"
        recent = self._started[node] = [at for at in self._started.get(node, ()) if self._clock() - at < WINDOW]
        if len(recent) >= STARTS:
            return f"its agent died {len(recent) + 1} times within {WINDOW:.0f} s"
        return ""

    def is_due(self, node: int) -> bool:
        """Whether the last start that failed is long enough ago."""
        failed = self._failed.get(node)
        return not failed or self._clock() - failed[-1][0] >= PAUSE * 2 ** (len(failed) - 1)

    def failed(self, node: int, why: str) -> None:
        """A start came to nothing."""
        self._failed.setdefault(node, []).append((self._clock(), why))

    def succeeded(self, node: int) -> None:
        """A new agent runs."""
        self._failed.pop(node, None)
        self._started.setdefault(node, []).append(self._clock())


class Suspicion:
    """Of the nodes of one pool, as one client reaches them.

    Args:
        lost_after: seconds that a node has to answer; None for no limit.
        lose: told of a node that has not, with when it fell silent and when it was taken as lost.
    """

    def __init__(self, lost_after: float | None, lose: Callable[[Link, str], None]) -> None:
        self._lost_after = lost_after
        self._lose = lose
        self._since: dict[Link, tuple[float, asyncio.TimerHandle]] = {}

    @property
    def any(self) -> bool:
        """Whether any node is suspected."""
        return bool(self._since)

    def down(self, link: Link) -> str:
        """A node is out of reach, now or still; says since when, and until when it is waited for."""
        if self._lost_after is None:
            return ""
        if link not in self._since:
            timer = link.loop.call_later(self._lost_after, self._over, link)
            self._since[link] = time.time(), timer
        since, _ = self._since[link]
        return f"suspected since {_clock(since)}, taken as lost at {_clock(since + self._lost_after)}"

    def up(self, link: Link) -> None:
        """It answers, or is known to be gone."""
        if (suspected := self._since.pop(link, None)) is not None:
            suspected[1].cancel()

    def stop(self) -> None:
        """The pool is left."""
        for link in list(self._since):
            self.up(link)

    def _over(self, link: Link) -> None:
        since, _ = self._since.pop(link)
        if not link.up and not link.gone:
            now = time.time()
            words = f"no answer since {_clock(since)}, lost at {_clock(now)}, after {self._lost_after:g} s"
            self._lose(link, words)


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


_log = logger("node")

GLANCE = 10.0  # seconds for a provider to say why a machine ended
AGAIN = 1.0  # seconds before a node that could not be examined is examined once more


class Watch:
    """Over the nodes of one pool.

    Attributes:
        suspicion: of those that are silent; told of those that answer.
    """

    def __init__(
        self, context: PoolContext, news: News, background: Background, roster: Roster, book: RunBook,
        endings: Endings, startup: Startup, replacements: Replacements,
    ) -> None:  # fmt: skip
        self._context = context
        self._news = news
        self._background = background
        self._roster = roster
        self._book = book
        self._endings = endings
        self._startup = startup
        self._replacements = replacements
        self._revivals = Revivals()
        self._examining: set[int] = set()
        self.suspicion = Suspicion(context.options.lost_after, self._lose_silent)

    def down(self, link: Link, detail: str) -> str:
        """A link is down: gives what is to be said of it, with until when it is waited for."""
        context = self._context
        ends = link.silent or link.finished or link.gone or context.leaving or context.ending
        until = "" if ends else self.suspicion.down(link)
        return f"{detail}; {until}" if until else detail

    def examine(self, link: Link) -> None:
        """Have it found out what became of a node, and done what that asks for."""
        self._background.spawn(self._examine(link))

    async def _examine(self, link: Link) -> None:
        if link.node in self._examining:
            return
        self._examining.add(link.node)
        try:
            async with self._roster.deciding(link.node) as decided:
                await self._decide(link, decided)
        except (SkywardError, OSError) as error:
            self._news.mention(link, f"it cannot be told whether node {link.node} is there: {what_of(error)}")
            if link.finished:  # it tries no more, so nothing else would have it examined again
                link.loop.call_later(AGAIN, self._examine_again, link)
        finally:
            self._examining.discard(link.node)

    def _examine_again(self, link: Link) -> None:
        if not (self._context.leaving or link.gone or self._context.ending):
            self.examine(link)

    async def _decide(self, link: Link, decided: bool) -> None:
        context = self._context
        if link is not context.links[link.node] or link.up or link.gone:
            return  # while another client decided
        if decided:
            self._lose(link, "another client sees to another machine in its place")
            return
        if await self._endings.have_come(wait=link.finished):
            return
        if link.finished:
            taken = await self._why_taken_back(link)
            self._lose(link, taken or "its agent was ended on its machine", taken_back=bool(taken))
            return
        machine = context.machines[link.node]
        (seen,) = await answered("describe", context.name, context.provider.describe(context.name, [machine]))
        # "unreachable" is a link that is down: a network cut ends no healthy machine.
        # So is "lost" where nodes do not reach each other: that peers get no answer either says nothing.
        alive = ("running", "unreachable", "lost") if context.alone else ("running", "unreachable")
        if seen.state in alive or link.up or context.leaving or context.ending is not None:
            return
        if await self._endings.have_come(wait=True):
            return
        if (why := seen.extra.get("why")) and not any(other.up for other in context.links):
            words = why.removeprefix("the node ended itself: ")
            self._endings.by_others(PoolEnd.by_itself(context.name, words))
            return
        why = f"its machine is {seen.state}"
        if seen.state == "orphaned":
            if not (refused := self._revivals.refused(link.node)):
                if self._revivals.is_due(link.node):
                    await self._revive(link)
                return
            why = refused
        elif said := seen.extra.get("why"):
            why = f"{why}: {said}"
        taken = self._taken_back(link.node, seen)
        self._lose(link, taken or why, taken_back=bool(taken))
        await answered("terminate", context.name, context.provider.terminate(context.name, [machine]))

    async def _why_taken_back(self, link: Link) -> str:
        """That the machine of an agent which was ended was taken back, in words; "" where nobody knows of it."""
        context, machine = self._context, self._context.machines[link.node]
        if said := self._taken_back(link.node, machine):
            return said
        if not notices_of(context.provider, machine):
            return ""
        try:
            async with asyncio.timeout(GLANCE):
                (seen,) = await answered("describe", context.name, context.provider.describe(context.name, [machine]))
        except (SkywardError, OSError):  # the log tells of it; that it is gone is known
            return ""
        return self._taken_back(link.node, seen)

    def _taken_back(self, node: int, machine: Machine) -> str:
        return taken_back(node, machine, noticed=self._context.view.nodes[node].is_taken_back)

    async def _revive(self, link: Link) -> None:
        """Start an agent where the last one died; it adopts what it finds, and the link finds it.

        Where that fails the link goes on trying, and each of its attempts has the node examined again.
        """
        try:
            report = await self._startup.prepare(link)
        except PoolError as error:
            why = self._news.redactor.text(what_of(error))
            self._revivals.failed(link.node, why)
            _log.warning("node %d: no new agent: %s", link.node, why, extra={"pool": self._context.name})
            self._news.emit(events.NodeLink(pool=self._context.name, node=link.node, up=False, detail=why))
            return
        self._revivals.succeeded(link.node)
        _log.info("node %d: revived by a new agent", link.node, extra={"pool": self._context.name})
        report("ready", "a new agent took over")

    def _lose_silent(self, link: Link, why: str) -> None:
        """A node has not answered for too long. Its machine is left as it is; and who only watches goes on trying."""
        if not self._context.observer and self._context.ending is None:
            self._lose(link, why)

    def _lose(self, link: Link, why: str, *, taken_back: bool = False) -> None:
        context = self._context
        self.suspicion.up(link)
        link.lose(why, taken_back=taken_back)
        self._news.emit(events.NodePhase(pool=context.name, node=link.node, phase="gone", detail=why))
        left = [other for other in context.links if not other.gone]
        try:
            if context.ledger.pool(context.token).state != "stopping":
                context.ledger.pool_state(context.token, "degraded" if left else "failed")
        except LedgerError as error:  # what waits for the node must end all the same
            self._news.mention(link, f"that is not written down: {error}")
        said = f"node {link.node} is gone: {why}"
        self._news.emit(events.PoolState(pool=context.name, state="degraded", detail=said))
        self._replacements.begin(link.node)
        self._book.saw_loss()
        self._book.drop(link)


PAUSES = (1.0, 30.0)  # seconds before the second look, and at most between later ones


class Healing:
    """One pool's. Nothing is started, and no call that ended comes back: the client only goes where the nodes are.

    Args:
        renewed: as :class:`Replacements` has it.
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
        self._pause = PAUSES[0]
        self._next = 0.0
        self._looking = False

    async def look_again(self) -> None:
        """Come to nodes that are there after all, and have the pool's state say what is true."""
        pool = self._context
        if self._looking or pool.leaving or pool.view.state not in ("up", "degraded"):
            return
        self._looking = True
        try:
            away = [link for link in self._roster.away() if not self._roster.hope_for(link.node)]
            if away and self._is_due():
                for link in away:
                    await self._join(link)
            if not pool.leaving and (state := self._roster.state()[0]) != pool.view.state:
                self._roster.tell()
                if state == "up":
                    self._pause = PAUSES[0]
        finally:
            self._looking = False

    def _is_due(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self._next:
            return False
        self._next = now + self._pause
        self._pause = min(PAUSES[1], self._pause * 2)
        return True

    async def _join(self, link: Link) -> None:
        pool = self._context
        machine = pool.ledger.machines(pool.token)[link.node]
        try:
            (seen,) = await answered("describe", pool.name, pool.provider.describe(pool.name, [machine]))
            if seen.state != "running" or pool.leaving or pool.links[link.node] is not link:
                return
            await self._startup.join(machine)
            await self._renewed(False)
        except (PoolError, OSError) as error:
            self._news.emit(events.NodeLink(pool=pool.name, node=link.node, up=False, detail=what_of(error)))
