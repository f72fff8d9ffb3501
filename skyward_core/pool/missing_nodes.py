"""Missing nodes of a pool, and the replacements of their machines."""

from __future__ import annotations

import asyncio
import fcntl
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from skyward_core.model.outcomes import PoolStatus
from skyward_core.pool.agent_link import Link
from skyward_core.store.ledger_rows import Replacement, process_mark
from skyward_core.views.pool_view import NodeView

if TYPE_CHECKING:
    from skyward_core.model.machines_and_gpu_use import Machine
    from skyward_core.pool import PoolContext


CANCEL_TIMEOUT = 5.0  # maximum seconds to wait until a replacement is cancelled
POLL_INTERVAL = 0.02  # seconds
PREEMPTION_MARGIN = 30.0  # seconds after a preemption deadline until the preemption is no longer expected
MAX_NAMED_NODES = 3  # maximum nodes that the pool's state lists by name; further nodes are only counted


class NodeRoster:
    """Missing and replaced nodes of one pool.

    Attributes:
        owner: Unique id of this client, for tasks that only one of the pool's clients performs.
        replacement_tasks: Node -> task that replaces the node's machine.
        early_requests: Node -> request for another machine before the node's present one is preempted.
        failures: Node -> reason why the node got no replacement machine.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self.owner = f"{process_mark()}.{secrets.token_hex(4)}"
        self.replacement_tasks: dict[int, asyncio.Task[None]] = {}
        self.early_requests: dict[int, asyncio.Task[Machine | None]] = {}
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
        if not context.observer:  # observers do not write to the ledger
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
        return self._context.options.replaces_lost_nodes and any(map(_is_being_preempted, self._context.view.nodes))

    async def stop_replacing(self) -> None:
        """Cancel the active replacements. The ledger keeps their progress."""
        tasks: list[asyncio.Task[Any]] = [*self.replacement_tasks.values(), *self.early_requests.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT)

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
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    await asyncio.sleep(POLL_INTERVAL)
                    continue
                decided = self._is_decided(node)
                break
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


def _is_being_preempted(node: NodeView) -> bool:
    return node.is_preempted and time.time() < (node.notice_ends_at or node.notice_at) + PREEMPTION_MARGIN
