"""State of one pool that all parts of a client share.

The parts refer to each other only through this object, which avoids import cycles.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Container, Coroutine, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from skyward_core.model.errors import PoolGone
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.provider_capability_protocols import HasHosts, RunsHere, TakesBack
from skyward_core.model.specs import Interpreter, Options
from skyward_core.node.agent.config import HANDLER_GRACE
from skyward_core.pool.agent_link import Link
from skyward_core.pool.event_publisher import EventPublisher
from skyward_core.pool.rank_variables_and_plugins import RankSetupManager
from skyward_core.pool.runs.run_registry_claims_and_frames import RunRegistry
from skyward_core.pool.silent_and_missing_nodes import NodeRoster
from skyward_core.protocol.frame_codec import WireError
from skyward_core.providers.provider import Provider
from skyward_core.providers.provider_call_logs_polling_and_cache import log_query, progress_listener
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow
from skyward_core.store.pool_folder import PoolFolder, parse_rank
from skyward_core.tasks.pickled_calls_and_blobs import Task
from skyward_core.tasks.python_compatibility import incompatibility, require_compatible
from skyward_core.transport.background_loop import cancel_tasks
from skyward_core.views.pool_view import PoolView

if TYPE_CHECKING:
    from skyward_core.pool import (
        MetricsRecorder,
        NodeRecovery,
        Outputs,
        PoolLimits,
        PoolShutdown,
        PoolStartup,
        RunScheduler,
    )
    from skyward_core.pool.agent_link import Listener
    from skyward_core.pool.checkpoint_copies import CheckpointCopies


class PoolEnd(NamedTuple):
    """End of a pool.

    Attributes:
        pool: Name of the pool.
        by: Client that ended the pool; "" if the pool ended itself.
        why: Reason for the end; "" if unknown.
        at: Unix time of the end in seconds.
    """

    pool: str
    by: str
    why: str
    at: float

    @classmethod
    def from_ledger(cls, row: PoolRow) -> PoolEnd:
        """Return the end that the ledger records. During a teardown, the client's name is not in the ledger yet."""
        if row.ended_at is None:
            return cls(row.name, "another client", "", time.time())
        receipt = row.receipt or {}
        reasons = sorted({note.partition(": ")[2] or note for note in receipt.get("notes", ())})
        return cls(row.name, receipt.get("by", ""), "; ".join(reasons), row.ended_at)

    def error(self) -> PoolGone:
        """Return a new error for a caller that waits for the pool or uses it later. Each thread needs its own error."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at))
        ended = f"was ended at {when} by {self.by}" if self.by else f"ended itself at {when}"
        reason = f": {self.why}" if self.why else ""
        return PoolGone(f"pool {self.pool} {ended}{reason}", by=self.by, at=self.at, why=self.why)


class PoolContext:
    """State of one pool that the parts of one client share, and access to those parts.

    Attributes:
        links: Links to the nodes, by index. A replaced node keeps its index.
        machines: Machines of the nodes, by index.
        view: State of the pool for screens. Only the event publisher changes it.
        observer: Whether this client only watches the pool.
        external_end: End of the pool, if another client or the pool's own limits ended it.
        end_reason: Reason why this client ends the pool without a request by the user; "" otherwise.
        start_error: Reason why the start of the pool failed; "" if it did not.
        leaving: Whether this client tears the pool down, or has left it.
        detached: Whether this client has left the pool.
        is_local: Whether the ranks work in this machine's own folders.
        news: Publisher of all events of the pool.
        background: Background tasks, for which no caller waits.
        roster: Nodes that are missing, and nodes that may return.
        setup: Configuration and setup of the ranks.
        registry: Runs by id.
        listener: Receiver of the agents' frames.
        metrics: Metrics of the machines.
        startup, scheduler, recovery, limits, shutdown: Parts that ``pool.Pool`` creates.
    """

    listener: Listener
    startup: PoolStartup
    scheduler: RunScheduler
    recovery: NodeRecovery
    limits: PoolLimits
    metrics: MetricsRecorder
    shutdown: PoolShutdown

    def __init__(self, row: PoolRow, provider: Provider, ledger: Ledger, *, observer: bool) -> None:
        self.row = row
        self.name = row.name
        self.token = row.token
        self.provider = provider
        self.ledger = ledger
        self.observer = observer
        self.archive = PoolFolder(row.key)
        self.view = PoolView(row.name, key=row.key)
        self.options = Options.from_json(row.spec["options"])
        self.links: list[Link] = []
        self.machines: list[Machine] = []
        worker = row.spec["worker"]
        self._concurrency: int = worker["concurrency"]
        self.ranks_per_node = worker["ranks_per_node"] if isinstance(worker["ranks_per_node"], int) else 1
        self.external_end: PoolEnd | None = None
        self.end_reason = self.start_error = ""
        self.leaving = False
        self.detached = False
        python = row.spec.get("interpreter")
        self._interpreter = Interpreter.from_json(python) if python else None
        self.is_local = isinstance(provider, RunsHere)
        self._fits_this_process = not incompatibility(None, self._interpreter, here=self.is_local)
        self._turn = -1  # index of the node that :meth:`next_link` chose last
        self.background = BackgroundTasks()
        self.news = EventPublisher(self)
        self.roster = NodeRoster(self)
        self.setup = RankSetupManager(self)
        self.registry = RunRegistry(self)

    @cached_property
    def checkpoints(self) -> CheckpointCopies:
        """Copies of checkpoints on the nodes. Created on first use, at the first restart of a run."""
        from skyward_core.pool.checkpoint_copies import CheckpointCopies

        return CheckpointCopies(self)

    @cached_property
    def outputs(self) -> Outputs:
        """Output files of the ranks. Created on first use, because most pools do not need the module."""
        from skyward_core.pool.output_files import Outputs

        return Outputs(self)

    async def describe(self, machines: Sequence[Machine]) -> list[Machine]:
        """Ask the provider for the current state of machines, and return the machines with this state."""
        with progress_listener(self.news.emit_warning):
            return await log_query("describe", self.name, self.provider.describe(self.name, machines))

    async def terminate(self, machine: Machine) -> None:
        await log_query("terminate", self.name, self.provider.terminate(self.name, [machine]))

    @property
    def longest_grace(self) -> float:
        """Longest time in seconds between SIGTERM and SIGKILL of a rank."""
        return HANDLER_GRACE if self.options.grace is None else self.options.grace

    @property
    def least_nodes(self) -> int | None:
        """Minimum number of nodes of an attempt that runs while nodes are lost; None if attempts need all nodes."""
        return int(self.row.spec["least_nodes"]) if self.options.restart_smaller else None

    @property
    def is_standalone(self) -> bool:
        """Whether the ranks of the nodes form no gang and need no network between nodes."""
        return not self.options.cluster

    @property
    def ends_machines(self) -> bool:
        """Whether the machines and all files on them are deleted at the teardown."""
        return not self.is_local and not isinstance(self.provider, HasHosts)

    @property
    def slots_per_node(self) -> int:
        """Number of tasks that a node runs at the same time."""
        return self._concurrency * self.ranks_per_node

    def check_interpreter(self, tasks: Sequence[Task]) -> None:
        """Check that the pool's Python can load the tasks' pickled functions.

        Raises:
            UsageError: If a task was pickled by an incompatible interpreter.
        """
        for task in tasks:
            if not (task.portable or (task.interpreter is None and self._fits_this_process)):
                require_compatible(task.name, self.name, task.interpreter, self._interpreter, here=self.is_local)

    @property
    def present_links(self) -> list[Link]:
        """Links to the nodes that are not lost for good."""
        return [link for link in self.links if not link.gone]

    def link_of(self, rank: int) -> Link:
        """Return the link to the node of a rank."""
        return self.links[rank // self.ranks_per_node]

    def clock_ahead_of(self, rank: int) -> float:
        """Return the seconds by which the client's clock is ahead of the clock of a rank's node; 0 if unknown."""
        node = rank // self.ranks_per_node
        return self.links[node].clock.ahead if node < len(self.links) else 0.0

    def may_be_preempted(self, node: int) -> bool:
        """Check whether a node's machine may be preempted and has no preemption notice yet."""
        if not isinstance(self.provider, TakesBack) or self.view.nodes[node].is_preempted:
            return False
        return bool(self.provider.notices(self.machines[node]))

    def without_preempted(self, links: Sequence[Link]) -> Sequence[Link]:
        """Return the links whose nodes have no preemption notice, or all links if every node has one."""
        nodes = self.view.nodes
        return [link for link in links if not nodes[link.node].is_preempted] or links

    def next_link(self, among: Container[Link]) -> Link:
        """Return the least loaded of the given links, in round-robin order."""
        after = self._turn + 1
        candidates = [link for link in (*self.links[after:], *self.links[:after]) if link in among]
        link = min(candidates, key=lambda link: (not link.up or link.silent, link.load))
        self._turn = link.node
        return link

    def ranks_of(self, node: int) -> range:
        """Return the ranks of a node."""
        return range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node)

    def cursors(self, node: int) -> dict[str, int]:
        """Return the number of downloaded bytes of each log file of a node."""
        ranks = self.ranks_of(node)
        return {name: at for name, at in self.archive.cursors.items() if parse_rank(name) in ranks}

    def check_rank(self, link: Link, rank: int, node: int | None = None) -> None:
        """Check that a frame names a rank of the node that sent it.

        Raises:
            WireError: If the rank or ``node`` belongs to another node.
        """
        if (rank >= 0 and rank // self.ranks_per_node != link.node) or node not in (None, link.node):
            raise WireError(f"node {link.node} sent a frame about rank {rank} of another node")


DEFER_DELAY = 0.003  # seconds until deferred work starts; a small call returns its result sooner
CANCEL_TIMEOUT = 1.0  # seconds that cancelled tasks have to finish


class BackgroundTasks:
    """Background tasks and deferred calls of one pool."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._deferred: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that no caller has to wait for. The loop's exception handler reports its failure."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def defer(self, work: Callable[..., None], *args: Any) -> None:
        """Call ``work`` about 3 ms later. Deferred calls keep their order.

        Intended for bookkeeping for which no caller waits. A caller that has its result can dispatch the next run
        first. The bookkeeping then happens while the client waits for the network.
        """
        self._deferred.append((work, args))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DEFER_DELAY, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.run_deferred()

    def run_deferred(self) -> None:
        """Run all deferred calls now."""
        while self._deferred:
            work, args = self._deferred.popleft()
            work(*args)

    async def stop(self) -> None:
        """Cancel all background tasks."""
        await cancel_tasks([task for task in self._tasks if task is not asyncio.current_task()], CANCEL_TIMEOUT)
