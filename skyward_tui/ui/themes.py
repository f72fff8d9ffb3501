"""Themes, style sheets, and filters for terminals without colours."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

from skyward_tui.text.text_width_tables_and_ascii import plain_ascii


def rank_style(rank: int) -> str:
    """Return the style with which a rank's name is shown in the hue of the rank's lines in charts."""
    return "bold $" + _HUE_NAMES[rank % RANK_HUES]


def muted(theme: Theme) -> str:
    """Return a colour for muted text in a theme that defines none.

    The result is a plain colour, because some users of the CSS variable support neither other variables nor
    percentages.
    """
    if theme.ansi:
        return "ansi_bright_black"
    colors = theme.to_color_system().generate()
    return Color.parse(colors["background"]).blend(Color.parse(colors["foreground"]), 0.6, alpha=1.0).hex


# Minimum contrast of text colours on each background. WCAG 2.2 (1.4.3) requires 4.5, but muted text may have less.
MIN_CONTRAST = dict.fromkeys(("text-success", "text-warning", "text-error", "text-primary", "text-accent"), 4.5) | {
    "muted": 4.0
}
# Hues of ranks in charts and lists; none equals the colour of a state. Themes with the terminal's own palette use
# ``_ANSI_HUES`` instead.
_HUES = ("#61b5f2", "#d98cd0", "#a5c94f", "#f0965a", "#a194f5", "#4fc3c9", "#e3cf57", "#f08aa5")
_ANSI_HUES = ("bright_blue", "magenta", "green", "yellow", "cyan", "bright_magenta", "bright_green", "bright_cyan")
RANK_HUES = len(_HUES)
_HUE_NAMES = ("rank-a", "rank-b", "rank-c", "rank-d", "rank-e", "rank-f", "rank-g", "rank-h")
CURSOR_CONTRAST = 4.5  # minimum contrast of text on the background of the cursor (WCAG 2.2, 1.4.3)
_HUE_CONTRAST = 3.0  # minimum contrast of lines in charts (WCAG 2.2, 1.4.11)


def contrast(one: Color, other: Color) -> float:
    """Return the WCAG 2.2 contrast ratio of two colours, from 1 to 21."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: Color) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ensure_contrast(variables: Mapping[str, str], *, ansi: bool) -> dict[str, str]:
    """Return a theme's CSS variables with text colours that are readable on its backgrounds.

    Text colours are blended with white or black until they reach ``MIN_CONTRAST``. Some of Textual's themes are below
    this contrast.

    Args:
        ansi: Whether the theme uses the terminal's own palette, whose colours are unknown.
    """
    if ansi:
        # The border is bright black, because a black border would be invisible on a black terminal.
        hues = {name: f"ansi_{hue}" for name, hue in zip(_HUE_NAMES, _ANSI_HUES, strict=True)}
        return dict(variables) | {"border-blurred": "ansi_bright_black"} | hues
    behind = [Color.parse(variables[name]) for name in ("background", "surface", "panel")]
    moved = {name: _raise_contrast(Color.parse(variables[name]), behind, least) for name, least in MIN_CONTRAST.items()}
    moved |= {
        name: _raise_contrast(Color.parse(hue), behind, _HUE_CONTRAST)
        for name, hue in zip(_HUE_NAMES, _HUES, strict=True)
    }
    cursor, front = Color.parse(variables["block-cursor-background"]), variables["block-cursor-foreground"]
    if front.startswith("auto") or contrast(Color.parse(front), cursor) < CURSOR_CONTRAST:
        moved["block-cursor-foreground"] = max(Color(255, 255, 255), Color(0, 0, 0), key=partial(contrast, cursor))
    return dict(variables) | {name: color.hex for name, color in moved.items()}


def _raise_contrast(color: Color, behind: list[Color], least: float) -> Color:
    color = behind[0].blend(color, color.a, alpha=1.0)
    if _lowest_contrast(color, behind) >= least:
        return color
    end = max((Color(255, 255, 255), Color(0, 0, 0)), key=lambda each: _lowest_contrast(each, behind))
    steps = (color.blend(end, step / 20, alpha=1.0) for step in range(1, 21))
    return next((each for each in steps if _lowest_contrast(each, behind) >= least), end)


def _lowest_contrast(color: Color, behind: list[Color]) -> float:
    return min(contrast(color, each) for each in behind)


UNCOLOURED = "ansi-dark"  # name of Textual's theme for output without colours; few of its widgets have a background

# Colours of the own themes, in the order of ``OWN_THEMES``: by argument of ``Theme``, and by CSS variable.
_COLOURS = {
    "primary": ("#5aa9e6", "#1668b3", "#6cc7ff"),
    "secondary": ("#8f9fdc", "#5664b8", "#c9b8ff"),
    "accent": ("#7cc4f8", "#0f5ea8", "#ffe14d"),
    "warning": ("#e9b44c", "#a86400", "#ffb000"),
    "error": ("#ef6f6c", "#c0322f", "#ff8a80"),
    "success": ("#52c9b0", "#007a66", "#5eead4"),
    "foreground": ("#d6dde6", "#1b2430", "#ffffff"),
    "background": ("#10151c", "#fbfcfd", "#000000"),
    "surface": ("#151b24", "#f2f5f8", "#000000"),
    "panel": ("#1d2531", "#e6ebf1", "#141414"),
}
_VARIABLES = {
    "muted": ("#7f8b99", "#5b6776", "#c8c8c8"),
    "border": ("#3b4a5e", "#8b9aac", "#ffffff"),
    "border-blurred": ("#2a3442", "#c3cdd8", "#8c8c8c"),
    "block-cursor-background": ("#2f4a66", "#1668b3", "#ffe14d"),
    "block-cursor-foreground": ("#f2f6fa", "#ffffff", "#000000"),
    "input-selection-background": ("#5aa9e6 35%", "#1668b3 30%", "#ffe14d 45%"),
}


def _make_theme(name: str, column: int, *, dark: bool) -> Theme:
    colours: dict[str, Any] = {role: by_theme[column] for role, by_theme in _COLOURS.items()}
    variables = {name: by_theme[column] for name, by_theme in _VARIABLES.items()}
    return Theme(name, **colours, dark=dark, variables=variables | {"block-cursor-text-style": "bold"})


SKYWARD = _make_theme("skyward", 0, dark=True)
LIGHT = _make_theme("skyward-light", 1, dark=False)
CONTRAST = _make_theme("skyward-contrast", 2, dark=True)
OWN_THEMES = (SKYWARD, LIGHT, CONTRAST)


def read_style_sheet(module: str, name: str = "") -> str:
    """Return a style sheet from the folder of a module.

    The sheet is used as ``DEFAULT_CSS`` of a class. Unlike the rules of a ``CSS_PATH``, its rules yield to Textual's
    rules for focused or disabled widgets.

    Args:
        module: ``__file__`` of the module.
        name: Name of the style sheet without suffix; by default, the name of the module.
    """
    path = Path(module)
    return path.with_stem(name or path.stem).with_suffix(".tcss").read_text("utf-8")


_GREY = 8  # index of the colour of muted text in the terminal's palette (bright black)


class ColourRemover(LineFilter):
    """Line filter that removes all colours.

    Text with a background, such as a cursor, is shown in reverse video. Grey text is dimmed.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text, None if style is None else _without_colour(style), control)
            for text, style, control in segments
        ]


@lru_cache(maxsize=1024)
def _without_colour(style: Style) -> Style:
    front, back = style.color, style.bgcolor
    bare = style.without_color
    if back is not None and not back.is_default:
        return bare + Style(reverse=True)
    return bare + Style(dim=True) if front is not None and front.number == _GREY else bare


class PlainAscii(LineFilter):
    """Line filter that replaces characters outside ASCII without changing the width in cells."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.text.isascii() else Segment(plain_ascii(segment.text), *segment[1:])
            for segment in segments
        ]
