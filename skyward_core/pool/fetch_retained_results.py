"""Download of retained results: results and logs that no client has fetched.

For an ended pool, the client starts a new agent without ranks in each retained folder
(``agent.results_retained_after_node_end``). The agent reads the finished calls from the journal, as an agent does after
the death of its predecessor, and sends their results. After the last acknowledgement it ends and deletes its folder.

For a running pool, this module connects to the pool's own agents, which continue to run.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import PoolError, SkywardError, error_hint, error_message
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.outcomes_states_and_alerts import Outcome
from skyward_core.model.provider_capability_protocols import StopsRuns
from skyward_core.model.root_cause import summarize_outcomes
from skyward_core.pool.agent_link import Link, is_notification
from skyward_core.pool.pool_context import PoolContext
from skyward_core.pool.runs.run import outcome_of
from skyward_core.protocol.frame_codec import RESULT_KINDS, WireError
from skyward_core.providers import provider_from_json
from skyward_core.providers.provider import Provider
from skyward_core.providers.provider_call_logs_polling_and_cache import log_call
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow, RetainedResults
from skyward_core.store.pool_folder import PoolFolder, parse_rank
from skyward_core.store.receipts_and_bills import Receipt
from skyward_core.store.state_folder import pool_path
from skyward_core.transport.background_loop import cancel_tasks
from skyward_core.transport.file_and_result_downloads import ResultDownload
from skyward_core.transport.transport import Transport
from skyward_core.util.number_size_and_time_format import format_size
from skyward_core.util.safe_file_access import write_atomic
from skyward_core.util.terminal_safe_text import sanitize_line

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import AgentItem, AgentOutcome, FromAgent


STALL_TIMEOUT = 30.0  # seconds without new data after which a fetch fails
SHUTDOWN_TIMEOUT = 10.0  # seconds that the agent has to end after the last acknowledgement
LEASE = 60.0  # seconds that the new agent continues to run if this client dies

# Run, outcome of one of its calls, and log file -> (start, end) of the bytes that the call printed.
CallOutcome = tuple[str, Outcome, dict[str, list[int]]]


async def fetch_retained(row: PoolRow, ledger: Ledger, *, give_up: bool = False) -> list[str]:
    """Fetch the retained results of an ended pool.

    Args:
        row: Row of the pool.
        ledger: Ledger that lists the retained results.
        give_up: Delete the results instead of fetching them.

    Returns:
        One line of text per folder.

    Raises:
        PoolError: If a folder could not be fetched. The folder remains on the host. The error states the reasons.
    """
    done, failures, hint = [], [], None
    with closing(PoolFolder(row.key)) as archive:
        for results in ledger.retained_results(row.token):
            visit, needed = (NodeResultsFetcher(row, results.machine, archive, ledger), ledger.select_wanted([results]))
            try:
                await visit.fetch_all(give_up=give_up)
                await visit.wait_removed()
            except (PoolError, OSError, WireError) as error:
                # If the ledger no longer lists the results, another client has fetched them in the meantime.
                if results in ledger.retained_results(row.token):
                    failures.append(f"{results} (still retained: {error_message(error)})")
                    hint = hint or error_hint(error)
                continue
            await asyncio.to_thread(ledger.remove_retained, results)
            done += [f"{'deleted' if give_up else 'fetched'} {each.describe()}" for each in needed]
    if failures:
        raise PoolError(f"Cannot fetch results of pool {row.name}: {'; '.join(failures)}", hint=hint)
    return done


def is_fetched(ledger: Ledger, run: str) -> bool:
    """Check whether a run has ended and all its results are on this machine."""
    row = ledger.run(run)
    if row is None or row.ended_at is None:
        return False
    indices = [outcome.index for outcome, _ in ledger.outcomes(run) if outcome.kind in RESULT_KINDS]
    folder = pool_path(ledger.pool(row.token).key) / "results"
    return bool(indices) and all((folder / f"{run}.{index}.pickle").exists() for index in indices)


async def fetch_run(row: PoolRow, run: str, ledger: Ledger) -> list[str]:
    """Fetch the results of an ended run that no longer has a client, from the nodes of a running pool.

    Args:
        row: Row of the pool.
        run: Id of the run.
        ledger: Ledger that contains the run.

    Returns:
        One line of text per node. Empty if nothing is retained or another client has claimed the results.

    Raises:
        PoolError: If a node's results could not be fetched. They remain on the node. The error states the reasons.
    """
    done, failures = [], []
    with closing(PoolFolder(row.key)) as archive:
        for machine in ledger.machines(row.token):
            visit = NodeResultsFetcher(row, machine, archive, ledger)
            try:
                size = await visit.fetch_run(run)
            except (PoolError, OSError, WireError) as error:
                failures.append(f"node {machine.node} ({error_message(error)})")
                continue
            if size is not None:
                description = f"run {run} ({format_size(size)})" if size else f"the outcome of run {run}"
                done.append(f"fetched {description} from {_describe_machine(machine)}")
    if failures:
        raise PoolError(f"Cannot fetch results of run {run}: {'; '.join(failures)}. The results are still retained.")
    return done


async def fetch_after_teardown(row: PoolRow, ledger: Ledger, receipt: Receipt, *, give_up: bool = False) -> Receipt:
    """Fetch or delete the results that hosts retain of a pool that was just torn down.

    Results that cannot be fetched now remain.

    Returns:
        The receipt with notes about the results.
    """
    try:
        notes = await fetch_retained(row, ledger, give_up=give_up)
    except SkywardError as error:
        notes = [error_message(error)]
    remaining = tuple(map(str, ledger.unfetched_results(row.token))) if not receipt.unwritten else receipt.retained
    return replace(receipt, notes=(*receipt.notes, *notes), retained=remaining)


class NodeResultsFetcher:
    """Download of one node's retained results. Listens to the node's link."""

    def __init__(self, row: PoolRow, machine: Machine, archive: PoolFolder, ledger: Ledger) -> None:
        self._row = row
        self._machine = machine
        self._archive = archive
        self._ledger = ledger
        self._provider: Provider = provider_from_json(row.provider)
        self._frames: asyncio.Queue[tuple[AgentOutcome | AgentItem, bytes]] = asyncio.Queue()
        self._last_frame_at = time.monotonic()
        self._error_text = "the agent sends nothing"
        self._log_ends: dict[str, int] = {}
        self._received = 0
        self._download: ResultDownload | None = None

    @property
    def received_bytes(self) -> int:
        """Number of bytes received so far."""
        return self._received + (self._download.at if self._download is not None else 0)

    async def fetch_all(self, *, give_up: bool = False, only: Container[str] | None = None) -> None:
        """Fetch or delete the node's results, and end the agent.

        Args:
            give_up: Delete all results.
            only: Runs to fetch. None: all. The results of other runs are deleted.

        Raises:
            PoolError, OSError, WireError: If the results cannot be fetched.
        """
        transport = self._transport()
        await transport.prepare(self._config(), lambda *progress, **more: None)
        link = self._link(transport)
        try:
            await link.connect()
            runs = [record["run"] for record in link.welcome["runs"]]
            if not give_up:
                chosen = [run for run in runs if only is None or run in only]
                await asyncio.to_thread(self._save_outcomes, await self._download_runs(link, chosen), ended=True)
            for run in runs:
                link.acknowledge(run)
            link.flush_acknowledgements()
            link.send({"t": "shutdown"})
            await self._wait_until(lambda: link.finished)
        finally:
            await link.close()

    async def fetch_run(self, run: str) -> int | None:
        """Fetch the results that the agent of a running pool retains for a run. The client connects as an observer.

        Args:
            run: Id of the run.

        Returns:
            Number of bytes. None: the agent retains nothing of the run.

        Raises:
            PoolError, OSError, WireError: If the results cannot be fetched.
        """
        link = self._link(self._transport(), observer=True)
        try:
            await link.connect()
            size = link.welcome.get("unfetched", {}).get(run)
            if size is None:
                return None
            await asyncio.to_thread(self._save_outcomes, await self._download_runs(link, [run]), ended=False)
            link.acknowledge(run)
            link.flush_acknowledgements()
            # Wait for an answer, because it proves that the agent has processed the acknowledgement.
            await link.ask({"t": "ping"})
            return size
        finally:
            await link.close()

    def _transport(self) -> Transport:
        return self._provider.transport(self._row.name, self._machine)

    def _link(self, transport: Transport, *, observer: bool = False) -> Link:
        machine = self._machine
        return Link(machine.node, transport, self, observer=observer, logs_from=machine.logs_from, pool=self._row.name)

    def _config(self) -> dict[str, Any]:
        """Return the configuration of an agent without ranks that only sends results."""
        return {
            "pool": self._row.name, "node": self._machine.node, "nodes": 1, "ranks_per_node": 0,
            "concurrency": 1, "idle_timeout": LEASE, "grace": 0.0, "env": {}, "cwd": "", "path": [], "image": {},
        }  # fmt: skip

    async def _download_runs(self, link: Link, runs: Sequence[str]) -> list[CallOutcome]:
        """Download the results of runs. Return the outcomes of their calls."""
        missing = {(run, index) for run in runs for index in (await link.claim(run))[0]["calls"]}
        outcomes: list[CallOutcome] = []
        while missing:
            await self._wait_until(lambda: not self._frames.empty())
            header, body = self._frames.get_nowait()
            key = (header["run"], header["i"])
            if header["t"] == "item":
                await self._save(link, header, body, f"{key[0]}.{key[1]}.{header['seq']}.item")
                link.send({"t": "credit", "run": key[0], "i": key[1], "next": header["seq"] + 1})
                continue
            if key not in missing:
                continue
            missing.discard(key)
            if header["kind"] in RESULT_KINDS:
                await self._save(link, header, body, f"{key[0]}.{key[1]}.pickle")
            log = header.get("log", {})
            outcomes.append((key[0], outcome_of(header), log))
            for name, (_, end) in log.items():
                self._log_ends[name] = max(end, self._log_ends.get(name, 0))
        cursors = self._archive.cursors
        await self._wait_until(lambda: all(cursors.get(name, 0) >= end for name, end in self._log_ends.items()))
        return outcomes

    async def _save(self, link: Link, header: AgentOutcome | AgentItem, body: bytes, name: str) -> None:
        path = self._archive.results / name
        if "file" not in header:
            write_atomic(path, body)
            return
        while True:
            landing = self._download = ResultDownload(path, header["size"])
            try:
                await link.fetch(header["file"], landing)
            except ConnectionError:
                # Wait for the reconnection; the next iteration resumes the download.
                await self._wait_until(lambda: link.up)
            else:
                landing.close()
                self._received, self._download = self.received_bytes, None
                return

    def _save_outcomes(self, outcomes: Sequence[CallOutcome], *, ended: bool) -> None:
        """Save the outcomes and the ends of the runs in the ledger.

        Args:
            outcomes: Outcomes of calls.
            ended: Whether the pool's agents have ended. If not, the clients that watch the pool save the ends of runs.
        """
        self._ledger.record_runs({}, outcomes)
        ends = {}
        for run in {run for run, _, _ in outcomes} if ended else ():
            row = self._ledger.run(run)
            known = [outcome for outcome, _ in self._ledger.outcomes(run)]
            if row is not None:
                state, cause = summarize_outcomes(known)
                state = state if cause or len(known) == row.total else "lost"
                ends[run] = {"state": state, "ended_at": row.ended_at or time.time(), "root_cause": cause}
        self._ledger.record_runs(ends)

    async def _wait_until(self, reached: Any) -> None:
        """Wait for a condition as long as frames arrive.

        Raises:
            ConnectionError: If no frame has arrived for ``STALL_TIMEOUT`` seconds.
        """
        self._last_frame_at = time.monotonic()
        while not reached():
            if time.monotonic() - self._last_frame_at > STALL_TIMEOUT:
                raise ConnectionError(self._error_text)
            await asyncio.sleep(0.01)

    async def wait_removed(self) -> None:
        """Wait until the host reports that the agent's folder is deleted.

        Raises:
            PoolError: If the folder still exists after ``SHUTDOWN_TIMEOUT`` seconds.
        """
        deadline = time.monotonic() + SHUTDOWN_TIMEOUT
        while True:
            query = self._provider.describe(self._row.name, [self._machine])
            (seen,) = await log_call("describe", self._row.name, query)
            if seen.state == "gone":
                return
            if time.monotonic() > deadline:
                raise PoolError(f"its folder still exists ({seen.state})")
            await asyncio.sleep(0.05)

    # -- link events ---------------------------------------------------------------------------------------

    def on_frame(self, link: Link, header: FromAgent, body: bytes) -> None:
        self._last_frame_at = time.monotonic()
        self._received += len(body)
        match header["t"]:
            case "outcome" | "item" if not is_notification(header, body):
                self._frames.put_nowait((header, body))
            case "log":
                have, at = self._archive.cursors.get(header["f"], 0), header["at"]
                if at + len(body) > have:
                    skip = max(0, have - at)
                    self._archive.write_log(header["f"], at + skip, body[skip:])
            case "error":
                self._error_text = header["message"]

    def on_link(self, link: Link, up: bool, detail: str) -> None:
        """Store the reason why the connection to the agent was lost."""
        self._error_text = detail or self._error_text

    def cursors(self, node: int) -> dict[str, int]:
        """Return the number of downloaded bytes of each log file of the node."""
        first = node * self._ranks
        return {
            name: at for name, at in self._archive.cursors.items() if first <= parse_rank(name) < first + self._ranks
        }

    @property
    def _ranks(self) -> int:
        ranks = self._row.spec["worker"]["ranks_per_node"]
        return ranks if isinstance(ranks, int) else len(self._archive.cursors) + 1


# Name of a file in the pool's folder on the client that lists the machines without unfetched results.
EMPTY_MACHINES_FILE = "emptied"
MAX_BYTES = 4 << 30  # maximum bytes that a teardown fetches
QUERY_TIMEOUT = 120.0  # seconds within which all machines must list their retained results
# Seconds to download the retained results. The shutdown timers of the machines run longer than both limits together.
PATIENCE = 300.0
MAX_PARALLEL = 8  # maximum number of machines from which results are fetched at the same time
PROGRESS_INTERVAL = 0.2  # seconds between progress reports


async def fetch_remaining(
    context: PoolContext,
    machines: Sequence[Machine],
    troubled: Collection[int],
    report: Callable[[str], None],
    *,
    give_up: bool,
) -> tuple[list[str], list[str]]:
    """Fetch the results that remain on a pool's machines after a teardown has ended the agents. Can be repeated.

    Args:
        context: The pool.
        machines: All machines of the pool.
        troubled: Nodes whose agents did not end properly or whose logs are incomplete.
        report: Called with the progress as text.
        give_up: Fetch nothing, so that the results are deleted with the machines.

    Returns:
        Descriptions of fetched or deleted results, and of lost ones.
    """
    done = _EmptyMachines(context.archive.folder / EMPTY_MACHINES_FILE)
    for link, machine in zip(context.links, context.machines, strict=False):
        if link.retained_results == {} and link.node not in troubled:
            done.add(machine)
    pending = [machine for machine in machines if machine.address and machine.id not in done.ids]
    if not pending or not await asyncio.to_thread(context.ledger.runs, context.token):
        return [], []  # a pool that never had a run has no results to fetch
    if give_up:
        return [f"deleted unfetched results of {_describe_runs(context.links)}"], []
    provider = context.provider
    if not isinstance(provider, StopsRuns):
        return [], [f"unfetched results of {_describe_runs(context.links)}"]
    report("looking for unfetched results and logs")
    available, lost = [], []
    try:
        async with asyncio.timeout(QUERY_TIMEOUT):
            seen = await provider.quiet(context.name, pending)
    except TimeoutError:
        names = ", ".join(map(_describe_machine, pending))
        return [], [f"unfetched results: no complete answer from {names} within {QUERY_TIMEOUT:g} s"]
    for now in seen:
        if now.state in ("unreachable", "lost"):
            reason = sanitize_line(str(now.extra.get("why") or "no answer"))
            lost.append(
                f"{_describe_machine(now)} could not be queried for unfetched results, logs and files ({reason})"
            )
        elif retained := RetainedResults.from_machine(context.token, now):
            available.append(retained)
        else:
            done.add(now)
    notes, missed = await _fetch_machines(context, available, done, report) if available else ([], [])
    return notes, [*lost, *missed]


async def _fetch_machines(
    context: PoolContext, retained: Sequence[RetainedResults], done: _EmptyMachines, report: Callable[[str], None]
) -> tuple[list[str], list[str]]:
    """Fetch the results of each machine. Return descriptions of fetched and of lost results."""
    chosen = runs_within(retained, MAX_BYTES)
    visits = [NodeResultsFetcher(context.row, each.machine, context.archive, context.ledger) for each in retained]
    gate = asyncio.Semaphore(MAX_PARALLEL)
    reason: dict[NodeResultsFetcher, str] = {}

    async def fetch(visit: NodeResultsFetcher) -> None:
        reason[visit] = f"not complete after {PATIENCE:g} s"
        try:
            async with gate:
                await visit.fetch_all(only=chosen)
            reason[visit] = ""
        except (SkywardError, OSError, WireError) as error:
            reason[visit] = error_message(error)

    total = sum(size for each in retained for run, size in each.runs.items() if run in chosen)
    tasks = [asyncio.create_task(fetch(visit)) for visit in visits]
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while any(not task.done() for task in tasks):
                    received = format_size(sum(visit.received_bytes for visit in visits))
                    report(f"fetching results and logs: {received} of {format_size(total)}")
                    await asyncio.wait(tasks, timeout=PROGRESS_INTERVAL)
    finally:
        await cancel_tasks(tasks)
    notes, lost = [], []
    for visit, each in zip(visits, retained, strict=True):
        if reason[visit]:
            lost.append(f"{each.describe()}: {reason[visit]}")
            continue
        done.add(each.machine)
        if here := each.for_runs(chosen):
            notes.append(f"fetched {here.describe()}")
        if rest := each.for_runs(each.runs.keys() - chosen):
            lost.append(f"{rest.describe()}: a teardown fetches at most {format_size(MAX_BYTES)}")
    return notes, lost


def runs_within(retained: Sequence[RetainedResults], most: int) -> set[str]:
    """Return the runs whose results fit into ``most`` bytes in total, chosen from the smallest on."""
    sizes = Counter[str]()
    for each in retained:
        sizes.update(each.runs)
    by_size = sorted(sizes, key=lambda run: sizes[run])
    totals = accumulate(sizes[run] for run in by_size)
    return {run for run, total in zip(by_size, totals, strict=True) if total <= most}


def mark_empty(context: PoolContext, machine: Machine) -> None:
    """Record that a machine has no results, because no run has ever used the machine."""
    _EmptyMachines(context.archive.folder / EMPTY_MACHINES_FILE).add(machine)


class _EmptyMachines:
    """Record of the machines without unfetched results, for this and later teardowns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.ids = set(path.read_text(encoding="utf-8").split()) if path.exists() else set()

    def add(self, machine: Machine) -> None:
        if machine.id not in self.ids:
            self.ids.add(machine.id)
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(f"{machine.id}\n")


def _describe_machine(machine: Machine) -> str:
    return f"node {machine.node} ({machine.address})"


def _describe_runs(links: Sequence[Link]) -> str:
    """Return the runs and sizes that the nodes reported at their end."""
    sizes = Counter[str]()
    for link in links:
        sizes.update(link.retained_results or {})
    named = (f"run {run} ({format_size(size)})" if size else f"run {run}" for run, size in sizes.items())
    return ", ".join(named) or "its runs"
