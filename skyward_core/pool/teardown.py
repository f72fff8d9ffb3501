"""Teardown of a pool, verified by the provider and recorded in a receipt. Also detachment without a teardown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from skyward_core.model.errors import LedgerError, PoolError, SkywardError, UsageError, error_message
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.provider_capability_protocols import EndsNow, hourly_price
from skyward_core.node.agent.results_retained_after_node_end import MIN_RETENTION
from skyward_core.pool.agent_link import Link, describe_client
from skyward_core.pool.pool_context import PoolContext, PoolEnd
from skyward_core.pool.unrecorded_machines_and_gone_pools import close_if_gone, find_machines, record_missing
from skyward_core.protocol.frame_codec import WireError
from skyward_core.providers.provider_call_logs_polling_and_cache import IncompleteSearch, ProviderTimeout, log_query
from skyward_core.store import debug_log
from skyward_core.store.ledger_rows import RemainingFiles, RetainedResults
from skyward_core.store.receipts_and_bills import Receipt, machine_ended_at, make_bills
from skyward_core.views import events

if TYPE_CHECKING:
    from skyward_core.providers.provider import Provider


GOODBYE = 10.0  # seconds without progress, in addition to the grace period, after which an ending agent is abandoned
# Seconds without a frame after which the teardown ends a machine without its agent. Agents answer pings every 2 s.
AGENT_SILENCE_TIMEOUT = 5.0
VERIFY = 60.0  # seconds for the provider to confirm that borrowed machines are free
RENTED = 600.0  # seconds for the provider to confirm the end of rented machines, because termination may take minutes
SILENCE = 10.0  # seconds for the confirmation if no remaining machine can be reached
WRITE = 5.0  # seconds during which writes to a locked ledger are retried
SEARCH_PAUSE = 5.0  # seconds between two searches for machines that may still appear
AGAIN = 0.2  # seconds between two attempts to write to the ledger or to observe machines
RECEIPT = 3.0  # seconds for another client to write the receipt after the nodes have ended
ACKNOWLEDGE_TIMEOUT = 2.0  # seconds for an agent to confirm the last acknowledgement


class PoolShutdown:
    """End of one pool: by this client, by another client, or by the pool's limits."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news
        self._task: asyncio.Task[Receipt] | None = None

    def begin(self, give_up: bool, keep_outputs: int | None, *, now: bool = False) -> asyncio.Task[Receipt]:
        """Start the teardown and return its task. Return the existing task unless that teardown has failed."""
        task = self._task
        if task is None or (task.done() and (task.exception() is not None or not task.result().ok)):
            self._context.leaving = True
            task = self._task = asyncio.create_task(self._run(give_up, keep_outputs, now))
        return task

    def begin_with_reason(self, reason: str) -> None:
        """Tear the pool down without a request by the user. The pool's runs and its receipt state the reason."""
        context = self._context
        context.end_reason = reason
        for run in list(context.registry.runs.values()):
            run.cancel(f"pool {context.name} ends: {reason}")
        self.begin(False, None)

    async def wait_recorded(self) -> None:
        """Wait until a finished teardown is recorded in the ledger."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self, give_up: bool, keep_outputs: int | None, now: bool) -> Receipt:
        context = self._context
        debug_log.pool.set(context.name)
        # Stop a start in progress first, because it could create machines after the teardown has verified that none
        # exist.
        await context.startup.stop()
        # Save the lock files while the teardown continues.
        locks = asyncio.create_task(context.startup.locks.save_remaining())
        receipt = await self._tear_down(give_up, keep_outputs, now)
        await locks
        if not receipt.retained:
            return receipt
        from skyward_core.pool.fetch_retained_results import fetch_after_teardown

        return await fetch_after_teardown(context.row, context.ledger, receipt, give_up=give_up)

    async def _tear_down(self, give_up: bool, keep_outputs: int | None, now: bool) -> Receipt:
        """End the pool's runs, workers, agents and machines.

        A resource counts as gone only when its provider confirms it. Unverified resources remain in the ledger as
        running.
        A locked ledger does not stop the teardown. The receipt then states that it was not saved. The next client finds
        that the pool's resources no longer exist.

        Args:
            give_up: Do not save unfetched results.
            keep_outputs: Maximum bytes of output files to download before the teardown. None: the pool's option.
            now: Terminate the machines first, without any request to their agents. Requires a provider that supports
                immediate termination.

        Returns:
            The receipt.
        """
        context, news = self._context, self._news
        started = time.monotonic()
        news.emit_state("stopping")
        # Save the state first, because clients replace no machine once the ledger has this state.
        marked = asyncio.create_task(_write_ledger(lambda: context.ledger.set_pool_state(context.token, "stopping")))
        for run in list(context.registry.runs.values()):
            run.cancel("the pool is torn down")
        await context.roster.stop_replacing()
        context.background.run_deferred()
        rest, problems = await (_abandon_nodes(context) if now else self._shut_down_agents(give_up, keep_outputs))
        notes = [*([context.end_reason] if context.end_reason else []), *rest.notes, *problems.values()]
        await marked
        machines, unknown, lost, ended = list[Machine](), list[str](), list[str](), dict[str, float]()
        async for result in _find_machines(context, now=now):
            found, unknown = result
            new = [each for each in found if each.id not in {known.id for known in machines}]
            rescued, missed = ([], []) if now else await _fetch_remaining(context, new, problems, give_up=give_up)
            machines, notes, lost = found, notes + rescued, lost + missed
        remaining, retained, trouble = await _verify_gone(context, machines, ended, now=now)
        notes += trouble
        if not remaining and not unknown:
            cleanup_notes, unknown = await _clean_up(context)
            notes += cleanup_notes
        notes += _attempt_notes(context)
        receipt = Receipt(
            context.name,
            len(machines),
            tuple(sorted(machine.node for machine in machines if machine not in remaining)),
            (*(m.id for m in remaining), *unknown),
            round(time.monotonic() - started, 3),
            tuple(notes),
            by=context.external_end.by if context.external_end else describe_client(),
            retained=tuple(map(str, retained)),
            lost=(*rest.lost, *lost),
            remaining_files=tuple(rest.places),
            bills=make_bills(context.row, machines, ended, hourly_price(context.provider)),
            machines=tuple(each.id for each in machines),
            start_error=context.start_error,
        )
        for link in context.links:
            context.registry.mark_calls_lost(link)
        context.background.run_deferred()
        at = time.time()
        with suppress(LedgerError):  # use the end that another client may have recorded earlier
            at = context.ledger.pool(context.token).ended_at or at
        news.emit(events.PoolEnded(pool=context.name, receipt=receipt.to_json(), at=at))
        news.records.flush()
        patience = 0.0 if context.ledger.read_only_reason else WRITE
        if reason := await _write_ledger(
            lambda: context.ledger.record_teardown(context.token, receipt, retained, at), patience
        ):
            receipt = replace(receipt, unwritten=reason)
        await self.detach()
        context.archive.remove_stale_arguments()
        return receipt

    async def _shut_down_agents(self, give_up: bool, keep_outputs: int | None) -> tuple[RemainingFiles, dict[int, str]]:
        """Shut the agents down. Return the remaining output files, and the problems by node."""
        context = self._context
        rest = await self._save_outputs(give_up, keep_outputs)
        if "checkpoints" in vars(context):
            await context.checkpoints.remove_loaded()
        goodbyes = (_shut_down_agent(context, link) for link in context.links)
        results = zip(context.links, await asyncio.gather(*goodbyes), strict=True)
        return rest, {link.node: problem for link, problem in results if problem}

    async def _save_outputs(self, give_up: bool, keep_outputs: int | None) -> RemainingFiles:
        """Save the output files of all clients' runs after the ranks have stopped.

        A failure does not stop the teardown.
        """
        context = self._context
        none = RemainingFiles()
        if context.is_local and context.options.uses_checkpoints and not give_up:
            late = await context.outputs.finish_local_runs()
            none = none._replace(notes=[late] if late else [])
        if context.is_local or not any(link.up for link in context.links):
            return none
        await asyncio.gather(*(_stop_ranks(link, context.longest_grace + GOODBYE) for link in context.links if link.up))
        ends = [asyncio.wrap_future(run.future) for run in context.registry.runs.values()]
        if ends:
            await asyncio.wait(ends, timeout=context.longest_grace + AGAIN)
        try:
            return await context.outputs.save(give_up=give_up, most=keep_outputs)
        except (OSError, PoolError) as error:
            return none._replace(notes=[f"output files could not be saved: {error}"])

    # -- ended by others -----------------------------------------------------------------------------------

    def on_external_end(self, ending: PoolEnd) -> None:
        """Stop everything that waits for the pool, because another client or the pool's limits ended the pool."""
        context = self._context
        if context.external_end is not None or context.leaving:
            return
        context.external_end = ending
        self._news.emit_state("stopping", str(ending.error()))
        for run in list(context.registry.runs.values()):
            run.pool_ended(ending)
        context.background.spawn(self._wait_closed())

    async def check_ended(self, *, wait: bool) -> bool:
        """Check in the ledger whether another client has ended the pool.

        If ``wait`` is set, first wait for a teardown in progress.
        """
        context = self._context
        until = time.monotonic() + (RECEIPT if wait else 0.0)
        row = context.ledger.pool(context.token)
        while row.state == "stopping" and time.monotonic() < until:
            await asyncio.sleep(0.05)
            row = context.ledger.pool(context.token)
        if row.ended_at is None and not (wait and row.state == "stopping"):
            return False
        self.on_external_end(PoolEnd.from_ledger(row))
        return True

    async def _wait_closed(self) -> None:
        """Wait for the receipt of the client that ended the pool. If none is written, close the pool in the ledger."""
        context = self._context
        soon = time.monotonic() + context.longest_grace + GOODBYE
        while not context.leaving:
            row = context.ledger.pool(context.token)
            if row.receipt is not None:
                at = time.time() if row.ended_at is None else row.ended_at
                self._news.emit(events.PoolEnded(pool=context.name, receipt=row.receipt, at=at))
                return
            await close_if_gone(row, context.provider, context.ledger)
            await asyncio.sleep(0.05 if time.monotonic() < soon else 1.0)

    # -- detachment ----------------------------------------------------------------------------------------

    @staticmethod
    async def _acknowledge(link: Link) -> None:
        """Send the pending acknowledgements and wait until the agent has processed them.

        Without the wait, the acknowledgements could be lost: when the connection ends, a host may discard data that it
        has not delivered to the agent.
        """
        if link.pending_acks and link.up:
            link.flush_acknowledgements()
            with suppress(ConnectionError, TimeoutError):  # if the agent does not confirm them, it retains the results
                async with asyncio.timeout(ACKNOWLEDGE_TIMEOUT):
                    await link.ask({"t": "ping"})

    async def detach(self) -> None:
        """Leave the pool running; see :meth:`Run.detach` for its runs.

        A pool that is still starting remains incomplete, as if this process had died. The next client continues the
        start.
        """
        context, news = self._context, self._news
        context.detached = context.leaving = True
        if await context.startup.stop():
            # Ignore a failure, because the next client then waits until this process has exited.
            with suppress(LedgerError):
                context.ledger.release_pool(context.token)
        await context.startup.locks.save_remaining()
        if self._task is None:
            await asyncio.gather(*(link.transport.finish_uploads() for link in context.links))
        for run in list(context.registry.runs.values()):
            run.detach()
        if "outputs" in vars(context):
            context.outputs.stop_fetching()
        if not context.observer:
            await context.limits.expiry.extend_for_runs()
        context.background.run_deferred()
        await context.roster.stop_replacing()
        context.recovery.suspects.stop()
        news.log_receiver.stop()
        news.records.flush()
        await asyncio.gather(*map(self._acknowledge, context.links))
        for link in context.links:
            await link.close()
        await context.background.stop()
        context.registry.direct.close()
        context.scheduler.modules.close()
        context.metrics.close()
        news.close()


async def check_can_end_now(provider: Provider) -> None:
    """Check that a provider can terminate machines at once.

    Raises:
        UsageError: If the provider cannot.
    """
    if isinstance(provider, EndsNow):
        reason = await provider.why_not_now()
    else:
        reason = f"provider {provider.name} does not support it"
    if reason:
        raise UsageError(f"Cannot terminate the machines at once: {reason}. Tear the pool down without --now.")


async def _abandon_nodes(context: PoolContext) -> tuple[RemainingFiles, dict[int, str]]:
    """Mark all links as finished, because the machines are terminated at once. Return the results that are lost."""
    for link in context.links:
        link.finished = True
    known = [f"run {run} ({size:,} bytes)" for run, size in context.view.unfetched.items()]
    lost = [*known, "any other unfetched results, logs and output files"]
    return RemainingFiles(notes=["its machines were terminated at once, as requested"], lost=lost), {}


async def _fetch_remaining(
    context: PoolContext, machines: Sequence[Machine], troubled: Collection[int], *, give_up: bool
) -> tuple[list[str], list[str]]:
    """Fetch results that would be lost with the machines. Failures do not stop the teardown."""
    if not context.ends_machines:
        return [], []
    # Imported late, because pools of borrowed hosts do not need this module.
    from skyward_core.pool.fetch_retained_results import fetch_remaining

    report = context.news.emit_teardown_progress
    try:
        return await fetch_remaining(context, machines, troubled, report, give_up=give_up)
    except (SkywardError, OSError) as error:
        return [], [f"could not look for unfetched results and logs: {error_message(error)}"]
    finally:
        report("")


async def _stop_ranks(link: Link, patience: float) -> None:
    """Stop a node's ranks within their grace period. The agent continues to run."""
    # Ignore a failure, because the teardown ends the node's agent with all ranks afterwards.
    with suppress(ConnectionError, WireError, TimeoutError):
        await link.wait_while_heard(link.ask({"t": "halt"}), patience, AGENT_SILENCE_TIMEOUT)


async def _write_ledger(work: Callable[[], None], patience: float = 0.0) -> str:
    """Write to the ledger in a thread. Return the reason of a failure, or ""."""
    deadline = time.monotonic() + patience
    while True:
        try:
            await asyncio.to_thread(work)
        except LedgerError as error:
            if time.monotonic() >= deadline:
                return str(error)
            await asyncio.sleep(AGAIN)
        else:
            return ""


async def _find_machines(pool: PoolContext, *, now: bool) -> AsyncIterator[tuple[list[Machine], list[str]]]:
    """Yield all past and present machines of the pool, and descriptions of unknown ones.

    While machines may still appear, end the known ones, search again and yield the new result.
    The ledger may lack machines, because it could not be written or a client died. They are added, if possible.
    """
    deadline = time.monotonic() + RENTED
    while True:
        left, reason = 0.0, ""
        found: Sequence[Machine] = ()
        try:
            found = await find_machines(pool.name, pool.token, pool.provider)
        except (SkywardError, OSError) as error:
            reason = error_message(error)
            if isinstance(error, IncompleteSearch):
                left, found = error.left, error.machines
        # Ignore a failure, because the machines are terminated all the same, and the receipt lists those that remain.
        with suppress(LedgerError):
            await asyncio.to_thread(record_missing, pool.token, found, pool.ledger)
        recorded, unknown = await asyncio.to_thread(_recorded_machines, pool)
        # Compare ids only: if an SSH host was replaced by itself, the ledger lists the host twice, with two folders.
        ids = {each.id for each in recorded}
        unrecorded = {each.id: each for each in (*found, *pool.machines) if each.id not in ids}
        machines = [*recorded, *unrecorded.values()]
        yield machines, [*unknown, *([f"unrecorded machines ({reason})"] if reason else [])]
        if not left or time.monotonic() > deadline:
            return
        pool.news.emit_state("stopping", reason)
        await _terminate(pool, machines, now=now)
        await asyncio.sleep(min(left, SEARCH_PAUSE))


def _recorded_machines(pool: PoolContext) -> tuple[list[Machine], list[str]]:
    """Return all past and present machines in the ledger, and a description of unknown ones."""
    try:
        return [*pool.ledger.machines(pool.token), *pool.ledger.replaced_machines(pool.token)], []
    except LedgerError as error:
        return [], [f"replaced machines ({error})"] if pool.options.replaces_lost_nodes else []


def _attempt_notes(context: PoolContext) -> list[str]:
    """Return the number of attempts of each restarted run, with the cost of the failed ones."""
    notes = []
    for run in context.view.runs.values():
        restarts = [each for each in run.ended_attempts if each.restarts]
        dollars = context.view.price_hourly * (restarts[-1].starts_at - run.opened_at) / 3600 if restarts else 0.0
        if restarts:
            cost = f", ${dollars:,.2f} until the last one began" if dollars else ""
            notes.append(f"run {run.id} took {run.attempt} attempts{cost}")
    return notes


async def _clean_up(pool: PoolContext) -> tuple[list[str], list[str]]:
    """Remove resources other than machines. Return notes, and descriptions of remaining resources."""
    with suppress(LedgerError):
        if pool.ledger.pool(pool.token).ended_at is not None:
            # Remove nothing, because another client has closed the pool, and a new pool may already have the same name.
            return [], []
    try:
        await log_query("teardown", pool.name, pool.provider.teardown(pool.name))
    except (ProviderTimeout, OSError) as error:
        if pool.ends_machines and isinstance(error, ProviderTimeout):
            return [], [f"resources other than machines ({error_message(error)})"]
        return [f"resources other than machines may remain: {error}"], []
    except (PoolError, UsageError) as error:
        return [], [error_message(error)]
    return [], []


async def _shut_down_agent(pool: PoolContext, link: Link) -> str:
    """Shut an agent down after this client has received its last log byte. Return the reason of a failure, or ""."""
    log_receiver = pool.news.log_receiver
    link.flush_acknowledgements()
    if log_receiver.has_unwritten:
        link.request_logs()  # request the bytes again that could not be written while the local disk was full
    if not link.send({"t": "shutdown", "drop": list(pool.registry.runs), "keep": MIN_RETENTION}):
        link.finished = True
        return ""
    deadline = time.monotonic() + pool.longest_grace + GOODBYE
    seen = -1
    # The "bye" frame is the last one. An SSH server may report the end of the connection late or never.
    while link.up and not link.finished and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
        if link.silence_seconds > AGENT_SILENCE_TIMEOUT:
            link.finished = True
            return f"node {link.node} did not answer for {AGENT_SILENCE_TIMEOUT:g} s and was terminated"
        here = sum(pool.archive.cursors.values())
        if here != seen:
            # Arriving bytes are progress: a long log takes long on a slow link.
            seen = here
            deadline = max(deadline, time.monotonic() + GOODBYE)
    link.finished = True
    sizes = link.last_sizes
    missing = sum(size - pool.archive.cursors.get(name, 0) for name, size in (sizes or {}).items())
    if sizes is None:
        return f"node {link.node} ended without reporting the sizes of its logs"
    if missing > 0 and log_receiver.has_unwritten:
        return f"{missing} bytes of the logs of node {link.node} could not be written to {pool.archive.logs}"
    return f"{missing} bytes of the logs of node {link.node} did not arrive" if missing > 0 else ""


async def _verify_gone(
    pool: PoolContext, machines: Sequence[Machine], ended: dict[str, float], *, now: bool
) -> tuple[list[Machine], list[RetainedResults], list[str]]:
    """Wait until the provider confirms that machines are gone, and request their termination as needed.

    Args:
        pool: The pool.
        machines: All machines of the pool.
        ended: Receives the Unix time of each machine's end, by id.
        now: Whether to terminate the machines at once.

    Returns:
        The remaining machines, the results that hosts retain, and the provider's last errors.
    """
    remaining = list(machines)
    ending: set[str] = set()  # ids of machines that the provider was asked to terminate
    retained: list[RetainedResults] = []
    trouble: list[str] = []
    deadline = time.monotonic() + (RENTED if pool.ends_machines else VERIFY)
    patience = time.monotonic() + SILENCE
    delay = 0.01
    if pool.ends_machines and remaining:
        # Rented machines do not end with their agents, and each second costs money.
        trouble = await _terminate(pool, remaining, now=now)
        delay = AGAIN
    while True:
        silent = False
        try:
            seen = await pool.describe(remaining)
        except (PoolError, UsageError, OSError) as error:
            trouble = [error_message(error)]
            pool.news.emit_state("stopping", error_message(error))
            # Wait longer before the next query, because the provider cannot report the machines' states now.
            delay = max(delay, AGAIN)
            silent = not isinstance(error, ProviderTimeout)
        else:
            trouble = []
            there = {machine.node for machine in seen if machine.state != "gone"}
            for node in {machine.node for machine in remaining} - there:
                pool.news.emit_phase(node, "gone", "verified")
            ended |= {now.id: machine_ended_at(now, machines) for now in seen if now.state == "gone"}
            retained += filter(
                None, (RetainedResults.from_machine(pool.token, now) for now in seen if now.state == "gone")
            )
            remaining = [machine for machine, now in zip(remaining, seen, strict=True) if now.state != "gone"]
            ending = {now.id for now in seen if now.state == "ending" and pool.ends_machines}
            # Do not give up rented machines that nobody can reach, because a provider that answers can end them.
            alone = all(machine.state in ("lost", "unreachable") for machine in seen if machine.state != "gone")
            silent = alone and not pool.ends_machines
        if not remaining or time.monotonic() > (patience if silent else deadline):
            return remaining, retained, trouble
        stubborn = [machine for machine in remaining if machine.id not in ending]
        # Ask only after the first rounds, because most machines end by themselves with their agents.
        if delay > 0.1 and stubborn:
            trouble = await _terminate(pool, stubborn, now=now) or trouble
        await asyncio.sleep(delay)
        delay = min(delay * 2, 5.0)


async def _terminate(pool: PoolContext, machines: Sequence[Machine], *, now: bool) -> list[str]:
    """Request the termination of machines. Return the errors of the request; ``describe`` reports its effect."""
    provider = pool.provider
    end = provider.terminate_now if now and isinstance(provider, EndsNow) else provider.terminate
    try:
        await log_query("terminate", pool.name, end(pool.name, machines))
    except (PoolError, UsageError, OSError) as error:
        return [error_message(error)]
    return []
