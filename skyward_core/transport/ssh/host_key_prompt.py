"""Whoever is asked about the key of a host that no file knows: each session has somebody of its own, or nobody.

Between a session and a connection lie pools and providers, which have no business with that. So a session puts its
:class:`HostKeyPrompt` into the context in which it starts work (:meth:`HostKeyPrompt.asked`). The loop takes the
context of the thread that hands it work, and whatever tasks come of that inherit it: a new connection in place of a
lost one asks the same session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skyward_core.transport.ssh.known_hosts import ServerKey

    Ask = Callable[[ServerKey], Awaitable[bool]]

_current: ContextVar[HostKeyPrompt | None] = ContextVar("skyward_questions", default=None)


def current_prompt() -> HostKeyPrompt | None:
    """Who is asked about what goes on here; None in a script, where nobody is."""
    return _current.get()


async def confirm(key: ServerKey) -> bool:
    """Whether somebody says that a host's key is to be believed; "no" where there is nobody to ask."""
    asked = current_prompt()
    return asked is not None and await asked.confirm(key)


class HostKeyPrompt:
    """The questions of one session.

    Its coroutine and :meth:`end` run on the thread of the pools, all else on any.
    """

    def __init__(self) -> None:
        self._handler: Ask | None = None
        self._is_closed = False
        self._pending: set[asyncio.Future[bool]] = set()

    def set_handler(self, ask: Ask) -> None:
        """Have this answer from now on; it is cancelled where nobody wants to know any more."""
        self._handler = ask

    @contextmanager
    def set_current(self) -> Iterator[None]:
        """What is begun inside of it asks here."""
        before = _current.set(self)
        try:
            yield
        finally:
            _current.reset(before)

    async def confirm(self, key: ServerKey) -> bool:
        """Whether a host's key is to be believed; "no" while nobody answers, and once the session is over."""
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
                await asyncio.wait({answer})  # whoever was asked knows that it is withdrawn before we go on

    def close(self) -> None:
        """Answer "no" to what is open, and to all that comes."""
        self._is_closed = True
        for answer in self._pending:
            answer.cancel()
