"""The Textual app."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for screens and dialogs, which the app imports late
    from skyward_tui.app.app import SkywardApp as SkywardApp
