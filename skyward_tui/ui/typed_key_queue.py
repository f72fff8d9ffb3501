"""Queue for keys that are typed faster than the app handles them.

Textual sends a key to the focused widget immediately, even if the previous key is about to move the focus or to close a
dialog. Fast typing would reach the wrong field or dialog. This queue sends a key only after the previous key has been
handled. ``DismissOnceScreen`` protects screens against repeated keys.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from textual import events

if TYPE_CHECKING:
    from textual.app import App
    from textual.dom import DOMNode
    from textual.events import Event
    from textual.message_pump import MessagePump
    from textual.screen import Screen


RECENT_SECONDS = 0.5  # seconds after a key press during which the key may still have effects
# seconds; longest wait until the effects of a key are handled, so that a hanging handler does not block all later keys
PATIENCE = 1.0
OPENING_PATIENCE = 5.0  # seconds; longest wait until a new screen can receive keys


class KeyQueue:
    """Queue that dispatches each key after the previous key has taken effect.

    Args:
        handle_event: Coroutine function that handles a key, called in the app's own task.
    """

    def __init__(self, app: App[Any], handle_event: Callable[[Event], Awaitable[None]]) -> None:
        self._app = app
        self._handle_event = handle_event
        self._queue: deque[Event] = deque()
        self._task: asyncio.Task[None] | None = None
        self._handled_at = float("-inf")
        self._target: DOMNode | None = None  # widget that received the last key
        self._screen: Screen[Any] | None = None  # screen that was active when the last key was sent

    async def enqueue(self, event: Event) -> None:
        """Dispatch a key as soon as earlier keys have been handled; immediately if there are none."""
        if self._task is None and time.monotonic() - self._handled_at > RECENT_SECONDS:
            return await self._dispatch(event)
        self._queue.append(event)
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
        return None

    async def _dispatch(self, event: Event) -> None:
        if not self._app.screen_stack:  # the app is exiting, so keys have no target
            return
        self._screen = self._app.screen
        self._target = self._app.focused or self._screen
        await self._handle_event(event)
        self._handled_at = time.monotonic()

    async def _drain(self) -> None:
        try:
            while self._queue:
                await self._wait_until_handled()
                if not await self._flush(self._app, lambda: self._dispatch(self._queue.popleft())):
                    self._queue.clear()  # the app is exiting, so the remaining keys are dropped
        finally:
            self._task = None

    async def _wait_until_handled(self) -> None:
        """Wait until the effects of the last key are complete."""
        if self._target is None:
            return
        pumps: list[MessagePump] = [*self._target.ancestors_with_self]
        # the widget is no longer part of a screen, so the list of its ancestors lacks the app
        if self._app not in pumps:
            pumps.append(self._app)
        try:
            async with asyncio.timeout(PATIENCE):
                # During the first pass, the key bubbles up to the app. During the second pass, the messages that the
                # key has caused are handled.
                for pump in (*pumps, *pumps):
                    await self._flush(pump)
                    await self._flush(pump)  # a second time, for messages that the widget has posted to itself
        except TimeoutError:
            return
        if (screen := self._app.screen) is not self._screen:
            try:
                async with asyncio.timeout(OPENING_PATIENCE):
                    await self._flush(screen)
                    await self._flush(screen)
            except TimeoutError:
                return

    async def _flush(self, pump: MessagePump, act: Callable[[], Awaitable[None]] | None = None) -> bool:
        """Wait until a widget has handled all messages in its queue, then run ``act`` in the widget's task. Return
        False if the widget is closed.
        """
        done = asyncio.Event()

        async def act_then_notify() -> None:
            try:
                if act is not None:
                    await act()
            finally:
                done.set()

        # Use a bound method instead of a new function if possible, because Textual inspects the signature of a method
        # only once.
        callback = done.set if act is None else act_then_notify
        if is_open := pump.post_message(events.Callback(callback=callback)):
            await done.wait()
        return is_open
