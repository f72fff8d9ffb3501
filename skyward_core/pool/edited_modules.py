"""Modules of the person's own that ranks have loaded, and that were edited since: the next run uses them as they are.

Agents tell which files their workers have loaded, and each one's hash at that time (``node/worker/loaded_modules.py``).
Before a run begins, each of them is looked at here, where the person edits them; its content is read where its time or
size is new.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from ..model.capabilities import RunsHere
from ..wire.content_name import name_of
from .context import PoolContext
from .links.link import Link
from .news import News

SHOWN = 3  # names of edited modules that are told


class EditedModules:
    """One pool's.

    Args:
        folder: the working folder, here.
        send: brings the working folder's copies on other machines up to date.
        renew: has fresh processes take the ranks' places.
    """

    def __init__(
        self,
        context: PoolContext,
        news: News,
        folder: str,
        send: Callable[[], Awaitable[None]],
        renew: Callable[[], Awaitable[None]],
    ) -> None:
        self._context, self._news, self._send, self._renew = context, news, send, renew
        self._folder = folder
        self._loaded: dict[int, Mapping[str, str]] = {}
        self._watched: dict[str, set[str]] = {}
        self._read: dict[str, tuple[tuple[int, int, int], str]] = {}
        self._seen_to: dict[str, str] = {}
        self._renewing: asyncio.Task[None] | None = None

    def learn(self, link: Link, files: Mapping[str, str]) -> None:
        """All that a node's workers have loaded."""
        self._loaded[link.node] = files
        here = isinstance(self._context.provider, RunsHere)
        self._watched = {}
        for each in self._loaded.values():
            for name, digest in each.items():
                if here or not os.path.isabs(name):  # noqa: PTH117  asked for each run
                    self._watched.setdefault(os.path.join(self._folder, name), set()).add(digest)  # noqa: PTH118

    @property
    def to_renew(self) -> bool:
        """Whether a run has to wait for :meth:`renewed`: some were edited, or are being seen to."""
        return self._renewing is not None or (
            bool(self._watched) and any(map(self._is_edited, self._watched))
        )

    async def renewed(self) -> None:
        """Have ranks load them anew, once for all runs that wait for it.

        Raises:
            OSError: a node cannot be reached now.
            PoolError: the working folder cannot be sent.
        """
        if self._renewing is None:
            self._renewing = asyncio.ensure_future(self._see_to_them())
        await asyncio.shield(self._renewing)

    async def _see_to_them(self) -> None:
        try:
            edited = sorted(path for path in self._watched if self._is_edited(path))
            if not edited:
                return
            names = [os.path.relpath(path, self._folder) for path in edited[:SHOWN]]
            if len(edited) > SHOWN:
                names.append(f"{len(edited) - SHOWN} more")
            verb = "was" if len(edited) == 1 else "were"
            self._news.complain(
                f"{', '.join(names)} {verb} edited: fresh processes take the ranks' places, and load the new text"
            )
            await self._send()
            await self._renew()
            # Should ranks load something else for all that, they would again and again.
            self._seen_to |= {path: self._read[path][1] for path in edited}
            self._loaded.clear()
            self._watched = {}
        finally:
            self._renewing = None

    def _is_edited(self, path: str) -> bool:
        try:
            found = os.stat(path)
            seen = found.st_mtime_ns, found.st_size, found.st_ino
            if (known := self._read.get(path)) is None or known[0] != seen:
                known = self._read[path] = seen, name_of(Path(path).read_bytes())
        except OSError:
            return False  # it is gone, or just being replaced; or it is another machine's
        return self._watched[path] != {known[1]} and self._seen_to.get(path) != known[1]
