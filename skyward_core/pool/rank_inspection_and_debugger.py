"""Inspection of ranks: stacks, profiles and debuggers, and notices to the nodes that a rank is paused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from itertools import starmap
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


ANSWER_TIMEOUT = 15.0  # seconds to wait for the stacks from a node; the node limits the collection to fewer seconds
# Seconds without any frame of a node until the request fails. Nodes send a frame at least every 2 s.
SILENCE_TIMEOUT = 4.0


async def collect_stacks(
    context: PoolContext, run: str = "", ranks: Sequence[int] | None = None, *, signal: bool = False
) -> Stacks:
    """Collect the stacks of ranks from all nodes at once. Ranks of nodes that do not answer get a reason instead.

    Args:
        context: The pool.
        run: Run whose ranks to inspect, including idle ranks that could work for it; "" for all ranks.
        ranks: Ranks to inspect. None: all.
        signal: Whether ranks may receive a signal if their stacks cannot be read otherwise.

    Returns:
        The stacks, sorted by rank.
    """
    answers = await asyncio.gather(*(_request_stacks(context, link, ranks, signal=signal) for link in context.links))
    found = sorted((each for answer in answers for each in answer), key=lambda each: (each.rank, each.number))
    view = context.view.runs.get(run)
    tasks = view.tasks.values() if view is not None else ()
    ended = (task for task in tasks if task.outcome is not None and task.outcome.kind != "lost")
    returned = sorted({task.rank for task in ended if task.rank is not None})
    idle: list[RankStack] = []
    if view is not None:
        found, idle = _split_by_run(found, view)
    return Stacks(time.time(), tuple(found), run, tuple(returned), tuple(idle))


def _split_by_run(found: list[RankStack], view: RunView) -> tuple[list[RankStack], list[RankStack]]:
    """Return the processes of a run, and the idle processes that do not belong to it."""
    found = [each for each in found if not view.nodes or each.node in view.nodes]
    if view.kind == "broadcast":
        return found, []
    idle = [each for each in found if view.id not in each.runs and each.at == "idle"]
    return [each for each in found if view.id in each.runs or (not each.threads and each.at != "idle")], idle


async def _request_stacks(
    context: PoolContext, link: Link, ranks: Sequence[int] | None, *, signal: bool
) -> list[RankStack]:
    own_ranks = context.ranks_of(link.node)
    requested_ranks = [rank for rank in own_ranks if ranks is None or rank in ranks]
    if not requested_ranks:
        return []
    if not link.up:
        reason = link.lost_reason or f"node {link.node} is not connected"
    elif "stacks" not in link.welcome.get("knows", ()):
        reason = "the agent of its node is from an older release without stacks. Create a new pool to get them."
    else:
        try:
            answer: StacksAnswer
            request = link.ask({"t": "stacks", "ranks": requested_ranks, "signal": signal})
            answer, _ = await link.wait_while_heard(request, ANSWER_TIMEOUT, SILENCE_TIMEOUT)
            return [_rank_stack(each, link.node) for each in answer["ranks"] if each["rank"] in own_ranks]
        except TimeoutError:
            reason = f"node {link.node} {link.silence_text}"
        except (ConnectionError, WireError) as error:
            reason = str(error)
    return [RankStack(rank, 0, link.node, "silent", why=reason) for rank in requested_ranks]


def _rank_stack(keys: RankStacksKeys, node: int) -> RankStack:
    threads = tuple(
        ThreadStack(each["name"], tuple(starmap(StackFrame, each["frames"])), each["gil"], each.get("child", 0))
        for each in keys.get("threads", ())
    )
    known: dict[str, Any] = {name: value for name, value in keys.items() if name in _OPTIONAL_KEYS}
    return RankStack(keys["rank"], keys["number"], node, keys["at"], tuple(keys["runs"]), threads=threads, **known)


_OPTIONAL_KEYS = ("pid", "how", "why", "answers", "exception")  # keys that are fields of ``RankStack``
MAX_PROFILE_TIME = 600.0  # longest duration of a profile in seconds
PROFILE_MARGIN = 30.0  # seconds to wait for a profile in addition to its duration


async def profile_rank(context: PoolContext, rank: int, seconds: float) -> str:
    """Sample a rank's stacks; see :mod:`skyward_core.views.stack_groups_and_profiles`.

    Args:
        context: The pool.
        rank: Rank to sample.
        seconds: Duration of the profile, 1 to 600.

    Returns:
        The sampled stacks, each with its number of samples.

    Raises:
        UsageError: If the rank does not exist or the duration is out of range.
        PoolError: If the node cannot answer. The message states the reason.
    """
    if not 1 <= seconds <= MAX_PROFILE_TIME:
        raise UsageError(f"A profile takes 1 to {MAX_PROFILE_TIME:g} seconds, not {seconds:g}.")
    request = {"t": "profile", "rank": rank, "seconds": seconds}
    answer: AgentKnown
    answer, data = await _ask_about(context, rank, request, seconds + PROFILE_MARGIN, "profiles")
    if reason := answer.get("error"):
        raise PoolError(f"Cannot profile rank {rank}: {sanitize_line(reason)}")
    return data.decode(errors="replace")


DEBUGGER_TIMEOUT = 15.0  # seconds to wait for a debugger's output; a node normally answers within one second


async def send_to_debugger(
    context: PoolContext, rank: int, who: str, *, text: str = "", eof: bool = False
) -> tuple[bytes, bool]:
    """Send input to a rank's debugger, and return its new output.

    Args:
        context: The pool.
        rank: Rank whose debugger to use.
        who: Unique id of this debugger session.
        text: Input to send.
        eof: Whether the input ends.

    Returns:
        The output, and whether the debugger has ended.

    Raises:
        UsageError: If the rank does not exist.
        PoolError: If the node cannot be reached, or the rank is not at a breakpoint.
    """
    asked: dict[str, Any] = {"t": "debug", "rank": rank, "who": who}
    asked |= ({"text": text} if text else {}) | ({"eof": True} if eof else {})
    answer: DebugAnswer
    answer, data = await _ask_about(context, rank, asked, DEBUGGER_TIMEOUT, "debugging")
    if reason := answer.get("error"):
        raise PoolError(sanitize_line(reason))
    return data, answer["over"]


async def _ask_about(
    context: PoolContext, rank: int, request: Mapping[str, Any], patience: float, feature: str
) -> tuple[AnyHeader, bytes]:
    """Send a request about a rank to its node.

    Args:
        context: The pool.
        rank: The rank.
        request: Request frame. Its type is also the name of the feature that the agent must support.
        patience: Seconds to wait for the answer.
        feature: Name of the feature in error messages.

    Returns:
        The answer's header and body.

    Raises:
        UsageError: If the rank does not exist.
        PoolError: If the node cannot be reached.
    """
    if not 0 <= rank < context.view.world_size:
        raise UsageError(f"Pool {context.name} has no rank {rank}: its ranks are 0 to {context.view.world_size - 1}.")
    link = context.link_of(rank)
    if not link.up:
        raise PoolError(f"Cannot inspect rank {rank}: node {link.node} is not connected")
    if request["t"] not in link.welcome.get("knows", ()):
        raise PoolError(f"Node {link.node} runs an agent of an older release without {feature}. Create a new pool.")
    try:
        async with asyncio.timeout(patience):
            return await link.ask(request)
    except TimeoutError as error:
        raise PoolError(f"Node {link.node} {link.silence_text}") from error
    except (ConnectionError, WireError) as error:
        raise PoolError(f"Cannot inspect rank {rank} on node {link.node}: {error}") from error


NOTIFY_INTERVAL = 5.0  # seconds between notices that a rank is still paused
# Seconds for which a node suspends timeouts after a notice, because this client may exit without withdrawing it.
PAUSE_VALIDITY = 20.0


class PauseNotifier:
    """Notices to a pool's nodes that a rank is paused, for example in a debugger, so that timeouts are suspended."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context
        self._is_notifying = False

    def on_phase(self) -> None:
        """Start to notify the nodes if a rank is paused. Called when the phase of a rank has changed."""
        if not self._is_notifying and self._is_paused():
            self._is_notifying = True
            self._context.background.spawn(self._notify())

    def _is_paused(self) -> bool:
        return self._context.view.activity.is_paused

    async def _notify(self) -> None:
        try:
            while self._is_paused():
                self._send(PAUSE_VALIDITY)
                until = asyncio.get_running_loop().time() + NOTIFY_INTERVAL
                while self._is_paused() and asyncio.get_running_loop().time() < until:
                    await asyncio.sleep(0.1)
            # Withdraw the notice at the end of the pause only, not if this task is cancelled because the client leaves:
            # the rank is still paused then, and other clients continue to send notices.
            self._send(0.0)
        finally:
            self._is_notifying = False

    def _send(self, seconds: float) -> None:
        for link in self._context.links:
            if link.up and "still" in link.welcome.get("knows", ()):
                link.send({"t": "still", "seconds": seconds})
