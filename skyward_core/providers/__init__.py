"""Where machines come from: providers by name, loaded when asked for.

Ours are the folders beside this file; each has a ``provider.py`` with its class under ``PROVIDER``. Another package
declares its own by an entry point of the group ``skyward.providers`` that names the class.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "skyward.providers"
DEFAULT_PROVIDER = "local"
"""The embedded one, for whoever names none."""
ELSEWHERE = "elsewhere"  # the folder of names that nobody serves here
SEVERAL = "several"
"""What is kept of pools whose machines may come from several providers; nobody asks for it by this name."""


def provider_names() -> list[str]:
    """The providers that there are: ours, then declared ones."""
    return built_in_names() + sorted(_declared_providers())


def built_in_names() -> list[str]:
    """The providers that come with this library."""
    from pkgutil import iter_modules

    return sorted(found.name for found in iter_modules(__path__) if found.ispkg and found.name != ELSEWHERE)


def resolve_provider(provider: Any = None) -> Any:
    """A provider from itself, from its class or name, or, for None, the embedded default.

    Raises:
        UsageError: no provider has that name, or the one that has cannot be made of its name alone.
    """
    if provider is None or isinstance(provider, str):
        provider = provider_class(provider or DEFAULT_PROVIDER)
    if not isinstance(provider, type):
        return provider
    try:
        return provider()
    except TypeError as error:
        name, lacks = getattr(provider, "name", provider), str(error).rpartition("() ")[2]
        raise UsageError(f"provider {name} cannot be had by its name alone: {lacks}") from error


def provider_from_json(data: dict[str, Any]) -> Any:
    """The provider that wrote ``data`` with its ``to_json``.

    Raises:
        UsageError: its package is not installed here, or cannot be loaded.
    """
    name = data["provider"]
    if name == SEVERAL:
        from skyward_core.providers.first_available_provider import (
            MultiProvider,  # hardly any pool is of several
        )

        return MultiProvider([provider_from_json(each) for each in provider_parts(data)])
    try:
        found = provider_class(name)
    except UsageError as error:
        raise UsageError(f"it needs provider {name!r}, whose package must be installed here, too: {error}") from error
    return found.from_json(data)


def provider_parts(data: dict[str, Any]) -> list[dict[str, Any]]:
    """What each provider wrote of those that one has, which has another's machines; itself, where it has none."""
    return list(data["of"]) if data["provider"] == SEVERAL else [data]


def provider_class(name: str) -> Any:
    """The class of a provider.

    Raises:
        UsageError: no provider has that name, several packages declare it, or the one that does cannot be loaded;
            says why.
    """
    if name.isidentifier():
        module = f"{__name__}.{name}"
        try:
            return import_module(f"{module}.provider").PROVIDER
        except ModuleNotFoundError as error:
            if error.name not in (module, f"{module}.provider"):
                raise
    points = _declared_providers().get(name)
    if points is None:
        from skyward_core.providers.unsupported_providers import PROVIDERS_BY_TYPE

        if name in PROVIDERS_BY_TYPE:
            raise UsageError(PROVIDERS_BY_TYPE[name].refusal())
        near = get_close_matches(name, provider_names(), 1)
        meant = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(provider_names())}"
        raise UsageError(f"no provider is called {name!r}{meant}")
    from skyward_core.model.plugin_and_provider_entry_points import resolve_entry_point

    return _load_entry_point(resolve_entry_point("provider", points))


@cache
def _declared_providers() -> dict[str, list[EntryPoint]]:
    from skyward_core.model.plugin_and_provider_entry_points import load_entry_points

    return load_entry_points(ENTRY_POINT_GROUP, built_in_names())


def _load_entry_point(point: EntryPoint) -> Any:
    try:
        found = point.load()
    except Exception as error:
        raise UsageError(
            f"provider {point.name!r} ({point.value}) cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    said = getattr(found, "name", None)
    if said != point.name:
        raise UsageError(f"provider {point.name!r} ({point.value}) calls itself {said!r}")
    for words in ("about", "machine"):
        if not isinstance(getattr(found, words, None), str):
            raise UsageError(f"provider {point.name!r} ({point.value}) has no text under {words!r}")
    from skyward_core.providers.provider import settings_error

    if reason := settings_error(found):
        raise UsageError(f"provider {point.name!r} ({point.value}): {reason}")
    return found
