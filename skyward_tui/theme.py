"""How states look: a glyph and a word for each, never colour alone; and the app's colours."""

from __future__ import annotations

from typing import NamedTuple

from textual.color import Color
from textual.theme import Theme


class Look(NamedTuple):
    """``style`` is a Textual content style such as ``$success``."""

    glyph: str
    word: str
    style: str

    @property
    def text(self) -> str:
        return f"{self.glyph} {self.word}"


_UNKNOWN = Look("?", "unknown", "$muted")

_LOOKS = {
    # pools
    "starting": Look("◌", "starting", "$text-warning"),
    "up": Look("●", "up", "$text-success"),
    "degraded": Look("!", "degraded", "$text-warning"),
    "stopping": Look("◍", "stopping", "$text-warning"),
    "gone": Look("○", "gone", "$muted"),
    "unreachable": Look("!", "unreachable", "$text-error"),
    # what accounts hold
    "expired": Look("◍", "expired", "$text-warning"),
    "left": Look("✗", "left", "$text-error"),
    # runs
    "done": Look("✓", "done", "$text-success"),
    "failed": Look("✗", "failed", "$text-error"),
    "cancelled": Look("⊘", "cancelled", "$muted"),
    "kept": Look("◍", "kept", "$text-warning"),
    # ranks
    "waiting": Look("◌", "waiting", "$muted"),
    "importing": Look("◔", "importing", "$text-warning"),
    "joining": Look("◑", "joining", "$text-warning"),
    "running": Look("●", "running", "$text-primary"),
    "paused": Look("◍", "paused", "$text-warning"),
    "returned": Look("✓", "returned", "$text-success"),
    "raised": Look("✗", "raised", "$text-error"),
    "exited": Look("✗", "exited", "$text-error"),
    "lost": Look("!", "lost", "$text-warning"),
    "collateral": Look("⊘", "collateral", "$muted"),
    "idle": Look("·", "idle", "$muted"),
    # alerts
    "nan": Look("✗", "NaN", "$text-error"),
    "stall": Look("◌", "stall", "$text-error"),
    "memory": Look("!", "memory", "$text-error"),
    "throttled": Look("!", "throttled", "$text-warning"),
    "straggler": Look("!", "straggler", "$text-warning"),
    "plateau": Look("=", "plateau", "$text-warning"),
    # nodes' phases
    "requested": Look("◌", "requested", "$text-warning"),
    "connected": Look("◔", "connected", "$text-warning"),
    "synced": Look("◑", "synced", "$text-warning"),
    "installed": Look("◕", "installed", "$text-warning"),
    "ready": Look("●", "ready", "$text-success"),
}


def look(state: str) -> Look:
    """How a state of a pool, run, rank or node shows."""
    return _LOOKS.get(state) or _UNKNOWN._replace(word=state or "unknown")


def node_look(phase: str) -> Look:
    """How a node's phase shows; its "running" means that the machine is on, not that it is ready."""
    return Look("◔", "running", "$text-warning") if phase == "running" else look(phase)


def muted(theme: Theme) -> str:
    """The colour of what matters less, in a theme that does not name one: a plain colour, since neither another
    variable nor a percentage is understood everywhere."""
    if theme.ansi:
        return "ansi_bright_black"
    colors = theme.to_color_system().generate()
    return Color.parse(colors["background"]).blend(Color.parse(colors["foreground"]), 0.6, alpha=1.0).hex


SKYWARD = Theme(
    name="skyward",
    primary="#5aa9e6",
    secondary="#8f9fdc",
    accent="#7cc4f8",
    warning="#e9b44c",
    error="#ef6f6c",
    success="#6cc58c",
    foreground="#d6dde6",
    background="#10151c",
    surface="#151b24",
    panel="#1d2531",
    dark=True,
    variables={
        "muted": "#7f8b99",
        "border": "#3b4a5e",
        "border-blurred": "#2a3442",
        "block-cursor-background": "#2f4a66",
        "block-cursor-foreground": "#f2f6fa",
        "block-cursor-text-style": "bold",
        "input-selection-background": "#5aa9e6 35%",
    },
)
