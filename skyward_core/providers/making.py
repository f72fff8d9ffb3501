"""A provider made of what a person wrote for its settings."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from ..model.capabilities import settings_of
from ..model.errors import SkywardError, UsageError
from ..model.setting import Setting
from ..model.wrong_field import of_field


def make(provider: Any, texts: Mapping[str, str]) -> Any:
    """A provider of its class and of what a person wrote for its settings.

    Args:
        provider: the class.
        texts: name of a setting and what was written.

    Raises:
        UsageError: as :func:`values_of`; or it cannot be made of what is there; says why.
    """
    given = values_of(provider, texts)
    declared = {each.name: each.default for each in settings_of(provider) if not each.required}
    try:
        return provider(**declared | given)
    except SkywardError:
        raise
    except Exception as error:  # one of another package may raise anything
        raise UsageError(
            f"provider {provider.name} cannot be made of {', '.join(declared | given) or 'nothing'}: "
            f"{type(error).__name__}: {error}"
        ) from error


def values_of(provider: Any, texts: Mapping[str, str]) -> dict[str, Any]:
    """What a person wrote for a provider's settings, as values.

    Args:
        provider: the class.
        texts: name of a setting and what was written.

    Raises:
        UsageError: it has no such setting, or a text is none of its values; says why.
    """
    settings = {each.name: each for each in settings_of(provider)}
    for name in texts:
        if name not in settings:
            near = get_close_matches(name, settings, 1)
            there = "; it has " + ", ".join(f"{each.name} ({each.help})" for each in settings.values())
            meant = f"; did you mean {near[0]!r}?" if near else there if settings else "; it has none"
            raise UsageError(f"provider {provider.name} has no setting {name!r}{meant}")
    found = {}
    for name, text in texts.items():
        with of_field(f"settings.{name}"):
            found[name] = settings[name].read(text)
    return found


def wrong(provider: Any) -> str:
    """What is wrong with the settings that a class of another package declares; "" where nothing is."""
    try:
        declared = settings_of(provider)
    except TypeError:
        return "its settings are no list"
    for each in declared:
        if not isinstance(each, Setting):
            return f"its settings hold {each!r}, which is no Setting"
        if not (each.name.isascii() and each.name.isidentifier()):
            return f"its setting {each.name!r} is no name of a parameter"
    names = [each.name for each in declared]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"it declares setting {twice[0]!r} twice" if twice else ""
