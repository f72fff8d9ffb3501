"""A run's calls on their way to the nodes. What comes back of them: :mod:`.run`."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from ...model.outcome import ErrorInfo
from ...model.states import OutcomeKind, RunKind
from ...tasks.task import Task
from ...transport.incoming_result import Landing
from ...views import events as ev
from ...wire.frames import INLINE, Heard
from ..background import Background
from ..context import PoolContext
from ..links.link import Link
from ..news import News
from .feeding import Feeding
from .reading import Reading
from .results import RunResults

if TYPE_CHECKING:
    from ...wire.client_frame_types import ClientCall

AHEAD = 32  # tasks in flight per node while they are quick
QUICK = 0.02  # seconds of a task below which it is quick


class Surroundings(NamedTuple):
    """What all runs of a pool have in common, as one client has them.

    Attributes:
        fetch: brings a file of a node's spool to where it lands; see :meth:`.book.RunBook.fetch`.
        start_anew: has a broadcast of which no rank has begun started by a whole gang.
        ended: told of a run that is over.
    """

    context: PoolContext
    news: News
    background: Background
    fetch: Callable[[Link, str, Landing], Awaitable[None]]
    start_anew: Callable[[Any], None]
    ended: Callable[[Any], None]


class SentRun(RunResults):
    """See the module. Made and driven on the pool's loop."""

    # There may be thousands in a second, and they have more parts than Python shares the names of.
    __slots__ = (
        "_around",
        "_asked",
        "_begun",
        "_broke",
        "_claimed",
        "_context",
        "_feedings",
        "_fetching",
        "_flying",
        "_ranks",
        "_readings",
        "_seconds",
        "_spent",
        "_stale",
        "_stopping",
        "_waiting",
        "_where",
        "arrivals",
        "consumed",
        "future",
        "is_script",
        "logs",
        "nodes",
        "sent",
        "stays",
        "stocked",
        "tasks",
        "wanted",
    )  # fmt: skip

    def __init__(
        self,
        around: Surroundings,
        run: str,
        kind: RunKind,
        tasks: Sequence[Task],
        total: int,
        future: Future[Any] | None = None,
    ) -> None:
        self._around = around
        self._context = around.context
        super().__init__(around.context.name, run, kind, tasks[0].name, total)
        self.tasks = tasks
        self.is_script = any(task.script for task in tasks)
        self.future: Future[Any] = future or Future()
        self.logs: dict[int, dict[str, list[int]]] = {}
        self.arrivals: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.consumed = False  # somebody iterates over a generator's values, and pays for them
        self._seconds: deque[float] = deque(maxlen=8)  # that the latest of them took
        self._waiting: deque[int] = deque()
        self._flying: dict[int, int] = {}
        self._where: dict[int, Link] = {}
        self._asked: set[int] = set()  # nodes that were given a call of it, now or before
        self.sent = False  # a node may know of it
        # Nodes that have its large arguments; None where it has none.
        self.stays = False  # its results are for whoever comes later, though they were told here
        self.stocked: frozenset[Link] | None = None
        self._claimed = False  # another client sent it
        self._stale: set[int] = set()
        self._spent = ""  # why processes of the gang take no other call
        self._broke = ""  # who broke the gang, and how
        self._begun = False
        self._ranks: dict[int, int] = {}  # of tasks that are under way, as far as it was told
        self._stopping = False
        self._fetching: set[int] = set()  # calls that have ended, and whose values are on their way here
        self._readings: dict[int, Reading] = {}
        self._feedings: dict[tuple[int, int], Feeding] = {}  # by call, or -1 for all ranks, and argument
        self.wanted: int | tuple[int, ...] | None = tasks[0].nodes if kind == "broadcast" else None
        self.nodes: tuple[int, ...] = ()  # that it has got, where it wants some only

    @property
    def width(self) -> int:
        """On how many ranks of a node each of its calls runs, as a gang of their own."""
        return self.tasks[0].width

    def name_of(self, index: int) -> str:
        return self.tasks[index % len(self.tasks)].name

    @property
    def links(self) -> Sequence[Link]:
        """To the nodes that may have something of it."""
        if self.wanted is None:
            return self._context.links
        return [self._context.links[node] for node in self.nodes]

    def place_of(self, index: int) -> tuple[int, int]:
        """Rank and node of a broadcast's call, in the pool; -1 where it has got no nodes yet."""
        each = self._context.ranks_per_node
        if self.wanted is None:
            return index, index // each
        if not self.nodes:
            return -1, -1
        node = self.nodes[index // each]
        return node * each + index % each, node

    # -- dispatch ----------------------------------------------------------------------------------------

    def send_gang(self, epoch: int, nodes: tuple[int, ...] = ()) -> None:
        """Hand a broadcast's calls to all links, or to those of some nodes, if it is still wanted."""
        if self.state != "running":
            return
        if nodes:
            self.nodes = nodes
            self._tell_nodes()
        task = self.tasks[0]
        new = {link for link in self.links if not (link.gone or self._is_stocked(link))}
        all_or_none = self._context.options.fail_fast or not self._context.alone
        for index in range(self.total):
            rank, node = self.place_of(index)
            link = self._context.links[node]
            if link in new or (new and all_or_none):
                self._refuse_new(index, link, new)
            else:
                how: Heard = {"gang": True, "rank": rank, "epoch": epoch}
                self._send(link, index, task, how | {"nodes": list(nodes)} if nodes else how)

    def _tell_nodes(self) -> None:
        self._around.news.records.placed(self.id, self.nodes)
        self._around.news.emit(ev.RunPlaced(pool=self.pool, run=self.id, nodes=list(self.nodes)))

    def _refuse_new(self, index: int, link: Link, new: Collection[Link]) -> None:
        """A broadcast's arguments are on no node that came after them, and here neither any more."""
        late = min(each.node for each in new)
        why = f"node {late} got another machine after the arguments had been sent; run it again"
        self.refuse(index, link, "lost" if link in new else "collateral", ErrorInfo("NodeLost", why))

    def hold(self) -> None:
        """Wait until the pool can take it; :meth:`release` ends that, and so does a cancellation."""
        self._waiting.extend(range(self.total))

    def release(self) -> bool:
        """End :meth:`hold`; says whether the run is still wanted."""
        self._waiting.clear()
        return self.state == "running"

    def feed(self) -> None:
        """Hand tasks to nodes, in turns, as long as they can take more, if they are still wanted."""
        if self.state != "running":
            return
        self._waiting.extend(range(self.total))
        held = [link for link in self._context.links if link.hold()] if self.total > 1 else []
        try:
            self._refill()
        finally:
            for link in held:
                link.release()

    def _refill(self) -> None:
        if self._stopping or not self._waiting:
            return
        there = [link for link in self._context.links if not link.gone and self._is_stocked(link)]
        links = self._context.staying(there)
        if not links:
            whose = "of the pool" if self.stocked is None else "that had its arguments"
            self._fail_unsent(f"every node {whose} is gone")
            return
        if self.kind == "sweep":
            # Other runs may have a node for hours: those that have less to do for us come first.
            links = sorted(links, key=lambda link: link.load)
        limit = self._most_in_flight()
        moved = True
        while moved and self._waiting:
            moved = False
            for link in links if self.kind != "single" else [self._context.next_link(links)]:
                if self._waiting and self._flying.get(link.node, 0) < limit:
                    index = self._waiting.popleft()
                    self._flying[link.node] = self._flying.get(link.node, 0) + 1
                    self._send(link, index, self.tasks[index], {})
                    moved = True

    def _most_in_flight(self) -> int:
        """How many tasks a node is given at once."""
        slots = self._context.slots_per_node
        if self.width > 1:
            slots = self._context.ranks_per_node // self.width
        if self.kind != "sweep":
            return slots + (AHEAD if self._quick() else 1)
        # One may take hours: none waits behind it while another node is idle, as long as we are there to see to that.
        return self.total if self.stays else slots

    def _is_stocked(self, link: Link) -> bool:
        """Whether a node has what the calls need: one that came later has not."""
        return self.stocked is None or link in self.stocked

    def _quick(self) -> bool:
        recent = self._seconds
        return bool(recent) and sum(recent) / len(recent) < QUICK

    def claim_from(self, links: Sequence[Link], nodes: tuple[int, ...] = ()) -> None:
        """Expect the calls of a run that another client dispatched.

        Args:
            nodes: that have it, where these are not all.
        """
        self.sent = self._claimed = True
        if nodes:
            self.wanted = self.nodes = nodes
        if self.kind == "broadcast":
            self._where = {index: links[self.place_of(index)[1]] for index in range(self.total)}
        elif len(links) == 1:
            self._where = dict.fromkeys(range(self.total), links[0])

    def is_call(self, index: int) -> bool:
        """Whether it has such a call."""
        return index < self.total

    def row_of(self, index: int, rank: int) -> int:
        """Where screens show a call that a rank is at."""
        return index

    def asked_of(self, link: Link, index: int) -> bool:
        """Whether a node has been given a call; of another client's calls only the nodes know where they are."""
        where = self._where.get(index)
        return self._claimed if where is None else where.node == link.node

    def _send(self, link: Link, index: int, task: Task, extra: Heard) -> None:
        header: ClientCall = {
            "t": "call",
            "run": self.id,
            "i": index,
            "name": self.name,
            "kind": self.kind,
            "total": self.total,
            "fn": (task.fn.hash, task.fn.size),
            "args": (task.args.hash, task.args.size),
        }
        if task.timeout is not None:
            header["timeout"] = task.timeout
        if task.stream:
            header["stream"] = True
            self._readings[index] = Reading(header)
        if task.feeds:
            header["fed"] = True
        if task.script:
            header["script"] = True
        if task.width > 1:
            header["width"] = task.width
        if task.job:
            header["job"], header["more"] = task.job, task.more
        if self._context.alone:
            header["alone"] = True
        elif self._context.links[0].gone:
            header["headless"] = True  # nobody can form a gang any more
        body = b"".join(blob.data for blob in (task.fn, task.args) if blob.size <= INLINE and blob.data)
        if task.fn.sources or task.args.sources:
            link.bring((*task.fn.sources, *task.args.sources))
        self._where[index] = link
        self._asked.add(link.node)
        self.sent = True
        if link.gone:
            self.lose(index)
        else:
            header |= extra
            link.call(header, body)

    if TYPE_CHECKING:  # what comes back ends calls

        def lose(self, index: int) -> None: ...

        def refuse(self, index: int, link: Link, kind: OutcomeKind, error: ErrorInfo) -> None: ...

        def _fail_unsent(self, words: str, kind: str = "lost") -> None: ...
