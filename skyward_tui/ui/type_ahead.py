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


RECENT_SECONDS = 0.5  # for which what a key does may still be under way
PATIENCE = 1.0  # for messages to be handled; what hangs holds no key up for longer
OPENING_PATIENCE = 5.0  # for a screen to be there


class TypedAhead:
    """Hands keys on, each once the one before has done what it does.

    Args:
        hear: what is done with a key, on the app's own task.
    """

    def __init__(self, app: App[Any], hear: Callable[[Event], Awaitable[None]]) -> None:
        self._app = app
        self._hear = hear
        self._held: deque[Event] = deque()
        self._going: asyncio.Task[None] | None = None
        self._heard_at = float("-inf")
        self._target: DOMNode | None = None  # what the last key went to
        self._screen: Screen[Any] | None = None  # that was in front of it

    async def take(self, event: Event) -> None:
        """Hand it on, at once where nothing is under way."""
        if self._going is None and time.monotonic() - self._heard_at > RECENT_SECONDS:
            return await self._give(event)
        self._held.append(event)
        if self._going is None:
            self._going = asyncio.create_task(self._go_on())
        return None

    async def _give(self, event: Event) -> None:
        if not self._app.screen_stack:  # the app ends
            return
        self._screen = self._app.screen
        self._target = self._app.focused or self._screen
        await self._hear(event)
        self._heard_at = time.monotonic()

    async def _go_on(self) -> None:
        try:
            while self._held:
                await self._settle()
                if not await self._flushed(self._app, self._give_next):
                    self._held.clear()  # the app ends
        finally:
            self._going = None

    async def _give_next(self) -> None:
        await self._give(self._held.popleft())

    async def _settle(self) -> None:
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
                    await self._flushed(pump)
                    await self._flushed(pump)  # what it has told itself
        except TimeoutError:
            return
        if (screen := self._app.screen) is not self._screen:
            try:
                async with asyncio.timeout(OPENING_PATIENCE):
                    await self._flushed(screen)
                    await self._flushed(screen)
            except TimeoutError:
                return

    async def _flushed(self, pump: MessagePump, act: Callable[[], Awaitable[None]] | None = None) -> bool:
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


class LeftOnce(Screen[Result]):
    """What all screens and dialogs of the app are. Of several bases it is the last: the first one gives styles."""

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Go, with a result, unless that has been done, or something lies over it."""
        return super().dismiss(result) if self.is_active else AwaitComplete()

    def leave(self) -> None:
        """Go without a result, on the same terms."""
        if self.is_active:
            self.app.pop_screen()


class Palette(CommandPalette, LeftOnce[None]):
    """Textual's, which does a thing once."""

    @on(OptionList.OptionSelected)
    def _refuse_more(self, event: OptionList.OptionSelected) -> None:
        if not self.is_active:
            event.prevent_default()
