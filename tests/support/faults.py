"""Helpers of fault tests: waits for conditions, and processes of a pool."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import skyward_core as sky
from tests.support.processes import descendants
from tests.support.waiting import wait_until


def on_loop(work: Callable[[], object]) -> None:
    """Run a function on the pools' loop, after queued work. Its exceptions are raised here."""
    # Ranks load this, and do without these.
    import asyncio

    from skyward_core.transport.background_loop import background_loop

    async def do() -> None:
        work()

    asyncio.run_coroutine_threadsafe(do(), background_loop()).result(60)


def agent_pids(compute: sky.Compute) -> list[int]:
    """Process ids of a pool's agents."""
    return [link.welcome["pid"] for link in compute.pool.links]


def worker_pids(compute: sky.Compute) -> list[int]:
    """Process ids of everything that runs below a pool's agents."""
    return sorted(pid for agent in agent_pids(compute) for pid in descendants(agent))


def remove(folder: Path | str) -> None:
    """Remove a folder to which other processes may be writing."""

    def gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not Path(folder).exists()

    wait_until(gone, what=f"the end of {folder}")


def release_pipe(pipe: Path) -> None:
    """Let an agent write to a pipe and rename it, as if it was a file, and remove it."""
    end = os.open(pipe, os.O_RDWR)
    wait_until(lambda: not pipe.exists())
    pipe.with_suffix("").unlink()
    os.close(end)
