"""Preemption notices of a pool's nodes, and the machines that a client requests at a notice."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from skyward_core.model.errors import LedgerError, SkywardError, error_message
from skyward_core.pool.agent_link import Link
from skyward_core.protocol.frame_schemas_and_size_limits import LONGEST_NOTICE, PREEMPTION_MESSAGE, is_same_deadline
from skyward_core.views import events
from skyward_core.views.pool_view import NodeView

if TYPE_CHECKING:
    from skyward_core.model.machines_checks_and_gpu_use import Machine
    from skyward_core.pool import PoolContext
    from skyward_core.protocol.frame_types import NoticeKeys
    from skyward_core.store.ledger_rows import Replacement

PREEMPTION_MARGIN = 30.0  # seconds after a preemption deadline until the preemption is no longer expected


def is_being_preempted(node: NodeView) -> bool:
    return node.is_preempted and time.time() < (node.notice_ends_at or node.notice_at) + PREEMPTION_MARGIN


class PreemptionNotices:
    """Preemption notices of one pool's nodes."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context

    def on_connect(self, link: Link) -> None:
        """Publish the preemption notices of a node that has connected. Forward the notices of other nodes to it."""
        for each in link.welcome.get("notices", ()):
            self.on_notice(link, each)
        for node in self._context.view.nodes:
            if node.index != link.node and node.is_preempted:
                self._warn_node(link, node)

    def on_notice(self, link: Link, notice: NoticeKeys) -> None:
        """Publish a node's preemption notice and forward it to the other nodes."""
        context, kind, seconds = self._context, notice["kind"], notice["left"]
        node = context.view.nodes[link.node]
        ends_at = None if seconds is None else time.time() + min(LONGEST_NOTICE, max(0.0, seconds))
        if node.notice == kind and is_same_deadline(node.notice_ends_at, ends_at):
            return
        self._context.news.emit(events.NodeNotice(pool=context.name, node=link.node, kind=kind, ends_at=ends_at))
        self._context.news.emit_warning(describe_notice(link.node, notice))
        if kind == "rebalance":
            return
        for other in context.links:
            if other is not link and other.up:
                self._warn_node(other, node)
        context.recovery.replacements.early.request(link.node)

    def _warn_node(self, link: Link, node: NodeView) -> None:
        # Do not notify other nodes of a standalone pool, because its nodes do not depend on each other.
        if not (self._context.observer or self._context.is_standalone):
            seconds = 0.0 if node.notice_ends_at is None else node.notice_ends_at - time.time()
            link.warn_preemption(node.index, max(0.0, seconds))


def describe_preemption(node: int, machine: Machine, *, noticed: bool = False) -> str:
    """Describe the preemption of a machine, as the provider or a notice reports it; "" if it was not preempted."""
    text = PREEMPTION_MESSAGE.format(node=node)
    if how := machine.extra.get("preempted"):
        return f"{text}: {how}"
    return text if noticed else ""


def describe_notice(node: int, notice: NoticeKeys) -> str:
    """Return the text of a preemption notice."""
    if notice["kind"] == "rebalance":
        return f"the machine of node {node} may be preempted soon (rebalance recommendation); no action is taken"
    seconds = notice["left"]
    when = "now" if seconds is None else f"in {seconds:.0f} s"
    return (
        f"the machine of node {node} is preempted {when} ({notice['kind']}): its ranks received SIGTERM, and "
        "on_preempt callbacks are running"
    )


class EarlyReplacements:
    """Machines that one client requests at preemption notices, before the present machines are given up or lost.

    Args:
        context: The pool.
        request_machine: Requests the machine of a replacement in the ledger.
        end_machine: Terminates an unwanted machine.
    """

    def __init__(
        self, context: PoolContext, request_machine: Callable[[int, Replacement], Awaitable[Machine]],
        end_machine: Callable[[Machine], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._context = context
        self._roster = context.roster
        self._request_machine = request_machine
        self._end_machine = end_machine

    def request(self, node: int) -> None:
        """Request another machine at a preemption notice, if a run will continue on it.

        The machine starts while the ranks save. It is not used before the present one is given up or lost.
        """
        pool, requests = self._context, self._roster.early_requests
        continues = pool.options.on_loss == "restart" and any(run.may_restart for run in pool.registry.runs.values())
        if continues and not pool.observer and node not in requests:
            requests[node] = asyncio.get_running_loop().create_task(
                self._try_request(node, self._roster.early_returns.get(node))
            )

    def return_unneeded(self) -> None:
        """Terminate the machines of :meth:`request` if no run needs them any more."""
        pool, requests = self._context, self._roster.early_requests
        if not any(run.may_restart for run in pool.registry.runs.values()):
            for node in requests.keys() - self._roster.replacement_tasks.keys():
                self._roster.early_returns[node] = asyncio.ensure_future(self._return_machine(node, requests.pop(node)))

    async def _return_machine(self, node: int, request: asyncio.Task[Machine | None]) -> None:
        pool = self._context
        with suppress(LedgerError):
            if (machine := await request) is not None:
                await self._end_machine(machine)
            entry = self._roster.ledger_entry(node)
            if entry is not None and entry.owner == self._roster.owner:
                pool.ledger.end_replacement(pool.token, node)

    async def _try_request(self, node: int, returning: asyncio.Task[None] | None) -> Machine | None:
        pool = self._context
        # Wait until the machine of the previous early request is returned: until then the ledger has that request.
        if returning is not None:
            await asyncio.wait([returning])
        try:
            intent = secrets.token_hex(8)
            found = pool.ledger.record_replacement_intent(pool.token, node, intent, self._roster.owner)
            if found is not None and not found.made:
                return await self._request_machine(node, found)
        except (SkywardError, OSError) as error:
            # Publish the failure only as a note, because the replacement requests a machine again.
            pool.news.emit_node_note(pool.links[node], f"no other machine yet: {error_message(error)}")
        return None
