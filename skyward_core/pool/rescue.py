"""What nobody has fetched of a pool whose machines end with it: results and logs come home before.

What an agent leaves behind (``node.agent.unfetched``) is handed out by another one, as where it stays on a host. All of
it is bounded, by bytes and by time, and what does not come is named: it goes with its machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..model.capabilities import Quiets
from ..model.errors import SkywardError, what_of
from ..model.machine import Machine
from ..model.sizes import size_in_words
from ..store.ledger_rows import Kept
from ..wire.frames import WireError
from ..wire.safe_text import field as safe
from .context import PoolContext
from .unfetched import Visit

if TYPE_CHECKING:
    from .links.link import Link

EMPTIED = "emptied"  # the file in the pool's folder with machines on which nothing is left
MOST = 4 << 30  # bytes that are brought of a pool
ASKING = 120.0  # seconds until machines have said what lies there
PATIENCE = 300.0  # seconds until it has come; the machines' deadman waits longer than for both
AT_ONCE = 8  # machines
TICK = 0.2  # seconds between two words on how far it is


async def rescue(
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
    done = _Done(context.archive.folder / EMPTIED)
    for link, machine in zip(context.links, context.machines, strict=False):
        if link.left == {} and link.node not in troubled:
            done.add(machine)
    there = [machine for machine in machines if machine.address and machine.id not in done.ids]
    if not there or not await asyncio.to_thread(context.ledger.runs, context.token):
        return [], []  # a pool that has had no runs leaves none
    if give_up:
        return [f"gave up what nobody had fetched of {_runs(context.links)}"], []
    provider = context.provider
    if not isinstance(provider, Quiets):
        return [], [f"what nobody had fetched of {_runs(context.links)}"]
    say("looking for results and logs that nobody has fetched")
    kept, lost = [], []
    try:
        async with asyncio.timeout(ASKING):
            seen = await provider.quiet(context.name, there)
    except TimeoutError:
        asked = ", ".join(map(_where, there))
        return [], [f"what nobody had fetched: {asked} did not all answer within {ASKING:g} s"]
    for now in seen:
        if now.state in ("unreachable", "lost"):
            why = safe(str(now.extra.get("why") or "it does not answer"))
            lost.append(
                f"{_where(now)} could not be asked for results, logs and files that nobody has fetched ({why})"
            )
        elif left := Kept.of(context.token, now):
            kept.append(left)
        else:
            done.add(now)
    notes, missed = await _fetch(context, kept, done, say) if kept else ([], [])
    return notes, [*lost, *missed]


async def _fetch(
    context: PoolContext, kept: Sequence[Kept], done: _Done, say: Callable[[str], None]
) -> tuple[list[str], list[str]]:
    """Visit each machine; gives what has come, and what has not."""
    chosen = within(kept, MOST)
    visits = [Visit(context.row, each.machine, context.archive, context.ledger) for each in kept]
    gate = asyncio.Semaphore(AT_ONCE)
    why: dict[Visit, str] = {}

    async def make(visit: Visit) -> None:
        why[visit] = f"it was not here after {PATIENCE:g} s"
        try:
            async with gate:
                await visit.make(only=chosen)
            why[visit] = ""
        except (SkywardError, OSError, WireError) as error:
            why[visit] = what_of(error)

    total = sum(size for each in kept for run, size in each.runs.items() if run in chosen)
    tasks = [asyncio.create_task(make(visit)) for visit in visits]
    try:
        await _wait(tasks, lambda: say(_progress(sum(visit.came for visit in visits), total)))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    notes, lost = [], []
    for visit, each in zip(visits, kept, strict=True):
        if why[visit]:
            lost.append(f"{each.words()}: {why[visit]}")
            continue
        done.add(each.machine)
        if here := each.of_runs(chosen):
            notes.append(f"fetched {here.words()}")
        if left := each.of_runs(each.runs.keys() - chosen):
            lost.append(f"{left.words()}: more than {size_in_words(MOST)} is not brought at a pool's end")
    return notes, lost


async def _wait(tasks: Sequence[asyncio.Task[None]], tell: Callable[[], None]) -> None:
    """Until all are over, or the time is."""
    try:
        async with asyncio.timeout(PATIENCE):
            while any(not task.done() for task in tasks):
                tell()
                await asyncio.wait(tasks, timeout=TICK)
    except TimeoutError:
        return


def within(kept: Sequence[Kept], most: int) -> set[str]:
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


def nothing_there(context: PoolContext, machine: Machine) -> None:
    """Remember of a machine that nothing of the pool was ever run on it."""
    _Done(context.archive.folder / EMPTIED).add(machine)


class _Done:
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


def _progress(came: int, total: int) -> str:
    return f"results and logs that nobody has fetched are brought here: {size_in_words(came)} of {size_in_words(total)}"


def _where(machine: Machine) -> str:
    return f"node {machine.node} ({machine.address})"


def _runs(links: Sequence[Link]) -> str:
    """What the nodes said at their end."""
    sizes: dict[str, int] = {}
    for told in (link.left for link in links):
        for run, size in (told or {}).items():
            sizes[run] = sizes.get(run, 0) + size
    named = (f"run {run} ({size_in_words(size)})" if size else f"run {run}" for run, size in sizes.items())
    return ", ".join(named) or "its runs"
