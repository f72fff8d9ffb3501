"""Allocations that were made for pools, whoever remembers them: found by their names, cancelled by their numbers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from ...model.errors import PoolError, what_of
from ...model.leftover import Leftover
from . import allocation
from .commands import Commands
from .texts import SlurmJob

MARK = "skyward ledger "
ENDED_IN = (
    90.0  # seconds in which Slurm ends what it was told to; KillWait is 30 s where nobody has changed it
)


def comment(ledger: str) -> str:
    """What the comment of an allocation says."""
    return f"{MARK}{ledger}"


def things(jobs: Iterable[SlurmJob], where: str, ours: str) -> list[Leftover]:
    """Allocations as what an account holds; one whose name is no pool's is none.

    Args:
        where: Slurm is asked, for people to read.
        ours: which ledger is this client's.
    """
    found = []
    for job in jobs:
        if (whose := allocation.pool_of(job.name)) is None:
            continue
        ledger = job.comment.removeprefix(MARK) if job.comment.startswith(MARK) else ""
        found.append(
            Leftover(
                "allocation", job.id, where, *whose, ledger, ours=bool(ledger) and ledger == ours, owner="you",
                since=job.start, expires=job.end,
            )
        )  # fmt: skip
    return found


async def remove(commands: Commands, wanted: Sequence[Leftover]) -> list[str]:
    """Cancel them, and see them gone; gives what is left, in words."""
    names = {each.id: allocation.name_of(each.pool, each.token) for each in wanted}
    left, until = list(names), time.monotonic() + ENDED_IN
    why = "Slurm has not said that it ended"
    try:
        async with commands.held():
            # By their numbers, which are given anew one day, only while the names are still theirs.
            here = await allocation.jobs(commands, names.values())
            await allocation.cancel(commands, [job.id for job in here if names.get(job.id) == job.name])
            while True:
                here = await allocation.jobs(commands, names.values())
                left = [job.id for job in here if not job.is_over and names.get(job.id) == job.name]
                if not left or time.monotonic() > until:
                    break
                await asyncio.sleep(0.5)
    except (PoolError, OSError) as error:
        why = what_of(error)
    return [f"allocation {id}: {why}" for id in left]
