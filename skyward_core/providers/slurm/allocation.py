"""Allocations of pools: submitted, waited for, found again by their names, and ended."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ...model.errors import NoCapacity, PoolError, Unreachable, what_of
from ...model.machine import Machine
from ..told import progress
from . import texts
from .allocation_folder import AllocationFolder
from .batch import report
from .commands import SLACK, CommandFailed, Commands
from .texts import RUNNING, TAKEN, AllocatedNode, SlurmJob

PREFIX = "skyward-"
PAUSES = (0.3, 15.0)  # seconds between two looks at the queue, at first and at most
ENDING = 6.0  # seconds in which most of those that are told to end have ended
SUBMITTING = 30.0  # seconds that sbatch may take, whatever becomes of its client
REPORTING = 120.0  # seconds in which nodes say how they are reached
_SETTLING = 2.0  # seconds until squeue shows what sbatch has submitted


def name_of(pool: str, token: str) -> str:
    """What a pool's allocation is called, by nobody else: squeue finds it by that."""
    return f"{PREFIX}{pool}.{token}"


def pool_of(name: str) -> tuple[str, str] | None:
    """The pool and the token that such a name has; None where it is no such name."""
    pool, _, token = name.removeprefix(PREFIX).rpartition(".")
    return (pool, token) if name.startswith(PREFIX) and pool and token.isalnum() else None


async def jobs(commands: Commands, names: Iterable[str]) -> list[SlurmJob]:
    """What Slurm knows of allocations, those that ended lately among them.

    Raises:
        PoolError: it cannot be asked.
    """
    wanted = sorted(set(names))
    told = await commands(
        "squeue", "--me", "--noheader", "--states=all", f"--name={','.join(wanted)}", "-o", texts.FIELDS
    )
    return [each for each in texts.jobs(told) if each.name in wanted]


async def settled(commands: Commands, names: Iterable[str]) -> list[SlurmJob]:
    """The same; those that are just ending are waited for, for a while: only then Slurm says why they end.

    Raises:
        PoolError: it cannot be asked.
    """
    names, until = list(names), time.monotonic() + ENDING
    while True:
        there = await jobs(commands, names)
        if not any(each.state in texts.ENDING for each in there) or time.monotonic() > until:
            return there
        await asyncio.sleep(0.3)


async def find(commands: Commands, folder: AllocationFolder) -> list[SlurmJob]:
    """A pool's allocations that are not over. A submission of which nobody has heard what became of it is waited for:
    the client may have died while its sbatch went on.

    Raises:
        PoolError: Slurm cannot be asked.
    """
    while True:
        if folder.asked_nothing:
            return []
        begun = folder.begun
        there = [
            each for each in await jobs(commands, [name_of(folder.pool, folder.token)]) if not each.is_over
        ]
        until = 0.0 if begun is None else begun + SUBMITTING + SLACK
        if there or time.time() >= until or begun is None or begun > time.time() + SLACK:
            return there
        await asyncio.sleep(min(_SETTLING, max(0.1, until - time.time())))


async def submit(commands: Commands, folder: AllocationFolder, options: Sequence[str], script: str) -> str:
    """Ask Slurm for an allocation; gives the number of its job.

    Raises:
        PoolError: it refuses, or cannot be asked; says why.
    """
    asked = asyncio.ensure_future(
        commands("sbatch", "--parsable", *options, stdin=script, seconds=SUBMITTING)
    )
    try:
        told = await asyncio.shield(asked)
    except asyncio.CancelledError:
        # Who breaks off its start waits for the answer, which tells what is to be cancelled.
        await asyncio.wait([asked], timeout=SUBMITTING)
        if asked.done() and not asked.cancelled() and asked.exception() is None:
            folder.answered(submitted=True)
        raise
    except CommandFailed as error:
        if "timed out" not in str(error):  # else Slurm may take it all the same
            folder.answered(submitted=False)
        raise
    folder.answered(submitted=True)
    return texts.submitted(told)


async def granted(commands: Commands, name: str, id: str) -> SlurmJob:
    """Wait until an allocation has its nodes, and tell meanwhile why it waits.

    Raises:
        NoCapacity: Slurm took its nodes away again before anybody could use them.
        PoolError: it ended otherwise, as by somebody who cancelled it: it is not submitted anew.
    """
    pause, said = PAUSES[0], ""
    while True:
        try:
            found = [each for each in await jobs(commands, [name]) if each.id == id]
        except (Unreachable, CommandFailed) as error:  # a controller may be started anew, and the queue stays
            said = _tell(said, f"job {id} waits, as far as is known: {what_of(error)}")
            found = []
        else:
            if not found:
                raise PoolError(f"Slurm does not know job {id} any more; somebody has cancelled it, it seems")
        for job in found:
            if job.state in RUNNING:
                return job
            if job.is_over:
                kind = NoCapacity if job.state in TAKEN else PoolError
                raise kind(f"{job.how_it_ended}, before the pool was up")
            starts = job.start if job.start and job.start > time.time() else None
            when = (
                f"; Slurm expects it to start at {time.strftime('%H:%M on %Y-%m-%d', time.localtime(starts))}"
                if starts
                else ""
            )
            said = _tell(said, f"job {id} waits in the queue: {job.why_it_waits}{when}")
        await asyncio.sleep(pause)
        pause = min(PAUSES[1], pause * 1.4)


def _tell(before: str, now: str) -> str:
    if now != before:
        progress(now)
    return now


async def nodes_of(commands: Commands, job: SlurmJob) -> list[str]:
    """The names of an allocation's nodes.

    Raises:
        PoolError: they cannot be told.
    """
    return texts.hostnames(await commands("scontrol", "show", "hostnames", job.nodes))


async def reached(commands: Commands, job: SlurmJob, folder: str, count: int) -> list[AllocatedNode]:
    """How its nodes are reached, once their SSH servers listen.

    Args:
        folder: what the folders of the pool's nodes are called, but for their index.
        count: how many nodes it has.

    Raises:
        PoolError: one cannot be; says why.
    """
    told = await commands(
        "srun", f"--jobid={job.id}", "--overlap", "--mem=0", "--gres=none", f"--nodes={count}", f"--ntasks={count}",
        "--ntasks-per-node=1", "--cpu-bind=none", "--input=none", "sh", "-c", report(folder), seconds=REPORTING,
    )  # fmt: skip
    return texts.reports(told, count)


async def remembered(commands: Commands, id: str) -> str:
    """How an allocation ended that squeue does not know any more, by the cluster's accounting; "" where it has none."""
    try:
        told = await commands(
            "sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={id}", "--format=State"
        )
    except PoolError:
        return ""
    return texts.ending(id, told)


def whole(machines: Iterable[Machine]) -> list[str]:
    """The allocations of which all nodes are among some machines: one ends as a whole, or not at all."""
    counts = Counter((each.extra["job"], each.extra["nodes"]) for each in machines)
    return sorted(job for (job, nodes), count in counts.items() if count >= nodes)


async def cancel(commands: Commands, wanted: Sequence[str]) -> None:
    """Have allocations ended; those that are over stay so.

    Raises:
        PoolError: Slurm was not told.
    """
    if wanted:
        await commands("scancel", "--quiet", *wanted)


def machine_of(
    folder: AllocationFolder, job: SlurmJob, node: AllocatedNode, name: str, count: int
) -> Machine:
    """A node of an allocation, as a machine.

    Args:
        count: how many nodes it has.
        name: what its folder is called, but for its index.
    """
    extra: dict[str, Any] = {
        "nodes": count,
        "job": job.id, "token": folder.token, "port": node.port, "user": node.user, "folder": f"{name}.{node.index}"
    }  # fmt: skip
    return Machine(f"{job.id}/{node.name}", node.index, node.address, "", extra=extra)


def unfinished(folder: AllocationFolder, job: SlurmJob, names: Sequence[str]) -> list[Machine]:
    """An allocation that nobody could use yet, as machines: one for each node that it has, or one while it waits."""
    extra = {"job": job.id, "token": folder.token, "nodes": max(1, len(names))}
    if not names:
        return [Machine(job.id, 0, "", "", extra=extra)]
    return [Machine(f"{job.id}/{name}", index, "", "", extra=extra) for index, name in enumerate(names)]


def folder_name(pool: str, token: str) -> str:
    """What the folders of a pool's nodes are called there, but for their index."""
    return f"{pool}.{token[:8]}"
