"""The end, with proof."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from skyward_core.model.errors import LedgerError, PoolError, SkywardError, UsageError, error_message
from skyward_core.model.machines import Machine
from skyward_core.model.provider_capabilities import EndsNow, hourly_price
from skyward_core.node.agent.retained_results import MIN_RETENTION
from skyward_core.pool.agent_link import Link, describe_client
from skyward_core.pool.ledger_reconciliation import close_if_gone, save_unknown_machines
from skyward_core.pool.pool_context import PoolContext, PoolEnd
from skyward_core.protocol.frame_codec import WireError
from skyward_core.providers.provider_calls import ProviderTimeout, log_query
from skyward_core.store import debug_log
from skyward_core.store.ledger_rows import Receipt, RemainingFiles, RetainedResults, machine_ended_at, make_bills
from skyward_core.views import events

if TYPE_CHECKING:
    from skyward_core.providers.provider import Provider


GOODBYE = 10.0  # seconds beyond the grace in which an agent must move on with ending
AGENT_SILENCE_TIMEOUT = 5.0  # seconds without a word after which it is ended from outside; links ask for one every 2 s
VERIFY = 60.0  # seconds in which the provider must say that machines are gone
RENTED = 600.0  # the same for machines that end with their pool: a provider may take minutes to end one
SILENCE = 10.0  # the same where none of those that are left can be reached
WRITE = 5.0  # seconds in which a ledger that takes nothing is tried again
AGAIN = 0.2  # seconds between two tries
RECEIPT = 3.0  # seconds that the client which ended a pool may take to write so once its nodes are gone
ACKNOWLEDGE_TIMEOUT = 2.0  # seconds for an agent to say that it has heard our last word


class PoolShutdown:
    """The end of one pool: by this client, by another client, or by its limits."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._news = context.news
        self._task: asyncio.Task[Receipt] | None = None

    def begin(self, give_up: bool, keep_outputs: int | None, *, now: bool = False) -> asyncio.Task[Receipt]:
        """Tear the pool down, or return the teardown in progress; one that failed starts again."""
        if self._task is None or (self._task.done() and not self._has_succeeded(self._task)):
            self._context.leaving = True
            self._task = asyncio.create_task(self._run(give_up, keep_outputs, now))
        return self._task

    def begin_with_reason(self, reason: str) -> None:
        """Tear the pool down without a request by the user; its runs and its receipt state the reason."""
        context = self._context
        context.end_reason = reason
        for run in list(context.registry.runs.values()):
            run.cancel(f"pool {context.name} ends: {reason}")
        self.begin(False, None)

    async def wait_recorded(self) -> None:
        """Wait for the end of a teardown whose receipt is known, but not yet in the ledger."""
        if self._task is not None:
            await asyncio.wait([self._task])

    @staticmethod
    def _has_succeeded(task: asyncio.Task[Receipt]) -> bool:
        return task.exception() is None and task.result().ok

    async def _run(self, give_up: bool, keep_outputs: int | None, now: bool) -> Receipt:
        context = self._context
        debug_log.pool.set(context.name)
        # Nothing may come up behind the back of a teardown that has verified that nothing is there.
        await context.startup.stop()
        locks = asyncio.create_task(context.startup.locks.save_remaining())  # while nodes end: nobody waits for it
        receipt = await self._tear_down(give_up, keep_outputs, now)
        await locks
        if not receipt.kept:
            return receipt
        from skyward_core.pool.fetch_retained_results import fetch_after_teardown

        return await fetch_after_teardown(context.row, context.ledger, receipt, give_up=give_up)

    async def _tear_down(self, give_up: bool, keep_outputs: int | None, now: bool) -> Receipt:
        """End the pool's runs, workers, agents and machines. Nothing counts as gone before its provider says so. What
        cannot be verified stays in the ledger as not ended.

        A ledger that cannot be written stops nothing: the receipt then says that it is not written down, and the next
        client finds that nothing of the pool is left.

        Args:
            give_up: Do not save unfetched results.
            keep_outputs: Bytes of output files that are fetched first; None for the pool's option.
            now: Ask nothing of the machines, and end them first. The provider supports that.
        """
        context, news = self._context, self._news
        started = time.monotonic()
        news.emit_state("stopping")
        # From now on no client puts a machine in another's place.
        marked = asyncio.create_task(_write_ledger(lambda: context.ledger.set_pool_state(context.token, "stopping")))
        for run in list(context.registry.runs.values()):
            run.cancel("the pool is torn down")
        await context.roster.stop_replacing()
        context.background.run_deferred()
        rest, trouble_with = await (_abandon_nodes(context) if now else self._shut_down_agents(give_up, keep_outputs))
        said = [*([context.end_reason] if context.end_reason else []), *rest.notes, *trouble_with.values()]
        await marked
        unfound = await _find_unknown_machines(context)
        machines, unknown = await asyncio.to_thread(_all_machines, context)
        unknown += unfound
        rescued, lost = ([], []) if now else await _fetch_remaining(context, machines, trouble_with, give_up=give_up)
        said += rescued
        ended: dict[str, float] = {}
        left, kept, trouble = await _verify_gone(context, machines, ended, now=now)
        said += trouble
        if not left and not unknown:
            notes, unknown = await _clean_up(context)
            said += notes
        receipt = Receipt(
            context.name,
            len(machines),
            tuple(sorted(machine.node for machine in machines if machine not in left)),
            (*(m.id for m in left), *unknown),
            round(time.monotonic() - started, 3),
            tuple(said),
            by=context.external_end.by if context.external_end else describe_client(),
            kept=tuple(map(str, kept)),
            lost=(*rest.lost, *lost),
            stays=tuple(rest.stays),
            bills=make_bills(context.row, machines, ended, hourly_price(context.provider)),
        )
        for link in context.links:
            context.registry.mark_calls_lost(link)
        context.background.run_deferred()
        at = time.time()
        with suppress(LedgerError):  # another client may have seen it end before
            at = context.ledger.pool(context.token).ended_at or at
        news.emit(events.PoolEnded(pool=context.name, receipt=receipt.to_json(), at=at))
        news.records.flush()
        if reason := await _write_ledger(
            lambda: context.ledger.record_teardown(context.token, receipt, kept, at), WRITE
        ):
            receipt = replace(receipt, unwritten=reason)
        await self.detach()
        context.archive.remove_stale_arguments()
        return receipt

    async def _shut_down_agents(self, give_up: bool, keep_outputs: int | None) -> tuple[RemainingFiles, dict[int, str]]:
        """Shut the agents down; return what becomes of files that ranks wrote, and the problems by node."""
        context = self._context
        rest = await self._save_outputs(give_up, keep_outputs)
        goodbyes = (_shut_down_agent(context, link) for link in context.links)
        said = zip(context.links, await asyncio.gather(*goodbyes), strict=True)
        return rest, {link.node: words for link, words in said if words}

    async def _save_outputs(self, give_up: bool, keep_outputs: int | None) -> RemainingFiles:
        """Save the files that ranks wrote, of all clients' runs, once the ranks have stopped. Failures do not stop the
        teardown."""
        context = self._context
        nothing = RemainingFiles()
        if context.is_local or not any(link.up for link in context.links):
            return nothing
        await asyncio.gather(*(_stop_ranks(link, context.options.grace + GOODBYE) for link in context.links if link.up))
        ends = [asyncio.wrap_future(run.future) for run in context.registry.runs.values()]
        if ends:
            await asyncio.wait(ends, timeout=context.options.grace + AGAIN)
        try:
            return await context.outputs.save(give_up=give_up, most=keep_outputs)
        except (OSError, PoolError) as error:
            return nothing._replace(notes=[f"what ranks wrote could not be seen to: {error}"])

    # -- by others ---------------------------------------------------------------------------------------

    def on_external_end(self, ending: PoolEnd) -> None:
        """The pool has ended, or is about to, and not by us: nothing waits on it any longer."""
        context = self._context
        if context.external_end is not None or context.leaving:
            return
        context.external_end = ending
        self._news.emit_state("stopping", str(ending.error()))
        for run in list(context.registry.runs.values()):
            run.pool_ended(ending)
        context.background.spawn(self._wait_closed())

    async def check_ended(self, *, wait: bool) -> bool:
        """Whether another client has ended the pool, as the ledger tells. ``wait``: for one that is just doing so."""
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
        """Wait for the receipt of who ended it; where nobody writes one, do so."""
        context = self._context
        soon = time.monotonic() + context.options.grace + GOODBYE
        while not context.leaving:
            row = context.ledger.pool(context.token)
            if row.receipt is not None:
                at = time.time() if row.ended_at is None else row.ended_at
                self._news.emit(events.PoolEnded(pool=context.name, receipt=row.receipt, at=at))
                return
            await close_if_gone(row, context.provider, context.ledger)
            await asyncio.sleep(0.05 if time.monotonic() < soon else 1.0)

    # -- without an end ----------------------------------------------------------------------------------

    @staticmethod
    async def _acknowledge(link: Link) -> None:
        """Have an agent hear which results are here, and written down. A host may drop what it has not handed on when
        the connection ends: so its answer to what comes behind that is waited for."""
        if link.flush_acknowledgements() and link.up:
            with suppress(ConnectionError, TimeoutError):  # then they stay there
                async with asyncio.timeout(ACKNOWLEDGE_TIMEOUT):
                    await link.ask({"t": "ping"})

    async def detach(self) -> None:
        """Leave the pool as it is; see :meth:`Run.detach` for what becomes of runs. A pool that is still starting stays
        half made, as if this process had died: the next client continues from there."""
        context, news = self._context, self._news
        context.detached = context.leaving = True
        if await context.startup.stop():
            with suppress(LedgerError):  # who comes next then waits until this process is gone
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
    """That a provider can end machines at once.

    Raises:
        UsageError: it cannot; says why.
    """
    if isinstance(provider, EndsNow):
        reason = await provider.why_not_now()
    else:
        reason = f"provider {provider.name} has no way to do that"
    if reason:
        raise UsageError(f"its machines cannot be ended at once: {reason}; tear it down as usual")


async def _abandon_nodes(context: PoolContext) -> tuple[RemainingFiles, dict[int, str]]:
    """Ask nothing of machines that are ended at once; names what goes with them."""
    for link in context.links:
        link.finished = True
    known = [f"run {run} ({size:,} bytes)" for run, size in context.view.unfetched.items()]
    lost = [*known, "whatever else its ranks wrote or printed and nobody had fetched"]
    return RemainingFiles(notes=["its machines were ended at once, as that was asked for"], lost=lost), {}


async def _fetch_remaining(
    context: PoolContext, machines: Sequence[Machine], troubled: Collection[int], *, give_up: bool
) -> tuple[list[str], list[str]]:
    """Bring home what nobody has fetched and would go with the machines; whatever goes wrong there, the pool ends."""
    if not context.ends_machines:
        return [], []
    from skyward_core.pool.fetch_retained_results import (
        fetch_remaining,  # pools of other machines have no use for it
    )

    say = context.news.emit_teardown_progress
    try:
        return await fetch_remaining(context, machines, troubled, say, give_up=give_up)
    except (SkywardError, OSError) as error:
        return [], [f"results and logs that nobody had fetched could not be looked for: {error_message(error)}"]
    finally:
        say("")


async def _stop_ranks(link: Link, patience: float) -> None:
    """Have a node's ranks end, within their grace, while its agent stays."""
    with suppress(ConnectionError, WireError, TimeoutError):  # its end is seen to all the same
        await link.wait_while_heard(link.ask({"t": "halt"}), patience, AGENT_SILENCE_TIMEOUT)


async def _write_ledger(work: Callable[[], None], patience: float = 0.0) -> str:
    """Write to the ledger, beside the loop; says why it cannot be written, or ""."""
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


async def _find_unknown_machines(pool: PoolContext) -> list[str]:
    """Have the ledger know of machines that were made and not written down; gives what cannot be known of that."""
    try:
        await save_unknown_machines(pool.name, pool.token, pool.provider, pool.ledger)
    except (SkywardError, OSError) as error:
        return [f"machines of which nothing is written down ({error_message(error)})"]
    return []


def _all_machines(pool: PoolContext) -> tuple[list[Machine], list[str]]:
    """The machines that the pool has had, and what cannot be known of that, in words."""
    try:
        return [*pool.ledger.machines(pool.token), *pool.ledger.replaced_machines(pool.token)], []
    except LedgerError as error:
        replaced = pool.options.on_loss == "replace"
        return pool.machines, [f"machines that were replaced ({error})"] if replaced else []


async def _clean_up(pool: PoolContext) -> tuple[list[str], list[str]]:
    """Remove what was made beside machines; gives what is worth a note, and what is left by its provider's word."""
    with suppress(LedgerError):
        if pool.ledger.pool(pool.token).ended_at is not None:
            return [], []  # another client has seen to it, and there may be another pool of that name by now
    try:
        await log_query("teardown", pool.name, pool.provider.teardown(pool.name))
    except (ProviderTimeout, OSError) as error:
        if pool.ends_machines and isinstance(error, ProviderTimeout):
            return [], [f"what was made beside its machines ({error_message(error)})"]
        return [f"what was made beside the machines is not all removed: {error}"], []
    except (PoolError, UsageError) as error:
        return [], [error_message(error)]
    return [], []


async def _shut_down_agent(pool: PoolContext, link: Link) -> str:
    """Have an agent end itself, after its last log byte is here."""
    log_receiver = pool.news.log_receiver
    link.flush_acknowledgements()
    if log_receiver.has_unwritten:
        link.request_logs()  # once more what our disk did not take
    if not link.send({"t": "shutdown", "drop": list(pool.registry.runs), "keep": MIN_RETENTION}):
        link.finished = True
        return ""
    deadline = time.monotonic() + pool.options.grace + GOODBYE
    seen = -1
    # Its goodbye is the last that it says; the connection's own end may come late, or not at all, from an SSH server.
    while link.up and not link.finished and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
        if link.silence_seconds > AGENT_SILENCE_TIMEOUT:
            link.finished = True
            return f"node {link.node} did not answer for {AGENT_SILENCE_TIMEOUT:g} s, and was ended from outside"
        here = sum(pool.archive.cursors.values())
        if here != seen:
            # As long as bytes come, it is not stuck: a slow link may need long for a long log.
            seen = here
            deadline = max(deadline, time.monotonic() + GOODBYE)
    link.finished = True
    sizes = link.last_sizes
    missing = sum(size - pool.archive.cursors.get(name, 0) for name, size in (sizes or {}).items())
    if sizes is None:
        return f"node {link.node} ended without saying how long its logs are"
    if missing > 0 and log_receiver.has_unwritten:
        return f"{missing} bytes of the logs of node {link.node} could not be written to {pool.archive.logs}"
    return f"{missing} bytes of the logs of node {link.node} did not arrive" if missing > 0 else ""


async def _verify_gone(
    pool: PoolContext, machines: Sequence[Machine], ended: dict[str, float], *, now: bool
) -> tuple[list[Machine], list[RetainedResults], list[str]]:
    """Wait until the provider says that machines are gone; gives those of which it does not, what others keep, and why
    it said nothing at the end. ``ended``: gets when each has ended. ``now``: have them ended at once."""
    left = list(machines)
    ending: set[str] = set()  # those whose end the provider has begun, where that ends all there is of them
    kept: list[RetainedResults] = []
    trouble: list[str] = []
    deadline = time.monotonic() + (RENTED if pool.ends_machines else VERIFY)
    patience = time.monotonic() + SILENCE
    delay = 0.01
    if pool.ends_machines and left:
        # None ends by itself with its agent, and each second costs.
        trouble = await _terminate(pool, left, now=now)
        delay = AGAIN
    while True:
        silent = False
        try:
            seen = await pool.describe(left)
        except (PoolError, UsageError, OSError) as error:
            trouble = [error_message(error)]
            pool.news.emit_state("stopping", error_message(error))
            delay = max(delay, AGAIN)  # nobody saw them end by themselves
            silent = not isinstance(error, ProviderTimeout)
        else:
            trouble = []
            there = {machine.node for machine in seen if machine.state != "gone"}
            for node in {machine.node for machine in left} - there:
                pool.news.emit_phase(node, "gone", "verified")
            ended |= {now.id: machine_ended_at(now, machines) for now in seen if now.state == "gone"}
            kept += filter(None, (RetainedResults.from_machine(pool.token, now) for now in seen if now.state == "gone"))
            left = [machine for machine, now in zip(left, seen, strict=True) if now.state != "gone"]
            ending = {now.id for now in seen if now.state == "ending" and pool.ends_machines}
            silent = all(machine.state in ("lost", "unreachable") for machine in seen if machine.state != "gone")
        if not left or time.monotonic() > (patience if silent else deadline):
            return left, kept, trouble
        stubborn = [machine for machine in left if machine.id not in ending]
        if delay > 0.1 and stubborn:  # most end by themselves at once
            trouble = await _terminate(pool, stubborn, now=now) or trouble
        await asyncio.sleep(delay)
        delay = min(delay * 2, 5.0)


async def _terminate(pool: PoolContext, machines: Sequence[Machine], *, now: bool) -> list[str]:
    """Ask for the end of machines; gives why that could not be asked for. ``describe`` says what came of it."""
    provider = pool.provider
    end = provider.terminate_now if now and isinstance(provider, EndsNow) else provider.terminate
    try:
        await log_query("terminate", pool.name, end(pool.name, machines))
    except (PoolError, UsageError, OSError) as error:
        return [error_message(error)]
    return []
