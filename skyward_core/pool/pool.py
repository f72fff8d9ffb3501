"""Main class of a pool in one client. It creates the pool's parts and dispatches the frames of the pool's agents."""

from __future__ import annotations

import asyncio
import os
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from skyward_core.model.errors import UsageError
from skyward_core.model.provider_capability_protocols import RunsHere
from skyward_core.model.specs import PoolSpec
from skyward_core.pool.agent_link import Link
from skyward_core.pool.budget_and_cloud_expiry_date import PoolLimits
from skyward_core.pool.machine_metrics_recorder import MetricsRecorder
from skyward_core.pool.node_recovery import NodeRecovery
from skyward_core.pool.pool_context import PoolContext, PoolEnd
from skyward_core.pool.preemption_notices_and_early_replacements import PreemptionNotices
from skyward_core.pool.rank_inspection_and_debugger import PauseNotifier
from skyward_core.pool.runs.scheduler import RunScheduler
from skyward_core.pool.startup_and_machine_verification import PoolStartup, write_intent
from skyward_core.pool.teardown import PoolShutdown, check_can_end_now
from skyward_core.providers import provider_from_json
from skyward_core.providers.provider import Provider
from skyward_core.store import debug_log
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow
from skyward_core.store.pool_folder import parse_rank
from skyward_core.store.receipts_and_bills import Receipt

if TYPE_CHECKING:
    from skyward_core.pool.dashboards import Dashboards
    from skyward_core.protocol.frame_types import FromAgent


FILES_PER_RANK = 3  # number of open log files of a rank: stdout, stderr, metrics
FILES_PER_NODE = 3  # number of open files for the connections to a node
SPARE_FILES = 64  # number of open files reserved for the user's script and for short-lived files
MIN_SPARE_FILES = 16


def raise_file_limit(nodes: int, ranks: int, least: int | None = None) -> None:
    """Raise this process's limit of open files to the number that the pool needs, as far as the system allows.

    Args:
        nodes: Greatest number of nodes.
        ranks: Ranks per node.
        least: Smallest number of nodes that the pool can work with. None: all nodes are required.

    Raises:
        UsageError: If the hard limit is too low even for one connection per node.
    """
    import resource  # imported late, because a client without a pool does not need the module

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    held = len(os.listdir("/dev/fd"))  # noqa: PTH208  pathlib has no counterpart
    limit = held + nodes * (FILES_PER_NODE + FILES_PER_RANK * ranks) + SPARE_FILES
    if soft >= limit:
        return
    if hard != resource.RLIM_INFINITY:
        needed = held + (nodes if least is None else least) + MIN_SPARE_FILES
        if hard < needed:
            raise UsageError(
                f"{nodes} nodes need at least {needed} open files, but this process is limited to {hard}. "
                f"Raise the limit (ulimit -Hn {limit}, or LimitNOFILE= of its service) or use fewer nodes."
            )
        limit = min(limit, hard)
    if limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


_POOLS: WeakSet[Pool] = WeakSet()  # all Pool objects of this process, whose records flush_all() writes


async def flush_all() -> None:
    """Write all pending records of this process's pools to the ledger and the pool folders."""
    for pool in list(_POOLS):
        pool.context.background.run_deferred()
        pool.news.records.flush()


class Pool:
    """One pool in one client. Creates the pool's parts and dispatches the frames of the pool's agents.

    Attributes:
        context: State that the pool's parts share. It also refers to these parts.
        news: Publisher of the pool's events.
    """

    def __init__(self, row: PoolRow, provider: Provider, ledger: Ledger, *, observer: bool = False) -> None:
        self.name = row.name
        self.row = row
        self.ledger = ledger
        self.context = context = PoolContext(row, provider, ledger, observer=observer)
        self.view, self.archive, self.links = context.view, context.archive, context.links
        self.news = context.news
        context.listener = self
        context.startup = PoolStartup(context)
        context.scheduler = RunScheduler(context)
        context.recovery = NodeRecovery(context)
        context.limits = PoolLimits(context)
        context.shutdown = PoolShutdown(context)
        context.metrics = MetricsRecorder(context)
        self._notices = PreemptionNotices(context)
        self._pause_notifier = PauseNotifier(context)
        image, options = row.spec.get("image") or {}, context.options
        downloads = image.get("outputs") or image.get("checkpoints") or options.uses_checkpoints
        if not observer and (options.checkpoint_store if context.is_local else downloads):
            context.outputs.start_fetching()
        self.news.emit_opened()
        _POOLS.add(self)

    @cached_property
    def dashboards(self) -> Dashboards:
        """Web pages that programs on the head node serve."""
        from skyward_core.pool.dashboards import Dashboards

        return Dashboards(self.context)

    # -- life ----------------------------------------------------------------------------------------------

    @classmethod
    async def register(cls, spec: PoolSpec, ledger: Ledger, cwd: str = "") -> Pool:
        """Register a new pool in the ledger, before any of its resources exist.

        Args:
            spec: Specification of the pool.
            ledger: Ledger to register the pool in.
            cwd: Working folder of the client.

        Returns:
            The pool, to be started with :meth:`start`.

        Raises:
            UsageError: If the checkpoint store or the run to resume cannot be used, this process may not open enough
                files, or for the reasons of ``write_intent``.
            PoolError: For the reasons of ``write_intent``.
        """
        if spec.options.checkpoint_store:
            # Imported late, because few pools have a checkpoint store.
            from skyward_core.pool.checkpoint_store import check_store
            from skyward_core.pool.output_files import checkpoint_patterns

            patterns = checkpoint_patterns(spec.describe()) if isinstance(spec.provider, RunsHere) else ()
            # Runs in a thread, because the check may connect to the store.
            await asyncio.to_thread(check_store, spec.options.checkpoint_store, Path(cwd), patterns)
        if spec.options.resume and (earlier := ledger.run(spec.options.resume)) is not None:
            first = ledger.pool(earlier.token).spec["options"].get("resume")
            if first:
                raise UsageError(f"Run {earlier.run} continued the checkpoints of run {first}. Resume run {first}.")
        raise_file_limit(spec.most_nodes, spec.ranks_per_node, spec.least_nodes)
        intent = await write_intent(spec, ledger, cwd)
        pool = cls(intent.row, spec.provider, ledger)
        pool.context.setup.set_image(intent.image, intent.interpreter, intent.packages)
        if intent.notice:
            pool.news.emit_warning(intent.notice)
        return pool

    async def start(self, spec: PoolSpec) -> None:
        """Create the machines and bring every node to the phase "ready". A failure removes all resources again.

        Raises:
            PoolError: If a node failed. The error names the node, the cause and a fix.
            Cancelled: If the pool was torn down, or this client detached from it, during the start.
        """
        debug_log.pool.set(self.name)
        await self.context.startup.start(spec)

    @classmethod
    async def attach_to(cls, row: PoolRow, ledger: Ledger, *, observer: bool = False) -> Pool:
        """Create a pool object and connect it to an existing pool.

        Args:
            row: The pool's row in the ledger.
            ledger: Ledger that contains the row.
            observer: Whether this client only watches the pool.

        Raises:
            PoolGone: If the pool has ended.
            PoolError: If no node of the pool can be reached.
            UsageError: If this process may not open enough files.
        """
        pool = cls(row, provider_from_json(row.provider), ledger, observer=observer)
        try:
            await pool.attach()
        except BaseException:
            await pool.detach()
            raise
        return pool

    async def attach(self) -> None:
        """Connect to a running pool. Raises the errors of :meth:`attach_to`."""
        debug_log.pool.set(self.name)
        raise_file_limit(self.row.spec["nodes"], self.context.ranks_per_node)
        await self.context.startup.attach()

    async def detach(self) -> None:
        """Disconnect from the pool and leave it running."""
        await self.context.shutdown.detach()

    async def down(self, *, give_up: bool = False, keep_outputs: int | None = None, now: bool = False) -> Receipt:
        """Tear the pool down. A second call waits for the first.

        Args:
            give_up: Delete unfetched results and logs instead of fetching them.
            keep_outputs: Maximum bytes of output files to download before the teardown. None: as the pool's options
                state.
            now: Terminate the machines at once, without any request to their agents.

        Returns:
            The receipt of the teardown.

        Raises:
            UsageError: If ``now`` is set and the provider does not support it. The pool is unchanged.
        """
        if now:
            await check_can_end_now(self.context.provider)
        return await asyncio.shield(self.context.shutdown.begin(give_up, keep_outputs, now=now))

    # -- frames and link changes ---------------------------------------------------------------------------

    def cursors(self, node: int) -> dict[str, int]:
        """Return the number of downloaded bytes of each log file of a node. Called after the node's welcome."""
        self.news.set_ranks_per_node(self.links[node].welcome["ranks_per_node"])
        return self.context.cursors(node)

    def on_frame(self, link: Link, header: FromAgent, body: bytes) -> None:
        """Dispatch one frame of an agent.

        Raises:
            WireError: If the frame is invalid in the present state of the pool.
        """
        context = self.context
        match header["t"]:
            case "outcome" | "item" | "began" | "stale" | "run" | "want":
                context.registry.on_frame(link, header, body)
                if header["t"] == "outcome":
                    context.scheduler.queue.notify()
            case "log":
                context.check_rank(link, parse_rank(header["f"]))
                self.news.log_receiver.receive(header["f"], header["at"], body)
            case "granted" | "wanted" | "held":
                context.setup.on_frame(link, header)
            case "queue" | "turn" | "dropped":
                if unwanted := context.scheduler.queue.on_frame(link, header):
                    context.registry.cancel(unwanted)
                    context.scheduler.queue.notify()
            case "gang":
                context.scheduler.on_gang_broken()
            case "ending":
                context.shutdown.on_external_end(PoolEnd(self.name, header["by"], header["why"], time.time()))
            case "phase":
                self.news.emit_rank_phase(link, header)
                self._pause_notifier.on_phase()
            case "notice":
                self._notices.on_notice(link, header)
            case "metrics":
                context.metrics.on_frame(link, header, body)
            case "modules":
                context.scheduler.modules.update_loaded(link, header["files"])
            case "pong":
                self.news.update_lease(header["lease"])
                self.news.update_retained_results(link, header)
                self.news.update_cpu_time(link, header)
                context.metrics.save_cpu_time(link, header)
            case "error":
                self.news.emit_node_note(link, header["message"])

    def on_link(self, link: Link, up: bool, detail: str) -> None:
        """Handle a link that came up, went down or could not be restored."""
        context = self.context
        if context.detached and not up:
            return  # do nothing, because this client closed the link itself
        if not up:
            detail = context.recovery.on_disconnect(link, detail)
        self.news.emit_link(link, up, detail)
        context.scheduler.queue.notify()
        if up:
            context.recovery.suspects.clear(link)
            # If the link was only silent, its connection and its welcome frame are unchanged and already processed.
            if not link.silent:
                self._on_connect(link)
            return
        if link.silent:
            return  # the connection still exists, so only report the silence
        context.setup.on_down(link)
        if not (context.leaving or link.gone or context.external_end):
            context.recovery.diagnose(link)

    def _on_connect(self, link: Link) -> None:
        context = self.context
        self.news.update_lease(link.welcome["lease"])
        context.registry.check_welcome(link)
        self.news.update_rank_phases(link)
        self._pause_notifier.on_phase()
        self.news.update_retained_results(link, link.welcome)
        context.scheduler.modules.update_loaded(link, link.welcome.get("modules", {}))
        context.registry.sync_from_agent(link)
        context.scheduler.queue.on_connect(link)
        self._notices.on_connect(link)
        context.metrics.on_connect(link)
        if not link.epoch and not context.observer:
            context.scheduler.on_new_agent()
