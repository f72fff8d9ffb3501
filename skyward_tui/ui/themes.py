"""How states look: a glyph and a word for each, never colour alone; and the app's colours."""

from __future__ import annotations

from collections.abc import Mapping
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
    "connecting": Look("◌", "connecting", "$muted"),
    "up": Look("●", "up", "$text-success"),
    "degraded": Look("!", "degraded", "$text-warning"),
    "stopping": Look("◍", "stopping", "$text-warning"),
    "gone": Look("○", "gone", "$muted"),
    "unfinished": Look("!", "start broken off", "$text-error"),
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
    "gpu": Look("✗", "GPU", "$text-error"),
    "nan": Look("✗", "NaN", "$text-error"),
    "stall": Look("◌", "stall", "$text-error"),
    "memory": Look("!", "memory", "$text-error"),
    "throttled": Look("!", "throttled", "$text-warning"),
    "straggler": Look("!", "straggler", "$text-warning"),
    "plateau": Look("=", "plateau", "$text-warning"),
    # GPUs of hosts that people share, and lines of a check-up
    "free": Look("○", "free", "$text-success"),
    "busy": Look("●", "busy", "$text-warning"),
    "ok": Look("✓", "ok", "$text-success"),
    "warn": Look("!", "warning", "$text-warning"),
    "fail": Look("✗", "failed", "$text-error"),
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


# Contrast of text on all that is behind it. 4.5 is what WCAG 2.2 asks for (1.4.3); what matters less stays behind.
LEGIBLE = dict.fromkeys(("text-success", "text-warning", "text-error", "text-primary", "text-accent"), 4.5) | {
    "muted": 4.0
}
_BEHIND = ("background", "surface", "panel")


def contrast(one: Color, other: Color) -> float:
    """How far apart two colours are in brightness, from 1 to 21, by WCAG 2.2."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: Color) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def legible(variables: Mapping[str, str], *, ansi: bool) -> dict[str, str]:
    """A theme's variables, with what states are written in moved away from what is behind it until it can be read:
    towards white or black, whichever is nearer. Not every theme that Textual ships sees to that.

    Args:
        ansi: whether it is one of the terminal's own colours, of which nobody knows what they look like.
    """
    if ansi:
        # Borders in black are none on a black terminal.
        return dict(variables) | {"border-blurred": "ansi_bright_black"}
    behind = [Color.parse(variables[name]) for name in _BEHIND]
    moved = {name: _moved(Color.parse(variables[name]), behind, least) for name, least in LEGIBLE.items()}
    return dict(variables) | {name: color.hex for name, color in moved.items()}


def _moved(color: Color, behind: list[Color], least: float) -> Color:
    color = behind[0].blend(color, color.a, alpha=1.0)
    if _worst(color, behind) >= least:
        return color
    end = max((Color(255, 255, 255), Color(0, 0, 0)), key=lambda each: _worst(each, behind))
    steps = (color.blend(end, step / 20, alpha=1.0) for step in range(1, 21))
    return next((each for each in steps if _worst(each, behind) >= least), end)


def _worst(color: Color, behind: list[Color]) -> float:
    return min(contrast(color, each) for each in behind)


UNCOLOURED = "ansi-dark"  # the theme that is painted without its colours: of what has none, little has a background

SKYWARD = Theme(
    name="skyward",
    primary="#5aa9e6",
    secondary="#8f9fdc",
    accent="#7cc4f8",
    warning="#e9b44c",
    error="#ef6f6c",
    success="#52c9b0",
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

LIGHT = Theme(
    name="skyward-light",
    primary="#1668b3",
    secondary="#5664b8",
    accent="#0f5ea8",
    warning="#a86400",
    error="#c0322f",
    success="#007a66",
    foreground="#1b2430",
    background="#fbfcfd",
    surface="#f2f5f8",
    panel="#e6ebf1",
    dark=False,
    variables={
        "muted": "#5b6776",
        "border": "#8b9aac",
        "border-blurred": "#c3cdd8",
        "block-cursor-background": "#1668b3",
        "block-cursor-foreground": "#ffffff",
        "block-cursor-text-style": "bold",
        "input-selection-background": "#1668b3 30%",
    },
)

CONTRAST = Theme(
    name="skyward-contrast",
    primary="#6cc7ff",
    secondary="#c9b8ff",
    accent="#ffe14d",
    warning="#ffb000",
    error="#ff8a80",
    success="#5eead4",
    foreground="#ffffff",
    background="#000000",
    surface="#000000",
    panel="#141414",
    dark=True,
    variables={
        "muted": "#c8c8c8",
        "border": "#ffffff",
        "border-blurred": "#8c8c8c",
        "block-cursor-background": "#ffe14d",
        "block-cursor-foreground": "#000000",
        "block-cursor-text-style": "bold",
        "input-selection-background": "#ffe14d 45%",
    },
)

OWN = (SKYWARD, LIGHT, CONTRAST)
