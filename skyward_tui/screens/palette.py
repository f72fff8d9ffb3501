"""The command palette's entries: the actions of the screen it opens on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from textual.app import SystemCommand

from ..actions import of
from .base import BaseScreen

if TYPE_CHECKING:
    from textual.screen import Screen

    from ..app_face import AppFace


def commands(app: AppFace, screen: Screen[Any]) -> Iterator[SystemCommand]:
    """Every action that the screen would take now, with its keys."""
    scopes = (screen.SCOPE, "app") if isinstance(screen, BaseScreen) else ("app",)
    if app.REPLAYS:
        scopes = ("replay", *scopes)
    for action in of(*scopes):
        if action.call == "app.command_palette":
            continue
        keys = " ".join(action.shown_keys(app.keys))
        call = partial(app.run_action, action.call, screen)
        yield SystemCommand(action.help, f"{keys}   {action.id}", call)
