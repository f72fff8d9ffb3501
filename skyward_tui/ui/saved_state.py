"""Saved state of the app (theme and screens), which the next start restores.

A file that is invalid or was written by another release is reported and not used.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from skyward_core.client import user_settings_and_app_state as settings

NAME = "app"
VERSION = 1
MAX_CHARACTERS = 64 * 1024  # maximum characters of the state file; a longer file is rejected as invalid


ScreenState = Mapping[str, str | bool]


class SavedState(NamedTuple):
    """Saved state of the app.

    Attributes:
        theme: Name of the theme chosen in the app; "" for none.
        over: Theme in the settings at the time when the user chose ``theme``. If the settings now name another theme,
            the settings take precedence.
        screens: State of each screen by scope. Each screen defines the names in its state.
    """

    theme: str = ""
    over: str = ""
    screens: Mapping[str, ScreenState] = MappingProxyType({})

    def resolve_theme(self, requested: str, asked: str, known: Container[str]) -> tuple[str, str]:
        """Return the theme to start with ("" for the app's own), and an error text or "".

        Args:
            requested: Theme in the settings.
            asked: Theme requested only for this start.
            known: All available themes.
        """
        if asked and asked in known:
            return asked, ""
        theme = asked or (self.theme if self.theme and self.over == requested else requested)
        if not theme or theme in known:
            return theme, ""
        return (requested if requested in known else ""), f"theme {theme!r} does not exist"

    def to_json(self) -> str:
        screens = {scope: dict(screen) for scope, screen in self.screens.items()}
        return json.dumps({"version": VERSION} | self._asdict() | {"screens": screens})


class InvalidStateFile(Exception):
    """Error about a state file that cannot be used. The message states the reason."""


def load_state() -> SavedState:
    """Load the saved state; return the defaults if there is none.

    Raises:
        InvalidStateFile: If the file cannot be read or parsed.
    """
    try:
        text = settings.load_state(NAME)
    except FileNotFoundError:
        return SavedState()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidStateFile(f"cannot read the saved state of the app: {error}") from error
    return parse_state(text)


def save_state(changed: Mapping[str, str], screens: Mapping[str, ScreenState]) -> None:
    """Save changed values, without overwriting values that another app has saved in the meantime.

    Args:
        changed: New values of attributes of :class:`SavedState`.
        screens: State of each screen by scope.

    Raises:
        OSError: If the file cannot be written.
    """
    try:
        before = load_state()
    except InvalidStateFile:
        before = SavedState()
    settings.save_state(NAME, before._replace(**changed, screens={**before.screens, **screens}).to_json())


def parse_state(text: str) -> SavedState:
    """Parse the content of a state file.

    Raises:
        InvalidStateFile: If the text is not a state of this release.
    """
    try:
        if len(text) > MAX_CHARACTERS:
            raise ValueError("the file is too large")
        data = json.loads(text)
        if not isinstance(data, Mapping) or data.get("version") != VERSION:
            raise ValueError("another release wrote the file")
        return SavedState(
            theme=_text(data.get("theme", "")),
            over=_text(data.get("over", "")),
            screens={_text(scope): _screen(screen) for scope, screen in data.get("screens", {}).items()},
        )
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidStateFile(f"ignored the saved state of the app: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not a string")
    return value


def _screen(data: Any) -> ScreenState:
    return {_text(name): value if isinstance(value, bool) else _text(value) for name, value in data.items()}
