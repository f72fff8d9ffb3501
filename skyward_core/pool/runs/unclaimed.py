"""Runs whose client is gone: what was lost with a node while nobody was there is told by whoever comes next.

A client ends the calls of its own runs when it loses a node. Of a run that has no client any more the agents tell what
they know, and nobody tells of what a lost one knew; without a word about that the run would go on for ever.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Iterator
from typing import TYPE_CHECKING

from ...model.errors import LedgerError
from ...model.outcome import ErrorInfo, Outcome
from ...store.ledger_rows import RunRow
from ..context import PoolContext
from ..links.link import Link

if TYPE_CHECKING:
    from ...wire.agent_frame_types import Remembered

YOUNG = 10.0  # seconds after its dispatch in which an agent may not have heard of a run


class Unclaimed:
    """Those of one pool, as one client sees them."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._knows: dict[str, set[int]] = {}  # by run, the nodes whose agents have told of it
        self._active: dict[str, dict[int, int]] = {}  # by run and node, calls that go on

    def greeted(self, link: Link) -> bool:
        """An agent is there, perhaps another than before: it tells of all that it knows. Says whether the one before
        knew of a run of which this one does not."""
        told = {record["run"] for record in link.welcome.get("runs", ())}
        forgotten = [run for run, nodes in self._knows.items() if link.node in nodes and run not in told]
        for run in forgotten:
            self._knows[run].discard(link.node)
            self._active.get(run, {}).pop(link.node, None)
        return bool(forgotten)

    def told(self, link: Link, record: Remembered) -> None:
        """An agent that has greeted us remembers a run."""
        self.knows(link, record["run"])
        self._active.setdefault(record["run"], {})[link.node] = record.get("active", 0)

    def knows(self, link: Link, run: str) -> None:
        self._knows.setdefault(run, set()).add(link.node)

    def ended(self, link: Link, run: str) -> None:
        """An agent tells of a call's end."""
        left = self._active.get(run, {})
        left[link.node] = max(0, left.get(link.node, 0) - 1)

    def forget(self, run: str) -> None:
        self._knows.pop(run, None)
        self._active.pop(run, None)

    def find(self, but: Container[str]) -> list[RunRow]:
        """Runs that have no client by the ledger's word, and are not just being sent out."""
        context = self._context
        if context.row.state == "starting" and not self._knows:
            return []  # it is as new as we are
        try:
            rows = context.ledger.under_way(context.token)
        except LedgerError:  # whoever comes next tells of them
            return []
        now = time.time()
        return [
            row for row in rows if row.run not in but and now - row.opened_at > YOUNG and not row.has_client
        ]

    def go_on(self, but: Container[str]) -> bool:
        """Whether there are runs of whose end the ledger knows nothing, with a client or without."""
        try:
            return any(row.run not in but for row in self._context.ledger.under_way(self._context.token))
        except LedgerError:  # it may be read later
            return True

    def lost(self, row: RunRow, ended: Collection[int], returned: int) -> Iterator[Outcome]:
        """What was lost of a run, as far as that can be told of single calls.

        Args:
            ended: the calls whose ends are known.
            returned: how many more are known to have returned; nobody knows which.
        """
        if row.kind == "broadcast" and row.nodes == ():
            if not self._knows.get(row.run) and all(link.up or link.gone for link in self._context.links):
                never = ErrorInfo(
                    "PoolError", "its client went away while it waited for nodes; it was not begun"
                )
                yield from (Outcome(index, -1, -1, "lost", error=never) for index in range(row.total))
        elif row.kind == "broadcast":
            each = self._context.ranks_per_node
            for index in sorted(set(range(row.total)) - set(ended)):
                node = index // each if row.nodes is None else row.nodes[index // each]
                link = self._context.links[node]
                if why := self._why_lost(link, row.run):
                    yield Outcome(index, node * each + index % each, node, "lost", error=why)
        elif row.total - len(ended) - returned > 0 and not self.goes_on(row.run):
            where, why = self._one_lost(row.run)
            rank = -1 if where is None else where.node * self._context.ranks_per_node
            node = -1 if where is None else where.node
            for index in sorted(set(range(row.total)) - set(ended))[: row.total - len(ended) - returned]:
                yield Outcome(index, rank, node, "lost", error=why)

    def goes_on(self, run: str) -> bool:
        """Whether a node has calls of a run that have not ended, or results of which it has forgotten all else."""
        active = self._active.get(run, {})
        return any(
            link.up and (active.get(link.node) or (not active and run in link.welcome.get("unfetched", ())))
            for link in self._context.links
        )

    def _one_lost(self, run: str) -> tuple[Link | None, ErrorInfo]:
        """The node that had a call of which no node tells, where it can only be one."""
        lost = [(link, why) for link in self._context.links if (why := self._why_lost(link, run))]
        if len(lost) == 1:
            return lost[0]
        gone = [(link, why) for link, why in lost if link.gone]
        if len(gone) == 1:
            return gone[0]
        named = ", ".join(str(link.node) for link, _ in gone or lost)
        words = (
            f"its client is gone, and it was on one of the nodes {named}" if named else "its client is gone"
        )
        return None, ErrorInfo("NodeLost", f"{words}; no node that is there knows of it")

    def _why_lost(self, link: Link, run: str) -> ErrorInfo | None:
        """Why nothing of a run can come from a node any more; None where it can."""
        if link.gone:
            said = ": ".join(filter(None, (f"node {link.node} is gone", link.lost_why)))
            return ErrorInfo(link.lost_as, said if link.lost_as == "NodeLost" else link.lost_why)
        if link.up and link.node not in self._knows.get(run, ()):
            if run in link.welcome.get("unfetched", ()):
                return None
            words = (
                f"node {link.node} knows nothing of it: another machine or agent is there than when it began"
            )
            return ErrorInfo("NodeLost", words)
        return None
