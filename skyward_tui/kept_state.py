"""What the app looked like when it was left, kept in the home for the next start. Nobody would miss it for long:
a file of another release, or one that somebody has changed, is told of and not used.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from skyward_core.front import settings

NAME = "app"
VERSION = 1
MOST = 64 * 1024  # characters


class KeptState(NamedTuple):
    """Attributes:
    theme: the name of the theme that was chosen in the app; "" for none.
    over: what the settings said of the theme then. Where they say something else now, that is the newer wish.
    """

    theme: str = ""
    over: str = ""

    def theme_of(self, wished: str, asked: str, known: Container[str]) -> tuple[str, str]:
        """The theme to start with, "" for the app's own; and what is wrong with what was said of it, or "".

        Args:
            wished: what the settings say.
            asked: what was said for this start alone.
            known: all themes that there are.
        """
        if asked and asked in known:
            return asked, ""
        said = asked or (self.theme if self.theme and self.over == wished else wished)
        if not said or said in known:
            return said, ""
        return (wished if wished in known else ""), f"there is no theme {said!r}"

    def text(self) -> str:
        """It, as it is kept."""
        return json.dumps({"version": VERSION} | self._asdict())


class Unusable(Exception):
    """What is kept cannot be used; says why, in words."""


def kept_state() -> KeptState:
    """What was kept last; the defaults where there is nothing.

    Raises:
        Unusable: there is something, and it makes no sense.
    """
    try:
        text = settings.remembered(NAME)
    except FileNotFoundError:
        return KeptState()
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"how the app was left cannot be read: {error}") from error
    return understood(text)


def understood(text: str) -> KeptState:
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
        return KeptState(
            **{name: _checked(found[name], default) for name, default in _DEFAULTS if name in found}
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise Unusable(f"how the app was left is not known, and it starts as new: {error}") from error


_DEFAULTS = tuple(KeptState()._asdict().items())


def _checked(value: Any, default: Any) -> Any:
    if type(value) is not type(default):
        raise TypeError(f"{value!r:.40} is not what stands there")
    return value
