"""What the app looked like when it was left, kept in the home for the next start. Nobody would miss it for long:
a file of another release, or one that somebody has changed, is told of and not used.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from skyward_core.client import settings

NAME = "app"
VERSION = 1
MOST = 64 * 1024  # characters


ScreenState = Mapping[str, str | bool]


class SavedState(NamedTuple):
    """Attributes:
    theme: the name of the theme that was chosen in the app; "" for none.
    over: what the settings said of the theme then. Where they say something else now, that is the newer wish.
    screens: how each screen was left, by its scope and by names that it gives.
    """

    theme: str = ""
    over: str = ""
    screens: Mapping[str, ScreenState] = MappingProxyType({})

    def resolve_theme(self, requested: str, asked: str, known: Container[str]) -> tuple[str, str]:
        """The theme to start with, "" for the app's own; and what is wrong with what was said of it, or "".

        Args:
            requested: what the settings say.
            asked: what was said for this start alone.
            known: all themes that there are.
        """
        if asked and asked in known:
            return asked, ""
        said = asked or (self.theme if self.theme and self.over == requested else requested)
        if not said or said in known:
            return said, ""
        return (requested if requested in known else ""), f"there is no theme {said!r}"

    def to_json(self) -> str:
        """It, as it is kept."""
        screens = {scope: dict(screen) for scope, screen in self.screens.items()}
        return json.dumps({"version": VERSION} | self._asdict() | {"screens": screens})


class InvalidStateFile(Exception):
    """What is kept cannot be used; says why, in words."""


def load_state() -> SavedState:
    """What was kept last; the defaults where there is nothing.

    Raises:
        Unusable: there is something, and it makes no sense.
    """
    try:
        text = settings.load_state(NAME)
    except FileNotFoundError:
        return SavedState()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidStateFile(f"how the app was left cannot be read: {error}") from error
    return parse_state(text)


def save_state(changed: Mapping[str, str], screens: Mapping[str, ScreenState]) -> None:
    """Keep what has changed, beside what another app may have kept meanwhile.

    Raises:
        OSError: it cannot be written.
    """
    try:
        before = load_state()
    except InvalidStateFile:
        before = SavedState()
    state = before._replace(**changed, screens={**before.screens, **screens})
    settings.save_state(NAME, state.to_json())


def parse_state(text: str) -> SavedState:
    """A state of its text.

    Raises:
        Unusable: it is none.
    """
    try:
        if len(text) > MOST:
            raise ValueError("it is too large")
        found = json.loads(text)
        if not isinstance(found, Mapping) or found.get("version") != VERSION:
            raise ValueError("another release wrote it")
        return SavedState(
            theme=_text(found.get("theme", "")),
            over=_text(found.get("over", "")),
            screens={_text(scope): _screen(screen) for scope, screen in found.get("screens", {}).items()},
        )
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidStateFile(f"how the app was left is not known, and it starts as new: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not what stands there")
    return value


def _screen(found: Any) -> ScreenState:
    return {_text(name): value if isinstance(value, bool) else _text(value) for name, value in found.items()}
