"""A rank of a pool that waits at a breakpoint, as somebody debugs it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..model.errors import PoolError, UsageError
from ..wire.frames import WireError
from ..wire.safe_text import field
from .context import PoolContext

if TYPE_CHECKING:
    from ..wire.agent_frame_types import DebugAnswer

PATIENCE = 15.0  # seconds for a node's answer, which comes within one


async def debug(
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
    if not 0 <= rank < context.view.world_size:
        raise UsageError(
            f"pool {context.name} has ranks 0 to {context.view.world_size - 1}, and no rank {rank}"
        )
    link = context.link_of(rank)
    if not link.up:
        raise PoolError(f"there is no connection to node {link.node}, which rank {rank} is on")
    if "debug" not in link.welcome.get("knows", ()):
        raise PoolError(
            f"node {link.node}'s agent is of an older release, which debugs nothing: start the pool anew for that"
        )
    asked: dict[str, Any] = {"t": "debug", "rank": rank, "who": who}
    asked |= ({"text": text} if text else {}) | ({"eof": True} if eof else {})
    answer: DebugAnswer
    try:
        async with asyncio.timeout(PATIENCE):
            answer, data = await link.ask(asked)
    except TimeoutError as error:
        raise PoolError(f"node {link.node} {link.silence}") from error
    except (ConnectionError, WireError) as error:
        raise PoolError(f"node {link.node} cannot tell: {error}") from error
    if why := answer.get("error"):
        raise PoolError(field(why))
    return data, answer["over"]
