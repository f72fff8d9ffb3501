"""What a session asks about the files that ranks write in their working folder."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from .. import providers
from ..model.capabilities import RunsHere
from ..model.errors import SkywardError
from ..model.written_file import Unfetched
from .session_part import SessionPart

if TYPE_CHECKING:
    from ..pool.outputs.fetching import Progress
    from ..pool.outputs.listing import Listing
    from ..pool.outputs.outputs import Haul
    from ..store.ledger_rows import PoolRow


class OutputFiles(SessionPart):
    """The part of :class:`.session.Session` that does so."""

    def files(
        self, pool: str, run: str | None = None, patterns: Sequence[str] = (), *, whole: bool = False
    ) -> Future[Listing]:
        """The files that ranks wrote in their working folder: of a run, or of all of a pool's time. To ask keeps no
        pool alive.

        Args:
            whole: whether nodes are asked again for what does not go into one answer; a screen holds no more than that.

        Raises (through the future):
            UsageError: a pattern leads out of the working folder.
            PoolError: there is no such pool, or it cannot be reached.
        """

        async def work() -> Listing:
            return await (await self._seen(pool)).outputs.files(patterns, run, whole=whole)

        return self._submit(work())

    def fetch_files(
        self,
        pool: str,
        run: str | None = None,
        patterns: Sequence[str] = (),
        to: Path | None = None,
        progress: Progress | None = None,
    ) -> Future[Haul]:
        """Bring such files here; see :meth:`skyward_core.Compute.fetch`.

        Args:
            progress: told, on the session's thread, how many bytes have come, and of how many.

        Raises (through the future):
            UsageError: a pattern leads out of the working folder.
            PoolError: there is no such pool, or no node of it can be asked.
        """

        async def work() -> Haul:
            return await (await self._ours(pool)).outputs.fetch(patterns, to, run, progress)

        return self._submit(work())

    @staticmethod
    def works_here(pool: PoolRow) -> bool:
        """Whether the ranks of a pool work, or worked, in this machine's own folders: what they write is here."""
        try:
            return isinstance(providers.from_json(pool.provider), RunsHere)
        except SkywardError:  # of a package that is not installed any more
            return False

    def unfetched_files(self, pool: str) -> Future[Unfetched]:
        """The files of its ranks that nobody has fetched, and what a teardown would make of them. To ask keeps no pool
        alive; raises as :meth:`look`."""

        async def work() -> Unfetched:
            return await (await self._seen(pool)).outputs.unfetched()

        return self._submit(work())
