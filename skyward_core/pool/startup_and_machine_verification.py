"""Start of a pool, from the registered intent to ready nodes, and attachment of a client to a running pool."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import (
    Cancelled,
    CredentialsRefused,
    Hint,
    HostKeyError,
    NoCapacity,
    PoolError,
    PoolExistsError,
    SkywardError,
    TooFewHosts,
    Unreachable,
    error_hint,
    error_message,
)
from skyward_core.model.machines_checks_and_gpu_use import (
    MAX_CLOCK_OFFSET,
    Machine,
    MeasuredHardware,
    OrderedHardware,
    find_mismatch,
)
from skyward_core.model.outcomes_states_and_alerts import NodePhase
from skyward_core.model.provider_capability_protocols import OrdersHardware, RunsHere, Warns, notice_program
from skyward_core.model.specs import Image, Interpreter, PoolSpec
from skyward_core.plugins.plugin import bootstrap_steps, check_standalone, transform_image
from skyward_core.pool.agent_link import Link
from skyward_core.pool.pool_context import PoolContext, PoolEnd
from skyward_core.pool.preemption_notices_and_early_replacements import describe_preemption
from skyward_core.pool.unrecorded_machines_and_gone_pools import (
    close_if_gone,
    describe_end,
    is_starting,
    save_unknown_machines,
    with_python,
)
from skyward_core.protocol.frame_codec import WireError
from skyward_core.providers import provider_from_json
from skyward_core.providers.provider import Provider
from skyward_core.providers.provider_call_logs_polling_and_cache import (
    log_call,
    log_query,
    progress_listener,
)
from skyward_core.store import pool_folder
from skyward_core.store.debug_log import get_logger
from skyward_core.store.default_and_forbidden_working_folders import resolve_workdir
from skyward_core.store.ledger import Ledger
from skyward_core.store.pool_folder import node_events
from skyward_core.store.state_folder import prune_is_due
from skyward_core.tasks import import_path
from skyward_core.tasks.python_compatibility import check_python, own_interpreter
from skyward_core.transport.background_loop import run_all
from skyward_core.transport.transport import (
    Report,
    StartBarrier,
    SupportsHostCommands,
    image_for_hosts,
    with_script_requirements,
)
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.redaction import make_sanitizer, map_strings
from skyward_core.util.terminal_safe_text import sanitize_line, sanitize_paragraph
from skyward_core.views.pool_view import restore_node_details

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import ProbeDone, SendDone
    from skyward_core.store.ledger_rows import PoolRow
    from skyward_core.tasks.packages.package_specs_and_local_packages import PackageSpecs
    from skyward_core.transport.transport import HostCommands


_log = get_logger("pool")

LOCK_DELAY = 1.0  # seconds after the start of a pool before the lock files of environments are written

NODE_PROBE_TIMEOUT = 11.0  # seconds for the measurement of one node
TOTAL_PROBE_TIMEOUT = 15.0  # seconds for the measurement of all nodes and their network

# Names of the pool options that the client copies into the configuration of each agent.
AGENT_OPTIONS = (
    "idle_timeout", "ttl", "keep_results", "log_limit", "collect_metrics", "grace", "rendezvous", "debug_wait", "nice",
)  # fmt: skip

MoveNode = Callable[[Machine], Awaitable[Any]]


class MachineVerifier:
    """Comparison of rented machines with the ordered hardware."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news

    def purchase_of(self, node: int) -> OrderedHardware | None:
        """Return the ordered hardware of a node's machine; None if the provider does not state it."""
        context = self._context
        return (
            context.provider.paid_for(context.machines[node]) if isinstance(context.provider, OrdersHardware) else None
        )

    async def verify(self, nodes: Iterable[int], take_over: MoveNode) -> None:
        """Measure ordered machines, replace each mismatching machine once, and mark the nodes as ready.

        Args:
            nodes: Nodes to measure. Nodes without ordered hardware are skipped.
            take_over: Moves a node to another machine.

        Raises:
            NoCapacity: If no replacement machine is available.
            PoolError: If a replacement machine does not match either.
        """
        bought = {node: ordered for node in nodes if (ordered := self.purchase_of(node)) is not None}
        mismatches = await self._verify_nodes(bought)
        for node, reason in mismatches.items():
            await self._replace_machine(node, reason, take_over)
        remaining = await self._verify_nodes({node: bought[node] for node in mismatches})
        for node, reason in remaining.items():
            raise PoolError(
                f"Replacement {self._describe(node)} also failed the hardware check: {reason} "
                f"(first machine: {mismatches[node]}). Try another zone or instance type."
            )

    async def verify_replacement(self, node: int) -> None:
        """Measure a replacement machine and mark the node as ready.

        Raises:
            PoolError: If the machine does not match the order.
        """
        bought = self.purchase_of(node)
        mismatches = await self._verify_nodes({} if bought is None else {node: bought})
        if mismatches:
            self._mark_unused(self._context.machines[node])
            raise PoolError(f"{self._describe(node)} does not match the order: {mismatches[node]}")
        if bought is None:
            self._emit_phase(node, "ready", "")

    async def _verify_nodes(self, bought: Mapping[int, OrderedHardware]) -> dict[int, str]:
        """Measure nodes. Mark nodes that match the order as ready, and return the mismatches of the other nodes."""
        if not bought:
            return {}
        for node in bought:
            self._emit_phase(node, "installed", "measuring the hardware")
        found = await self._measure_nodes(bought)
        isolated = self._find_isolated(found)
        mismatches = {}
        for node, arrived in found.items():
            reason = find_mismatch(bought[node], arrived) or isolated.get(node, "")
            _log.debug(
                "node %d: %s%s", node, arrived, f"; {reason}" if reason else "", extra={"pool": self._context.name}
            )
            if abs(arrived.offset or 0.0) > MAX_CLOCK_OFFSET:
                self._news.emit_warning(f"{self._describe(node)}: its clock is off by {arrived.offset:.0f} s")
            if reason:
                mismatches[node] = reason
            else:
                self._emit_phase(node, "ready", str(arrived))
        return mismatches

    def _find_isolated(self, found: Mapping[int, MeasuredHardware]) -> dict[int, str]:
        """Return nodes that no other node can reach, although other nodes reach each other.

        If there are only two nodes, return none, because either of them could be faulty.
        """
        lost = {(node, each.neighbour) for node, each in found.items() if each.rate == 0.0}
        works = any(each.rate for each in found.values())
        into = {neighbour: node for node, neighbour in lost}
        return {
            node: f"no network connection to node {neighbour} nor from node {into[node]}"
            for node, neighbour in lost
            if works and node in into and into[node] != neighbour
        }

    # -- measurement ---------------------------------------------------------------------------------------

    async def _measure_nodes(self, bought: Mapping[int, OrderedHardware]) -> dict[int, MeasuredHardware]:
        """Measure all nodes at once, and then the network between neighbours in a ring."""
        until = time.monotonic() + TOTAL_PROBE_TIMEOUT
        word = secrets.token_hex(16)
        nodes = sorted(bought)
        channels: dict[int, HostCommands] = {}
        try:
            results = await asyncio.gather(
                *(self._measure_node(node, bought[node], word if len(nodes) > 1 else "", channels) for node in nodes)
            )
            ports = {node: port for node, (_, port) in zip(nodes, results, strict=True)}
            found = {node: arrived for node, (arrived, _) in zip(nodes, results, strict=True)}
            turns = [(node, nodes[(at + 1) % len(nodes)]) for at, node in enumerate(nodes) if len(nodes) > 1]
            turns = [(one, other) for one, other in turns if one in channels and ports[other]]
            remaining = max(0.0, until - time.monotonic())
            sent = await asyncio.gather(
                *(self._measure_network(channels[one], other, ports[other], word, remaining) for one, other in turns)
            )
        finally:
            for channel in channels.values():
                channel.close()
        for (node, neighbour), (rate, reason) in zip(turns, sent, strict=True):
            notes = (*found[node].notes, *([f"to node {neighbour}: {reason}"] if reason else []))
            found[node] = replace(found[node], neighbour=neighbour, rate=rate, notes=notes)
        return found

    async def _measure_node(
        self, node: int, bought: OrderedHardware, word: str, channels: dict[int, HostCommands]
    ) -> tuple[MeasuredHardware, int]:
        """Measure one node. Return the result and the port on which the node listens for its neighbour."""
        transport = self._context.links[node].transport
        if not isinstance(transport, SupportsHostCommands):
            return MeasuredHardware(notes=("not measured",)), 0
        address = self._address(node) if word and not self._context.is_standalone else ""
        try:
            async with asyncio.timeout(NODE_PROBE_TIMEOUT):
                channel = channels[node] = await transport.channel()
                begun = time.time()
                result: ProbeDone = await channel.ask(
                    "probe", gpus=bool(bought.count), python=transport.interpreter, address=address, word=word
                )
        except (SkywardError, OSError, TimeoutError) as error:
            if (broken := channels.pop(node, None)) is not None:
                broken.close()
            return MeasuredHardware(
                notes=(f"not measured: {error_message(error) or f'no result within {NODE_PROBE_TIMEOUT:g} s'}",)
            ), 0
        return _parse_probe(result, begun, bought), result["port"]

    async def _measure_network(
        self, channel: HostCommands, neighbour: int, port: int, word: str, seconds: float
    ) -> tuple[float | None, str]:
        try:
            async with asyncio.timeout(seconds):
                result: SendDone = await channel.ask("send", address=self._address(neighbour), port=port, word=word)
        except (SkywardError, OSError, TimeoutError) as error:
            return None, f"not measured: {error_message(error) or 'no time left'}"
        return result["rate"], sanitize_line(result["why"])

    def _address(self, node: int) -> str:
        return self._context.machines[node].private_address

    # -- replacement ---------------------------------------------------------------------------------------

    async def _replace_machine(self, node: int, reason: str, take_over: MoveNode) -> None:
        """Replace a node's machine. The intent is recorded first, as for a lost machine."""
        context, ledger, token = self._context, self._context.ledger, self._context.token
        rejected = context.machines[node]
        self._news.emit_warning(f"{self._describe(node)} does not match the order: {reason}; requesting a replacement")
        self._emit_phase(
            node, "requested", f"{rejected.id} does not match the order: {reason}; requesting a replacement"
        )
        entry = ledger.record_replacement_intent(token, node, secrets.token_hex(8), context.roster.owner)
        if entry is None:
            raise PoolError(f"Pool {context.name} did not start: another client has taken it over")
        try:
            with progress_listener(lambda text: self._emit_phase(node, "requested", text)):
                machine = await context.recovery.replacements.request_machine(node, entry)
        except NoCapacity as error:
            raise NoCapacity(
                f"{self._describe(node)} does not match the order: {reason}. No replacement: {error_message(error)}"
            ) from error
        machine = with_python(machine, context.row)
        if not ledger.record_replacement(token, machine):
            await context.terminate(machine)
            raise PoolError(f"Pool {context.name} did not start: another client has torn it down")
        self._mark_unused(rejected)
        # Mark the node as lost first, so that the expected end of its machine triggers no recovery.
        context.links[node].mark_lost()
        await context.terminate(rejected)
        await take_over(machine)
        ledger.end_replacement(token, node)

    def _mark_unused(self, machine: Machine) -> None:
        """Record that no run has used the machine, so that the teardown does not query it for unfetched results."""
        # Imported late, because few starts replace a machine.
        from skyward_core.pool.fetch_retained_results import mark_empty

        mark_empty(self._context, machine)

    # -- messages ------------------------------------------------------------------------------------------

    def _describe(self, node: int) -> str:
        machine = self._context.machines[node]
        return f"machine {machine.id} of node {node} ({machine.address})"

    def _emit_phase(self, node: int, phase: NodePhase, detail: str) -> None:
        self._news.emit_phase(node, phase, detail, address=self._context.machines[node].address)


def _parse_probe(result: ProbeDone, begun: float, bought: OrderedHardware) -> MeasuredHardware:
    reasons = result["whys"]
    clock = result["time"]
    return MeasuredHardware(
        gpus=None
        if "gpus" in reasons or not bought.count
        else [(sanitize_line(n), mib / 1024) for n, mib in result["gpus"]],
        disk=None if "disk" in reasons else result["disk"],
        tflops=result["tflops"] or None,
        # The node read its clock between two local times. Only a value outside of this interval proves an offset.
        offset=clock - min(max(clock, begun), time.time()),
        notes=[f"{name} not measured: {sanitize_line(reason)}" for name, reason in sorted(reasons.items())],
    )


PAUSES = (10.0, 300.0)  # seconds between attempts to create the pool: first and longest


async def create_machines(context: PoolContext, spec: PoolSpec) -> list[Machine]:
    """Create the machines of a new pool, and wait for capacity as long as the options allow.

    Each request contains the pool's token, so that the provider recognizes a repeated request and does not create a
    second set of machines.

    Args:
        context: The pool.
        spec: Specification of the pool.

    Returns:
        The machines.

    Raises:
        NoCapacity: If no capacity was available in time.
        SkywardError: If the request fails for a reason that waiting cannot change.
    """
    until, pause = time.monotonic() + float(spec.options.wait_for_capacity), PAUSES[0]
    while True:
        try:
            made = await log_call("create", context.name, context.provider.create(spec, context.token))
            return [with_python(each, context.row) for each in made]
        except TooFewHosts:  # raise at once, because a list of SSH hosts does not grow while the client waits
            raise
        except NoCapacity as error:
            remaining = until - time.monotonic()
            if remaining <= 0:
                raise
            wait = min(pause, remaining)
            _report_no_capacity(context, error_message(error), wait, remaining)
            await asyncio.sleep(wait)
            pause = min(pause * 1.5, PAUSES[1])


def _report_no_capacity(context: PoolContext, reason: str, wait: float, remaining: float) -> None:
    now = time.time()
    last = time.strftime("%Y-%m-%d %H:%M", time.localtime(now + remaining))
    context.news.emit_warning(f"{reason}; retrying until {last}")
    for node in range(len(context.view.nodes)):
        context.news.emit_phase(node, "requested", "no capacity", now + wait)


class EnvironmentLocks:
    """Lock files that list the installed packages of the nodes that this client started."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news
        self._remaining: dict[int, tuple[Link, Mapping[str, Any]]] = {}
        self._lock = asyncio.Lock()

    def save(self, link: Link, config: Mapping[str, Any], installed: Mapping[str, str] | None) -> None:
        """Save the packages that were installed on a node.

        ``installed`` is None if no packages were requested. The packages of the node's Python are then saved later.
        """
        if installed is None:
            self._remaining[link.node] = link, config
        elif installed:
            try:
                self._write({link.node: config}, installed, was_installed=True)
            except OSError as error:
                self._emit_warning(error)

    async def save_remaining(self) -> None:
        """Save the packages of nodes without requested packages. Runs in the background after the start."""
        # The lock makes a concurrent teardown wait. If the background task was cancelled, the teardown saves the files.
        async with self._lock:
            remaining = dict(self._remaining)
            # Remote machines are skipped, because they only have the packages of their own Python.
            if remaining and self._context.is_local:
                await self._save_all(remaining)
            for node, what in remaining.items():
                if self._remaining.get(node) is what:
                    del self._remaining[node]

    async def _save_all(self, remaining: Mapping[int, tuple[Link, Mapping[str, Any]]]) -> None:
        # List the packages of a local pool only once, because all of its nodes share one Python.
        link, _ = next(iter(remaining.values()))
        configs = {node: config for node, (_, config) in remaining.items()}
        try:
            if (installed := await link.transport.installed()) is not None:
                await asyncio.to_thread(self._write, configs, installed, was_installed=False)
        except OSError as error:
            self._emit_warning(error)

    def _write(
        self, configs: Mapping[int, Mapping[str, Any]], installed: Mapping[str, str], *, was_installed: bool
    ) -> None:
        from skyward_core.tasks.packages.lock_file_reading_and_writing import format_lock, lock_heading

        texts: dict[int, str] = {}
        shared: tuple[Any, Any] | None = None  # image and interpreter of the latest text, which most nodes share
        text = ""
        for node, config in configs.items():
            if shared != (config["image"], config["interpreter"]):
                shared = config["image"], config["interpreter"]
                heading = lock_heading(self._context.name, _interpreter(config), installed=was_installed)
                image = with_script_requirements(config["image"], _interpreter(config))
                text = self._news.redactor.redact_text(format_lock(image, installed, heading))
            texts[node] = text
        pool_folder.save_locks(self._context.archive.folder, texts)

    def _emit_warning(self, error: OSError) -> None:
        self._news.emit_warning(f"cannot save the list of installed packages: {error}")


def _interpreter(config: Mapping[str, Any]) -> Interpreter:
    return Interpreter.from_json(config["interpreter"]) if config["interpreter"] else own_interpreter()


class PoolStartup:
    """Start of one pool, or attachment of this client to the pool. Starts agents on the nodes and connects links.

    Attributes:
        locks: Lists of the packages on the nodes.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news
        self.locks = EnvironmentLocks(context)
        self._verifier = MachineVerifier(context)
        self._task: asyncio.Task[None] | None = None

    # -- a new pool ----------------------------------------------------------------------------------------

    async def start(self, spec: PoolSpec) -> None:
        """Create the machines and bring every node to the phase "ready". A failure removes all resources again.

        Raises:
            PoolError: If a node failed. The error names the node, the cause and a fix.
            Cancelled: If :meth:`stop` was called during the start.
        """
        context = self._context
        context.background.spawn(self._report_unfinished_starts())
        self._task = asyncio.create_task(self._bring_up(spec))
        patience = spec.options.start_timeout + float(spec.options.wait_for_capacity)
        limit = asyncio.timeout(patience)
        try:
            async with limit:
                await self._task
        except BaseException as error:
            # The time limit of the start has expired, not that of a provider's call.
            if limit.expired() and isinstance(error, TimeoutError):
                waiting = [
                    f"node {n.index} {n.phase} ({n.detail or context.view.detail})"
                    for n in context.view.nodes
                    if n.phase != "ready"
                ]
                message = f"Pool {context.name} did not start within {patience:g} s: {'; '.join(waiting)}"
                self._set_start_error(message)
                await self._tear_down()
                raise PoolError(message) from error
            if context.detached and isinstance(error, asyncio.CancelledError):
                raise Cancelled(f"Pool {context.name} did not start: this client detached") from error
            if context.leaving and isinstance(error, asyncio.CancelledError):
                await self._tear_down()
                raise Cancelled(f"Pool {context.name} did not start: it was torn down") from error
            self._news.emit_state("starting", error_message(error), error_hint(error))
            self._set_start_error(error_message(error) or type(error).__name__)
            await self._tear_down(error_message(error))
            raise

    async def _report_unfinished_starts(self) -> None:
        """Warn about rented machines of other pools whose client exited during the start."""
        ledger = self._context.ledger
        for row in ledger.live_pools():
            if row.state != "starting" or is_starting(row) or not row.spec.get("rents"):
                continue
            try:
                provider = provider_from_json(row.provider)
                await save_unknown_machines(row.name, row.token, provider, ledger)
                machines = await log_query(
                    "describe", row.name, provider.describe(row.name, ledger.machines(row.token))
                )
            except (SkywardError, OSError) as error:
                # Without an answer of the provider, count the machines that the ledger lists.
                machines = [*ledger.machines(row.token), *getattr(error, "machines", ())]
            if ids := ", ".join(dict.fromkeys(each.id for each in machines if each.state != "gone")):
                self._news.emit_state(
                    self._context.view.state,
                    f"the client of pool {row.name} exited during the start, and its machines may cost money: {ids}",
                    Hint("down", row.name),
                )

    def _set_start_error(self, reason: str) -> None:
        """Set the reason of a failed start, which the receipt states."""
        self._context.start_error = self._news.redactor.redact_text(sanitize_paragraph(reason))

    async def _tear_down(self, reason: str = "") -> None:
        receipt = await asyncio.shield(self._context.shutdown.begin(False, None))
        if not receipt.ok:
            failure = f"Pool {self._context.name} did not start"
            reason = reason.removeprefix(f"{failure}: ").rstrip(".")
            failure += f": {reason}" if reason else ""
            raise PoolError(f"{failure}. Its teardown is incomplete: {receipt}")

    @property
    def is_running(self) -> bool:
        """Whether the start is in progress."""
        return self._task is not None and not self._task.done()

    async def stop(self) -> bool:
        """Cancel the start and wait for its end. Return whether a start was in progress."""
        if self._task is None or self._task.done():
            return False
        self._task.cancel()
        await asyncio.wait([self._task])
        return True

    async def _bring_up(self, spec: PoolSpec) -> None:
        context = self._context
        await self.start_nodes(spec)
        context.setup.create(spec.plugins)
        with suppress(OSError):  # if the file cannot be written, other clients do not find the dashboards of plugins
            pool_folder.save_dashboards(context.row.key, context.name, spec.plugins)
        if context.setup.rank_setup is not None:
            await context.setup.rank_setup.ensure_set_up()
        context.roster.save_state()
        context.background.spawn(self._save_locks())
        context.limits.watch()
        if prune_is_due():
            from skyward_core.store.old_pool_environment_and_clone_pruning import prune_when_due

            context.background.spawn(asyncio.to_thread(prune_when_due, context.ledger))

    async def _save_locks(self) -> None:
        await asyncio.sleep(LOCK_DELAY)
        await self.locks.save_remaining()

    async def start_nodes(self, spec: PoolSpec) -> None:
        """Create the machines and bring every node to the phase "ready". A failure leaves the machines running.

        Raises:
            PoolError: If a node failed. The error names the node, the cause and a fix.
        """
        context = self._context
        for node in range(spec.most_nodes):
            self._news.emit_phase(node, "requested")
        with progress_listener(self._news.emit_warning):
            context.machines[:] = await create_machines(context, spec)
        context.ledger.record_created(context.token, context.machines)
        self._update_node_count()
        self._news.update_price()
        self._check_not_ended()
        context.setup.add_secrets(
            [*spec.options.secrets, *(each for plugin in spec.plugins for each in plugin.secrets())]
        )
        context.links[:] = [self._link(machine) for machine in context.machines]
        gate = StartBarrier(len(context.links))
        await run_all(self._start_node(link, gate) for link in context.links)
        await self._verify_machines(context.links)
        self._check_equal_ranks()
        gate.begin_deferred()

    def _update_node_count(self) -> None:
        """Update the number of nodes. A pool with a range of nodes may get fewer than the maximum."""
        context = self._context
        if len(context.view.nodes) != len(context.machines):
            context.row = context.ledger.pool(context.token)
            self._news.emit_opened()

    def _check_not_ended(self) -> None:
        """Check that no other client has torn the pool down before these machines were created.

        Raises:
            PoolError: If another client has torn the pool down. The machines still exist.
        """
        row = self._context.ledger.pool(self._context.token)
        if row.state == "stopping" or row.ended_at is not None:
            raise PoolError(f"Pool {self._context.name} did not start: another client has torn it down")

    # -- an existing pool ----------------------------------------------------------------------------------

    async def attach(self) -> None:
        """Connect to a running pool. If the provider reports that the pool has ended, close it in the ledger.

        Raises:
            PoolGone: If the pool has ended.
            PoolError: If no node of the pool can be reached.
        """
        context = self._context
        attached_at = time.time()
        try:
            await self.attach_nodes()
        except PoolError:
            # The pool may have ended while no client was running, for example by its lease.
            row = context.ledger.pool(context.token)
            # If the provider does not answer either, raise the error that no node can be reached.
            with suppress(SkywardError, OSError):
                await close_if_gone(row, context.provider, context.ledger)
            if (row := context.ledger.pool(context.token)).ended_at is None:
                raise
            raise PoolEnd.from_ledger(row).error() from None
        context.background.spawn(self._replay_node_messages(attached_at))
        context.setup.create(None)
        context.roster.save_state()
        context.recovery.replacements.resume()
        if not context.observer:
            context.limits.watch()
        try:
            # Fetch the settings now, because the agents and clients that know them may be gone later.
            await context.setup.fetch_from_nodes()
        except OSError as error:
            self._news.emit_node_note(context.links[0], f"{error}; retrying when it is needed")

    async def _replay_node_messages(self, before: float) -> None:
        """Restore the nodes' start-up messages from the event log.

        Only the client that created the pool received and logged them, so a client on another machine finds none.
        """
        messages = await asyncio.to_thread(lambda: list(node_events(self._context.archive.folder, before)))
        restore_node_details(self._context.view, messages)

    async def activate(self) -> None:
        """Turn an observer into a client that keeps the pool alive. Complete the start if its client exited early.

        Raises:
            PoolError: If the pool never finished its start and a mismatching machine could not be replaced.
        """
        context = self._context
        context.observer = False
        context.limits.watch()
        for link in context.links:
            link.activate()
        context.registry.others.check_ledger()
        context.registry.others.adopt_waiting()
        await self._finish()
        context.roster.save_state()

    async def attach_nodes(self) -> None:
        """Connect to the existing nodes.

        Raises:
            Unreachable, HostKeyError, CredentialsRefused: If no node answers. The type depends on the first failure.
            PoolError: If no machine remains, the pool is of an incompatible release, or the pool never finished its
                start and a mismatching machine could not be replaced.
        """
        pool = self._context
        pool.machines[:] = pool.ledger.machines(pool.token)
        self._news.update_price()
        replaced = {each.node: each for each in pool.ledger.replacements(pool.token)}
        if pool.row.state != "up" and await save_unknown_machines(pool.name, pool.token, pool.provider, pool.ledger):
            pool.machines[:] = pool.ledger.machines(pool.token)
            self._update_node_count()
            self._news.update_price()
        seen = await pool.describe(pool.machines)
        self._check_finished(seen)
        coming = any(each.is_owner_alive for each in replaced.values())
        if not seen or (all(machine.state == "gone" for machine in seen) and not coming):
            raise PoolError(f"No machine of pool {pool.name} exists any more.")
        self._news.live_logs.show_earlier()
        pool.links[:] = [self._link(machine) for machine in pool.machines]
        orphans = []
        for link, machine in zip(pool.links, seen, strict=True):
            entry = replaced.get(link.node)
            if entry is not None and (entry.is_owner_alive or machine.state != "running"):
                link.mark_lost()  # another client is replacing this machine, or the next client does
                self._news.emit_phase(link.node, "requested", "waiting for a replacement machine")
            elif machine.state == "orphaned":
                orphans.append(link)
            elif machine.state == "gone":
                preemption = describe_preemption(link.node, machine)
                link.mark_lost(preemption or "its machine was already gone", taken_back=bool(preemption))
                self._news.emit_phase(link.node, "gone", preemption or "already gone")
        present = [link for link in pool.links if not link.gone and link not in orphans]
        results = await asyncio.gather(*(link.connect() for link in present), return_exceptions=True)
        if orphans:
            if any(link.up for link in present):
                # A new agent needs the variables, secrets and plugins that the previous agent had in memory.
                await self._context.setup.fetch_from_nodes()
            results += await asyncio.gather(*map(self._restart_agent, orphans), return_exceptions=True)
        failures = [
            (link, error)
            for link, error in zip([*present, *orphans], results, strict=True)
            if isinstance(error, BaseException)
        ]
        if failures and len(failures) == len(results):
            raise _no_answer_error(pool.name, failures[0][1]) from failures[0][1]
        for link, error in failures:
            link.start_reconnecting(error_message(error))
        for link in [link for link in pool.links if link.up]:
            if pool.observer or not self._is_unfinished or self._verifier.purchase_of(link.node) is None:
                self._news.emit_phase(link.node, "ready", address=pool.machines[link.node].address)
        if not pool.observer:
            await self._finish()

    @property
    def _is_unfinished(self) -> bool:
        """Whether the client that created the pool exited before the machines were measured."""
        return self._context.ledger.pool(self._context.token).state == "starting"

    async def _finish(self) -> None:
        """Measure the machines of a pool that never finished its start.

        Raises:
            PoolError: If a mismatching machine could not be replaced.
        """
        if self._is_unfinished:
            await self._verify_machines([link for link in self._context.links if link.up])

    async def _verify_machines(self, links: Iterable[Link]) -> None:
        await self._verifier.verify([link.node for link in links], partial(self.move_node, ready=False))

    def _check_finished(self, seen: Sequence[Machine]) -> None:
        """Check that an unfinished start can be completed by this client.

        An observer must not set up the pool. Rented machines without any agent cannot be used, because only the client
        that created the pool knew their configuration.

        Raises:
            PoolError: If the start cannot be completed. The message states the number of machines.
        """
        pool = self._context
        if pool.observer and pool.row.state == "starting" and any(each.state == "orphaned" for each in seen):
            raise PoolError(
                f"Pool {pool.name} is incomplete: its client exited during startup. Run a function on it to finish the "
                "setup, or tear it down.",
                hint=Hint("down", pool.name),
            )
        remaining = [each for each in seen if each.state != "gone"]
        if (
            pool.ends_machines
            and pool.row.state in ("starting", "failed")
            and remaining
            and all(each.state in ("ending", "agentless") for each in remaining)
        ):
            reason = (
                "its start or teardown failed" if pool.row.state == "failed" else "its client exited during startup"
            )
            raise PoolError(
                f"Pool {pool.name} is incomplete: {reason}, and no agent runs on any of its "
                f"{len(remaining)} machines. They may cost money. Tear the pool down.",
                hint=Hint("down", pool.name),
            )

    async def _restart_agent(self, link: Link) -> None:
        async with self._context.roster.decision_lock(link.node) as decided:
            if decided:
                link.mark_lost()
                self._news.emit_phase(link.node, "requested", "waiting for a replacement machine")
                return
            await self.prepare(link)
        await link.connect()

    # -- one node ------------------------------------------------------------------------------------------

    async def move_node(self, machine: Machine, *, ready: bool = True) -> None:
        """Bring a node up on another machine.

        Args:
            machine: The new machine. It has the node's index.
            ready: Whether to verify the machine and mark the node as ready.

        Raises:
            PoolError: If the machine cannot be reached, cannot run an agent or does not match the order.
            OSError: If another node must provide the environment and none can be reached.
        """
        await self._context.setup.fetch_from_nodes()
        with self._moved_link(machine) as link:
            await self.prepare(link)
            await self._replace_link(link)
            self._check_equal_ranks()
            if ready:
                await self._verifier.verify_replacement(machine.node)

    @contextmanager
    def _moved_link(self, machine: Machine) -> Iterator[Link]:
        """Create the link to a node's new machine. After a failure the link is closed."""
        pool = self._context
        pool.machines[machine.node] = machine
        self._news.update_price()
        link = self._link(machine)
        try:
            yield link
        except BaseException:
            pool.registry.drop_link(link)
            pool.background.spawn(link.close())
            raise

    async def join_machine(self, machine: Machine) -> None:
        """Connect to the machine that another client has started as a node's replacement.

        Raises:
            PoolError, OSError: If the machine does not answer.
        """
        with self._moved_link(machine) as link:
            await self._replace_link(link)
            # Fetch the configuration after connecting, because this node may be the only one that answers.
            await self._context.setup.fetch_from_nodes()
        self._news.emit_phase(link.node, "ready", address=machine.address)

    async def _replace_link(self, link: Link) -> None:
        """Replace a lost node's link and connect."""
        links = self._context.links
        self._context.background.spawn(links[link.node].close())
        links[link.node] = link
        await self._connect(link)

    async def prepare(self, link: Link, gate: StartBarrier | None = None, *, first: bool = False) -> Report:
        """Make sure that an agent runs on a node: start one, or adopt the running one.

        Args:
            link: Link to the node.
            gate: Barrier that all nodes of a starting pool pass together.
            first: Whether the pool has never used this machine before.

        Returns:
            A function that publishes further phases of the node.

        Raises:
            PoolError: If the node cannot be reached or cannot run an agent.
        """
        machine = self._context.machines[link.node]

        def report(phase: NodePhase, detail: str = "", retry_at: float | None = None, address: str = "") -> None:
            self._news.emit_phase(link.node, phase, detail, retry_at, address or machine.address)

        config = self._agent_config(link.node)
        self.locks.save(link, config, await link.transport.prepare(config, report, gate, first=first))
        return report

    async def send_folder(self) -> None:
        """Update the nodes' copies of the working folder.

        Raises:
            PoolError: If the folder cannot be sent or a host cannot be reached.
        """
        links = self._context.present_links
        gate, setup = StartBarrier(len(links)), self._context.setup

        def reporter(link: Link) -> Callable[[str], None]:
            return lambda line: self._news.emit_warning(f"node {link.node}: {line}")

        await run_all(link.transport.send_folder(setup.cwd, setup.image, gate, reporter(link)) for link in links)

    async def _start_node(self, link: Link, gate: StartBarrier) -> None:
        report = await self.prepare(link, gate, first=True)
        await self._connect(link)
        if self._verifier.purchase_of(link.node) is None:
            report("ready")

    async def _connect(self, link: Link) -> None:
        try:
            await link.connect()
        except (OSError, WireError) as error:
            address = self._context.machines[link.node].address
            message = f"The agent of node {link.node} ({address}) does not answer: {error}"
            raise (PoolError if isinstance(error, WireError) else Unreachable)(message) from error

    def _agent_config(self, node: int) -> dict[str, Any]:
        """Return the configuration of a node's agent; see ``agent.config``."""
        pool, setup = self._context, self._context.setup
        worker, machine = pool.row.spec["worker"], pool.machines[node]
        before, behind = import_path.import_path_entries()
        local = [entry for _, entry in setup.image.get("folders") or ()]
        return {
            "pool": pool.name,
            "node": node,
            "nodes": len(pool.machines),
            "address": machine.private_address,
            **{name: worker[name] for name in ("ranks_per_node", "concurrency", "executor")},
            "free_gpus": machine.extra.get("free_gpus") or {},
            "deadman": machine.extra.get("deadman", 0),
            "notices": notice_program(pool.provider, machine),
            **{name: getattr(pool.options, name) for name in AGENT_OPTIONS},
            "env": setup.env,
            "knows_env": setup.is_env_known,
            "secrets": setup.secrets,
            "cwd": setup.cwd,
            "interpreter": setup.interpreter,
            "path_before": before,
            "path": [*filter(None, (setup.image.get("workdir"),)), *local, *behind],
            "image": setup.image | {"env": setup.env, "allow_apt": pool.options.allow_apt},
        }

    def _link(self, machine: Machine) -> Link:
        pool = self._context
        # The transport stores this listener and reports later progress to it, too.
        with progress_listener(self._news.emit_warning):
            transport = pool.provider.transport(pool.name, machine)
        return Link(
            machine.node,
            transport,
            pool.listener,
            observer=pool.observer,
            logs_from=machine.logs_from,
            pool=pool.name,
        )

    def _check_equal_ranks(self) -> None:
        """Check that all nodes have the same number of ranks.

        Raises:
            PoolError: If they have different numbers of GPUs.
        """
        links = [link for link in self._context.links if link.up]
        counts = [link.welcome["ranks_per_node"] for link in links]
        if len(set(counts)) > 1:
            counts_by_node = ", ".join(f"node {link.node} {link.welcome['ranks_per_node']}" for link in links)
            raise PoolError(
                f'ranks_per_node="gpu" requires nodes with equal numbers of GPUs, but pool {self._context.name} has: '
                f"{counts_by_node}. Set a number, for example ranks_per_node={min(counts)}."
            )


def _no_answer_error(pool: str, failure: BaseException) -> PoolError:
    if isinstance(failure, WireError):
        return PoolError(
            f"Pool {pool} was created by an incompatible release: {failure}. Use the release that created it.",
            hint=Hint("down", pool),
        )
    kind = type(failure) if isinstance(failure, HostKeyError | CredentialsRefused) else Unreachable
    return kind(f"No node of pool {pool} answers: {error_message(failure)}", hint=error_hint(failure))


def image_with_plugins(spec: PoolSpec) -> Image:
    """Return the image with the additions of the plugins.

    Raises:
        UsageError, PluginError: If a plugin does not support the specification.
    """
    if not spec.options.cluster and (spec.world_size > 1 or spec.worker.ranks_per_node == "gpu"):
        check_standalone(spec.plugins)
    image = transform_image(spec.plugins, spec.image, spec)
    return replace(image, setup=(*image.setup, *bootstrap_steps(spec.plugins, spec)))


@value
class Intent(Value):
    """A registered intent, with data that only the creating client knows.

    Attributes:
        row: Row of the pool in the ledger.
        image: Image with the additions of the plugins.
        interpreter: Interpreter of the user's script.
        packages: Package requirements of the project file that the image names.
        notice: Warning for the user, or "".
    """

    row: PoolRow
    image: Image
    interpreter: Interpreter
    packages: PackageSpecs | None = None
    notice: str = ""


async def write_intent(spec: PoolSpec, ledger: Ledger, cwd: str) -> Intent:
    """Register the intent to create a pool, before any of its resources exist.

    Args:
        spec: Specification of the pool.
        ledger: Ledger to register the pool in.
        cwd: Working folder of the client, used if the image names none.

    Returns:
        The intent.

    Raises:
        PoolExistsError: If a pool of that name is running.
        UsageError, PluginError: If a plugin or the interpreter does not support the specification, or the image's
            working folder does not exist.
    """
    token = secrets.token_hex(8)
    provider: Provider = spec.provider
    image = image_with_plugins(spec)
    if image.workdir:
        image = replace(image, workdir=resolve_workdir(image.workdir))
    python = spec.interpreter or own_interpreter()
    folder = str(image.workdir or cwd)
    packages = await _project_packages(image, folder, python)
    whole = packages.add_to_image(image.describe()) if packages else image.describe()
    check_python(whole, python.describe())
    if not isinstance(provider, RunsHere):
        # Convert the image for hosts now, to report its errors before any machine is rented.
        image_for_hosts(whole, python.describe())
    written = replace(spec, image=image, interpreter=python).describe() | {"cwd": folder}
    if packages:
        written["image"] = map_strings(whole, make_sanitizer(os.environ | image.env))
    warnings = await provider.warnings(spec) if isinstance(provider, Warns) else ()
    try:
        row = ledger.record_intent(token, spec.name, provider.to_json(), written)
    except PoolExistsError:
        # The old pool may have ended while no client was running, for example by its lease.
        other = ledger.find_pool(spec.name)
        closed = other and await close_if_gone(other, provider_from_json(other.provider), ledger)
        if not closed:
            raise
        row = ledger.record_intent(token, spec.name, provider.to_json(), written)
        warnings = (f"previous pool of this name: {describe_end(closed)}", *warnings)
    return Intent(row, image, python, packages, "; ".join(warnings))


async def _project_packages(image: Image, folder: str, python: Interpreter) -> PackageSpecs | None:
    """Return the package requirements of the project file that the image names."""
    if not image.packages_by:
        return None
    # Imported late, because most images name no project file.
    from skyward_core.tasks.packages.image_packages_from_file import read_image_packages

    return await asyncio.to_thread(read_image_packages, image, folder, python.version)
