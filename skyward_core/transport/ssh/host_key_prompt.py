"""Whoever is asked about the key of a host that no file knows: each session has somebody of its own, or nobody.

Between a session and a connection lie pools and providers, which have no business with that. So a session puts its
:class:`Questions` into the context in which it begins anything (:meth:`Questions.asked`). The loop takes the context of
the thread that hands it work, and whatever tasks come of that inherit it: a new connection in place of a lost one asks
the same session.
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

_here: ContextVar[Questions | None] = ContextVar("skyward_questions", default=None)


def whose() -> Questions | None:
    """Who is asked about what goes on here; None in a script, where nobody is."""
    return _here.get()


async def accepted(key: ServerKey) -> bool:
    """Whether somebody says that a host's key is to be believed; "no" where there is nobody to ask."""
    asked = whose()
    return asked is not None and await asked.accepted(key)


class Questions:
    """The questions of one session.

    Its coroutine and :meth:`end` run on the thread of the pools, all else on any.
    """

    def __init__(self) -> None:
        self._ask: Ask | None = None
        self._is_over = False
        self._open: set[asyncio.Future[bool]] = set()

    def answered_by(self, ask: Ask) -> None:
        """Have this answer from now on; it is cancelled where nobody wants to know any more."""
        self._ask = ask

    @contextmanager
    def asked(self) -> Iterator[None]:
        """What is begun inside of it asks here."""
        before = _here.set(self)
        try:
            yield
        finally:
            _here.reset(before)

    async def accepted(self, key: ServerKey) -> bool:
        """Whether a host's key is to be believed; "no" while nobody answers, and once the session is over."""
        if self._ask is None or self._is_over:
            return False
        answer = asyncio.ensure_future(self._ask(key))
        self._open.add(answer)
        try:
            await asyncio.wait({answer})
            return not answer.cancelled() and answer.result()
        finally:
            self._open.discard(answer)
            if answer.cancel():
                await asyncio.wait({answer})  # whoever was asked knows that it is withdrawn before we go on

    def end(self) -> None:
        """Answer "no" to what is open, and to all that comes."""
        self._is_over = True
        for answer in self._open:
            answer.cancel()
