"""Quitting while pools are up."""

from __future__ import annotations

from ..words import count
from .ask import ChoiceScreen


class QuitScreen(ChoiceScreen):
    """Returns "keep", "down" or "cancel"."""

    def __init__(self, pools: list[str]) -> None:
        names = ", ".join(pools[:5]) + (" …" if len(pools) > 5 else "")
        text = (
            f"{count(len(pools), 'pool')} still up: {names}.\n\n"
            "Keep running: runs that are on nodes go on, and the app finds the pools again when you open it. "
            "A pool that nobody uses ends itself. Runs that still wait for a node are cancelled, "
            "and sweeps by gangs begin no more of theirs."
        )
        choices = [("keep", "Keep running", False), ("down", "Tear down", True), ("cancel", "Cancel", False)]
        super().__init__("Quit?", text, choices, escape="cancel")
