"""Recovery of unreachable and lost nodes: diagnosis, new agents, replacement machines, reconnection."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from skyward_core.model.errors import LedgerError, PoolError, SkywardError, UsageError, error_message
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.provider_capability_protocols import notice_program
from skyward_core.node.agent.peer_heartbeats import LOSS_SECONDS
from skyward_core.pool.agent_link import Link
from skyward_core.pool.pool_context import PoolContext, PoolEnd
from skyward_core.pool.preemption_notices_and_early_replacements import EarlyReplacements, describe_preemption
from skyward_core.pool.silent_and_missing_nodes import SilenceWatch, SuspectedNodes
from skyward_core.pool.unrecorded_machines_and_gone_pools import with_python
from skyward_core.providers.provider_call_logs_polling_and_cache import log_call, progress_listener
from skyward_core.store.debug_log import get_logger
from skyward_core.store.ledger_rows import Replacement
from skyward_core.store.pool_folder import parse_rank

REPLACEMENT_PAUSES = (1.0, 30.0)  # shortest and longest pause in seconds between attempts to replace a machine
POLL_INTERVAL = 0.5  # seconds between checks whether another client has replaced the machine
MACHINE_STATE_TIMEOUT = 30.0  # seconds that a provider has to report a machine's state
TERMINATE_TIMEOUT = 60.0  # seconds to terminate a useless machine; after a failure the teardown tries again


class _PoolTornDown(Exception):
    """The pool has ended, so no replacement machine is needed."""


class NodeReplacements:
    """Replacements of lost machines of one pool by one client."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news
        self._roster = context.roster
        self.early = EarlyReplacements(context, self.request_machine, self._terminate)

    def begin(self, node: int) -> None:
        """Start the replacement of a node's machine if ``Options.on_loss`` requests it."""
        tasks = self._roster.replacement_tasks
        if self._context.options.replaces_lost_nodes and node not in tasks:
            task = tasks[node] = asyncio.get_running_loop().create_task(self._replace_node(node))
            task.add_done_callback(lambda done: tasks.get(node) is done and tasks.pop(node))

    def resume(self) -> None:
        """Resume replacements that other clients did not finish, and remove finished replacements from the ledger.

        Called after this client has attached.
        """
        context = self._context
        for each in context.ledger.replacements(context.token):
            if not (context.observer or each.is_owner_alive) and context.links[each.node].up:
                context.ledger.end_replacement(context.token, each.node)
        for link in context.links:
            if link.gone:
                self.begin(link.node)

    # -- one node ------------------------------------------------------------------------------------------

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
            # If the ledger entry cannot be released, it becomes free when this client's process exits.
            with suppress(LedgerError):
                pool.ledger.release_replacement(token, node, self._roster.owner)

    async def _try_replace(self, node: int) -> str:
        """Replace a node's machine. Return the error of the ledger that prevented it, or ""."""
        if (returning := self._roster.early_returns.get(node)) is not None:
            await asyncio.wait([returning])
        try:
            found = await self._wait_for_claim(node)
            if found is not None:
                await self._retry_until_back(node, found)
        except LedgerError as error:  # the ledger cannot be written: another process has locked it, or the disk is full
            return str(error)
        return ""

    async def _wait_for_claim(self, node: int) -> Replacement | None:
        """Wait until this client owns the replacement of a node's machine.

        Return None if another client has completed the replacement.
        """
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
                # Another client has just replaced the machine, so remove the new entry and join that machine.
                if found is not None:
                    pool.ledger.end_replacement(token, node)
            await asyncio.sleep(POLL_INTERVAL)
        raise _PoolTornDown

    async def _retry_until_back(self, node: int, found: Replacement) -> None:
        """Try to replace a node's machine until a replacement is up or the time limit expires."""
        pool, token = self._context, self._context.token
        deadline = time.monotonic() + pool.options.start_timeout + float(pool.options.wait_for_capacity)
        pause, longest = REPLACEMENT_PAUSES
        while reason := await self._attempt(node, found, deadline):
            self._roster.failures[node] = reason
            if any(run.is_elastic and run.nodes for run in pool.registry.runs.values()):
                # Do not give up, because a run on fewer nodes continues on this node once the node is back.
                deadline = time.monotonic() + pool.options.start_timeout + pause
            if time.monotonic() + pause > deadline:
                pool.ledger.end_replacement(token, node)
                return self._fail(node, reason, late=True)
            self._emit_progress(node, f"{reason}; retrying in {pause:.0f} s", time.time() + pause)
            await asyncio.sleep(pause)
            pause = min(longest, pause * random.uniform(1.7, 2.3))
            entry = self._roster.ledger_entry(node)
            if entry is None:
                raise _PoolTornDown
            found = entry
        pool.ledger.end_replacement(token, node)
        await self._on_node_back(node, brought=True)

    async def _attempt(self, node: int, found: Replacement, deadline: float) -> str:
        """Try once to replace a node's machine. Return the reason of a failure, or ""."""
        pool, token = self._context, self._context.token
        limit = asyncio.timeout(max(0.0, deadline - time.monotonic()))
        try:
            async with limit:
                await self._acquire_machine(node, found)
                await self._context.startup.move_node(pool.machines[node])
        except (PoolError, UsageError, OSError) as error:
            # Providers and the operating system raise TimeoutError, too. Report a late start only if this method's own
            # limit has expired. An error without a message is still a failure.
            ours = limit.expired() and isinstance(error, TimeoutError)
            late = f"it did not start within {pool.options.start_timeout:g} s"
            reason = late if ours else error_message(error) or type(error).__name__
        else:
            reason = "it was lost again" if pool.links[node].gone else ""
            # If another client tore the pool down before this machine was recorded, that client did not terminate the
            # machine.
            if pool.ledger.pool(token).state in ("stopping", "gone"):
                await self._terminate(pool.machines[node])
                raise _PoolTornDown
        entry = self._roster.ledger_entry(node)
        if reason and entry is not None and entry.made:
            # Terminate the useless machine. It stays in the ledger, and becomes a former machine when there is another.
            await self._terminate(pool.machines[node])
            pool.ledger.restart_replacement(token, node, secrets.token_hex(8))
        return reason

    async def _terminate(self, machine: Machine) -> None:
        """Terminate an unwanted machine. If that fails, the pool's teardown terminates it."""
        pool = self._context
        # Ignore the error, which is in the debug log; the teardown tries the termination again.
        with suppress(PoolError, UsageError, OSError):
            work = asyncio.wait_for(pool.provider.terminate(pool.name, [machine]), TERMINATE_TIMEOUT)
            await log_call("terminate", pool.name, work)

    async def _acquire_machine(self, node: int, found: Replacement) -> None:
        """Create the replacement machine and record it in the ledger."""
        pool, token = self._context, self._context.token
        machines = pool.ledger.machines(token)
        if found.made:  # the ledger says that a former client created the machine before it exited
            pool.machines[node] = machines[node]
            return
        # Fetch the configuration before renting a machine, because a machine is useless without it.
        await pool.setup.fetch_from_nodes()
        self._emit_progress(node, "requesting another machine")
        early = self._roster.early_requests.pop(node, None)
        with progress_listener(lambda text: self._emit_progress(node, text)):
            machine = (await early if early is not None else None) or await self.request_machine(node, found)
        machine = replace(with_python(machine, pool.row), logs_from=self._close_logs(node))
        if not pool.ledger.record_replacement(token, machine):
            raise _PoolTornDown
        pool.machines[node] = machine

    async def request_machine(self, node: int, found: Replacement) -> Machine:
        """Request another machine for a node from the provider."""
        pool, machines = self._context, self._context.ledger.machines(self._context.token)
        others = [machine for machine in machines if machine.node != node]
        former = [*pool.ledger.replaced_machines(pool.token), machines[node]]
        return await log_call(
            "replace", pool.name, pool.provider.replace(pool.name, found.intent, node, others, former)
        )

    def _close_logs(self, node: int) -> dict[str, int]:
        """Complete the last line of each log file of a lost node. Return the offset of the next byte, by log file."""
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
        """Connect to a node's new machine, which another client has started. Return whether the node answered."""
        pool, before = self._context, self._context.machines[node]
        machine = pool.ledger.machines(pool.token)[node]
        try:
            await self._context.startup.join_machine(machine)
        except (PoolError, UsageError, OSError) as error:
            self._emit_progress(node, error_message(error), time.time() + POLL_INTERVAL)
            # If the new machine may be alive, try to join it again. If the new machine is dead, replace it next.
            pool.machines[node] = before if await self._may_be_alive(machine) else machine
            return False
        await self._on_node_back(node, brought=False)
        return True

    async def _may_be_alive(self, machine: Machine) -> bool:
        """Check whether a machine runs, or its state is unknown."""
        pool = self._context
        try:
            work = asyncio.wait_for(pool.provider.describe(pool.name, [machine]), MACHINE_STATE_TIMEOUT)
            (seen,) = await log_call("describe", pool.name, work)
        except (PoolError, UsageError, OSError):
            # The debug log contains the provider's error; the caller treats the state as unknown.
            return True
        return seen.state in ("running", "unreachable")

    async def _on_node_back(self, node: int, *, brought: bool) -> None:
        """Allow runs on a node whose machine was replaced.

        Reports a ledger error without a retry, because a retry would replace a machine that works.
        """
        self._roster.replacement_tasks.pop(node, None)
        self._roster.failures.pop(node, None)
        try:
            await self._context.setup.on_node_replaced(brought)
        except LedgerError as error:
            self._news.emit_node_note(
                self._context.links[node], f"the replacement was not saved in the ledger: {error}"
            )
            self._roster.emit_state()

    # -- messages ------------------------------------------------------------------------------------------

    def _emit_progress(self, node: int, detail: str, retry_at: float | None = None) -> None:
        self._news.emit_phase(node, "requested", detail, retry_at)
        self._news.emit_state("degraded", f"node {node} is lost: {detail}")

    def _fail(self, node: int, reason: str, *, late: bool = False) -> None:
        """Give up the replacement of a node. ``late``: whether the time limit has expired."""
        pool = self._context
        within = f" within {pool.options.start_timeout:g} s" if late else ""
        failure = f"no replacement machine{within}: {reason}"
        self._roster.failures[node] = failure
        self._news.emit_phase(node, "gone", failure)
        detail = f"node {node} is lost, {failure}; the next client that attaches to the pool tries to replace it again"
        self._news.emit_state("degraded", detail)


MAX_STARTS = 3  # maximum agents started per node within RESTART_WINDOW; more deaths indicate a persistent fault
RESTART_WINDOW = 60.0  # seconds over which the started agents of a node are counted
MAX_FAILURES = 4  # maximum consecutive failed starts of a node's agent, after which no further agent is started
PAUSE = 0.5  # seconds after the first failed start of a node's agent; doubled after each further failure


class RestartLimiter:
    """Limits on how often and how soon the agent of a node is restarted after failures.

    Args:
        clock: Returns seconds; replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started: dict[int, list[float]] = {}
        # Node -> time and reason of each failed start of an agent since the last successful start.
        self._failed: dict[int, list[tuple[float, str]]] = {}

    def refusal_reason(self, node: int) -> str:
        """Return the reason why a node gets no new agent; "" if it may get one."""
        failed = self._failed.get(node, [])
        if len(failed) >= MAX_FAILURES:
            return f"{len(failed)} attempts to start a new agent failed; the last: {failed[-1][1]}"
        recent = self._started[node] = [at for at in self._started.get(node, ()) if self._clock() - at < RESTART_WINDOW]
        if len(recent) >= MAX_STARTS:
            return f"its agent died {len(recent) + 1} times within {RESTART_WINDOW:.0f} s"
        return ""

    def is_due(self, node: int) -> bool:
        """Check whether the pause after a node's last failed start of an agent has ended."""
        failed = self._failed.get(node)
        return not failed or self._clock() - failed[-1][0] >= PAUSE * 2 ** (len(failed) - 1)

    def add_failure(self, node: int, reason: str) -> None:
        """Record a failed start of a node's agent."""
        self._failed.setdefault(node, []).append((self._clock(), reason))

    def add_success(self, node: int) -> None:
        """Record a successful start of a node's agent."""
        self._failed.pop(node, None)
        self._started.setdefault(node, []).append(self._clock())


_log = get_logger("node")

DESCRIBE_TIMEOUT = 10.0  # seconds for a provider to report why a machine ended
RECONNECT_PAUSES = (1.0, 30.0)  # shortest and longest pause in seconds between attempts to reconnect to a lost node
RETRY_DELAY = 1.0  # seconds until a failed diagnosis is repeated


class NodeRecovery:
    """Recovery of the nodes of one pool: diagnosis, new agents, replacements, reconnection.

    Attributes:
        suspects: Nodes that do not answer.
        silence_watch: Watch for silent nodes by several witnesses, while runs that may restart are active.
        replacements: Replacements of lost machines.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news
        self._restart_limiter = RestartLimiter()
        self._diagnosing: dict[int, asyncio.Task[None] | None] = {}
        # Link of a lost node -> statements of the nodes that got no answer from it.
        self._testimonies: dict[Link, str] = {}
        self.suspects = SuspectedNodes(context.options.lost_after, self._on_suspicion_timeout)
        self.silence_watch = SilenceWatch(context, self._on_witnessed_loss)
        self.replacements = NodeReplacements(context)
        self._reconnect_pause = RECONNECT_PAUSES[0]
        self._reconnect_at = 0.0
        self._is_reconnecting = False

    def on_disconnect(self, link: Link, detail: str) -> str:
        """Return the message for a lost link, including the time at which the node will count as lost."""
        context = self._context
        ends = link.silent or link.finished or link.gone or context.leaving or context.external_end
        until = "" if ends else self.suspects.on_unreachable(link)
        return f"{detail}; {until}" if until else detail

    def diagnose(self, link: Link) -> None:
        """Find out in the background why a node does not answer, and repair or replace it."""
        self._context.background.spawn(self._diagnose(link))

    async def _diagnose(self, link: Link) -> None:
        if link.node in self._diagnosing:
            return
        self._diagnosing[link.node] = task = asyncio.current_task()
        try:
            async with self._context.roster.decision_lock(link.node) as decided:
                await self._handle_failure(link, decided)
        except (SkywardError, OSError) as error:
            self._news.emit_node_note(link, f"cannot determine the state of node {link.node}: {error_message(error)}")
            if link.finished:  # repeat the diagnosis, because a link that no longer reconnects triggers none
                link.loop.call_later(RETRY_DELAY, self._retry_diagnosis, link)
        finally:
            if self._diagnosing.get(link.node) is task:
                del self._diagnosing[link.node]

    def _retry_diagnosis(self, link: Link) -> None:
        if not (self._context.leaving or link.gone or self._context.external_end):
            self.diagnose(link)

    async def _handle_failure(self, link: Link, decided: bool) -> None:
        context = self._context
        testimony = self._testimonies.pop(link, "")
        is_back = link.silence_seconds < LOSS_SECONDS if testimony else link.up
        if link is not context.links[link.node] or is_back or link.gone:
            return  # while this client waited for the lock, the node returned or was replaced
        if decided:
            self._mark_lost(link, "another client replaces its machine")
            return
        if testimony:
            self._mark_lost(link, testimony)
            link.abandon()
            return
        if await self._context.shutdown.check_ended(wait=link.finished):
            return
        if link.finished:
            preemption = await self._find_preemption(link)
            self._mark_lost(link, preemption or "its agent was ended on its machine", taken_back=bool(preemption))
            return
        machine = context.machines[link.node]
        (seen,) = await context.describe([machine])
        # "unreachable" means that only the link is down, so the machine may be healthy. "lost" means that one other
        # node gets no answer from the machine either. Ignore "lost" in a standalone pool, whose nodes do not connect to
        # each other, and if the silence watch decides, because the watch asks several nodes.
        alive = ["running", "unreachable"]
        if context.is_standalone or self.silence_watch.decides(link):
            alive.append("lost")
        if seen.state in alive or link.up or context.leaving or context.external_end is not None:
            return
        if await self._context.shutdown.check_ended(wait=True):
            return
        preemption = self._describe_preemption(link.node, seen)
        returns = preemption and context.options.replaces_lost_nodes
        if (reason := seen.extra.get("why")) and not returns and not any(other.up for other in context.links):
            words = reason.removeprefix("the node ended itself: ")
            self._context.shutdown.on_external_end(PoolEnd(context.name, "", words, time.time()))
            return
        reason = f"its machine is {seen.state}"
        if seen.state == "orphaned":
            if not (refused := self._restart_limiter.refusal_reason(link.node)):
                if self._restart_limiter.is_due(link.node):
                    await self._restart_agent(link)
                return
            reason = refused
        elif cause := seen.extra.get("why"):
            reason = f"{reason}: {cause}"
        self._mark_lost(link, preemption or reason, taken_back=bool(preemption))
        await context.terminate(machine)

    async def _find_preemption(self, link: Link) -> str:
        """Describe the preemption of a terminated agent's machine; "" if none is known."""
        context, machine = self._context, self._context.machines[link.node]
        if text := self._describe_preemption(link.node, machine):
            return text
        if not notice_program(context.provider, machine):
            return ""
        try:
            async with asyncio.timeout(DESCRIBE_TIMEOUT):
                (seen,) = await context.describe([machine])
        except (SkywardError, OSError):
            # The debug log contains the provider's error; without its answer the preemption stays unknown.
            return ""
        return self._describe_preemption(link.node, seen)

    def _describe_preemption(self, node: int, machine: Machine) -> str:
        return describe_preemption(node, machine, noticed=self._context.view.nodes[node].is_preempted)

    async def _restart_agent(self, link: Link) -> None:
        """Start a new agent on a node whose agent died.

        The new agent adopts the running workers, and the link reconnects to it. If the start fails, the link continues
        to reconnect, and each of its failed attempts triggers another diagnosis.
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

    def _on_witnessed_loss(self, link: Link, testimony: str) -> None:
        """Treat a node as lost because its witnesses get no answer from it.

        The node needs no diagnosis, because it does not answer this client either. Does not terminate the machine.
        """
        if (task := self._diagnosing.pop(link.node, None)) is not None:
            task.cancel()
        self._testimonies[link] = testimony
        self.diagnose(link)

    def _on_suspicion_timeout(self, link: Link, reason: str) -> None:
        """Treat a node as lost because it was unreachable for too long. Do not terminate the node's machine.

        Observers continue to reconnect.
        """
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
        except LedgerError as error:  # mark the node as lost even without the ledger, because calls on it must end
            self._news.emit_node_note(link, f"the loss was not saved in the ledger: {error}")
        self._news.emit_state("degraded", f"node {link.node} is lost: {reason}")
        self.replacements.begin(link.node)
        self._context.registry.on_node_lost()
        self._context.registry.drop_link(link)

    async def release_preempted(self, run: str) -> None:
        """After an attempt of a run, give up the machines that will be preempted, unless other runs are active.

        The nodes then get replacement machines before the preemption.
        """
        context = self._context
        links = [link for link in context.present_links if context.view.nodes[link.node].is_preempted]
        others = any(each.state == "running" and each.id != run for each in context.view.runs.values())
        if others or not (links and context.options.replaces_lost_nodes):
            return
        await context.setup.fetch_from_nodes()
        released: list[Machine] = []
        for link in links:
            async with context.roster.decision_lock(link.node) as decided:
                if not (decided or link.gone or link is not context.links[link.node]):
                    released.append(context.machines[link.node])
                    self._mark_lost(link, self._describe_preemption(link.node, released[-1]), taken_back=True)
        if released:  # end all preempted machines with one request, because Slurm can only end a whole allocation
            await log_call("terminate", context.name, context.provider.terminate(context.name, released))

    # -- nodes that return ---------------------------------------------------------------------------------

    async def reconnect_lost(self) -> None:
        """Reconnect to lost nodes that run again, and publish the pool's actual state."""
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
