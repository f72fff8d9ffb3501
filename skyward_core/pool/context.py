"""What the parts of a pool share: its data, and questions about them. It knows none of the parts."""

from __future__ import annotations

from collections.abc import Container, Sequence

from ..model.capabilities import HasHosts, RunsHere, TakesBack
from ..model.interpreter import Interpreter
from ..model.machine import Machine
from ..model.spec import Options
from ..providers.base import Provider
from ..store.archive import Archive, rank_of
from ..store.ledger import Ledger
from ..store.ledger_rows import PoolRow
from ..tasks.own_interpreter import refuse_another
from ..tasks.task import Task
from ..views.views import PoolView
from ..wire.frames import WireError
from .links.link import Link
from .pool_end import PoolEnd


class PoolContext:
    """One pool's, as one client has it.

    Attributes:
        links: of its nodes, by index; one that is put in another's place takes its index.
        machines: that its nodes are on, by index.
        view: what it looks like now; only :class:`.news.News` writes to it.
        observer: whether this client only looks, and changes nothing.
        ending: how the pool ended, where it was not this client that ended it.
        why_ended: why this client ends it, where nobody told it to; else "".
        leaving: whether this client tears it down, or has left it.
        detached: whether this client has left it.
        runs_here: whether its ranks work in this machine's own folders.
    """

    def __init__(self, row: PoolRow, provider: Provider, ledger: Ledger, *, observer: bool) -> None:
        self.row = row
        self.name = row.name
        self.token = row.token
        self.provider = provider
        self.ledger = ledger
        self.observer = observer
        self.archive = Archive(row.key)
        self.view = PoolView(row.name, key=row.key)
        self.options = Options.from_json(row.spec["options"])
        self.links: list[Link] = []
        self.machines: list[Machine] = []
        worker = row.spec["worker"]
        self._concurrency: int = worker["concurrency"]
        self.ranks_per_node = worker["ranks_per_node"] if isinstance(worker["ranks_per_node"], int) else 1
        self.ending: PoolEnd | None = None
        self.why_ended = ""
        self.leaving = False
        self.detached = False
        python = row.spec.get("interpreter")
        self._interpreter = Interpreter.from_json(python) if python else None
        self.runs_here = isinstance(provider, RunsHere)
        self._turn = -1  # the node that had the last

    @property
    def alone(self) -> bool:
        """Whether its nodes stand alone: no gang, no network among them."""
        return not self.options.cluster

    @property
    def ends_machines(self) -> bool:
        """Whether its machines, and all that lies on them, end with it."""
        return not self.runs_here and not isinstance(self.provider, HasHosts)

    @property
    def slots_per_node(self) -> int:
        """Tasks that a node runs at the same time."""
        return self._concurrency * self.ranks_per_node

    def check_interpreter(self, tasks: Sequence[Task]) -> None:
        """What was pickled by another Python than the pool has is not sent there.

        Raises:
            UsageError: it was.
        """
        for task in tasks:
            if not task.portable:
                refuse_another(task.name, self.name, task.interpreter, self._interpreter, here=self.runs_here)

    def link_of(self, rank: int) -> Link:
        """The link to the node that a rank is on."""
        return self.links[rank // self.ranks_per_node]

    def clock_ahead_of(self, rank: int) -> float:
        """Seconds by which our clock is ahead of that of the node that a rank is on; 0 where nothing is known."""
        node = rank // self.ranks_per_node
        return self.links[node].clock.ahead if node < len(self.links) else 0.0

    def may_be_taken_back(self, node: int) -> bool:
        """Whether a node's machine may be taken back, and no notice of that has come."""
        if not isinstance(self.provider, TakesBack) or self.view.nodes[node].is_taken_back:
            return False
        return bool(self.provider.notices(self.machines[node]))

    def staying(self, links: Sequence[Link]) -> Sequence[Link]:
        """Those whose machines are not about to be taken back; all, where each is."""
        nodes = self.view.nodes
        return [link for link in links if not nodes[link.node].is_taken_back] or links

    def next_link(self, among: Container[Link]) -> Link:
        """The next node in turn, of those that have the least to do for us."""
        after = self._turn + 1
        left = [link for link in (*self.links[after:], *self.links[:after]) if link in among]
        link = min(left, key=lambda link: (not link.up or link.silent, link.load))
        self._turn = link.node
        return link

    def ranks_of(self, node: int) -> range:
        """The ranks of a node."""
        return range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node)

    def cursors(self, node: int) -> dict[str, int]:
        """How many bytes of each log file of a node are here."""
        ranks = self.ranks_of(node)
        return {name: at for name, at in self.archive.cursors.items() if rank_of(name) in ranks}

    def check_rank(self, link: Link, rank: int, node: int | None = None) -> None:
        """A node speaks of its own ranks only.

        Raises:
            WireError: it does not.
        """
        if (rank >= 0 and rank // self.ranks_per_node != link.node) or node not in (None, link.node):
            raise WireError(f"node {link.node} speaks of rank {rank} as if it were its own")
