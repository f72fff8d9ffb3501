"""On the head: the order in which runs that wait for nodes get them, whoever sent them. First come, first served.

The head only keeps the order and says whose turn it is. Which nodes are free the client finds out whose turn it is: it
asks the nodes, while it holds the head's lock (:mod:`.gang`). What a client has here goes with its connection, for
nobody else could start its runs.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .audience import Audience
from .connection import Connection

if TYPE_CHECKING:
    from ...wire.agent_frame_types import QueuedKeys
    from ...wire.client_frame_types import ClientEnqueue


class QueueEntry:
    """A run that waits."""

    __slots__ = ("owner", "told")

    def __init__(self, owner: Connection, told: QueuedKeys) -> None:
        self.owner = owner
        self.told = told


class RunQueue:
    """One head's."""

    def __init__(self, audience: Audience) -> None:
        self._audience = audience
        self._entries: list[QueueEntry] = []
        self._first: QueueEntry | None = None  # that has been told that it is its turn

    @property
    def waiting(self) -> list[QueuedKeys]:
        """They, in their order."""
        return [each.told for each in self._entries]

    def enter(self, owner: Connection, header: ClientEnqueue) -> None:
        """A run wants nodes. One that has waited before, over another connection or on another agent, has its place by
        the time that it has waited since."""
        now = time.time()
        told: QueuedKeys = {
            "run": header["run"],
            "name": header["name"],
            "nodes": header["nodes"],
            "only": header["only"],
            "since": min(header.get("since", now), now),
            "who": owner.who,
        }
        self._entries = [each for each in self._entries if each.told["run"] != header["run"]]
        self._entries.append(QueueEntry(owner, told))
        self._entries.sort(key=lambda each: each.told["since"])
        self._tell()

    def leave(self, run: str, owner: Connection) -> None:
        """A run has its nodes, or does not want them any more."""
        self._keep([each for each in self._entries if each.told["run"] != run or each.owner is not owner])

    def lost(self, owner: Connection) -> None:
        """A client is gone."""
        self._keep([each for each in self._entries if each.owner is not owner])

    def drop(self, run: str, who: str) -> None:
        """Somebody stops a run: where it waits here, its client hears of that, and takes it out."""
        for each in self._entries:
            if each.told["run"] == run:
                each.owner.send({"t": "dropped", "run": run, "by": who})

    def _keep(self, entries: list[QueueEntry]) -> None:
        if len(entries) != len(self._entries):
            self._entries = entries
            self._tell()

    def _tell(self) -> None:
        first = self._entries[0] if self._entries else None
        if first is not None and first is not self._first:
            first.owner.send({"t": "turn", "run": first.told["run"]})
        self._first = first
        self._audience.tell({"t": "queue", "waiting": self.waiting})
