"""States are told apart by their colours, too, by who does not see red and green as others do.

Simulated as Machado, Oliveira and Fernandes have it (A Physiologically-based Model for Simulation of Color Vision
Deficiency, 2009, severity 1.0), compared by the distance in CIELAB, of which about 2 can just be seen.
"""

from __future__ import annotations

from itertools import combinations

import pytest
from textual.color import Color
from textual.theme import Theme

from skyward_tui.ui.themes import OWN_THEMES, ensure_contrast, muted

SEEN_BY = {
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881),
    ),
    "protanopia": (
        (0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998),
    ),
}  # fmt: skip
STATES = ("text-success", "text-warning", "text-error", "text-primary")
LEAST = 12.0

Triple = tuple[float, float, float]


def linear(color: Color) -> Triple:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized
    )
    return red, green, blue


def lab(red: float, green: float, blue: float) -> Triple:
    """CIELAB of linear sRGB, under D65."""

    def bent(part: float) -> float:
        return part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116

    x = bent((0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047)
    y = bent(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    z = bent((0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def seen(color: Color, eyes: tuple[Triple, Triple, Triple]) -> Triple:
    light = linear(color)
    red, green, blue = (
        min(1.0, max(0.0, sum(share * part for share, part in zip(row, light, strict=True)))) for row in eyes
    )
    return lab(red, green, blue)


@pytest.mark.parametrize("eyes", SEEN_BY)
@pytest.mark.parametrize("theme", OWN_THEMES, ids=lambda theme: theme.name)
def test_no_two_states_look_alike(theme: Theme, eyes: str) -> None:
    made = ensure_contrast({**theme.to_color_system().generate(), "muted": muted(theme)}, ansi=False)
    looks = {name: seen(Color.parse(made[name]), SEEN_BY[eyes]) for name in STATES}
    apart = {
        (one, other): sum((a - b) ** 2 for a, b in zip(looks[one], looks[other], strict=True)) ** 0.5
        for one, other in combinations(STATES, 2)
    }
    assert min(apart.values()) >= LEAST, apart
