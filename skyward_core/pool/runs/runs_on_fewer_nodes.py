"""Runs on fewer nodes than their pool has: choice of the nodes, and the restart on more nodes once machines return."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from skyward_core.model.restart_policy import place_attempt

if TYPE_CHECKING:
    from skyward_core.pool import PoolContext, Run

GROWTH_INTERVAL = 2.0  # seconds between checks whether a run on fewer nodes can restart on more
MAX_CHECKPOINT_AGE = 300.0  # seconds; a run with an older checkpoint grows later, because it would lose more work


def choose_attempt_nodes(context: PoolContext) -> tuple[tuple[int, ...], str]:
    """Return the nodes of an attempt that may have fewer nodes than the pool; see :func:`place_attempt`."""
    away = {
        link.node: context.roster.replacement_failure(link.node) or link.lost_error.message
        for link in context.links
        if link.gone
    }
    return place_attempt(range(len(context.links)), away, context.least_nodes)


def watch_growth(context: PoolContext, run: Run) -> None:
    """Restart a run on all nodes once they are back, if its newest checkpoint is recent."""
    if run.is_elastic and run.nodes:
        context.background.spawn(_grow_when_possible(context, run, run.attempt))


async def _grow_when_possible(context: PoolContext, run: Run, attempt: int) -> None:
    while run.state == "running" and run.attempt == attempt and not context.leaving:
        view = context.view.runs.get(run.id)
        saved_at = (view and view.checkpoint_at) or 0.0
        is_back = any(link.up and link.node not in run.nodes for link in context.present_links)
        if run.sent and is_back and time.time() - saved_at < MAX_CHECKPOINT_AGE:
            return run.grow()
        await asyncio.sleep(GROWTH_INTERVAL)
