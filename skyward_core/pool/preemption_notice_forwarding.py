"""Preemption notices of a pool's nodes: their publication, their forwarding to other nodes, and their description."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from skyward_core.model.machines_and_gpu_use import Machine
from skyward_core.pool.agent_link import Link
from skyward_core.protocol.frame_schemas_and_size_limits import LONGEST_NOTICE, PREEMPTION_MESSAGE, is_same_deadline
from skyward_core.views import events
from skyward_core.views.pool_view import NodeView

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext
    from skyward_core.protocol.frame_types import NoticeKeys


class PreemptionNotices:
    """Preemption notices of one pool's nodes."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context

    def on_connect(self, link: Link) -> None:
        """Handle the notices of a node that connected, and forward the known notices of other nodes to it."""
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
        context.recovery.replacements.request_early(link.node)

    def _warn_node(self, link: Link, node: NodeView) -> None:
        # Standalone nodes do not depend on each other, so they do not need the notice.
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
    """Describe a preemption notice."""
    if notice["kind"] == "rebalance":
        return f"the machine of node {node} may be preempted soon (rebalance recommendation); no action is taken"
    seconds = notice["left"]
    when = "now" if seconds is None else f"in {seconds:.0f} s"
    return (
        f"the machine of node {node} is preempted {when} ({notice['kind']}): its ranks received SIGTERM, and "
        "on_preempt callbacks are running"
    )
