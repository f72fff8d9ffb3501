"""Wait for what must become true."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from textual import events
from textual.pilot import Pilot

PATIENCE = 15.0


async def until(pilot: Pilot[Any], true: Callable[[], bool]) -> None:
    """Let the app run until something holds; a deadline and not a pace."""
    deadline = time.monotonic() + PATIENCE
    await pilot.pause()
    while not true():
        if time.monotonic() > deadline:
            from .conftest import screen_text

            raise AssertionError(f"never came true; the screen was\n{screen_text(pilot.app)}")  # type: ignore[arg-type]
        await asyncio.sleep(0.02)
        await pilot.pause()


async def typed(app: Any, pilot: Pilot[Any], text: str) -> None:
    """Text as a terminal pastes it: one event, where keys would take one each."""
    if text:
        app.post_message(events.Paste(text))
        await pilot.pause()
