"""Questions of pools that the app asks the user: about unknown host keys, and about spent budgets."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from textual.message import Message

from skyward_tui.dialogs.basic_dialogs import ChoiceScreen
from skyward_tui.text.number_time_and_run_state_format import hourly, money

if TYPE_CHECKING:
    from skyward_core.client.session import Session
    from skyward_core.client.session_interface import ServerKey
    from skyward_core.views.pool_view import PoolView
    from skyward_tui.app import SkywardApp
    from skyward_tui.dialogs.host_key_and_secret_variables import HostKeyScreen

Identity = tuple[str, str, str]


@dataclass(slots=True, eq=False)
class _Question:
    """Question about an unknown host key; ``waiting`` is the number of connections that wait for the answer."""

    key: ServerKey
    answer: Future[bool] = field(default_factory=Future)
    waiting: int = 0


class HostKeyQuestions:
    """Questions to the user about unknown host keys.

    The core calls :meth:`ask` on the pools' thread. All other methods run on the app's thread. The two threads
    communicate by a lock, a future per question, and a message to the app.

    Args:
        app: The app.
    """

    class QuestionsChanged(Message):
        """Message that questions were added or removed; handled by :meth:`update_dialog`."""

    def __init__(self, app: SkywardApp) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._open: dict[Identity, _Question] = {}
        self._refused: set[Identity] = set()
        self._closed = False
        self._pause_count = 0
        self._open_dialog: tuple[_Question, HostKeyScreen] | None = None

    def attach(self, front: Session) -> None:
        """Make this object answer a session's questions about host keys. Earlier rejections no longer apply, so that a
        new launch asks again.
        """
        with self._lock:
            self._refused.clear()
        front.on_host_key(self.ask)

    async def ask(self, key: ServerKey) -> bool:
        """Wait for the user's decision on a key, and return whether the key is trusted.

        A rejection applies until the next launch: neither the following teardown nor the polling of other pools asks
        again. Once the app is exiting, all keys are rejected.
        """
        identity = (str(key.file), key.pattern, key.fingerprint)
        with self._lock:
            if self._closed or identity in self._refused:
                return False
            question = self._open.get(identity)
            if question is None:
                question = self._open[identity] = _Question(key)
                self._app.post_message(self.QuestionsChanged())
            question.waiting += 1
        try:
            return await asyncio.shield(asyncio.wrap_future(question.answer))
        finally:
            with self._lock:
                question.waiting -= 1
                if not question.waiting and not question.answer.done():
                    # No connection waits for this answer any more, because the pool was torn down or another of its
                    # hosts failed.
                    self._open.pop(identity)
                    question.answer.cancel()
                    if not self._closed:
                        self._app.post_message(self.QuestionsChanged())

    def update_dialog(self) -> None:
        """Close a dialog whose question is obsolete, or open one for the next question."""
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
            # Open the next dialog by a message, after Textual has removed this dialog from the screen stack.
            self._app.post_message(self.QuestionsChanged())

        screen = self._app.ask_about_host_key(question.key, judged)
        screen.more = len(waiting) - 1
        self._open_dialog = question, screen

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Open no dialog during the ``with`` block, because the block closes and opens screens."""
        self._pause_count += 1
        try:
            yield
        finally:
            self._pause_count -= 1
            self._app.post_message(self.QuestionsChanged())

    def _answer(self, identity: Identity, question: _Question, accepted: bool) -> None:
        with self._lock:
            if not question.answer.done():
                del self._open[identity]
                if not accepted:
                    self._refused.add(identity)
                question.answer.set_result(accepted)

    def close(self) -> bool:
        """Reject all open and future questions. Return whether any question was open."""
        with self._lock:
            self._closed = True
            questions = list(self._open.values())
            self._open.clear()
            for question in questions:
                question.answer.set_result(False)
        return bool(questions)


BUDGET_FACTORS = {"some": 1.5, "much": 3.0}  # offered new budgets, as multiples of the present budget


class BudgetScreen(ChoiceScreen):
    """Dialog about a spent budget. Returns a key of ``BUDGET_FACTORS``, "down", or "later".

    Attributes:
        pool: The pool.
        budgets: Offered budgets in dollars, by key of ``BUDGET_FACTORS``.
    """

    def __init__(self, pool: PoolView, now: float) -> None:
        budget = pool.budget or 0.0
        ends = time.strftime("%H:%M:%S", time.localtime(pool.budget_ends_at or now))
        text = (
            f"Pool {pool.name} has cost {money(pool.spent(now))} of its budget of {money(budget)}, and costs "
            f"{hourly(pool)}.\n"
            f"Without an answer, the pool is torn down at {ends}."
        )
        self.pool = pool
        self.budgets = {name: budget * times for name, times in BUDGET_FACTORS.items()}
        more = [(name, f"Allow {money(dollars)}", False) for name, dollars in self.budgets.items()]
        choices = [("later", "Not now", False), *more, ("down", "Tear down", True)]
        super().__init__("Budget spent", text, choices, escape="later")


class BudgetQuestions:
    """Questions to the user about pools that have spent their budget, one pool at a time.

    If another client answers a question, its dialog closes.

    Args:
        app: The app.
    """

    def __init__(self, app: SkywardApp) -> None:
        self._app = app
        # by pool: deadline of the last budget question that the user was asked
        self._asked_deadlines: dict[str, float | None] = {}
        self._open: BudgetScreen | None = None

    def update(self, pools: Iterable[PoolView]) -> None:
        """Open a dialog if a pool waits for a decision about its budget, and close the dialog if the pool no longer
        waits.
        """
        waiting = [pool for pool in pools if pool.budget_state == "asked" and pool.is_live]
        if self._open is not None:
            # An obsolete dialog closes only while no other dialog covers it; otherwise a later update closes it.
            if self._open.pool not in waiting and self._open.is_active:
                self._open.dismiss("later")
            return
        for pool in waiting:
            if self._asked_deadlines.get(pool.key, 0.0) != pool.budget_ends_at:
                self._asked_deadlines[pool.key] = pool.budget_ends_at
                self._ask(pool)
                return

    def _ask(self, pool: PoolView) -> None:
        def answered(answer: str | None) -> None:
            self._open = None
            if answer in screen.budgets:
                self._app.apply_budget(pool, screen.budgets[answer])
            elif answer == "down":
                self._app.apply_budget(pool, None)

        self._open = screen = BudgetScreen(pool, self._app.clock())
        self._app.push_screen(screen, answered)
