"""Where machines come from: providers by name, loaded when asked for."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any

from ..model.errors import UsageError

_WHERE = {"local": ("local.provider", "Local"), "ssh": ("ssh.provider", "SSH")}


def names() -> list[str]:
    """The providers that there are."""
    return list(_WHERE)


def resolve(provider: Any = None) -> Any:
    """A provider from itself, from its class or name ("local"), or, for None, the embedded default.

    Raises:
        UsageError: no provider has that name, or the one that has cannot be made of its name alone.
    """
    if provider is None or isinstance(provider, str):
        provider = by_name(provider or "local")
    if not isinstance(provider, type):
        return provider
    try:
        return provider()
    except TypeError as error:
        name, lacks = getattr(provider, "name", provider), str(error).rpartition("() ")[2]
        raise UsageError(f"provider {name} cannot be had by its name alone: {lacks}") from error


def from_json(data: dict[str, Any]) -> Any:
    """The provider that wrote ``data`` with its ``to_json``."""
    return by_name(data["provider"]).from_json(data)


def by_name(name: str) -> Any:
    """The class of a provider.

    Raises:
        UsageError: no provider has that name.
    """
    if name not in _WHERE:
        near = get_close_matches(name, _WHERE, 1)
        meant = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(_WHERE)}"
        raise UsageError(f"no provider is called {name!r}{meant}")
    module, attribute = _WHERE[name]
    return getattr(import_module(f"{__name__}.{module}"), attribute)
