"""Where the ranks of a pool are, as its nodes tell."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..model.stacks import RankStack, StackFrame, Stacks, ThreadStack
from ..wire.frames import WireError
from .context import PoolContext
from .links.link import Link

if TYPE_CHECKING:
    from ..wire.agent_frame_types import StacksAnswer
    from ..wire.inside_frame_types import RankStacksKeys

PATIENCE = 15.0  # seconds for a node's answer: it gives itself less
TOO_OLD = "its node's agent is of an older release, which tells no stacks: start the pool anew for that"


async def stacks(
    context: PoolContext, run: str = "", ranks: Sequence[int] | None = None, *, signal: bool = False
) -> Stacks:
    """Ask the nodes, all at once; one that does not answer is told of as such.

    Args:
        run: which only ranks that work for it, or could, are told of; "" for all.
        ranks: whom to ask; None for all.
        signal: ranks that cannot be read otherwise may be sent a signal.
    """
    told = await asyncio.gather(*(_ask(context, link, ranks, signal=signal) for link in context.links))
    found = sorted((each for some in told for each in some), key=lambda each: (each.rank, each.number))
    view = context.view.runs.get(run)
    tasks = view.tasks.values() if view is not None else ()
    returned = sorted({task.rank for task in tasks if task.outcome is not None and task.rank is not None})
    if view is not None and (view.kind != "broadcast" or view.nodes):
        found = [each for each in found if run in each.runs or (not each.threads and each.at != "idle")]
    return Stacks(time.time(), tuple(found), run, tuple(returned))


async def _ask(
    context: PoolContext, link: Link, ranks: Sequence[int] | None, *, signal: bool
) -> list[RankStack]:
    mine = context.ranks_of(link.node)
    wanted = [rank for rank in mine if ranks is None or rank in ranks]
    if not wanted:
        return []
    if not link.up:
        why = link.lost_why or f"there is no connection to node {link.node}"
    elif "stacks" not in link.welcome.get("knows", ()):
        why = TOO_OLD
    else:
        try:
            async with asyncio.timeout(PATIENCE):
                answer: StacksAnswer
                answer, _ = await link.ask({"t": "stacks", "ranks": wanted, "signal": signal})
            return [_stack(each, link.node) for each in answer["ranks"] if each["rank"] in mine]
        except TimeoutError:
            why = f"node {link.node} {link.silence}"
        except (ConnectionError, WireError) as error:
            why = str(error)
    return [RankStack(rank, 0, link.node, "silent", why=why) for rank in wanted]


def _stack(told: RankStacksKeys, node: int) -> RankStack:
    return RankStack(
        told["rank"],
        told["number"],
        node,
        told["at"],
        tuple(told["runs"]),
        told.get("pid", 0),
        told.get("how", ""),
        told.get("why", ""),
        told.get("answers", False),
        tuple(
            ThreadStack(
                each["name"],
                tuple(StackFrame(*frame) for frame in each["frames"]),
                each["gil"],
                each.get("child", 0),
            )
            for each in told.get("threads", ())
        ),
    )
