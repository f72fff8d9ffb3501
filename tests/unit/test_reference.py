"""Every public name has its place in the reference."""

from __future__ import annotations

from pathlib import Path

import skyward_core as sky

PAGES = Path(__file__).parents[2] / "docs" / "reference"


def test_the_reference_shows_every_public_name_once() -> None:
    lines = [line for page in PAGES.glob("*.md") for line in page.read_text().splitlines()]
    shown = [line.removeprefix("::: skyward_core.") for line in lines if line.startswith("::: ")]
    assert len(shown) == len(set(shown))
    assert set(sky.__all__) <= set(shown)
