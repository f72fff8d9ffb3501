"""Results that no client has fetched, saved before machines go.

A fresh agent, without ranks, is started in each of the folders that were kept (``node.agent.retained_results``). It
takes up the calls whose results are there, as after the death of an agent, and hands them out; once all is acknowledged
it ends, and with it the folder.

What the nodes of a pool that is up hold for nobody is brought home by a visit to their own agents, which go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import PoolError, SkywardError, error_hint, error_message
from skyward_core.model.machines import Machine
from skyward_core.model.outcomes import Outcome
from skyward_core.model.provider_capabilities import Quiets
from skyward_core.model.root_cause import summarize_outcomes
from skyward_core.pool.agent_link import Link, is_notification
from skyward_core.pool.pool_context import PoolContext
from skyward_core.pool.runs.run import outcome_of
from skyward_core.protocol.frame_codec import RESULT_KINDS, WireError
from skyward_core.providers import provider_from_json
from skyward_core.providers.provider import Provider
from skyward_core.providers.provider_calls import log_call
from skyward_core.store.ledger import Ledger
from skyward_core.store.ledger_rows import PoolRow, Receipt, RetainedResults
from skyward_core.store.pool_folder import PoolFolder, parse_rank
from skyward_core.store.state_folder import pool_path
from skyward_core.transport.file_and_result_downloads import ResultDownload
from skyward_core.transport.transport import Transport
from skyward_core.util.byte_sizes import format_size
from skyward_core.util.terminal_safe_text import sanitize_line

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import AgentItem, AgentOutcome, FromAgent


STALL_TIMEOUT = 30.0  # seconds without anything new after which a fetch is given up for now
SHUTDOWN_TIMEOUT = 10.0  # seconds that the agent may take to end once all has been fetched
LEASE = 60.0  # seconds that it lives on where we die on the way

CallOutcome = tuple[str, Outcome, dict[str, list[int]]]
"""A run, how one of its calls ended, and where in which log files stands what that call printed."""


async def fetch_retained(row: PoolRow, ledger: Ledger, *, give_up: bool = False) -> list[str]:
    """Bring home what is kept of a pool that has ended.

    Args:
        give_up: have it removed in place of that.

    Returns:
        What was done, in words, a line for each folder.

    Raises:
        PoolError: something could not be had, and stays where it is; says why.
    """
    done, failures, hint = [], [], None
    archive = PoolFolder(row.key)
    try:
        for kept in ledger.retained_results(row.token):
            visit, needed = (
                NodeResultsFetcher(row, kept.machine, archive, ledger),
                ledger.select_wanted([kept]),
            )
            try:
                await visit.fetch_all(give_up=give_up)
                await visit.wait_removed()
            except (PoolError, OSError, WireError) as error:
                if kept in ledger.retained_results(row.token):  # else another client was quicker
                    failures.append(f"{kept} (still there: {error_message(error)})")
                    hint = hint or error_hint(error)
                continue
            await asyncio.to_thread(ledger.remove_retained, kept)
            done += [f"{'gave up' if give_up else 'fetched'} {each.describe()}" for each in needed]
    finally:
        archive.close()
    if failures:
        raise PoolError(f"of pool {row.name}, not fetched: {'; '.join(failures)}", hint=hint)
    return done


def is_fetched(ledger: Ledger, run: str) -> bool:
    """Whether a run is over, and all that it gave lies in the files of this machine."""
    row = ledger.run(run)
    if row is None or row.ended_at is None:
        return False
    gave = [outcome.index for outcome, _ in ledger.outcomes(run) if outcome.kind in RESULT_KINDS]
    folder = pool_path(ledger.pool(row.token).key) / "results"
    return bool(gave) and all((folder / f"{run}.{index}.pickle").exists() for index in gave)


async def fetch_run(row: PoolRow, run: str, ledger: Ledger) -> list[str]:
    """Bring home what the nodes of a pool that is up hold of a run that is over, and whose client is gone.

    Returns:
        What was done, in words, a line for each node; none where nothing waits there, or another client has come for
        it.

    Raises:
        PoolError: a node's part cannot be had, and stays there; says why.
    """
    done, failures = [], []
    archive = PoolFolder(row.key)
    try:
        for machine in ledger.machines(row.token):
            visit = NodeResultsFetcher(row, machine, archive, ledger)
            try:
                size = await visit.fetch_run(run)
            except (PoolError, OSError, WireError) as error:
                failures.append(f"node {machine.node} ({error_message(error)})")
                continue
            if size is not None:
                what = f"run {run} ({format_size(size)})" if size else f"how run {run} ended"
                done.append(f"fetched {what} from node {machine.node} ({machine.address})")
    finally:
        archive.close()
    if failures:
        raise PoolError(f"of run {run}, not fetched, and still there: {'; '.join(failures)}")
    return done


async def fetch_after_teardown(row: PoolRow, ledger: Ledger, receipt: Receipt, *, give_up: bool = False) -> Receipt:
    """Fetch (or give up) what the hosts keep of a pool that was just torn down; gives the receipt with what became of
    it. What cannot be fetched now stays there."""
    try:
        notes = await fetch_retained(row, ledger, give_up=give_up)
    except SkywardError as error:
        notes = [error_message(error)]
    left = tuple(map(str, ledger.unfetched_results(row.token))) if not receipt.unwritten else receipt.kept
    return replace(receipt, notes=(*receipt.notes, *notes), kept=left)


class NodeResultsFetcher:
    """To the folder of a node, or of what is kept of one. Hears of what comes over its link."""

    def __init__(self, row: PoolRow, machine: Machine, archive: PoolFolder, ledger: Ledger) -> None:
        self._row = row
        self._machine = machine
        self._archive = archive
        self._ledger = ledger
        self._provider: Provider = provider_from_json(row.provider)
        self._frames: asyncio.Queue[tuple[AgentOutcome | AgentItem, bytes]] = asyncio.Queue()
        self._last_frame_at = time.monotonic()
        self._error_text = "nothing comes from there"
        self._log_ends: dict[str, int] = {}
        self._received = 0
        self._download: ResultDownload | None = None

    @property
    def received_bytes(self) -> int:
        """Bytes that have come so far."""
        return self._received + (self._download.at if self._download is not None else 0)

    async def fetch_all(self, *, give_up: bool = False, only: Container[str] | None = None) -> None:
        """Fetch it, or give it up.

        Args:
            only: runs that are fetched; None for all. The others are given up.

        Raises:
            PoolError, OSError, WireError: it cannot be had; says why.
        """
        transport = self._transport()
        await transport.prepare(self._config(), lambda *told, **more: None)
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
        """Fetch what the agent of a pool that is up holds of a run for nobody, as one who only looks.

        Returns:
            Bytes of it; None where nothing waits there.

        Raises:
            PoolError, OSError, WireError: it cannot be had; says why.
        """
        link = self._link(self._transport(), observer=True)
        try:
            await link.connect()
            size = link.welcome.get("unfetched", {}).get(run)
            if size is None:
                return None
            outcomes = await self._download_runs(link, [run])
            await asyncio.to_thread(self._save_outcomes, outcomes, ended=False)
            link.acknowledge(run)
            link.flush_acknowledgements()
            await link.ask({"t": "ping"})  # the agent has read what came before
            return size
        finally:
            await link.close()

    def _transport(self) -> Transport:
        return self._provider.transport(self._row.name, self._machine)

    def _link(self, transport: Transport, *, observer: bool = False) -> Link:
        machine = self._machine
        return Link(machine.node, transport, self, observer=observer, logs_from=machine.logs_from, pool=self._row.name)

    def _config(self) -> dict[str, Any]:
        """The agent's: it has no ranks, and only hands out what is there."""
        return {
            "pool": self._row.name, "node": self._machine.node, "nodes": 1, "ranks_per_node": 0,
            "concurrency": 1, "idle_timeout": LEASE, "grace": 0.0, "env": {}, "cwd": "", "path": [], "image": {},
        }  # fmt: skip

    async def _download_runs(self, link: Link, runs: Sequence[str]) -> list[CallOutcome]:
        """Bring home what an agent has of some runs; gives how their calls ended."""
        missing = {(run, index) for run in runs for index in await link.claim(run)}
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
            partial = path.with_name(f"{name}.part")
            partial.touch(mode=0o600)
            partial.write_bytes(body)
            partial.replace(path)
            return
        while True:
            landing = self._download = ResultDownload(path, header["size"])
            try:
                await link.fetch(header["file"], landing)
            except ConnectionError:
                await self._wait_until(lambda: link.up)  # it is gone on with
            else:
                landing.close()
                self._received, self._download = self.received_bytes, None
                return

    def _save_outcomes(self, outcomes: Sequence[CallOutcome], *, ended: bool) -> None:
        """Enter what became of the runs.

        Args:
            ended: Whether the pool's agents have ended. Clients that watch a pool which is up enter the runs' ends.
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
        """Wait for a condition, as long as anything comes.

        Raises:
            ConnectionError: nothing has come for too long.
        """
        self._last_frame_at = time.monotonic()
        while not reached():
            if time.monotonic() - self._last_frame_at > STALL_TIMEOUT:
                raise ConnectionError(self._error_text)
            await asyncio.sleep(0.01)

    async def wait_removed(self) -> None:
        """Wait until its host says so.

        Raises:
            PoolError: it does not.
        """
        deadline = time.monotonic() + SHUTDOWN_TIMEOUT
        while True:
            look = self._provider.describe(self._row.name, [self._machine])
            (seen,) = await log_call("describe", self._row.name, look)
            if seen.state == "gone":
                return
            if time.monotonic() > deadline:
                raise PoolError(f"its folder is still there ({seen.state})")
            await asyncio.sleep(0.05)

    # -- what the link tells -----------------------------------------------------------------------------

    def on_frame(self, link: Link, header: FromAgent, body: bytes) -> None:
        """Something came."""
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
        """The link is up, or down and on its way up again."""
        self._error_text = detail or self._error_text

    def cursors(self, node: int) -> dict[str, int]:
        """How much of its logs is here."""
        first = node * self._ranks
        return {
            name: at for name, at in self._archive.cursors.items() if first <= parse_rank(name) < first + self._ranks
        }

    @property
    def _ranks(self) -> int:
        ranks = self._row.spec["worker"]["ranks_per_node"]
        return ranks if isinstance(ranks, int) else len(self._archive.cursors) + 1


EMPTY_MACHINES_FILE = "emptied"  # the file in the pool's folder with machines on which nothing is left
MAX_BYTES = 4 << 30  # bytes that are brought of a pool
QUERY_TIMEOUT = 120.0  # seconds until machines have said what lies there
PATIENCE = 300.0  # seconds until it has come; the machines' deadman waits longer than for both
MAX_PARALLEL = 8  # machines
PROGRESS_INTERVAL = 0.2  # seconds between two words on how far it is


async def fetch_remaining(
    context: PoolContext,
    machines: Sequence[Machine],
    troubled: Collection[int],
    say: Callable[[str], None],
    *,
    give_up: bool,
) -> tuple[list[str], list[str]]:
    """Bring home what lies on a pool's machines, once its agents were told to end. Begun again, it goes on.

    Args:
        machines: all that the pool has.
        troubled: nodes whose agents did not end as they should, or whose logs are not all here.
        say: shows how far it is.
        give_up: bring nothing, and have it go.

    Returns:
        What was brought, or given up; and what is lost: in words.
    """
    done = _EmptyMachines(context.archive.folder / EMPTY_MACHINES_FILE)
    for link, machine in zip(context.links, context.machines, strict=False):
        if link.retained_results == {} and link.node not in troubled:
            done.add(machine)
    there = [machine for machine in machines if machine.address and machine.id not in done.ids]
    if not there or not await asyncio.to_thread(context.ledger.runs, context.token):
        return [], []  # a pool that has had no runs leaves none
    if give_up:
        return [f"gave up what nobody had fetched of {_describe_runs(context.links)}"], []
    provider = context.provider
    if not isinstance(provider, Quiets):
        return [], [f"what nobody had fetched of {_describe_runs(context.links)}"]
    say("looking for results and logs that nobody has fetched")
    kept, lost = [], []
    try:
        async with asyncio.timeout(QUERY_TIMEOUT):
            seen = await provider.quiet(context.name, there)
    except TimeoutError:
        asked = ", ".join(map(_describe_machine, there))
        return [], [f"what nobody had fetched: {asked} did not all answer within {QUERY_TIMEOUT:g} s"]
    for now in seen:
        if now.state in ("unreachable", "lost"):
            reason = sanitize_line(str(now.extra.get("why") or "it does not answer"))
            lost.append(
                f"{_describe_machine(now)} could not be asked for results, logs and files that nobody has "
                f"fetched ({reason})"
            )
        elif left := RetainedResults.from_machine(context.token, now):
            kept.append(left)
        else:
            done.add(now)
    notes, missed = await _fetch_machines(context, kept, done, say) if kept else ([], [])
    return notes, [*lost, *missed]


async def _fetch_machines(
    context: PoolContext, kept: Sequence[RetainedResults], done: _EmptyMachines, say: Callable[[str], None]
) -> tuple[list[str], list[str]]:
    """Visit each machine; gives what has come, and what has not."""
    chosen = runs_within(kept, MAX_BYTES)
    visits = [NodeResultsFetcher(context.row, each.machine, context.archive, context.ledger) for each in kept]
    gate = asyncio.Semaphore(MAX_PARALLEL)
    reason: dict[NodeResultsFetcher, str] = {}

    async def make(visit: NodeResultsFetcher) -> None:
        reason[visit] = f"it was not here after {PATIENCE:g} s"
        try:
            async with gate:
                await visit.fetch_all(only=chosen)
            reason[visit] = ""
        except (SkywardError, OSError, WireError) as error:
            reason[visit] = error_message(error)

    total = sum(size for each in kept for run, size in each.runs.items() if run in chosen)
    tasks = [asyncio.create_task(make(visit)) for visit in visits]
    try:
        await _wait_all(tasks, lambda: say(_describe_progress(sum(visit.received_bytes for visit in visits), total)))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    notes, lost = [], []
    for visit, each in zip(visits, kept, strict=True):
        if reason[visit]:
            lost.append(f"{each.describe()}: {reason[visit]}")
            continue
        done.add(each.machine)
        if here := each.for_runs(chosen):
            notes.append(f"fetched {here.describe()}")
        if left := each.for_runs(each.runs.keys() - chosen):
            lost.append(f"{left.describe()}: more than {format_size(MAX_BYTES)} is not brought at a pool's end")
    return notes, lost


async def _wait_all(tasks: Sequence[asyncio.Task[None]], tell: Callable[[], None]) -> None:
    """Until all are over, or the time is."""
    try:
        async with asyncio.timeout(PATIENCE):
            while any(not task.done() for task in tasks):
                tell()
                await asyncio.wait(tasks, timeout=PROGRESS_INTERVAL)
    except TimeoutError:
        return


def runs_within(kept: Sequence[RetainedResults], most: int) -> set[str]:
    """As many runs as there is room for, the smallest first."""
    sizes: dict[str, int] = {}
    for each in kept:
        for run, size in each.runs.items():
            sizes[run] = sizes.get(run, 0) + size
    chosen = set()
    for run, size in sorted(sizes.items(), key=lambda item: item[1]):
        if size <= most:
            chosen.add(run)
            most -= size
    return chosen


def mark_empty(context: PoolContext, machine: Machine) -> None:
    """Remember of a machine that nothing of the pool was ever run on it."""
    _EmptyMachines(context.archive.folder / EMPTY_MACHINES_FILE).add(machine)


class _EmptyMachines:
    """The machines on which nothing is left that anybody may want, of this teardown and earlier ones."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.ids = set(path.read_text(encoding="utf-8").split()) if path.exists() else set()

    def add(self, machine: Machine) -> None:
        """One more."""
        if machine.id not in self.ids:
            self.ids.add(machine.id)
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(f"{machine.id}\n")


def _describe_progress(came: int, total: int) -> str:
    return f"results and logs that nobody has fetched are brought here: {format_size(came)} of {format_size(total)}"


def _describe_machine(machine: Machine) -> str:
    return f"node {machine.node} ({machine.address})"


def _describe_runs(links: Sequence[Link]) -> str:
    """What the nodes said at their end."""
    sizes: dict[str, int] = {}
    for retained in (link.retained_results for link in links):
        for run, size in (retained or {}).items():
            sizes[run] = sizes.get(run, 0) + size
    named = (f"run {run} ({format_size(size)})" if size else f"run {run}" for run, size in sizes.items())
    return ", ".join(named) or "its runs"
