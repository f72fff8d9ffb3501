"""Settings of providers as texts: parsing, and creation of providers from them."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from skyward_core.model.errors import SkywardError, UsageError, set_error_field
from skyward_core.model.provider_capability_protocols import declared_settings
from skyward_core.model.provider_setting_descriptors import Setting


def make_provider(provider: Any, texts: Mapping[str, str]) -> Any:
    """Create a provider from its class and the texts of its settings.

    Args:
        provider: The class.
        texts: Name of each setting and its text.

    Raises:
        UsageError: If a setting is invalid (see :func:`parse_settings`) or the constructor fails.
    """
    given = parse_settings(provider, texts)
    declared = {each.name: each.default for each in declared_settings(provider) if not each.required}
    try:
        return provider(**declared | given)
    except SkywardError:
        raise
    except Exception as error:  # constructors of other packages may raise anything
        raise UsageError(
            f"provider {provider.name} cannot be created from {', '.join(declared | given) or 'no settings'}: "
            f"{type(error).__name__}: {error}"
        ) from error


def parse_settings(provider: Any, texts: Mapping[str, str]) -> dict[str, Any]:
    """Parse the texts that a user wrote for a provider's settings.

    Args:
        provider: The class.
        texts: Name of each setting and its text.

    Returns:
        Name of each setting and its value.

    Raises:
        UsageError: If the provider has no such setting, or if a text is not a valid value.
    """
    settings = {each.name: each for each in declared_settings(provider)}
    for name in texts:
        if name not in settings:
            near = get_close_matches(name, settings, 1)
            available = "; it has " + ", ".join(f"{each.name} ({each.help})" for each in settings.values())
            hint = f"; did you mean {near[0]!r}?" if near else available if settings else "; it has none"
            raise UsageError(f"provider {provider.name} has no setting {name!r}{hint}")
    found = {}
    for name, text in texts.items():
        with set_error_field(f"settings.{name}"):
            found[name] = settings[name].read(text)
    return found


def settings_error(provider: Any) -> str:
    """Return the error in the settings that a class of another package declares, or ""."""
    try:
        declared = declared_settings(provider)
    except TypeError:
        return "its settings are not a list"
    for each in declared:
        if not isinstance(each, Setting):
            return f"its settings hold {each!r}, which is not a Setting"
        if not (each.name.isascii() and each.name.isidentifier()):
            return f"its setting {each.name!r} is not a valid parameter name"
    names = [each.name for each in declared]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"it declares setting {twice[0]!r} twice" if twice else ""
