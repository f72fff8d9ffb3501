"""Stacks, profiles and debuggers of ranks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import PoolError, UsageError
from skyward_core.model.thread_stacks import RankStack, StackFrame, Stacks, ThreadStack
from skyward_core.pool.agent_link import Link
from skyward_core.pool.pool_context import PoolContext
from skyward_core.protocol.frame_codec import AnyHeader, WireError
from skyward_core.util.terminal_safe_text import sanitize_line

if TYPE_CHECKING:
    from skyward_core.protocol.frame_types import AgentKnown, DebugAnswer, RankStacksKeys, StacksAnswer
    from skyward_core.views.pool_view import RunView


ANSWER_TIMEOUT = 15.0  # seconds for a node's answer: it gives itself less
# Seconds without any word of a node after which no answer is waited for: it is asked for one every two.
SILENCE_TIMEOUT = 4.0
TOO_OLD = "its node's agent is of an older release, which tells no stacks: start the pool anew for that"


async def collect_stacks(
    context: PoolContext, run: str = "", ranks: Sequence[int] | None = None, *, signal: bool = False
) -> Stacks:
    """Ask the nodes, all at once; one that does not answer is told of as such.

    Args:
        run: which only ranks that work for it, or could, are told of; "" for all.
        ranks: whom to ask; None for all.
        signal: ranks that cannot be read otherwise may be sent a signal.
    """
    told = await asyncio.gather(*(_request_stacks(context, link, ranks, signal=signal) for link in context.links))
    found = sorted((each for some in told for each in some), key=lambda each: (each.rank, each.number))
    view = context.view.runs.get(run)
    tasks = view.tasks.values() if view is not None else ()
    ended = (task for task in tasks if task.outcome is not None and task.outcome.kind != "lost")
    returned = sorted({task.rank for task in ended if task.rank is not None})
    idle: list[RankStack] = []
    if view is not None:
        found, idle = _split_by_run(found, view)
    return Stacks(time.time(), tuple(found), run, tuple(returned), tuple(idle))


def _split_by_run(found: list[RankStack], view: RunView) -> tuple[list[RankStack], list[RankStack]]:
    """Return the processes that are of a run, and idle processes that are not."""
    found = [each for each in found if not view.nodes or each.node in view.nodes]
    if view.kind == "broadcast":
        return found, []
    idle = [each for each in found if view.id not in each.runs and each.at == "idle"]
    return [each for each in found if view.id in each.runs or (not each.threads and each.at != "idle")], idle


async def _request_stacks(
    context: PoolContext, link: Link, ranks: Sequence[int] | None, *, signal: bool
) -> list[RankStack]:
    mine = context.ranks_of(link.node)
    wanted = [rank for rank in mine if ranks is None or rank in ranks]
    if not wanted:
        return []
    if not link.up:
        reason = link.lost_reason or f"there is no connection to node {link.node}"
    elif "stacks" not in link.welcome.get("knows", ()):
        reason = TOO_OLD
    else:
        try:
            answer: StacksAnswer
            asking = link.ask({"t": "stacks", "ranks": wanted, "signal": signal})
            answer, _ = await link.wait_while_heard(asking, ANSWER_TIMEOUT, SILENCE_TIMEOUT)
            return [_rank_stack(each, link.node) for each in answer["ranks"] if each["rank"] in mine]
        except TimeoutError:
            reason = f"node {link.node} {link.silence_text}"
        except (ConnectionError, WireError) as error:
            reason = str(error)
    return [RankStack(rank, 0, link.node, "silent", why=reason) for rank in wanted]


def _rank_stack(told: RankStacksKeys, node: int) -> RankStack:
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


MAX_PROFILE_TIME = 600.0  # seconds
PROFILE_MARGIN = 30.0  # seconds beside those that a node may take


async def profile_rank(context: PoolContext, rank: int, seconds: float) -> str:
    """Stacks and how often each was seen; see :mod:`...views.profile`.

    Raises:
        UsageError: there is no such rank, or that is no time.
        PoolError: the node cannot be asked, or cannot tell; says why.
    """
    if not 1 <= seconds <= MAX_PROFILE_TIME:
        raise UsageError(f"a rank is looked at for 1 to {MAX_PROFILE_TIME:g} seconds, not for {seconds:g}")
    request = {"t": "profile", "rank": rank, "seconds": seconds}
    answer: AgentKnown
    answer, data = await _ask_about(context, rank, request, seconds + PROFILE_MARGIN, "makes no profiles")
    if reason := answer.get("error"):
        raise PoolError(f"rank {rank} cannot be looked at: {sanitize_line(reason)}")
    return data.decode(errors="replace")


DEBUGGER_TIMEOUT = 15.0  # seconds for a node's answer, which comes within one


async def send_to_debugger(
    context: PoolContext, rank: int, who: str, *, text: str = "", eof: bool = False
) -> tuple[bytes, bool]:
    """Type something to a rank's debugger, or hear what it has printed; whether it is over comes with that.

    Args:
        who: a word that tells this visitor from others.
        text: what is typed.
        eof: that nothing more is.

    Raises:
        UsageError: there is no such rank.
        PoolError: the node cannot be asked, or the rank waits at no breakpoint.
    """
    asked: dict[str, Any] = {"t": "debug", "rank": rank, "who": who}
    asked |= ({"text": text} if text else {}) | ({"eof": True} if eof else {})
    answer: DebugAnswer
    answer, data = await _ask_about(context, rank, asked, DEBUGGER_TIMEOUT, "debugs nothing")
    if reason := answer.get("error"):
        raise PoolError(sanitize_line(reason))
    return data, answer["over"]


async def _ask_about(
    context: PoolContext, rank: int, request: Mapping[str, Any], patience: float, lacks: str
) -> tuple[AnyHeader, bytes]:
    """Ask the node of a rank about it.

    Args:
        request: Its type is the name of the feature, too, that the agent has to know.
        lacks: What an older agent does not do.

    Raises:
        UsageError: There is no such rank.
        PoolError: The node cannot be asked.
    """
    if not 0 <= rank < context.view.world_size:
        raise UsageError(f"pool {context.name} has ranks 0 to {context.view.world_size - 1}, and no rank {rank}")
    link = context.link_of(rank)
    if not link.up:
        raise PoolError(f"there is no connection to node {link.node}, which rank {rank} is on")
    if request["t"] not in link.welcome.get("knows", ()):
        raise PoolError(f"node {link.node}'s agent is of an older release, which {lacks}: start the pool anew for that")
    try:
        async with asyncio.timeout(patience):
            return await link.ask(request)
    except TimeoutError as error:
        raise PoolError(f"node {link.node} {link.silence_text}") from error
    except (ConnectionError, WireError) as error:
        raise PoolError(f"node {link.node} cannot tell: {error}") from error
