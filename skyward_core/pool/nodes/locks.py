"""What ranks had, written down beside a pool's logs so that a run can be repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ...model.interpreter import Interpreter
from ...tasks.own_interpreter import own
from ...transport.base import with_scripts
from ..context import PoolContext
from ..links.link import Link
from ..news import News


class Locks:
    """Of the nodes that this client has brought up."""

    def __init__(self, context: PoolContext, news: News) -> None:
        self._context = context
        self._news = news
        self._left: dict[int, tuple[Link, Mapping[str, Any]]] = {}
        self._turn = asyncio.Lock()

    def keep(self, link: Link, config: Mapping[str, Any], installed: Mapping[str, str] | None) -> None:
        """Keep what was installed on a node; None where nobody asked for packages, which is seen to later."""
        if installed is None:
            self._left[link.node] = link, config
        elif installed:
            try:
                self._write(link.node, config, installed, was_installed=True)
            except OSError as error:
                self._complain(error)

    async def keep_the_rest(self) -> None:
        """Keep what ranks have where nothing was installed for them. Nobody waits for it while a pool comes up."""
        async with self._turn:  # who ends the pool meanwhile waits, or does it where that one was cancelled
            left = dict(self._left)
            if left and self._context.runs_here:  # other machines have what their own Python has
                await self._keep_all(left)
            for node, what in left.items():
                if self._left.get(node) is what:
                    del self._left[node]

    async def _keep_all(self, left: Mapping[int, tuple[Link, Mapping[str, Any]]]) -> None:
        link, _ = next(iter(left.values()))  # all nodes of this machine have the same
        try:
            if (installed := await link.transport.installed()) is not None:
                await asyncio.to_thread(self._write_all, left, installed)
        except OSError as error:
            self._complain(error)

    def _write_all(
        self, left: Mapping[int, tuple[Link, Mapping[str, Any]]], installed: Mapping[str, str]
    ) -> None:
        for node, (_, config) in left.items():
            self._write(node, config, installed, was_installed=False)

    def _write(
        self, node: int, config: Mapping[str, Any], installed: Mapping[str, str], *, was_installed: bool
    ) -> None:
        from ...store import kept_locks
        from ...tasks.packages.kept_lock import heading_of, lock_text

        heading = heading_of(self._context.name, _interpreter(config), installed=was_installed)
        image = with_scripts(config["image"], _interpreter(config))
        text = self._news.redactor.text(lock_text(image, installed, heading))
        kept_locks.keep(self._context.archive.folder, node, text)

    def _complain(self, error: OSError) -> None:
        self._news.complain(f"what packages ranks have cannot be written down: {error}")


def _interpreter(config: Mapping[str, Any]) -> Interpreter:
    return Interpreter.from_json(config["interpreter"]) if config["interpreter"] else own()
