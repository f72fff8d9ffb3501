"""Script for the launch form, and the text of its plan."""

from __future__ import annotations

from textual.widgets import Static

from skyward_tui.screens.launch import LaunchScreen

SCRIPT = '''
"""A script."""
import skyward_core as sky

@sky.function
def train(epochs: int, lr: float = 0.1) -> float:
    """Train."""
    return lr

@sky.function
def evaluate(note: str = "x"):
    yield note
'''

GROUPS = """
[hosts]
lab = ["gpu1", "gpu2", "me@gpu3:2222"]
empty = []
"""


def plan_text(screen: LaunchScreen) -> str:
    return screen.query_one("#why", Static).visual.plain  # type: ignore[attr-defined,no-any-return]
