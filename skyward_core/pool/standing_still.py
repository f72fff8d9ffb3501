"""While a rank stands still at a breakpoint, the other nodes are told: their ranks wait for it, their limits too."""

from __future__ import annotations

import asyncio

from .background import Background
from .context import PoolContext

AGAIN = 5.0  # seconds after which it is said again
LASTS = 20.0  # for which a node believes it: this client may die


class StandingStill:
    """Tells the nodes of one pool, as long as this client has a connection to them."""

    def __init__(self, context: PoolContext, background: Background) -> None:
        self._context, self._background = context, background
        self._telling = False

    def look(self) -> None:
        """A rank has come to another phase."""
        if not self._telling and self._still():
            self._telling = True
            self._background.spawn(self._tell())

    def _still(self) -> bool:
        return self._context.view.rhythms.stands

    async def _tell(self) -> None:
        try:
            while self._still():
                self._send(LASTS)
                until = asyncio.get_running_loop().time() + AGAIN
                while self._still() and asyncio.get_running_loop().time() < until:
                    await asyncio.sleep(0.1)
            self._send(0.0)  # not where we leave: others go on to say it
        finally:
            self._telling = False

    def _send(self, seconds: float) -> None:
        for link in self._context.links:
            if link.up and "still" in link.welcome.get("knows", ()):
                link.send({"t": "still", "seconds": seconds})
