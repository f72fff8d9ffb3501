"""Unknown host keys: from the thread of the pools, which waits, to the person, who is asked one at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from textual.message import Message

if TYPE_CHECKING:
    from skyward_core.client.session_interface import ServerKey, SessionInterface

Identity = tuple[str, str, str]


class KeyDialog(Protocol):
    """A question as the person sees it; ``host_key_and_secret.HostKeyScreen`` tells more."""

    more: int

    def withdraw(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Question:
    """A key that somebody has to judge; ``waiting``: how many connections wait for the answer."""

    key: ServerKey
    answer: Future[bool] = field(default_factory=Future)
    waiting: int = 0


class HostKeyQuestions:
    """Asks the person in front of the app about host keys that no file knows.

    :meth:`ask` is what the core asks, and runs on the thread of the pools; everything else belongs to the app's
    thread. What stands between them is a lock, a future per question, and a message to the app.

    Args:
        post: sends the app a message, from any thread.
        put: puts a key before the person; the function that it is given hears the answer, or None.
    """

    class QuestionsChanged(Message):
        """Questions came or went; posted to the app, which calls :meth:`show`."""

    def __init__(
        self,
        post: Callable[[Message], object],
        put: Callable[[ServerKey, Callable[[bool | None], None]], KeyDialog],
    ) -> None:
        self._post = post
        self._show_dialog = put
        self._lock = threading.Lock()
        self._open: dict[Identity, _Question] = {}
        self._refused: set[Identity] = set()
        self._closed = False
        self._pause_count = 0
        self._open_dialog: tuple[_Question, KeyDialog] | None = None

    def attach(self, front: SessionInterface) -> None:
        """Answer for its pools from now on. A pool that is launched is a new occasion: what was refused before it is
        asked again."""
        with self._lock:
            self._refused.clear()
        front.on_host_key(self.ask)

    async def ask(self, key: ServerKey) -> bool:
        """Whether a key is to be believed; waits for the person.

        A refusal holds until the next launch, so that neither the teardown that follows it nor the watch over
        other people's pools asks again. Once the app ends, everything is refused.
        """
        identity = (str(key.file), key.pattern, key.fingerprint)
        with self._lock:
            if self._closed or identity in self._refused:
                return False
            question = self._open.get(identity)
            if question is None:
                question = self._open[identity] = _Question(key)
                self._post(self.QuestionsChanged())
            question.waiting += 1
        try:
            return await asyncio.shield(asyncio.wrap_future(question.answer))
        finally:
            with self._lock:
                question.waiting -= 1
                if not question.waiting and not question.answer.done():
                    # The pool was torn down, or another of its hosts failed: nobody wants to know any more.
                    self._open.pop(identity)
                    question.answer.cancel()
                    if not self._closed:
                        self._post(self.QuestionsChanged())

    def update_dialog(self) -> None:
        """Bring the screen up to date: withdraw a dialog nobody waits for, ask what is to be asked next."""
        with self._lock:
            waiting = [] if self._closed or self._pause_count else list(self._open.items())
        if self._open_dialog is not None:
            question, screen = self._open_dialog
            if question.answer.done():
                screen.withdraw()
            screen.more = sum(other is not question for _, other in waiting)
            return
        if not waiting:
            return
        identity, question = waiting[0]

        def judged(accepted: bool | None) -> None:
            self._open_dialog = None
            self._answer(identity, question, accepted is True)
            self._post(self.QuestionsChanged())  # and not at once: this dialog still lies on the stack

        screen = self._show_dialog(question.key, judged)
        screen.more = len(waiting) - 1
        self._open_dialog = question, screen

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While screens change places no dialog comes up between them."""
        self._pause_count += 1
        try:
            yield
        finally:
            self._pause_count -= 1
            self._post(self.QuestionsChanged())

    def _answer(self, identity: Identity, question: _Question, accepted: bool) -> None:
        with self._lock:
            if not question.answer.done():
                del self._open[identity]
                if not accepted:
                    self._refused.add(identity)
                question.answer.set_result(accepted)

    def close(self) -> bool:
        """Refuse what is open and what may still come; returns whether anything was open."""
        with self._lock:
            self._closed = True
            left = list(self._open.values())
            self._open.clear()
            for question in left:
                question.answer.set_result(False)
        return bool(left)
