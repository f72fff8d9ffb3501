"""Which nodes are there, and which are leaving."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from skyward_core.model.machines import Machine
from skyward_core.model.outcomes import PoolStatus
from skyward_core.pool.agent_link import Link
from skyward_core.protocol.frame_schema import LONGEST_NOTICE, is_same_deadline
from skyward_core.store.ledger_rows import Replacement
from skyward_core.views import events
from skyward_core.views.pool_view import NodeView

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext
    from skyward_core.protocol.frame_types import NoticeKeys


CANCEL_TIMEOUT = 5.0  # seconds that a replacement may take to be cancelled
POLL_INTERVAL = 0.02  # seconds between looks at whether another client has decided about a node
PREEMPTION_MARGIN = 30.0  # seconds after which a machine that was to be taken back is not expected to be
MAX_NAMED_NODES = 3  # nodes that the pool's state names; the others are counted


class NodeRoster:
    """One pool's.

    Attributes:
        owner: this client's name, where one client sees to a node for all.
        replacement_tasks: node -> task that replaces its machine.
        failures: node -> why it got no other machine.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self.owner = f"{os.getpid()}.{secrets.token_hex(4)}"
        self.replacement_tasks: dict[int, asyncio.Task[None]] = {}
        self.failures: dict[int, str] = {}

    # -- who is missing ----------------------------------------------------------------------------------

    def disconnected_links(self) -> list[Link]:
        """Links that are down and do not try to come up again."""
        return [link for link in self._context.links if link.gone or not (link.up or link.is_reconnecting)]

    def state(self) -> tuple[PoolStatus, str]:
        """The pool's state as its links have it, and what is amiss."""
        away = self.disconnected_links()
        if not away:
            return "up", ""
        nodes = [self._context.view.nodes[link.node] for link in away]
        said = [
            f"node {node.index} {reason}" if (reason := node.link_detail or node.detail) else f"node {node.index}"
            for node in nodes[:MAX_NAMED_NODES]
        ]
        more = f" and {len(away) - MAX_NAMED_NODES} more" if len(away) > MAX_NAMED_NODES else ""
        return "degraded", f"not there: {'; '.join(said)}{more}"

    def emit_state(self) -> None:
        """Say that the pool is up, or what of it is not there."""
        state, detail = self.state()
        self._context.news.emit_state(state, detail)

    def report_wait(self, words: str) -> None:
        """Show what runs wait for; "" if they no longer wait."""
        if words:
            self._context.news.emit_warning(words)
        else:
            self.emit_state()

    def save_state(self) -> None:
        """Say so, and write it down."""
        context = self._context
        if not context.observer:  # who only looks changes nothing
            context.ledger.set_pool_state(context.token, self.state()[0])
        self.emit_state()

    # -- who may come back -------------------------------------------------------------------------------

    @property
    def is_replacing(self) -> bool:
        """Whether a node is to get another machine, or just gets it."""
        return bool(self.replacement_tasks)

    def may_return(self, node: int) -> bool:
        """Whether a node that is gone may come back."""
        return node in self.replacement_tasks

    def replacement_failure(self, node: int) -> str:
        """Why a node that is gone got no other machine; "" where none was asked for."""
        return self.failures.get(node, "")

    @property
    def has_pending_preemptions(self) -> bool:
        """Whether machines are about to be taken back, and others will be in their places."""
        return self._context.options.on_loss == "replace" and any(map(_is_being_preempted, self._context.view.nodes))

    async def stop_replacing(self) -> None:
        """Stop the replacements that are in progress; the ledger keeps how far they came."""
        tasks = list(self.replacement_tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT)

    async def wait_replacements(self) -> None:
        """Wait until nothing is under way any more."""
        while self.replacement_tasks or self.has_pending_preemptions:
            if self.replacement_tasks:
                await asyncio.wait(self.replacement_tasks.values())
            else:
                await asyncio.sleep(POLL_INTERVAL)

    # -- who decides -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def decision_lock(self, node: int) -> AsyncIterator[bool]:
        """Be the one client that decides what becomes of a node without an agent: of two that both did, one would go
        on with the old machine and one with another, and their logs would overwrite each other.

        Yields:
            Whether another client has decided already, that the node gets or has another machine.
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
        """Whether the ledger has another machine for a node than we know."""
        context = self._context
        machine, ours = context.ledger.machines(context.token)[node], context.machines[node]
        return (machine.id, machine.extra) != (ours.id, ours.extra)

    def ledger_entry(self, node: int) -> Replacement | None:
        """What the ledger has of a replacement of a node's machine."""
        rows = self._context.ledger.replacements(self._context.token)
        return next((each for each in rows if each.node == node), None)


def _is_being_preempted(node: NodeView) -> bool:
    return node.is_preempted and time.time() < (node.notice_ends_at or node.notice_at) + PREEMPTION_MARGIN


class PreemptionNotices:
    """Those of one pool, as one client hears of them."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context

    def on_connect(self, link: Link) -> None:
        """An agent greets us: it may have been told while we were not there, and so may have others."""
        for each in link.welcome.get("notices", ()):
            self.on_notice(link, each)
        for node in self._context.view.nodes:
            if node.index != link.node and node.is_preempted:
                self._warn_node(link, node)

    def on_notice(self, link: Link, told: NoticeKeys) -> None:
        """A node tells of its machine."""
        context, kind, left = self._context, told["kind"], told["left"]
        node = context.view.nodes[link.node]
        ends_at = None if left is None else time.time() + min(LONGEST_NOTICE, max(0.0, left))
        if node.notice == kind and is_same_deadline(node.notice_ends_at, ends_at):
            return
        self._context.news.emit(events.NodeNotice(pool=context.name, node=link.node, kind=kind, ends_at=ends_at))
        self._context.news.emit_warning(describe_notice(link.node, told))
        if kind == "rebalance":
            return
        for other in context.links:
            if other is not link and other.up:
                self._warn_node(other, node)

    def _warn_node(self, link: Link, node: NodeView) -> None:
        # Nodes that stand alone need no other.
        if not (self._context.observer or self._context.is_standalone):
            left = 0.0 if node.notice_ends_at is None else node.notice_ends_at - time.time()
            link.warn_preemption(node.index, max(0.0, left))


def describe_preemption(node: int, machine: Machine, *, noticed: bool = False) -> str:
    """That a machine was taken back, by its provider's word or by a notice; "" where nobody says so."""
    said = f"preempted: the machine of node {node} was taken back by its provider"
    if how := machine.extra.get("preempted"):
        return f"{said}: {how}"
    return said if noticed else ""


def describe_notice(node: int, told: NoticeKeys) -> str:
    """What a notice says."""
    if told["kind"] == "rebalance":
        return f"the provider says that node {node}'s machine may soon be taken back; nothing is done about it"
    left = told["left"]
    when = "now" if left is None else f"in {left:.0f} s"
    return (
        f"node {node}'s machine is taken back by its provider {when} ({told['kind']}): its ranks have got SIGTERM, and "
        "callbacks of on_preempt are called"
    )
