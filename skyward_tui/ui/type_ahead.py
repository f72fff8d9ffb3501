"""Keys typed before a screen is ready.

Textual hands a key to what has the focus as it comes. The one before may be on its way still: tab goes from its field
up to the app, the press of a button goes from it up to the dialog, which then closes. Whoever types faster than that
would type into the field, or press keys of the dialog, that they have left.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from textual import on
from textual.await_complete import AwaitComplete
from textual.command import CommandPalette
from textual.screen import Screen
from textual.widgets import OptionList

if TYPE_CHECKING:
    from textual.app import App
    from textual.dom import DOMNode
    from textual.events import Event
    from textual.message_pump import MessagePump

    from skyward_tui.app import SkywardApp


RECENT_SECONDS = 0.5  # for which what a key does may still be under way
PATIENCE = 1.0  # for messages to be handled; what hangs holds no key up for longer
OPENING_PATIENCE = 5.0  # for a screen to be there


class KeyQueue:
    """Hands keys on, each once the one before has done what it does.

    Args:
        hear: what is done with a key, on the app's own task.
    """

    def __init__(self, app: App[Any], hear: Callable[[Event], Awaitable[None]]) -> None:
        self._app = app
        self._handle_event = hear
        self._queue: deque[Event] = deque()
        self._task: asyncio.Task[None] | None = None
        self._handled_at = float("-inf")
        self._target: DOMNode | None = None  # what the last key went to
        self._screen: Screen[Any] | None = None  # that was in front of it

    async def enqueue(self, event: Event) -> None:
        """Hand it on, at once where nothing is under way."""
        if self._task is None and time.monotonic() - self._handled_at > RECENT_SECONDS:
            return await self._dispatch(event)
        self._queue.append(event)
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
        return None

    async def _dispatch(self, event: Event) -> None:
        if not self._app.screen_stack:  # the app ends
            return
        self._screen = self._app.screen
        self._target = self._app.focused or self._screen
        await self._handle_event(event)
        self._handled_at = time.monotonic()

    async def _drain(self) -> None:
        try:
            while self._queue:
                await self._wait_until_handled()
                if not await self._flush(self._app, self._dispatch_next):
                    self._queue.clear()  # the app ends
        finally:
            self._task = None

    async def _dispatch_next(self) -> None:
        await self._dispatch(self._queue.popleft())

    async def _wait_until_handled(self) -> None:
        """Wait until all that has come of the last key is done."""
        if self._target is None:
            return
        way: list[MessagePump] = [*self._target.ancestors_with_self]
        if self._app not in way:  # it is gone from its screen
            way.append(self._app)
        try:
            async with asyncio.timeout(PATIENCE):
                # Up to the app, which does what the key means, and up again with what that has set off.
                for pump in (*way, *way):
                    await self._flush(pump)
                    await self._flush(pump)  # what it has told itself
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
        """Wait until it has handled what it has been sent so far, and have it do something then; False where it
        handles nothing any more."""
        done = asyncio.Event()

        async def act_then_tell() -> None:
            try:
                if act is not None:
                    await act()
            finally:
                done.set()

        if there := pump.call_later(act_then_tell):
            await done.wait()
        return there


Result = TypeVar("Result")


class DismissOnceScreen(Screen[Result]):
    """What all screens and dialogs of the app are. Of several bases it is the last: the first one gives styles."""

    app: SkywardApp

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Go, with a result, unless that has been done, or something lies over it."""
        return super().dismiss(result) if self.is_active else AwaitComplete()

    def leave(self) -> None:
        """Go without a result, on the same terms."""
        if self.is_active:
            self.app.pop_screen()


class Palette(CommandPalette, DismissOnceScreen[None]):
    """Textual's, which does a thing once."""

    @on(OptionList.OptionSelected)
    def _ignore_repeat(self, event: OptionList.OptionSelected) -> None:
        if not self.is_active:
            event.prevent_default()
