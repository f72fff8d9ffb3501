"""Silent and lost nodes: suspicion, revival, replacement."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from skyward_core.model.errors import LedgerError, PoolError, SkywardError, UsageError, error_message
from skyward_core.model.machines import Machine
from skyward_core.model.provider_capabilities import notice_program
from skyward_core.pool.agent_link import Link
from skyward_core.pool.ledger_reconciliation import with_python
from skyward_core.pool.node_roster import describe_preemption
from skyward_core.pool.pool_context import PoolContext, PoolEnd
from skyward_core.providers.provider_calls import log_call, progress_listener
from skyward_core.store.debug_log import get_logger
from skyward_core.store.ledger_rows import Replacement
from skyward_core.store.pool_folder import parse_rank

REPLACEMENT_PAUSES = (1.0, 30.0)  # seconds before the second attempt, and at most between later ones
POLL_INTERVAL = 0.5  # seconds between looks at what another client makes of it
MACHINE_STATE_TIMEOUT = 30.0  # seconds for a provider to say how it is with a machine
TERMINATE_TIMEOUT = 60.0  # seconds for it to end one that is of no use; the teardown has it ended again


class _PoolTornDown(Exception):
    """The pool ends: no machine is wanted any more."""


class NodeReplacements:
    """Replacements of lost machines of one pool, as one client performs them."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news
        self._roster = context.roster

    def begin(self, node: int) -> None:
        """Have another machine take a node's place, where the pool's options ask for that."""
        tasks = self._roster.replacement_tasks
        if self._context.options.on_loss == "replace" and node not in tasks:
            task = tasks[node] = asyncio.get_running_loop().create_task(self._replace_node(node))
            task.add_done_callback(lambda done: tasks.get(node) is done and tasks.pop(node))

    def resume(self) -> None:
        """After coming to a pool: go on with what others left, and forget what they finished."""
        context = self._context
        for each in context.ledger.replacements(context.token):
            if not (context.observer or each.is_owner_alive) and context.links[each.node].up:
                context.ledger.end_replacement(context.token, each.node)
        for link in context.links:
            if link.gone:
                self.begin(link.node)

    # -- one node ----------------------------------------------------------------------------------------

    async def _replace_node(self, node: int) -> None:
        pool, token = self._context, self._context.token
        self._roster.failures.pop(node, None)
        deadline = time.monotonic() + pool.options.start_timeout
        try:
            while reason := await self._try_replace(node):
                if time.monotonic() > deadline:
                    return self._fail(node, reason, late=True)
                self._emit_progress(node, reason, time.time() + POLL_INTERVAL)
                await asyncio.sleep(POLL_INTERVAL)
        except _PoolTornDown:
            return
        except (SkywardError, OSError) as error:
            self._fail(node, error_message(error))
        finally:
            with suppress(LedgerError):  # it is taken over once this process is gone
                pool.ledger.release_replacement(token, node, self._roster.owner)

    async def _try_replace(self, node: int) -> str:
        """See to a node; gives why the ledger kept us from it, "" if it did not."""
        try:
            found = await self._wait_for_claim(node)
            if found is not None:
                await self._retry_until_back(node, found)
        except LedgerError as error:  # in another process's hands for a moment, or its disk is full
            return str(error)
        return ""

    async def _wait_for_claim(self, node: int) -> Replacement | None:
        """Wait until it is for us to see to a node; None once another client has."""
        pool, token = self._context, self._context.token
        while pool.view.is_live:
            if self._roster.is_superseded(node):
                entry = self._roster.ledger_entry(node)
                if (entry is None or not entry.is_owner_alive) and await self._try_join(node):
                    return None
            elif not pool.observer:
                found = pool.ledger.record_replacement_intent(token, node, secrets.token_hex(8), self._roster.owner)
                if found is not None and (found.made or not self._roster.is_superseded(node)):
                    return found
                if found is not None:  # another client was done with it just now
                    pool.ledger.end_replacement(token, node)
            await asyncio.sleep(POLL_INTERVAL)
        raise _PoolTornDown

    async def _retry_until_back(self, node: int, found: Replacement) -> None:
        """Try until a node is back, or its time is over."""
        pool, token = self._context, self._context.token
        deadline = time.monotonic() + pool.options.start_timeout
        pause, longest = REPLACEMENT_PAUSES
        while reason := await self._attempt(node, found, deadline):
            if time.monotonic() + pause > deadline:
                pool.ledger.end_replacement(token, node)
                return self._fail(node, reason, late=True)
            self._emit_progress(node, f"{reason}; asked again in {pause:.0f} s", time.time() + pause)
            await asyncio.sleep(pause)
            pause = min(longest, pause * random.uniform(1.7, 2.3))
            entry = self._roster.ledger_entry(node)
            if entry is None:
                raise _PoolTornDown
            found = entry
        pool.ledger.end_replacement(token, node)
        await self._on_node_back(node, brought=True)

    async def _attempt(self, node: int, found: Replacement, deadline: float) -> str:
        """Try once; gives why it failed, "" if it did not."""
        pool, token = self._context, self._context.token
        limit = asyncio.timeout(max(0.0, deadline - time.monotonic()))
        try:
            async with limit:
                await self._acquire_machine(node, found)
                await self._context.startup.move_node(pool.machines[node])
        except (PoolError, UsageError, OSError) as error:
            # Providers and the system have time limits, too: only our own limit gets our message. An error without a
            # message is still a failure.
            ours = limit.expired() and isinstance(error, TimeoutError)
            late = f"it was not up after {pool.options.start_timeout:g} s"
            reason = late if ours else error_message(error) or type(error).__name__
        else:
            reason = "it was lost again" if pool.links[node].gone else ""
            # Somebody may end the pool meanwhile, and have seen nothing of this machine.
            if pool.ledger.pool(token).state in ("stopping", "gone"):
                await self._terminate(pool.machines[node])
                raise _PoolTornDown
        entry = self._roster.ledger_entry(node)
        if reason and entry is not None and entry.made:
            # It exists and is of no use. It stays in the ledger, among the former ones once there is another.
            await self._terminate(pool.machines[node])
            pool.ledger.restart_replacement(token, node, secrets.token_hex(8))
        return reason

    async def _terminate(self, machine: Machine) -> None:
        """Have a machine ended that is not wanted; one that cannot be ended now is left to the pool's teardown."""
        pool = self._context
        with suppress(PoolError, UsageError, OSError):  # the log tells of it
            work = asyncio.wait_for(pool.provider.terminate(pool.name, [machine]), TERMINATE_TIMEOUT)
            await log_call("terminate", pool.name, work)

    async def _acquire_machine(self, node: int, found: Replacement) -> None:
        """Have a machine, and have it in the ledger."""
        pool, token = self._context, self._context.token
        machines = pool.ledger.machines(token)
        if found.made:  # by a client that went away meanwhile
            pool.machines[node] = machines[node]
            return
        # First, as long as nothing is paid: nobody could make use of a machine that cannot be told what it is for.
        await pool.setup.fetch_from_nodes()
        self._emit_progress(node, "another machine is asked for")
        others = [machine for machine in machines if machine.node != node]
        former = [*pool.ledger.replaced_machines(token), machines[node]]
        with progress_listener(lambda text: self._emit_progress(node, text)):
            machine = await log_call(
                "replace", pool.name, pool.provider.replace(pool.name, found.intent, node, others, former)
            )
        machine = replace(with_python(machine, pool.row), logs_from=self._close_logs(node))
        if not pool.ledger.record_replacement(token, machine):
            raise _PoolTornDown
        pool.machines[node] = machine

    def _close_logs(self, node: int) -> dict[str, int]:
        """End what the lost machine printed, mid-line perhaps; log file -> where the next one goes on."""
        pool = self._context
        ends = {}
        for name, size in pool.archive.log_sizes().items():
            if parse_rank(name) in pool.ranks_of(node):
                if size and pool.archive.read_log_tail(name, 1) != b"\n":
                    self._news.log_receiver.receive(name, size, b"\n")
                    size += 1
                ends[name] = size
        return ends

    async def _try_join(self, node: int) -> bool:
        """Come to the machine that another client has put in a node's place; says whether that worked."""
        pool, before = self._context, self._context.machines[node]
        machine = pool.ledger.machines(pool.token)[node]
        try:
            await self._context.startup.join_machine(machine)
        except (PoolError, UsageError, OSError) as error:
            self._emit_progress(node, error_message(error), time.time() + POLL_INTERVAL)
            # Of a machine that is there we are only cut off; another one is put in the place of one that is not.
            pool.machines[node] = before if await self._may_be_alive(machine) else machine
            return False
        await self._on_node_back(node, brought=False)
        return True

    async def _may_be_alive(self, machine: Machine) -> bool:
        """Whether a machine lives, by its provider's word, or nothing can be said of it now."""
        pool = self._context
        try:
            work = asyncio.wait_for(pool.provider.describe(pool.name, [machine]), MACHINE_STATE_TIMEOUT)
            (seen,) = await log_call("describe", pool.name, work)
        except (PoolError, UsageError, OSError):  # the log tells of it
            return True
        return seen.state in ("running", "unreachable")

    async def _on_node_back(self, node: int, *, brought: bool) -> None:
        """A node is there again: runs may start. Were we to try again what the ledger refuses now, it would get
        another machine although it has one that works."""
        self._roster.replacement_tasks.pop(node, None)
        try:
            await self._context.setup.on_node_replaced(brought)
        except LedgerError as error:
            self._news.emit_node_note(self._context.links[node], f"that it is back is not written down: {error}")
            self._roster.emit_state()

    # -- what is said ------------------------------------------------------------------------------------

    def _emit_progress(self, node: int, detail: str, retry_at: float | None = None) -> None:
        self._news.emit_phase(node, "requested", detail, retry_at)
        self._news.emit_state("degraded", f"node {node} is gone: {detail}")

    def _fail(self, node: int, reason: str, *, late: bool = False) -> None:
        """A node gets no other machine. ``late``: the time for that is over."""
        pool = self._context
        within = f" within {pool.options.start_timeout:g} s" if late else ""
        said = f"no other machine{within}: {reason}"
        self._roster.failures[node] = said
        self._news.emit_phase(node, "gone", said)
        detail = f"node {node} is gone, and there was {said}; whoever attaches to the pool has it tried anew"
        self._news.emit_state("degraded", detail)


MAX_STARTS = 3  # agents that a node may get within the window; more than that is no accident
RESTART_WINDOW = 60.0  # seconds
MAX_FAILURES = 4  # starts that may fail in a row
PAUSE = 0.5  # seconds after the first of them; twice as long after each further one


class RestartLimiter:
    """Of the nodes of one pool.

    Args:
        clock: seconds; for tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started: dict[int, list[float]] = {}
        self._failed: dict[int, list[tuple[float, str]]] = {}  # since one came up: when, and why

    def refusal_reason(self, node: int) -> str:
        """Why the node gets no further agent; "" if it may have one."""
        failed = self._failed.get(node, [])
        if len(failed) >= MAX_FAILURES:
            return f"{len(failed)} attempts to start a new agent failed; the last: {failed[-1][1]}"
        recent = self._started[node] = [at for at in self._started.get(node, ()) if self._clock() - at < RESTART_WINDOW]
        if len(recent) >= MAX_STARTS:
            return f"its agent died {len(recent) + 1} times within {RESTART_WINDOW:.0f} s"
        return ""

    def is_due(self, node: int) -> bool:
        """Whether the last start that failed is long enough ago."""
        failed = self._failed.get(node)
        return not failed or self._clock() - failed[-1][0] >= PAUSE * 2 ** (len(failed) - 1)

    def add_failure(self, node: int, reason: str) -> None:
        """A start came to nothing."""
        self._failed.setdefault(node, []).append((self._clock(), reason))

    def add_success(self, node: int) -> None:
        """A new agent runs."""
        self._failed.pop(node, None)
        self._started.setdefault(node, []).append(self._clock())


class SuspectedNodes:
    """Of the nodes of one pool, as one client reaches them.

    Args:
        lost_after: seconds that a node has to answer; None for no limit.
        lose: told of a node that has not, with when it fell silent and when it was taken as lost.
    """

    def __init__(self, lost_after: float | None, lose: Callable[[Link, str], None]) -> None:
        self._lost_after = lost_after
        self._on_lost = lose
        self._since: dict[Link, tuple[float, asyncio.TimerHandle]] = {}

    def on_unreachable(self, link: Link) -> str:
        """A node is out of reach, now or still; says since when, and until when it is waited for."""
        if self._lost_after is None:
            return ""
        if link not in self._since:
            timer = link.loop.call_later(self._lost_after, self._on_timeout, link)
            self._since[link] = time.time(), timer
        since, _ = self._since[link]
        return f"suspected since {_clock(since)}, taken as lost at {_clock(since + self._lost_after)}"

    def clear(self, link: Link) -> None:
        """It answers, or is known to be gone."""
        if (suspected := self._since.pop(link, None)) is not None:
            suspected[1].cancel()

    def stop(self) -> None:
        """The pool is left."""
        for link in list(self._since):
            self.clear(link)

    def _on_timeout(self, link: Link) -> None:
        since, _ = self._since.pop(link)
        if not link.up and not link.gone:
            now = time.time()
            words = f"no answer since {_clock(since)}, lost at {_clock(now)}, after {self._lost_after:g} s"
            self._on_lost(link, words)


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


_log = get_logger("node")

DESCRIBE_TIMEOUT = 10.0  # seconds for a provider to say why a machine ended
RECONNECT_PAUSES = (1.0, 30.0)  # seconds before the second look, and at most between later ones
RETRY_DELAY = 1.0  # seconds before a node that could not be examined is examined once more


class NodeRecovery:
    """Recovery of the nodes of one pool: suspicion, new agents, replacements, reconnection.

    Attributes:
        suspects: Nodes that do not answer.
        replacements: Replacements of lost machines.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news
        self._restart_limiter = RestartLimiter()
        self._diagnosing: set[int] = set()
        self.suspects = SuspectedNodes(context.options.lost_after, self._on_suspicion_timeout)
        self.replacements = NodeReplacements(context)
        self._reconnect_pause = RECONNECT_PAUSES[0]
        self._reconnect_at = 0.0
        self._is_reconnecting = False

    def on_disconnect(self, link: Link, detail: str) -> str:
        """A link is down: gives what is to be said of it, with until when it is waited for."""
        context = self._context
        ends = link.silent or link.finished or link.gone or context.leaving or context.external_end
        until = "" if ends else self.suspects.on_unreachable(link)
        return f"{detail}; {until}" if until else detail

    def diagnose(self, link: Link) -> None:
        """Have it found out what became of a node, and done what that asks for."""
        self._context.background.spawn(self._diagnose(link))

    async def _diagnose(self, link: Link) -> None:
        if link.node in self._diagnosing:
            return
        self._diagnosing.add(link.node)
        try:
            async with self._context.roster.decision_lock(link.node) as decided:
                await self._handle_failure(link, decided)
        except (SkywardError, OSError) as error:
            self._news.emit_node_note(
                link, f"it cannot be told whether node {link.node} is there: {error_message(error)}"
            )
            if link.finished:  # it tries no more, so nothing else would have it examined again
                link.loop.call_later(RETRY_DELAY, self._retry_diagnosis, link)
        finally:
            self._diagnosing.discard(link.node)

    def _retry_diagnosis(self, link: Link) -> None:
        if not (self._context.leaving or link.gone or self._context.external_end):
            self.diagnose(link)

    async def _handle_failure(self, link: Link, decided: bool) -> None:
        context = self._context
        if link is not context.links[link.node] or link.up or link.gone:
            return  # while another client decided
        if decided:
            self._mark_lost(link, "another client sees to another machine in its place")
            return
        if await self._context.shutdown.check_ended(wait=link.finished):
            return
        if link.finished:
            taken = await self._find_preemption(link)
            self._mark_lost(link, taken or "its agent was ended on its machine", taken_back=bool(taken))
            return
        machine = context.machines[link.node]
        (seen,) = await context.describe([machine])
        # "unreachable" is a link that is down: a network cut ends no healthy machine.
        # So is "lost" where nodes do not reach each other: that peers get no answer either says nothing.
        alive = ("running", "unreachable", "lost") if context.is_standalone else ("running", "unreachable")
        if seen.state in alive or link.up or context.leaving or context.external_end is not None:
            return
        if await self._context.shutdown.check_ended(wait=True):
            return
        if (reason := seen.extra.get("why")) and not any(other.up for other in context.links):
            words = reason.removeprefix("the node ended itself: ")
            self._context.shutdown.on_external_end(PoolEnd.from_expiry(context.name, words))
            return
        reason = f"its machine is {seen.state}"
        if seen.state == "orphaned":
            if not (refused := self._restart_limiter.refusal_reason(link.node)):
                if self._restart_limiter.is_due(link.node):
                    await self._restart_agent(link)
                return
            reason = refused
        elif said := seen.extra.get("why"):
            reason = f"{reason}: {said}"
        taken = self._describe_preemption(link.node, seen)
        self._mark_lost(link, taken or reason, taken_back=bool(taken))
        await context.terminate(machine)

    async def _find_preemption(self, link: Link) -> str:
        """That the machine of an agent which was ended was taken back, in words; "" where nobody knows of it."""
        context, machine = self._context, self._context.machines[link.node]
        if said := self._describe_preemption(link.node, machine):
            return said
        if not notice_program(context.provider, machine):
            return ""
        try:
            async with asyncio.timeout(DESCRIBE_TIMEOUT):
                (seen,) = await context.describe([machine])
        except (SkywardError, OSError):  # the log tells of it; that it is gone is known
            return ""
        return self._describe_preemption(link.node, seen)

    def _describe_preemption(self, node: int, machine: Machine) -> str:
        return describe_preemption(node, machine, noticed=self._context.view.nodes[node].is_preempted)

    async def _restart_agent(self, link: Link) -> None:
        """Start an agent where the last one died; it adopts what it finds, and the link finds it.

        Where that fails the link goes on trying, and each of its attempts has the node examined again.
        """
        try:
            report = await self._context.startup.prepare(link)
        except PoolError as error:
            reason = self._news.redactor.redact_text(error_message(error))
            self._restart_limiter.add_failure(link.node, reason)
            _log.warning("node %d: no new agent: %s", link.node, reason, extra={"pool": self._context.name})
            self._news.emit_link(link, False, reason)
            return
        self._restart_limiter.add_success(link.node)
        _log.info("node %d: revived by a new agent", link.node, extra={"pool": self._context.name})
        report("ready", "a new agent took over")

    def _on_suspicion_timeout(self, link: Link, reason: str) -> None:
        """A node has not answered for too long. Its machine is left as it is; and who only watches goes on trying."""
        if not self._context.observer and self._context.external_end is None:
            self._mark_lost(link, reason)

    def _mark_lost(self, link: Link, reason: str, *, taken_back: bool = False) -> None:
        context = self._context
        self.suspects.clear(link)
        link.mark_lost(reason, taken_back=taken_back)
        self._news.emit_phase(link.node, "gone", reason)
        try:
            if context.ledger.pool(context.token).state != "stopping":
                context.ledger.set_pool_state(context.token, "degraded" if context.present_links else "failed")
        except LedgerError as error:  # what waits for the node must end all the same
            self._news.emit_node_note(link, f"that is not written down: {error}")
        self._news.emit_state("degraded", f"node {link.node} is gone: {reason}")
        self.replacements.begin(link.node)
        self._context.registry.on_node_lost()
        self._context.registry.drop_link(link)

    # -- nodes that are there after all ------------------------------------------------------------------

    async def reconnect_lost(self) -> None:
        """Come to nodes that are there after all, and have the pool's state say what is true."""
        pool = self._context
        if self._is_reconnecting or pool.leaving or pool.view.state not in ("up", "degraded"):
            return
        self._is_reconnecting = True
        try:
            away = [link for link in pool.roster.disconnected_links() if not pool.roster.may_return(link.node)]
            if away and self._is_reconnection_due():
                for link in away:
                    await self._try_join(link)
            if not pool.leaving and (state := pool.roster.state()[0]) != pool.view.state:
                pool.roster.emit_state()
                if state == "up":
                    self._reconnect_pause = RECONNECT_PAUSES[0]
        finally:
            self._is_reconnecting = False

    def _is_reconnection_due(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self._reconnect_at:
            return False
        self._reconnect_at = now + self._reconnect_pause
        self._reconnect_pause = min(RECONNECT_PAUSES[1], self._reconnect_pause * 2)
        return True

    async def _try_join(self, link: Link) -> None:
        pool = self._context
        machine = pool.ledger.machines(pool.token)[link.node]
        try:
            (seen,) = await pool.describe([machine])
            if seen.state != "running" or pool.leaving or pool.links[link.node] is not link:
                return
            await pool.startup.join_machine(machine)
            await pool.setup.on_node_replaced(False)
        except (PoolError, OSError) as error:
            self._news.emit_link(link, False, error_message(error))
