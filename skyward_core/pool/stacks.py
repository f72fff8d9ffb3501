"""Where the ranks of a pool are, as its nodes tell."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..model.stacks import RankStack, StackFrame, Stacks, ThreadStack
from ..wire.frames import WireError
from .context import PoolContext
from .links.link import Link

if TYPE_CHECKING:
    from ..views.views import RunView
    from ..wire.agent_frame_types import StacksAnswer
    from ..wire.inside_frame_types import RankStacksKeys

PATIENCE = 15.0  # seconds for a node's answer: it gives itself less
UNHEARD = 4.0  # seconds without any word of a node after which no answer is waited for: it is asked for one every two
LOOKS = 0.5  # seconds between two looks whether there is a word
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
    ended = (task for task in tasks if task.outcome is not None and task.outcome.kind != "lost")
    returned = sorted({task.rank for task in ended if task.rank is not None})
    idle: list[RankStack] = []
    if view is not None:
        found, idle = _of_run(found, view)
    return Stacks(time.time(), tuple(found), run, tuple(returned), tuple(idle))


def _of_run(found: list[RankStack], view: RunView) -> tuple[list[RankStack], list[RankStack]]:
    """Return the processes that are of a run, and idle processes that are not."""
    found = [each for each in found if not view.nodes or each.node in view.nodes]
    if view.kind == "broadcast":
        return found, []
    idle = [each for each in found if view.id not in each.runs and each.at == "idle"]
    return [each for each in found if view.id in each.runs or (not each.threads and each.at != "idle")], idle


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
            answer: StacksAnswer = await _answer(link, {"t": "stacks", "ranks": wanted, "signal": signal})
            return [_stack(each, link.node) for each in answer["ranks"] if each["rank"] in mine]
        except TimeoutError:
            why = f"node {link.node} {link.silence}"
        except (ConnectionError, WireError) as error:
            why = str(error)
    return [RankStack(rank, 0, link.node, "silent", why=why) for rank in wanted]


async def _answer(link: Link, question: Mapping[str, Any]) -> StacksAnswer:
    """A node's answer. Who looks for a hang has a node that hangs, and is not kept from what the others say.

    Raises:
        TimeoutError: there is none.
        ConnectionError: the link is down, or went down meanwhile.
    """
    asked = asyncio.ensure_future(link.ask(question))
    try:
        async with asyncio.timeout(PATIENCE):
            while not (await asyncio.wait((asked,), timeout=LOOKS))[0]:
                if link.quiet > UNHEARD:
                    raise TimeoutError
        answer: StacksAnswer
        answer, _ = await asked
        return answer
    finally:
        asked.cancel()


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
