"""Where machines come from: providers by name, loaded when asked for.

Ours are the folders beside this file; each has a ``provider.py`` with its class under ``PROVIDER``. Another package
declares its own by an entry point of the group ``skyward.providers`` that names the class.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..model.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "skyward.providers"


def names() -> list[str]:
    """The providers that there are: ours, then declared ones."""
    from pkgutil import iter_modules

    ours = sorted(found.name for found in iter_modules(__path__) if found.ispkg)
    return ours + sorted(_declared().keys() - set(ours))


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
    """The provider that wrote ``data`` with its ``to_json``.

    Raises:
        UsageError: its package is not installed here, or cannot be loaded.
    """
    name = data["provider"]
    try:
        found = by_name(name)
    except UsageError as error:
        raise UsageError(
            f"it needs provider {name!r}, whose package must be installed here, too: {error}"
        ) from error
    return found.from_json(data)


def by_name(name: str) -> Any:
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
    declared = _declared().get(name)
    if not declared:
        near = get_close_matches(name, names(), 1)
        meant = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names())}"
        raise UsageError(f"no provider is called {name!r}{meant}")
    if len(declared) > 1:
        packages = " and ".join(sorted(f"{_package(each)} ({each.value})" for each in declared))
        raise UsageError(
            f"provider {name!r} is declared by {packages}: uninstall all but one of these packages"
        )
    return _load(declared[0])


@cache
def _declared() -> dict[str, list[EntryPoint]]:
    from importlib.metadata import entry_points  # it takes as long to load as the rest of a start

    declared: dict[str, list[EntryPoint]] = {}
    for found in entry_points(group=GROUP):
        declared.setdefault(found.name, []).append(found)
    return declared


def _package(declared: EntryPoint) -> str:
    """The name of the distribution that declares it."""
    return declared.dist.name if declared.dist is not None else "a package without a name"


def _load(declared: EntryPoint) -> Any:
    try:
        found = declared.load()
    except Exception as error:
        raise UsageError(
            f"provider {declared.name!r} ({declared.value}) cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    said = getattr(found, "name", None)
    if said != declared.name:
        raise UsageError(f"provider {declared.name!r} ({declared.value}) calls itself {said!r}")
    for words in ("about", "machine"):
        if not isinstance(getattr(found, words, None), str):
            raise UsageError(f"provider {declared.name!r} ({declared.value}) has no text under {words!r}")
    return found
