"""Hanging runs, and the detection of their missing rank."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import skyward_core as sky
from skyward_core.client.session import Session
from skyward_core.model.thread_stacks import Stacks
from skyward_core.views.stack_groups_and_profiles import summarize_collectives
from tests.support.waiting import wait_until


def hang_told(pool: sky.Compute, hang: Callable[[], Any], where: str) -> list[str]:
    """Return the description of the collectives once all four ranks except rank 2 are inside of one. Cancels the run.

    Args:
        hang: Function that all ranks run.
        where: Function in which rank 2 stays.
    """
    session = Session()
    stacks = Stacks(0.0, ())
    before = set(pool.pool.view.runs)

    def look() -> bool:
        nonlocal stacks
        stacks = session.stacks(pool.name, run, signal=True).result(30)
        # At its start a rank is in collectives, too, and rank 2 on its way to where it stays.
        return any(
            each.startswith("ranks 0-1,3 are in ") and f": {where}," in each for each in summarize_collectives(stacks)
        )

    with ThreadPoolExecutor() as beside:
        running = beside.submit(hang)
        try:
            wait_until(lambda: set(pool.pool.view.runs) - before)
            (run,) = set(pool.pool.view.runs) - before
            wait_until(look)
        finally:
            for each in set(pool.pool.view.runs) - before:
                session.cancel(pool.name, each).result(30)
            running.exception(60)
            session.detach()
    return summarize_collectives(stacks)
