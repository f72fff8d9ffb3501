"""Questions to the user of a session whether to trust an unknown host key.

Pools and providers are layers between a session and a connection, and should not handle prompts. A session therefore
stores its :class:`HostKeyPrompt` in the context in which it starts work (:meth:`HostKeyPrompt.set_current`). Tasks of
the background loop inherit this context, so a reconnection asks the session that made the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from skyward_core.transport.background_loop import set_for_tasks

if TYPE_CHECKING:
    from skyward_core.transport.ssh.known_hosts import ServerKey

    Ask = Callable[[ServerKey], Awaitable[bool]]

_current: ContextVar[HostKeyPrompt | None] = ContextVar("skyward_questions", default=None)


def current_prompt() -> HostKeyPrompt | None:
    """Return the current context's prompt for host keys; None in scripts, which cannot ask the user."""
    return _current.get()


async def confirm(key: ServerKey) -> bool:
    """Ask the user of the current session whether to trust a host key. Return False without a session."""
    prompt = current_prompt()
    return prompt is not None and await prompt.confirm(key)


class HostKeyPrompt:
    """Host key questions of one session.

    :meth:`confirm` and :meth:`close` run on the background loop; other methods run on any thread.
    """

    def __init__(self) -> None:
        self._handler: Ask | None = None
        self._is_closed = False
        self._pending: set[asyncio.Future[bool]] = set()

    def set_handler(self, ask: Ask) -> None:
        """Set the function that asks the user. It is cancelled if its answer is no longer needed."""
        self._handler = ask

    def set_current(self) -> AbstractContextManager[None]:
        """Make this prompt the current one for the code of a block."""
        return set_for_tasks(_current, self)

    async def confirm(self, key: ServerKey) -> bool:
        """Ask the user whether to trust a host key. Return False without a handler, and after the session has ended."""
        if self._handler is None or self._is_closed:
            return False
        answer = asyncio.ensure_future(self._handler(key))
        self._pending.add(answer)
        try:
            await asyncio.wait({answer})
            return not answer.cancelled() and answer.result()
        finally:
            self._pending.discard(answer)
            if answer.cancel():
                # Wait until the cancelled handler has removed its question from the screen.
                await asyncio.wait({answer})

    def close(self) -> None:
        """Answer all open and future questions with False."""
        self._is_closed = True
        for answer in self._pending:
            answer.cancel()
