"""Where a rank of a pool spends its time, as its node tells."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..model.errors import PoolError, UsageError
from ..wire.frames import WireError
from ..wire.safe_text import field
from .context import PoolContext

if TYPE_CHECKING:
    from ..wire.agent_frame_types import AgentKnown

LONGEST = 600.0  # seconds
MORE = 30.0  # seconds beside those that a node may take


async def profile(context: PoolContext, rank: int, seconds: float) -> str:
    """Stacks and how often each was seen; see :mod:`...views.profile`.

    Raises:
        UsageError: there is no such rank, or that is no time.
        PoolError: the node cannot be asked, or cannot tell; says why.
    """
    if not 0 <= rank < context.view.world_size:
        raise UsageError(
            f"pool {context.name} has ranks 0 to {context.view.world_size - 1}, and no rank {rank}"
        )
    if not 1 <= seconds <= LONGEST:
        raise UsageError(f"a rank is looked at for 1 to {LONGEST:g} seconds, not for {seconds:g}")
    link = context.link_of(rank)
    if not link.up:
        raise PoolError(f"there is no connection to node {link.node}, which rank {rank} is on")
    if "profile" not in link.welcome.get("knows", ()):
        raise PoolError(
            f"node {link.node}'s agent is of an older release, which makes no profiles: start the pool anew for that"
        )
    answer: AgentKnown
    try:
        async with asyncio.timeout(seconds + MORE):
            answer, data = await link.ask({"t": "profile", "rank": rank, "seconds": seconds})
    except TimeoutError as error:
        raise PoolError(f"node {link.node} {link.silence}") from error
    except (ConnectionError, WireError) as error:
        raise PoolError(f"node {link.node} cannot tell: {error}") from error
    if why := answer.get("error"):
        raise PoolError(f"rank {rank} cannot be looked at: {field(why)}")
    return data.decode(errors="replace")
