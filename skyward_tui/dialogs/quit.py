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
            "Kept running, they go on with the runs that are on their nodes, and end themselves when nobody needs "
            "them any more; open the app again to find them. A run that still waits for a node is cancelled."
        )
        choices = [("keep", "Keep running", False), ("down", "Tear down", True), ("cancel", "Cancel", False)]
        super().__init__("Quit?", text, choices, escape="cancel")
