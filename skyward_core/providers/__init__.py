"""Registry of providers, which are looked up by name and imported on first use, and override of a pool's provider.

The built-in providers are the folders beside this file; each has a ``provider.py`` that sets ``PROVIDER`` to its class.
Another package declares a provider with an entry point of the group ``skyward.providers``. After :func:`set_override`,
the process's pools use another provider than they name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from skyward_core.model.errors import UsageError, convert_errors

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

DEFAULT_PROVIDER = "local"  # used if the user names no provider
SEVERAL = "several"  # name in the JSON of a MultiProvider, in place of a provider's name; users cannot select it

# Provider that this process's pools use instead of their own.
provider_override: str | None = None
# Settings of ``provider_override``, as the user wrote them.
override_settings: Mapping[str, str] = {}
# Number of machines that this process's pools use instead of their own.
nodes_override: int | str | None = None
OVERRIDE_VARIABLE = "SKYWARD_OVERRIDE"  # environment variable that passes the override to child processes


def set_override(provider: str | None, settings: Mapping[str, str], nodes: int | str | None) -> None:
    """Override provider, provider settings and number of nodes of all pools that this process and its child processes
    create.
    """
    global provider_override, override_settings, nodes_override
    provider_override, override_settings, nodes_override = provider, settings, nodes
    os.environ[OVERRIDE_VARIABLE] = json.dumps([provider, dict(settings), nodes])


if OVERRIDE_VARIABLE in os.environ:  # the parent process has called :func:`set_override`
    provider_override, override_settings, nodes_override = json.loads(os.environ[OVERRIDE_VARIABLE])


def provider_names() -> list[str]:
    """Return the names of all providers: first the built-in ones, then those that other packages declare."""
    return built_in_names() + sorted(_declared_providers())


def built_in_names() -> list[str]:
    """Return the names of the providers that are part of this library."""
    from pkgutil import iter_modules

    return sorted(found.name for found in iter_modules(__path__) if found.ispkg)


def resolve_provider(provider: Any = None) -> Any:
    """Return a provider instance.

    Args:
        provider: An instance, a class, a name, or None for the default provider.

    Raises:
        UsageError: If no provider has that name, or if the provider has required parameters.
    """
    if provider is None or isinstance(provider, str):
        provider = provider_class(provider or DEFAULT_PROVIDER)
    if not isinstance(provider, type):
        return provider
    try:
        return provider()
    except TypeError as error:
        name, missing = getattr(provider, "name", provider), str(error).rpartition("() ")[2]
        raise UsageError(f"provider {name} cannot be created from its name alone: {missing}") from error


def provider_from_json(data: dict[str, Any]) -> Any:
    """Rebuild a provider from the JSON that its ``to_json`` returned.

    Raises:
        UsageError: If the provider's package is not installed here or cannot be imported.
    """
    name = data["provider"]
    if name == SEVERAL:
        # imported late, because few pools have several providers
        from skyward_core.providers.first_available_provider import MultiProvider

        return MultiProvider([provider_from_json(each) for each in provider_parts(data)])
    with convert_errors(f"install the package of provider {name!r} on this machine, too", UsageError, UsageError):
        found = provider_class(name)
    return found.from_json(data)


def provider_parts(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the JSON of each provider that a provider's JSON contains: of all candidates of a MultiProvider, otherwise
    ``[data]``.
    """
    return list(data["of"]) if data["provider"] == SEVERAL else [data]


def provider_class(name: str) -> Any:
    """Import and return a provider's class.

    Raises:
        UsageError: If no provider has that name, if several packages declare it, or if its import fails.
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
        hint = f"; did you mean {near[0]!r}?" if near else f"; available: {', '.join(provider_names())}"
        raise UsageError(f"no provider is called {name!r}{hint}")
    from skyward_core.model.plugin_and_provider_entry_points import resolve_entry_point

    return _load_entry_point(resolve_entry_point("provider", points))


@cache
def _declared_providers() -> dict[str, list[EntryPoint]]:
    from skyward_core.model.plugin_and_provider_entry_points import load_entry_points

    return load_entry_points("skyward.providers", built_in_names())


def _load_entry_point(point: EntryPoint) -> Any:
    try:
        found = point.load()
    except Exception as error:
        raise UsageError(
            f"provider {point.name!r} ({point.value}) cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    name = getattr(found, "name", None)
    if name != point.name:
        raise UsageError(
            f"provider {point.name!r} ({point.value}): its class has the name {name!r}, which must be the same"
        )
    for attribute in ("about", "machine"):
        if not isinstance(getattr(found, attribute, None), str):
            raise UsageError(f"provider {point.name!r} ({point.value}): its class needs a str attribute {attribute!r}")
    from skyward_core.model.provider_settings_schema import settings_error

    if reason := settings_error(found):
        raise UsageError(f"provider {point.name!r} ({point.value}): {reason}")
    return found
