"""From the intent to every node ready."""

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
from skyward_core.model.machines import (
    MAX_CLOCK_OFFSET,
    Machine,
    MeasuredHardware,
    OrderedHardware,
    find_mismatch,
)
from skyward_core.model.outcomes import NodePhase
from skyward_core.model.provider_capabilities import RunsHere, Sells, Warns, notice_program
from skyward_core.model.script_interpreter import Interpreter
from skyward_core.model.specs import Image, PoolSpec
from skyward_core.plugins.plugin import bootstrap_steps, check_standalone, transform_image
from skyward_core.pool.agent_link import Link
from skyward_core.pool.ledger_reconciliation import close_if_gone, describe_end, save_unknown_machines, with_python
from skyward_core.pool.node_roster import describe_preemption
from skyward_core.pool.pool_context import PoolContext, PoolEnd
from skyward_core.protocol.frame_codec import WireError
from skyward_core.providers import provider_from_json
from skyward_core.providers.provider import Provider
from skyward_core.providers.provider_calls import log_call, progress_listener
from skyward_core.store import pool_folder
from skyward_core.store.debug_log import get_logger
from skyward_core.store.ledger import Ledger
from skyward_core.store.pool_folder import node_events
from skyward_core.store.state_folder import prune_is_due, resolve_workdir
from skyward_core.tasks import client_interpreter
from skyward_core.tasks.client_interpreter import own_interpreter
from skyward_core.transport.background_loop import run_all
from skyward_core.transport.transport import (
    Report,
    StartBarrier,
    SupportsHostCommands,
    check_python,
    image_for_hosts,
    with_script_requirements,
)
from skyward_core.util.light_dataclass import Value, value
from skyward_core.util.redaction import make_sanitizer, map_strings
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.pool_view import restore_node_details

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import ProbeDone, SendDone
    from skyward_core.store.ledger_rows import PoolRow
    from skyward_core.tasks.packages.package_specs import PackageSpecs
    from skyward_core.transport.transport import HostCommands


_log = get_logger("pool")

LOCK_DELAY = 1.0  # seconds after a start in which nothing is done that can wait

ALONE, TOTAL_PROBE_TIMEOUT = (
    11.0,
    15.0,
)  # seconds in which each node measures itself, and for all that is measured

MoveNode = Callable[[Machine], Awaitable[Any]]


class MachineVerifier:
    """One pool's."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news

    def purchase_of(self, node: int) -> OrderedHardware | None:
        """What was bought of a node's machine; None where that is not to be looked at."""
        context = self._context
        return context.provider.paid_for(context.machines[node]) if isinstance(context.provider, Sells) else None

    async def verify(self, nodes: Iterable[int], take_over: MoveNode) -> None:
        """Look at machines that were bought, exchange those that are not what was paid for, and call them ready.

        Args:
            nodes: those that are looked at, where they were bought.
            take_over: brings a node up on another machine.

        Raises:
            NoCapacity: there is no other machine for one.
            PoolError: the other one is not what was paid for, either.
        """
        bought = {node: what for node in nodes if (what := self.purchase_of(node)) is not None}
        lies = await self._verify_nodes(bought)
        for node, reason in lies.items():
            await self._replace_machine(node, reason, take_over)
        again = await self._verify_nodes({node: bought[node] for node in lies})
        for node, reason in again.items():
            raise PoolError(
                f"{self._describe(node)} took the place of one that was not what was bought ({lies[node]}), and is not "
                f"either: {reason}; try again, in another zone or with another type"
            )

    async def verify_replacement(self, node: int) -> None:
        """Look at a machine that took another one's place, and call it ready.

        Raises:
            PoolError: it is not what was bought.
        """
        bought = self.purchase_of(node)
        lies = await self._verify_nodes({} if bought is None else {node: bought})
        if lies:
            self._mark_unused(self._context.machines[node])
            raise PoolError(f"{self._describe(node)} is not what was bought: {lies[node]}")
        if bought is None:
            self._emit_phase(node, "ready", "")

    async def _verify_nodes(self, bought: Mapping[int, OrderedHardware]) -> dict[int, str]:
        """Look at nodes; gives what is not as it was bought, and calls the others ready."""
        if not bought:
            return {}
        for node in bought:
            self._emit_phase(node, "installed", "measuring what was bought")
        found = await self._measure_nodes(bought)
        cut_off = self._find_isolated(found)
        lies = {}
        for node, arrived in found.items():
            reason = find_mismatch(bought[node], arrived) or cut_off.get(node, "")
            _log.debug(
                "node %d: %s%s", node, arrived, f"; {reason}" if reason else "", extra={"pool": self._context.name}
            )
            if abs(arrived.offset or 0.0) > MAX_CLOCK_OFFSET:
                self._news.emit_warning(f"{self._describe(node)}: its clock is off by {arrived.offset:.0f} s")
            if reason:
                lies[node] = reason
            else:
                self._emit_phase(node, "ready", str(arrived))
        return lies

    def _find_isolated(self, found: Mapping[int, MeasuredHardware]) -> dict[int, str]:
        """Nodes that nobody reaches and that reach nobody, where others do; of two, nobody can say which it is."""
        lost = {(node, each.neighbour) for node, each in found.items() if each.rate == 0.0}
        works = any(each.rate for each in found.values())
        into = {neighbour: node for node, neighbour in lost}
        return {
            node: f"it reaches neither node {neighbour} nor does node {into[node]} reach it"
            for node, neighbour in lost
            if works and node in into and into[node] != neighbour
        }

    # -- measuring ---------------------------------------------------------------------------------------

    async def _measure_nodes(self, bought: Mapping[int, OrderedHardware]) -> dict[int, MeasuredHardware]:
        """Have nodes measure themselves, all at once, and then the network between them, in a ring."""
        until = time.monotonic() + TOTAL_PROBE_TIMEOUT
        word = secrets.token_hex(16)
        nodes = sorted(bought)
        channels: dict[int, HostCommands] = {}
        try:
            told = await asyncio.gather(
                *(self._measure_node(node, bought[node], word if len(nodes) > 1 else "", channels) for node in nodes)
            )
            ports = {node: port for node, (_, port) in zip(nodes, told, strict=True)}
            found = {node: arrived for node, (arrived, _) in zip(nodes, told, strict=True)}
            turns = [(node, nodes[(at + 1) % len(nodes)]) for at, node in enumerate(nodes) if len(nodes) > 1]
            turns = [(one, other) for one, other in turns if one in channels and ports[other]]
            left = max(0.0, until - time.monotonic())
            sent = await asyncio.gather(
                *(self._measure_network(channels[one], other, ports[other], word, left) for one, other in turns)
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
        """What a node finds of itself, and the port at which it listens for its neighbour."""
        transport = self._context.links[node].transport
        if not isinstance(transport, SupportsHostCommands):
            return MeasuredHardware(notes=("not measured",)), 0
        address = self._address(node) if word and not self._context.is_standalone else ""
        try:
            async with asyncio.timeout(ALONE):
                channel = channels[node] = await transport.channel()
                begun = time.time()
                told: ProbeDone = await channel.ask(
                    "probe", gpus=bool(bought.count), python=transport.interpreter, address=address, word=word
                )
        except (SkywardError, OSError, TimeoutError) as error:
            if (broken := channels.pop(node, None)) is not None:
                broken.close()
            return MeasuredHardware(
                notes=(f"not measured: {error_message(error) or f'it took more than {ALONE:g} s'}",)
            ), 0
        return _parse_probe(told, begun, bought), told["port"]

    async def _measure_network(
        self, channel: HostCommands, neighbour: int, port: int, word: str, left: float
    ) -> tuple[float | None, str]:
        try:
            async with asyncio.timeout(left):
                told: SendDone = await channel.ask("send", address=self._address(neighbour), port=port, word=word)
        except (SkywardError, OSError, TimeoutError) as error:
            return None, f"not measured: {error_message(error) or 'there was no time'}"
        return told["rate"], sanitize_line(told["why"])

    def _address(self, node: int) -> str:
        return self._context.machines[node].private_address

    # -- another machine ---------------------------------------------------------------------------------

    async def _replace_machine(self, node: int, reason: str, take_over: MoveNode) -> None:
        """Put another machine in a node's place; what is asked for is written down first, as for a lost one."""
        context, ledger, token = self._context, self._context.ledger, self._context.token
        liar = context.machines[node]
        self._news.emit_warning(f"{self._describe(node)} is not what was bought: {reason}; another one is asked for")
        self._emit_phase(node, "requested", f"{liar.id} is not what was bought: {reason}; another machine is asked for")
        entry = ledger.record_replacement_intent(token, node, secrets.token_hex(8), context.roster.owner)
        if entry is None:
            raise PoolError(f"another client has taken over pool {context.name} while it was starting")
        others = [each for each in context.machines if each.node != node]
        former = [*ledger.replaced_machines(token), liar]
        asked = context.provider.replace(context.name, entry.intent, node, others, former)
        try:
            with progress_listener(lambda text: self._emit_phase(node, "requested", text)):
                machine = await log_call("replace", context.name, asked)
        except NoCapacity as error:
            raise NoCapacity(
                f"{self._describe(node)} is not what was bought: {reason}; and {error_message(error)}"
            ) from error
        machine = with_python(machine, context.row)
        if not ledger.record_replacement(token, machine):
            await context.terminate(machine)
            raise PoolError(f"pool {context.name} was torn down by another client while it was starting")
        self._mark_unused(liar)
        context.links[node].mark_lost()  # nobody shall look for what ends now
        await context.terminate(liar)
        await take_over(machine)
        ledger.end_replacement(token, node)

    def _mark_unused(self, machine: Machine) -> None:
        """Nothing has run on it: the teardown need not ask it for what nobody has fetched."""
        from skyward_core.pool.fetch_retained_results import mark_empty  # few starts need it

        mark_empty(self._context, machine)

    # -- what is said ------------------------------------------------------------------------------------

    def _describe(self, node: int) -> str:
        machine = self._context.machines[node]
        return f"machine {machine.id} of node {node} ({machine.address})"

    def _emit_phase(self, node: int, phase: NodePhase, detail: str) -> None:
        address = self._context.machines[node].address
        self._news.emit_phase(node, phase, detail, address=address)


def _parse_probe(told: ProbeDone, begun: float, bought: OrderedHardware) -> MeasuredHardware:
    reasons = told["whys"]
    clock = told["time"]
    return MeasuredHardware(
        gpus=None
        if "gpus" in reasons or not bought.count
        else [(sanitize_line(n), mib / 1024) for n, mib in told["gpus"]],
        disk=None if "disk" in reasons else told["disk"],
        tflops=told["tflops"] or None,
        # It was asked some time between the two: only beyond them it is off, however slow the answer.
        offset=clock - min(max(clock, begun), time.time()),
        notes=[f"{name} not measured: {sanitize_line(reason)}" for name, reason in sorted(reasons.items())],
    )


PAUSES = (10.0, 300.0)  # seconds between two tries, at first and at most


async def create_machines(context: PoolContext, spec: PoolSpec) -> list[Machine]:
    """The machines of a pool that begins; what is asked for was written down under the pool's token, so that asking
    again makes nothing twice.

    Raises:
        NoCapacity: there are none, and the time is over.
        SkywardError: something that waiting would not change.
    """
    until, pause = time.monotonic() + float(spec.options.wait_for_capacity), PAUSES[0]
    while True:
        try:
            made = await log_call("create", context.name, context.provider.create(spec, context.token))
            return [with_python(each, context.row) for each in made]
        except TooFewHosts:  # there will be no more of them
            raise
        except NoCapacity as error:
            left = until - time.monotonic()
            if left <= 0:
                raise
            wait = min(pause, left)
            _report_no_capacity(context, error_message(error), wait, left)
            await asyncio.sleep(wait)
            pause = min(pause * 1.5, PAUSES[1])


def _report_no_capacity(context: PoolContext, reason: str, wait: float, left: float) -> None:
    now = time.time()
    last = time.strftime("%Y-%m-%d %H:%M", time.localtime(now + left))
    context.news.emit_warning(f"{reason}; tried again until {last}")
    for node in range(len(context.view.nodes)):
        context.news.emit_phase(node, "requested", "none to be had", now + wait)


class EnvironmentLocks:
    """Of the nodes that this client has brought up."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news
        self._remaining: dict[int, tuple[Link, Mapping[str, Any]]] = {}
        self._lock = asyncio.Lock()

    def save(self, link: Link, config: Mapping[str, Any], installed: Mapping[str, str] | None) -> None:
        """Keep what was installed on a node; None where nobody asked for packages, which is seen to later."""
        if installed is None:
            self._remaining[link.node] = link, config
        elif installed:
            try:
                self._write(link.node, config, installed, was_installed=True)
            except OSError as error:
                self._emit_warning(error)

    async def save_remaining(self) -> None:
        """Keep what ranks have where nothing was installed for them. Nobody waits for it while a pool comes up."""
        async with self._lock:  # who ends the pool meanwhile waits, or does it where that one was cancelled
            left = dict(self._remaining)
            if left and self._context.is_local:  # other machines have what their own Python has
                await self._save_all(left)
            for node, what in left.items():
                if self._remaining.get(node) is what:
                    del self._remaining[node]

    async def _save_all(self, left: Mapping[int, tuple[Link, Mapping[str, Any]]]) -> None:
        link, _ = next(iter(left.values()))  # all nodes of this machine have the same
        try:
            if (installed := await link.transport.installed()) is not None:
                await asyncio.to_thread(self._write_all, left, installed)
        except OSError as error:
            self._emit_warning(error)

    def _write_all(self, left: Mapping[int, tuple[Link, Mapping[str, Any]]], installed: Mapping[str, str]) -> None:
        for node, (_, config) in left.items():
            self._write(node, config, installed, was_installed=False)

    def _write(
        self, node: int, config: Mapping[str, Any], installed: Mapping[str, str], *, was_installed: bool
    ) -> None:
        from skyward_core.tasks.packages.lock_files import format_lock, lock_heading

        heading = lock_heading(self._context.name, _interpreter(config), installed=was_installed)
        image = with_script_requirements(config["image"], _interpreter(config))
        text = self._news.redactor.redact_text(format_lock(image, installed, heading))
        pool_folder.save_lock(self._context.archive.folder, node, text)

    def _emit_warning(self, error: OSError) -> None:
        self._news.emit_warning(f"what packages ranks have cannot be written down: {error}")


def _interpreter(config: Mapping[str, Any]) -> Interpreter:
    return Interpreter.from_json(config["interpreter"]) if config["interpreter"] else own_interpreter()


class PoolStartup:
    """The start of one pool, or this client's attachment to it: agents run on the nodes, and links lead to them.

    Attributes:
        locks: Packages that the nodes' ranks have.
    """

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news
        self.locks = EnvironmentLocks(context)
        self._verifier = MachineVerifier(context)
        self._task: asyncio.Task[None] | None = None

    # -- a new pool --------------------------------------------------------------------------------------

    async def start(self, spec: PoolSpec) -> None:
        """Create the machines and bring every node to ready; after a failure nothing of the pool is left.

        Raises:
            PoolError: says which node failed, at what, and what to do.
            Cancelled: :meth:`stop` came in between.
        """
        context = self._context
        self._task = asyncio.create_task(self._bring_up(spec))
        patience = spec.options.start_timeout + float(spec.options.wait_for_capacity)
        limit = asyncio.timeout(patience)
        try:
            async with limit:
                await self._task
        except BaseException as error:
            if limit.expired() and isinstance(error, TimeoutError):  # and not one of a provider's own
                waiting = [
                    f"node {n.index} {n.phase} ({n.detail or context.view.detail})"
                    for n in context.view.nodes
                    if n.phase != "ready"
                ]
                await self._tear_down()
                said = f"pool {context.name} was not up after {patience:g} s: {'; '.join(waiting)}"
                raise PoolError(said) from error
            if context.detached and isinstance(error, asyncio.CancelledError):
                raise Cancelled(f"pool {context.name} was left while it was starting") from error
            if context.leaving and isinstance(error, asyncio.CancelledError):
                await self._tear_down()
                raise Cancelled(f"pool {context.name} was torn down while it was starting") from error
            self._news.emit_state("starting", error_message(error), error_hint(error))
            await self._tear_down()
            raise

    async def _tear_down(self) -> None:
        receipt = await asyncio.shield(self._context.shutdown.begin(False, None))
        if not receipt.ok:
            raise PoolError(f"the pool {self._context.name} did not start, and its teardown is not complete: {receipt}")

    @property
    def is_running(self) -> bool:
        """Whether it has begun, and has neither ended nor failed."""
        return self._task is not None and not self._task.done()

    async def stop(self) -> bool:
        """Break it off, and wait until nothing more comes up; says whether there was anything to break off."""
        if self._task is None or self._task.done():
            return False
        self._task.cancel()
        await asyncio.wait([self._task])
        return True

    async def _bring_up(self, spec: PoolSpec) -> None:
        context = self._context
        await self.start_nodes(spec)
        context.setup.create(spec.plugins)
        with suppress(OSError):  # then other clients do not find them
            pool_folder.save_dashboards(context.row.key, context.name, spec.plugins)
        if context.setup.rank_setup is not None:
            await context.setup.rank_setup.ensure_set_up()
        context.roster.save_state()
        context.background.spawn(self._save_locks())
        context.limits.watch()
        if prune_is_due():
            from skyward_core.store.pruning import prune_when_due

            context.background.spawn(asyncio.to_thread(prune_when_due, context.ledger))

    async def _save_locks(self) -> None:
        await asyncio.sleep(LOCK_DELAY)
        await self.locks.save_remaining()

    async def start_nodes(self, spec: PoolSpec) -> None:
        """Create the machines and bring every node to ready.

        Raises:
            PoolError: says which node failed, at what, and what to do; what was created is still there.
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

    def _update_node_count(self) -> None:
        """How many nodes there are is known once their machines are: of a range there may be fewer than its most."""
        context = self._context
        if len(context.view.nodes) != len(context.machines):
            context.row = context.ledger.pool(context.token)
            self._news.emit_opened()

    def _check_not_ended(self) -> None:
        """Another client may have torn the pool down meanwhile, and have seen nothing of these machines.

        Raises:
            PoolError: it has; what was created is still there.
        """
        row = self._context.ledger.pool(self._context.token)
        if row.state == "stopping" or row.ended_at is not None:
            raise PoolError(f"pool {self._context.name} was torn down by another client while it was starting")

    # -- a pool that is there ----------------------------------------------------------------------------

    async def attach(self) -> None:
        """Connect to a pool that the ledger has as up, and close it there if its provider says that it has ended.

        Raises:
            PoolGone: The pool has ended.
            PoolError: No node of the pool can be reached.
        """
        context = self._context
        came = time.time()
        try:
            await self.attach_nodes()
        except PoolError:
            # Nobody may have been there to write down its end, by its lease for example.
            row = context.ledger.pool(context.token)
            with suppress(SkywardError, OSError):  # then nothing is known but that no node answers
                await close_if_gone(row, context.provider, context.ledger)
            if (row := context.ledger.pool(context.token)).ended_at is None:
                raise
            raise PoolEnd.from_ledger(row).error() from None
        context.background.spawn(self._replay_node_messages(came))
        context.setup.create(None)
        context.roster.save_state()
        context.recovery.replacements.resume()
        if not context.observer:
            context.limits.watch()
        try:
            # Now: later the agents that know may be gone, and this the only client.
            await context.setup.fetch_from_nodes()
        except OSError as error:
            self._news.emit_node_note(context.links[0], f"{error}; asked again when it is needed")

    async def _replay_node_messages(self, before: float) -> None:
        """Restore the nodes' start-up messages: only the pool's maker received them, and has saved them if it ran on
        this machine."""
        said = await asyncio.to_thread(lambda: list(node_events(self._context.archive.folder, before)))
        restore_node_details(self._context.view, said)

    async def activate(self) -> None:
        """Turn an observer into a client that keeps the pool alive and completes a start that its maker left.

        Raises:
            PoolError: The pool was never up; a machine is not what was bought, and could not be exchanged.
        """
        context = self._context
        context.observer = False
        context.limits.watch()
        for link in context.links:
            link.activate()
        context.registry.others.check_ledger()
        await self._finish()
        context.roster.save_state()

    async def attach_nodes(self) -> None:
        """Connect to the nodes that are there.

        Raises:
            Unreachable, HostKeyError, CredentialsRefused: no node answers; by what the first of them says.
            PoolError: no machine is left, or the pool is of another release; or it was never up, and a machine of it is
                not what was bought, and could not be exchanged.
        """
        pool = self._context
        pool.machines[:] = pool.ledger.machines(pool.token)
        self._news.update_price()
        replaced = {each.node: each for each in pool.ledger.replacements(pool.token)}
        if pool.row.state == "starting" and await save_unknown_machines(
            pool.name, pool.token, pool.provider, pool.ledger
        ):
            pool.machines[:] = pool.ledger.machines(pool.token)
            self._update_node_count()
            self._news.update_price()
        seen = await pool.describe(pool.machines)
        self._check_finished(seen)
        coming = any(each.is_owner_alive for each in replaced.values())
        if not seen or (all(machine.state == "gone" for machine in seen) and not coming):
            raise PoolError(f"no machine of pool {pool.name} is left")
        self._news.live_logs.show_earlier()
        pool.links[:] = [self._link(machine) for machine in pool.machines]
        orphans = []
        for link, machine in zip(pool.links, seen, strict=True):
            entry = replaced.get(link.node)
            if entry is not None and (entry.is_owner_alive or machine.state != "running"):
                link.mark_lost()  # another client brings it up, or has left that to be gone on with
                self._news.emit_phase(link.node, "requested", "another machine is on its way")
            elif machine.state == "orphaned":
                orphans.append(link)
            elif machine.state == "gone":
                taken = describe_preemption(link.node, machine)
                link.mark_lost(taken or "its machine was gone when somebody came", taken_back=bool(taken))
                self._news.emit_phase(link.node, "gone", taken or "gone when we came")
        there = [link for link in pool.links if not link.gone and link not in orphans]
        results = await asyncio.gather(*(link.connect() for link in there), return_exceptions=True)
        if orphans:
            if any(link.up for link in there):
                await self._context.setup.fetch_from_nodes()  # a new agent should know what the one before it did
            results += await asyncio.gather(*map(self._restart_agent, orphans), return_exceptions=True)
        failures = [
            (link, error)
            for link, error in zip([*there, *orphans], results, strict=True)
            if isinstance(error, BaseException)
        ]
        if failures and len(failures) == len(results):
            raise _no_answer_error(pool.name, failures[0][1]) from failures[0][1]
        for link, error in failures:
            if pool.observer:  # it looks again by itself
                self._news.emit_link(link, False, error_message(error))
            else:
                link.start_reconnecting(error_message(error))
        up = [link for link in pool.links if link.up]
        for link in up:
            if pool.observer or not self._is_unfinished or self._verifier.purchase_of(link.node) is None:
                self._news.emit_phase(link.node, "ready", address=pool.machines[link.node].address)
        if not pool.observer:
            await self._finish()

    @property
    def _is_unfinished(self) -> bool:
        """Whether who made the pool was gone before its machines were measured."""
        return self._context.ledger.pool(self._context.token).state == "starting"

    async def _finish(self) -> None:
        """Measure the machines of a pool that was never up.

        Raises:
            PoolError: one is not what was bought, and could not be exchanged.
        """
        if self._is_unfinished:
            await self._verify_machines([link for link in self._context.links if link.up])

    async def _verify_machines(self, links: Iterable[Link]) -> None:
        await self._verifier.verify([link.node for link in links], partial(self.move_node, ready=False))

    def _check_finished(self, seen: Sequence[Machine]) -> None:
        """Of machines that end only with their pool none has an agent yet, and who knew what to tell one is gone; or we
        only look, and to go on with what its client has left would be to set it up.

        Raises:
            PoolError: so it is; says how many machines there are.
        """
        pool = self._context
        if pool.observer and pool.row.state == "starting" and any(each.state == "orphaned" for each in seen):
            raise PoolError(
                f"pool {pool.name} was not finished: its client was gone while it was starting; to use it is to go on "
                "with that",
                hint=Hint("down", pool.name),
            )
        left = [each for each in seen if each.state != "gone"]
        if (
            pool.ends_machines
            and pool.row.state == "starting"
            and left
            and all(each.state == "ending" for each in left)
        ):
            raise PoolError(
                f"pool {pool.name} was not finished: its client was gone before an agent ran on any of its "
                f"{len(left)} machines, which may cost money until they are ended",
                hint=Hint("down", pool.name),
            )

    async def _restart_agent(self, link: Link) -> None:
        async with self._context.roster.decision_lock(link.node) as decided:
            if decided:
                link.mark_lost()
                self._news.emit_phase(link.node, "requested", "another machine is on its way")
                return
            await self.prepare(link)
        await link.connect()

    # -- one node ----------------------------------------------------------------------------------------

    async def move_node(self, machine: Machine, *, ready: bool = True) -> None:
        """Bring a node up on another machine than it had.

        Args:
            machine: it.
            ready: whether it counts as soon as it is up.

        Raises:
            PoolError: the machine cannot be reached, cannot run an agent, or is not what was bought.
            OSError: another node has to be asked for the environment, and none can be now.
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
        """Make the link of a node that another machine has; after a failure nothing uses it."""
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
        """Connect to the machine that another client has put in a node's place.

        Raises:
            PoolError, OSError: it does not answer.
        """
        with self._moved_link(machine) as link:
            await self._replace_link(link)
            await self._context.setup.fetch_from_nodes()  # of this node, where no other is there
        self._news.emit_phase(link.node, "ready", address=machine.address)

    async def _replace_link(self, link: Link) -> None:
        """Put a new link in the place of one that is gone."""
        links = self._context.links
        self._context.background.spawn(links[link.node].close())
        links[link.node] = link
        await self._connect(link)

    async def prepare(self, link: Link, gate: StartBarrier | None = None, *, first: bool = False) -> Report:
        """Have an agent running on a node: a new one, or the one that is there.

        Args:
            first: the pool has never been on that machine.

        Returns:
            How to tell of the node's further phases.

        Raises:
            PoolError: the node cannot be reached or cannot run an agent.
        """
        machine = self._context.machines[link.node]

        def report(phase: NodePhase, detail: str = "", retry_at: float | None = None, address: str = "") -> None:
            self._news.emit_phase(link.node, phase, detail, retry_at, address or machine.address)

        config = self._agent_config(link.node)
        self.locks.save(link, config, await link.transport.prepare(config, report, gate, first=first))
        return report

    async def send_folder(self) -> None:
        """Bring the nodes' copies of the working folder up to date.

        Raises:
            PoolError: it cannot travel, or a host cannot be reached.
        """
        links = self._context.present_links
        gate, known = StartBarrier(len(links)), self._context.setup

        def said(link: Link) -> Callable[[str], None]:
            return lambda line: self._news.emit_warning(f"node {link.node}: {line}")

        await run_all(link.transport.send_folder(known.cwd, known.image, gate, said(link)) for link in links)

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
            said = f"the agent of node {link.node} ({address}) does not answer: {error}"
            raise (PoolError if isinstance(error, WireError) else Unreachable)(said) from error

    def _agent_config(self, node: int) -> dict[str, Any]:
        """What the agent of a node is told; see ``agent.config``."""
        pool, known = self._context, self._context.setup
        worker = pool.row.spec["worker"]
        before, behind = client_interpreter.import_path_entries()
        local = [entry for _, entry in known.image.get("folders") or ()]
        return {
            "pool": pool.name,
            "node": node,
            "nodes": len(pool.machines),
            "address": pool.machines[node].private_address,
            "ranks_per_node": worker["ranks_per_node"],
            "free_gpus": pool.machines[node].extra.get("free_gpus") or {},
            "concurrency": worker["concurrency"],
            "executor": worker["executor"],
            "idle_timeout": pool.options.idle_timeout,
            "ttl": pool.options.ttl,
            "deadman": pool.machines[node].extra.get("deadman", 0),
            "notices": notice_program(pool.provider, pool.machines[node]),
            "keep_results": pool.options.keep_results,
            "log_limit": pool.options.log_limit,
            "grace": pool.options.grace,
            "rendezvous": pool.options.rendezvous,
            "debug_wait": pool.options.debug_wait,
            "nice": pool.options.nice,
            "env": known.env,
            "knows_env": known.is_env_known,
            "secrets": known.secrets,
            "cwd": known.cwd,
            "interpreter": known.interpreter,
            "path_before": before,
            "path": [*filter(None, (known.image.get("workdir"),)), *local, *behind],
            "image": known.image | {"env": known.env, "allow_apt": pool.options.allow_apt},
        }

    def _link(self, machine: Machine) -> Link:
        pool = self._context
        return Link(
            machine.node,
            pool.provider.transport(pool.name, machine),
            pool.listener,
            observer=pool.observer,
            logs_from=machine.logs_from,
            pool=pool.name,
        )

    def _check_equal_ranks(self) -> None:
        """All nodes must have as many ranks.

        Raises:
            PoolError: they have different numbers of GPUs.
        """
        links = [link for link in self._context.links if link.up]
        counts = [link.welcome["ranks_per_node"] for link in links]
        if len(set(counts)) > 1:
            told = ", ".join(f"node {link.node} {link.welcome['ranks_per_node']}" for link in links)
            raise PoolError(
                f'ranks_per_node="gpu" needs nodes with the same number of GPUs, and pool {self._context.name} has: '
                f"{told}; give the number: ranks_per_node={min(counts)}, say"
            )


def _no_answer_error(pool: str, failure: BaseException) -> PoolError:
    if isinstance(failure, WireError):
        return PoolError(
            f"pool {pool} is of another release of this software: {failure}. Use it with the one that made it",
            hint=Hint("down", pool),
        )
    kind = type(failure) if isinstance(failure, HostKeyError | CredentialsRefused) else Unreachable
    return kind(f"no node of pool {pool} answers: {error_message(failure)}", hint=error_hint(failure))


def image_with_plugins(spec: PoolSpec) -> Image:
    """What the nodes' environment holds, the plugins' part of it included.

    Raises:
        UsageError, PluginError: a plugin cannot be used so.
    """
    if not spec.options.cluster and spec.may_have_peers:
        check_standalone(spec.plugins)
    image = transform_image(spec.plugins, spec.image, spec)
    return replace(image, setup=(*image.setup, *bootstrap_steps(spec.plugins, spec)))


@value
class Intent(Value):
    """What was written, and what only its writer knows.

    Attributes:
        row: the pool's, in the ledger.
        image: what its nodes' environments hold, the plugins' part included.
        interpreter: of its scripts.
        packages: what a project's file says that the image names.
        notice: what a person should know of it, or "".
    """

    row: PoolRow
    image: Image
    interpreter: Interpreter
    packages: PackageSpecs | None = None
    notice: str = ""


async def write_intent(spec: PoolSpec, ledger: Ledger, cwd: str) -> Intent:
    """Write down that a pool is wanted; nothing of it exists yet.

    Args:
        cwd: the working folder, where the image names none.

    Raises:
        PoolExistsError: a pool of that name is up.
        UsageError, PluginError: a plugin, or the script's interpreter, cannot be used so; or the image's working folder
            is not there.
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
        image_for_hosts(whole, python.describe())  # before anything is rented
    written = replace(spec, image=image, interpreter=python).describe() | {"cwd": folder}
    if packages:
        written["image"] = map_strings(whole, make_sanitizer(os.environ | image.env))
    warnings = await provider.warnings(spec) if isinstance(provider, Warns) else ()
    try:
        row = ledger.record_intent(token, spec.name, provider.to_json(), written)
    except PoolExistsError:
        # It may have ended by itself, by its lease for one, with nobody there to write it down.
        other = ledger.find_pool(spec.name)
        closed = other and await close_if_gone(other, provider_from_json(other.provider), ledger)
        if not closed:
            raise
        row = ledger.record_intent(token, spec.name, provider.to_json(), written)
        warnings = (f"of the pool that had this name before: {describe_end(closed)}", *warnings)
    return Intent(row, image, python, packages, "; ".join(warnings))


async def _project_packages(image: Image, folder: str, python: Interpreter) -> PackageSpecs | None:
    """What a project's file says that the image names."""
    if not image.packages_by:
        return None
    from skyward_core.tasks.packages.image_packages import read_image_packages  # most pools have none

    return await asyncio.to_thread(read_image_packages, image, folder, python.version)
