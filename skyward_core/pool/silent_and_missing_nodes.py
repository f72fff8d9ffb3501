"""Silent nodes and their detection, and missing nodes and the replacements of their machines."""

from __future__ import annotations

import asyncio
import math
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING

from skyward_core.model.outcomes_states_and_alerts import PoolStatus
from skyward_core.pool.agent_link import Link
from skyward_core.pool.preemption_notices_and_early_replacements import is_being_preempted
from skyward_core.store.ledger_rows import Replacement, process_mark
from skyward_core.transport.background_loop import cancel_tasks
from skyward_core.util.safe_file_access import try_lock
from skyward_core.views import events, group_pairs

if TYPE_CHECKING:
    from skyward_core.model.machines_checks_and_gpu_use import Machine
    from skyward_core.node.agent.peer_heartbeats import LossState, Witness
    from skyward_core.pool import PoolContext
    from skyward_core.protocol.frame_types import HeartbeatsAnswer


CANCEL_TIMEOUT = 5.0  # maximum seconds to wait until a replacement is cancelled
POLL_INTERVAL = 0.02  # seconds between checks whether replacements have ended
MAX_NAMED_NODES = 3  # maximum nodes that the pool's state lists by name; further nodes are only counted


class NodeRoster:
    """Missing and replaced nodes of one pool.

    Attributes:
        owner: Unique id of this client, for tasks that only one of the pool's clients performs.
        replacement_tasks: Node -> task that replaces the node's machine.
        early_requests: Node -> request for another machine before the node's present one is preempted.
        early_returns: Node -> termination of the machine of an early request that no run needs any more.
        failures: Node -> reason why the node got no replacement machine.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self.owner = f"{process_mark()}.{secrets.token_hex(4)}"
        self.replacement_tasks: dict[int, asyncio.Task[None]] = {}
        self.early_requests: dict[int, asyncio.Task[Machine | None]] = {}
        self.early_returns: dict[int, asyncio.Task[None]] = {}
        self.failures: dict[int, str] = {}

    # -- missing nodes -------------------------------------------------------------------------------------

    def disconnected_links(self) -> list[Link]:
        """Return the links that are down and do not reconnect, and an observer's links that never were up."""
        new = self._context.observer
        return [
            link
            for link in self._context.links
            if link.gone or not (link.up or (link.is_reconnecting and (link.welcome or not new)))
        ]

    def state(self) -> tuple[PoolStatus, str]:
        """Return the pool's state and a description of the missing nodes."""
        away = self.disconnected_links()
        if not away:
            return "up", ""
        nodes = [self._context.view.nodes[link.node] for link in away]
        missing = [
            f"node {node.index} {reason}" if (reason := node.link_detail or node.detail) else f"node {node.index}"
            for node in nodes[:MAX_NAMED_NODES]
        ]
        more = f" and {len(away) - MAX_NAMED_NODES} more" if len(away) > MAX_NAMED_NODES else ""
        return "degraded", f"missing: {'; '.join(missing)}{more}"

    def emit_state(self) -> None:
        """Publish the pool's state."""
        state, detail = self.state()
        self._context.news.emit_state(state, detail)

    def report_wait(self, words: str) -> None:
        """Publish the reason why runs wait. The reason "" means that no run waits."""
        if words:
            self._context.news.emit_warning(words)
        else:
            self.emit_state()

    def save_state(self) -> None:
        """Publish the pool's state and save it in the ledger."""
        context = self._context
        if not context.observer:  # an observer does not save the state, because it must not write to the ledger
            context.ledger.set_pool_state(context.token, self.state()[0])
        self.emit_state()

    # -- nodes that may return -----------------------------------------------------------------------------

    @property
    def is_replacing(self) -> bool:
        """Whether replacements are in progress."""
        return bool(self.replacement_tasks)

    def may_return(self, node: int) -> bool:
        """Check whether a replacement for a lost node's machine is in progress."""
        return node in self.replacement_tasks

    def replacement_failure(self, node: int) -> str:
        """Return why a lost node got no replacement machine; "" if no replacement was tried."""
        return self.failures.get(node, "")

    @property
    def has_pending_preemptions(self) -> bool:
        """Whether a machine is about to be preempted and will be replaced afterwards."""
        return self._context.options.replaces_lost_nodes and any(map(is_being_preempted, self._context.view.nodes))

    async def stop_replacing(self) -> None:
        """Cancel the active replacements. The ledger keeps their progress."""
        early = *self.early_requests.values(), *self.early_returns.values()
        await cancel_tasks([*self.replacement_tasks.values(), *early], CANCEL_TIMEOUT)

    async def wait_replacements(self, *, until_failed: bool = False) -> None:
        """Wait until no replacement is active or imminent.

        Args:
            until_failed: Whether to wait only until the first attempt to replace a node has failed.
        """
        while True:
            tasks = [
                task for node, task in self.replacement_tasks.items() if not (until_failed and node in self.failures)
            ]
            if tasks and not until_failed:
                await asyncio.wait(tasks)
            elif tasks or self.has_pending_preemptions:
                await asyncio.sleep(POLL_INTERVAL)
            else:
                return

    # -- decisions -----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def decision_lock(self, node: int) -> AsyncIterator[bool]:
        """Acquire the right to decide about a node without an agent.

        Without the lock, one client could continue on the old machine while another client uses a new machine. Their
        logs would overwrite each other.

        Yields:
            Whether another client has already decided to replace the machine, or has replaced it.
        """
        with open(self._context.archive.folder / f"node-{node}.lock", "w") as lock:
            while not (decided := self._is_decided(node)):
                if try_lock(lock):
                    decided = self._is_decided(node)
                    break
                await asyncio.sleep(POLL_INTERVAL)
            yield decided

    def _is_decided(self, node: int) -> bool:
        entry = self.ledger_entry(node)
        theirs = entry is not None and entry.owner != self.owner and not entry.made
        return theirs or self.is_superseded(node)

    def is_superseded(self, node: int) -> bool:
        """Check whether the ledger records another machine for a node than this client uses."""
        context = self._context
        machine, ours = context.ledger.machines(context.token)[node], context.machines[node]
        return (machine.id, machine.extra) != (ours.id, ours.extra)

    def ledger_entry(self, node: int) -> Replacement | None:
        """Return the ledger's entry about the replacement of a node's machine."""
        rows = self._context.ledger.replacements(self._context.token)
        return next((each for each in rows if each.node == node), None)


class SuspectedNodes:
    """Nodes of one pool that this client cannot reach.

    Args:
        lost_after: Seconds until an unreachable node counts as lost. None: no limit.
        lose: Called with the link of a lost node and a text that states since when the node was unreachable.
    """

    def __init__(self, lost_after: float | None, lose: Callable[[Link, str], None]) -> None:
        self._lost_after = lost_after
        self._on_lost = lose
        self._since: dict[Link, tuple[float, asyncio.TimerHandle]] = {}

    def on_unreachable(self, link: Link) -> str:
        """Record that a node is unreachable. Return a text: since when, and when the node will count as lost."""
        if self._lost_after is None:
            return ""
        if link not in self._since:
            self._since[link] = time.time(), link.loop.call_later(self._lost_after, self._on_timeout, link)
        since, _ = self._since[link]
        return f"unreachable since {_clock(since)}, counts as lost at {_clock(since + self._lost_after)}"

    def clear(self, link: Link) -> None:
        """Remove a node that answers or is known to be lost."""
        if (suspected := self._since.pop(link, None)) is not None:
            suspected[1].cancel()

    def stop(self) -> None:
        """Remove all nodes, because this client stops watching them."""
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


WATCH_INTERVAL = 0.5  # seconds between checks for silent nodes
MAX_WATCH_DELAY = 1.0  # seconds; a longer delay of a check means that this client was paused and saw nothing
QUESTION_SILENCE = 2.5  # seconds of silence of a link until the agents are asked; a link without work pings every 2 s
TESTIMONY_TIMEOUT = 1.5  # seconds for an agent to report which nodes it misses


class SilenceWatch:
    """Watch for silent nodes while runs that may restart are active, by the testimonies of several witnesses.

    The witnesses are this client's link, the heartbeats between the agents, and the collectives of ranks. See
    :mod:`skyward_core.node.agent.peer_heartbeats` for the decision.

    Args:
        context: The pool.
        lose: Called with the link of a lost node, and with the testimonies as text.
    """

    def __init__(self, context: PoolContext, lose: Callable[[Link, str], None]) -> None:
        self._context = context
        self._on_lost = lose
        self._is_active = False
        self._resumed_at = 0.0  # loop time since which this client has checked the nodes without interruption
        self._reports: dict[Link, tuple[float, HeartbeatsAnswer]] = {}
        self._asking: set[Link] = set()
        # Link -> loop time and epoch of the last collective that failed on the node.
        self._failed_collectives: dict[Link, tuple[float, int]] = {}
        self._states: dict[Link, LossState] = {}  # link -> its loss state, if the state is not "present"

    def begin(self) -> None:
        """Watch until no run is active."""
        context = self._context
        if not (self._is_active or context.observer or context.is_standalone) and context.options.on_loss == "restart":
            self._is_active = True
            context.background.spawn(self._watch())

    def decides(self, link: Link) -> bool:
        """Check whether other nodes of a node's gang can testify, so that this watch decides about its loss."""
        return self._is_active and any(
            each.epoch == link.epoch and each is not link and self._can_testify(each) for each in self._context.links
        )

    def on_collective_error(self, link: Link) -> None:
        """Record that a rank of the node lost the connection to other ranks, as a testimony about a silent node."""
        self._failed_collectives[link] = link.loop.time(), link.epoch

    async def _watch(self) -> None:
        context, loop = self._context, asyncio.get_running_loop()
        self._resumed_at = before = loop.time()
        try:
            while context.registry.runs and not (context.leaving or context.external_end):
                await asyncio.sleep(WATCH_INTERVAL)
                now = loop.time()
                if now - before > WATCH_INTERVAL + MAX_WATCH_DELAY:
                    self._resumed_at = now
                before = now
                for gang in self._silent_gangs():
                    self._ask_agents(gang)
                    self._judge(gang)
        finally:
            self._is_active = False

    def _silent_gangs(self) -> list[list[Link]]:
        """Return the links of each gang with a node that is silent, or was silent at the last check."""
        self._states = {link: state for link, state in self._states.items() if not link.gone}
        self._reports = {link: report for link, report in self._reports.items() if not link.gone}
        active = (link for link in self._context.links if link.epoch and link.welcome and not link.gone)
        gangs = group_pairs((link.epoch, link) for link in active)
        return [
            gang
            for gang in gangs.values()
            if any(link in self._states or self._silence(link) >= QUESTION_SILENCE for link in gang)
        ]

    def _silence(self, link: Link) -> float:
        return min(link.silence_seconds, link.loop.time() - self._resumed_at)

    def _can_testify(self, link: Link) -> bool:
        return link.up and "heartbeats" in link.welcome.get("knows", ()) and self._silence(link) < QUESTION_SILENCE

    def _ask_agents(self, gang: Sequence[Link]) -> None:
        for link in gang:
            if self._can_testify(link) and link not in self._asking:
                self._asking.add(link)
                self._context.background.spawn(self._ask_agent(link, gang))

    async def _ask_agent(self, link: Link, gang: Sequence[Link]) -> None:
        try:
            async with asyncio.timeout(TESTIMONY_TIMEOUT):
                answer: HeartbeatsAnswer
                answer, _ = await link.ask({"t": "heartbeats"})
        except OSError:  # the agent gave no answer in time or its link is down, so it cannot be a witness
            return
        finally:
            self._asking.discard(link)
        self._reports[link] = link.loop.time(), answer
        self._judge(gang)

    def _judge(self, gang: Sequence[Link]) -> None:
        # Imported late, because a session imports this module but needs the agent's modules only with a pool.
        from skyward_core.node.agent.peer_heartbeats import MAX_REPORT_AGE, judge_nodes

        verdicts = judge_nodes((link.node for link in gang), self._witnesses(gang))
        # No node counts as lost until all agents have answered, because any of them may have heard from that node.
        is_open = any(self._can_testify(link) and self._report_age(link) > MAX_REPORT_AGE for link in gang)
        for link in gang:
            verdict = verdicts[link.node]
            if link.gone or verdict.state == self._states.get(link, "present") or (is_open and verdict.state == "lost"):
                continue
            self._states[link] = verdict.state
            self._context.news.emit(
                events.NodeSilence(
                    pool=self._context.name, node=link.node, state=verdict.state, silences=dict(verdict.silences)
                )
            )
            if verdict.state == "lost":
                self._on_lost(link, verdict.text)
            else:
                note = f"suspected: {verdict.text}" if verdict.state == "suspected" else ""
                self._context.news.emit_node_note(link, note)
            if verdict.state == "present":
                del self._states[link]

    def _report_age(self, link: Link) -> float:
        """Return the seconds since an agent's last answer about the current gang."""
        at, answer = self._reports.get(link, (0.0, None))
        return link.loop.time() - at if answer is not None and answer["epoch"] == link.epoch else math.inf

    def _witnesses(self, gang: Sequence[Link]) -> list[Witness]:
        from skyward_core.node.agent.peer_heartbeats import SUSPECT_SECONDS, Witness

        silences = {link.node: self._silence(link) for link in gang}
        found = [Witness("client", "client", silences)]
        for link in gang:
            now, name = link.loop.time(), f"node {link.node}"
            if (age := self._report_age(link)) < math.inf:
                seen = {int(node): silence for node, silence in self._reports[link][1]["silences"].items()}
                place = "client" if is_own_address(link.welcome["address"]) else name
                found.append(Witness(name, place, seen, link.node, age))
            failed_at, epoch = self._failed_collectives.get(link, (0.0, 0))
            silent = [node for node, silence in silences.items() if silence >= SUSPECT_SECONDS]
            # A failed collective does not name the lost node, so exactly one node may be silent.
            if epoch == link.epoch and len(silent) == 1:
                found.append(Witness(f"ranks of {name}", "collective", {silent[0]: now - failed_at}, link.node))
        return found


def is_own_address(address: str) -> bool:
    """Check whether an IP address belongs to this machine."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((str(ip_address(address)), 0))
    except (OSError, ValueError):
        return False
    return True
