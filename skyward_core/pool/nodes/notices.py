"""Nodes whose machines are about to be taken back: shown, and told to the ranks of other nodes, whose collectives need
them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...model.machine import Machine
from ...views import events as ev
from ...views.views import NodeView
from ...wire.end_notice import LONGEST_NOTICE, is_same_end
from ..context import PoolContext
from ..links.link import Link
from ..news import News

if TYPE_CHECKING:
    from ...wire.agent_frame_types import NoticeKeys


class Notices:
    """Those of one pool, as one client hears of them."""

    def __init__(self, context: PoolContext, news: News) -> None:
        self._context = context
        self._news = news

    def greeted(self, link: Link) -> None:
        """An agent greets us: it may have been told while we were not there, and so may have others."""
        for each in link.welcome.get("notices", ()):
            self.heard(link, each)
        for node in self._context.view.nodes:
            if node.index != link.node and node.is_taken_back:
                self._warn(link, node)

    def heard(self, link: Link, told: NoticeKeys) -> None:
        """A node tells of its machine."""
        context, kind, left = self._context, told["kind"], told["left"]
        node = context.view.nodes[link.node]
        ends_at = None if left is None else time.time() + min(LONGEST_NOTICE, max(0.0, left))
        if node.notice == kind and is_same_end(node.notice_ends_at, ends_at):
            return
        self._news.emit(ev.NodeNotice(pool=context.name, node=link.node, kind=kind, ends_at=ends_at))
        self._news.complain(in_words(link.node, told))
        if kind == "rebalance":
            return
        for other in context.links:
            if other is not link and other.up:
                self._warn(other, node)

    def _warn(self, link: Link, node: NodeView) -> None:
        # Nodes that stand alone need no other.
        if not (self._context.observer or self._context.alone):
            left = 0.0 if node.notice_ends_at is None else node.notice_ends_at - time.time()
            link.warn(node.index, max(0.0, left))


def taken_back(node: int, machine: Machine, *, noticed: bool = False) -> str:
    """That a machine was taken back, by its provider's word or by a notice; "" where nobody says so."""
    said = f"preempted: the machine of node {node} was taken back by its provider"
    if how := machine.extra.get("preempted"):
        return f"{said}: {how}"
    return said if noticed else ""


def in_words(node: int, told: NoticeKeys) -> str:
    """What a notice says."""
    if told["kind"] == "rebalance":
        return (
            f"the provider says that node {node}'s machine may soon be taken back; nothing is done about it"
        )
    left = told["left"]
    when = "now" if left is None else f"in {left:.0f} s"
    return (
        f"node {node}'s machine is taken back by its provider {when} ({told['kind']}): its ranks have got SIGTERM, and "
        "callbacks of on_preempt are called"
    )
