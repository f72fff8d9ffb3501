"""What a session asks about the inside of ranks and machines."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from ..model.errors import PoolError
from .session_part import SessionPart

if TYPE_CHECKING:
    from ..model.stacks import Stacks
    from ..pool.dashboards import Dashboard
    from ..views.views import PoolView


class Insides(SessionPart):
    """The part of :class:`.session.Session` that does so. To ask keeps no pool alive."""

    def stacks(
        self, pool: str, run: str = "", ranks: Sequence[int] | None = None, *, signal: bool = False
    ) -> Future[Stacks]:
        """Where the ranks of a pool are; see :func:`..pool.stacks.stacks`.

        Raises (through the future):
            PoolError: there is no such pool, or it cannot be reached.
        """

        async def work() -> Stacks:
            from ..pool.stacks import stacks

            return await stacks((await self._seen(pool)).context, run, ranks, signal=signal)

        return self._submit(work())

    def profile(self, pool: str, rank: int, seconds: float) -> Future[str]:
        """Where a rank spends its time, looked at for so long; see :func:`..views.profile.parsed`.

        Raises (through the future):
            UsageError: there is no such rank, or that is no time.
            PoolError: there is no such pool, it cannot be reached, or it cannot tell.
        """

        async def work() -> str:
            from ..pool.profiles import profile

            return await profile((await self._seen(pool)).context, rank, seconds)

        return self._submit(work())

    def debug(
        self, pool: str, rank: int, who: str, *, text: str = "", eof: bool = False
    ) -> Future[tuple[bytes, bool]]:
        """What the debugger of a rank that waits at a breakpoint prints, and whether that is over; see
        :func:`..pool.debugging.debug`.

        Raises (through the future):
            UsageError: there is no such rank.
            PoolError: there is no such pool, it cannot be reached, or the rank waits at no breakpoint.
        """

        async def work() -> tuple[bytes, bool]:
            from ..pool.debugging import debug

            return await debug((await self._seen(pool)).context, rank, who, text=text, eof=eof)

        return self._submit(work())

    def dashboards(self, pool: str) -> Future[list[Dashboard]]:
        """Web pages of a pool's head that answer, such as its plugins' dashboards and a TensorBoard, at addresses here.

        Raises (through the future):
            PoolError: there is no such pool, or its head cannot be reached.
        """

        async def work() -> list[Dashboard]:
            from ..store.kept_dashboards import kept

            found = await self._seen(pool)
            try:
                known = kept(found.row.key)
            except (OSError, ValueError, TypeError) as error:
                raise PoolError(f"where the pages of pool {pool} are cannot be read: {error}") from error
            return await found.dashboards.that_answer(known)

        return self._submit(work())

    def measure(self, pool: str) -> Future[PoolView]:
        """Have a pool's machines measured from now on, into its view; resolves when each node has told of itself. It
        keeps no pool alive, and raises as :meth:`stacks`."""

        async def work() -> PoolView:
            found = await self._seen(pool)
            await found.measures.wait()
            return found.view

        return self._submit(work())
